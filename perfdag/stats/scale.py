"""The scale on which values are compared, and how far single ones lie from their middle.

On it, differences are effects. Beside it stands which side of a change is better.
"""

import math
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfdag.stats.robust import SIGMA_OF_MAD

VerdictKind = Literal["worse", "better", "same", "unclear", "failed"]
"""What every verdict says."""

MIN_EFFECT, MIN_FRACTION = 0.05, 0.01
"""Smallest change that counts: of a value, and of a fraction from 0 to 1 that touches 0 or 1.

It is also the noise that is assumed of a series of which nothing is known.
"""
WEIGHT = 4.0
"""The measurements that this assumption is worth."""
LEAST_PART = 1e-9
"""The part of a level below which a positive value counts as this part, as a 0 has no logarithm."""
NOTHING = 1e-100
"""The size that is assumed of a series of zeros, so that any other value is far away from it."""
WINDOW = 30
"""Nights of a level that make its reference and its noise."""
FEW = 1.5
"""The error of a night is 1 + FEW / n times the noise, for a reference of n nights.

It is more than the error of a median, because few nights may agree by chance.
"""
CLIP = 3.0
"""Times the noise that a night lies away at most where means are compared."""
NEIGHBOURS = 8
"""Fewest nights that tell how alike neighbours are, and those that stand for no likeness."""

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
Flags = NDArray[np.bool_]


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


