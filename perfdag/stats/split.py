"""When a level began: the best split of a series around a decision, and how sure its date is."""

from dataclasses import dataclass, replace

import numpy as np

from perfdag.stats.scale import Array

AROUND = 24
"""Nights, or three times those that decided if more, in which the begin is looked for first."""
BEFORE = 3
"""Nights before these that count for the level that ends."""
LIKELY = 7.35
"""Likelihood ratio up to which another split is as likely, times the squared widening.

That of one parameter, 3.84, covers a change point in far fewer cases than 95 %.
"""


@dataclass(frozen=True, slots=True)
class Split:
    """Where a level begins: at night `start`, and as likely from `first` to `last`.

    Where `earlier`, it may have begun before: nobody looked there.
    """

    start: int
    first: int
    last: int
    earlier: bool = False

    def later(self, nights: int) -> "Split":
        """Return it, counted from so many nights before."""
        return Split(self.start + nights, self.first + nights, self.last + nights, self.earlier)


def best_split(x: Array, nights: int, fewest: int, widening: float) -> Split:
    """Return where the newest level of `x` begins, by least squares.

    The last so many `nights` decided that there is one. At least `fewest` come before it.
    `widening` is by how much the correlation of neighbours widens errors.
    """
    around = max(AROUND, 3 * nights)
    while True:
        earliest = max(fewest, len(x) - around)
        split = _split_of(x, earliest, min(nights, 2), widening)
        if split.start > earliest or earliest == fewest:
            return replace(split, earlier=split.first == earliest > fewest)
        around *= 2  # it may have begun before


def _split_of(x: Array, earliest: int, last: int, widening: float) -> Split:
    """Return the best split that leaves the `last` nights together, from a night on."""
    context = min(earliest, BEFORE)
    part = x[earliest - context :]
    sums = np.cumsum(part)
    squares = np.cumsum(part**2)
    before = np.arange(context, max(context + 1, len(part) - last + 1))
    after = len(part) - before
    costs = (
        squares[-1] - sums[before - 1] ** 2 / before - (sums[-1] - sums[before - 1]) ** 2 / after
    )
    best = int(np.argmin(costs))
    variance = max(float(costs[best]) / max(len(part) - 2, 1), np.finfo(float).tiny)
    likely = np.flatnonzero(costs - costs[best] <= LIKELY * widening**2 * variance)
    return Split(earliest + best, earliest + int(likely[0]), earliest + int(likely[-1]))
