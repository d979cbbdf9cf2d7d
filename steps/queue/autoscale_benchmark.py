"""queue-autoscale: how well a scaler of backends follows a step, a ramp or a spike of load."""

from typing import Any, ClassVar

import orjson

from perfdag import signals
from perfdag.benchmark.contract import Benchmark, Gang, Metric, Output, Params, Rights
from perfdag.outcome import Failed, Invalid, Measurement
from perfdag.steps.queue.autoscale.measurements import (
    failure_text,
    invalid_reasons,
    measurements_of,
    scaling_verdict,
)
from perfdag.steps.queue.autoscale.params import QueueAutoscaleParams, deployment_problems
from perfdag.steps.queue.autoscale.scores import HpaModel, needed
from perfdag.steps.queue.client.arrivals import Arrivals
from perfdag.steps.queue.rights import READ_RULES
from perfdag.units import plural


class QueueAutoscale(Benchmark[QueueAutoscaleParams]):
    """Reaction time, overshoot, oscillation and wasted pod-seconds of autoscaled backends.

    Without deployments, backends are processes that a model of the HorizontalPodAutoscaler scales:
    this compares settings of the autoscaler, not clusters. With deployments, their own autoscaler
    scales their pods. The pods of a CronJob or ScaledJob with the same name count too.

    The client runs an open loop in both cases. Depth and wait of the queue are gauges of the
    frontend. On a cluster both are absent if the command of the backends names no frontend in their
    namespace, or if its metrics cannot be read.

    Clock: this process's monotonic clock. It starts with the load and stops at the load's end.
    Processes count when they take or wait for items, pods when they are ready.
    """

    name: ClassVar[str] = "queue-autoscale"
    verdict: ClassVar[str] = "the scaler covers the height of the load, and releases it"
    canaries: ClassVar[tuple[str, ...]] = ("cpu", "loopback")
    api: ClassVar[Rights] = Rights(
        named=(*READ_RULES, {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["list"]})
    )
    Params: ClassVar[type[Params]] = QueueAutoscaleParams
    coords: ClassVar[tuple[str, ...]] = ("queue", "elapsed")
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
            "age of the oldest request that waits over time, for the chart; a subject is a moment",
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
        if problems := deployment_problems(params):
            return problems
        few, many = (needed(rate, params.item) for rate in (params.low, params.high))
        if few == many:
            return [
                f"high {params.high:g}/s and low {params.low:g}/s of {params.item:g} s items both "
                f"need {plural(many, 'backend')}: the load must change"
            ]
        if not params.deployments and params.high * params.item > params.most:
            return [
                f"{params.high:g}/s of {params.item:g} s items need "
                f"{params.high * params.item:g} backends, more than most ({params.most})"
            ]
        return []

    def run(self, gang: Gang, params: QueueAutoscaleParams) -> Output:
        # Not at the top of the file: they import the cluster client and the programs.
        from perfdag.steps.queue.autoscale.run import run_locally, watch

        load = Arrivals(params.high, params.load, params.low, params.duration)
        if params.deployments:
            result = signals.run(watch(load, params))
        else:
            model = HpaModel(params.target, most=params.most, window=params.window)
            results = signals.run(run_locally(load, params.item, params.queues, params.sync, model))
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
            for measurement in measurements_of(queue, one, params)
        ]
        late = [
            queue for queue, one in result.items() if one["client"]["schedule_lag"]["late"] > 0.1
        ]
        if late:
            raise Invalid(
                f"the generator sent requests more than 100 ms late at p99 on {', '.join(late)}",
                output.texts,
                measurements,
            )
        if failures := [
            failure_text(queue, one["client"])
            for queue, one in result.items()
            if one["client"]["failure"]
        ]:
            raise Failed("; ".join(failures), output.texts, measurements)
        measurements += [scaling_verdict(queue, one) for queue, one in result.items()]
        if reasons := [
            reason
            for queue, one in result.items()
            for reason in invalid_reasons(queue, one, params)
        ]:
            raise Invalid("; ".join(reasons), output.texts, measurements)
        return measurements
