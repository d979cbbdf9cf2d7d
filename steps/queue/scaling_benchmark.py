"""queue-scaling: does throughput grow with the backends of a queue, and by which law?"""

import asyncio
import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import orjson
from pydantic import Field

from perfdag import signals
from perfdag.benchmark.contract import (
    Benchmark,
    Failed,
    Gang,
    Invalid,
    Measurement,
    Metric,
    Output,
    Params,
    PositiveDuration,
    Problem,
    Rights,
    ShortForm,
    Skip,
    own_verdict,
    rbac_rule,
)
from perfdag.kube.client import KubeError
from perfdag.steps.queue.backend import built_in_seconds, substitute
from perfdag.steps.queue.validate import (
    Plan,
    Result,
    measurements_of,
    scaling_verdict,
)

RULES = (
    rbac_rule("apps", "deployments", "get"),
    rbac_rule("apps", "deployments/scale", "patch"),
    rbac_rule("", "pods", "list"),
    rbac_rule("", "services/proxy", "get create"),
    rbac_rule("", "secrets", "get", ["perfdag-queue-token"]),
)
"""Find a Deployment and its pods, scale it, and drive the client of its queue."""
ITEM = 5.0
"""Assumed seconds of an item if neither the command nor `item` states them."""


class QueueScalingParams(Params):
    """Without a deployment, backends run on the measuring host."""

    command: list[str] = Field(
        ["sleep", "0.5"],
        min_length=1,
        description="workload of a backend: absolute path or built-in (sleep, usl)",
    )
    limit: int = Field(
        16, ge=1, le=4096, description="most replicas; 1, 2, 4 ... and this are measured"
    )
    factor: float = Field(
        1.8, ge=1, le=2, description="throughput wanted of each doubling; 1.8 and 1.4 are usual"
    )
    tolerance: float = Field(
        0.05, gt=0, lt=1, description="windows that differ less, relative, are steady"
    )
    timeout: PositiveDuration = Field(
        120.0, description="for a step to become steady; 16 of its items where that is more"
    )
    scale_timeout: PositiveDuration = Field(
        120.0,
        description="seconds for replicas to start, or to end their item and stop; at least one "
        "item and 30 s",
    )
    item: PositiveDuration | None = Field(
        None,
        description="what one item takes, where it is no built-in: sizes the sample's own limit",
    )
    glob: str = Field(
        "", description="device files: the first that matches replaces FILENAME in the command"
    )
    item_limit: PositiveDuration | None = Field(
        None, description="an item that runs longer is killed, and failed"
    )
    deployment: str | None = Field(
        None, description="scale this Deployment; its pods run the command"
    )
    namespace: str | None = Field(None, description="of the Deployment")
    client: str | None = Field(
        None, description="Service of its client (default: DEPLOYMENT-client)"
    )
    client_namespace: str | None = Field(
        None, description="of that Service (default: the Deployment's)"
    )

    @property
    def uses_api(self) -> bool:
        return self.deployment is not None

    def item_seconds(self) -> float | None:
        """Return the seconds of one item; None if unknown."""
        if self.item or self.deployment:
            return self.item
        try:
            return built_in_seconds(self.command)
        except ValueError:  # the benchmark's `check` refuses it
            return None

    def plan(self) -> Plan:
        """Return the validation, with time enough for the items."""
        item = self.item_seconds() or 0.0
        return Plan(
            self.limit,
            self.factor,
            scale_seconds=max(self.scale_timeout, (item or self.item_limit or 0.0) + 30),
            seconds=max(self.timeout, 16 * item),
            tolerance=self.tolerance,
        )


