"""Means of many nights: they show small changes, and changes of some nights."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from perfdag.stats.references import WINDOW, References, clipped, widening
from perfdag.stats.scale import Array, Counts, Flags, middles, noises

LONGEST = 30
"""Nights of the longest mean."""
FIRST = 3
"""Fewest nights before a mean."""
MEANS = 5.0
"""Errors from the reference from which on a mean decides."""
SUSPICIOUS = 0.7
"""The part of MEANS from which on a mean makes a night suspicious."""
YOUNG = 12
"""A mean takes its noise from both sides where fewer nights are before it."""


@dataclass(frozen=True, slots=True)
class Means:
    """Means that may show a new level: of so many nights (`length`) from the night `begin` on.

    A row of `nights` has these against the reference, and NaN after them. `shift` is their clipped
    mean, and `errors` says how many of its errors that is away. `side` is 1 above the level or -1.
    """

    begin: Counts
    length: Counts
    nights: Array
    side: Array
    shift: Array
    errors: Array

    def where(self, wanted: Flags) -> "Means":
        """Return some of the means."""
        numbers = (self.begin[wanted], self.length[wanted])
        figures = (self.side[wanted], self.shift[wanted], self.errors[wanted])
        return Means(*numbers, self.nights[wanted], *figures)


def decide_by_mean(
    x: Array, references: References, gate: float, prior: float
) -> tuple[Counts, Counts]:
    """Return, for each night, the nights of the shortest mean up to it that decides, else 0.

    Beside it, return the side of a mean up to it that nearly decides, or 0. Medians are computed
    only where a mean is beyond, as most nights are of no interest.
    """
    means = likely_means(x, references, gate)
    means = means.where(means.side * middles(means.nights, means.length) >= gate)
    young = means.begin < YOUNG
    if young.any():
        early = x[: YOUNG - 1] - references.base[means.begin[young], None]
        judged = judge_young(means.where(young), early, prior)
        means.shift[young], means.errors[young] = judged.shift, judged.errors
    means = means.where((means.side * means.shift > 0) & (means.errors > SUSPICIOUS * MEANS))
    ends = means.begin + means.length - 1
    doubts = np.zeros(x.size, np.int64)
    doubts[ends] = means.side
    decides = means.errors > MEANS
    shortest = np.full(x.size, LONGEST + 1)
    np.minimum.at(shortest, ends[decides], means.length[decides])
    return shortest % (LONGEST + 1), doubts


def likely_means(x: Array, references: References, gate: float) -> Means:
    """Return the means beyond the smallest effect that are some errors away from the reference.

    Those of a young level have infinitely many errors: `judge_young` knows more of their noise.
    """
    lengths = np.arange(1, LONGEST + 1)
    begins = np.arange(FIRST, max(x.size - 1, FIRST))
    far = np.flatnonzero(np.abs(x - references.base[-1]) >= gate)
    soon = np.searchsorted(far, begins + LONGEST) > np.searchsorted(far, begins)
    begins = begins[soon | (begins < WINDOW)]  # no mean is beyond where no night is
    sums = np.concatenate([[0.0], np.cumsum(x), np.full(LONGEST, np.nan)])
    totals = sliding_window_view(sums, LONGEST)[begins + 1] - sums[begins, None]
    sizes = references.sizes(begins)
    means = totals / lengths - references.base[sizes, None]
    beyond = (np.abs(means) >= gate) & (lengths > 1)
    some = beyond.any(axis=1)
    begins = begins[some]
    sizes = sizes[some]
    nights = sliding_window_view(np.concatenate([x, np.full(LONGEST, np.nan)]), LONGEST)
    after = nights[begins] - references.base[sizes, None]
    shifts = np.cumsum(clipped(after, references.noise[sizes]), axis=1) / lengths
    shifts -= references.offset[sizes, None]
    units = references.wide[sizes, None] * np.sqrt(1 / lengths + 1 / sizes[:, None])
    errors = np.abs(shifts) / units
    errors[begins < YOUNG] = np.inf
    row, column = np.nonzero(beyond[some] & (errors > SUSPICIOUS * MEANS))
    length = lengths[column]
    return Means(
        begin=begins[row],
        length=length,
        nights=np.where(lengths <= length[:, None], after[row], np.nan),
        side=np.sign(means[some][row, column]),
        shift=shifts[row, column],
        errors=errors[row, column],
    )


def judge_young(means: Means, early: Array, prior: float) -> Means:
    """Return means after the `early` nights of a young level, judged by the noise of both sides.

    Few nights tell little of the noise, so the nights of the mean count too, around their middle.
    """
    before = np.where(np.arange(early.shape[1]) < means.begin[:, None], early, np.nan)
    around = means.nights - middles(means.nights, means.length)[:, None]
    both = np.concatenate([before, around], axis=1)
    counts = means.begin + means.length
    noise = noises(both, counts, prior)
    wide = noises(both, counts, prior, widening(both, noise, counts))
    shift = clipped(means.nights, noise).sum(axis=1) / means.length
    errors = np.abs(shift) / (wide * np.sqrt(1 / means.length + 1 / means.begin))
    return replace(means, shift=shift, errors=errors)
