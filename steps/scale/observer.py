"""Watches the objects of a run, one watch a kind, and keeps when each reached each stage.

Three times a stage: the API's own (the server's clock, mostly whole seconds), the event's (microseconds, where an Event tells of it)
and the receive time here (time.monotonic_ns()). A stage told by a list was not seen to happen and has no receive time. Objects
are joined by owner UID, never by name.
"""

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from perfdag.kube import Event, Kube, KubeError, Resource
from perfdag.steps.scale import tasks
from perfdag.steps.scale.records import Record
from perfdag.steps.scale.stages import Extractor, extractor, failure, last_seen, owner_of, unix_ns
from perfdag.steps.scale.templates import RUN_LABEL

Kind = tuple[str, str]
ENDED = ("succeeded", "failed", "gone")
"""Stages after which a pod or VMI runs no more."""
REPLAY = 2.0
"""Seconds a resumed watch may take to tell what happened meanwhile; the list has told how things stand now."""
PATIENCE = 300.0
"""Seconds that a watch may find no API server: one that is restarted at the knee is what a run is there to see."""
_EVENT_STAGES = {
    "Scheduled": "scheduled",
    "Preempted": "evicted",
    "Evict": "evicted",
    "Evicted": "evicted",
    "ExternalProvisioning": "requested",
    "Provisioning": "requested",
    "ProvisioningSucceeded": "provisioned",
}


