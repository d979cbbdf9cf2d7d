"""The measuring loop: the samples of a plan in turn, over a pool of hosts.

The loop stores each sample before the next begins, a failed one too. It skips samples in the store:
a killed run that is resumed loses and repeats nothing. One machine and a gang of pods share this
loop.
"""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from perfdag.plan.plan import Plan, concurrent_groups
from perfdag.results.samples import (
    SampleRecord,
    headline,
    read_sample,
    sample_key,
    stored_samples,
)
from perfdag.shape import Shape
from perfdag.stats.robust import relative_precision
from perfdag.steps.loop.pairs import hunt, missing_overlaps, run_concurrently
from perfdag.steps.loop.pools import GangLost, LocalPool
from perfdag.steps.loop.sampler import Sampler
from perfdag.store.base import Store
from perfdag.suite.points import Point

PRECISE = "precise enough"
"""Reason for a skipped sample: its point has reached the precision of `until`."""


class ProgressListener(Protocol):
    """Receives the progress of a loop."""

    def started(self, point: Point, repetition: int) -> None: ...
    def finished(self, point: Point, record: SampleRecord) -> None: ...
    def skipped(self, point: Point, repetition: int, why: str) -> None:
        """Receive a sample that is not measured: stored before, or its point is precise enough."""
        ...


class MeasuringLoop:
    """Measures samples of one plan.

    Raises StoreError if a sample cannot be stored or no temporary folder can be created.
    KeyboardInterrupt passes through.
    """

    def __init__(
        self,
        plan: Plan,
        store: Store,
        pool: LocalPool,
        listener: ProgressListener,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan, self.store, self._pool, self._listener = plan, store, pool, listener
        self._clock = clock
        self._sampler = Sampler(pool)
        self._stored = stored_samples(store, plan.run_id)
        self._shapes = plan.shapes
        self._headlines: dict[int, list[float]] = {}
        self._canaries = 0
        self._halted = threading.Event()
        self.counts: dict[str, int] = {}

    def measure(
        self, positions: Sequence[int], batch: int = 0, deadline: float | None = None
    ) -> bool:
        """Measure samples, by position in the plan's order; return False if `deadline` ended it.

        `deadline` is on the loop's clock. A canary frames every round. If one of several concurrent
        pairs is not stored, all run again, so that each has its load; only missing ones are stored.
        """
        round_now: int | None = None
        in_time = True
        for group in concurrent_groups(self.plan.points, self.plan.order, positions):
            left = [position for position in group if not self._skipped(position)]
            if not left:
                continue
            if deadline is not None and self._clock() >= deadline:
                in_time = False
                break
            repetition = self.plan.order[group[0]][1]
            if round_now != repetition:
                self._canary(batch)
                round_now = repetition
            for position in left:
                self._listener.started(self.plan.point_at(position), repetition)
            for position, record in zip(group, self._group(group, batch), strict=True):
                if position in left:
                    self._keep(position, record)
        if round_now is not None:
            self._canary(batch)
        return in_time

    def _skipped(self, position: int) -> bool:
        """Return whether a sample need not be measured, and tell the listener."""
        index, repetition = self.plan.order[position]
        point, name = self.plan.points[index], self.plan.key(position)
        why = None
        if name in self._stored and self._recall(index, name):
            why = "stored before"
        elif self._precise(point, index, repetition):
            why = PRECISE
        if why:
            self._listener.skipped(point, repetition, why)
        return why is not None

    def _keep(self, position: int, record: SampleRecord) -> None:
        index, repetition = self.plan.order[position]
        name = self.plan.key(position)
        self._put(name, record)
        self._remember(index, repetition, record)
        self.counts[record.status] = self.counts.get(record.status, 0) + 1
        self._listener.finished(self.plan.points[index], record)

    def _put(self, name: str, record: SampleRecord) -> None:
        self.store.put(sample_key(self.plan.run_id, name), record.dump())
        self._stored.add(name)

    def _group(self, group: Sequence[int], batch: int) -> list[SampleRecord]:
        """Return the samples of a group, measured at once; one that ran alone is invalid."""
        if len(group) == 1:
            return [self._sample(group[0], batch)]
        samples = [partial(self._sample, position, batch) for position in group]
        records = run_concurrently(samples, self._halted.set)
        for record in records:
            record.facts["pairs_at_once"] = len(group)
        for record, wrong in zip(records, missing_overlaps(records), strict=True):
            if wrong and record.status == "ok":
                record.status, record.error = "invalid", wrong
        return records

    # -- precision ------------------------------------------------------------------------------

    def _recall(self, index: int, name: str) -> bool:
        """Read the value of a stored sample for `until`; return False if it is damaged."""
        if self.plan.points[index].until is not None and "-w" not in name:
            try:
                record = read_sample(self.store.get(sample_key(self.plan.run_id, name)))
            except ValueError:
                return False
            self._remember(index, record.repetition, record)
        return True

    def _remember(self, index: int, repetition: int, record: SampleRecord) -> None:
        value = headline(record.rows)
        if repetition > 0 and record.status == "ok" and value is not None:
            self._headlines.setdefault(index, []).append(value)

    def _precise(self, point: Point, index: int, repetition: int) -> bool:
        if point.until is None or repetition <= point.repetitions:
            return False
        reached = relative_precision(self._headlines.get(index, []))
        return reached is not None and reached <= point.until.relative_spread

    # -- one sample -----------------------------------------------------------------------------

    def _sample(self, position: int, batch: int) -> SampleRecord:
        """Measure a sample, and again while its status is `infrastructure`. Raises GangLost."""
        index, repetition = self.plan.order[position]
        point, attempt = self.plan.points[index], 1
        shape = self._shapes[point.shape]
        measure: Callable[[Point, Shape, int], SampleRecord] = self._sampler.measure
        if shape.hosts.pairs == "hunt":
            measure = partial(hunt, self._sampler, self._pool, self._halted.set)
        while True:
            record = measure(point, shape, repetition)
            if record.status in ("failed", "infrastructure") and (why := self._pool.lost()):
                raise GangLost(f"{why} ({record.error})")
            if record.status != "infrastructure":
                break
            if attempt > point.retries or self._halted.is_set():
                record.status = "failed"
                break
            time.sleep(min(2.0 * attempt, 10.0))
            attempt += 1
        record.batch, record.order_index = batch, position
        record.attempt = self._pool.earlier_attempts + attempt
        return record

    def _canary(self, batch: int) -> None:
        record = self._sampler.canary(batch)
        while (name := f"canary-b{batch}n{self._canaries}") in self._stored:
            self._canaries += 1
        record.repetition = self._canaries
        self._put(name, record)
        self._canaries += 1
