"""queue-load: latency of a queue at a rate, and the highest rate that holds a latency bound."""

import secrets
from typing import Any, ClassVar, Literal

import orjson
from pydantic import Field

from perfdag import signals
from perfdag.benchmark.contract import Benchmark, Gang, Metric, Output, Params, Rights
from perfdag.outcome import Failed, Invalid, Measurement
from perfdag.steps.queue.backend.workload import built_in_seconds, substitute
from perfdag.steps.queue.client.load import most_late
from perfdag.steps.queue.rights import READ_RULES
from perfdag.steps.queue.trials import Setting
from perfdag.units import PositiveDuration

SEARCH_TRIALS = 10
"""Full trials that a search takes about as long as, with its closed loop."""


class QueueLoadParams(Params):
    """Without a deployment, backends are processes on the measuring host."""

    rate: float | None = Field(
        None,
        gt=0,
        le=1e5,
        description="requests a second; without it, search the highest rate that holds `bound`",
    )
    bound: PositiveDuration = Field(
        0.5, description="search: seconds that `percentile` of the latency may have"
    )
    percentile: Literal["p50", "p90", "p95", "p99"] = Field(
        "p95", description="of the latency; a trial has the requests that it needs"
    )
    arrival: Literal["poisson", "constant"] = Field("poisson", description="gaps between requests")
    duration: PositiveDuration = Field(10.0, description="of a full trial, at least")
    precision: float = Field(
        0.05, ge=0.005, le=0.5, description="search: relative width of the last bracket"
    )
    replicas: int = Field(4, ge=1, le=1024, description="backends")
    command: list[str] = Field(
        ["sleep", "0.1"],
        min_length=1,
        description="workload of a backend: absolute path or built-in (sleep, usl)",
    )
    glob: str = Field(
        "", description="device files: the first that matches replaces FILENAME in the command"
    )
    deployment: str | None = Field(
        None, description="load this Deployment as it is, instead of processes"
    )
    namespace: str | None = Field(None, description="of the Deployment")
    client: str | None = Field(
        None, description="Service of its client (default: DEPLOYMENT-client)"
    )
    client_namespace: str | None = Field(
        None, description="of that Service (default: the Deployment's)"
    )

    def setting(self, seed: int = 1) -> Setting:
        """Return how trials run, with the seed of their arrivals."""
        return Setting(
            self.duration, self.arrival, self.percentile, self.bound, self.precision, seed
        )


