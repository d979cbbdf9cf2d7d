"""Percentiles by nearest rank, refused below the samples that they need, with an interval."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from perfdag.stats.robust import finite


class TooFewSamplesError(ValueError):
    """There are fewer samples than a percentile needs. The message says how many."""


@dataclass(frozen=True, slots=True)
class Percentile:
    """One percentile in the unit of the samples. `low` or `high` is infinite on an open side."""

    p: float
    value: float
    low: float
    high: float
    n: int


def needed(p: float) -> int:
    """Return the fewest samples for percentile `p` (0 < p < 1), at either end.

    The most extreme of n samples lies beyond the percentile with 99 % if p**n <= 1 %. That is 90
    samples for p95, 459 for p99 and 4603 for p99.9, as in the early stopping of LoadGen.
    """
    extreme = max(p, 1 - p)
    return max(1, math.ceil(math.log(0.01) / math.log(extreme))) if extreme > 0.5 else 1


def nearest_rank(values: ArrayLike, p: float) -> float:
    """Return the nearest-rank percentile, sorted[ceil(p n) - 1], of any number of values.

    Raises ValueError for p outside (0, 1] or no finite value.
    """
    array = np.sort(finite(values))
    if not 0 < p <= 1 or not array.size:
        raise ValueError(
            f"percentile {p} of {array.size} values: p must be in (0, 1] with one value"
        )
    # Round first: p * n may be 95.00000000000001, which ceil would make 96.
    return float(array[max(0, math.ceil(round(p * array.size, 9)) - 1)])


def percentile(values: ArrayLike, p: float) -> Percentile:
    """Return percentile `p` with its order-statistic interval.

    Raises TooFewSamplesError where there are fewer samples than `needed(p)`.
    """
    array = np.sort(finite(values))
    n = int(array.size)
    if n < needed(p):
        raise TooFewSamplesError(
            f"p{p * 100:g} needs {needed(p)} samples, there are {n}: "
            "measure more samples or use a lower percentile"
        )
    # Normal approximation of the binomial ranks: n p (1 - p) >= 4 holds for these samples.
    middle, half = n * p, 1.96 * math.sqrt(n * p * (1 - p))
    low, high = math.floor(middle - half), math.ceil(middle + half) + 1
    return Percentile(
        p=p,
        value=nearest_rank(array, p),
        low=float(array[low - 1]) if low >= 1 else -math.inf,
        high=float(array[high - 1]) if high <= n else math.inf,
        n=n,
    )
