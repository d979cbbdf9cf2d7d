"""Scales on which relative changes add, and the noise of a series on them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfdag.stats.robust import SIGMA_OF_MAD

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


def cv(values: ArrayLike) -> float:
    """Return the coefficient of variation, NaN where it is not defined.

    It is the standard deviation (n - 1) over |mean|.
    """
    array = finite(values)
    if array.size < 2 or array.mean() == 0:
        return math.nan
    return float(array.std(ddof=1) / abs(array.mean()))


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


def noise_floor(run_medians: ArrayLike) -> float:
    """Return the robust spread of run medians: 1.4826 MAD of their logarithms (0.02 is about 2 %).

    For a series that touches zero it is relative to the median. It is NaN below two runs.
    """
    array = finite(run_medians)
    return robust_sigma(scale_for(array).apply(array))


@dataclass(frozen=True, slots=True)
class Variability:
    """Relative noise of one series (0.02 is 2 %), None where there are too few values.

    `within`: median over runs of the CV of repetitions. `between`: robust noise of run medians.
    `nodes`: robust spread of the medians of nodes. `repetitions`: repetitions in a run beyond which
    only more runs help.
    """

    within: float | None
    between: float | None
    nodes: float | None
    repetitions: int | None
    runs: int


def variability_of(
    repetitions: Sequence[ArrayLike], by_node: Mapping[str, ArrayLike]
) -> Variability:
    """Return the noise of a series from the repetitions of each run (oldest first) and by node."""
    runs = [array for values in repetitions if (array := finite(values)).size]
    inside = finite([cv(array) for array in runs if array.size >= 3])
    medians = np.array([float(np.median(array)) for array in runs])
    within = float(np.median(inside)) if inside.size else None
    between = noise_floor(medians) if medians.size >= 5 else None
    levels = [float(np.median(array)) for v in by_node.values() if (array := finite(v)).size >= 3]
    nodes = robust_sigma(scale_for(levels).apply(levels)) if len(levels) >= 3 else None
    wanted = None
    if within is not None and between is not None and len(runs) >= 20:
        # Make the variance of a median of R repetitions, 1.57 s^2 / R, equal to that between runs.
        typical = float(np.median([array.size for array in runs]))
        own = max(between**2 - 1.57 * within**2 / typical, (0.1 * between) ** 2)
        wanted = min(10, max(3, math.ceil(1.57 * within**2 / own))) if own > 0 else 10
    floor = between if between is not None and math.isfinite(between) else None
    return Variability(within, floor, nodes, wanted, len(runs))
