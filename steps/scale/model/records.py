"""Records of the objects of a run, and the workloads to which they belong."""

from array import array
from collections.abc import Collection, Iterator, Mapping
from typing import Any

_WORKS = frozenset(("running", "ready", "succeeded", "bound"))


class Record:
    """One object: identity, owner, node, failure message, and three times per stage.

    `error_at` is the start of the failure (Unix ns). `error_newer` means that it is newer than the
    last warning.
    """

    __slots__ = (
        "error",
        "error_at",
        "error_newer",
        "kind",
        "name",
        "namespace",
        "node",
        "owner",
        "stages",
        "times_ns",
        "uid",
    )

    def __init__(self, kind: str, uid: str, name: str, namespace: str, owner: str) -> None:
        self.kind, self.uid, self.name, self.namespace, self.owner = (
            kind,
            uid,
            name,
            namespace,
            owner,
        )
        self.node, self.error, self.error_at, self.error_newer = "", "", 0, False
        self.stages: tuple[str, ...] = ()
        self.times_ns = array("q")

    def put(self, stage: str, api_ns: int = 0, event_ns: int = 0, received_ns: int = 0) -> bool:
        """Note a stage and return whether it is new. Known times stay, unknown ones are set."""
        new = stage not in self.stages
        if new:
            self.stages = _shared((*self.stages, stage))
            self.times_ns.extend((api_ns, event_ns, received_ns))
        else:
            at = self.stages.index(stage) * 3
            self.times_ns[at] = self.times_ns[at] or api_ns
            self.times_ns[at + 1] = self.times_ns[at + 1] or event_ns
        return new

    def times(self, stage: str) -> tuple[int, int, int] | None:
        """Return API time and Event time (Unix ns) and receive time (monotonic ns), 0 if unknown.

        None means that the stage was not seen.
        """
        if stage not in self.stages:
            return None
        at = self.stages.index(stage) * 3
        return self.times_ns[at], self.times_ns[at + 1], self.times_ns[at + 2]

    @property
    def recovered(self) -> bool:
        """Whether the object works after all, so that its warnings were of retries."""
        return "failed" not in self.stages and not _WORKS.isdisjoint(self.stages)

    def dump(self) -> list[Any]:
        """Return the record for the state file."""
        status = self.node, self.error, self.error_at, self.error_newer
        return [
            self.kind,
            self.uid,
            self.name,
            self.namespace,
            self.owner,
            *status,
            self.stages,
            list(self.times_ns),
        ]

    @classmethod
    def read(cls, raw: list[Any], forget_receive: int = 0) -> "Record":
        """Read a record from the state file and shift its receive times by `forget_receive`."""
        record = cls(*raw[:5])
        record.node, record.error, record.error_at, record.error_newer = raw[5:9]
        record.stages = _shared(tuple(raw[9]))
        times = [t + forget_receive if i % 3 == 2 and t else t for i, t in enumerate(raw[10])]
        record.times_ns = array("q", times)
        return record


_STAGE_TUPLES: dict[tuple[str, ...], tuple[str, ...]] = {}


def _shared(stages: tuple[str, ...]) -> tuple[str, ...]:
    """Return one tuple for equal stages, because objects of a kind share them."""
    return _STAGE_TUPLES.setdefault(stages, stages)


def top_owner(records: Mapping[str, Record], record: Record) -> Record:
    """Return the owner at the top of a record's chain of owners, or the record itself."""
    while record.owner in records:
        record = records[record.owner]
    return record


def remaining(
    records: Mapping[str, Record], names: Collection[tuple[str, str, str]]
) -> Iterator[Record]:
    """Yield existing records whose top owner has one of these kinds, namespaces and names."""
    for record in records.values():
        if "gone" not in record.stages:
            top = top_owner(records, record)
            if (top.kind, top.namespace, top.name) in names:
                yield record
