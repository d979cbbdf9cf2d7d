"""Decide whether all expected pods and VMIs have reached their goal."""

from collections.abc import Iterable, Sequence

from perfdag.steps.scale.measure.generator import Submission
from perfdag.steps.scale.measure.observer import Observer
from perfdag.steps.scale.measure.record_store import END_STAGES
from perfdag.steps.scale.model.chains import chain, has_no_pods
from perfdag.steps.scale.model.records import Record, top_owner
from perfdag.steps.scale.model.stages import VMI


def expected_count(items: Sequence[Submission], members: int | None) -> int:
    """Return the value of `reached` when all accepted `items` are complete.

    It counts pods or VMIs, or workloads if `members` is unknown or the kind has no pods.
    """
    accepted = sum(1 for item in items if item.answered_ns and not item.error)
    return accepted * (members or 1)


def reached(
    observer: Observer,
    api_version: str,
    kind: str,
    members: int | None,
    enough: int,
    goal: str = "ready",
) -> int:
    """Count what reached the goal or failed. The count is exact up to `enough`."""
    counts = observer.counts
    if has_no_pods(api_version, kind):
        return counts[kind, "created"]
    if kind.startswith("VirtualMachine"):
        return (
            settled(observer.of(VMI), members or 1)
            if may_be_settled(observer, enough)
            else counts[VMI, "running"]
        )
    if members is None:
        most = counts["Pod", goal] + counts["Pod", "failed"]
        return (
            most
            if most < enough
            else sum(complete_workloads(observer, kind, goal, "failed").values())
        )
    most = observer.reached_or_ended("Pod", goal) + counts[kind, "failed"] * members
    return (
        counts["Pod", goal]
        if most < enough
        else count_in_workloads(observer, api_version, kind, members, goal)
    )


def count_in_workloads(
    observer: Observer, api_version: str, kind: str, members: int, goal: str
) -> int:
    """Pods that reached the goal or failed for good, `members` of a workload at most."""
    finite = any(
        step.kind == kind and step.stage == "succeeded" for step in chain(api_version, kind)
    )
    pods: dict[str, list[Record]] = {}
    for pod in observer.of("Pod"):
        pods.setdefault(top_owner(observer.records, pod).uid, []).append(pod)
    count = 0
    for workload in observer.of(kind):
        failed = finite and "failed" in workload.stages
        count += members if failed else _settled(pods.get(workload.uid, ()), members, goal, finite)
    return count


def may_be_settled(observer: Observer, enough: int) -> bool:
    """Return False if fewer than `enough` VMIs can be settled. Fast, with false positives."""
    return observer.reached_or_ended(VMI, "running") >= enough


def complete_workloads(observer: Observer, kind: str, *stages: str) -> dict[str, bool]:
    """Return whether the pods of workloads, except replaced ones, all reached one of the stages."""
    complete = dict[str, bool]()
    for pod in observer.of("Pod"):
        has_stage = any(stage in pod.stages for stage in stages)
        if "gone" in pod.stages and not has_stage:
            continue
        top = top_owner(observer.records, pod)
        if top.kind == kind:
            complete[top.uid] = complete.get(top.uid, True) and has_stage
    return complete


def settled(vmis: Iterable[Record], replicas: int) -> int:
    """Count the expected VMIs (`replicas` per owner) that ran or failed.

    A VMI that ended counts only if no other one replaces it.
    """
    owners: dict[str, list[Record]] = {}
    for vmi in vmis:
        owners.setdefault(vmi.owner or vmi.uid, []).append(vmi)
    return sum(_settled(group, replicas, "running", finite=False) for group in owners.values())


def _settled(group: Iterable[Record], members: int, goal: str, finite: bool) -> int:
    """Count the `members` of one workload that reached the goal or failed.

    A pod that ended counts only if no other one replaces it. A `finite` workload reports its own
    failure and retries failed pods until then.
    """
    running = finished = waiting = 0
    for record in group:
        lost = any(stage in record.stages for stage in END_STAGES)
        if (finite and "succeeded" in record.stages) or (goal in record.stages and not lost):
            running += 1
        elif not lost:
            waiting += 1
        elif (
            goal in record.stages
            or "succeeded" in record.stages
            or not record.owner
            or ("failed" in record.stages and not finite)
        ):
            finished += 1
    return min(members, running + max(0, min(finished, members - running - waiting)))
