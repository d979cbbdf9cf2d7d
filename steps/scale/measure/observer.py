"""Watch the objects of a run and record when they reach their stages and goals.

A stage has up to three times: the API's (whole seconds), an Event's (microseconds) and the receive
time (time.monotonic_ns()). A stage that only a list or a replay showed has no receive time.
Objects are joined by owner UID, never by name.
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

from perfdag import signals
from perfdag.kube.client import Event, Kube, KubeError, Resource
from perfdag.steps.scale.measure.generator import Submission
from perfdag.steps.scale.model.stages import (
    EVENT_STAGES,
    VMI,
    Extractor,
    Record,
    chain,
    evicted_pod,
    extractor,
    failure,
    has_no_pods,
    last_observed,
    owner_of,
    top_owner,
    unix_ns,
)
from perfdag.steps.scale.model.templates import RUN_LABEL

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
        await signals.cancel(self._tasks)
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
        return most if most < enough else complete_workloads(observer, kind, goal)
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


def complete_workloads(observer: Observer, kind: str, goal: str) -> int:
    """Count the workloads whose pods, except replaced ones, all reached the goal or failed."""
    complete = dict[str, bool]()
    for pod in observer.of("Pod"):
        done = not {goal, "failed"}.isdisjoint(pod.stages)
        top = top_owner(observer.records, pod)
        if top.kind == kind and (done or "gone" not in pod.stages):
            complete[top.uid] = complete.get(top.uid, True) and done
    return sum(complete.values())


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
