"""Scenarios for KAI alone: consolidation, placement by topology, and a reclaim that must fail.

KAI: docs/topology, docs/developer/scheduler-concepts, and its scale tests (test/e2e/scale).
"""

import math
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import orjson

from perfdag.kube.client import Kube, KubeError
from perfdag.steps.scale.cluster.own_objects import own_objects
from perfdag.steps.scale.measure.generator import GeneratorResult
from perfdag.steps.scale.model.records import Record
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
from perfdag.steps.scale.scenarios.free_gpus import free_gpus
from perfdag.steps.scale.scenarios.gangs import (
    KAI,
    gang_of,
    own_queues,
    replica_set,
    room_for,
)
from perfdag.steps.scale.scenarios.gpus import (
    pods_of_each,
    spread,
    victims,
    wait_for_evictions,
    waits,
)
from perfdag.steps.scale.scenarios.session import Session

TOPOLOGY = "kai.scheduler/v1alpha1"
REFUSALS = 5
"""Reclaims that must fail, one after the other."""
STILL = 0.5
"""Seconds after a verdict in which a refused gang must still have no pod placed."""


async def _require_kai(kube: Kube, spec: Spec, scenario: str) -> dict[str, int]:
    """Return free GPUs by node, and set KAI as the spec's scheduler.

    Raises ScenarioUnavailableError without KAI, or if no GPU is free.
    """
    try:
        await kube.resource(KAI.queue, "Queue")
    except KubeError:
        raise ScenarioUnavailableError(
            f"{scenario} needs KAI: the cluster serves no Queues of {KAI.queue}"
        ) from None
    spec.scheduler = KAI.scheduler
    return await free_gpus(kube)


