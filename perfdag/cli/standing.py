"""Where a run on a cluster stands by its store: samples done, the one under way, and the expected time that is left."""

import contextlib
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfdag.plan import Plan
    from perfdag.store import Store

BATCH_SECONDS = 15.0  # what pods of another batch take before they measure; only for expected times


@dataclass(frozen=True)
class Standing:
    """Samples stored and planned, the sample under way by name (None between batches), and the expected seconds to the end."""

    done: int
    total: int
    current: str | None
    left: float


class Counter:
    """Where a run stands by its store, where that can be reached from here; asked at most every few seconds."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._store: Store | None = None
        self._plans: list[Plan] = []
        self._at, self._stored = 0.0, dict[str, set[str]]()
        self._heard: dict[str, tuple[int, float | None]] = {}

    def count(self, run_id: str | None, batches: Sequence[int] = ()) -> Standing | None:
        """Where it stands while those batches have pods; None where the store is out of reach."""
        from perfdag.runs import load_plan, variants
        from perfdag.samples import stored_samples
        from perfdag.store import StoreError, open_store

        if run_id is None or not self.root or self.root.startswith("claim://"):
            return None
        with contextlib.suppress(StoreError):
            store = self._store = self._store or open_store(self.root, 0.0)
            plans = self._plans = self._plans or variants(store, load_plan(store, run_id))
            if time.monotonic() - self._at > 3:
                self._at = time.monotonic()
                self._stored = {plan.run_id: stored_samples(store, plan.run_id) for plan in plans}
                self._hear(store, plans[0])
            absent = [
                _absent(plan, self._stored.get(plan.run_id, ()), self._precise(plan))
                for plan in plans
            ]
            return _standing(plans, absent, batches)
        return None

    def _hear(self, store: "Store", plan: "Plan") -> None:
        """Take up the headlines of new samples of points that `until` repeats (no variant has one), each once. Raises StoreError."""
        from perfdag.samples import headline, read_sample, sample_key

        repeated = {
            plan.key(at): index
            for at, (index, repetition) in enumerate(plan.order)
            if plan.points[index].until and repetition > 0
        }
        new = sorted(self._stored[plan.run_id].intersection(repeated).difference(self._heard))
        for name, (_, data) in zip(
            new, store.get_many([sample_key(plan.run_id, name) for name in new]), strict=True
        ):
            with contextlib.suppress(ValueError):  # a damaged one is measured again
                part = read_sample(data)
                self._heard[name] = (
                    repeated[name],
                    headline(part.rows) if part.status == "ok" else None,
                )

    def _precise(self, plan: "Plan") -> set[int]:
        """The points (by index) that `until` repeats no more."""
        from perfdag.samples import relative_precision

        values: dict[int, list[float]] = {}
        for index, value in self._heard.values():
            if value is not None:
                values.setdefault(index, []).append(value)
        reached = {index: relative_precision(each) for index, each in values.items()}
        asked = {
            index: until.relative_spread for index in reached if (until := plan.points[index].until)
        }
        return {
            index
            for index, limit in asked.items()
            if (found := reached[index]) is not None and found <= limit
        }


def _added(plan: "Plan", at: int) -> bool:
    """Whether `until` may need that sample, or may not."""
    index, repetition = plan.order[at]
    return repetition > plan.points[index].repetitions


def _absent(plan: "Plan", stored: Collection[str], precise: Collection[int]) -> list[list[int]]:
    """The samples of each batch that are to be measured; those that `until` does not need are as good as done."""

    def done(at: int) -> bool:
        return plan.key(at) in stored or (_added(plan, at) and plan.order[at][0] in precise)

    return [[at for at in batch.samples if not done(at)] for batch in plan.batches]


def _standing(
    plans: "Sequence[Plan]", absent: Sequence[list[list[int]]], batches: Sequence[int]
) -> Standing:
    """Of the samples that are `absent` in each plan (variants share the pods of a batch) those that `until` may yet need take no expected
    time, as in Plan.seconds."""
    from perfdag.pairs import together

    left, todo = 0.0, set[int]()
    for plan, by_batch in zip(plans, absent, strict=True):
        for number, positions in enumerate(by_batch):
            groups = together(
                plan.points, plan.order, [at for at in positions if not _added(plan, at)]
            )
            left += sum(plan.group_seconds(group) for group in groups)
            todo |= {number} if groups and number not in batches else set()
    total = sum(len(plan.order) for plan in plans)
    return Standing(
        total - sum(map(len, chain(*absent))),
        total,
        _current(plans, absent, batches),
        left + BATCH_SECONDS * len(todo),
    )


def _current(
    plans: "Sequence[Plan]", absent: Sequence[list[list[int]]], batches: Sequence[int]
) -> str | None:
    """The sample under way in the first of these batches that has one left; variants take turns."""
    for number in batches:
        next_ones = [
            (plan, each[number][0])
            for plan, each in zip(plans, absent, strict=True)
            if number < len(each) and each[number]
        ]
        if not next_ones:
            continue
        if len(plans) == 1:
            plan, at = next_ones[0]
            return plan.points[plan.order[at][0]].sample(plan.order[at][1])
        from perfdag.duet_plan import stored_duet

        turns = [("A", 0), ("B", 0), *stored_duet(plans[0], plans[1]).rounds()]
        plan, at = min(
            next_ones,
            key=lambda one: turns.index((str(one[0].variant), max(one[0].order[one[1]][1], 0))),
        )
        return (
            f"{plan.points[plan.order[at][0]].sample(plan.order[at][1])} of variant {plan.variant}"
        )
    return None
