"""Watches the objects of a run, one watch a kind, and keeps when each reached each stage.

Three times a stage: the API's own (the server's clock, mostly whole seconds), the event's (microseconds, where an Event tells of it)
and the receive time here (time.monotonic_ns()). A stage told by a list was not seen to happen and has no receive time. Objects
are joined by owner UID, never by name.
"""

import asyncio
import gc
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from perfdag.kube import Event, Kube, KubeError, Resource
from perfdag.steps.scale.stages import Extractor, extractor, failure, unix_ns
from perfdag.steps.scale.templates import RUN_LABEL

Kind = tuple[str, str]
_EVENT_STAGES = {
    "Scheduled": "scheduled",
    "Preempted": "evicted",
    "Evict": "evicted",
    "Evicted": "evicted",
    "ExternalProvisioning": "requested",
    "Provisioning": "requested",
    "ProvisioningSucceeded": "provisioned",
}


class Record:
    """One object: who it is, who owns it, its node, what it says of a failure, and three times for each stage reached."""

    __slots__ = ("_times", "error", "kind", "name", "namespace", "node", "owner", "stages", "uid")

    def __init__(self, kind: str, uid: str, name: str, namespace: str, owner: str) -> None:
        self.kind, self.uid, self.name, self.namespace, self.owner = kind, uid, name, namespace, owner
        self.node, self.error = "", ""
        self.stages: tuple[str, ...] = ()
        self._times = array("q")

    def put(self, stage: str, api_ns: int = 0, event_ns: int = 0, received_ns: int = 0) -> bool:
        """Note a stage; true where it was not known. A time once known is not replaced, but an unknown one is filled in."""
        new = stage not in self.stages
        if new:
            self.stages = _shared((*self.stages, stage))
            self._times.extend((api_ns, event_ns, received_ns))
        else:
            at = self.stages.index(stage) * 3
            self._times[at] = self._times[at] or api_ns
            self._times[at + 1] = self._times[at + 1] or event_ns
        return new

    def times(self, stage: str) -> tuple[int, int, int] | None:
        """API time and event time (Unix ns), receive time (monotonic ns), 0 where unknown; None where the stage was not seen."""
        if stage not in self.stages:
            return None
        at = self.stages.index(stage) * 3
        return self._times[at], self._times[at + 1], self._times[at + 2]

    def dump(self) -> list[Any]:
        """For the state file."""
        return [self.kind, self.uid, self.name, self.namespace, self.owner, self.node, self.error, self.stages, list(self._times)]

    @classmethod
    def read(cls, raw: list[Any], forget_receive: int = 0) -> "Record":
        """From the state file; `forget_receive` is added to receive times (the monotonic clock of another boot or machine)."""
        record = cls(*raw[:5])
        record.node, record.error, record.stages = raw[5], raw[6], _shared(tuple(raw[7]))
        times = [t + forget_receive if i % 3 == 2 and t else t for i, t in enumerate(raw[8])]
        record._times = array("q", times)
        return record


_STAGE_TUPLES: dict[tuple[str, ...], tuple[str, ...]] = {}


def _shared(stages: tuple[str, ...]) -> tuple[str, ...]:
    """Objects of a kind go through the same stages, so they share the tuple that names them."""
    return _STAGE_TUPLES.setdefault(stages, stages)


