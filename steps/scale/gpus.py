"""GPU scenarios of the scheduler: fill, fragmentation, and preemption by priority."""

import math
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import orjson

from perfdag.kube import Kube, KubeError
from perfdag.steps.scale.generator import Submitted
from perfdag.steps.scale.nodes import takes_pods, untolerated
from perfdag.steps.scale.records import Record
from perfdag.steps.scale.rows import Family
from perfdag.steps.scale.scenario import NotHereError, Spec, begin, finish, session_of, template_of
from perfdag.steps.scale.schedule import Schedule
from perfdag.steps.scale.session import Session
from perfdag.steps.scale.summary import rank
from perfdag.steps.scale.templates import RUN_LABEL, Document, Template
from perfdag.steps.scale.vmi import Result

GPU = "nvidia.com/gpu"
VERDICT = 30.0
"""Seconds to wait for the scheduler's word on a pod that has no room."""


async def _gpus(kube: Kube) -> tuple[dict[str, int], Counter[str]]:
    """Allocatable GPUs by node, of nodes that are Ready and take our pods; and how many more have GPUs, by the taints that keep us away."""
    found: dict[str, int] = {}
    barred: Counter[str] = Counter()
    for node in await kube.list(await kube.resource("v1", "Node")):
        count = int((node["status"].get("allocatable") or {}).get(GPU, 0))
        if count and takes_pods(node):
            if taints := untolerated(node):
                barred[", ".join(taints)] += 1
            else:
                found[node["metadata"]["name"]] = count
    return found, barred


async def _allocated(kube: Kube) -> Counter[str]:
    """GPUs that pods of the whole cluster hold, by node."""
    held: Counter[str] = Counter()
    async for items, _ in kube.pages(
        await kube.resource("v1", "Pod"),
        fields="spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed",
    ):
        for pod in items:
            for container in pod["spec"]["containers"]:
                held[pod["spec"]["nodeName"]] += int(
                    ((container.get("resources") or {}).get("limits") or {}).get(GPU, 0)
                )
    return held


async def free_gpus(kube: Kube) -> dict[str, int]:
    """GPUs that no pod holds, by node, of nodes that take our pods. Raises NotHereError where there are none."""
    (gpus, barred), held = await _gpus(kube), await _allocated(kube)
    free = {name: max(0, count - held[name]) for name, count in gpus.items()}
    if not sum(free.values()):
        tainted = "".join(
            f"; {count} nodes with GPUs have taints that our pods do not tolerate: {keys}"
            for keys, count in barred.items()
        )
        raise NotHereError(
            f"no free {GPU} on this cluster{tainted}; `perfdag scale nodes` makes simulated ones"
        )
    return free


