"""Records by owner, and the members that were not replaced."""

from collections import defaultdict
from collections.abc import Mapping

from perfdag.steps.scale.model.records import Record


class Family:
    """Records by owner: finds everything below a workload by UID."""

    def __init__(self, records: Mapping[str, Record]) -> None:
        self._records = records
        self._children: dict[str, list[Record]] = defaultdict(list)
        for record in records.values():
            if record.owner:
                self._children[record.owner].append(record)

    def below(self, uid: str) -> dict[str, list[Record]]:
        """Return the object of that UID and all that it owns, by kind."""
        by_kind: dict[str, list[Record]] = defaultdict(list)
        todo = [self._records[uid]] if uid in self._records else []
        while todo:
            record = todo.pop()
            by_kind[record.kind].append(record)
            todo += self._children.get(record.uid, ())
        return by_kind


def without_replaced_vmis(vmis: list[Record]) -> list[Record]:
    """Return the VMIs without those that ended before they ran and were replaced."""
    return [
        vmi for vmi in vmis if "running" in vmi.stages or not {"failed", "gone"} & set(vmi.stages)
    ] or vmis


def without_replaced_pods(pods: list[Record], stage: str, expected: int | None) -> list[Record]:
    """Return the pods without those that ended before the stage and were replaced."""
    # Without an expected number, replacements of failed pods are unknown.
    end_stages = {"gone"} if expected is None else {"gone", "failed"}
    others = [pod for pod in pods if stage in pod.stages or not end_stages & set(pod.stages)]
    return others if len(others) >= (expected or 1) else pods
