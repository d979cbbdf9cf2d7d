"""Scenarios that need a scheduler of gangs and queues (Volcano or KAI): all-or-nothing placement, and reclaim between queues.

Volcano: a PodGroup a workload, named by its pods' annotation (https://volcano.sh/en/docs/podgroup). KAI: its pod grouper makes the
PodGroup of a Job, of the size that the Job's annotation says (KAI-Scheduler, docs/batch).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import orjson

from perfdag.kube import Kube, KubeError
from perfdag.steps.scale.gpus import GPU, free_gpus, waits
from perfdag.steps.scale.observer import Observer
from perfdag.steps.scale.removal import NOT_CLOSED, close_queue
from perfdag.steps.scale.scenario import NotHereError, Spec, begin, finish, session_of, template_of
from perfdag.steps.scale.schedule import Schedule
from perfdag.steps.scale.templates import RUN_LABEL, Document, Template
from perfdag.steps.scale.vmi import Result

Object = dict[str, Any]
TRIES, PAUSE = 20, 0.5
"""Of deleting a queue, and seconds between them."""


@dataclass(frozen=True)
class GangScheduler:
    """A scheduler of gangs: where its Queues are served and what pods call it; `group` is the apiVersion of PodGroups that we make."""

    name: str
    queue: str
    scheduler: str
    group: str = ""


VOLCANO = GangScheduler(
    "Volcano", "scheduling.volcano.sh/v1beta1", "volcano", "scheduling.volcano.sh/v1beta1"
)
KAI = GangScheduler("KAI", "scheduling.run.ai/v2", "kai-scheduler")


async def found(kube: Kube, scenario: str) -> GangScheduler:
    """The gang scheduler of this cluster. Raises NotHereError that says which were looked for."""
    for each in (VOLCANO, KAI):
        with suppress(KubeError):
            await kube.resource(each.queue, "Queue")
            return each
    raise NotHereError(
        f"{scenario} needs Volcano or KAI, and the cluster serves Queues of neither {VOLCANO.queue} nor {KAI.queue}"
    )


def queues(scheduler: GangScheduler, run: str, share: int) -> list[Object]:
    """Two queues that deserve `share` GPUs each and may take the other's when it is idle, parents first."""
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
    """The template of Jobs as gangs of `members` pods that start together or not at all, in a queue.

    For Volcano the pods are a ReplicaSet's: those of a Job complete at once where KWOK plays the nodes.
    """
    job = orjson.loads(jobs.documents[-1].body)
    pods, metadata = job["spec"]["template"], job["metadata"]
    pods["spec"]["schedulerName"] = scheduler.scheduler
    if scheduler.name == "KAI":
        metadata["annotations"]["kai.scheduler/batch-min-member"] = str(members)
        for each in (metadata, pods["metadata"]):
            each["labels"]["kai.scheduler/queue"] = queue
        return Template(jobs.source, (Document("batch/v1", "Job", orjson.dumps(job)),))
    own = {"perfdag/gang": metadata["name"]}
    pods["metadata"] |= {"annotations": {"scheduling.k8s.io/group-name": metadata["name"]}}
    pods["metadata"]["labels"] |= own
    del pods["spec"]["restartPolicy"]
    spec = {"replicas": members, "selector": {"matchLabels": own}, "template": pods}
    replicas = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata, "spec": spec}
    group = {
        "apiVersion": scheduler.group,
        "kind": "PodGroup",
        "metadata": metadata,
        "spec": {"minMember": members, "queue": queue},
    }
    bodies = (group, replicas)
    return Template(
        jobs.source,
        tuple(Document(each["apiVersion"], each["kind"], orjson.dumps(each)) for each in bodies),
    )


@asynccontextmanager
async def own_queues(
    kube: Kube,
    scheduler: GangScheduler,
    run: str,
    share: int,
    left: list[str],
    tell: Callable[[str], None],
) -> AsyncIterator[tuple[str, str]]:
    """The two queues of a run, gone again at the end. What is said of those that are not is in `left`, and told where an error is raised or the
    end is interrupted."""
    bodies = queues(scheduler, run, share)
    resource = await kube.resource(scheduler.queue, "Queue")
    say, names = tell, [body["metadata"]["name"] for body in bodies]
    try:
        for body in bodies:
            await kube.create(body)
        yield names[-2], names[-1]
        say = left.append
    finally:
        remedy, said, there = (
            f"`perfdag scale delete --run {run}` deletes it",
            list[str](),
            names[::-1],
        )
        try:
            while there:
                if why := await _remove_queue(kube, resource, there[0]):
                    said.append(f"the queue {there[0]} is left: {why}; {remedy}")
                del there[0]
        finally:
            for text in [
                *said,
                *(
                    f"whether the queue {name} is left is not known (interrupted); {remedy}"
                    for name in there
                ),
            ]:
                (tell if there else say)(text)


