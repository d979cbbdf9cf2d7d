"""The records of a run: membership of objects, their stages, and the state file."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import orjson

from perfdag.steps.scale.model.records import Record

END_STAGES = ("succeeded", "failed", "gone")
"""Stages after which a pod or VMI no longer runs."""


class RecordStore:
    """Records of a run by UID, with counts per kind and stage.

    An object whose owner is not known yet is a stray. It joins the run when its owner does.
    """

    def __init__(self, run: str) -> None:
        self.run = run
        self.records: dict[str, Record] = {}
        self.strays: dict[str, Record] = {}
        self.counts: Counter[tuple[str, str]] = Counter()
        self.messages: dict[str, str] = {}
        """The last warning of an Event by object UID."""
        self.versions: dict[str, str] = {}
        """The resource version of the last change taken, by kind."""
        self.warned_at: dict[str, int] = {}
        self.pending_events: dict[str, set[tuple[str, int]]] = {}
        """Stages from Events that the object was not seen at yet, by UID."""
        self.pod_uids: dict[tuple[str, str], str] = {}
        """UID of the newest pod by namespace and name."""
        self._ends, self._after_end = Counter[str](), Counter[tuple[str, str]]()
        self._owned_by: dict[str, list[Record]] = {}

    def find(self, uid: str) -> Record | None:
        """Return the record of a UID, strays included."""
        return self.records.get(uid) or self.strays.get(uid)

    def adopt(self, record: Record) -> None:
        """Add a record and its strays: watches of different kinds are not ordered."""
        todo = [record]
        while todo:
            adopted = todo.pop()
            self.strays.pop(adopted.uid, None)
            self.records[adopted.uid] = adopted
            if adopted.kind == "Pod":
                self.pod_uids[adopted.namespace, adopted.name] = adopted.uid
            for at, stage in enumerate(adopted.stages):
                self._count(adopted.kind, stage, adopted.stages[:at])
            todo += self._owned_by.pop(adopted.uid, ())

    def add_stray(self, record: Record) -> None:
        self.strays[record.uid] = record
        self._owned_by.setdefault(record.owner, []).append(record)

    def of(self, kind: str) -> Iterator[Record]:
        """Return the records of a kind."""
        return (record for record in self.records.values() if record.kind == kind)

    def reached(self, kind: str, *stages: str) -> int:
        """Count the objects of a kind that reached one of the stages."""
        if len(stages) == 1:
            return self.counts[kind, stages[0]]
        return sum(any(stage in record.stages for stage in stages) for record in self.of(kind))

    def reached_or_ended(self, kind: str, goal: str) -> int:
        """Count the objects of a kind that reached the goal or ended, in constant time."""
        return self.counts[kind, goal] + self._ends[kind] - self._after_end[kind, goal]

    def _count(self, kind: str, stage: str, before: Sequence[str]) -> None:
        self.counts[kind, stage] += 1
        if any(earlier in END_STAGES for earlier in before):
            self._after_end[kind, stage] += 1
        elif stage in END_STAGES:
            self._ends[kind] += 1
            self._after_end.update((kind, reached) for reached in (*before, stage))

    @property
    def reasons(self) -> Counter[str]:
        """The last warnings of Events: kind and text -> number of objects that did not recover."""
        return Counter(
            f"{self.records[uid].kind} {text}"
            for uid, text in self.messages.items()
            if uid in self.records and not self.records[uid].recovered
        )

    def note(self, record: Record, stage: str, api: int, at: int, received: int) -> bool:
        """Note a stage of a record. Return whether a record of the run reached a new stage."""
        if not record.put(stage, api, at, received) or record.uid not in self.records:
            return False
        self._count(record.kind, stage, record.stages[:-1])
        return True

    def warn(self, uid: str, record: Record | None, text: str, at: int) -> None:
        """Keep the newest warning of an object. `at` is the Event's time, or 0 if unknown."""
        before, own = self.warned_at.get(uid, 0), record.error_at if record else 0
        if self.messages.get(uid) == text and (not at or at <= before):
            return  # it is listed again
        at = at or max(before, own)
        if at >= before:
            self.messages[uid], self.warned_at[uid] = text, at
            if record:
                record.error_newer = own > at

    def save(self, path: Path) -> None:
        """Write the state, so that another process can go on from it (atomically)."""
        known = self.records.keys() | self.strays.keys()
        since = min(
            (
                times[0]
                for record in self.records.values()
                if (times := record.times("created")) and times[0]
            ),
            default=0,
        )
        early = {
            uid: [list(event) for event in sorted(stages) if not event[1] or event[1] >= since]
            for uid, stages in self.pending_events.items()
        }
        mark = {
            "run": self.run,
            "versions": self.versions,
            "wall_minus_monotonic_ns": time.time_ns() - time.monotonic_ns(),
            "messages": {
                uid: text for uid, text in self.messages.items() if uid in known
            },  # the API server forgets Events in an hour
            "warned_at": {uid: at for uid, at in self.warned_at.items() if uid in known},
            "events": {
                uid: stages for uid, stages in early.items() if stages
            },  # what was before the run is of others
        }
        ours, strays = self.records.values(), self.strays.values()
        lines = [
            orjson.dumps(mark),
            *(orjson.dumps([record.dump(), True]) for record in ours),
            *(orjson.dumps([record.dump(), False]) for record in strays),
        ]
        new = path.with_suffix(".new")
        new.write_bytes(b"\n".join(lines) + b"\n")
        new.replace(path)

    def restore(self, path: Path) -> None:
        """Load the state of an earlier observer of the same run, before the watches start.

        Raises ValueError for another run's state, and parse errors of the file.
        """
        with path.open("rb") as lines:
            mark = orjson.loads(next(lines))
            if mark["run"] != self.run:
                raise ValueError(f"it is the state of run {mark['run']}, not {self.run}")
            shift = mark["wall_minus_monotonic_ns"] - (time.time_ns() - time.monotonic_ns())
            for line in lines:
                raw, ours = orjson.loads(line)
                (self.adopt if ours else self.add_stray)(Record.read(raw, shift))
        self.versions, self.messages, self.warned_at = (
            mark["versions"],
            mark["messages"],
            mark["warned_at"],
        )
        self.pending_events = {
            uid: {(stage, at) for stage, at in stages} for uid, stages in mark["events"].items()
        }
