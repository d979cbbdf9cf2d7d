"""Levels of a series: the one rule by which perfdag says that something changed, and since when.

A night is a run with its re-measurements, whenever it ran. It counts once, as the mean of their
logarithms, because measurements of one night share more than those of two. A level has a reference,
the median of its first WINDOW nights, and a noise from the same nights, so that a slow drift moves
neither. A night that shows something else (perfdag.stats.evidence) decides a new level, which
begins where a split of the nights fits best. A drift is what no night and no split shows, but a
line does.

What is decided at a night depends on it and earlier ones alone, so it never changes.
"""

import math
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np
from numpy.typing import ArrayLike

from perfdag.stats.evidence import ONE_NIGHT, SIGMAS, STEP, Evidence, Split
from perfdag.stats.scale import (
    FEW,
    MIN_EFFECT,
    MIN_FRACTION,
    WINDOW,
    Array,
    Nights,
    Scale,
    middle,
    scale_for,
    two_speeds,
    widening,
)


@dataclass
class Level:
    """A level from the night at position `start` on, which the one at `decided` showed.

    It began there, or as likely from `first` to `last`, or before that where `earlier`. `became` is
    what it was when so many nights decided it (`decided_by`), and stays so. `reference`, in the
    unit of the metric, and `noise`, on the scale of the level, are those of its nights by now.
    Effects are relative, or in the unit of the metric where that is named: `unit`, for people.
    Values below `low` or above `high` are beyond it. `nights` counts those of the level, `ends` is
    the start of the next one.
    """

    start: int
    decided: int
    scale: Scale
    unit: str
    min_effect: float
    first: int
    last: int
    earlier: bool = False
    became: float = math.nan
    decided_by: int = 0
    reference: float = math.nan
    noise: float = math.nan
    low: float = math.nan
    high: float = math.nan
    nights: int = 0
    ends: int | None = None

    def side(self, value: float) -> int:
        """Return 1 if a value is beyond the level upwards, -1 downwards, else 0."""
        return (value > self.high) - (value < self.low)

    def side_of(self, other: "Level") -> int:
        """Return 1 if another level is above this one, -1 below it, 0 if it may be the same.

        The next one was decided to be another. Of a later one, few nights may be known.
        """
        x, base = self.scale.apply([other.became, self.reference]).tolist()
        window = min(self.nights, WINDOW)
        width = SIGMAS * self.noise * math.sqrt(1 / other.decided_by + 1 / window)
        if self.ends == other.start:
            width = 0.0
        away = abs(x - base) >= max(width, self.scale.gate(self.min_effect) * (1 - 1e-9))
        return int(math.copysign(1, x - base)) if away else 0

    def effect(self, value: float) -> float:
        """Return a value against the reference: -0.4 is a fall of 40 % of the reference."""
        return self.scale.change(self.reference, value)


@dataclass
class Levels:
    """The levels of a series, oldest first, and the nights at which another may have begun.

    `min_effect` is relative, with `absolute` in the unit of the metric, for people `unit`. A
    `fraction` has the unit 1, and is one if all its values lie from 0 to 1. A level of it that
    begins at 0 or 1 counts differences of at least MIN_FRACTION. `nights` has what was
    measured. `row` counts the newest nights in a row beyond the level. `suspicious` has the side of
    each night that may have begun a level, by its position: it is worth measuring again.
    """

    min_effect: float = MIN_EFFECT
    absolute: bool = False
    fraction: bool = False
    unit: str = "1"
    nights: Nights = field(default_factory=lambda: Nights.of([]))
    levels: list[Level] = field(default_factory=list)
    row: int = 0
    suspicious: dict[int, int] = field(default_factory=dict)

    @property
    def current(self) -> Level:
        """The level of the newest nights."""
        return self.levels[-1]

    @property
    def measured(self) -> int:
        """The nights at which the series was measured."""
        return len(self.nights.at)

    @property
    def undecided(self) -> int:
        """The newest nights in a row at which nothing is decided; 0 where all is."""
        newest_first = enumerate(reversed(self.nights.at.tolist()))
        return next((count for count, at in newest_first if at not in self.suspicious), 0)

    @property
    def side(self) -> int:
        """The side to which the newest night is suspicious: 1, -1, or 0 where it is not."""
        return self.suspicious.get(int(self.nights.at[-1]), 0) if self.measured else 0

    def scale(self, values: ArrayLike) -> tuple[Scale, float]:
        """Return the scale of values of the series, and the smallest effect that counts."""
        measured = self.nights.value
        fraction = self.fraction and bool(((measured >= 0) & (measured <= 1)).all())
        scale = scale_for(values, self.absolute, fraction)
        touches = scale.kind == "absolute" and not self.absolute
        return scale, MIN_FRACTION if touches else self.min_effect

    def nights_to_judge(self, value: float) -> float:
        """Return the nights of the newest level after which one night of this value decides alone.

        It is infinite where the noise hides the value from any single night.
        """
        level = self.current
        x, base = level.scale.apply([value, level.reference]).tolist()
        errors = abs(x - base) / level.noise
        return math.ceil(FEW / (errors / ONE_NIGHT - 1)) if errors > ONE_NIGHT else math.inf

    def effect_unit(self, scale: Scale) -> str:
        """Return the unit of effects on a scale, or an empty text where they are relative."""
        return self.unit if scale.kind == "absolute" else ""

    def at(self, position: int) -> Level | None:
        """Return the level that a measurement belongs to, or None before the first."""
        return next((level for level in reversed(self.levels) if level.start <= position), None)


