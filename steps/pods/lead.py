"""The lead of a gang: measure the samples of one batch, of `perfdag ab` both variants in turn."""

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfdag.benchmark import registry
from perfdag.benchmark.contract import Infrastructure
from perfdag.kube.client import KubeError
from perfdag.kube.patch import SUMMARY
from perfdag.plan.plan import Plan, TimeLeft, stored_duet
from perfdag.results.runs import plan_of_batch, variants
from perfdag.results.samples import (
    MissingReason,
    SampleRecord,
    budget_spent,
    forget_reasons,
    now,
    sample_key,
    stored_reasons,
    stored_samples,
    write_reason,
)
from perfdag.stats.robust import median, spread
from perfdag.steps.loop import PRECISE, GangLost, LocalPool, MeasuringLoop, ProgressListener
from perfdag.steps.pods.context import EXIT_REFUSED, EXIT_RETRYABLE, PodContext, clock_deadline
from perfdag.steps.pods.gather import GangPool, GangUnavailable, assembled, forward
from perfdag.steps.pods.kinds import check_account
from perfdag.store.base import Store
from perfdag.suite.points import Point
from perfdag.units import plural, short, short_seconds, with_spread


class ProgressReporter:
    """Report progress: lines on stdout, N/M in Argo's progress file, and SUMMARY.

    `time_left` is that of the run from the first sample of this lead on. `points` is how many
    points the samples are of.
    """

    def __init__(self, total: int, time_left: TimeLeft | None = None, points: int = 0) -> None:
        self.total, self.done, self._points = total, 0, points
        self._values: dict[str, tuple[Point, dict[str, Any], list[float]]] = {}
        self._time, self._started = time_left, time.monotonic()
        self._file = os.environ.get("ARGO_PROGRESS_FILE")
        self._report()

    def started(self, point: Point, repetition: int) -> None:
        """Record that a sample begins."""
        self._started = time.monotonic()

    def finished(self, point: Point, record: SampleRecord) -> None:
        """Record and print that a sample is stored."""
        self.done += 1
        name = f"{point.entry} {point.label} repetition {record.repetition}"
        error = f": {record.error}" if record.error else self._figure(point, record)
        left = ""
        if self._time:
            self._time.done(point, record.repetition, time.monotonic() - self._started)
            left = f" (about {short_seconds(self._time.seconds())} left)"
        print(f"{self.done}/{self.total} {record.status} {name}{error}{left}", flush=True)  # noqa: T201
        self._report()

    def _figure(self, point: Point, record: SampleRecord) -> str:
        """Note the headline of a sample; return it for the log."""
        row = next((row for row in record.rows if row["headline"]), None)
        if row is None:
            return ""
        if record.repetition > 0:
            self._values.setdefault(point.id, (point, row, []))[2].append(row["value"])
        return f" {short(row['value'], row['unit'], row['metric'])}"

    def summary(self) -> str:
        """Return the best point with its spread, and how many points have a value."""
        best = max(
            self._values.values(),
            key=lambda each: median(each[2]) * (1 if each[1]["better"] == "higher" else -1),
            default=None,
        )
        counts = f"{len(self._values)} of {plural(self._points, 'point')}"
        if best is None:
            return counts
        point, row, values = best
        band, text = spread(values), short(values[0], row["unit"], row["metric"])
        if len(values) > 1:
            text = with_spread(median(values), band.low, band.high, row["unit"], row["metric"])
        return f"{point.label} {text}, {counts}".strip()

    def skipped(self, point: Point, repetition: int, why: str) -> None:
        """Count a sample that `until` does not need. The total excludes samples stored before."""
        if why == PRECISE:
            if self._time:
                self._time.done(point, repetition)
            self.done += 1
            self._report()

    def _report(self) -> None:
        if self._file:
            try:
                Path(self._file).write_text(f"{self.done}/{self.total}\n")
                Path(SUMMARY).write_text(self.summary())
            except OSError as error:
                print(f"progress is not reported to Argo: {error}", file=sys.stderr)  # noqa: T201
                self._file = None


CRASHES = 2
"""Pods that may be lost while they measure a point; of the variants of `ab` both together."""


class UnderWay:
    """Writes the samples under way into the store, and tells another listener of all progress."""

    def __init__(
        self,
        context: PodContext,
        store: Store,
        plan: Plan,
        batch: int,
        attempt: int,
        listener: ProgressListener,
    ) -> None:
        self._store, self._run_id, self._listener = store, plan.run_id, listener
        text = f"in flight when its pod ended (attempt {attempt + 1} on {context.node})"
        self._note = MissingReason(
            "sample", "failed", text, batch, attempt=attempt + 1, node=context.node
        )
        self._samples: list[str] = []

    def started(self, point: Point, repetition: int) -> None:
        """Write a sample that begins; several may be measured at once."""
        self._samples.append(point.key(repetition))
        note = replace(self._note, samples=tuple(self._samples))
        write_reason(self._store, self._run_id, note)
        self._listener.started(point, repetition)

    def finished(self, point: Point, record: SampleRecord) -> None:
        """Leave out a sample that is stored."""
        self._samples.remove(point.key(record.repetition))
        self._listener.finished(point, record)

    def skipped(self, point: Point, repetition: int, why: str) -> None:
        """Pass on a sample that is not measured."""
        self._listener.skipped(point, repetition, why)

    def forget(self) -> None:
        """Remove the samples from the store: the pod was told to end, and they are no cause."""
        forget_reasons(self._store, self._run_id, self._note.name)