class Observer:
    """Records of a run. Use as an async context manager; `records` is by UID.

    `kinds` are watched in `namespaces` (one watch a kind; over several namespaces it is cluster-wide and filtered here). Kinds the
    cluster does not have are in `absent`. `primary` kinds carry the run's label and are filtered by the server.
    """

    def __init__(
        self, kube: Kube, run: str, kinds: Iterable[Kind], namespaces: Sequence[str], *, primary: Iterable[str] = (), events: bool = True
    ) -> None:
        self.kube, self.run = kube, run
        self.kinds, self.namespaces, self.primary = list(dict.fromkeys(kinds)), list(namespaces), set(primary)
        self.records: dict[str, Record] = {}
        self.counts: Counter[tuple[str, str]] = Counter()
        self.messages: dict[str, str] = {}
        self.reasons: Counter[str] = Counter()
        self.absent: list[str] = []
        self.failed: list[KubeError] = []
        self._events, self._versions, self._caught_up = events, dict[str, str](), dict[str, int]()
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._pending_events: dict[str, list[tuple[str, int]]] = {}
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
        self.absent = [each for each in self.absent if each.partition(".")[0] not in there]  # PodGroups have four homes
        if self._events:
            resources.append(await self.kube.resource("v1", "Event"))
        gc.freeze()  # what was imported is not searched again: a full collection would hold the watches up for tens of ms
        for resource in resources:
            await self._start(resource)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        gc.unfreeze()

    async def _start(self, resource: Resource) -> None:
        """List what is there, then watch in a task, so that nothing created from now on is missed. Raises KubeError."""
        namespace = self.namespaces[0] if len(self.namespaces) == 1 else None
        labels = f"{RUN_LABEL}={self.run}" if resource.kind in self.primary else ""
        version = self._versions.get(resource.kind)
        latest = ""
        async for items, at in self.kube.pages(resource, namespace, labels=labels):
            latest = latest or at
            if version is None:  # a resumed watch replays what happened since; a first one takes the list
                now = time.monotonic_ns()
                for item in items:
                    self._take(resource.kind, extractor(resource.kind), Event("ADDED", item, now, listed=True))
        self._caught_up[resource.kind] = int(latest or 0)
        self._tasks.append(asyncio.create_task(self._follow(resource, namespace, labels, version or latest)))

    async def _follow(self, resource: Resource, namespace: str | None, labels: str, version: str) -> None:
        wanted, read = set(self.namespaces), extractor(resource.kind)
        kind, caught_up = resource.kind, self._caught_up[resource.kind]
        try:
            async for event in self.kube.watch(resource, namespace, labels=labels, resource_version=version):
                metadata = event.object["metadata"]
                if at := metadata.get("resourceVersion"):
                    if not event.listed:
                        self._versions[kind] = at
                    if int(at) <= caught_up:
                        event.listed = True  # it happened before we looked, so the moment it arrived says nothing
                if event.type != "BOOKMARK" and (namespace or metadata.get("namespace") in wanted):
                    self._take(kind, read, event)
        except KubeError as error:
            self.failed.append(error)
            self._changed.set()

    def _take(self, kind: str, read: Extractor, event: Event) -> None:
        body, received = event.object, 0 if event.listed else event.received_ns
        if kind == "Event":
            self._take_event(body, received)
            return
        metadata = body["metadata"]
        if (metadata.get("labels") or {}).get(RUN_LABEL, self.run) != self.run:
            return
        record = self.records.get(metadata["uid"])
        if record is None:
            if event.type == "DELETED" and event.listed:
                return
            record = Record(kind, metadata["uid"], metadata["name"], metadata.get("namespace", ""), _owner(metadata))
            self.records[record.uid] = record
            for stage, at in self._pending_events.pop(record.uid, ()):
                self._note(record, stage, 0, at, 0)
        if "spec" in body and kind == "Pod":
            record.node = body["spec"].get("nodeName", "") or record.node
        elif kind == "VirtualMachineInstance":
            record.node = (body.get("status") or {}).get("nodeName", "") or record.node
        for stage, api, fresh in read(body) if "status" in body or "creationTimestamp" in metadata else ():
            self._note(record, stage, api, 0, received if fresh else 0)
        record.error = failure(body) or record.error
        if event.type == "DELETED":
            self._note(record, "gone", 0, 0, received)

    def _note(self, record: Record, stage: str, api: int, at: int, received: int) -> None:
        if record.put(stage, api, at, received):
            self.counts[record.kind, stage] += 1
            if self.on_stage:
                self.on_stage(record, stage, received)
            self._changed.set()

    def _take_event(self, body: dict[str, Any], received: int) -> None:
        about = body.get("involvedObject") or {}
        uid, reason = about.get("uid", ""), body.get("reason", "")
        at = unix_ns(body.get("eventTime") or body.get("firstTimestamp"))
        stage = _EVENT_STAGES.get(reason)
        if stage and uid in self.records:
            self._note(self.records[uid], stage, 0, at, received)
        elif stage and uid:
            self._pending_events.setdefault(uid, []).append((stage, at))
        if body.get("type") == "Warning" and uid:
            text = " ".join(f"{reason}: {body.get('message', '')}".split())[:500]
            self.messages[uid] = text
            self.reasons[f"{about.get('kind', '')} {text}"] += 1

    async def until(self, done: Callable[[], bool], timeout: float) -> bool:
        """Wait until `done()` holds, asked after changes; false after `timeout` seconds. Raises the KubeError of a broken watch."""
        deadline = time.monotonic() + timeout
        while not done():
            if self.failed:
                raise self.failed[0]
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), min(left, 0.5))
            await asyncio.sleep(min(0.02, max(0.0, left)))  # changes come in crowds; one look at each crowd is enough
        return True

    def of(self, kind: str) -> Iterator[Record]:
        """Records of a kind."""
        return (record for record in self.records.values() if record.kind == kind)

    def save(self, path: Path) -> None:
        """Write the state, so that another process can go on from it (atomically)."""
        mark = {"run": self.run, "versions": self._versions, "wall_minus_monotonic_ns": time.time_ns() - time.monotonic_ns()}
        lines = [orjson.dumps(mark), *(orjson.dumps(record.dump()) for record in self.records.values())]
        new = path.with_suffix(".new")
        new.write_bytes(b"\n".join(lines) + b"\n")
        new.replace(path)

    def restore(self, path: Path) -> None:
        """Take up the state of an earlier observer of the same run (before entering). Raises ValueError for another run's state."""
        with path.open("rb") as lines:
            mark = orjson.loads(next(lines))
            if mark["run"] != self.run:
                raise ValueError(f"{path} is the state of run {mark['run']}, not {self.run}")
            shift = mark["wall_minus_monotonic_ns"] - (time.time_ns() - time.monotonic_ns())
            for line in lines:
                record = Record.read(orjson.loads(line), shift)
                self.records[record.uid] = record
                self.counts.update((record.kind, stage) for stage in record.stages)
        self._versions = dict(mark["versions"])


def _owner(metadata: dict[str, Any]) -> str:
    owners = metadata.get("ownerReferences") or []
    first = next((each for each in owners if each.get("controller")), owners[0] if owners else None)
    return first["uid"] if first else ""
