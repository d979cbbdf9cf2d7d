"""queue-autoscale: how well a scaler of backends follows a step, a ramp or a spike of load."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import orjson
from pydantic import Field

from perfdag import signals
from perfdag.benchmark.contract import Benchmark, Gang, Metric, Output, Params
from perfdag.outcome import Failed, Invalid, Measurement
from perfdag.steps.queue.autoscale.scores import HpaModel, Profile, Sample, score
from perfdag.steps.queue.validate.deployment import not_permitted
from perfdag.steps.queue.validate.spread import failures_by_subject
from perfdag.units import PositiveDuration

if TYPE_CHECKING:
    from perfdag.steps.queue.validate.deployment import DeploymentTarget

CLIENT_SECONDS = 30.0
"""The clients of Deployments are given so long to answer."""
GRID = 60  # moments of the trace that become rows, for the chart


class QueueAutoscaleParams(Params):
    """Load, items and scaler. The need is rate times item seconds."""

    load: Literal["step", "ramp", "spike"] = Field("step", description="how the load changes")
    low: float = Field(2.0, gt=0, le=1000, description="requests a second before and after")
    high: float = Field(10.0, gt=0, le=1000, description="requests a second at its height")
    item: PositiveDuration = Field(0.4, description="seconds of one item")
    duration: PositiveDuration = Field(60.0, description="of the whole load")
    queues: int = Field(1, ge=1, le=16, description="queues loaded and scaled at once")
    target: float = Field(1.0, gt=0, description="items, waiting or running, a backend should have")
    most: int = Field(16, ge=1, le=256, description="most backends of a queue")
    sync: PositiveDuration = Field(
        1.0, description="between two looks of the scaler (a cluster's HPA: 15 s)"
    )
    window: PositiveDuration = Field(10.0, description="of stable demand before scaling in")
    deployments: list[str] = Field(
        [],
        max_length=16,
        description="watch these Deployments, scaled by their cluster, at once; low and high are requests in parallel",
    )
    namespace: str | None = Field(None, description="of the Deployments")
    clients: list[str] = Field(
        [], description="Services of their clients, in the same order (default: DEPLOYMENT-client)"
    )
    client_namespace: str | None = Field(
        None, description="of those Services (default: the Deployments')"
    )


class QueueAutoscale(Benchmark[QueueAutoscaleParams]):
    """Reaction time, overshoot, oscillation and wasted pod-seconds of autoscaled backends under a changing load.

    Without deployments, backends are processes scaled by a model of the HorizontalPodAutoscaler's rule: that compares settings of the
    rule, not clusters. With some, their pods are watched while their own autoscaler acts; where that is a CronJob of the same name
    (`autoscale: {by: cron}` of the queue), the pods of its Jobs count too. Depth and wait of the line are the frontend's own gauges, the
    wait over a window of 1 s here and the frontend's own (30 s) on a cluster; there they are left out where the backends' command names
    no frontend in their namespace, or the API server's proxy does not lead to its metrics.

    Clock: this process's monotonic clock. It starts with the load and stops at the load's end; processes count when they take or wait
    for items, pods when they are ready.
    """

    name: ClassVar[str] = "queue-autoscale"
    canaries: ClassVar[tuple[str, ...]] = ("cpu", "loopback")
    api: ClassVar[tuple[dict[str, Any], ...]] = (
        {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get", "list"]},
        {"apiGroups": ["apps"], "resources": ["replicasets"], "verbs": ["list"]},
        {
            "apiGroups": ["autoscaling"],
            "resources": ["horizontalpodautoscalers"],
            "verbs": ["list"],
        },
        {"apiGroups": ["batch"], "resources": ["cronjobs", "jobs"], "verbs": ["list"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
        {"apiGroups": [""], "resources": ["services/proxy"], "verbs": ["get"]},
    )
    Params: ClassVar[type[Params]] = QueueAutoscaleParams
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric(
            "reaction",
            "s",
            "lower",
            "from the rise of the load until as many backends work as its height needs",
            headline=True,
        ),
        Metric(
            "release",
            "s",
            "lower",
            "from the fall of the load until no more backends than needed are left",
        ),
        Metric(
            "overshoot",
            "1",
            "lower",
            "backends beyond the largest need, as a share of it",
            headline=True,
        ),
        Metric("oscillations", "1", "lower", "changes of direction beyond those of the load"),
        Metric(
            "wasted", "s", "lower", "pod-seconds of backends that were not needed", headline=True
        ),
        Metric("missing", "s", "lower", "pod-seconds of backends that were needed and not there"),
        Metric("latency", "s", "lower", "of requests, from their scheduled time (p50, p95)"),
        Metric("replicas", "1", "none", "backends over time, for the chart; a subject is a moment"),
        Metric(
            "needed",
            "1",
            "none",
            "backends that the load needs over time, for the chart; a subject is a moment",
        ),
        Metric(
            "depth",
            "1",
            "none",
            "requests that wait for a backend over time, for the chart; a subject is a moment",
        ),
        Metric(
            "wait",
            "s",
            "none",
            "longest wait in the frontend's window over time, of those that still wait too; a subject is a moment",
        ),
        Metric(
            "failures",
            "1",
            "lower",
            "failed requests, where there are any; a subject is a node, or one device of it",
        ),
    )

    def seconds(self, params: QueueAutoscaleParams) -> float:
        return params.duration + 5

    def uses_api(self, params: QueueAutoscaleParams) -> bool:
        return bool(params.deployments)

    def check(self, params: QueueAutoscaleParams, shape: Any) -> list[str]:
        if params.high <= params.low:
            return [f"high {params.high:g}/s must be above low {params.low:g}/s"]
        if params.deployments:
            return _unclear(params)
        if params.clients or params.namespace or params.client_namespace:
            return ["clients and namespaces belong to deployments"]
        few, many = (
            Profile("step", rate, rate, 1).needed(0, params.item)
            for rate in (params.low, params.high)
        )
        if few == many:
            return [
                f"high {params.high:g}/s of {params.item:g} s items needs {many} backend(s), as low does: there is nothing to follow"
            ]
        if params.high * params.item > params.most:
            return [
                f"{params.high:g}/s of {params.item:g} s items need {params.high * params.item:g} backends, more than most ({params.most})"
            ]
        return []

    def run(self, gang: Gang, params: QueueAutoscaleParams) -> Output:
        from perfdag.steps.queue.autoscale.run import run_locally

        profile = Profile(params.load, params.low, params.high, params.duration)
        if params.deployments:
            result = signals.run(_watch(profile, params))
        else:
            model = HpaModel(params.target, most=params.most, window=params.window)
            results = signals.run(
                run_locally(profile, params.item, params.queues, params.sync, model)
            )
            result = {queue_run.queue: queue_run.as_json() for queue_run in results}
        return Output({"result": orjson.dumps(result).decode()}, tool="perfdag queue")

    def parse(self, output: Output, params: QueueAutoscaleParams) -> list[Measurement]:
        try:
            result = orjson.loads(output.texts["result"])
        except (KeyError, ValueError):
            raise Failed("no trace of the scaling", output.texts) from None
        count = len(params.deployments) or params.queues
        if len(result) != count:
            raise Failed(f"{len(result)} of {count} queues reported", output.texts)
        measurements = [
            measurement
            for queue, one in result.items()
            for measurement in _measured(queue, one, params)
        ]
        late = [
            queue for queue, one in result.items() if one["client"]["schedule_lag"]["late"] > 0.1
        ]
        if late:
            raise Invalid(
                f"the generator ran more than 100 ms late at p99 of its requests on {', '.join(late)}",
                output.texts,
                measurements,
            )
        if words := [
            _failed(queue, one["client"])
            for queue, one in result.items()
            if one["client"]["failure"]
        ]:
            raise Failed("; ".join(words), output.texts, measurements)
        if reasons := [
            reason for queue, one in result.items() for reason in _against(queue, one, params)
        ]:
            raise Invalid("; ".join(reasons), output.texts, measurements)
        return measurements


def _unclear(params: QueueAutoscaleParams) -> list[str]:
    """Why one cannot tell which Deployments and clients are meant."""
    wrong = []
    if round(params.low) == round(params.high):
        wrong.append(
            f"low and high are both {round(params.low)} requests in parallel: there is nothing to follow"
        )
    if params.queues != 1:
        wrong.append("queues counts those of this machine: each of deployments has one")
    if params.clients and len(params.clients) != len(params.deployments):
        wrong.append(
            f"{len(params.clients)} clients for {len(params.deployments)} deployments: as many, or none"
        )
    twice = sorted({name for name in params.deployments if params.deployments.count(name) > 1})
    return wrong + [f"deployments names {name} twice" for name in twice]


def _failed(queue: str, client: Any) -> str:
    """How many requests failed, by which causes and on which devices."""
    causes = ", ".join(f"{count} {cause}" for cause, count in client["causes"].items())
    where = ", ".join(
        f"{count} on {name}" for name, count in failures_by_subject(client["nodes"]).items()
    )
    return f"{queue}: {client['failure']} requests failed ({causes})" + (
        f": {where}" if where else ""
    )


def _against(queue: str, one: Any, params: QueueAutoscaleParams) -> list[str]:
    """Why a trace is no answer: requests that nobody answered, a height never reached, backends never released."""
    client, trace, reasons = one["client"], [Sample(*sample) for sample in one["trace"]], []
    # a client in the pods runs a closed loop: what is in flight at the end of the load is as it should be
    if (
        unanswered := 0
        if params.deployments
        else client["scheduled"] - client["success"] - client["failure"]
    ):
        reasons.append(
            f"{unanswered} of {client['scheduled']} requests were not answered {params.duration:g} s after the load ended"
        )
    scored, peak = score(trace), max(sample.needed for sample in trace)
    if peak > trace[0].needed and scored.reaction is None:
        most = max(sample.have for sample in trace)
        reasons.append(
            f"at most {most} of the {peak} backends needed were ever there: raise duration, or the scaler's own limit"
        )
    if trace[-1].needed < peak and scored.release is None:
        reasons.append(
            f"{trace[-1].have} backends were left at the end, {trace[-1].needed} needed: raise duration, or shorten the window"
        )
    return [f"{queue}: {reason}" for reason in reasons]


@contextlib.asynccontextmanager
async def _together(
    works: Iterable[Coroutine[Any, Any, dict[str, Any]]],
) -> AsyncIterator["asyncio.Future[list[dict[str, Any]]]"]:
    """All at once; where one fails the others end too, after they stopped their requests."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        yield asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _watch(profile: Profile, params: QueueAutoscaleParams) -> dict[str, Any]:
    import os

    from perfdag.kube.client import Kube, KubeError
    from perfdag.steps.queue.autoscale.queue_gauges import queue_gauges
    from perfdag.steps.queue.autoscale.run import run_on_target
    from perfdag.steps.queue.validate import targets
    from perfdag.steps.queue.validate.deployment import DeploymentTarget

    try:
        async with Kube() as kube:
            namespace = params.namespace or kube.namespace
            token = os.environ.get("PERFDAG_QUEUE_TOKEN", "")
            services = params.clients or [f"{name}-client" for name in params.deployments]
            watched = [DeploymentTarget(kube, namespace, name) for name in params.deployments]
            where = params.client_namespace or namespace
            loads = [
                targets.HttpLoad(targets.fetch_by_service(kube, where, service, 9996, token))
                for service in services
            ]
            for target in watched:
                await target.find()
                await require_scaler(target)
            for load in loads:
                await load.up(CLIENT_SECONDS)
            lines = [queue_gauges(kube, namespace, target.containers) for target in watched]
            async with _together(
                run_on_target(profile, *arguments)
                for arguments in zip(watched, loads, lines, strict=True)
            ) as traces:
                return dict(zip(params.deployments, await traces, strict=True))
    except (KubeError, ValueError) as error:
        if isinstance(error, KubeError) and error.status == 403:
            raise not_permitted(str(error), QueueAutoscale.name) from None
        raise Failed(str(error)) from None


