"""The lead of a gang: measure the samples of one batch, of `perfdag ab` both variants in turn."""

import contextlib
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from perfdag.kube.patch import SUMMARY, account_of
from perfdag.outcome import Infrastructure
from perfdag.plan.ab import stored_duet
from perfdag.plan.plan import Plan, TimeLeft
from perfdag.results import missing_reason
from perfdag.results.missing_reason import MissingReason, budget_spent
from perfdag.results.runs import RunStore
from perfdag.results.samples import SampleRecord
from perfdag.stats.robust import median, spread
from perfdag.steps.loop import PRECISE, GangLost, LocalPool, MeasuringLoop, ProgressListener
from perfdag.steps.pods.context import (
    EXIT_RETRYABLE,
    PodContext,
    clock_deadline,
    explain_end,
    refuse,
)
from perfdag.steps.pods.gather import CRASHES, assembled, forward
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
            with contextlib.suppress(OSError):  # it costs no sample
                Path(self._file).write_text(f"{self.done}/{self.total}\n")
                Path(SUMMARY).write_text(self.summary())


def check_account(account: str, plan: Plan, number: int) -> None:
    """Raise BadDocument if a pod with rights of one benchmark is to measure another one.

    The plan is read again from the store, so it may differ from the one that the plan step checked.
    """
    for position in plan.batches[number].samples if account else ():
        benchmark = plan.point_at(position).benchmark
        if account_of(benchmark) != account:
            raise refuse(f"batch {number}: {benchmark} may not use the account {account}")


def crashed_points(
    store: Store, plans: Sequence[Plan], batch: int, stored: Mapping[str, Set[str]]
) -> set[str]:
    """Return the ids of the points of a batch during whose samples CRASHES pods were lost.

    `stored` names the samples that the store has, by run. Raises StoreError.
    """
    lost = Counter[int]()
    for plan in plans:
        index = {point.id: number for number, point in enumerate(plan.points)}
        for reason in missing_reason.stored_reasons(store, plan.run_id):
            names = set(reason.samples if reason.batch == batch else ()) - stored[plan.run_id]
            lost.update({index[name.partition("-")[0]] for name in names})
    return {
        plan.points[number].id for plan in plans for number, pods in lost.items() if pods >= CRASHES
    }


def lead(context: PodContext, store: Store, plan: Plan, number: int, attempt: int) -> int:
    """Measure batch `number`; return 0, or EXIT_RETRYABLE if the gang fell apart.

    Where all samples are stored, it only dismisses its peers. Raises StoreError, KubeError.
    """
    plan, index = RunStore(store).plan_of_batch(plan, number)
    plans = RunStore(store).variants(plan)
    for variant in plans:
        check_account(context.account, variant, index)
    stored = {variant.run_id: RunStore(store).samples(variant.run_id) for variant in plans}
    progress = _progress(plans, index, stored)
    text = f"in flight when its pod ended (attempt {attempt + 1} on {context.node})"
    note = MissingReason("sample", "failed", text, index, attempt=attempt + 1, node=context.node)
    try:
        with assembled(context, plan, plan.shape_of(index), number, attempt) as gang:
            forward(context, store, number, gang)
            gang.crashed = crashed_points(store, plans, index, stored)
            measure_batch(store, plans, gang, index, progress, note)
    except (GangLost, Infrastructure) as error:
        print(f"batch {number}, attempt {attempt}: {error}", flush=True)  # noqa: T201
        explain_end(str(error))
        return EXIT_RETRYABLE
    except SystemExit:  # told to end: the samples under way are no cause
        for variant in plans:
            missing_reason.forget(store, variant.run_id, note.name)
        raise
    return 0


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
    listener: ProgressListener,
    note: MissingReason | None = None,
) -> None:
    """Measure a batch; `note` is the reason of the samples under way. Raises StoreError.

    Write why the rest is missing if the budget ends.
    """
    loops = {plan.variant: MeasuringLoop(plan, store, pool, listener, note=note) for plan in plans}
    deadline = clock_deadline(store, plans[0].run_id, plans[0])
    turns: Sequence[tuple[str | None, list[int]]] = [(None, plans[0].batches[index].samples)]
    if len(plans) > 1:
        turns = stored_duet(*plans).turns(index)
    for variant, samples in turns:
        if not loops[variant].measure(samples, index, deadline):
            for plan in plans:
                missing_reason.write(store, plan.run_id, budget_spent(plan.budget or 0, index))
            return
