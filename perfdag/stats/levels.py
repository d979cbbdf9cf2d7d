"""Levels of a series: a fold over its run medians in run order.

Every run is judged against the level that the runs before it had. A new level begins

- where three runs in a row lie on one side of the level by more than `min_effect` and four floors,
- or where the permutation tests of `stats.changes` show a change.

A new level for the worse opens an alert. The alert stays open, whatever later tests say, until
three runs in a row are back at the level before it, or until the new level is accepted. Any other
new level replaces the old one. A level keeps the noise of the levels before it.

What the fold decides at a run depends on that run and earlier runs only, so it never changes.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, NDArray

from perfdag.stats.changes import (
    HEAD,
    MIN_EFFECT,
    TAIL,
    WINDOW,
    Change,
    change_points,
    describe,
)
from perfdag.stats.level_screen import NEAR, far_from_any, screen
from perfdag.stats.robust import SIGMA_OF_MAD, Array, Scale, middle, scale_for
from perfdag.stats.variability import INFORMATIONAL
from perfdag.stats.verdicts import FLOORS, side

State = Literal["too little history", "ok", "watching", "regressed", "recovered", "accepted"]
Rule = Literal["three runs", "permutations"]
BATCH = 256
"""Runs that are screened together."""


@dataclass(frozen=True, slots=True)
class Event:
    """A new level. `run` is the run that decided it, `change.index` its first run."""

    kind: Literal["regressed", "recovered", "moved"]
    run: int
    change: Change
    rule: Rule


@dataclass(frozen=True, slots=True)
class Levels:
    """State of a series after its last run, and how it came there.

    `alerts` are the open changes for the worse. `start` is the first run of the current level.
    Indices count the values as passed.
    """

    state: State
    events: tuple[Event, ...] = ()
    alerts: tuple[Event, ...] = ()
    start: int = 0


@dataclass(frozen=True, slots=True)
class _Before:
    """The level before an alert: its first run, its median, and the gate of a recovery."""

    start: int
    base: float
    margin: float


def fold_levels(
    values: ArrayLike,
    *,
    better: str,
    min_effect: float = MIN_EFFECT,
    absolute: bool = False,
    accepted: Collection[int] = (),
) -> Levels:
    """Fold the run medians of a series, oldest first, NaN where a run has none.

    `accepted` are the runs from which on a level is accepted. `min_effect` is relative, with
    `absolute` in the unit of the metric.
    """
    array = np.asarray(values, dtype=np.float64).ravel()
    positions = np.flatnonzero(np.isfinite(array))
    if not positions.size:
        return Levels("accepted" if accepted else "too little history")
    fold = _Fold(array[positions], positions, better, min_effect, absolute)
    starts = {int(np.searchsorted(positions, run)) for run in accepted}
    fold.add_runs(starts)
    return Levels(fold.state(starts), tuple(fold.events), tuple(fold.alerts), fold.first_run())


class _Fold:
    """The fold over `values`, of which the runs from `start` on are the current level."""

    def __init__(
        self,
        values: Array,
        positions: NDArray[np.int64],
        better: str,
        min_effect: float,
        absolute: bool,
    ) -> None:
        self.values, self.positions = values, positions
        self.min_effect, self.absolute = min_effect, absolute
        self.scale: Scale = scale_for(values, absolute)
        self.x = self.scale.apply(values)
        self.gate = self.scale.gate(min_effect)
        self.worse = {"higher": -1, "lower": 1}.get(better, 0)
        self.better = better
        self.start = 0
        self.residuals = np.array([])
        self.before: _Before | None = None
        self.events: list[Event] = []
        self.alerts: list[Event] = []

    def add_runs(self, accepted: Collection[int]) -> None:
        """Judge every run, and accept the level that begins at each of `accepted`."""
        far, first = far_from_any(self.x, NEAR * self.gate), 0
        for end in sorted({*accepted, self.x.size}):
            while first < end:
                first = self._judge_runs(far, first, min(first + BATCH, end))
            if end in accepted:
                self._accept(end)

    def _judge_runs(self, far: NDArray[np.bool_], first: int, end: int) -> int:
        """Judge runs up to the first that begins a level, and return the run after it."""
        judged = {int(i): False for i in self._back(first, end)}
        runs = first + np.flatnonzero(far[first:end])
        judged |= screen(self.x, runs, self.start, self.residuals.size, self.gate)
        before = len(self.events)
        for i in sorted(judged):
            self._judge_run(i, judged[i])
            if len(self.events) > before:
                return i + 1
        return end

    def _back(self, first: int, end: int) -> NDArray[np.int64]:
        """Return the runs at which an open alert would end."""
        if self.before is None:
            return np.array([], dtype=np.int64)
        first = max(first, self.start + TAIL)
        off = self.worse * (self.x[first + 1 - TAIL : end] - self.before.base)
        if off.size < TAIL:
            return np.array([], dtype=np.int64)
        back = sliding_window_view(off, TAIL).max(axis=1) <= self.before.margin
        return first + np.flatnonzero(back)

    def _runs(self, i: int) -> NDArray[np.int64]:
        """Return the runs of the level up to run `i`, as many as are looked at together."""
        return np.arange(max(self.start, i + 1 - WINDOW), i + 1)

    def _floor(self, past: Array, base: float) -> float | None:
        """Return the noise of one run, of this level and those before, or None if unknown."""
        residuals = np.concatenate([self.residuals, past - base])[-WINDOW:]
        return SIGMA_OF_MAD * middle(np.abs(residuals)) if residuals.size >= HEAD else None

    def _judge_run(self, i: int, shifted: bool) -> None:
        """Decide whether run `i` ends an alert or begins a level."""
        runs = self._runs(i)
        past, tail = runs[:-TAIL], runs[-TAIL:]
        if self.before is not None and self._is_back(i, self.before):
            return self._recover(i, self.before, past, tail)
        if past.size < TAIL:
            return
        base = middle(self.x[past])
        floor = self._floor(self.x[past], base)
        if floor is None:
            return
        off = self.x[tail] - base
        if self._beyond(off, floor):
            self._move(i, past, tail, floor, "three runs")
        elif shifted and (k := self._tested(runs)):
            self._move(i, runs[:k], runs[k:], floor, "permutations")

    def _is_back(self, i: int, before: _Before) -> bool:
        """Return whether no run of three is worse than the level before by more than its gate."""
        if i - self.start < TAIL:
            return False
        off = self.worse * (self.x[i + 1 - TAIL : i + 1] - before.base)
        return float(off.max()) <= before.margin

    def _beyond(self, off: Array, floor: float) -> bool:
        """Return whether all runs lie on one side by more than the gate and four floors."""
        return float(max(off.min(), -off.max())) > max(self.gate, FLOORS * floor)

    def _tested(self, runs: NDArray[np.int64]) -> int:
        """Return where the permutation tests split the runs of a level, or 0."""
        x = self.x[runs]
        changes = change_points(
            self.values[runs], min_effect=self.min_effect, absolute=self.absolute
        )
        if not changes:
            return 0
        k = changes[-1].index
        base, new = middle(x[:k]), middle(x[k:])
        # Runs that are nearer to the old level belong to it, and three runs must be left.
        k += int((np.abs(x[k:] - base) > np.abs(x[k:] - new)).argmax())
        return k if x.size - k >= TAIL else 0

    def _event(
        self,
        kind: Literal["regressed", "recovered", "moved"],
        i: int,
        left: NDArray[np.int64],
        right: NDArray[np.int64],
        rule: Rule,
    ) -> Event:
        change = describe(
            self.values[left], self.values[right], self.scale, int(self.positions[right[0]])
        )
        event = Event(kind, int(self.positions[i]), change, rule)
        self.events.append(event)
        return event

    def _begin(self, first: int) -> None:
        """Begin a level. Its noise is that of the level before it until it has runs of its own."""
        runs = self._runs(first - 1)
        if runs.size:
            level = self.x[runs]
            self.residuals = np.concatenate([self.residuals, level - middle(level)])[-WINDOW:]
        self.start = first

    def _move(
        self, i: int, left: NDArray[np.int64], right: NDArray[np.int64], floor: float, rule: Rule
    ) -> None:
        base = middle(self.x[left])
        effect = middle(self.x[right]) - base
        sure = rule == "three runs" or self.absolute or floor <= INFORMATIONAL
        worse = sure and side(effect, self.better) == "worse"
        event = self._event("regressed" if worse else "moved", i, left, right, rule)
        start = self.start
        self._begin(int(right[0]))
        if worse:
            margin = min(max(self.gate, FLOORS * floor), abs(effect) / 2)
            self.before = self.before or _Before(start, base, margin)
            self.alerts.append(event)

    def _accept(self, first: int) -> None:
        self._begin(first)
        self.before, self.alerts = None, []

    def _recover(
        self, i: int, before: _Before, left: NDArray[np.int64], right: NDArray[np.int64]
    ) -> None:
        """End an alert. A short one splits no level: its three good runs were picked by chance."""
        self._event("recovered", i, left, right, "three runs")
        short = left.size < HEAD
        self._begin(int(right[0]))
        self.start = before.start if short else self.start
        self.before, self.alerts = None, []

    def first_run(self) -> int:
        """Return the first run of the current level."""
        return (
            int(self.positions[self.start])
            if self.start < self.positions.size
            else int(self.positions[-1]) + 1
        )

    def state(self, accepted: Collection[int]) -> State:
        """Return the state after the last run."""
        last = self.x.size - 1
        if self.before is not None:
            return "regressed"
        newest = self.events[-1] if self.events else None
        if newest and newest.kind == "recovered" and newest.run == int(self.positions[last]):
            return "recovered"
        if any(start >= self.start for start in accepted) and last - self.start < HEAD:
            return "accepted"
        runs = self._runs(last)
        if self._floor(self.x[runs], middle(self.x[runs])) is None:
            return "too little history"
        past, off = self.x[runs[:-2]], self.x[runs[-2:]]
        if past.size >= TAIL and (floor := self._floor(past, middle(past))) is not None:
            off = off - middle(past)
            if self._beyond(off, floor) and side(float(off[0]), self.better) == "worse":
                return "watching"
        return "ok"
