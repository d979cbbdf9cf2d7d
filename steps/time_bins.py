"""Durations along a run in bins: they show drift and outliers that a total hides."""

from collections.abc import Sequence
from itertools import pairwise

from perfdag.outcome import Measurement


def bins(metric: str, coordinate: str, durations: Sequence[float], limit: int) -> list[Measurement]:
    """Return the mean of `durations` (s) in at most `limit` bins, in their order.

    The coordinate is the number of the last value of a bin, from 1.
    """
    count = min(limit, len(durations))
    bounds = [len(durations) * number // count for number in range(count + 1)] if count else []
    return [
        Measurement(metric, sum(durations[a:b]) / (b - a), "mean", {coordinate: b}, n=b - a)
        for a, b in pairwise(bounds)
    ]
