"""Watch the objects of a run and record when they reach their stages.

A stage has up to three times: the API's (whole seconds), an Event's (microseconds) and the receive
time (time.monotonic_ns()). A stage that only a list or a replay showed has no receive time.
Objects are joined by owner UID, never by name.
"""

import asyncio
import gc
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from perfdag.kube.client import Event, Kube, KubeError, Resource
from perfdag.steps.scale.measure.record_store import RecordStore
from perfdag.steps.scale.model import tasks
from perfdag.steps.scale.model.records import Record
from perfdag.steps.scale.model.stages import (
    EVENT_STAGES,
    Extractor,
    evicted_pod,
    extractor,
    failure,
    last_observed,
    owner_of,
    unix_ns,
)
from perfdag.steps.scale.model.templates import RUN_LABEL

Kind = tuple[str, str]
REPLAY = 2.0
"""Seconds to wait until a resumed watch has replayed the changes since the last sample."""
PATIENCE = 300.0
"""Seconds that a watch retries without an API server, so that a restart under load is measured."""


class Observer(RecordStore):
    """The records of a run, kept up to date by watches. Use as an async context manager.

    `kinds` are watched in each of `namespaces`. `absent` lists kinds that the cluster does not
    serve. The server filters `primary` kinds by the run's label. An object belongs to the run by
    its label, by kind and name prefix (`named`), or by its owner.
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
        super().__init__(run)
        self.kube, self._named = kube, named
        self.kinds, self.namespaces = list(dict.fromkeys(kinds)), list(namespaces)
        self.primary = set(primary)
        self.absent: list[str] = []
        self.failed: list[KubeError] = []
        self._events, self._caught_up = events, dict[str, int]()
        self._newest: dict[str, int] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.changed = asyncio.Event()
        self._others = set[str]()

    async def __aenter__(self) -> "Observer":
        resources = []
        for api_version, kind in self.kinds:
            try:
                resources.append(await self.kube.resource(api_version, kind))
            except KubeError as error:
                if error.status != 404:
                    raise
                self.absent.append(f"{kind}.{api_version}")
        kinds_served = {resource.kind for resource in resources}
        # A kind such as PodGroup exists in several groups.
        self.absent = [kind for kind in self.absent if kind.partition(".")[0] not in kinds_served]
        if self._events:
            resources.append(await self.kube.resource("v1", "Event"))
        restored = set(self.records) | set(self.strays)
        gc.freeze()  # a full collection would delay the watches by tens of ms
        there_now: set[str] = set()
        for resource in resources:
            for namespace in self.namespaces:
                there_now |= await self._start(resource, namespace)
        lost = [
            self.records[uid]
            for uid in restored - there_now
            if uid in self.records and self.records[uid].kind in kinds_served
        ]
        with suppress(KubeError):  # later waits raise the error of a broken watch
            await self.until(
                lambda: self._replayed() and all("gone" in record.stages for record in lost), REPLAY
            )
        for record in lost:  # deleted before the watch could replay it
            self._record_stage(record, "gone", 0, 0, 0)
        return self

    def _replayed(self) -> bool:
        """Return whether the resumed watch has reached the newest change in the list."""
        return all(int(self.versions[key]) >= at for key, at in self._newest.items())

    async def __aexit__(self, *_: object) -> None:
        await tasks.cancel(self._tasks)
        gc.unfreeze()

    async def _start(self, resource: Resource, namespace: str) -> set[str]:
        """List the existing objects, start a watch in a task and return the UIDs.

        A resumed watch also replays stages that an object's state no longer shows. Raises
        KubeError.
        """
        key = f"{resource.kind}/{namespace}"
        labels = f"{RUN_LABEL}={self.run}" if resource.kind in self.primary else ""
        version = self.versions.get(key)
        latest, newest, known = "", 0, dict[str, tuple[str, str]]()
        read = extractor(resource.api_version, resource.kind)
        async for items, at in self.kube.pages(resource, namespace, labels=labels):
            latest = latest or at
            now = time.monotonic_ns()
            for item in items:
                metadata = item["metadata"]
                newest = max(newest, int(metadata["resourceVersion"]))
                known[metadata["uid"]] = (metadata.get("namespace", ""), metadata["name"])
                self._listed(resource, read, Event("ADDED", item, now, listed=True))
        self._caught_up[key] = int(latest or 0)
        known = {} if resource.kind == "Event" else known
        if version is not None and known:
            self._newest[key] = newest
        self._tasks.append(
            asyncio.create_task(self._follow(resource, namespace, labels, version or latest, known))
        )
        return set(known)

    async def _follow(
        self,
        resource: Resource,
        namespace: str,
        labels: str,
        version: str,
        known: Mapping[str, tuple[str, str]],
    ) -> None:
        read, kind = extractor(resource.api_version, resource.kind), resource.kind
        key, metadata = f"{kind}/{namespace}", dict[str, Any]()
        caught_up = self._caught_up[key]
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
                        self.versions[key] = at
                    if int(at) <= caught_up:  # older than our list: its arrival has no meaning
                        event.listed = True
                if event.type != "BOOKMARK":
                    self.take(kind, read, event)
        except KubeError as error:
            self._broken(error)
        except Exception as error:  # waits raise it; the records stay
            self._broken(_unreadable_object(resource, metadata, error))
        except asyncio.CancelledError:
            self.failed.append(KubeError(0, "Stopped", "the watch was stopped"))  # ends later waits
            raise

    def _broken(self, error: KubeError) -> None:
        self.failed.append(error)
        self.changed.set()

    def _listed(self, resource: Resource, read: Extractor, event: Event) -> None:
        try:
            self.take(resource.kind, read, event)
        except Exception as error:
            raise _unreadable_object(resource, event.object["metadata"], error) from error

    def take(self, kind: str, read: Extractor, event: Event) -> None:
        body, received = event.object, event.received_ns
        received = 0 if event.listed or event.replayed else received
        if kind == "Event":
            self._take_event(body, received)
            return
        metadata = body["metadata"]
        record = self.find(metadata["uid"])
        if record is None:
            record = None if event.type == "DELETED" and event.listed else self._new(kind, metadata)
            if record is None:
                self.pending_events.pop(metadata["uid"], None)
                (self._others.discard if event.type == "DELETED" else self._others.add)(
                    metadata["uid"]
                )
                return
            self._others.discard(record.uid)
        if "spec" in body and kind == "Pod":
            record.node = body["spec"].get("nodeName", "") or record.node
        elif kind == "VirtualMachineInstance":
            record.node = (body.get("status") or {}).get("nodeName", "") or record.node
        for stage, api, fresh in (
            read(body) if "status" in body or "creationTimestamp" in metadata else ()
        ):
            self._record_stage(record, stage, api, 0, received if fresh else 0)
        for stage, at in sorted(self.pending_events.pop(record.uid, ())):
            self._event_stage(record, stage, at, 0)
        (message, since), over = failure(body), event.type == "DELETED" or "failed" in record.stages
        # An object that lives on without a message has recovered.
        if message != record.error and (message or not over):
            warned = self.warned_at.get(record.uid, 0)
            # A watched change is the newest. A list returns objects first and then Events.
            record.error_at = since if event.listed and since else max(since, warned)
            record.error, record.error_newer = message, bool(message) and record.error_at >= warned
        if event.type == "DELETED":
            self._record_stage(record, "gone", 0, 0, received)

    def _new(self, kind: str, metadata: dict[str, Any]) -> Record | None:
        """Return a new record for an object of the run or for a stray, None for other objects."""
        label = (metadata.get("labels") or {}).get(RUN_LABEL)
        if label not in (None, self.run):
            return None
        uid, name, namespace = metadata["uid"], metadata["name"], metadata.get("namespace", "")
        record = Record(kind, uid, name, namespace, owner_of(metadata))
        named = self._named and kind == self._named[0] and record.name.startswith(self._named[1])
        if label or named or record.owner in self.records:
            self.adopt(record)
        elif record.owner:
            self.add_stray(record)
        else:
            return None
        return record

    def _take_event(self, body: dict[str, Any], received: int) -> None:
        about = body.get("involvedObject") or {}
        uid, reason = about.get("uid", ""), body.get("reason", "")
        at = unix_ns(body.get("eventTime") or body.get("firstTimestamp"))
        stage = EVENT_STAGES.get(reason)
        if pod := evicted_pod(body):
            uid = self.pod_uids.get(pod, "")
        record = self.find(uid)
        if stage and record:
            self._event_stage(record, stage, at, received)
        elif stage and uid and uid not in self._others:
            self.pending_events.setdefault(uid, set()).add((stage, at))
        if body.get("type") == "Warning" and uid and uid not in self._others:
            self.warn(
                uid,
                record,
                " ".join(f"{reason}: {body.get('message', '')}".split())[:500],
                last_observed(body),
            )

    def _event_stage(self, record: Record, stage: str, at: int, received: int) -> None:
        if stage == "scheduled" and stage not in record.stages:  # KAI's Event precedes the binding
            self.pending_events.setdefault(record.uid, set()).add((stage, at))
        else:
            self._record_stage(record, stage, 0, at, received)

    def _record_stage(self, record: Record, stage: str, api: int, at: int, received: int) -> None:
        if self.note(record, stage, api, at, received):
            self.changed.set()

    async def until(self, done: Callable[[], bool], timeout: float) -> bool:
        """Wait until `done()` holds. Return False after `timeout` seconds. Raises KubeError."""
        deadline = time.monotonic() + timeout
        while True:
            start = time.monotonic()
            if done():
                return True
            took = time.monotonic() - start
            if self.failed:
                raise self.failed[0]
            if (left := deadline - time.monotonic()) <= 0:
                return False
            self.changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.changed.wait(), min(left, 0.5))
            # Changes come in bursts: check once per burst, because a check delays receive times.
            await asyncio.sleep(min(max(0.02, took), max(0.0, left)))


def _unreadable_object(resource: Resource, metadata: dict[str, Any], error: Exception) -> KubeError:
    which = f"{resource.kind} {metadata.get('namespace', '')}/{metadata.get('name', '?')}"
    text = (
        f"the watch ended at {which} ({resource.api_version}), which is not a valid object of its "
        f"kind: {type(error).__name__} {error}"
    )
    return KubeError(0, "Unreadable", " ".join(text.split())[:500])