def crashes(store: Store, plan: Plan, batch: int, stored: Set[str]) -> Counter[int]:
    """Return how many pods were lost while they measured each point, by its index in the plan.

    `stored` names the samples that the store has. Raises StoreError.
    """
    index = {point.id: number for number, point in enumerate(plan.points)}
    return Counter(
        point
        for reason in stored_reasons(store, plan.run_id)
        if reason.batch == batch
        for point in {
            index[name.partition("-")[0]] for name in reason.samples if name not in stored
        }
    )


def fail_crashers(
    context: PodContext,
    store: Store,
    plan: Plan,
    batch: int,
    lost: Counter[int],
    stored: Set[str],
) -> Iterator[tuple[Point, SampleRecord]]:
    """Store the samples of points with CRASHES crashes as failed; yield them. Raises StoreError."""
    for position in plan.batches[batch].samples:
        index, repetition = plan.order[position]
        if lost[index] < CRASHES or plan.key(position) in stored:
            continue
        point, moment = plan.points[index], now()
        record = SampleRecord(
            point.id,
            repetition,
            "failed",
            error=f"{lost[index]} pods were lost while they measured this point",
            started_at=moment,
            finished_at=moment,
            benchmark_version=str(registry.get(point.benchmark).version),
            batch=batch,
            order_index=position,
            attempt=lost[index],
            where=context.where,
        )
        store.put(sample_key(plan.run_id, plan.key(position)), record.dump())
        yield point, record


STOP_SECONDS = 5.0
"""Seconds within which `argo stop` tells all pods of a gang to end."""


def lead(context: PodContext, store: Store, plan: Plan, number: int, attempt: int) -> int:
    """Measure batch `number`; return 0, or EXIT_RETRYABLE or EXIT_REFUSED if the gang fell apart.

    Where all samples are stored, it only dismisses its peers. Raises StoreError, KubeError.
    """
    plan, index = plan_of_batch(store, plan, number)
    plans = variants(store, plan)
    for variant in plans:
        check_account(context.account, variant, index)
    stored = {variant.run_id: stored_samples(store, variant.run_id) for variant in plans}
    progress = _progress(plans, index, stored)
    lost = Counter[int]()
    for variant in plans:
        lost += crashes(store, variant, index, stored[variant.run_id])
    for variant in plans:
        have = stored[variant.run_id]
        for point, record in fail_crashers(context, store, variant, index, lost, have):
            progress.finished(point, record)
    shape = plan.shape_of(index)
    try:
        with assembled(context, plan, shape, number, attempt) as gang:
            forward(context, store, shape, number, gang)
            for variant in plans:
                forget_reasons(store, variant.run_id, f"batch-{index}")
            # an earlier gang used the claim that the pods of a batch share
            reused = attempt > 0 and shape.volume is not None and shape.volume.batch_claim
            pool = GangPool(context, shape, gang, plan.where.get("nodes"), reused)
            listeners = [
                UnderWay(context, store, variant, index, attempt, progress) for variant in plans
            ]
            try:
                try:
                    measure_batch(store, plans, pool, index, listeners)
                except (KeyboardInterrupt, GangLost):  # a peer is gone
                    # `argo stop` tells the pods of a gang to end one after the other: if it was
                    # that, SIGTERM reaches this pod too, and no reason has to be written
                    time.sleep(STOP_SECONDS)
                    raise
            except SystemExit:  # told to end
                for listener in listeners:
                    listener.forget()
                raise
        return 0
    except (GangUnavailable, GangLost, Infrastructure, KubeError) as error:
        if isinstance(error, KubeError) and error.status != 403:
            raise
        print(f"batch {number}, attempt {attempt}: {error}", flush=True)  # noqa: T201
        for variant in plans:
            reason = MissingReason("batch", "failed", str(error), index)
            write_reason(store, variant.run_id, reason)
        return EXIT_REFUSED if isinstance(error, KubeError) else EXIT_RETRYABLE


def _progress(
    plans: Sequence[Plan], index: int, stored: Mapping[str, Set[str]]
) -> ProgressReporter:
    """Return the progress over the missing samples of a batch, with the time to the run's end."""
    total, time_left, points = 0, TimeLeft(), set[str]()
    for plan in plans:
        have = stored[plan.run_id]
        left = [each for each in plan.batches[index].samples if plan.key(each) not in have]
        total += len(left)
        points |= {plan.point_at(position).id for position in left}
        later = (each for batch in plan.batches[index + 1 :] for each in batch.samples)
        time_left.add(plan, [*left, *later])
    return ProgressReporter(total, time_left, len(points))


def measure_batch(
    store: Store,
    plans: Sequence[Plan],
    pool: LocalPool,
    index: int,
    listeners: Sequence[ProgressListener],
) -> None:
    """Measure a batch with a listener for each plan. Raises StoreError.

    Write why the rest is missing if the budget ends.
    """
    loops = {
        plan.variant: MeasuringLoop(plan, store, pool, listener)
        for plan, listener in zip(plans, listeners, strict=True)
    }
    deadline = clock_deadline(store, plans[0].run_id, plans[0])
    turns: Sequence[tuple[str | None, list[int]]] = [(None, plans[0].batches[index].samples)]
    if len(plans) > 1:
        turns = stored_duet(*plans).turns(index)
    for variant, samples in turns:
        if not loops[variant].measure(samples, index, deadline):
            for plan in plans:
                write_reason(store, plan.run_id, budget_spent(plan.budget or 0, index))
            return
