"""One measurement: its parameters, the command line of its program, and the result read.

Overhead and interference consist of several of them.
"""

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StringConstraints

from perfdag.benchmark.contract import (
    CommandResult,
    Duration,
    Failed,
    Form,
    Params,
    PositiveDuration,
    Problem,
    Skip,
    needed,
)
from perfdag.units import short

Text = Annotated[str, StringConstraints(min_length=1, max_length=4096)]

MLPERF_DURATION = 600.0
"""Minimum duration in seconds of MLPerf's own rules (mlperf.conf of mlcommons/inference)."""
FAST_DURATION = 2.0
QUERIES = {"offline": 24576, "server": 100, "single-stream": 100}
"""Fewest queries (Offline: samples) by mlperf.conf; early stopping may need more."""
FAST_QUERIES = {"offline": 16, "server": 64, "single-stream": 64}
FEWEST_BATCHES = 2
PROGRAM = 2
"""Version of the program's result."""
MARGIN = 1.25
"""Factor of Offline's expected rate over the warm-up's.

With LoadGen's own tenth, it makes up for a warm-up that was a quarter too slow."""
SHARE_OF_LARGEST = 0.9
"""Server's rate over the largest that holds the latency bound, where no rate is given."""
SHARE_OF_CAPACITY = 0.5
"""Server's rate over that of the warm-up, where no rate holds the bound."""
SEARCH = 30.0
"""Seconds for the search of Server's rate, at most."""
SETUP = 60.0
"""Seconds for imports, weights, warm-up and checks, at most."""
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
TAIL = {"server": "p99", "single-stream": "p90"}
_CONSTRAINTS = {
    "result_perf_constraints_met": "Performance constraints",
    "result_min_duration_met": "Min duration",
    "result_min_queries_met": "Min queries",
    "early_stopping_met": "Early stopping",
}


class StubParams(Params):
    """A system of known service time: a batch of b takes `base + each * b` seconds."""

    base: PositiveDuration = Field(0.01, description="seconds of a batch")
    each: Duration = Field(0.0, description="seconds a sample adds")


