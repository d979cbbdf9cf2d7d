"""Scenarios for gang schedulers (Volcano or KAI): all-or-nothing placement and reclaim.

Volcano: one PodGroup per workload, named by an annotation (https://volcano.sh/en/docs/podgroup).
KAI: its pod grouper makes the PodGroup of a Job, with the size from the Job's annotation
(KAI-Scheduler, docs/batch).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import orjson

from perfdag.kube.client import Kube, KubeError, Object
from perfdag.steps.scale.cluster.removal import QUEUE_NOT_CLOSED, close_queue
from perfdag.steps.scale.measure.observer import Observer
from perfdag.steps.scale.model.schedule import Schedule
from perfdag.steps.scale.model.templates import RUN_LABEL, Document, Template
from perfdag.steps.scale.scenarios.base import (
    Result,
    ScenarioUnavailableError,
    Spec,
    finish,
    session_of,
    start_run,
    template_of,
)
from perfdag.steps.scale.scenarios.free_gpus import GPU, free_gpus
from perfdag.steps.scale.scenarios.gpus import victims, wait_for_evictions, waits

TRIES, PAUSE = 20, 0.5
"""Of deleting a queue, and seconds between them."""


@dataclass(frozen=True)
class GangScheduler:
    """A gang scheduler: the apiVersion of its Queues and PodGroups, and its schedulerName."""

    name: str
    queue: str
    scheduler: str
    group: str = ""


VOLCANO = GangScheduler(
    "Volcano", "scheduling.volcano.sh/v1beta1", "volcano", "scheduling.volcano.sh/v1beta1"
)
KAI = GangScheduler("KAI", "scheduling.run.ai/v2", "kai-scheduler")


async def find_scheduler(kube: Kube, scenario: str) -> GangScheduler:
    """Return the gang scheduler of this cluster. Raises ScenarioUnavailableError if it has none."""
    for scheduler in (VOLCANO, KAI):
        with suppress(KubeError):
            await kube.resource(scheduler.queue, "Queue")
            return scheduler
    raise ScenarioUnavailableError(
        f"{scenario} needs Volcano or KAI: the cluster serves Queues of neither {VOLCANO.queue} "
        f"nor {KAI.queue}"
    )


def queues(scheduler: GangScheduler, run: str, share: int) -> list[Object]:
    """Return two queues that deserve `share` GPUs and may borrow idle ones, parents first."""
    a, b = f"perfdag-{run}-a", f"perfdag-{run}-b"
    if scheduler.name == "Volcano":
        deserved = {GPU: str(share)}
        return [
            _queue(scheduler, name, run, {"weight": 1, "reclaimable": True, "deserved": deserved})
            for name in (a, b)
        ]
    parent = f"perfdag-{run}"

    def resources(gpus: int) -> Object:
        anything: Object = {"quota": -1, "limit": -1, "overQuotaWeight": 1}
        return {
            "resources": {"gpu": anything | {"quota": gpus}, "cpu": anything, "memory": anything}
        }

    children = [
        _queue(scheduler, name, run, {"parentQueue": parent} | resources(share)) for name in (a, b)
    ]
    return [_queue(scheduler, parent, run, resources(2 * share)), *children]


def _queue(scheduler: GangScheduler, name: str, run: str, spec: Object) -> Object:
    return {
        "apiVersion": scheduler.queue,
        "kind": "Queue",
        "metadata": {"name": name, "labels": {RUN_LABEL: run}},
        "spec": spec,
    }


def gang_of(scheduler: GangScheduler, jobs: Template, members: int, queue: str) -> Template:
    """Return Jobs as gangs of `members` pods in a queue.

    Volcano gets ReplicaSets, because pods of a Job complete at once on nodes of KWOK.
    """
    job = orjson.loads(jobs.documents[-1].body)
    pods, metadata = job["spec"]["template"], job["metadata"]
    pods["spec"]["schedulerName"] = scheduler.scheduler
    if scheduler.name == "KAI":
        metadata["annotations"]["kai.scheduler/batch-min-member"] = str(members)
        for target in (metadata, pods["metadata"]):
            target["labels"]["kai.scheduler/queue"] = queue
        return Template(jobs.source, (Document("batch/v1", "Job", orjson.dumps(job)),))
    pods["metadata"] |= {"annotations": {"scheduling.k8s.io/group-name": metadata["name"]}}
    group = {
        "apiVersion": scheduler.group,
        "kind": "PodGroup",
        "metadata": metadata,
        "spec": {"minMember": members, "queue": queue},
    }
    bodies = (group, replica_set(job, members))
    return Template(
        jobs.source,
        tuple(Document(body["apiVersion"], body["kind"], orjson.dumps(body)) for body in bodies),
    )


def replica_set(job: Object, members: int) -> Object:
    """Return a ReplicaSet with the pods of a Job. It replaces a pod that was evicted."""
    pods, metadata = job["spec"]["template"], job["metadata"]
    own = {"perfdag/gang": metadata["name"]}
    pods["metadata"]["labels"] |= own
    del pods["spec"]["restartPolicy"]
    spec = {"replicas": members, "selector": {"matchLabels": own}, "template": pods}
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata, "spec": spec}


@asynccontextmanager
async def own_queues(
    kube: Kube,
    scheduler: GangScheduler,
    run: str,
    share: int,
    left: list[str],
    log: Callable[[str], None],
) -> AsyncIterator[tuple[str, str]]:
    """Create the two queues of a run and delete them at the end.

    Messages about remaining queues go to `left`, or to `log` if an error is raised.
    """
    bodies = queues(scheduler, run, share)
    resource = await kube.resource(scheduler.queue, "Queue")
    say, names = log, [body["metadata"]["name"] for body in bodies]
    try:
        for body in bodies:
            await kube.create(body)
        yield names[-2], names[-1]
        say = left.append
    finally:
        remedy, messages, there = (
            f"`perfdag scale delete --run {run}` deletes it",
            list[str](),
            names[::-1],
        )
        try:
            while there:
                if why := await _remove_queue(kube, resource, there[0]):
                    messages.append(f"the queue {there[0]} is left: {why}; {remedy}")
                del there[0]
        finally:
            for text in [
                *messages,
                *(
                    f"whether the queue {name} is left is unknown (interrupted); {remedy}"
                    for name in there
                ),
            ]:
                (log if there else say)(text)


async def _remove_queue(kube: Kube, resource: Any, name: str) -> str:
    """Delete a queue and return why it is left, or an empty string.

    Volcano's webhook refuses until the queue is closed and its scheduler has seen it empty.
    """
    why = ""
    for _ in range(TRIES):
        try:
            await kube.delete(resource, name)
            return ""
        except KubeError as error:
            why = str(error)
        if QUEUE_NOT_CLOSED in why:
            with suppress(KubeError):  # the next deletion tells
                await close_queue(kube, resource, name)
        await asyncio.sleep(PAUSE)
    return why


def placed(observer: Observer, members: int) -> tuple[int, int]:
    """Count the gangs that are placed whole, and those placed in part."""
    gpus: dict[str, int] = {}
    for record in observer.of("Pod"):
        if "scheduled" in record.stages and "gone" not in record.stages:
            gpus[record.owner] = gpus.get(record.owner, 0) + 1
    return sum(count >= members for count in gpus.values()), sum(
        0 < count < members for count in gpus.values()
    )


def room_for(free: Sequence[int], gpus: int, members: int) -> int:
    """Count the gangs of `members` pods that fit, with `gpus` GPUs per pod."""
    return sum(count // gpus for count in free) // members


async def gang(kube: Kube, spec: Spec) -> Result:
    """Create more gangs than fit: those that fit must be placed whole, the others not at all.

    Creates `count` gangs of `workers` pods, and at least one more than fits. Raises
    ScenarioUnavailableError.
    """
    scheduler, free = await find_scheduler(kube, "gang"), await free_gpus(kube)
    spec.scheduler = scheduler.scheduler
    size, run = spec.whole_gpus, start_run(spec, "gang")
    fitting = room_for(list(free.values()), size, spec.workers)
    count = max(spec.count, fitting + 1)
    jobs = template_of(spec, run, name="job", gpus=size)
    left: list[str] = []
    async with own_queues(kube, scheduler, run, sum(free.values()), left, spec.log) as (queue, _):
        template = gang_of(scheduler, jobs, spec.workers, queue)
        async with session_of(kube, spec, run, template) as session:
            await session.create(count, spec.schedule, spec.parallel)
            await session.until(
                lambda: placed(session.observer, spec.workers)[0] >= fitting, spec.timeout
            )
            await asyncio.sleep(2.0)  # later placements would not change the result
            whole, split = placed(session.observer, spec.workers)
            if whole < fitting or split:
                session.notes.append(
                    f"gang: {whole} of {fitting} that fit are placed whole, {split} in part"
                )
            extra: dict[str, float | None] = {
                "gangs_fitting": float(fitting),
                "gangs_placed": float(whole),
                "gangs_split": float(split),
            }
            result = await finish("gang", spec, session, extra, planned_misses=count - fitting)
    result.facts["notes"] += left
    return result


async def reclaim(kube: Kube, spec: Spec) -> Result:
    """Fill all GPUs from one queue, then let gangs of `workers` pods of another reclaim its half.

    Clock: it starts when the first pod of a gang is created and stops when the watch shows a node
    for its last pod. Volcano needs the action `reclaim`. Raises ScenarioUnavailableError.
    """
    scheduler, free = await find_scheduler(kube, "reclaim"), await free_gpus(kube)
    spec.scheduler = scheduler.scheduler
    size, run, members = spec.whole_gpus, start_run(spec, "reclaim"), spec.workers
    room = sum(count // size for count in free.values())
    gangs = room // 2 // members
    if not gangs:
        raise ScenarioUnavailableError(f"a gang of {members} pods exceeds half of {room} pods")
    claimed = gangs * members
    one, many = (
        template_of(spec, run, name="job", gpus=size, workers=count) for count in (1, members)
    )
    left = list[str]()
    async with (
        own_queues(kube, scheduler, run, room // 2 * size, left, spec.log) as (first, second),
        session_of(kube, spec, run, gang_of(scheduler, one, 1, first)) as session,
    ):
        fillers = await session.create(room, Schedule(), spec.parallel)
        filled = await session.wait("Pod", room, spec.timeout, "scheduled")
        session.template = gang_of(scheduler, many, members, second)
        claimants = await session.create(gangs, Schedule(), spec.parallel)

        def reclaimed() -> int:
            own = {item.uid for item in claimants.created}
            pods = (pod for pod in session.observer.of("Pod") if pod.owner in own)
            return sum("scheduled" in pod.stages for pod in pods)

        await session.until(lambda: reclaimed() >= claimed, spec.timeout)
        seen = reclaimed()
        if not filled or seen < claimed:
            session.notes.append(
                f"reclaim: first queue filled {filled}; {seen} of {claimed} reclaimed "
                f"{session.wait_end(spec.timeout)}; does {scheduler.name} reclaim?"
            )
        await wait_for_evictions(session, fillers)
        gone = victims(session, fillers)
        extra: dict[str, float | None] = {
            "reclaimed": float(seen),
            "evicted": float(len(gone)),
            **waits("reclaim_wait", session, claimants, members),
        }
        # Evicted workloads cannot be placed again: the share belongs to the other queue.
        evicted = {pod.owner for pod in gone}
        result = await finish(
            "reclaim", spec, session, extra, planned_misses=claimed, among=evicted
        )
    result.facts["notes"] += left
    return result
