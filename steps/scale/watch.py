"""Watch the objects of a run: when they reach their stages, which are settled, and the watch's lag.

A stage has the API's time, that of an Event if there is one, and the receive time. A stage that
only a list or a replay showed has no receive time. Objects are joined by owner UID, never by name.
"""

import asyncio
import gc
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

from perfdag import signals
from perfdag.kube.client import Kube, KubeError, status_of
from perfdag.steps.scale.cluster import PROBE, served, simulated_nodes
from perfdag.steps.scale.generate import Submission
from perfdag.steps.scale.objects import (
    CLOCK_NS,
    EVENT_STAGES,
    EXTRACTORS,
    RUN_LABEL,
    VMI,
    Record,
    chain,
    evicted_pod,
    failure,
    now_ns,
    owner_of,
    top_owner,
    unix_ns,
)
from perfdag.steps.scale.rows import Row, from_creation, rows_of

END_STAGES = frozenset(("succeeded", "failed", "gone"))
"""Stages after which a pod or VMI no longer runs."""
PATIENCE_S = 300.0
"""How long a watch retries without an API server, so that a restart under load is measured."""


@dataclass(eq=False)
class Observer:
    """The objects of a run's namespaces, kept up to date by watches. An async context manager.

    `kinds` are watched in each of `namespaces`. `absent` lists kinds that the cluster does not
    serve. The server filters `primary` kinds by the run's label, or by `selector`, which stands for
    it. An object belongs to the run by its label, by kind and name prefix (`named`), or by its
    owners. Namespace None is the whole cluster.
    """

    kube: Kube
    run: str
    kinds: Sequence[tuple[str, str]]
    namespaces: Sequence[str | None]
    primary: Collection[str] = ()
    selector: str = ""
    named: tuple[str, str] | None = None
    events: bool = True
    absent: list[str] = field(default_factory=list)
    records: dict[str, Record] = field(default_factory=dict)
    """By UID, also those of objects that are not the run's: their owner may come later. An object
    that only an Event named has a UID alone."""
    ahead_s: float = 0.0
    """The server's clock minus ours, measured on entering."""
    simulated: set[str] | None = None
    """Nodes that KWOK simulates; None without the right to list nodes."""
    roots: set[str] = field(default_factory=set)
    """UIDs of the objects that belong to the run by label or name."""
    _failed: list[KubeError] = field(default_factory=list)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def __aenter__(self) -> "Observer":
        self.ahead_s = await server_offset(self.kube)
        self.simulated = await simulated_nodes(self.kube)
        kinds = await served(self.kube, dict.fromkeys("/".join(kind) for kind in self.kinds))
        # A kind such as PodGroup exists in several groups.
        names = {kind.rpartition("/")[2] for kind in kinds}
        self.absent = [kind for _, kind in dict.fromkeys(self.kinds) if kind not in names]
        if self.events:
            kinds.append("v1/Event")
        gc.freeze()  # a full collection would delay the watches by tens of ms
        starting = []
        for kind in kinds:
            for namespace in self.namespaces:
                listed = asyncio.Event()
                self._tasks.append(asyncio.create_task(self._follow(kind, namespace, listed)))
                starting.append(listed.wait())
        await asyncio.gather(*starting)
        if self._failed:
            await self.__aexit__()
            raise self._failed[0]
        return self

    async def __aexit__(self, *_: object) -> None:
        await signals.cancel(self._tasks)
        gc.unfreeze()

    async def _follow(self, path: str, namespace: str | None, listed: asyncio.Event) -> None:
        """Note the existing objects, set `listed`, and note their changes until the end."""
        kind = path.rpartition("/")[2]
        labels = (self.selector or f"{RUN_LABEL}={self.run}") if kind in self.primary else ""
        changes = self.kube.watch(path, namespace, labels=labels, patience=PATIENCE_S)
        try:
            async for change, body, received_ns in changes:
                if change == "BOOKMARK":
                    listed.set()
                else:
                    self.take(kind, body, received_ns, deleted=change == "DELETED")
        except KubeError as error:
            self._failed.append(error)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            text = " ".join(f"a {kind} is not a valid object of its kind: {error!r}".split())
            self._failed.append(KubeError(0, "Unreadable", text))
        finally:
            listed.set()
            self._changed.set()  # waits raise the error; the records stay

    def take(
        self, kind: str, body: dict[str, Any], received_ns: int, *, deleted: bool = False
    ) -> None:
        """Note what a change of an object shows. Without `received_ns` it is from a list."""
        received = received_ns and received_ns + CLOCK_NS
        if kind == "Event":
            self._take_event(body, received)
            return
        metadata = body["metadata"]
        uid = metadata["uid"]
        label = (metadata.get("labels") or {}).get(RUN_LABEL)
        if self.selector and kind in self.primary:
            label = self.run
        # An object without a label is kept: it may be below one of the run, which is seen later.
        # One that is first seen as it goes has no times to tell.
        if label not in (None, self.run) or (uid not in self.records and deleted):
            return
        record = self._record(uid)
        record.kind = kind
        record.name = metadata["name"]
        record.owner = owner_of(metadata)
        record.namespace = metadata.get("namespace", "")
        named = self.named and kind == self.named[0] and record.name.startswith(self.named[1])
        if label or named:
            self.roots.add(uid)
        spec = body.get("spec") or {}
        record.node = spec.get("nodeName") or status_of(body).get("nodeName") or record.node
        for stage, api, fresh in EXTRACTORS[kind](body):
            self._note(record, stage, api, received if fresh else 0)
        self._refine(record)
        message = failure(body)
        # An object that lives on without a message has recovered.
        if message or not (deleted or "failed" in record.stages):
            record.error = message
        if deleted:
            self._note(record, "gone", 0, received)

    def _record(self, uid: str) -> Record:
        return self.records.setdefault(uid, Record("", uid, "", "", ""))

    def _refine(self, record: Record) -> None:
        if "scheduled" in record.stages:
            self._note(record, "scheduled", record.decided_ns, 0)

    def _take_event(self, body: dict[str, Any], received: int) -> None:
        uid = (body.get("involvedObject") or {}).get("uid", "")
        reason = body.get("reason", "")
        evicted = evicted_pod(body)
        if evicted:
            pods = (pod for pod in self.records.values() if pod.kind == "Pod")
            uid = next((pod.uid for pod in pods if (pod.namespace, pod.name) == evicted), "")
        if not uid:
            return
        record = self._record(uid)
        stage = EVENT_STAGES.get(reason)
        at = unix_ns(body.get("eventTime") or body.get("firstTimestamp"))
        if stage == "scheduled":
            record.decided_ns = at
            self._refine(record)
        elif stage:
            self._note(record, stage, at, received)
        if body.get("type") == "Warning":
            record.warning = " ".join(f"{reason}: {body.get('message', '')}".split())[:500]

    def _note(self, record: Record, stage: str, api: int, received: int) -> None:
        """Note a stage of a record, and wake who waits if it is new."""
        if record.put(stage, api, received):
            self._changed.set()

    def rows(self, submissions: Sequence[Submission], kind: str, members: int | None) -> list[Row]:
        """Return one row per workload and stage, as observed until now."""
        rows = rows_of(
            submissions,
            self.records,
            run=self.run,
            kind=kind,
            until_ns=now_ns(),
            ahead_s=self.ahead_s,
            members=members,
            simulated=self.simulated,
        )
        return list(from_creation(rows, kind) if self.selector else rows)

    def of(self, kind: str) -> Iterator[Record]:
        """Return the run's records of a kind."""
        of_kind = (record for record in self.records.values() if record.kind == kind)
        return (record for record in of_kind if top_owner(self.records, record).uid in self.roots)

    def count(self, kind: str, stage: str) -> int:
        """Count the run's objects of a kind that reached a stage."""
        return sum(stage in record.stages for record in self.of(kind))

    async def until(self, done: Callable[[], bool], timeout: float) -> bool:
        """Wait until `done()` holds. Return False after `timeout` seconds. Raises KubeError."""
        deadline = time.monotonic() + timeout
        while True:
            start = time.monotonic()
            if done():
                return True
            took = time.monotonic() - start
            if self._failed:
                raise self._failed[0]
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), min(remaining, 0.5))
            # A check of many objects delays receive times: it may take a tenth of the time.
            await asyncio.sleep(min(max(0.02, 9 * took), remaining))