class Observer:
    """Records of a run. Use as an async context manager; `records` is by UID.

    `kinds` are watched in `namespaces` (one watch a kind; over several namespaces it is cluster-wide and filtered here). Kinds the
    cluster does not have are in `absent`. `primary` kinds carry the run's label and are filtered by the server. An object is the
    run's where it has the label, is of the kind and begins with the name of `named`, or is owned by one that is; others in the
    same namespaces are neither kept nor counted.
    """

    def __init__(
        self,
        kube: Kube,
        run: str,
        kinds: Iterable[Kind],
        namespaces: Sequence[str],
        *,
        primary: Iterable[str] = (),
        named: tuple[str, str] | None = None,
        events: bool = True,
    ) -> None:
        self.kube, self.run, self._named = kube, run, named
        self.kinds, self.namespaces, self.primary = (
            list(dict.fromkeys(kinds)),
            list(namespaces),
            set(primary),
        )
        self.records: dict[str, Record] = {}
        self.counts: Counter[tuple[str, str]] = Counter()
        self._ended, self._ended_after = Counter[str](), Counter[tuple[str, str]]()
        self.messages: dict[str, str] = {}
        self._warned_at: dict[str, int] = {}
        self._strays: dict[str, Record] = {}
        self._owned_by: dict[str, list[Record]] = {}
        self.absent: list[str] = []
        self.failed: list[KubeError] = []
        self._events, self._versions, self._caught_up = events, dict[str, str](), dict[str, int]()
        self._newest: dict[str, int] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._pending_events: dict[str, set[tuple[str, int]]] = {}
        self._others = set[str]()
        self.on_stage: Callable[[Record, str, int], None] | None = None

    async def __aenter__(self) -> "Observer":
        resources = []
        for api_version, kind in self.kinds:
            try:
                resources.append(await self.kube.resource(api_version, kind))
            except KubeError as error:
                if error.status != 404:
                    raise
                self.absent.append(f"{kind}.{api_version}")
        there = {resource.kind for resource in resources}
        self.absent = [
            each for each in self.absent if each.partition(".")[0] not in there
        ]  # PodGroups have four homes
        if self._events:
            resources.append(await self.kube.resource("v1", "Event"))
        restored = set(self.records) | set(self._strays)
        gc.freeze()  # what was imported is not searched again: a full collection would hold the watches up for tens of ms
        there_now: set[str] = set()
        for resource in resources:
            there_now |= await self._start(resource)
        lost = [
            self.records[uid]
            for uid in restored - there_now
            if uid in self.records and self.records[uid].kind in there
        ]
        with suppress(KubeError):  # of a broken watch: who waits for something is told
            await self.until(
                lambda: self._replayed() and all("gone" in each.stages for each in lost), REPLAY
            )
        for record in lost:  # deleted while nobody looked, too long ago for the watch to tell
            self._note(record, "gone", 0, 0, 0)
        return self

    def _replayed(self) -> bool:
        """A resumed watch has told of the newest change that the list shows."""
        return all(int(self._versions[kind]) >= at for kind, at in self._newest.items())

    async def __aexit__(self, *_: object) -> None:
        await tasks.end(self._tasks)
        gc.unfreeze()

    async def _start(self, resource: Resource) -> set[str]:
        """List what is there, then watch in a task, so that nothing created from now on is missed; returns the UIDs.

        A resumed watch replays what happened in between as well: stages that an object's state no longer shows. Raises KubeError.
        """
        namespace = self.namespaces[0] if len(self.namespaces) == 1 else None
        labels = f"{RUN_LABEL}={self.run}" if resource.kind in self.primary else ""
        version = self._versions.get(resource.kind)
        latest, newest, known = "", 0, dict[str, tuple[str, str]]()
        read = extractor(resource.api_version, resource.kind)
        async for items, at in self.kube.pages(resource, namespace, labels=labels):
            latest = latest or at
            now = time.monotonic_ns()
            for item in items:
                metadata = item["metadata"]
                if namespace or metadata.get("namespace") in self.namespaces:
                    newest = max(newest, int(metadata["resourceVersion"]))
                    known[metadata["uid"]] = (metadata.get("namespace", ""), metadata["name"])
                    self._listed(resource, read, Event("ADDED", item, now, listed=True))
        self._caught_up[resource.kind] = int(latest or 0)
        known = {} if resource.kind == "Event" else known
        if version is not None and known:
            self._newest[resource.kind] = newest
        self._tasks.append(
            asyncio.create_task(self._follow(resource, namespace, labels, version or latest, known))
        )
        return set(known)

    async def _follow(
        self,
        resource: Resource,
        namespace: str | None,
        labels: str,
        version: str,
        known: Mapping[str, tuple[str, str]],
    ) -> None:
        wanted, read = set(self.namespaces), extractor(resource.api_version, resource.kind)
        kind, caught_up, metadata = resource.kind, self._caught_up[resource.kind], dict[str, Any]()
        try:
            changes = self.kube.watch(
                resource,
                namespace,
                labels=labels,
                resource_version=version,
                known=known,
                patience=PATIENCE,
            )
            async for event in changes:
                metadata = event.object["metadata"]
                if at := metadata.get("resourceVersion"):
                    if not event.listed:
                        self._versions[kind] = at
                    if int(at) <= caught_up:
                        event.listed = True  # it happened before we looked, so the moment it arrived says nothing
                if event.type != "BOOKMARK" and (namespace or metadata.get("namespace") in wanted):
                    self._take(kind, read, event)
        except KubeError as error:
            self._broken(error)
        except Exception as error:  # who waits is told, and what was seen is kept
            self._broken(_unreadable(resource, metadata, error))
        except asyncio.CancelledError:
            self.failed.append(
                KubeError(0, "Stopped", "the watch was stopped")
            )  # nobody waits for what it cannot tell any more
            raise

    def _broken(self, error: KubeError) -> None:
        self.failed.append(error)
        self._changed.set()

    def _listed(self, resource: Resource, read: Extractor, event: Event) -> None:
        try:
            self._take(resource.kind, read, event)
        except Exception as error:
            raise _unreadable(resource, event.object["metadata"], error) from error

    def _take(self, kind: str, read: Extractor, event: Event) -> None:
        body, received = event.object, 0 if event.listed else event.received_ns
        if kind == "Event":
            self._take_event(body, received)
            return
        metadata = body["metadata"]
        record = self.records.get(metadata["uid"]) or self._strays.get(metadata["uid"])
        if record is None:
            record = None if event.type == "DELETED" and event.listed else self._new(kind, metadata)
            if record is None:
                self._pending_events.pop(metadata["uid"], None)
                (self._others.discard if event.type == "DELETED" else self._others.add)(
                    metadata["uid"]
                )
                return
            self._others.discard(record.uid)
            for stage, at in sorted(self._pending_events.pop(record.uid, ())):
                self._note(record, stage, 0, at, 0)
        if "spec" in body and kind == "Pod":
            record.node = body["spec"].get("nodeName", "") or record.node
        elif kind == "VirtualMachineInstance":
            record.node = (body.get("status") or {}).get("nodeName", "") or record.node
        for stage, api, fresh in (
            read(body) if "status" in body or "creationTimestamp" in metadata else ()
        ):
            self._note(record, stage, api, 0, received if fresh else 0)
        (told, since), over = failure(body), event.type == "DELETED" or "failed" in record.stages
        if told != record.error and (
            told or not over
        ):  # while it lives, what it said before has been mended
            warned = self._warned_at.get(record.uid, 0)
            # what is seen to change is the newest; a list gives objects first and Events after them, whatever was first
            record.error_at = since if event.listed and since else max(since, warned)
            record.error, record.error_newer = told, bool(told) and record.error_at >= warned
        if event.type == "DELETED":
            self._note(record, "gone", 0, 0, received)

    def _new(self, kind: str, metadata: dict[str, Any]) -> Record | None:
        """A record of an object not seen before: the run's own, or one whose owner may turn out to be; None for anybody else's."""
        label = (metadata.get("labels") or {}).get(RUN_LABEL)
        if label not in (None, self.run):
            return None
        record = Record(
            kind,
            metadata["uid"],
            metadata["name"],
            metadata.get("namespace", ""),
            owner_of(metadata),
        )
        named = self._named and kind == self._named[0] and record.name.startswith(self._named[1])
        if label or named or record.owner in self.records:
            self._adopt(record)
        elif record.owner:
            self._stray(record)
        else:
            return None
        return record

    def _stray(self, record: Record) -> None:
        self._strays[record.uid] = record
        self._owned_by.setdefault(record.owner, []).append(record)

    def _adopt(self, record: Record) -> None:
        """Make it, and what it owns, the run's: the watches of different kinds do not wait for each other."""
        todo = [record]
        while todo:
            each = todo.pop()
            self._strays.pop(each.uid, None)
            self.records[each.uid] = each
            for at, stage in enumerate(each.stages):
                self._count(each.kind, stage, each.stages[:at])
            todo += self._owned_by.pop(each.uid, ())

    def reached(self, kind: str, *stages: str) -> int:
        """How many objects of a kind reached one of the stages."""
        if len(stages) == 1:
            return self.counts[kind, stages[0]]
        return sum(any(stage in each.stages for stage in stages) for each in self.of(kind))

    def _count(self, kind: str, stage: str, before: Sequence[str]) -> None:
        self.counts[kind, stage] += 1
        if any(each in ENDED for each in before):
            self._ended_after[kind, stage] += 1
        elif stage in ENDED:
            self._ended[kind] += 1
            self._ended_after.update((kind, each) for each in (*before, stage))

    def over(self, kind: str, goal: str) -> int:
        """How many objects of a kind reached the goal or ended, each once. Costs no look at them."""
        return self.counts[kind, goal] + self._ended[kind] - self._ended_after[kind, goal]

    @property
    def reasons(self) -> Counter[str]:
        """What Events warned of the run's objects last: kind and text -> how many objects."""
        return Counter(
            f"{self.records[uid].kind} {text}"
            for uid, text in self.messages.items()
            if uid in self.records
        )

    def _note(self, record: Record, stage: str, api: int, at: int, received: int) -> None:
        if record.put(stage, api, at, received) and record.uid in self.records:
            self._count(record.kind, stage, record.stages[:-1])
            if self.on_stage:
                self.on_stage(record, stage, received)
            self._changed.set()

    def _take_event(self, body: dict[str, Any], received: int) -> None:
        about = body.get("involvedObject") or {}
        uid, reason = about.get("uid", ""), body.get("reason", "")
        at = unix_ns(body.get("eventTime") or body.get("firstTimestamp"))
        stage = _EVENT_STAGES.get(reason)
        record = self.records.get(uid) or self._strays.get(uid)
        if stage and record:
            self._note(record, stage, 0, at, received)
        elif stage and uid and uid not in self._others:
            self._pending_events.setdefault(uid, set()).add((stage, at))
        if body.get("type") == "Warning" and uid and uid not in self._others:
            self._warn(
                uid,
                record,
                " ".join(f"{reason}: {body.get('message', '')}".split())[:500],
                last_seen(body),
            )

    def _warn(self, uid: str, record: Record | None, text: str, at: int) -> None:
        """Keep the newest warning of an object, by the Event's time (0: it has none, and is as new as anything)."""
        before, own = self._warned_at.get(uid, 0), record.error_at if record else 0
        if self.messages.get(uid) == text and (not at or at <= before):
            return  # it is listed again
        at = at or max(before, own)
        if at >= before:
            self.messages[uid], self._warned_at[uid] = text, at
            if record:
                record.error_newer = own > at

    async def until(self, done: Callable[[], bool], timeout: float) -> bool:
        """Wait until `done()` holds, asked after changes; false after `timeout` seconds. Raises the KubeError of a broken watch."""
        deadline = time.monotonic() + timeout
        while not (found := _timed(done))[0]:
            if self.failed:
                raise self.failed[0]
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), min(left, 0.5))
            # changes come in crowds, and one look at each crowd is enough; what a look costs goes off the times that are received
            await asyncio.sleep(min(max(0.02, found[1]), max(0.0, left)))
        return True

    def of(self, kind: str) -> Iterator[Record]:
        """Records of a kind."""
        return (record for record in self.records.values() if record.kind == kind)

    def save(self, path: Path) -> None:
        """Write the state, so that another process can go on from it (atomically)."""
        known = self.records.keys() | self._strays.keys()
        since = min(
            (
                times[0]
                for each in self.records.values()
                if (times := each.times("created")) and times[0]
            ),
            default=0,
        )
        early = {
            uid: [list(each) for each in sorted(told) if not each[1] or each[1] >= since]
            for uid, told in self._pending_events.items()
        }
        mark = {
            "run": self.run,
            "versions": self._versions,
            "wall_minus_monotonic_ns": time.time_ns() - time.monotonic_ns(),
            "messages": {
                uid: text for uid, text in self.messages.items() if uid in known
            },  # the API server forgets Events in an hour
            "warned_at": {uid: at for uid, at in self._warned_at.items() if uid in known},
            "events": {
                uid: told for uid, told in early.items() if told
            },  # what was before the run is of others
        }
        ours, strays = self.records.values(), self._strays.values()
        lines = [
            orjson.dumps(mark),
            *(orjson.dumps([each.dump(), True]) for each in ours),
            *(orjson.dumps([each.dump(), False]) for each in strays),
        ]
        new = path.with_suffix(".new")
        new.write_bytes(b"\n".join(lines) + b"\n")
        new.replace(path)

    def restore(self, path: Path) -> None:
        """Take up the state of an earlier observer of the same run (before entering). Raises ValueError for another run's state, and
        what reading a file of another form raises."""
        with path.open("rb") as lines:
            mark = orjson.loads(next(lines))
            if mark["run"] != self.run:
                raise ValueError(f"it is the state of run {mark['run']}, not {self.run}")
            shift = mark["wall_minus_monotonic_ns"] - (time.time_ns() - time.monotonic_ns())
            for line in lines:
                raw, ours = orjson.loads(line)
                (self._adopt if ours else self._stray)(Record.read(raw, shift))
        self._versions, self.messages, self._warned_at = (
            mark["versions"],
            mark["messages"],
            mark["warned_at"],
        )
        self._pending_events = {
            uid: {(stage, at) for stage, at in told} for uid, told in mark["events"].items()
        }


def _timed(done: Callable[[], bool]) -> tuple[bool, float]:
    """What it says, and the seconds that it took."""
    start = time.monotonic()
    return done(), time.monotonic() - start


def _unreadable(resource: Resource, metadata: dict[str, Any], error: Exception) -> KubeError:
    which = f"{resource.kind} {metadata.get('namespace', '')}/{metadata.get('name', '?')}"
    text = f"the watch ended at {which} ({resource.api_version}), which has not the form of its kind: {type(error).__name__} {error}"
    return KubeError(0, "Unreadable", " ".join(text.split())[:500])