class QueueScaling(Benchmark[QueueScalingParams]):
    """Throughput of a work queue over 1, 2, 4 ... replicas, with the fitted scalability laws.

    Every number of replicas gets as many requests in parallel, and is measured at a steady rate.
    The order is seeded.

    Clock: the client's monotonic clock. For every request slot it starts at a completion, after
    every replica has worked, and stops at a later one. Windows have at least 3 items a slot. The
    measurement ends when three windows agree.
    """

    canaries: ClassVar[tuple[str, ...]] = ("cpu", "loopback")
    api: ClassVar[Rights] = Rights(named=RULES)
    coords: ClassVar[tuple[str, ...]] = ("replicas",)
    short_forms: ClassVar[Mapping[str, ShortForm]] = {
        "command": "{}",
        "replicas": "{} replicas",
        "limit": "at most {} replicas",
        "factor": "steps of {} times",
        "item": "items of {}",
        "glob": "{}",
        "deployment": "{}",
    }
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric(
            "throughput",
            "1/s",
            "higher",
            "items a second by number of replicas",
            headline=True,
            counts="items",
        ),
        Metric(
            "efficiency",
            "1",
            "higher",
            "throughput as a share of replicas times that of one",
            headline=True,
            counts="share",
            claim="{value} of linear scaling",
        ),
        Metric(
            "gain",
            "1",
            "higher",
            "throughput relative to the step before, by number of replicas, with its 95 % interval",
            lowest=-math.inf,
            label="gain over the step before",
        ),
        Metric(
            "latency",
            "s",
            "lower",
            "of requests by number of replicas, warm-up included (p50, p95, p99)",
        ),
        Metric(
            "single_rate",
            "1/s",
            "higher",
            "items a second of one replica, by the Universal Scalability Law",
            counts="items",
            label="rate of one replica",
        ),
        Metric(
            "serial_share",
            "1",
            "lower",
            "sigma of the Universal Scalability Law",
            lowest=-math.inf,
            counts="share",
        ),
        Metric(
            "amdahl_share",
            "1",
            "lower",
            "serial share by Amdahl's law, which knows no coherence",
            lowest=-math.inf,
            counts="share",
            label="serial share by Amdahl",
        ),
        Metric(
            "coherence", "1", "lower", "kappa of the Universal Scalability Law", lowest=-math.inf
        ),
        Metric(
            "items",
            "1",
            "none",
            "items done at the most replicas; a subject is a node, or one device of it",
            label="items done",
        ),
        Metric(
            "item_time",
            "s",
            "lower",
            "mean time of an item by number of replicas; a subject is a node, or one device of it",
        ),
        Metric(
            "failures",
            "1",
            "lower",
            "failed requests by number of replicas, if any; a subject is a node or its device",
            label="failed requests",
        ),
        own_verdict("every step has `factor` times the throughput for each doubling"),
    )

    def seconds(self, params: QueueScalingParams) -> float:
        """Return an estimate: 13 items per measurement."""
        return 5 + (params.limit.bit_length() + 2) * (13 * (params.item_seconds() or ITEM) + 2)

    def check(self, params: QueueScalingParams, shape: Any) -> Iterator[Problem]:
        if params.deployment:
            in_manifest = [name for name in ("glob", "item_limit") if getattr(params, name)]
            if in_manifest:
                yield Problem(
                    "of-deployment",
                    f"{' and '.join(in_manifest)}: set them in the manifest of the Deployment"
                    " (glob, limit)",
                )
            return
        try:
            built_in_seconds(params.command)
            substitute(params.command, params.glob)
        except ValueError as error:
            yield Problem("wrong-command", f"command: {error}")

    def run(self, gang: Gang, params: QueueScalingParams) -> list[Measurement]:
        gang.output = Output(tool="perfdag queue validate")
        texts = gang.output.texts
        try:
            result = signals.run(_validated(params, gang.timeout))
        except TimeoutError:
            raise Failed(
                f"the validation did not end within {gang.timeout:g} s (set `item`, or the "
                "entry's timeout)"
            ) from None
        except KubeError as error:
            if error.status != 403:
                raise Failed(str(error)) from None
            raise Skip(
                f"{error}; `perfdag install --store ... --allow {self.name}=NAMESPACE`, with its "
                "other options again, grants it to its pods (with --namespaced in the "
                "installation's own namespace alone: docs/queue.md)"
            ) from None
        except ValueError as error:
            raise Failed(str(error)) from None
        texts["stdout"] = orjson.dumps(result).decode()
        return parse(texts, params)


def parse(texts: Mapping[str, str], params: QueueScalingParams) -> list[Measurement]:
    """Return the values of a validation's JSON in `stdout`. Raises Failed, Invalid."""
    result = orjson.loads(texts["stdout"])
    measured = list(measurements_of(result))
    for step in result["steps"]:
        if step["failures"]:
            reason = f"at {step['replicas']} replicas: {'; '.join(step['problems'])}"
            raise Failed(reason, texts, measured)
    for step in result["steps"]:
        if not step["steady"]:
            raise Invalid(f"not steady at {step['replicas']} replicas", texts, measured)
    return [*measured, scaling_verdict(result, params.factor)]


async def _validated(params: QueueScalingParams, seconds: float) -> Result:
    """Validate a Deployment, or this machine. Raises TimeoutError after `seconds`."""
    from perfdag.steps.queue import sites

    async with asyncio.timeout(seconds):
        if not params.deployment:
            limit = params.item_limit or 0.0
            return await sites.validate_local(params.command, params.plan(), params.glob, limit)
        where = (params.namespace, params.client, params.client_namespace)
        [result] = await sites.validate_deployments([params.deployment], params.plan(), *where)
        return result
