"""Levels of a series of measurements: the one rule by which perfdag says that something changed.

A measurement is the median of a run, or of the re-measurement of a suspicious point. A level has a
reference, the median of its first WINDOW measurements, and a noise from the same measurements, so
that a slow drift moves neither. Three measurements in a row on one side of the level, each beyond
the smallest effect and SIGMAS standard errors, begin a new level.

What is decided at a measurement depends on it and earlier ones only, so it never changes.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfdag.stats.robust import SIGMA_OF_MAD

Word = Literal["worse", "better", "same", "unclear", "failed"]
"""The words of every verdict."""

WINDOW = 30
"""Measurements of a level that make its reference and its noise."""
STEP = 3
"""Measurements in a row beyond a level that begin the next, and the fewest of the first level."""
SIGMAS = 2.9
"""Standard errors by which a measurement beyond the level is away from the reference.

benchmarks/detector.py chose it: with it, false steps and steps that are found both reach their
targets.
"""
MIN_EFFECT, MIN_FRACTION = 0.05, 0.01
"""Smallest change that counts: of a value, and of a fraction from 0 to 1 that touches 0.

It is also the noise that is assumed of a series of which nothing is known.
"""
WEIGHT = 4.0
"""The measurements that this assumption is worth."""


Array = NDArray[np.float64]


def finite(values: ArrayLike) -> Array:
    """Return the finite values as a flat float array. None and NaN (failed samples) are dropped."""
    array = np.asarray(values, dtype=np.float64).ravel()
    return array[np.isfinite(array)]


def middle(array: Array) -> float:
    """Return the median of a flat array of finite values. Raises IndexError where it is empty.

    It is ten times as fast as that of numpy on a few values.
    """
    order = np.sort(array)
    half = order.size // 2
    return float(order[half]) if order.size % 2 else float(order[half - 1] + order[half]) / 2


def robust_sigma(values: ArrayLike) -> float:
    """Return 1.4826 times the median absolute deviation, NaN below two values."""
    array = finite(values)
    return SIGMA_OF_MAD * middle(np.abs(array - middle(array))) if array.size >= 2 else math.nan


@dataclass(frozen=True, slots=True)
class Scale:
    """How values become numbers whose differences are effects.

    "log": differences of logarithms, for positive values. "relative": values over `unit` (the size
    of their median), for series that touch zero or go below. "absolute": the values themselves, for
    ratios such as a loss of 0 to 1.
    """

    kind: Literal["log", "relative", "absolute"]
    unit: float = 1.0

    def apply(self, values: ArrayLike) -> Array:
        """Return the values on this scale."""
        array = np.asarray(values, dtype=np.float64)
        return np.log(array) if self.kind == "log" else array / self.unit

    def value(self, x: float) -> float:
        """Return the value that has the number `x` on this scale."""
        return math.exp(x) if self.kind == "log" else x * self.unit

    def gate(self, min_effect: float) -> float:
        """Return the smallest effect that counts, relative or absolute, on this scale."""
        return math.log1p(min_effect) if self.kind == "log" else min_effect

    def effect(self, difference: float) -> float:
        """Return a difference on this scale as an effect: relative (0.1 is +10 %) or absolute."""
        return math.expm1(difference) if self.kind == "log" else difference


def scale_for(values: Sequence[float] | Array, absolute: bool = False) -> Scale:
    """Return the scale for finite values: log if all are positive, else relative to |median|."""
    array = finite(values)
    if absolute:
        return Scale("absolute")
    if array.size and array.min() > 0:
        return Scale("log")
    size = float(np.abs(array).mean()) if array.size else 0.0
    typical = abs(middle(array)) if array.size else 0.0
    return Scale("relative", typical or size or 1.0)


def side_word(side: float, better: str) -> Word:
    """Return the word for a change upwards (positive) or downwards.

    Without a better direction no change is for the worse or the better, so the word is unclear.
    """
    if better not in ("higher", "lower"):
        return "unclear"
    return "better" if (side > 0) == (better == "higher") else "worse"


def noise_of(residuals: Iterable[float], prior: float = MIN_EFFECT) -> float:
    """Return the standard deviation of one measurement from residuals around a median.

    It is the larger of 1.4826 MAD and the 95 % quantile of the absolute residuals over 1.96,
    because a MAD is 0 where most measurements are equal. Few measurements are shrunk towards the
    prior: the variances are weighted by n - 1 and WEIGHT.
    """
    sizes = np.sort(np.abs(np.fromiter(residuals, dtype=np.float64)))
    if not sizes.size:
        return prior
    weight = sizes.size - 1
    q95 = float(np.interp(0.95 * weight, np.arange(sizes.size), sizes))  # as np.quantile, faster
    own = max(SIGMA_OF_MAD * middle(sizes), q95 / 1.96)
    return math.sqrt((weight * own**2 + WEIGHT * prior**2) / (weight + WEIGHT))


@dataclass
class Level:
    """A level from measurement `start` on, which measurement `decided` showed.

    `reference` is in the unit of the metric, `noise` on the scale of the level. Values below `low`
    or above `high` are beyond it. `ends` is the start of the next level, None for the current one.
    """

    start: int
    decided: int
    scale: Scale
    min_effect: float
    values: list[float]
    reference: float = math.nan
    noise: float = math.nan
    low: float = math.nan
    high: float = math.nan
    ends: int | None = None

    def add(self, value: float) -> None:
        """Count a value of this level, as long as its window is open."""
        if len(self.values) < WINDOW and (value > 0 or self.scale.kind != "log"):
            self.values.append(value)
            self.settle()

    def settle(self) -> None:
        """Compute the reference and the noise from the values of the window."""
        x = self.scale.apply(self.values)
        base = middle(x)
        self.noise = noise_of(x - base, self.scale.gate(self.min_effect))
        self.reference = middle(np.sort(self.values))
        if self.scale.kind == "relative" and not any(self.values):
            self.low = self.high = 0.0  # nothing tells how large a value is: every other is beyond
            return
        self.low, self.high = (self.scale.value(base + sign * self.threshold) for sign in (-1, 1))

    @property
    def threshold(self) -> float:
        """The distance on the scale of the level from which a measurement is beyond it."""
        error = self.noise * math.sqrt(1 + 1 / len(self.values))
        return max(self.scale.gate(self.min_effect), SIGMAS * error)

    def side(self, value: float) -> int:
        """Return 1 if a value is beyond the level upwards, -1 downwards, else 0."""
        return (value > self.high) - (value < self.low)

    def effect(self, value: float) -> float:
        """Return a value against the reference: -0.4 is a fall of 40 % of the reference.

        On an absolute scale it is the difference. No fall of a positive level exceeds 100 %.
        """
        if self.scale.kind == "absolute":
            return value - self.reference
        if not self.reference:
            return math.copysign(math.inf, value) if value else 0.0
        effect = (value - self.reference) / abs(self.reference)
        return max(effect, -1.0) if self.scale.kind == "log" else effect


@dataclass
class Levels:
    """The levels of a series, oldest first, and its newest measurements that may begin another.

    `min_effect` is relative, with `absolute` in the unit of the metric. A level of a `fraction`
    (0 to 1) that begins with a 0 counts differences of at least MIN_FRACTION. `beyond` has the
    measurements at the end that lie beyond the current level on one side, `measured` counts all.
    """

    min_effect: float = MIN_EFFECT
    absolute: bool = False
    fraction: bool = False
    levels: list[Level] = field(default_factory=list)
    beyond: list[tuple[int, float]] = field(default_factory=list)
    measured: int = 0

    def add(self, index: int, value: float) -> None:
        """Add the measurement with an index, which is larger than those before."""
        self.measured += 1
        if self.measured <= STEP:
            first = self.levels.pop() if self.levels else None
            start, values = (first.start, first.values) if first else (index, [])
            return self._begin(start, index, [*values, value])
        level = self.levels[-1]
        side = level.side(value)
        if self.beyond and side != level.side(self.beyond[-1][1]):
            for _, earlier in self.beyond:
                level.add(earlier)
            self.beyond = []
            side = level.side(value)
        if not side:
            return level.add(value)
        self.beyond.append((index, value))
        if len(self.beyond) == STEP:
            level.ends = self.beyond[0][0]
            self._begin(level.ends, index, [each for _, each in self.beyond])
            self.beyond = []

    def _begin(self, start: int, decided: int, values: list[float]) -> None:
        level = Level(start, decided, *self.scale(values), values)
        level.settle()
        self.levels.append(level)

    def scale(self, values: Sequence[float]) -> tuple[Scale, float]:
        """Return the scale of values of the series, and the smallest effect that counts."""
        fraction = self.fraction and min(values) == 0 and max(values) <= 1
        effect = MIN_FRACTION if fraction and not self.absolute else self.min_effect
        return scale_for(values, self.absolute or fraction), effect

    def at(self, index: int) -> Level | None:
        """Return the level that a measurement belongs to, or None before the first."""
        return next((level for level in reversed(self.levels) if level.start <= index), None)


def levels_of(
    values: ArrayLike,
    *,
    min_effect: float = MIN_EFFECT,
    absolute: bool = False,
    fraction: bool = False,
) -> Levels:
    """Return the levels of measurements, oldest first; see `Levels`.

    NaN, where nothing was measured, is skipped. Indices count the values as passed.
    """
    array = np.asarray(values, dtype=np.float64).ravel()
    found = Levels(min_effect, absolute, fraction)
    for index in np.flatnonzero(np.isfinite(array)).tolist():
        found.add(index, float(array[index]))
    return found
