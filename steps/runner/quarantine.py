"""Quarantine for points that crash their pods.

A retry measures a suspect last; after two crashes it is recorded as failed and skipped. When memory
ends, the kernel may kill the whole container, and no process in it can tell what it measured. So
the lead keeps the point in the termination message of its container, which survives the process.
The next attempt's lead reads the message from the pods, and copies it to the store before pods are
deleted.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from perfdag import signals
from perfdag.benchmark import registry
from perfdag.kube.client import Kube, Object
from perfdag.kube.labels import ATTEMPT
from perfdag.kube.pods import pod_trouble, selector
from perfdag.plan.order import concurrent_groups
from perfdag.plan.plan import Plan
from perfdag.results import missing_reason
from perfdag.results.samples import SampleRecord, now, sample_key, stored_samples
from perfdag.steps.runner.pod_context import PodContext
from perfdag.store.base import Store

CRASHES = 2
"""Gangs that a point may crash; of two variants side by side both together."""
_KILLED = ("OOMKilled", "Evicted", "main ended with exit code 137")
"""Ends that a sample may have caused: not Argo's, not a deletion, not an exit of its own."""

CrashHistory = Mapping[str, Sequence[str]]
"""By the id of a point: how each gang ended that measured it."""


def killed(pods: Iterable[Object]) -> tuple[list[str], str] | None:
    """Return the points that one gang measured when some of its pods were killed, and how.

    None where no pod was killed, or none was measuring. A deleted pod does not count: Argo's
    executor kills what does not end at once, and the pod stays until Argo removes its finalizer.
    """
    gang = list(pods)
    present = [pod for pod in gang if not pod["metadata"].get("deletionTimestamp")]
    troubles = (pod_trouble(pod)[0] for pod in present)
    how = next((trouble for trouble in troubles if trouble and trouble.startswith(_KILLED)), None)
    statuses = [
        status
        for pod in gang
        for status in (pod.get("status") or {}).get("containerStatuses") or []
    ]
    ends = [status.get("state", {}).get("terminated") or {} for status in statuses]
    points = missing_reason.from_termination_messages(end.get("message") or "" for end in ends)
    return (points, how) if how and points else None


def known_crashes(context: PodContext, store: Store, number: int, attempt: int) -> CrashHistory:
    """Return the crashes of earlier attempts at a batch, and store those that are new.

    Raises StoreError, KubeError.
    """
    if not attempt:
        return {}

    async def list_pods() -> list[Object]:
        async with Kube() as kube:
            labels = selector(context.run_id, context.workflow, number)
            return await kube.list(
                await kube.resource("v1", "Pod"), context.namespace, labels=labels
            )

    gangs: dict[str, list[Object]] = {}
    for pod in signals.run(list_pods()):
        gangs.setdefault(pod["metadata"]["labels"][ATTEMPT], []).append(pod)
    batch = f"{context.workflow_uid}-b{number}"
    for earlier, pods in gangs.items():
        if earlier != str(attempt) and (crash := killed(pods)):
            missing_reason.write_crash(store, context.run_id, batch, earlier, *crash)
    return missing_reason.stored_crashes(store, context.run_id, batch)


def suspects_last(
    plan: Plan,
    samples: Sequence[int],
    unmeasured: Collection[int],
    attempt: int,
    crashes: CrashHistory,
) -> list[int]:
    """Return the samples of a batch in the order to measure them: those that may crash come last.

    All repetitions of a point go together. A retry without a crash history (the pods were deleted)
    suspects the points of the first group that is left.
    """

    def points_of(group: Collection[int]) -> set[str]:
        return {plan.point_at(position).id for position in group}

    groups = concurrent_groups(plan.points, plan.order, samples)
    suspects = set[str]()
    if attempt and not crashes:
        unfinished = (group for group in groups if not set(unmeasured).isdisjoint(group))
        suspects = next((points_of(group) for group in unfinished), suspects)

    def suspicion(group: Collection[int]) -> int:
        return max(len(crashes.get(id, ())) + (id in suspects) for id in points_of(group))

    groups.sort(key=suspicion)
    return [position for group in groups for position in group]


def skip_crashers(
    context: PodContext, store: Store, plan: Plan, index: int, crashes: CrashHistory
) -> dict[int, SampleRecord]:
    """Store the samples of points with CRASHES crashes as failed; return them by position.

    `index` is the batch's place in the plan. Raises StoreError.
    """
    stored, skipped = stored_samples(store, plan.run_id), dict[int, SampleRecord]()
    for position in plan.batches[index].samples:
        point_index, repetition = plan.order[position]
        point = plan.points[point_index]
        ends = crashes.get(point.id, ())
        if len(ends) < CRASHES or plan.key(position) in stored:
            continue
        moment, how = now(), " ".join(ends[-1].split())
        record = SampleRecord(
            point.id,
            repetition,
            "failed",
            error=(
                f"{len(ends)} gangs ended while this point was measured, "
                f"so it is measured no more: {how}"
            ),
            started_at=moment,
            finished_at=moment,
            benchmark_version=str(registry.get(point.benchmark).version),
            batch=index,
            order_index=position,
            attempt=len(ends),
            where=context.where,
        )
        store.put(sample_key(plan.run_id, plan.key(position)), record.dump())
        skipped[position] = record
    return skipped
