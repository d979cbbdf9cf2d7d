"""Scheduling scenarios: submission, scheduler alone, fill, fragmentation, priority preemption, gangs.

All run pods (or the user's workloads) through the cluster's own scheduler; on simulated nodes nothing but the scheduler and the API
is exercised.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from perfdag.kube import JSON_PATCH, Kube, KubeError
from perfdag.steps.scale import gates as gating
from perfdag.steps.scale.generator import Submitter
from perfdag.steps.scale.schedule import Schedule
from perfdag.steps.scale.session import Session, new_run, open_session, own_namespaces
from perfdag.steps.scale.summary import Summary, summaries, throughput
from perfdag.steps.scale.templates import Template, load
from perfdag.steps.scale.vmi import Result, figures_of

Scenario = Literal["submit", "gated", "fill", "fragmentation", "preemption", "gang", "reclaim"]
GPU = "nvidia.com/gpu"
GANG_SCHEDULERS = {"scheduling.volcano.sh/v1beta1": "Volcano", "scheduling.run.ai/v2": "KAI"}
"""Where their Queue is served."""


class NotHereError(Exception):
    """The scenario cannot be run on this cluster; the text says what is missing."""


@dataclass
class Spec:
    """What is submitted. `timeout` in seconds bounds each wait; `expected_pods` is the pods of one workload."""

    template: str = "job"
    count: int = 100
    namespaces: list[str] = field(default_factory=lambda: ["perfdag-scale"])
    schedule: Schedule = field(default_factory=Schedule)
    parallel: int = 20
    workers: int = 1
    gpus: int = 1
    pvc: bool = False
    storage_class: str | None = None
    timeout: float = 900.0
    goal: Literal["scheduled", "ready", "succeeded"] = "ready"
    variables: dict[str, Any] = field(default_factory=dict)
    gates: list[gating.Gate] = field(default_factory=list)
    submitter: Submitter | None = None
    tell: Callable[[str], None] = lambda text: None


def template_of(spec: Spec, run: str, *, gated: bool = False, name: str | None = None, **variables: Any) -> Template:
    """The spec's template for a run. Raises TemplateError."""
    values = {"workers": spec.workers, "gpus": spec.gpus, **spec.variables, **variables}
    return load(name or spec.template, run, values, pvc=spec.pvc, storage_class=spec.storage_class, gated=gated)


def pods_of(kind: str, workers: int) -> int | None:
    """Pods of one workload of a kind; None where it is not known."""
    one = {"Pod": 1, "TrainingWorkload": 1, "InteractiveWorkload": 1, "Job": workers}
    return one.get(kind) or ({"DistributedWorkload": workers + 1, "PyTorchJob": workers + 1}.get(kind))


@asynccontextmanager
async def _session(kube: Kube, spec: Spec, run: str, template: Template) -> AsyncIterator[Session]:
    expected = pods_of(template.kind, spec.workers)
    async with (
        own_namespaces(kube, spec.namespaces, run),
        open_session(kube, template, spec.namespaces, run, submitter=spec.submitter, expected_pods=expected) as session,
    ):
        yield session


def _wanted(session: Session) -> int:
    accepted = sum(1 for each in session.submissions if each.answered_ns and not each.error)
    return accepted * (session.expected_pods or 1)


