"""When all that was asked for is there: pods of workloads, VMIs of VMs and of sets."""

from collections.abc import Iterable, Sequence

from perfdag.steps.scale.chains import chain, without_pods
from perfdag.steps.scale.generator import Submission
from perfdag.steps.scale.observer import ENDED, Observer
from perfdag.steps.scale.records import Record
from perfdag.steps.scale.rows import VMI


def wanted(items: Sequence[Submission], members: int | None) -> int:
    """What `reached` comes to where all of the accepted `items` are there: pods or VMIs, `members` of each; where that is not known, or
    the kind has no pods, workloads."""
    accepted = sum(1 for each in items if each.answered_ns and not each.error)
    return accepted * (members or 1)


def reached(
    observer: Observer,
    api_version: str,
    kind: str,
    members: int | None,
    enough: int,
    goal: str = "ready",
) -> int:
    """How many of them reached the goal (a VMI: Running) or failed, counted to `enough` at least where there are so many."""
    counts = observer.counts
    if without_pods(api_version, kind):
        return counts[kind, "created"]
    if kind.startswith("VirtualMachine"):
        return (
            settled(observer.of(VMI), members or 1)
            if may_be_settled(observer, enough)
            else counts[VMI, "running"]
        )
    if members is None:
        most = counts["Pod", goal] + counts["Pod", "failed"]
        return most if most < enough else whole(observer, kind, goal, "failed")
    most = observer.over("Pod", goal) + counts[kind, "failed"] * members
    return (
        counts["Pod", goal]
        if most < enough
        else _of_workloads(observer, api_version, kind, members, goal)
    )


def _of_workloads(observer: Observer, api_version: str, kind: str, members: int, goal: str) -> int:
    """Pods that reached the goal or failed for good, `members` of a workload at most."""
    finite = any(
        step.kind == kind and step.stage == "succeeded" for step in chain(api_version, kind)
    )
    pods: dict[str, list[Record]] = {}
    for pod in observer.of("Pod"):
        pods.setdefault(_top(observer, pod).uid, []).append(pod)
    found = 0
    for workload in observer.of(kind):
        failed = finite and "failed" in workload.stages
        found += members if failed else _settled(pods.get(workload.uid, ()), members, goal, finite)
    return found


def _top(observer: Observer, record: Record) -> Record:
    while record.owner in observer.records:
        record = observer.records[record.owner]
    return record


def may_be_settled(observer: Observer, enough: int) -> bool:
    """False where fewer than `enough` VMIs can be settled; cheap, and true too often, where one was replaced."""
    return observer.over(VMI, "running") >= enough


def whole(observer: Observer, kind: str, *stages: str) -> int:
    """Workloads of a kind that have pods, all of which (but those that were replaced) reached one of the stages."""
    found = dict[str, bool]()
    for pod in observer.of("Pod"):
        there = any(stage in pod.stages for stage in stages)
        if "gone" in pod.stages and not there:
            continue
        top = _top(observer, pod)
        if top.kind == kind:
            found[top.uid] = found.get(top.uid, True) and there
    return sum(found.values())


def settled(vmis: Iterable[Record], replicas: int) -> int:
    """How many of the VMIs that their owners shall have (`replicas` each) ran or failed; one that ended, or of no owner and gone, counts
    only where no other stands in for it."""
    owners: dict[str, list[Record]] = {}
    for each in vmis:
        owners.setdefault(each.owner or each.uid, []).append(each)
    return sum(_settled(group, replicas, "running", finite=False) for group in owners.values())


def _settled(group: Iterable[Record], members: int, goal: str, finite: bool) -> int:
    """How many of the `members` of one workload reached the goal or failed. One that ended counts where no other stands in for it. A `finite`
    workload says itself when it failed: until then one that failed is tried again; and one that succeeded has no successor."""
    there = ended = waiting = 0
    for each in group:
        lost = any(stage in each.stages for stage in ENDED)
        if (finite and "succeeded" in each.stages) or (goal in each.stages and not lost):
            there += 1
        elif not lost:
            waiting += 1
        elif (
            goal in each.stages
            or "succeeded" in each.stages
            or not each.owner
            or ("failed" in each.stages and not finite)
        ):
            ended += 1
    return min(members, there + max(0, min(ended, members - there - waiting)))
