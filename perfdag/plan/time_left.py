"""The expected time of the samples that are left, corrected by what finished samples took."""

from collections import defaultdict
from collections.abc import Iterable
from copy import deepcopy

from perfdag.plan.plan import SAMPLE_OVERHEAD, Plan
from perfdag.suite.point import Point

_ALL = ""
"""Stands for all entries; no entry has an empty name."""


class TimeLeft:
    """The expected seconds of some samples, and the ratio of measured to expected seconds.

    The samples of an entry go by the ratio of its finished samples. Until one has finished, they go
    by that of all. A running sample counts as soon as it takes longer than expected.
    """

    def __init__(self, plan: Plan, positions: Iterable[int]) -> None:
        self._left: dict[str, float] = defaultdict(float)
        self._expected: dict[str, float] = defaultdict(float)
        self._took: dict[str, float] = defaultdict(float)
        self.add(plan, positions)

    def add(self, plan: Plan, positions: Iterable[int]) -> None:
        """Add samples of a plan."""
        for index, repetition in (plan.order[position] for position in positions):
            self._left[plan.points[index].entry] += expected_seconds(plan.points[index], repetition)

    def drop(self, point: Point, repetition: int) -> None:
        """Remove a sample that is not measured."""
        self._left[point.entry] -= expected_seconds(point, repetition)

    def finish(self, point: Point, repetition: int, seconds: float) -> None:
        """Remove a sample that took `seconds`."""
        self.drop(point, repetition)
        for entry in (point.entry, _ALL):
            self._expected[entry] += point.seconds + SAMPLE_OVERHEAD
            self._took[entry] += seconds

    def of_sample(self, point: Point) -> float:
        """Return the expected seconds of one sample."""
        return (point.seconds + SAMPLE_OVERHEAD) * self._ratio(point.entry)

    def seconds(
        self, point: Point | None = None, repetition: int = 0, elapsed: float = 0.0
    ) -> float:
        """Return the expected seconds to the end; `point` is measured since `elapsed` seconds."""
        if point is not None and elapsed > self.of_sample(point):
            # At best, the sample ends now, and the others of its entry take as long.
            late = deepcopy(self)
            late.finish(point, repetition, elapsed)
            return late.seconds()
        left = sum(left * self._ratio(entry) for entry, left in self._left.items())
        return max(left - elapsed, 0.0)

    def _ratio(self, entry: str) -> float:
        entry = entry if self._expected[entry] else _ALL
        return self._took[entry] / self._expected[entry] if self._expected[entry] else 1.0


def expected_seconds(point: Point, repetition: int) -> float:
    """Return the expected seconds of a sample; 0 for a repetition that `until` may add."""
    return point.seconds + SAMPLE_OVERHEAD if repetition <= point.repetitions else 0.0