async def submit(kube: Kube, spec: Spec) -> Result:
    """Create the workloads on their schedule, wait until all reached the goal, delete them. Raises TemplateError, KubeError."""
    run = new_run()
    async with _session(kube, spec, run, template_of(spec, run)) as session:
        await session.create(spec.count, spec.schedule, spec.parallel)
        wanted, kind = _wanted(session), session.template.kind
        if spec.goal == "succeeded" and kind in ("Job", "PyTorchJob"):
            done = await session.wait(kind, wanted // (session.expected_pods or 1), spec.timeout, "succeeded", "failed")
        else:
            done = await session.wait("Pod", wanted, spec.timeout, "ready" if spec.goal != "scheduled" else "scheduled", "failed")
        if not done:
            session.notes.append(f"not all pods {spec.goal} after {spec.timeout:g} s")
        return await _finish("submit", spec, session, {})


async def gated(kube: Kube, spec: Spec) -> Result:
    """The scheduler alone: pods are created with a scheduling gate, then all released; pods a second from the first release.

    How fast they were created does not matter. Raises TemplateError, KubeError, NotHereError for a kind other than Pod.
    """
    run = new_run()
    template = template_of(spec, run, gated=True)
    if template.kind != "Pod":
        raise NotHereError(f"scheduler-only mode gates Pods; {template.kind} has no scheduling gates: use template pod")
    async with _session(kube, spec, run, template) as session:
        await session.create(spec.count, spec.schedule, spec.parallel)
        wanted = _wanted(session)
        await session.wait("Pod", wanted, spec.timeout, "gated")
        pods = await kube.resource("v1", "Pod")
        queue = iter(list(session.observer.of("Pod")))
        patch = [{"op": "remove", "path": "/spec/schedulingGates"}]

        async def release() -> None:
            for record in queue:
                record.put("released", received_ns=time.monotonic_ns())
                await kube.patch(pods, record.name, patch, record.namespace, content_type=JSON_PATCH)

        start = time.monotonic_ns()
        await asyncio.gather(*(release() for _ in range(spec.parallel)))
        released = time.monotonic_ns()
        done = await session.wait("Pod", wanted, spec.timeout, "scheduled")
        if not done:
            session.notes.append(f"not all pods scheduled after {spec.timeout:g} s")
        times = [each.times("scheduled") for each in session.observer.of("Pod")]
        at = [found[2] / 1e9 for found in times if found and found[2]]
        mean = len(at) / (max(at) - start / 1e9) if at else None
        extra = {"schedule_rate": mean, "release_seconds": (released - start) / 1e9}
        extra["schedule_rate_best_5s"] = throughput(at)[1]
        return await _finish("gated", spec, session, extra)


async def _gpus(kube: Kube) -> dict[str, int]:
    """Allocatable GPUs by node, of nodes that take pods."""
    nodes = await kube.list(await kube.resource("v1", "Node"))
    found = {
        each["metadata"]["name"]: int((each["status"].get("allocatable") or {}).get(GPU, 0))
        for each in nodes
        if not each["spec"].get("unschedulable")
    }
    return {name: count for name, count in found.items() if count}


async def _allocated(kube: Kube) -> Counter[str]:
    """GPUs that pods of the whole cluster hold, by node."""
    held: Counter[str] = Counter()
    async for items, _ in kube.pages(
        await kube.resource("v1", "Pod"), fields="spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
    ):
        for pod in items:
            for container in pod["spec"]["containers"]:
                held[pod["spec"]["nodeName"]] += int(((container.get("resources") or {}).get("limits") or {}).get(GPU, 0))
    return held


async def _free(kube: Kube) -> dict[str, int]:
    gpus, held = await _gpus(kube), await _allocated(kube)
    free = {name: count - held[name] for name, count in gpus.items()}
    if not sum(free.values()):
        raise NotHereError(f"no free {GPU} on this cluster; `perfdag scale nodes` makes simulated ones")
    return free


async def fill(kube: Kube, spec: Spec) -> Result:
    """Fill every GPU with pods of `gpus` each, and ask for one more: all are placed, no node holds more than it has, the last is refused.

    Raises NotHereError without free GPUs.
    """
    free = await _free(kube)
    size = max(1, spec.gpus)
    room = sum(count // size for count in free.values())
    run = new_run()
    async with _session(kube, spec, run, template_of(spec, run, name="pod", gpus=size)) as session:
        await session.create(room, Schedule(), spec.parallel)
        placed = await session.wait("Pod", room, spec.timeout, "scheduled")
        before = await _allocated(kube)
        over = [name for name, count in (await _gpus(kube)).items() if before[name] > count]
        start = time.monotonic()
        await session.create(1, Schedule(), 1)
        refused = await session.wait("Pod", 1, 30.0, "unschedulable")
        extra: dict[str, float | None] = {
            "gpus_free": float(sum(free.values())),
            "gpus_allocated": float(session.reached("Pod", "scheduled") * size),
            "nodes_overcommitted": float(len(over)),
            "unschedulable_verdict": time.monotonic() - start if refused else None,
        }
        if not placed or over or not refused:
            session.notes.append(f"fill: placed {placed}, over-committed {over[:5]}, extra pod refused {refused}")
        return await _finish("fill", spec, session, extra, planned_misses=1)


async def fragmentation(kube: Kube, spec: Spec) -> Result:
    """Half of all GPUs taken by one-GPU pods, then whole nodes asked for: how many of the whole nodes that would fit are still there?

    1 means the small pods were packed, 0 that they were spread over all nodes. Raises NotHereError without free GPUs.
    """
    free = await _free(kube)
    largest = max(free.values())
    whole = [name for name, count in free.items() if count == largest]
    small = len(whole) * largest // 2
    ideal = len(whole) - -(-small // largest)
    run = new_run()
    selector = spec.variables
    async with _session(kube, spec, run, template_of(spec, run, name="pod", gpus=1)) as session:
        await session.create(small, Schedule(), spec.parallel)
        await session.wait("Pod", small, spec.timeout, "scheduled")
        session.template = template_of(spec, run, name="pod", gpus=largest, **selector)
        await session.create(ideal, Schedule(), spec.parallel)
        await session.observer.until(
            lambda: session.reached("Pod", "scheduled") - small + session.reached("Pod", "unschedulable") >= ideal, spec.timeout
        )
        got = session.reached("Pod", "scheduled") - small
        extra: dict[str, float | None] = {"whole_nodes_ideal": float(ideal), "whole_nodes_placed": float(got)}
        extra["packing"] = got / ideal if ideal else None
        return await _finish("fragmentation", spec, session, extra, planned_misses=ideal - got)


async def preemption(kube: Kube, spec: Spec) -> Result:
    """All GPUs filled at low priority, then `count` pods at high priority: how long until each is placed, and what was evicted.

    Makes two PriorityClasses and deletes them. Raises NotHereError without free GPUs.
    """
    free, size, run = await _free(kube), max(1, spec.gpus), new_run()
    room = sum(count // size for count in free.values())
    wanted = min(spec.count, room)
    async with _priorities(kube, run) as (low, high):
        template = with_priority(template_of(spec, run, name="pod", gpus=size), low)
        async with _session(kube, spec, run, template) as session:
            await session.create(room, Schedule(), spec.parallel)
            await session.wait("Pod", room, spec.timeout, "scheduled")
            session.template = with_priority(template_of(spec, run, name="pod", gpus=size), high)
            made = await session.create(wanted, Schedule(), spec.parallel)
            done = await session.wait("Pod", room + len(made.created), spec.timeout, "scheduled")
            if not done:
                session.notes.append(f"not all high-priority pods placed after {spec.timeout:g} s")
            names = {each.name for each in made.submissions}
            urgent = [each for each in session.observer.of("Pod") if each.name in names]
            waits = sorted(_span(each, "created", "scheduled") for each in urgent if "scheduled" in each.stages)
            gone = sum("gone" in each.stages or "evicted" in each.stages for each in session.observer.of("Pod"))
            extra: dict[str, float | None] = {
                "preemptor_wait_p50": waits[len(waits) // 2] if waits else None,
                "preemptor_wait_max": waits[-1] if waits else None,
                "evicted": float(gone),
            }
            return await _finish("preemption", spec, session, extra)


def _span(record: Any, start: str, end: str) -> float:
    first, last = record.times(start), record.times(end)
    return (last[2] - first[2]) / 1e9 if first and last and first[2] and last[2] else float("inf")


def with_priority(template: Template, name: str) -> Template:
    """The template's pods at a priority class."""
    import orjson

    from perfdag.steps.scale.templates import Document

    documents = []
    for each in template.documents:
        body = orjson.loads(each.body)
        body["spec"]["priorityClassName"] = name
        documents.append(Document(each.api_version, each.kind, orjson.dumps(body)))
    return Template(template.source, tuple(documents))


@asynccontextmanager
async def _priorities(kube: Kube, run: str) -> AsyncIterator[tuple[str, str]]:
    names = (f"perfdag-low-{run}", f"perfdag-high-{run}")
    classes = await kube.resource("scheduling.k8s.io/v1", "PriorityClass")
    try:
        for name, value in zip(names, (-1000, 1000), strict=True):
            body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value}
            await kube.create(body)
        yield names
    finally:
        for name in names:
            with suppress(KubeError):
                await kube.delete(classes, name)


async def needs_gang_scheduler(kube: Kube, scenario: str) -> None:
    """Raises NotHereError: gangs and reclaim need a scheduler of queues and gangs, and say which was looked for."""
    found = []
    for group, name in GANG_SCHEDULERS.items():
        with suppress(KubeError):
            await kube.resource(group, "Queue")
            found.append(name)
    if not found:
        raise NotHereError(f"{scenario} needs Volcano or KAI, and the cluster serves neither {' nor '.join(GANG_SCHEDULERS)}")
    raise NotHereError(f"{scenario} on {' and '.join(found)} is not measured by this version")


SCENARIOS: dict[str, Callable[[Kube, Spec], Any]] = {
    "submit": submit,
    "gated": gated,
    "fill": fill,
    "fragmentation": fragmentation,
    "preemption": preemption,
}


async def measure(kube: Kube, spec: Spec, scenario: Scenario) -> Result:
    """Run one scenario. Raises NotHereError, TemplateError, KubeError."""
    if scenario not in SCENARIOS:
        await needs_gang_scheduler(kube, scenario)
    result: Result = await SCENARIOS[scenario](kube, spec)
    return result


async def _finish(scenario: str, spec: Spec, session: Session, extra: dict[str, float | None], planned_misses: int = 0) -> Result:
    """Rows, figures and verdicts, then deletion, which must leave nothing."""
    await session.scrape()
    rows = await session.rows()
    stages: list[Summary] = summaries(rows)
    figures = figures_of(session, rows, stages)
    goal = "scheduled" if spec.goal == "scheduled" or scenario in ("gated", "fill", "fragmentation", "preemption") else "ready"
    final = [row for row in rows if row.stage == ("submission_to_scheduled" if goal == "scheduled" else goal)]
    reached = [row.receive_time or row.api_time for row in final if row.status == "ok"]
    mean, best = throughput([at for at in reached if at])
    planned = len(session.submissions) - planned_misses
    figures |= {"throughput_mean": mean, "throughput_best_5s": best}
    figures["success_ratio"] = sum(row.status == "ok" for row in final) / planned if planned else None
    generator = [made.summary(schedule) for made, schedule in session.batches]
    figures |= {"schedule_held": generator[0]["rate_share"], "submit_lag": generator[0]["lag_p99_s"]} | extra
    gone = await session.delete(session.submissions, spec.parallel, spec.timeout)
    left = 0 if gone else len(session._left({(each.namespace, each.name) for each in session.submissions}))
    figures["left_behind"] = float(left)
    facts = session.facts() | {"generator": generator, "simulated": any(row.simulated for row in rows), "goal": goal}
    calls = [{"call": each.name, "count": each.count, "p99_s": each.p99, "low_s": each.low, "high_s": each.high} for each in session.calls]
    started = session.batches[0][0].started_wall
    verdicts = gating.hold(spec.gates, figures)
    return Result(
        scenario, spec.count, session.run, rows, stages, figures, facts, verdicts, calls=calls, started=started, ended=time.time()
    )
