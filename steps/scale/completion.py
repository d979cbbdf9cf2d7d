"""When all that was asked for is there: pods of workloads, VMIs of VMs and of sets."""

from collections.abc import Iterable, Sequence

from perfdag.steps.scale.chains import without_pods
from perfdag.steps.scale.generator import Submission
from perfdag.steps.scale.observer import Observer, Record
from perfdag.steps.scale.rows import VMI


def wanted(items: Sequence[Submission], members: int | None) -> int:
    """What `reached` comes to where all of the accepted `items` are there: pods or VMIs, `members` of each; where that is not known, or
    the kind has no pods, workloads."""
    accepted = sum(1 for each in items if each.answered_ns and not each.error)
    return accepted * (members or 1)


def reached(observer: Observer, api_version: str, kind: str, members: int | None, enough: int, goal: str = "ready") -> int:
    """How many of them reached the goal (a VMI: Running) or failed, counted to `enough` at least where there are so many."""
    counts = observer.counts
    if without_pods(api_version, kind):
        return counts[kind, "created"]
    if kind.startswith("VirtualMachine"):
        return settled(observer.of(VMI), members or 1) if may_be_settled(observer, enough) else counts[VMI, "running"]
    if members is None:
        most = counts["Pod", goal] + counts["Pod", "failed"]
        return most if most < enough else whole(observer, kind, goal, "failed")
    return observer.reached("Pod", goal, "failed")


def may_be_settled(observer: Observer, enough: int) -> bool:
    """False where fewer than `enough` VMIs can be settled; cheap, and true too often, where one is counted twice."""
    return sum(observer.counts[VMI, stage] for stage in ("running", "failed", "gone")) >= enough


def whole(observer: Observer, kind: str, *stages: str) -> int:
    """Workloads of a kind that have pods, all of which (but those that were replaced) reached one of the stages."""
    records, found = observer.records, dict[str, bool]()
    for pod in observer.of("Pod"):
        there = any(stage in pod.stages for stage in stages)
        if "gone" in pod.stages and not there:
            continue
        top = pod
        while top.owner in records:
            top = records[top.owner]
        if top.kind == kind:
            found[top.uid] = found.get(top.uid, True) and there
    return sum(found.values())


def settled(vmis: Iterable[Record], replicas: int) -> int:
    """How many of the VMIs that their owners shall have (`replicas` each) ran or failed; one that failed, or of no owner and gone, counts
    only where no other stands in for it."""
    owners: dict[str, list[Record]] = {}
    for each in vmis:
        owners.setdefault(each.owner or each.uid, []).append(each)
    found = 0
    for group in owners.values():
        ran = sum("running" in each.stages for each in group)
        failed = sum("running" not in each.stages and ("failed" in each.stages or _lost(each)) for each in group)
        waiting = len(group) - ran - failed
        found += min(replicas, ran + max(0, min(failed, replicas - ran - waiting)))
    return found


def _lost(vmi: Record) -> bool:
    return "gone" in vmi.stages and not vmi.owner
