"""One measured run on a cluster: submissions, waits, deletion and rows."""

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from perfdag.kube.client import Kube, KubeError
from perfdag.steps.scale.cluster import removal
from perfdag.steps.scale.cluster.kwok_nodes import simulated_nodes
from perfdag.steps.scale.figures import api_metrics
from perfdag.steps.scale.figures.api_metrics import DELETION
from perfdag.steps.scale.figures.moments import Clocks
from perfdag.steps.scale.figures.rows import Row, rows_of
from perfdag.steps.scale.measure.clock import Offset
from perfdag.steps.scale.measure.completion import expected_count, reached
from perfdag.steps.scale.measure.generator import GeneratorResult, Submission, generate
from perfdag.steps.scale.measure.observer import Observer
from perfdag.steps.scale.measure.self_load import SelfLoad
from perfdag.steps.scale.measure.submitters import Submitter
from perfdag.steps.scale.measure.watch_lag import WatchLag
from perfdag.steps.scale.model.records import Record, remaining, top_owner
from perfdag.steps.scale.model.schedule import Schedule
from perfdag.steps.scale.model.templates import Template

LEFT_BEHIND = 300.0
"""Seconds to wait for deletion when a session ends early."""


@dataclass
class Session:
    """A run in progress, from `open_session`. Times are time.monotonic_ns() if not noted."""

    kube: Kube
    run: str
    template: Template
    namespaces: list[str]
    observer: Observer
    watch_lag: WatchLag
    submitter: Submitter
    offset: Offset
    scrapes: list[api_metrics.Scrape]
    """Scrapes of /metrics, one before the run and one after every phase. Empty if unavailable."""
    expected_pods: int | None = None
    servers: list[Kube] = field(default_factory=list)  # all API servers, for /metrics
    submissions: list[Submission] = field(default_factory=list)
    batches: list[tuple[GeneratorResult, Schedule]] = field(default_factory=list)
    deadline: float = math.inf
    """time.monotonic() after which only deletion is waited for."""
    notes: list[str] = field(default_factory=list)
    phases: dict[str, list[api_metrics.Calls]] = field(default_factory=dict)
    """API calls by phase; a phase without a scrape at both ends is absent."""
    self_load: SelfLoad = field(default_factory=SelfLoad)
    deleted: set[str] = field(default_factory=set)

    async def create(self, count: int, schedule: Schedule, parallel: int) -> GeneratorResult:
        """Create `count` more objects on a schedule, and return their submissions."""
        first = len(self.submissions)

        def plan(batch: GeneratorResult) -> None:
            self.submissions += batch.submissions
            self.batches.append((batch, schedule))

        creation = generate(
            self.submitter,
            self.template,
            count,
            self.namespaces,
            schedule,
            parallel,
            run=self.run,
            first=first,
            on_plan=plan,
        )
        try:
            async with asyncio.timeout(self.left_of(math.inf)):
                return await creation
        except TimeoutError:
            self.notes.append(f"the creation was stopped {self.wait_end(math.inf)}")
            return self.batches[-1][0]

    def left_of(self, timeout: float) -> float | None:
        """Return the lesser of `timeout` and the time left for the sample.

        None means no limit.
        """
        left = min(timeout, self.deadline - time.monotonic())
        return None if math.isinf(left) else max(0.0, left)

    def wait_end(self, timeout: float) -> str:
        """Return in words when a wait of at most `timeout` seconds ended."""
        late = time.monotonic() >= self.deadline
        return "at the time limit of the sample" if late else f"after {timeout:g} s"

    def reached(self, kind: str, *stages: str) -> int:
        """Count the objects of a kind that reached at least one of the stages."""
        return self.observer.reached(kind, *stages)

    async def wait(self, kind: str, count: int, timeout: float, *stages: str) -> bool:
        """Wait until `count` objects of a kind reached a stage. Return False at the time limit."""
        counts = self.observer.counts

        def enough() -> bool:
            # Cheap, and too high only if objects reached several of the stages.
            most = sum(counts[kind, stage] for stage in stages)
            return most >= count and self.reached(kind, *stages) >= count

        return await self.until(enough, timeout)

    def progress(self, goal: str = "ready") -> tuple[int, int]:
        """Return how many pods or VMIs reached the goal or failed, and how many are expected."""
        last, members = self.template.documents[-1], self.expected_pods
        enough = expected_count(self.submissions, members)
        return reached(self.observer, last.api_version, last.kind, members, enough, goal), enough

    async def all_reached(self, timeout: float, goal: str = "ready") -> bool:
        """Wait until all reached the goal. Return False at the time limit."""

        def enough() -> bool:
            got, wanted = self.progress(goal)
            return got >= wanted

        return await self.until(enough, timeout)

    def alive(self) -> list[Submission]:
        """Return the accepted submissions whose objects were not deleted since."""
        accepted = (item for item in self.submissions if item.answered_ns and not item.error)
        return [item for item in accepted if item.name not in self.deleted]

    def live(self, kind: str) -> Iterator[Record]:
        """Yield the records of a kind, without those of deleted workloads."""
        return (
            record
            for record in self.observer.of(kind)
            if top_owner(self.observer.records, record).name not in self.deleted
        )

    async def until(self, done: Callable[[], bool], timeout: float) -> bool:
        """Wait until `done()` holds. Return False at the time limit. Raises KubeError."""
        return await self.observer.until(done, self.left_of(timeout) or 0.0)

    async def delete(self, items: Sequence[Submission], parallel: int, timeout: float) -> bool:
        """Delete workloads and the objects that belong to them.

        Return False if some are left at the time limit.
        """
        documents = self.template.documents[::-1]  # the workload first, then what it needed
        resources = [
            await self.kube.resource(document.api_version, document.kind) for document in documents
        ]
        queue = iter([item for item in items if item.started_ns and item.name not in self.deleted])
        by_name = {
            (record.namespace, record.name): record
            for record in self.observer.of(self.template.kind)
        }

        async def worker() -> None:
            for item in queue:
                record = by_name.get((item.namespace, item.name))
                if record:
                    record.put("deleting", received_ns=time.monotonic_ns())
                for document, resource in zip(documents, resources, strict=True):
                    await self.kube.delete(resource, document.name_of(item.name), item.namespace)
                self.deleted.add(item.name)

        await asyncio.gather(*(worker() for _ in range(max(1, parallel))))
        names = self._names(items)
        patience = min(timeout, max(LEFT_BEHIND, self.deadline - time.monotonic()))
        return await self.observer.until(
            lambda: next(remaining(self.observer.records, names), None) is None, patience
        )

    async def delete_all(self, parallel: int, timeout: float) -> float:
        """Delete all workloads and return how many objects are left after `timeout` seconds.

        A failed deletion becomes a note, because the measurement before it stays valid.
        """
        try:
            gone = await self.delete(self.submissions, parallel, timeout)
            left = 0 if gone else self.left(self.submissions)
        except KubeError as error:
            self.notes.append(f"the deletion was not observed to its end: {error}")
            left = self.left(self.submissions)
            with suppress(KubeError):  # the watch broke, so count what a list shows
                documents = self.template.documents[::-1]
                kinds = [await self.kube.resource(doc.api_version, doc.kind) for doc in documents]
                left = await removal.remove(
                    self.kube, self.run, kinds, self.namespaces, parallel, timeout
                )
        await self.scrape(DELETION)
        return float(left)

    def left(self, items: Sequence[Submission], namespaces: Sequence[str] | None = None) -> int:
        """Count the objects of these workloads that still exist.

        `namespaces` None: in all of them.
        """
        left = remaining(self.observer.records, self._names(items))
        return sum(namespaces is None or record.namespace in namespaces for record in left)

    def _names(self, items: Sequence[Submission]) -> set[tuple[str, str, str]]:
        return {
            (document.kind, item.namespace, document.name_of(item.name))
            for document in self.template.documents
            for item in items
        }

    async def scrape(self, phase: str) -> None:
        """End a phase: count its API calls since the end of the phase before."""
        if not self.scrapes:
            return
        why = "another API server answered, or the server was restarted"
        try:
            after = await api_metrics.scrape(self.servers)
        except KubeError as error:
            why = str(error)
        else:
            why = "" if after.started == self.scrapes[-1].started else why
        if why:
            self.notes.append(f"no API server metrics of the {phase}: {why}")
            self.scrapes.clear()
            return
        self.phases[phase] = api_metrics.delta(self.scrapes[-1], after)
        self.scrapes.append(after)

    def gate_latencies(self) -> dict[str, float | None]:
        """Return the API latencies that gates compare, of the worse of creation and deletion."""
        whole = api_metrics.delta(self.scrapes[0], self.scrapes[-1]) if self.scrapes else []
        return api_metrics.gate_latencies(self.phases, whole)

    @property
    def in_flight(self) -> bool:
        """Tell whether a creation was sent and never answered."""
        return any(item.started_ns and not item.answered_ns for item in self.submissions)

    def clocks(self) -> Clocks:
        """Return how the clocks of this run relate."""
        shift = time.time_ns() - time.monotonic_ns()
        return Clocks(shift, self.offset.seconds)

    async def rows(self) -> list[Row]:
        """Return one row per workload and stage.

        The first call ends the measurement of the watch lag and of this process's load.
        """
        await self.watch_lag.stop()
        await self.self_load.stop()
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

    def facts(self) -> dict[str, Any]:
        """Return what a reader must know to judge the figures."""
        if count := self.kube.counts["replayed changes"]:
            self.notes.append(
                f"watches were away: {count} changes have the API's time or none, no receive time"
            )
        self.notes += [self.self_load.note] if self.self_load.note else []
        return {
            "run": self.run,
            "members": self.expected_pods,
            "watch_lag": self.watch_lag.summary(),
            "server_clock_ahead_s": self.offset.seconds,
            "server_clock_bound_s": self.offset.bound,
            "harness_cpu": self.self_load.share,
            "kube": dict(self.kube.counts),
            "absent_kinds": self.observer.absent,
            "failure_reasons": dict(self.observer.reasons.most_common(20)),
            "notes": self.notes,
        }