async def fill(kube: Kube, spec: Spec) -> Result:
    """Fill every GPU with pods of `gpus` each, and ask for one more: all are placed, no node holds more than it has, the last is refused.

    Raises NotHereError without free GPUs.
    """
    free = await free_gpus(kube)
    size = max(1, spec.gpus)
    room = sum(count // size for count in free.values())
    run = begin(spec, "fill")
    async with session_of(
        kube, spec, run, template_of(spec, run, name="pod", gpus=size)
    ) as session:
        fitting = await session.create(room, Schedule(), spec.parallel)
        await session.wait("Pod", len(fitting.created), spec.timeout, "scheduled")
        placed = reaching(session, fitting, "scheduled") == room
        before = await _allocated(kube)
        over = [name for name, count in (await _gpus(kube))[0].items() if before[name] > count]
        made = await session.create(1, Schedule(), 1)
        await session.until(
            lambda: reaching(session, made, "scheduled", "unschedulable") == len(made.created),
            VERDICT,
        )
        refused = reaching(session, made, "unschedulable") > reaching(session, made, "scheduled")
        extra: dict[str, float | None] = {
            "gpus_free": float(sum(free.values())),
            "gpus_allocated": float(session.reached("Pod", "scheduled") * size),
            "nodes_overcommitted": float(len(over)),
            "unschedulable_verdict": _verdict(session, made) if refused else None,
        }
        if not placed or over or not refused:
            session.notes.append(
                f"fill: placed {placed}, over-committed {over[:5]}, extra pod refused {refused}"
            )
        return await finish(
            "fill",
            spec,
            session,
            extra,
            planned_misses=1,
            among={each.uid for each in made.created},
        )


def seen_of(session: Session, made: Submitted) -> list[Record]:
    """Records of what was created at once; what other creations made is not among them."""
    return [record for each in made.created if (record := session.observer.records.get(each.uid))]


def reaching(session: Session, made: Submitted, *stages: str) -> int:
    """How many of what was created at once reached one of the stages; each counts once."""
    return sum(any(stage in each.stages for stage in stages) for each in seen_of(session, made))


def _verdict(session: Session, made: Submitted) -> float | None:
    """Seconds from sending a pod to the watch's word that it cannot be placed; None where only a list told of that."""
    (item,), (record,) = made.created, seen_of(session, made)
    at = record.times("unschedulable")
    return (at[2] - item.started_ns) / 1e9 if at and at[2] else None


async def fragmentation(kube: Kube, spec: Spec) -> Result:
    """Half of all GPUs taken by one-GPU pods, then whole nodes asked for: how many of the whole nodes that would fit are still there?

    1 means the small pods were packed, 0 that they were spread over all nodes. Raises NotHereError without free GPUs.
    """
    free = await free_gpus(kube)
    largest = max(free.values())
    whole = [name for name, count in free.items() if count == largest]
    small = len(whole) * largest // 2
    ideal = len(whole) - -(-small // largest)
    run = begin(spec, "fragmentation")
    async with session_of(kube, spec, run, template_of(spec, run, name="pod", gpus=1)) as session:
        made = await session.create(small, Schedule(), spec.parallel)
        await session.wait("Pod", len(made.created), spec.timeout, "scheduled")
        standing = reaching(session, made, "scheduled")
        if standing < small:
            session.notes.append(
                f"fragmentation: {standing} of {small} small pods were placed, so nothing tells how well they were packed"
            )
        session.template = template_of(spec, run, name="pod", gpus=largest)
        big = await session.create(ideal, Schedule(), spec.parallel)
        await session.until(
            lambda: reaching(session, big, "scheduled", "unschedulable") == len(big.created),
            spec.timeout,
        )
        got = reaching(session, big, "scheduled")
        extra: dict[str, float | None] = {
            "whole_nodes_ideal": float(ideal),
            "whole_nodes_placed": float(got),
        }
        extra["packing"] = got / ideal if ideal and standing == small else None
        uids = {each.uid for each in big.created}
        return await finish(
            "fragmentation", spec, session, extra, planned_misses=len(uids) - got, among=uids
        )


async def preemption(kube: Kube, spec: Spec) -> Result:
    """All GPUs filled at low priority, then `count` pods at high priority: how long until each is placed, and what was evicted.

    Makes two PriorityClasses and deletes them. Raises NotHereError without free GPUs.
    """
    free, size, run = await free_gpus(kube), max(1, spec.gpus), begin(spec, "preemption")
    room = sum(count // size for count in free.values())
    wanted = min(spec.count, room)
    async with _priorities(kube, run) as (low, high):
        template = with_priority(template_of(spec, run, name="pod", gpus=size), low)
        async with session_of(kube, spec, run, template) as session:
            low_ones = await session.create(room, Schedule(), spec.parallel)
            await session.wait("Pod", len(low_ones.created), spec.timeout, "scheduled")
            if (held := reaching(session, low_ones, "scheduled")) < room:
                session.notes.append(
                    f"{held} of {room} low-priority pods were placed, so not all of the others had to evict one"
                )
            session.template = with_priority(template_of(spec, run, name="pod", gpus=size), high)
            made = await session.create(wanted, Schedule(), spec.parallel)
            if not await session.until(
                lambda: reaching(session, made, "scheduled") == len(made.created), spec.timeout
            ):
                session.notes.append(
                    f"not all high-priority pods placed {session.ended(spec.timeout)}"
                )
            gone = sum(
                "gone" in each.stages or "evicted" in each.stages
                for each in session.observer.of("Pod")
            )
            extra = waits("preemptor_wait", session, made) | {"evicted": float(gone)}
            return await finish("preemption", spec, session, extra)


def waits(name: str, session: Session, made: Submitted) -> dict[str, float | None]:
    """Median and maximum of what the workloads of one creation waited for a node, in seconds; None where one that never got one, which
    waits for ever, is among those that would tell."""
    family = Family(session.observer.records)
    ordered = sorted(_waited(family.below(each.uid)["Pod"]) for each in made.created)
    return {f"{name}_p50": rank(ordered, 0.50), f"{name}_max": rank(ordered, 1.0)}


def _waited(pods: Sequence[Record]) -> float:
    """Seconds on the watch's clock from a workload's first pod to the first that got a node; infinite where that was not seen."""
    made = [times[2] for each in pods if (times := each.times("created")) and times[2]]
    placed = [times[2] for each in pods if (times := each.times("scheduled")) and times[2]]
    return (min(placed) - min(made)) / 1e9 if made and placed else math.inf


def with_priority(template: Template, name: str) -> Template:
    """The template's pods at a priority class."""
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
            body = {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": name, "labels": {RUN_LABEL: run}},
                "value": value,
            }
            await kube.create(body)
        yield names
    finally:
        for name in names:
            with suppress(KubeError):
                await kube.delete(classes, name)