class Workload(Params):
    """One measurement of ResNet-50 under LoadGen."""

    retired: ClassVar[Mapping[str, Any]] = {
        "max_queries": None,
        "precision_of_peak": 0.01,
        "search_duration": 10.0,
        "check_logits": True,
        "imagenet": None,
        "weights_sha256": None,
        "weights": "random",
        "cpus": None,
        "stub": {"lock": None, "stalled": 0, "stall": 0.0},
    }

    device: Literal["cpu", "cuda"] = "cpu"
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    backend: Literal["eager", "compile"] = Field(
        "eager", description="compile: torch.compile; its time is reported separately"
    )
    threads: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="threads of one operator; unset: one for each allowed CPU,"
        " within a pod's CPU limit",
    )
    system: Literal["resnet50", "stub"] = Field(
        "resnet50", description="stub: a known service time, to measure the harness itself"
    )
    stub: StubParams = StubParams()
    scenario: Literal["offline", "server", "single-stream"] = Field(
        "offline",
        description="offline: samples/s; server: Poisson arrivals at target_rate; single-stream",
    )
    batch: int = Field(
        1,
        ge=1,
        le=65536,
        description="samples in a batch; in server the most that a batch may hold",
    )
    target_rate: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="server: queries/s that arrive, by default nine tenths of the most that hold"
        " latency_bound, by a search of 30 s;"
        " offline: expected samples/s, by default those of the warm-up",
    )
    latency_bound: PositiveDuration = Field(0.015, description="server: seconds that p99 may take")
    max_delay: Duration = Field(
        0.002, description="server: seconds the oldest query waits for a batch to fill"
    )
    seed: int = Field(
        0,
        ge=0,
        lt=2**31,
        description="seed of the weights, the images, LoadGen's order and schedule",
    )
    samples: int = Field(64, ge=1, le=50000, description="different images held in memory")
    min_duration: PositiveDuration = Field(
        MLPERF_DURATION, description="shortest run; MLPerf's rules ask for 600 s"
    )
    min_queries: int | None = Field(
        None, ge=1, description="fewest queries; unset: 100, in offline 24576 samples"
    )
    fast: bool = Field(
        False, description="a smoke test of seconds; its rows are marked as not comparable"
    )
    price_per_hour: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="price of the machine, for the cost of a million samples",
    )
    currency: Annotated[str, Form("a currency in three letters, such as EUR", r"^[A-Z]{3}$")] = (
        "USD"
    )
    python: Text | None = Field(
        None,
        description="interpreter with perfdag, torch, torchvision and LoadGen, all of which its"
        " `-m pip install '/path/to/perfdag[torch]'` brings; unset: perfdag's own",
    )
    wrapper: list[Text] = Field(
        [],
        max_length=64,
        description="argv before the program; it must pass on the three standard streams:"
        " nice -n 5, kubectl exec -i POD --",
    )
    wrapper_env: dict[Text, str] = Field(
        {},
        description="environment of the program, set behind the wrapper:"
        " LD_PRELOAD of a vGPU layer; the wrapper's own: [env, NAME=VALUE, ...]",
    )

    def problems(self) -> Iterator[Problem]:
        """Yield the parameters that contradict one another."""
        if self.precision == "tf32" and self.device != "cuda":
            yield Problem(
                "tf32-without-cuda",
                "precision tf32 is a mode of NVIDIA GPUs: device: cuda, or precision fp32,"
                " bf16 or fp16",
            )
        if self.target_rate is not None and self.scenario == "single-stream":
            yield Problem(
                "unused-rate",
                "target_rate does nothing in scenario single-stream,"
                " which sends as fast as it is answered: leave it out",
            )
        if self.scenario == "single-stream" and self.batch != 1:
            yield Problem(
                "single-batch",
                f"scenario single-stream sends one sample at a time: batch 1, not {self.batch}",
            )

    def duration(self) -> float:
        """Return the shortest LoadGen run in seconds."""
        return min(FAST_DURATION, self.min_duration) if self.fast else self.min_duration

    def queries(self) -> int:
        """Return the fewest queries, in Offline samples."""
        if self.min_queries is not None:
            return self.min_queries
        least = (FAST_QUERIES if self.fast else QUERIES)[self.scenario]
        # A shorter Offline query would measure a batch that is never full.
        return max(least, FEWEST_BATCHES * self.batch) if self.scenario == "offline" else least

    def seconds(self) -> float:
        """Return the seconds that it is expected to take: set-up, warm-up, LoadGen."""
        setup = 5.0 if self.system == "stub" else SETUP
        test = self.duration()
        if self.target_rate is not None:
            # The fewest queries may take longer to arrive, or Offline's samples to end.
            test = max(test, self.queries() / self.target_rate)
        elif self.scenario == "offline" and not self.fast:
            test *= MARGIN  # the query is sized by the warm-up's rate and a margin
        elif self.scenario == "server":
            setup += min(SEARCH, test)
        return setup + 1.2 * test

    def spec(self) -> dict[str, Any]:
        """Return the program's input: all parameters except those that start it."""
        started = {"python", "wrapper", "price_per_hour", "currency", "stub"}
        return {
            **{name: getattr(self, name) for name in Workload.model_fields if name not in started},
            "stub": self.stub.model_dump(),
            "duration": self.duration(),
            "queries": self.queries(),
        }

    def argv(
        self,
        python: str | None = None,
        wrapped: bool = True,
        env: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Return the program's argv behind its wrapper; the spec comes on standard input.

        The environment, with `env`, is set behind the wrapper: kubectl exec or a container runtime
        would not pass it on.
        """
        program = [python or self.python or sys.executable, "-m", "perfdag.steps.resnet50.program"]
        if not wrapped:
            return program
        variables = {**self.wrapper_env, **(env or {})}
        if variables:
            program = ["env", *(f"{name}={value}" for name, value in variables.items()), *program]
        return [*self.wrapper, *program]

    def stdin(self, **options: Any) -> bytes:
        """Return the program's input.

        `options` may set `load_seed`, LoadGen's own seed, `expected_rate` (1/s) in place of the
        warm-up's, the `load` of an earlier run, and `start_at`, the time (seconds since the epoch)
        before which LoadGen waits.
        """
        return json.dumps(self.spec() | options).encode() + b"\n"


@dataclass(frozen=True)
class Result:
    """The program's JSON, and what LoadGen's log says of its test.

    `percentiles` are latencies in s by name, `mean` too, rates are in 1/s; the queries of Offline
    are its samples. `estimate` is early stopping's estimate of a stream's p90 in seconds. `met` has
    the constraints of the test by name, as far as they apply.
    """

    raw: Mapping[str, Any]
    valid: bool
    reasons: tuple[str, ...]
    met: Mapping[str, bool]
    queries: int
    percentiles: Mapping[str, float]
    mean: float
    estimate: float | None
    completed_rate: float | None
    scheduled_rate: float | None
    loadgen: str

    @property
    def span(self) -> tuple[float, float]:
        """Return start and end of the test, in epoch seconds of the measuring host."""
        return float(self.raw["test"]["started"]), float(self.raw["test"]["ended"])

    @property
    def rate(self) -> float:
        """Return samples/s: Offline's throughput, Server's completions, a stream's by its mean."""
        return self.completed_rate or 1 / self.mean

    @property
    def device(self) -> Mapping[str, Any]:
        return dict(self.raw.get("device", {}))

    def latency(self, stat: str) -> float:
        """Return a percentile in seconds, not-a-number with too few queries for it."""
        return self.percentiles[stat] if self.queries >= needed(PERCENTILES[stat]) else math.nan

    def load(self, params: Workload) -> dict[str, float]:
        """Return the options of `stdin` that give another run the load of this one.

        Only Server without a given rate has any: each run would search for its own.
        """
        if params.scenario != "server" or params.target_rate is not None:
            return {}
        return {"target_rate": self.raw["test"]["rate"], "queries": self.queries}

    def cost(self, scenario: str) -> float:
        """Return p99 of Server, p90 of SingleStream, Offline's seconds a sample."""
        return self.percentiles[TAIL[scenario]] if scenario in TAIL else 1 / self.rate

    def fault(self, params: Workload) -> str | None:
        """Return why the figures are not what they claim, with LoadGen's reasons, or None."""
        warm = self.raw["warmup"]
        if not warm["stable"] and not params.fast:
            return (
                "batch times still differed by more than 10 % at the end of the warm-up, or too"
                f" few fitted into it (the last took {warm['steady']:.3g} s): something else uses"
                " the device"
            )
        if self.valid or self._only_short(params):
            return None
        text = "LoadGen says INVALID: "
        if self.raw.get("largest_rate") == 0:
            bound = short(params.latency_bound, "s")
            batch = short(warm["steady"], "s")
            text += f"no rate holds {bound}, as a batch takes {batch}; raise latency_bound; "
        text += "; ".join(self.reasons)
        if params.scenario == "offline" and self.met.get("result_min_duration_met") is False:
            text += f"; target_rate is the expected QPS: set it to {self.rate:.4g} or more"
        return text

    def only_late(self, reason: str) -> bool:
        """Whether LoadGen's latency verdict is the only reason against a run.

        A run that is too short or has too few queries is no effect of its neighbours or wrapper.
        """
        held = [self.met.get(f"result_min_{name}_met") for name in ("duration", "queries")]
        return reason.startswith("LoadGen says INVALID") and False not in held

    def _only_short(self, params: Workload) -> bool:
        """Whether a fast run is INVALID only because it is short, as a smoke test is.

        Its few queries show no percentile, and Offline's one query may end early.
        """
        failed = {name for name, held in self.met.items() if not held} - {"early_stopping_met"}
        if params.scenario == "offline":
            return params.fast and not failed - {"result_min_duration_met"}
        few = self.queries < needed(PERCENTILES[TAIL[params.scenario]])
        return params.fast and not failed and few


def kept(texts: dict[str, str], name: str, finished: CommandResult, params: Workload) -> Result:
    """Keep what a run printed in the texts under a name, and read it. Raises as `read` does."""
    if stderr := finished.stderr.strip()[-4000:]:
        texts[f"{name}-stderr"] = stderr
    texts[name] = finished.stdout.lstrip()
    # ld.so starts a program without a library that it cannot preload. Libraries that argv does not
    # name come from the environment of perfdag.
    for library in re.findall(r"object '([^']*)' from \S+ cannot be preloaded", finished.stderr):
        if any(library in argument for argument in finished.argv):
            raise Failed(
                f"LD_PRELOAD {library} was not loaded into the program: correct its path as the"
                " program sees it, or build it for the libc there"
            )
    if texts[name].startswith("{"):
        return read(texts[name])
    if finished.timed_out:
        raise Failed(
            f"the program did not end within {finished.seconds:.0f} s: raise timeout, or lower"
            " min_duration and min_queries (Server: raise target_rate)"
        )
    if finished.code in (-9, 137):
        raise Failed(
            "the program was killed, as the kernel does when memory runs out:"
            f" batch {params.batch} with {params.samples} samples took too much; "
            "lower batch or samples, or raise the memory limit"
        )
    raise Failed(f"the program exited {finished.code} without a result: {finished.tail()}")


def read(text: str) -> Result:
    """Read what the program printed.

    Raises Skip if a device is missing, Failed if the program failed or the text is cut.
    """
    try:
        raw = json.loads(text)
    except ValueError:
        raise Failed("the program printed no result: its output is cut") from None
    if not isinstance(raw, dict) or raw.get("program") != PROGRAM:
        raise Failed(f"the result is not of this program: version {PROGRAM} expected")
    if error := raw.get("error"):
        raise (Skip if error["kind"] == "device" else Failed)(error["text"])
    return result_of(raw)


def result_of(raw: Mapping[str, Any]) -> Result:
    """Return the result of a test that ended. Raises Failed if LoadGen's log is cut.

    Source: the `:::MLLOG` lines of LoadGen 6.0 (mlcommons/inference, loadgen/results.cc).
    """
    try:
        keys = mllog(raw["test"]["logs"]["detail"])
        percentiles = {
            stat: keys[f"result_{100 * p:.2f}_percentile_latency_ns"] / 1e9
            for stat, p in PERCENTILES.items()
        }
        valid = keys["result_validity"] == "VALID"
        mean = keys["result_mean_latency_ns"] / 1e9
    except (KeyError, ValueError) as error:
        raise Failed(f"LoadGen's log is not that of a whole test: {error}") from None
    met = {name: keys[name] for name in _CONSTRAINTS if isinstance(keys.get(name), bool)}
    reasons = [f"{_CONSTRAINTS[name]} satisfied: NO" for name, held in met.items() if not held]
    reasons.append(str(keys.get("result_invalid_reason") or "").strip())
    if met.get("early_stopping_met") is False:
        reasons.append(" ".join(str(keys.get("early_stopping_result")).replace("*", "").split()))
    offline = keys.get("effective_scenario") == "Offline"
    return Result(
        raw,
        valid,
        () if valid else tuple(filter(None, reasons)) or ("LoadGen gives no reason",),
        met,
        keys["result_query_count"] * (keys["effective_samples_per_query"] if offline else 1),
        percentiles,
        mean,
        keys.get("early_stopping_latency_ss", 0) / 1e9 or None,
        keys.get("result_completed_samples_per_sec", keys.get("result_samples_per_second")),
        keys.get("result_scheduled_samples_per_sec"),
        str(keys.get("loadgen_version", "unknown")).split()[0],
    )


def mllog(detail: str) -> dict[str, Any]:
    """Return the `:::MLLOG` pairs; the last of a key wins. Raises ValueError where one is cut."""
    keys: dict[str, Any] = {}
    for line in detail.splitlines():
        if line.startswith(":::MLLOG "):
            record = json.loads(line[9:])
            keys[str(record.get("key"))] = record.get("value")
    return keys


def caveats(results: Sequence[Result], params: Workload) -> dict[str, Any]:
    """Return coordinates that mark figures of a smoke test."""
    if not params.fast:
        return {}
    valid = all(run.valid for run in results)
    return {"fast": "not comparable"} | ({} if valid else {"loadgen": "INVALID"})
