"""GPU scenarios of the scheduler: fill, fragmentation, and preemption by priority."""

import math
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

import orjson

from perfdag.kube.client import Kube
from perfdag.steps.scale.cluster.own_objects import own_objects
from perfdag.steps.scale.figures.family import Family
from perfdag.steps.scale.figures.percentiles import rank
from perfdag.steps.scale.measure.generator import GeneratorResult
from perfdag.steps.scale.model.records import Record
from perfdag.steps.scale.model.schedule import Schedule
from perfdag.steps.scale.model.templates import RUN_LABEL, Document, Template
from perfdag.steps.scale.scenarios.base import (
    Result,
    Spec,
    finish,
    session_of,
    start_run,
    template_of,
)
from perfdag.steps.scale.scenarios.free_gpus import free_gpus, usable_gpus, used_gpus
from perfdag.steps.scale.scenarios.session import Session

VERDICT = 30.0
"""Seconds for the scheduler to declare a pod unschedulable."""
EVENT_PATIENCE = 5.0
"""Seconds for the Events of evicted pods. KAI drops some of many Events."""


async def fill(kube: Kube, spec: Spec) -> Result:
    """Fill every GPU with pods of `gpus` each, then create one pod too many.

    All must be placed, no node over-committed, and the last pod refused. Raises
    ScenarioUnavailableError.
    """
    free = await free_gpus(kube)
    size = spec.whole_gpus
    room = sum(count // size for count in free.values())
    run = start_run(spec, "fill")
    async with session_of(kube, spec, run, pods_of(spec, run, size)) as session:
        fitting = await session.create(room, Schedule(), spec.parallel)
        await session.wait("Pod", len(fitting.created), spec.timeout, "scheduled")
        placed = count_reaching(session, fitting, "scheduled") == room
        before = await used_gpus(kube)
        over = [
            name for name, count in (await usable_gpus(kube))[0].items() if before[name] > count
        ]
        extra_pod = await session.create(1, Schedule(), 1)
        await session.until(
            lambda: (
                count_reaching(session, extra_pod, "scheduled", "unschedulable")
                == len(extra_pod.created)
            ),
            VERDICT,
        )
        refused = count_reaching(session, extra_pod, "unschedulable") > count_reaching(
            session, extra_pod, "scheduled"
        )
        extra: dict[str, float | None] = {
            "gpus_free": float(sum(free.values())),
            "gpus_allocated": float(session.reached("Pod", "scheduled") * size),
            "nodes_overcommitted": float(len(over)),
            "unschedulable_verdict": _verdict(session, extra_pod) if refused else None,
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
            among={item.uid for item in extra_pod.created},
        )


def records_of(session: Session, batch: GeneratorResult) -> list[Record]:
    """Return the records of the objects of one batch."""
    return [record for item in batch.created if (record := session.observer.records.get(item.uid))]


def count_reaching(session: Session, batch: GeneratorResult, *stages: str) -> int:
    """Count the objects of a batch that reached at least one of the stages."""
    return sum(
        any(stage in record.stages for stage in stages) for record in records_of(session, batch)
    )


def _verdict(session: Session, batch: GeneratorResult) -> float | None:
    """Return the seconds until the scheduler declared a pod unschedulable; None if not watched."""
    (item,), (record,) = batch.created, records_of(session, batch)
    at = record.times("unschedulable")
    return (at[2] - item.started_ns) / 1e9 if at and at[2] else None


async def fragmentation(kube: Kube, spec: Spec) -> Result:
    """Take half of all GPUs with one-GPU pods, then request whole nodes.

    The figure `packing` is 1 if the small pods were packed, and 0 if they were spread over all
    nodes. Raises ScenarioUnavailableError.
    """
    free = await free_gpus(kube)
    largest = max(free.values())
    whole = [name for name, count in free.items() if count == largest]
    small = len(whole) * largest // 2
    ideal = len(whole) - -(-small // largest)
    run = start_run(spec, "fragmentation")
    async with session_of(kube, spec, run, pods_of(spec, run, 1)) as session:
        small_pods = await session.create(small, Schedule(), spec.parallel)
        await session.wait("Pod", len(small_pods.created), spec.timeout, "scheduled")
        standing = count_reaching(session, small_pods, "scheduled")
        if standing < small:
            session.notes.append(
                f"fragmentation: {standing} of {small} small pods were placed, so their packing is "
                "unknown"
            )
        session.template = pods_of(spec, run, largest)
        big = await session.create(ideal, Schedule(), spec.parallel)
        await session.until(
            lambda: count_reaching(session, big, "scheduled", "unschedulable") == len(big.created),
            spec.timeout,
        )
        placed = count_reaching(session, big, "scheduled")
        extra: dict[str, float | None] = {
            "whole_nodes_ideal": float(ideal),
            "whole_nodes_placed": float(placed),
        }
        extra["packing"] = placed / ideal if ideal and standing == small else None
        uids = {item.uid for item in big.created}
        return await finish(
            "fragmentation", spec, session, extra, planned_misses=len(uids) - placed, among=uids
        )


async def preemption(kube: Kube, spec: Spec) -> Result:
    """Fill all GPUs at low priority, then create `count` pods at high priority.

    Measures their wait, the victims and the preemptors that were placed. Creates two
    PriorityClasses and deletes them. Raises
    ScenarioUnavailableError.
    """
    free, size, run = await free_gpus(kube), spec.whole_gpus, start_run(spec, "preemption")
    room = sum(count // size for count in free.values())
    wanted = min(spec.count, room)
    async with _priorities(kube, run) as (low, high):
        template = with_priority(pods_of(spec, run, size), low)
        async with session_of(kube, spec, run, template) as session:
            low_ones = await session.create(room, Schedule(), spec.parallel)
            await session.wait("Pod", len(low_ones.created), spec.timeout, "scheduled")
            if (scheduled := count_reaching(session, low_ones, "scheduled")) < room:
                session.notes.append(
                    f"{scheduled} of {room} low-priority pods were placed, so some high-priority "
                    "pods evicted none"
                )
            session.template = with_priority(pods_of(spec, run, size), high)
            preemptors = await session.create(wanted, Schedule(), spec.parallel)
            if not await session.until(
                lambda: count_reaching(session, preemptors, "scheduled") == len(preemptors.created),
                spec.timeout,
            ):
                session.notes.append(
                    f"not all high-priority pods placed {session.wait_end(spec.timeout)}"
                )
            await wait_for_evictions(session, low_ones)
            extra = waits("preemptor_wait", session, preemptors) | {
                "evicted": float(len(victims(session, low_ones))),
                "preemptors": float(count_reaching(session, preemptors, "scheduled")),
            }
            return await finish("preemption", spec, session, extra)


def pods_of_each(session: Session, batch: GeneratorResult) -> list[list[Record]]:
    """Return the pods of each workload of a batch."""
    family = Family(session.observer.records)
    return [family.below(item.uid)["Pod"] for item in batch.created]


def victims(session: Session, batch: GeneratorResult) -> list[Record]:
    """Return the pods of a batch of workloads that were evicted or are gone."""
    pods = [pod for own in pods_of_each(session, batch) for pod in own]
    return [pod for pod in pods if "gone" in pod.stages or "evicted" in pod.stages]


async def wait_for_evictions(session: Session, batch: GeneratorResult) -> None:
    """Wait for the Events of the victims, which come after their deletion."""
    await session.until(
        lambda: all("evicted" in pod.stages for pod in victims(session, batch)),
        min(EVENT_PATIENCE, session.left_of(EVENT_PATIENCE) or 0.0),
    )


def waits(
    name: str, session: Session, batch: GeneratorResult, members: int = 1
) -> dict[str, float | None]:
    """Return the median and maximum wait in seconds of a batch of workloads of `members` pods."""
    return spread(name, [_waited(pods, members) for pods in pods_of_each(session, batch)])


def spread(name: str, seconds: Iterable[float]) -> dict[str, float | None]:
    """Return the median and maximum. None means that the rank falls on an infinite one."""
    ordered = sorted(seconds)
    return {f"{name}_p50": rank(ordered, 0.50), f"{name}_max": rank(ordered, 1.0, 1)}


def _waited(pods: Sequence[Record], members: int) -> float:
    """Return the seconds from a workload's first pod until `members` are placed, else infinity."""
    created = [times[2] for pod in pods if (times := pod.times("created")) and times[2]]
    placed = sorted(times[2] for pod in pods if (times := pod.times("scheduled")) and times[2])
    short = not created or len(placed) < members
    return math.inf if short else (placed[members - 1] - min(created)) / 1e9


def pods_of(spec: Spec, run: str, gpus: int) -> Template:
    """Return pods of `gpus` GPUs for the spec's scheduler and queue."""
    template = template_of(spec, run, name="pod", gpus=gpus)
    body = orjson.loads(template.documents[-1].body)
    if spec.scheduler:
        body["spec"]["schedulerName"] = spec.scheduler
    if spec.queue:
        body["metadata"]["labels"]["kai.scheduler/queue"] = spec.queue
        body["metadata"]["annotations"]["scheduling.volcano.sh/queue-name"] = spec.queue
    return Template(template.source, (Document("v1", "Pod", orjson.dumps(body)),))


def with_priority(template: Template, name: str) -> Template:
    """Return the template with a priority class for its pods."""
    documents = []
    for document in template.documents:
        body = orjson.loads(document.body)
        body["spec"]["priorityClassName"] = name
        documents.append(Document(document.api_version, document.kind, orjson.dumps(body)))
    return Template(template.source, tuple(documents))


@asynccontextmanager
async def _priorities(kube: Kube, run: str) -> AsyncIterator[tuple[str, str]]:
    names = (f"perfdag-low-{run}", f"perfdag-high-{run}")
    classes = [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name, "labels": {RUN_LABEL: run}},
            "value": value,
        }
        for name, value in zip(names, (-1000, 1000), strict=True)
    ]
    async with own_objects(kube, classes):
        yield names