async def require_scaler(target: "DeploymentTarget") -> None:
    """Raises ValueError where nothing scales it; where one may not look, the trace will show it."""
    from perfdag.kube.client import KubeError

    try:
        if await target.scaler():
            return
    except KubeError as error:
        if error.status != 403:
            raise
        return
    raise ValueError(
        f"nothing scales Deployment {target.name} in namespace {target.namespace}: it has no HorizontalPodAutoscaler,"
        " and no CronJob of its name starts backends (`autoscale` of the queue makes one)"
    )


def _measured(queue: str, one: Any, params: QueueAutoscaleParams) -> list[Measurement]:
    trace = [Sample(*fields) for fields in one["trace"]]
    result = score(trace)
    at = {"queue": queue}
    values = {"reaction": result.reaction, "release": result.release, "overshoot": result.overshoot}
    values |= {
        "oscillations": float(result.oscillations),
        "wasted": result.wasted,
        "missing": result.missing,
    }
    measurements = [
        Measurement(name, value, coords=at) for name, value in values.items() if value is not None
    ]
    latency = one["client"]["latency"]
    measurements += [
        Measurement("latency", latency[p], stat=p, coords=at, n=latency["count"])
        for p in ("p50", "p95")
        if latency.get(p) is not None
    ]
    for k in range(GRID):  # the same moments in every repetition
        moment = params.duration * k / GRID
        sample = next((fields for fields in trace if fields.at >= moment), trace[-1])
        when = {**at, "elapsed": round(moment, 3)}
        levels = {
            "replicas": sample.have,
            "needed": sample.needed,
            "depth": sample.depth,
            "wait": sample.wait,
        }
        measurements += [
            Measurement(name, float(value), coords=when, subject=f"at {moment:g} s")
            for name, value in levels.items()
            if value is not None
        ]
    failures = failures_by_subject(one["client"]["nodes"])
    return measurements + [
        Measurement("failures", float(count), coords=at, subject=where)
        for where, count in failures.items()
    ]