def add_levels(series: Levels) -> None:
    """Add the levels that the nights of a series decide, oldest first; see `Levels`."""
    decided = min(STEP, series.measured) - 1
    split: Split | None = Split(0, 0, 0)
    while split is not None and series.measured:
        split, decided = _add_level(series, split, decided)


def _add_level(series: Levels, split: Split, decided: int) -> tuple[Split | None, int]:
    """Add the level that begins at a split. Return where the next one begins, and what decided it.

    All three count nights of the series.
    """
    start = split.start
    at = series.nights.at.tolist()
    nights = series.nights.since(start)
    first = nights.value[: decided - start + 1]
    scale, min_effect = series.scale(first)
    before = series.levels[-1] if series.levels else None
    gate = prior = scale.gate(min_effect)
    if before and before.scale.kind == scale.kind:
        prior = before.noise
    evidence = Evidence.of(nights.on(scale), gate, prior, fewest=1 if before else STEP)
    decision = evidence.decision(decided - start)
    row = 0 if decision.split else int(evidence.rows[-1])
    count = decision.split.start if decision.split else len(nights.at) - row
    low, high, noise = evidence.band(count)
    series.levels.append(
        Level(
            at[start],
            at[decided],
            scale,
            series.effect_unit(scale),
            min_effect,
            first=at[split.first],
            last=at[split.last],
            earlier=split.earlier,
            became=_became(series, start, first),
            decided_by=first.size,
            reference=middle(nights.value[: min(count, WINDOW)]),
            noise=noise,
            low=scale.value(low),
            high=scale.value(high),
            nights=count + row,
        )
    )
    series.row = row
    for position, side in zip(at[start:], decision.suspicious.tolist(), strict=False):
        if side:
            series.suspicious[position] = side
    if decision.split is None:
        return None, decided
    series.levels[-1].ends = at[start + count]
    return decision.split.later(start), start + decision.night


def _became(series: Levels, start: int, first: Array) -> float:
    """Return what a level is by its `first` nights: their median.

    After a level with two speeds, a median may be that of the other speed. So the level is what the
    reference before it became if it moved as far as the mean did.
    """
    if series.levels:
        before = series.levels[-1]
        begin = int(np.searchsorted(series.nights.at, before.start))
        x = before.scale.apply(series.nights.value[begin:start][:WINDOW])
        if two_speeds(x, before.scale.gate(before.min_effect)):
            moved = before.scale.apply(first).mean() - x.mean()
            return before.scale.value(float(before.scale.apply(before.reference) + moved))
    return middle(first)


DRIFT_NIGHTS, DRIFT_SIGMAS = 20, 5.0
"""Fewest nights of a drift, and the errors by which its slope differs from 0.

They are many, because the line is the best one of all that may be drawn.
"""


@dataclass(frozen=True, slots=True)
class Drift:
    """A line through the nights from the one at position `start` on, with the values of its ends.

    `change` is from `begin` to `end`: relative, or in the unit of the metric.
    """

    start: int
    begin: float
    end: float
    change: float


def drift_of(levels: Levels) -> Drift | None:
    """Return the drift of the newest nights of a series, or None.

    It is the line that explains most of what the levels leave. Its slope is
    DRIFT_SIGMAS errors away from 0, and it moved by at least the smallest effect.
    """
    newest = levels.current
    scale = newest.scale
    alike = takewhile(lambda level: level.scale.kind == scale.kind, reversed(levels.levels))
    chosen = list(alike)[::-1]
    first = int(np.searchsorted(levels.nights.at, chosen[0].start))
    at = levels.nights.at[first:]
    if len(at) < DRIFT_NIGHTS:
        return None
    x = scale.apply(levels.nights.value[first:])
    of_level = np.searchsorted([level.start for level in chosen], at, side="right") - 1
    means = np.bincount(of_level, x) / np.bincount(of_level)
    line = _line(x, x - means[of_level])
    if line is None or abs(line.moved) < scale.gate(newest.min_effect):
        return None
    begin = scale.value(line.end - line.moved)
    end = scale.value(line.end)
    return Drift(int(at[line.start]), begin, end, scale.change(begin, end))


@dataclass(frozen=True, slots=True)
class _Line:
    """A line since a night: what it is at the newest night, and by how much it moved up to that."""

    start: int
    end: float
    moved: float


def _line(x: Array, residuals: Array) -> _Line | None:
    """Return the line that explains most of what levels leave, where its slope is sure.

    Sums go from each night to the newest, so that lines since every night are fitted at once.
    """
    count = np.arange(x.size, 0, -1)
    ago = count - 1.0  # nights before the newest
    mean_ago = ago / 2
    spread_ago = count * (count**2 - 1.0) / 12
    y = x - x[-1]
    mean = _sums(y) / count
    together = _sums(y * ago) - count * mean_ago * mean
    slopes = np.divide(together, spread_ago, out=np.zeros_like(y), where=spread_ago > 0)
    unexplained = _sums(y**2) - count * mean**2 - slopes * together
    gains = _sums(residuals**2) - unexplained
    start = int(np.argmax(gains[: x.size - DRIFT_NIGHTS + 1]))
    slope = float(slopes[start])
    end = float(mean[start] - slope * mean_ago[start])
    around = (y - end - slope * ago)[start:]
    noise = math.sqrt(float((around**2).sum()) / (around.size - 2))
    wide = float(widening(around[None], np.array([noise]), np.array([around.size]))[0])
    error = wide * noise / math.sqrt(spread_ago[start])
    if gains[start] <= 0 or abs(slope) <= DRIFT_SIGMAS * error:
        return None
    return _Line(start, float(x[-1]) + end, -slope * float(ago[start]))


def _sums(values: Array) -> Array:
    """Return the sum of each value and those after it."""
    return np.cumsum(values[::-1])[::-1]
