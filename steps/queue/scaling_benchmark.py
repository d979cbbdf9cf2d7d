"""queue-scaling: does throughput grow with the backends of a queue, and by which law?"""

import math
import sys
from typing import Any, ClassVar

import orjson
from pydantic import Field

from perfdag.benchmark.contract import Benchmark, Gang, Metric, Output, Params, Rights
from perfdag.hosts.base import CommandResult
from perfdag.kube.config import token_environment
from perfdag.outcome import Failed, Invalid, Measurement
from perfdag.steps.queue.deployment import not_permitted
from perfdag.steps.queue.verdict import measurements_of, scaling_verdict
from perfdag.steps.queue.workload import built_in_seconds, substitute
from perfdag.units import PositiveDuration

READ_RULES: tuple[dict[str, Any], ...] = (
    {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get", "list"]},
    {"apiGroups": ["apps"], "resources": ["replicasets"], "verbs": ["list"]},
    {"apiGroups": ["autoscaling"], "resources": ["horizontalpodautoscalers"], "verbs": ["list"]},
    {"apiGroups": ["batch"], "resources": ["cronjobs"], "verbs": ["list"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
    {"apiGroups": [""], "resources": ["services/proxy"], "verbs": ["get", "create"]},
    {
        "apiGroups": [""],
        "resources": ["secrets"],
        "resourceNames": ["perfdag-queue-token"],
        "verbs": ["get"],
    },
)
"""Find a Deployment, its pods and what scales it, and drive the client of its queue."""
GRACE = 20.0
"""Seconds for a terminated validator to restore the replicas, below the 30 s grace of a pod.

A client that does not answer costs it 10 s.
"""
ITEM = 5.0
"""Assumed seconds of an item if neither the command nor `item` states them."""


class QueueScalingParams(Params):
    """Without a deployment, backends are processes on the measuring host."""

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
        None, description="scale this Deployment instead of processes; its pods run the command"
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


class QueueScaling(Benchmark[QueueScalingParams]):
    """Throughput of a work queue over 1, 2, 4 ... replicas, with the fitted scalability laws.

    Every number of replicas gets as many requests in parallel, and is measured at a steady rate.
    The order is seeded.

    Clock: the client's monotonic clock. For every request slot it starts at a completion, after
    every replica has worked, and stops at a later one. Windows have at least 3 items a slot. The
    measurement ends when three windows agree.
    """

    name: ClassVar[str] = "queue-scaling"
    image: ClassVar[str] = "base"
    canaries: ClassVar[tuple[str, ...]] = ("cpu", "loopback")
    verdict: ClassVar[str] = "every step has `factor` times the throughput for each doubling"
    api: ClassVar[Rights] = Rights(
        named=(
            *READ_RULES,
            {"apiGroups": ["apps"], "resources": ["deployments/scale"], "verbs": ["patch"]},
        )
    )
    Params: ClassVar[type[Params]] = QueueScalingParams
    coords: ClassVar[tuple[str, ...]] = ("replicas",)
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric(
            "throughput", "1/s", "higher", "items a second by number of replicas", headline=True
        ),
        Metric(
            "efficiency",
            "1",
            "higher",
            "throughput as a share of replicas times that of one",
            headline=True,
        ),
        Metric(
            "gain",
            "1",
            "higher",
            "throughput relative to the step before, by number of replicas, with its 95 % interval",
            lowest=-math.inf,
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
        ),
        Metric(
            "serial_share", "1", "lower", "sigma of the Universal Scalability Law", lowest=-math.inf
        ),
        Metric(
            "amdahl_share",
            "1",
            "lower",
            "serial share by Amdahl's law, which knows no coherence",
            lowest=-math.inf,
        ),
        Metric(
            "coherence", "1", "lower", "kappa of the Universal Scalability Law", lowest=-math.inf
        ),
        Metric(
            "items",
            "1",
            "none",
            "items done at the most replicas; a subject is a node, or one device of it",
        ),
        Metric(
            "item_time",
            "s",
            "lower",
            "mean time of an item by number of replicas; a subject is a node, or one device of it",
        ),
        Metric(
            "device_utilisation",
            "1",
            "none",
            "of a GPU of this machine by number of replicas (i915, xe: share of time awake)",
            highest=1,
        ),
        Metric("device_memory", "B", "none", "most memory in use of a GPU of this machine"),
        Metric("device_power", "W", "none", "power of a GPU of this machine"),
        Metric(
            "failures",
            "1",
            "lower",
            "failed requests by number of replicas, if any; a subject is a node or its device",
        ),
    )

    def seconds(self, params: QueueScalingParams) -> float:
        """Return an estimate: 13 items per measurement."""
        return 5 + (params.limit.bit_length() + 2) * (13 * (_item(params) or ITEM) + 2)

    def check(self, params: QueueScalingParams, shape: Any) -> list[str]:
        if params.deployment:
            own = [name for name in ("glob", "item_limit") if getattr(params, name)]
            return (
                [f"{' and '.join(own)}: set them in the manifest of the Deployment (glob, limit)"]
                if own
                else []
            )
        try:
            built_in_seconds(params.command)
            substitute(params.command, params.glob)
        except ValueError as error:
            return [f"command: {error}"]
        return []

    def measure(self, gang: Gang, params: QueueScalingParams) -> Output:
        argv = validator_argv(params)
        server = gang.hosts[0].serve(argv, env=token_environment() if params.deployment else {})
        try:
            done = server.wait(gang.timeout, GRACE)
        finally:  # also where this process is told to end: the replicas are put back
            server.stop(GRACE)
        if done.code not in (0, 3):
            if refusal := _refusal(done):
                raise not_permitted(refusal, self.name)
            late = done.seconds >= gang.timeout
            what = (
                f"did not end within {gang.timeout:g} s (set `item`, or the entry's timeout)"
                if late
                else f"exited {done.code}"
            )
            raise Failed(f"the validator {what}: {done.tail()}", done.texts())
        return Output(done.texts(), [argv], "perfdag queue validate")

    def run(self, gang: Gang, params: QueueScalingParams) -> list[Measurement]:
        gang.output = self.measure(gang, params)
        return self.parse(gang.output, params)

    def parse(self, output: Output, params: QueueScalingParams) -> list[Measurement]:
        try:
            result = orjson.loads(output.texts["stdout"])
            steps = result["steps"]
        except (KeyError, ValueError):
            raise Failed("the validator printed no result", output.texts) from None
        measured = measurements_of(result)
        failed = [step for step in steps if step["failures"] or step["lost"]]
        if failed:
            raise Failed(
                f"at {failed[0]['replicas']} replicas: {'; '.join(failed[0]['problems'])}",
                output.texts,
                measured,
            )
        if not steps or steps[-1]["replicas"] != params.limit:
            raise Failed(f"the validator did not reach {params.limit} replicas", output.texts)
        unsteady = [step for step in steps if not step["steady"]]
        if unsteady:
            raise Invalid(
                f"not steady at {unsteady[0]['replicas']} replicas", output.texts, measured
            )
        return [*measured, scaling_verdict(result, params.factor)]


def validator_argv(params: QueueScalingParams) -> list[str]:
    """Return the command line of the validator, with time enough for the items."""
    argv = [sys.executable, "-m", "perfdag", "queue", "validate", "--json"]
    argv += ["--limit", f"{params.limit}", "--factor", f"{params.factor}"]
    item = _item(params) or 0.0
    argv += ["--tolerance", f"{params.tolerance}", "--timeout", f"{max(params.timeout, 16 * item)}"]
    argv += [
        "--scale-timeout",
        f"{max(params.scale_timeout, (item or params.item_limit or 0.0) + 30)}",
    ]
    if params.deployment:
        options = {
            "-n": params.namespace,
            "--client": params.client,
            "--client-namespace": params.client_namespace,
        }
        return [
            *argv,
            *(word for option, value in options.items() if value for word in (option, value)),
            params.deployment,
        ]
    argv += ["--glob", params.glob] if params.glob else []
    argv += ["--item-limit", f"{params.item_limit}"] if params.item_limit else []
    return [*argv, "--local", "--", *params.command]


def _item(params: QueueScalingParams) -> float | None:
    """Return the seconds of one item; None if unknown."""
    if params.item or params.deployment:
        return params.item
    try:
        return built_in_seconds(params.command)
    except ValueError:  # `check` refuses it
        return None


def _refusal(finished: CommandResult) -> str | None:
    """Return the API server's message if a missing right ended the validator."""
    last = finished.stderr.strip().rpartition("\n")[2]
    return last.removeprefix("perfdag: ") if " is forbidden: User " in last else None