async def _remove_queue(kube: Kube, resource: Any, name: str) -> str:
    """Delete a queue; Volcano's webhook refuses until it is closed, and until the scheduler has seen that it is empty. Returns why it is
    left, empty where it is not."""
    why = ""
    for _ in range(TRIES):
        try:
            await kube.delete(resource, name)
            return ""
        except KubeError as error:
            why = str(error)
        if NOT_CLOSED in why:
            with suppress(KubeError):  # the next deletion tells
                await close_queue(kube, resource, name)
        await asyncio.sleep(PAUSE)
    return why


def placed(observer: Observer, members: int) -> tuple[int, int]:
    """Gangs whose pods all have a node, and gangs of which only a part has."""
    held: dict[str, int] = {}
    for record in observer.of("Pod"):
        if "scheduled" in record.stages and "gone" not in record.stages:
            held[record.owner] = held.get(record.owner, 0) + 1
    return sum(count >= members for count in held.values()), sum(
        0 < count < members for count in held.values()
    )


def room_for(free: Sequence[int], gpus: int, members: int) -> int:
    """How many gangs of `members` pods of `gpus` each fit into nodes with so many free GPUs."""
    return sum(count // gpus for count in free) // members


async def gang(kube: Kube, spec: Spec) -> Result:
    """More gangs than fit, all at once: those that fit are placed whole, and of no other is any pod placed.

    `count` gangs of `workers` pods of `gpus` GPUs; where all would fit, as many as fit and one more. Raises NotHereError.
    """
    scheduler, free = await found(kube, "gang"), await free_gpus(kube)
    size, run = max(1, spec.gpus), begin(spec, "gang")
    fitting = room_for(list(free.values()), size, spec.workers)
    count = max(spec.count, fitting + 1)
    jobs = template_of(spec, run, name="job", gpus=size)
    left: list[str] = []
    async with own_queues(kube, scheduler, run, sum(free.values()), left, spec.tell) as (queue, _):
        template = gang_of(scheduler, jobs, spec.workers, queue)
        async with session_of(kube, spec, run, template) as session:
            await session.create(count, spec.schedule, spec.parallel)
            await session.until(
                lambda: placed(session.observer, spec.workers)[0] >= fitting, spec.timeout
            )
            await asyncio.sleep(2.0)  # what is placed wrongly now stays so
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
    """One queue takes every GPU; then another asks for its half: how long until it has it, and what was evicted.

    Raises NotHereError. The scheduler must reclaim between queues (Volcano: the action `reclaim`); if it does not, that is said.
    """
    scheduler, free = await found(kube, "reclaim"), await free_gpus(kube)
    size, run = max(1, spec.gpus), begin(spec, "reclaim")
    room = sum(count // size for count in free.values())
    half = room // 2
    jobs = template_of(spec, run, name="job", gpus=size, workers=1)
    spec.workers, left = 1, list[str]()
    async with (
        own_queues(kube, scheduler, run, half * size, left, spec.tell) as (first, second),
        session_of(kube, spec, run, gang_of(scheduler, jobs, 1, first)) as session,
    ):
        await session.create(room, Schedule(), spec.parallel)
        filled = await session.wait("Pod", room, spec.timeout, "scheduled")
        session.template = gang_of(scheduler, jobs, 1, second)
        made = await session.create(half, Schedule(), spec.parallel)
        jobs_of = {each.uid for each in made.created}

        def reclaimed() -> set[str]:
            return {
                each.owner
                for each in session.observer.of("Pod")
                if each.owner in jobs_of and "scheduled" in each.stages
            }

        await session.until(lambda: len(reclaimed()) == len(jobs_of), spec.timeout)
        seen = reclaimed()
        if not filled or len(seen) < half:
            session.notes.append(
                f"reclaim: first queue filled {filled}; {len(seen)} of {half} reclaimed {session.ended(spec.timeout)}; does {scheduler.name} reclaim?"
            )
        gone = [
            each
            for each in session.observer.of("Pod")
            if "gone" in each.stages or "evicted" in each.stages
        ]
        extra: dict[str, float | None] = {
            "reclaimed": float(len(seen)),
            "evicted": float(len(gone)),
            **waits("reclaim_wait", session, made),
        }
        # what had to go for the other queue's share cannot be placed again: a ReplicaSet's next pod waits, a Job has no other
        evicted = {each.owner for each in gone} - jobs_of
        result = await finish("reclaim", spec, session, extra, planned_misses=half, among=evicted)
    result.facts["notes"] += left
    return result
