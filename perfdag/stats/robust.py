"""Median, spread and percentiles of a few values, and the order of the blocks of two variants.

They do without numpy, which a measuring pod lacks.
"""

import math
import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

SIGMA_OF_MAD = 1.4826
"""Standard deviation of a normal sample over its median absolute deviation (1 / Phi^-1(3/4))."""

INTERVAL_FROM = 6
"""Fewest values whose range covers the median with at least 95 % (1 - 2 / 2**6 = 96.9 %)."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of `n` values and the spread beside it, in the unit of the values.

    From six values on it is an interval of order statistics, which covers the true median with at
    least `coverage`, whatever the distribution.
    """

    middle: float
    low: float
    high: float
    n: int
    coverage: float = 0.95

    @property
    def kind(self) -> Literal["range", "interval", "none"]:
        """Whether it goes from minimum to maximum, or is an interval of the median."""
        return "interval" if self.n >= INTERVAL_FROM else "range" if self.n else "none"

    def text(self) -> str:
        """Return a description of the band for a legend or the heading of a table."""
        if ranks := median_ranks(self.n, self.coverage):
            return f"{min(round(ranks[2] * 100), 99)} % interval of the median, n={self.n}"
        return f"range, n={self.n}" if self.n else "no values"

    def share(self, least: float = 0.0) -> float | None:
        """Return the spread as a share of the median, or of `least` where that is larger.

        Return None for fewer than two values, or where both are 0.
        """
        base = max(abs(self.middle), least)
        return (self.high - self.low) / base if self.n > 1 and base else None


def ordered(values: Iterable[Any]) -> list[float]:
    """Return the finite values in order. None and NaN (failed samples) are dropped."""
    numbers = [float(value) for value in values if value is not None]
    return sorted(filter(math.isfinite, numbers))


def median(values: Iterable[Any]) -> float:
    """Return the median of the finite values, NaN where there is none."""
    numbers = ordered(values)
    return statistics.median(numbers) if numbers else math.nan


def binomial_tail(n: int, k: int, p: float = 0.5) -> float:
    """Return P(Binomial(n, p) <= k) as an exact sum, 0 for a negative k."""
    return math.fsum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1))


@lru_cache(maxsize=1024)
def median_ranks(n: int, coverage: float = 0.95) -> tuple[int, int, float] | None:
    """Return the ranks (low, high, coverage) of the narrowest symmetric interval of the median.

    Ranks are counted from 1. The interval from the k-th smallest to the k-th largest of n values
    covers the median with probability 1 - 2 P(Binomial(n, 1/2) <= k - 1) (David and Nagaraja, Order
    Statistics, 7.1). Return None where even minimum and maximum cover less than `coverage`.
    """
    best = None
    if n > 1000:  # the normal approximation is exact enough
        sigmas = statistics.NormalDist().inv_cdf((1 + coverage) / 2)
        k = max(1, math.floor(n / 2 - sigmas * math.sqrt(n) / 2))
        return k, n + 1 - k, math.erf((n / 2 - k + 0.5) / (math.sqrt(n) / 2) / math.sqrt(2))
    for k in range(1, n // 2 + 1):
        covered = 1 - 2 * binomial_tail(n, k - 1)
        if covered < coverage:
            break
        best = (k, n + 1 - k, covered)
    return best


def spread(values: Iterable[Any], coverage: float = 0.95) -> Spread:
    """Return the median with the range of fewer than six values, or from six on its interval."""
    array = ordered(values)
    if not array:
        return Spread(math.nan, math.nan, math.nan, 0)
    low, high, _ = median_ranks(len(array), coverage) or (1, len(array), 0.0)
    middle = statistics.median(array)
    return Spread(middle, array[low - 1], array[high - 1], len(array), coverage)


def relative_precision(values: Sequence[float]) -> float | None:
    """Return the half-width of the 95 % interval of the median over the median.

    Return None below six values, which allow no interval.
    """
    band = spread(values)
    share = band.share()
    return share / 2 if share is not None and band.kind == "interval" else None


STUDENT_T = (
    *(12.7062, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004),
    *(2.262157, 2.228139, 2.200985, 2.178813, 2.160369, 2.144787, 2.13145, 2.119905),
    *(2.109816, 2.100922, 2.093024, 2.085963, 2.079614, 2.073873, 2.068658, 2.063899),
    *(2.059539, 2.055529, 2.051831, 2.048407, 2.04523, 2.042272),
)
"""The 97.5 % quantiles of Student's t for 1, 2, 3 ... degrees of freedom."""


def student_t(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t, below one degree of freedom that of one.

    Beyond the table it is an expansion around the normal one (Abramowitz and Stegun 26.7.5), which
    is right to three digits.
    """
    if freedom <= len(STUDENT_T):
        return STUDENT_T[max(freedom, 1) - 1]
    z = statistics.NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / 4 / freedom


class TooFewSamplesError(ValueError):
    """There are fewer samples than a percentile needs. The message says how many."""


def needed(p: float) -> int:
    """Return the fewest samples for percentile `p` (0 < p < 1), at either end.

    The most extreme of n samples lies beyond the percentile with 99 % if p**n <= 1 %. That is 90
    samples for p95, 459 for p99 and 4603 for p99.9, as in the early stopping of LoadGen.
    """
    extreme = max(p, 1 - p)
    return max(1, math.ceil(math.log(0.01) / math.log(extreme))) if extreme > 0.5 else 1


def nearest_rank(values: Iterable[Any], p: float) -> float:
    """Return the nearest-rank percentile, sorted[ceil(p n) - 1], of one value or more.

    Raises IndexError where no value is finite.
    """
    array = ordered(values)
    # Round first: p * n may be 95.00000000000001, which ceil would make 96.
    return array[max(0, math.ceil(round(p * len(array), 9)) - 1)]


def percentile(values: Iterable[Any], p: float) -> float:
    """Return percentile `p` of the finite values by the nearest rank.

    Raises TooFewSamplesError where there are fewer samples than `needed(p)`.
    """
    array = ordered(values)
    if len(array) < needed(p):
        raise TooFewSamplesError(
            f"p{p * 100:g} needs {needed(p)} samples, there are {len(array)}: "
            "measure more samples or use a lower percentile"
        )
    return nearest_rank(array, p)


FEWEST_BLOCKS = 8
"""2 / 2**8 = 0.8 % is the first smallest p-value at or below 1 %."""
MOST_BLOCKS = 40


def blocks(n: int, seed: int) -> list[str]:
    """Return the order of n blocks, ABBA and BAAB equally often, in random order.

    A linear drift cancels within a block. An effect of the first or last place cancels between
    blocks. An odd n has one block more of a kind.
    """
    rng = random.Random(seed)
    first = rng.randrange(2)
    sequence = [("ABBA", "BAAB")[(first + i) % 2] for i in range(n)]
    rng.shuffle(sequence)
    return sequence
