"""One measured run on a cluster: submissions, waits, deletion and, at the end, the rows. It is begun and left in `opening`."""

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfdag.kube import Kube, KubeError
from perfdag.steps.scale import apimetrics
from perfdag.steps.scale.clock import Heartbeat, Offset, drift
from perfdag.steps.scale.completion import reached, wanted
from perfdag.steps.scale.generator import Submission, Submitted, Submitter, generate
from perfdag.steps.scale.harness import Harness
from perfdag.steps.scale.observer import Observer
from perfdag.steps.scale.records import Record
from perfdag.steps.scale.rows import Clocks, Row, rows_of
from perfdag.steps.scale.schedule import Schedule
from perfdag.steps.scale.simulate import simulated_nodes
from perfdag.steps.scale.templates import Template

LEFT_BEHIND = 300.0
"""Seconds to wait for deletion when a session ends early."""


@dataclass
class Session:
    """A run under way; use `opening.open_session`. Times are time.monotonic_ns() unless a name says otherwise."""

    kube: Kube
    run: str
    template: Template
    namespaces: list[str]
    observer: Observer
    heartbeat: Heartbeat
    submitter: Submitter
    offset: Offset
    scrapes: list[apimetrics.Scrape]
    """Of /metrics: the first before anything was made, then at the end of each phase; none where the API server does not tell."""
    expected_pods: int | None = None
    servers: list[Kube] = field(default_factory=list)
    """Clients of each API server, for /metrics."""
    submissions: list[Submission] = field(default_factory=list)
    batches: list[tuple[Submitted, Schedule]] = field(default_factory=list)
    deadline: float = math.inf
    """time.monotonic() from which on nothing is waited for any more but deletion."""
    notes: list[str] = field(default_factory=list)
    phases: dict[str, list[apimetrics.Calls]] = field(default_factory=dict)
    """API calls by phase; a phase whose books could not be closed is absent."""
    harness: Harness = field(default_factory=Harness)
    drift: dict[str, float] = field(default_factory=dict)
    """How far the server's clock moved against ours until the end, and its bound, in seconds."""
    _deleted: set[str] = field(default_factory=set)

    async def create(self, count: int, schedule: Schedule, parallel: int) -> Submitted:
        """Create `count` more objects on a schedule; returns what became of them."""
        self._measure()
        first = len(self.submissions)

        def known(made: Submitted) -> None:
            self.submissions += made.submissions
            self.batches.append((made, schedule))

        creation = generate(
            self.submitter,
            self.template,
            count,
            self.namespaces,
            schedule,
            parallel,
            run=self.run,
            first=first,
            on_plan=known,
        )
        try:
            async with asyncio.timeout(self.left_of(math.inf)):
                return await creation
        except TimeoutError:
            self.notes.append(f"creation was given up {self.ended(math.inf)}")
            return self.batches[-1][0]

    def left_of(self, timeout: float) -> float | None:
        """`timeout` seconds, or what is left of the sample's own limit where that is less; None without a bound."""
        left = min(timeout, self.deadline - time.monotonic())
        return None if math.isinf(left) else max(0.0, left)

    def ended(self, timeout: float) -> str:
        """When a wait of at most `timeout` seconds was given up, in words."""
        return (
            "at the sample's own time limit"
            if time.monotonic() >= self.deadline
            else f"after {timeout:g} s"
        )

    def reached(self, kind: str, *stages: str) -> int:
        """How many objects of a kind have reached one of the stages (an object counts once, however many of them it reached)."""
        return self.observer.reached(kind, *stages)

    async def wait(self, kind: str, count: int, timeout: float, *stages: str) -> bool:
        """Wait until `count` objects of a kind reached one of the stages; false after `timeout` seconds, or at the sample's limit."""
        counts = self.observer.counts

        def enough() -> bool:
            most = sum(
                counts[kind, stage] for stage in stages
            )  # cheap, and too high only where objects reached several
            return most >= count and self.reached(kind, *stages) >= count

        return await self.until(enough, timeout)

    def there(self, goal: str = "ready") -> tuple[int, int]:
        """How many of all that the accepted workloads bring up reached the goal or failed, and how many shall."""
        last, members = self.template.documents[-1], self.expected_pods
        enough = wanted(self.submissions, members)
        return reached(self.observer, last.api_version, last.kind, members, enough, goal), enough

    async def all_there(self, timeout: float, goal: str = "ready") -> bool:
        """Wait until all of them did; false after `timeout` seconds, or at the sample's limit."""

        def enough() -> bool:
            got, wanted = self.there(goal)
            return got >= wanted

        return await self.until(enough, timeout)

    def alive(self) -> list[Submission]:
        """What was accepted, and not deleted since."""
        return [
            each
            for each in self.submissions
            if each.answered_ns and not each.error and each.name not in self._deleted
        ]

    def live(self, kind: str) -> Iterator[Record]:
        """Records of a kind but those of workloads that were deleted."""
        return (
            each for each in self.observer.of(kind) if self._top(each).name not in self._deleted
        )

    async def until(self, done: Callable[[], bool], timeout: float) -> bool:
        """Wait until `done()` holds; false after `timeout` seconds, or at the sample's limit. Raises KubeError."""
        return await self.observer.until(done, self.left_of(timeout) or 0.0)

    async def delete(self, items: Sequence[Submission], parallel: int, timeout: float) -> bool:
        """Delete workloads, what was created with them, and wait until they and all below them are gone; false after `timeout` seconds."""
        self._measure()
        documents = self.template.documents[::-1]  # the workload first, then what it needed
        resources = [await self.kube.resource(each.api_version, each.kind) for each in documents]
        queue = iter([each for each in items if each.started_ns and each.name not in self._deleted])
        by_name = {
            (each.namespace, each.name): each for each in self.observer.of(self.template.kind)
        }

        async def worker() -> None:
            for item in queue:
                record = by_name.get((item.namespace, item.name))
                if record:
                    record.put("deleting", received_ns=time.monotonic_ns())
                for document, resource in zip(documents, resources, strict=True):
                    await self.kube.delete(resource, document.name_of(item.name), item.namespace)
                self._deleted.add(item.name)

        await asyncio.gather(*(worker() for _ in range(max(1, parallel))))
        names = self._names(items)
        patience = min(timeout, max(LEFT_BEHIND, self.deadline - time.monotonic()))
        return await self.observer.until(lambda: next(self._left(names), None) is None, patience)

    def left(self, items: Sequence[Submission], namespaces: Sequence[str] | None = None) -> int:
        """How many objects of these workloads, created with them or owned by them, are still there (in some namespaces; None: all)."""
        return sum(
            1
            for each in self._left(self._names(items))
            if namespaces is None or each.namespace in namespaces
        )

    def _names(self, items: Sequence[Submission]) -> set[tuple[str, str, str]]:
        return {
            (each.kind, item.namespace, each.name_of(item.name))
            for each in self.template.documents
            for item in items
        }

    def _top(self, record: Record) -> Record:
        while record.owner in self.observer.records:
            record = self.observer.records[record.owner]
        return record

    def _left(self, names: set[tuple[str, str, str]]) -> Iterator[Record]:
        for record in self.observer.records.values():
            if "gone" in record.stages:
                continue
            top = self._top(record)
            if (top.kind, top.namespace, top.name) in names:
                yield record

    async def scrape(self, phase: str) -> None:
        """Close the books on the API calls of a phase, which began where the one before ended."""
        if not self.scrapes:
            return
        why = "another API server answered than before, or it was restarted"
        try:
            after = await apimetrics.scrape(self.servers)
        except KubeError as error:
            why = str(error)
        else:
            why = "" if after.started == self.scrapes[-1].started else why
        if why:
            self.notes.append(f"no API server metrics of the {phase}: {why}")
            self.scrapes.clear()
            return
        self.phases[phase] = apimetrics.delta(self.scrapes[-1], after)
        self.scrapes.append(after)

    def judged(self) -> dict[str, float | None]:
        """The API latencies that gates see: the worse of creation and deletion. Without the books of both there is no data."""
        whole = apimetrics.delta(self.scrapes[0], self.scrapes[-1]) if self.scrapes else []
        return apimetrics.judged(self.phases, whole)

    @property
    def in_flight(self) -> bool:
        """Whether an object was sent whose answer never came."""
        return any(each.started_ns and not each.answered_ns for each in self.submissions)

    def clocks(self) -> Clocks:
        """How this run's clocks relate."""
        return Clocks(
            time.time_ns() - time.monotonic_ns(), self.offset.seconds, p99(self.heartbeat.lags)
        )

    async def rows(self) -> list[Row]:
        """A row a workload and stage, as of now. The lag of the watch and the CPU of this process are not measured from here to the next
        creation or deletion: they would be those of what is made of the rows."""
        self.heartbeat.pause()
        self.harness.pause()
        fake, why = await simulated_nodes(self.kube)
        if why and why not in self.notes:
            self.notes.append(why)
        return list(
            rows_of(
                self.submissions,
                self.observer.records,
                self.clocks(),
                run=self.run,
                kind=self.template.kind,
                api_version=self.template.documents[-1].api_version,
                until_ns=time.monotonic_ns(),
                expected_pods=self.expected_pods,
                simulated=fake,
                messages=self.observer.messages,
            )
        )

    def _measure(self) -> None:
        self.heartbeat.resume()
        self.harness.resume()

    async def doubts(self) -> None:
        """At the end: look at the clocks again, and note what makes times doubtful. Takes 1 to 2 s."""
        self.drift, moved = await drift(self.kube, self.offset)
        self.notes += [note for note in (moved, self.heartbeat.note, self.harness.note) if note]

    def facts(self) -> dict[str, Any]:
        """What a reader must know to believe the figures."""
        return {
            "run": self.run,
            "members": self.expected_pods,
            "watch_lag": self.heartbeat.summary(),
            "server_clock_ahead_s": self.offset.seconds,
            "server_clock_bound_s": self.offset.bound,
            **self.drift,
            "harness_cpu": self.harness.share,
            "kube": dict(self.kube.counts),
            "absent_kinds": self.observer.absent,
            "failure_reasons": dict(self.observer.reasons.most_common(20)),
            "notes": self.notes,
        }


def p99(lags: Sequence[float]) -> float | None:
    """The error bar that the lags of a heartbeat give, however few they are; None without any."""
    ordered = sorted(lags)
    return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))] if ordered else None


def new_run() -> str:
    """A run id: sortable, unique, fit for names of objects, those of Services too, which begin with a letter."""
    import secrets

    return time.strftime("r%m%d%H%M%S", time.gmtime()) + "-" + secrets.token_hex(3)