def settled(
    observer: Observer, kind: str, members: int | None, goal: str
) -> dict[tuple[str, str], int]:
    """Count the pods or VMIs of each workload that reached the goal, or failed for good.

    The workloads of `kind`, by namespace and name, have `members` each; with None a workload counts
    as one, once it has pods and all of them are settled.
    """
    vmis = kind.startswith("VirtualMachine")
    finite = not vmis and any(
        step.kind == kind and step.stage == "succeeded" for step in chain(kind)
    )
    workloads = {record.uid: record for record in observer.of(kind)}
    members_of: dict[str, list[Record]] = {uid: [] for uid in workloads}
    for record in observer.of(VMI if vmis else "Pod"):
        top = top_owner(observer.records, record)
        if top.uid in members_of:
            members_of[top.uid].append(record)
    return {
        (workload.namespace, workload.name): _settled_members(
            workload, members_of[uid], members, goal, finite
        )
        for uid, workload in workloads.items()
    }


def _settled_members(
    workload: Record, group: Sequence[Record], members: int | None, goal: str, finite: bool
) -> int:
    """Count the `members` of one workload that reached the goal or failed.

    A pod that ended counts only if no other one replaces it. A `finite` workload reports its own
    failure and retries failed pods until then. Whether it succeeded is its own stage.
    """
    if goal == "succeeded":
        return (members or 1) * (not {goal, "failed"}.isdisjoint(workload.stages))
    if members is None:
        waiting = [p for p in group if {goal, "succeeded", "failed"}.isdisjoint(p.stages)]
        return int(len(waiting) < len(group) and all("gone" in pod.stages for pod in waiting))
    if finite and "failed" in workload.stages:
        return members
    present = [record for record in group if _is_present(record, finite)]
    ended = [record for record in group if not _is_present(record, finite)]
    reached = sum(not {goal, "succeeded"}.isdisjoint(record.stages) for record in present)
    # A controller may have replaced a pod that ended. So no more of these count than are missing
    # among the present ones, or a workload would be ready before all of its pods are.
    final = {goal, "succeeded"} if finite else {goal, "succeeded", "failed"}
    over = sum(not record.owner or not final.isdisjoint(record.stages) for record in ended)
    return min(members, reached + max(0, min(over, members - len(present))))


