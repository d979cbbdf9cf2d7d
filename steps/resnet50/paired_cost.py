"""The relative cost of a treatment from pairs of runs, with its confidence interval."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from perfdag.outcome import VerdictWord
from perfdag.stats.student import student_t


@dataclass(frozen=True)
class Overhead:
    """Relative cost of the treatment with its 95 % interval; 0.03 is 3 % more time a sample.

    `needed` is the number of pairs for a verdict.
    """

    mean: float
    low: float
    high: float
    pairs: int
    limit: float
    needed: int

    @property
    def verdict(self) -> VerdictWord:
        """Return passed if the interval is below the limit, failed if above, else inconclusive."""
        if self.high < self.limit:
            return "passed"
        return "failed" if self.low > self.limit else "inconclusive"


def overhead(costs: Sequence[float], limit: float) -> Overhead:
    """Analyse pairs: a cost is log(treatment / baseline), in seconds or 1 / rate.

    Use Student's t interval of the mean log ratio (n - 1 degrees of freedom). Raises ValueError
    below two pairs or if a value is not finite.
    """
    n = len(costs)
    if n < 2 or not all(math.isfinite(cost) for cost in costs):
        raise ValueError(f"{n} pairs: at least two with finite values are needed")
    mean, sigma = statistics.fmean(costs), statistics.stdev(costs)
    half = student_t(0.975, n - 1) * sigma / math.sqrt(n)
    return Overhead(
        math.expm1(mean),
        math.expm1(mean - half),
        math.expm1(mean + half),
        n,
        limit,
        _needed(mean, sigma, n, math.log1p(limit)),
    )


def _needed(mean: float, sigma: float, n: int, limit: float) -> int:
    """Return the pairs after which this mean and spread give a verdict; at most 9999."""
    gap = abs(mean - limit)
    for pairs in range(max(2, n), 10000):
        if student_t(0.975, pairs - 1) * sigma / math.sqrt(pairs) < gap:
            return pairs
    return 9999