class QueueLoad(Benchmark[QueueLoadParams]):
    """Latency of a work queue at a rate, or the highest rate that holds a latency bound.

    The client runs an open loop against a fixed number of backends. The search starts at 0.7 times
    the rate of a closed loop. Short trials narrow it, and full trials decide: the answer held the
    bound, and a rate at most `precision` above it did not.

    Clock: the client's monotonic clock. It starts at a request's scheduled time and stops at its
    answer. Every trial starts with an empty queue, a search after a closed loop as warm-up.
    """

    name: ClassVar[str] = "queue-load"
    canaries: ClassVar[tuple[str, ...]] = ("cpu", "loopback")
    api: ClassVar[Rights] = Rights(named=READ_RULES)
    Params: ClassVar[type[Params]] = QueueLoadParams
    coords: ClassVar[tuple[str, ...]] = ("rate", "full", "held", "bound")
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric(
            "peak_rate",
            "1/s",
            "higher",
            "highest rate that holds the bound; bound `at least`: no trial failed",
            headline=True,
        ),
        Metric(
            "latency",
            "s",
            "lower",
            "of requests from their scheduled time (p50, p90, p95, p99), at the rate or the peak",
            headline=True,
        ),
        Metric("capacity", "1/s", "higher", "items a second of a closed loop, before the search"),
        Metric(
            "trial_latency",
            "s",
            "none",
            "latency of all trials by rate, for the chart; a subject is a trial",
        ),
    )

    def seconds(self, params: QueueLoadParams) -> float:
        """Return an estimate; a trial may take twice its duration to drain."""
        if params.rate is not None:
            return 5 + params.setting().seconds_at(params.rate)
        item = _item(params) or 0.1
        trial = params.setting().seconds_at(0.7 * params.replicas / max(item, 1e-3))
        return 5 + 13 * item + SEARCH_TRIALS * trial

    def uses_api(self, params: QueueLoadParams) -> bool:
        return params.deployment is not None

    def check(self, params: QueueLoadParams, shape: Any) -> list[str]:
        local = {"command", "glob", "replicas"} & params.model_fields_set
        remote = {"namespace", "client", "client_namespace"} & params.model_fields_set
        if params.deployment:
            return [f"{', '.join(sorted(local))}: the Deployment has its own"] if local else []
        if remote:
            return [f"{', '.join(sorted(remote))} without a deployment"]
        try:
            item = built_in_seconds(params.command)
            substitute(params.command, params.glob)
        except ValueError as error:
            return [f"command: {error}"]
        if item is not None and item >= params.bound and params.rate is None:
            return [f"bound {params.bound:g} s: an item takes {item:g} s, so no rate holds it"]
        return []

    def run(self, gang: Gang, params: QueueLoadParams) -> Output:
        # Not at the top of the file: it imports the cluster client and the programs.
        from perfdag.steps.queue.load_targets import load_deployment, load_processes

        # Each sample draws arrivals of its own, so that repetitions differ as bursts do.
        setting = params.setting(secrets.randbelow(2**31))
        if params.deployment:
            work = load_deployment(
                params.deployment,
                params.namespace,
                params.client,
                params.client_namespace,
                setting,
                params.rate,
            )
        else:
            work = load_processes(
                params.command, params.replicas, params.glob, setting, params.rate
            )
        result = signals.run(work)
        return Output({"result": orjson.dumps(result).decode()}, tool="perfdag queue")

    def parse(self, output: Output, params: QueueLoadParams) -> list[Measurement]:
        try:
            result = orjson.loads(output.texts["result"])
            full = [trial for trial in result["trials"] if trial["full"]]
            rate = result["peak"] if params.rate is None else params.rate
            answer = next(trial for trial in full if trial["rate"] == rate)
        except (KeyError, ValueError, StopIteration):
            raise Failed("no trial at the rate", output.texts) from None
        measurements = [measured for trial in result["trials"] for measured in _of_trial(trial)]
        measurements += _latencies(answer, "latency", {})
        if params.rate is None:
            bound = {} if result["above"] else {"bound": "at least"}
            count = answer["success"]
            measurements.append(Measurement("peak_rate", rate, coords=bound, n=count))
            if result["capacity"] is not None:
                measurements.append(Measurement("capacity", result["capacity"]))
        if missing := answer["scheduled"] - answer["success"]:
            raise Invalid(
                f"{missing} of {answer['scheduled']} requests at {rate:g}/s were not answered: "
                "the backends do not keep up, lower rate",
                output.texts,
                measurements,
            )
        if fault := next(filter(None, map(_fault, full)), ""):
            raise Invalid(fault, output.texts, measurements)
        return measurements


def _fault(trial: Any) -> str:
    """Return why the latency of a trial is not that of the queue, "" for none."""
    late = trial["schedule_lag"]["late"]
    if late <= most_late(trial["rate"]):
        return ""
    return f"at {trial['rate']:.4g}/s the client sent requests {1000 * late:.0f} ms late at p99"


def _of_trial(trial: Any) -> list[Measurement]:
    rate = round(trial["rate"], 6)
    at = {"rate": rate, "full": trial["full"], "held": trial["held"]}
    kind = "" if trial["full"] else ", short"
    return _latencies(trial, "trial_latency", at, f"at {rate:g}/s{kind}")


def _latencies(
    trial: Any, metric: str, coords: dict[str, Any], subject: str | None = None
) -> list[Measurement]:
    latency = trial["latency"]
    return [
        Measurement(metric, latency[p], p, coords, latency["count"], subject)
        for p in ("p50", "p90", "p95", "p99")
        if latency.get(p) is not None
    ]


def _item(params: QueueLoadParams) -> float | None:
    return None if params.deployment else built_in_seconds(params.command)