def _is_present(record: Record, finite: bool) -> bool:
    """Return whether a pod or VMI runs, or has done the work of a finite workload."""
    done = finite and "succeeded" in record.stages
    return done or END_STAGES.isdisjoint(record.stages)


async def server_offset(kube: Kube) -> float:
    """Return the server's clock minus ours in seconds, at a tick of its Date header.

    Takes 1 to 2 s and about 100 requests. Raises KubeError.
    """
    previous: tuple[float, float] | None = None
    deadline = time.monotonic() + 3.0
    while time.monotonic() < deadline:
        start = time.time()
        await kube.request("GET", "/version")
        end = time.time()
        second = parsedate_to_datetime(kube.date).timestamp()
        if previous and second > previous[0]:
            # `second` began between the start of the last request and the end of this one.
            return second - (previous[1] + end) / 2
        previous = (second, start)
        await asyncio.sleep(0.01)
    raise KubeError(
        0, "Clock", "the API server's Date header does not tick", "is a proxy answering for it?"
    )


PROBES = "perfdag/probes"
"""Annotation with the moment of the last change, in monotonic ns."""
PROBE_PERIOD_S = 0.5


@dataclass
class WatchLag:
    """Change a ConfigMap again and again until `stop`.

    `lags` are the seconds from the sending of each change to its receipt, so they include the
    server's write. A change that never came counts with its age at the end. The ConfigMap has the
    label of a part of the run, so that it is deleted with the run and is no workload of it.
    """

    lags: list[float] = field(default_factory=list)
    error: str = ""
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def start(self, kube: Kube, run: str, namespace: str) -> None:
        """Create the ConfigMap, and begin. Raises KubeError if it is refused."""
        name = f"perfdag-{PROBE}-{run}"
        metadata = {
            "name": name,
            "namespace": namespace,
            "labels": {RUN_LABEL: f"{run}-{PROBE}"},
        }
        await kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}, namespace)
        self._tasks = [asyncio.create_task(self._probe(kube, namespace, name))]

    async def stop(self) -> None:
        """End the probe, because later work of this process is not the watch's fault."""
        await signals.cancel(self._tasks)

    async def _probe(self, kube: Kube, namespace: str, name: str) -> None:
        """Wait for each change before the next is sent."""
        sent = 0
        try:
            changes = kube.watch(
                "v1/ConfigMap", namespace, fields=f"metadata.name={name}", patience=PATIENCE_S
            )
            async for change, _, received_ns in changes:
                if change == "BOOKMARK":
                    continue
                received = received_ns or time.monotonic_ns()
                self.lags += [(received - sent) / 1e9] if sent else []
                sent = 0
                await asyncio.sleep(PROBE_PERIOD_S)
                now = time.monotonic_ns()
                sent = now if received_ns else 0  # the watch opens after the list
                patch = {"metadata": {"annotations": {PROBES: str(now)}}}
                await kube.patch("v1/ConfigMap", name, patch, namespace)
        except KubeError as error:
            self.error = str(error)
        finally:
            self.lags += [(time.monotonic_ns() - sent) / 1e9] if sent else []

    def summary(self) -> dict[str, Any]:
        """Return the p99 in seconds (None without any), how many changes came, and what failed."""
        ordered = sorted(self.lags)
        p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))] if ordered else None
        return {"p99_s": p99, "changes": len(ordered), "error": self.error}
