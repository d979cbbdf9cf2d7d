"""What a lead measures now, kept in the store, since a process that is killed cannot tell.

A point that two pods of its batch were lost with is recorded as failed, and the run goes on.
"""

from collections import Counter
from collections.abc import Iterator, Set
from dataclasses import replace

from perfdag.benchmark import registry
from perfdag.plan.plan import Plan
from perfdag.results import missing_reason
from perfdag.results.missing_reason import MissingReason
from perfdag.results.samples import SampleRecord, now, sample_key
from perfdag.steps.loop.measure import ProgressListener
from perfdag.steps.runner.pod_context import PodContext
from perfdag.store.base import Store
from perfdag.suite.points import Point

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
        missing_reason.write(self._store, self._run_id, note)
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
        missing_reason.forget(self._store, self._run_id, self._note)


def crashes(store: Store, plan: Plan, batch: int, stored: Set[str]) -> Counter[int]:
    """Return how many pods were lost while they measured each point, by its index in the plan.

    `stored` names the samples that the store has. Raises StoreError.
    """
    index = {point.id: number for number, point in enumerate(plan.points)}
    return Counter(
        point
        for reason in missing_reason.stored_reasons(store, plan.run_id)
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
