"""Percentiles by nearest rank, refused below the samples they need, with an order-statistic interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from perfdag.stats.robust import finite


class TooFewSamplesError(ValueError):
    """A percentile was asked of fewer samples than it needs; the message says how many."""


@dataclass(frozen=True, slots=True)
class Percentile:
    """One percentile in the unit of the samples with its interval (`low`, `high`; infinite where a side is open)."""

    p: float
    value: float
    low: float
    high: float
    n: int


def needed(p: float) -> int:
    """Return the fewest samples for percentile `p` (0 < p < 1), at either end.

    The most extreme of n samples lies beyond the percentile with 99 % if p**n <= 1 %: 90 samples for p95, 459 for p99, 4603 for p99.9.
    LoadGen's early stopping asks for as many.
    """
    extreme = max(p, 1 - p)
    return max(1, math.ceil(math.log(0.01) / math.log(extreme))) if extreme > 0.5 else 1


def nearest_rank(values: ArrayLike, p: float) -> float:
    """Return sorted[ceil(p n) - 1], the nearest-rank percentile, without asking whether n is enough.

    Raises ValueError for p outside (0, 1] or no finite value.
    """
    array = np.sort(finite(values))
    if not 0 < p <= 1 or not array.size:
        raise ValueError(
            f"percentile {p} of {array.size} values: p lies in (0, 1] and one value is the least"
        )
    # round() first: 0.95 * 100 is 95.00000000000001 for some p, which ceil would make 96.
    return float(array[max(0, math.ceil(round(p * array.size, 9)) - 1)])


def percentile(values: ArrayLike, p: float) -> Percentile:
    """Return percentile `p` with its order-statistic interval.

    Raises TooFewSamplesError where there are fewer samples than `needed(p)`.
    """
    array = np.sort(finite(values))
    n = int(array.size)
    if n < needed(p):
        raise TooFewSamplesError(
            f"p{p * 100:g} needs {needed(p)} samples, there are {n}: measure more or ask for less"
        )
    # Normal approximation of the binomial ranks; n p (1 - p) >= 4 holds wherever the percentile is not refused.
    middle, half = n * p, 1.96 * math.sqrt(n * p * (1 - p))
    low, high = math.floor(middle - half), math.ceil(middle + half) + 1
    return Percentile(
        p=p,
        value=nearest_rank(array, p),
        low=float(array[low - 1]) if low >= 1 else -math.inf,
        high=float(array[high - 1]) if high <= n else math.inf,
        n=n,
    )
