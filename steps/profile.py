"""Times along a run in few enough parts to be rows: what slows down or has outliers is seen in them and not in a total."""

from collections.abc import Sequence
from itertools import pairwise

from perfdag.benchmark import Measurement


def parts(metric: str, coordinate: str, took: Sequence[float], most: int) -> list[Measurement]:
    """Mean of `took` (s) in at most `most` parts in their order, so each value alone where there are no more; the coordinate is the number of
    the last value of a part, from 1."""
    count = min(most, len(took))
    bounds = [len(took) * number // count for number in range(count + 1)] if count else []
    return [
        Measurement(metric, sum(took[a:b]) / (b - a), "mean", {coordinate: b}, n=b - a)
        for a, b in pairwise(bounds)
    ]