def middles(rows: Array, counts: Counts) -> Array:
    """Return the median of each row, whose first `counts` values in order are finite."""
    order = np.sort(rows, axis=1)  # NaN comes last
    row = np.arange(len(counts))
    middles: Array = (order[row, (counts - 1) // 2] + order[row, counts // 2]) / 2
    return middles


def robust_sigma(values: ArrayLike) -> float:
    """Return 1.4826 times the median absolute deviation, NaN below two values."""
    array = finite(values)
    return SIGMA_OF_MAD * middle(np.abs(array - middle(array))) if array.size >= 2 else math.nan


def noises(residuals: Array, counts: Counts, prior: float, widening: ArrayLike = 1.0) -> Array:
    """Return the standard deviation of one measurement from each row of residuals around a median.

    It is the larger of 1.4826 MAD and the 95 % quantile of the absolute residuals over 1.96,
    because a MAD is 0 where most measurements are equal. Few measurements are shrunk towards the
    prior: the variances are weighted by n - 1 and WEIGHT. `widening` multiplies what was measured.
    """
    order = np.sort(np.abs(residuals), axis=1)
    row = np.arange(len(counts))
    weight = counts - 1
    rank = 0.95 * weight
    below = rank.astype(np.int64)
    above = np.minimum(below + 1, weight)
    share = rank - below
    quantile = order[row, below] * (1 - share) + order[row, above] * share
    measured = np.maximum(SIGMA_OF_MAD * middles(order, counts), quantile / 1.96) * widening
    noise: Array = np.sqrt((weight * measured**2 + WEIGHT * prior**2) / (weight + WEIGHT))
    return noise


@dataclass(frozen=True, slots=True)
class Scale:
    """How values become numbers whose differences are effects.

    "log": logarithms, for positive values. "rest": minus the logarithm of what a fraction lacks to
    1, for those above one half, so that an availability is judged as its outage is. "relative":
    values over `unit`, for series that touch zero or go below. "absolute": the values themselves,
    for fractions that touch 0 or 1, or where the smallest effect is in the unit of the metric.
    """

    kind: Literal["log", "rest", "relative", "absolute"]
    unit: float = 1.0

    def apply(self, values: ArrayLike) -> Array:
        """Return the values on this scale."""
        array = np.asarray(values, dtype=np.float64)
        if self.kind == "log":
            return np.log(np.maximum(array, LEAST_PART * self.unit))
        if self.kind == "rest":
            return -np.log(np.maximum(1 - array, LEAST_PART))
        return array / self.unit

    def value(self, x: float) -> float:
        """Return the value that has the number `x` on this scale."""
        if self.kind == "log":
            return math.exp(x)
        return 1 - math.exp(-x) if self.kind == "rest" else x * self.unit

    def gate(self, min_effect: float) -> float:
        """Return the smallest effect that counts, relative or absolute, on this scale."""
        return math.log1p(min_effect) if self.kind in ("log", "rest") else min_effect

    def effect(self, difference: float) -> float:
        """Return a difference on this scale as an effect: relative (0.1 is +10 %) or absolute."""
        return math.expm1(difference) if self.kind == "log" else difference

    def change(self, before: float, after: float) -> float:
        """Return the change of a value: -0.4 is a fall of 40 %, or of 0.4 on an absolute scale.

        A change from 0 is infinite.
        """
        if self.kind == "absolute":
            return after - before
        if not before:
            return math.copysign(math.inf, after) if after else 0.0
        effect = (after - before) / abs(before)
        return max(effect, -1.0) if self.kind == "log" else effect

    def leaps(self, before: float, after: float) -> bool:
        """Return whether a value changes by more than a factor of two."""
        if self.kind == "absolute":
            return False
        if self.kind == "rest":
            before = 1 - before
            after = 1 - after
        low, high = sorted((abs(before), abs(after)))
        return high > 2 * low


def scale_for(values: ArrayLike, absolute: bool = False, fraction: bool = False) -> Scale:
    """Return the scale for finite values; see `Scale`. A `fraction` goes from 0 to 1."""
    array = finite(values)
    fraction = fraction and bool(array.size) and array.min() >= 0 and array.max() <= 1
    if absolute or (fraction and (array.min() == 0 or array.max() == 1)):
        return Scale("absolute")
    typical = abs(middle(array)) if array.size else 0.0
    if fraction and typical > 0.5:
        return Scale("rest")
    if array.size and array.min() > 0:
        return Scale("log", typical)
    size = float(np.abs(array).mean()) if array.size else 1.0
    return Scale("relative", typical or size or NOTHING)


def kind_of_change(side: float, better: str) -> VerdictKind:
    """Return the kind of verdict on a change upwards (positive) or downwards.

    Without a better direction no change is for the worse or the better, so it is unclear.
    """
    if better not in ("higher", "lower"):
        return "unclear"
    return "better" if (side > 0) == (better == "higher") else "worse"


TWO_SPEEDS_FROM, APART = 12, 6.0
"""Fewest values of which two speeds are told, and how many times their noise these are apart."""


def two_speeds(x: Array, gate: float) -> tuple[float, float] | None:
    """Return the two middles that values on a scale gather around, or None where they do not.

    At the widest gap, each side has a fifth of the values. The gap is wider than the smallest
    effect, and than APART times the noise around both middles.
    """
    order = np.sort(x)
    if order.size < TWO_SPEEDS_FROM:
        return None
    fewest = math.ceil(order.size / 5)
    gaps = np.diff(order)[fewest - 1 : order.size - fewest]
    cut = int(np.argmax(gaps)) + fewest
    lower = middle(order[:cut])
    upper = middle(order[cut:])
    around = np.concatenate([order[:cut] - lower, order[cut:] - upper])
    wide = max(gate, APART * SIGMA_OF_MAD * middle(np.abs(around)))
    return (lower, upper) if gaps[cut - fewest] > wide else None


@dataclass(frozen=True, slots=True)
class Nights:
    """The nights of a series: their positions, and the mean, least, most and number of values."""

    at: Counts
    value: Array
    least: Array
    most: Array
    count: Counts

    @classmethod
    def of(cls, values: ArrayLike) -> "Nights":
        """Return nights of one value each; NaN, where nothing was measured, is skipped."""
        array = np.asarray(values, dtype=np.float64).ravel()
        at = np.flatnonzero(np.isfinite(array))
        measured = array[at]
        return cls(at, measured, measured, measured, np.ones(at.size, np.int64))

    def since(self, night: int) -> "Nights":
        """Return the nights from one on."""
        return Nights(*(getattr(self, column.name)[night:] for column in fields(self)))

    def on(self, scale: Scale) -> "Nights":
        """Return the nights on a scale, which keeps the order of values."""
        values = (scale.apply(self.value), scale.apply(self.least), scale.apply(self.most))
        return Nights(self.at, *values, self.count)


@dataclass(frozen=True, slots=True)
class References:
    """The medians of the first nights of a level and their noises, by the number of nights.

    `wide` is the noise for means, because nights that follow each other may be alike. `offset` is
    the mean of the clipped residuals, which the mean of later nights is compared with.
    """

    base: Array
    noise: Array
    wide: Array
    offset: Array

    @classmethod
    def of(cls, x: Array, prior: float) -> "References":
        """Return the references of the first 1 to WINDOW nights; that of none is NaN."""
        window = x[:WINDOW]
        counts = np.arange(1, window.size + 1)
        rows = np.where(np.arange(window.size) < counts[:, None], window, np.nan)
        base = middles(rows, counts)
        residuals = rows - base[:, None]
        noise = noises(residuals, counts, prior)
        wide = noises(residuals, counts, prior, widening(residuals, noise, counts))
        offset = clipped(residuals, noise).sum(axis=1) / counts
        arrays = (base, noise, wide, offset)
        return cls(*(np.concatenate([[np.nan], array]) for array in arrays))

    def sizes(self, nights: Counts) -> Counts:
        """Return how many nights make the reference where so many come before."""
        return np.minimum(nights, len(self.base) - 1)

    def widths(self, sizes: Counts, errors: float, gate: float) -> Array:
        """Return the distances from references of these sizes from which on a night is beyond.

        Where nights are alike, several of them stay beyond together: half of that counts.
        """
        noise = (self.noise[sizes] + self.wide[sizes]) / 2
        widths: Array = np.maximum(gate, errors * noise * (1 + FEW / sizes))
        return widths


def clipped(residuals: Array, noise: Array) -> Array:
    """Return rows of residuals clipped at CLIP times the noise of the row; NaN counts as 0."""
    bounds = CLIP * noise[:, None]
    rows: Array = np.minimum(np.maximum(residuals, -bounds), bounds)
    rows[np.isnan(rows)] = 0.0
    return rows


def widening(residuals: Array, noise: Array, counts: Counts) -> Array:
    """Return by how much the correlation of neighbours widens the error of a mean, row by row."""
    rows = clipped(residuals, noise)
    size = (rows**2).sum(axis=1)
    alike = (rows[:, 1:] * rows[:, :-1]).sum(axis=1)
    share = np.divide(alike, size, out=np.zeros_like(size), where=size > 0)
    weight = np.where(counts >= NEIGHBOURS, counts / (counts + NEIGHBOURS), 0.0)
    correlation = np.maximum(share, 0.0) * weight
    widening: Array = np.sqrt((1 + correlation) / (1 - correlation))
    return widening