async def consolidation(kube: Kube, spec: Spec) -> Result:
    """Free half of the GPUs of every node, then request whole nodes: KAI must move running pods.

    Requests `count` pods of a whole node, at most as many as fit after moves. Clock: it starts
    when such a pod is created and stops when the watch shows its node. Raises
    ScenarioUnavailableError.
    """
    free = await _require_kai(kube, spec, "consolidation")
    largest = max(free.values())
    whole = {name for name, count in free.items() if count == largest}
    released = len(whole) * (largest // 2)
    if not (ideal := released // largest):
        raise ScenarioUnavailableError(
            "consolidation needs two free nodes of equal size with two GPUs or more"
        )
    wanted, run, left = min(spec.count, ideal), start_run(spec, "consolidation"), list[str]()
    small = template_of(spec, run, name="job", gpus=1, workers=1)
    async with (
        own_queues(kube, KAI, run, sum(free.values()), left, spec.log) as (queue, _),
        session_of(kube, spec, run, _replicas(small, queue)) as session,
    ):
        fillers = await session.create(sum(free.values()), Schedule(), spec.parallel)
        if not await _all_placed(session, fillers, 1, spec.timeout):
            session.notes.append(f"not all small pods placed {session.wait_end(spec.timeout)}")
        await _thin_out(session, fillers, whole, largest // 2, spec)
        session.template = _replicas(
            template_of(spec, run, name="job", gpus=largest, workers=1), queue
        )
        movers = await session.create(wanted, Schedule(), spec.parallel)
        staying = [item for item in fillers.created if item.name not in session.deleted]
        remaining = replace(fillers, submissions=staying)
        moved = await _all_placed(session, movers, 1, spec.timeout)
        if not (moved and await _all_placed(session, remaining, 1, spec.timeout)):
            session.notes.append(
                f"consolidation: {count_placed(session, movers, 1)} of {wanted} pods got a whole "
                f"node, and {count_placed(session, remaining, 1)} of {len(staying)} small pods "
                f"have one {session.wait_end(spec.timeout)}"
            )
        await wait_for_evictions(session, remaining)
        extra = waits("consolidation_wait", session, movers) | {
            "consolidated": float(count_placed(session, movers, 1)),
            "evicted": float(len(victims(session, remaining))),
        }
        result = await finish("consolidation", spec, session, extra)
    result.facts["notes"] += left
    return result


def _replicas(jobs: Template, queue: str) -> Template:
    """Return ReplicaSets of one pod in a queue: they replace a pod that KAI moves at once."""
    (document,) = gang_of(KAI, jobs, 1, queue).documents
    body = replica_set(orjson.loads(document.body), 1)
    return Template(jobs.source, (Document("apps/v1", "ReplicaSet", orjson.dumps(body)),))


async def _thin_out(
    session: Session, fillers: GeneratorResult, nodes: set[str], count: int, spec: Spec
) -> None:
    """Delete the workloads of `count` pods on each of the nodes."""
    surplus, deleted = [], Counter[str]()
    for item, pods in zip(fillers.created, pods_of_each(session, fillers), strict=True):
        node = next((pod.node for pod in pods if pod.node), "")
        if node in nodes and deleted[node] < count:
            deleted[node] += 1
            surplus.append(item)
    if not await session.delete(surplus, spec.parallel, spec.timeout):
        session.notes.append("consolidation: not all deleted pods are gone")


def count_placed(session: Session, batch: GeneratorResult, members: int) -> int:
    """Count the workloads of which `members` pods have a node and are still there."""
    return sum(
        sum(bool(pod.node) and "gone" not in pod.stages for pod in pods) >= members
        for pods in pods_of_each(session, batch)
    )


async def _all_placed(
    session: Session, batch: GeneratorResult, members: int, timeout: float
) -> bool:
    count = len(batch.created)
    return await session.until(lambda: count_placed(session, batch, members) == count, timeout)


async def topology(kube: Kube, spec: Spec) -> Result:
    """Create gangs that must be placed in one rack each, as many as fit, at most `count`.

    A rack is the nodes with one value of the label `rack_label`. Clock: it starts when the first
    pod of a gang is created and stops when the watch shows a node for its last pod. Raises
    ScenarioUnavailableError.
    """
    free, members = await _require_kai(kube, spec, "topology"), spec.workers
    size, label = spec.whole_gpus, spec.rack_label
    rack_of = await _racks(kube, label)
    racks = defaultdict[str, list[int]](list)
    for name, count in free.items():
        if name in rack_of:
            racks[rack_of[name]].append(count)
    fitting = sum(room_for(counts, size, members) for counts in racks.values())
    if not fitting:
        raise ScenarioUnavailableError(
            f"no gang of {members} pods fits into a rack: {len(racks)} values of the node label "
            f"{label} have free GPUs"
        )
    wanted, run, left = min(spec.count, fitting), start_run(spec, "topology"), list[str]()
    jobs = template_of(spec, run, name="job", gpus=size)
    async with (
        own_queues(kube, KAI, run, sum(free.values()), left, spec.log) as (queue, _),
        _own_topology(kube, run, label) as name,
        session_of(kube, spec, run, in_topology(jobs, members, queue, name, label)) as session,
    ):
        gangs = await session.create(wanted, Schedule(), spec.parallel)
        await _all_placed(session, gangs, members, spec.timeout)
        placed = count_placed(session, gangs, members)
        together = sum(
            len({rack_of.get(pod.node, pod.node) for pod in pods}) == 1
            for pods in pods_of_each(session, gangs)
            if sum(bool(pod.node) for pod in pods) >= members
        )
        if together < wanted:
            session.notes.append(
                f"topology: of {wanted} gangs {placed} are placed whole and {together} in one rack"
            )
        extra = waits("topology_wait", session, gangs, members) | {
            "gangs_fitting": float(fitting),
            "gangs_placed": float(placed),
            "gangs_in_one_rack": float(together),
            "success_ratio": together / wanted,
        }
        result = await finish("topology", spec, session, extra)
    result.facts["notes"] += left
    return result


async def _racks(kube: Kube, label: str) -> Mapping[str, str]:
    """Return the rack of each node that has the label."""
    nodes = await kube.list(await kube.resource("v1", "Node"), labels=label)
    return {node["metadata"]["name"]: node["metadata"]["labels"][label] for node in nodes}


@asynccontextmanager
async def _own_topology(kube: Kube, run: str, label: str) -> AsyncIterator[str]:
    """Create a Topology of one level, and delete it at the end."""
    name = f"perfdag-{run}"
    body = {
        "apiVersion": TOPOLOGY,
        "kind": "Topology",
        "metadata": {"name": name, "labels": {RUN_LABEL: run}},
        "spec": {"levels": [{"nodeLabel": label}]},
    }
    async with own_objects(kube, [body]):
        yield name


def in_topology(jobs: Template, members: int, queue: str, topology: str, label: str) -> Template:
    """Return Jobs as gangs whose pods must be in one domain of the topology's level `label`."""
    (document,) = gang_of(KAI, jobs, members, queue).documents
    body = orjson.loads(document.body)
    body["metadata"]["annotations"] |= {
        "kai.scheduler/topology": topology,
        "kai.scheduler/topology-required-placement": label,
    }
    return Template(jobs.source, (Document("batch/v1", "Job", orjson.dumps(body)),))


async def failed_reclaim(kube: Kube, spec: Spec) -> Result:
    """Fill all GPUs from one queue, then let a gang of another ask for one pod above its half.

    KAI must refuse it, and evict nothing. That is done REFUSALS times, one after the other. Clock:
    it starts when the first pod of a gang is created and stops when the watch shows that all are
    unschedulable. Raises ScenarioUnavailableError.
    """
    free, size = await _require_kai(kube, spec, "failed-reclaim"), spec.whole_gpus
    room = sum(count // size for count in free.values())
    members, run, left = room // 2 + 1, start_run(spec, "failed-reclaim"), list[str]()
    share = room // 2 * size
    fillers_of = template_of(spec, run, name="job", gpus=size, workers=1)
    gang_jobs = template_of(spec, run, name="job", gpus=size, workers=members)
    async with (
        own_queues(kube, KAI, run, share, left, spec.log) as (first, second),
        session_of(kube, spec, run, gang_of(KAI, fillers_of, 1, first)) as session,
    ):
        fillers = await session.create(room, Schedule(), spec.parallel)
        if not await session.wait("Pod", room, spec.timeout, "scheduled"):
            session.notes.append(f"not all GPUs were filled {session.wait_end(spec.timeout)}")
        session.template = gang_of(KAI, gang_jobs, members, second)
        seconds, uids = list[float](), set[str]()
        for _ in range(REFUSALS):
            gang = await session.create(1, Schedule(), 1)
            uids |= {item.uid for item in gang.created}
            seconds.append(await _refusal(session, gang, members, spec.timeout))
            await session.delete(gang.created, 1, spec.timeout)
        refused = sum(map(math.isfinite, seconds))
        if refused < REFUSALS or victims(session, fillers):
            session.notes.append(
                f"failed-reclaim: {refused} of {REFUSALS} gangs were refused, and "
                f"{len(victims(session, fillers))} pods were evicted"
            )
        extra = spread("refusal_wait", seconds) | {
            "gangs_refused": float(refused),
            "evicted": float(len(victims(session, fillers))),
        }
        result = await finish(
            "failed-reclaim", spec, session, extra, planned_misses=refused, among=uids
        )
    result.facts["notes"] += left
    return result


async def _refusal(session: Session, gang: GeneratorResult, members: int, timeout: float) -> float:
    """Return the seconds until all pods of a gang are unschedulable; infinity if one is placed."""

    def pods() -> list[Record]:
        return [pod for own in pods_of_each(session, gang) for pod in own]

    def decided() -> bool:
        unschedulable = sum("unschedulable" in pod.stages for pod in pods())
        return unschedulable >= members or any("scheduled" in pod.stages for pod in pods())

    await session.until(decided, timeout)
    await session.until(lambda: any("scheduled" in pod.stages for pod in pods()), STILL)
    begun = [times[2] for pod in pods() if (times := pod.times("created"))]
    verdicts = [times[2] for pod in pods() if (times := pod.times("unschedulable"))]
    placed = any("scheduled" in pod.stages for pod in pods())
    if placed or len(verdicts) < members or not all((*begun, *verdicts)):
        return math.inf
    return (max(verdicts) - min(begun)) / 1e9
