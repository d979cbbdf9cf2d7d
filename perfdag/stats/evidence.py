"""What the nights of a level say of a next one: the three ways in which a change is decided.

- One night: at least STEP measurements, all beyond the level, their mean ONE_NIGHT errors away.
- STEP nights in a row beyond the level on one side, each by SIGMAS errors.
- The mean of the last 2 to 30 nights, with mean and median beyond the smallest effect.


Where the new level began is then the best split of the nights around the decision.

All nights are judged at once, as arrays. benchmarks/detector.py chose the constants: it prints how
often the rule is wrong, and how fast it finds what is there.
"""

from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from perfdag.stats.scale import (
    WINDOW,
    Array,
    Counts,
    Flags,
    Nights,
    References,
    clipped,
    middle,
    middles,
    noises,
    widening,
)

STEP = 3
"""Nights in a row, or measurements of one night, that decide; and the fewest of the first level."""
SIGMAS, ONE_NIGHT = 2.8, 3.9
"""Errors from the reference: of each night in a row, and of a night that decides alone."""
REST = 3
"""Nights from a refused decision on that are not suspicious."""
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


class Decision(NamedTuple):
    """The split that a night decided, or None, and the side to which each night is suspicious.

    The side is 0 of nights that are not, 1 of those above the level, and -1 of those below it.
    """

    split: Split | None
    night: int
    suspicious: Counts


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the nights of a level, and all that follow, say of a next level, night by night.

    `rows` counts the nights in a row beyond, `alone` tells which decide alone, and `means` has the
    nights of the shortest mean that decides, else 0. `suspicious` has the sides of nights that are
    beyond, or up to which a mean nearly is.
    """

    x: Array
    gate: float
    fewest: int
    references: References
    rows: Counts
    alone: Flags
    means: Counts
    suspicious: Counts

    @classmethod
    def of(cls, nights: Nights, gate: float, prior: float, fewest: int) -> "Evidence":
        """Return the evidence of nights on a scale. A reference has at least `fewest` nights."""
        x = nights.value
        references = References.of(x, prior)
        sides = sides_of(x, references, gate, fewest)
        alone = decide_alone(nights, references, gate, fewest)
        means, doubts = decide_by_mean(x, references, gate, prior)
        suspicious = np.where(sides, sides, doubts)
        return cls(x, gate, fewest, references, in_a_row(sides), alone, means, suspicious)

    def band(self, nights: int) -> tuple[float, float, float]:
        """Return the bounds of nights of the level, by the first so many, and their noise."""
        size = self.references.sizes(np.array(nights))
        width = float(self.references.widths(size, SIGMAS, self.gate))
        base = float(self.references.base[size])
        return base - width, base + width, float(self.references.noise[size])

    def decision(self, after: int) -> Decision:
        """Return the first decision after a night.

        One whose effect would be below the smallest is refused: a row begins anew after it.
        """
        suspicious = self.suspicious.copy()
        suspicious[: after + 1] = 0
        refused = -1
        candidates = (self.rows >= STEP) | self.alone | (self.means > 0)
        for night in np.flatnonzero(candidates).tolist():
            length = self._length(night, refused)
            if night <= after or not length:
                continue
            split = self._split(night, length)
            size = self.references.sizes(np.array(split.start))
            effect = middle(self.x[split.start : night + 1]) - self.references.base[size]
            if abs(effect) >= self.gate:
                return Decision(split, night, suspicious[:night])
            refused = night
            suspicious[night : night + REST] = 0
        return Decision(None, -1, suspicious)

    def _length(self, night: int, refused: int) -> int:
        """Return how many nights, up to one, show a new level; 0 where none do."""
        if min(self.rows[night], night - refused) >= STEP:
            return STEP
        return 1 if self.alone[night] else int(self.means[night])

    def _split(self, night: int, length: int) -> Split:
        size = self.references.sizes(np.array(night + 1 - length))
        widening = float(self.references.wide[size] / self.references.noise[size])
        return best_split(self.x[: night + 1], length, self.fewest, widening)


def sides_of(x: Array, references: References, gate: float, fewest: int) -> Counts:
    """Return 1 for nights above the level, -1 for those below it, else 0.

    The reference ends before the STEP newest nights, so that nights in a row do not move it.
    """
    nights = np.arange(x.size)
    sizes = references.sizes(np.maximum(nights - STEP + 1, fewest))
    away = x - references.base[sizes]
    beyond = np.abs(away) > references.widths(sizes, SIGMAS, gate)
    return np.where(beyond & (nights >= fewest), np.sign(away), 0).astype(np.int64)


def in_a_row(sides: Counts) -> Counts:
    """Return, for each night, the nights in a row up to it that are beyond on its side."""
    nights = np.arange(sides.size)
    begins = np.ones(sides.size, bool)
    begins[1:] = sides[1:] != sides[:-1]
    begun = np.maximum.accumulate(np.where(begins, nights, 0))
    return np.where(sides != 0, nights - begun + 1, 0)


def decide_alone(nights: Nights, references: References, gate: float, fewest: int) -> Flags:
    """Return which nights decide alone: all their measurements are beyond on one side."""
    before = np.arange(nights.value.size)
    sizes = references.sizes(np.maximum(before, fewest))
    base = references.base[sizes]
    width = references.widths(sizes, SIGMAS, gate)
    apart = (nights.least - base > width) | (nights.most - base < -width)
    far = np.abs(nights.value - base) > references.widths(sizes, ONE_NIGHT, gate)
    alone: Flags = apart & far & (nights.count >= STEP) & (before >= fewest)
    return alone


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

    def where(self, mask: Flags) -> "Means":
        """Return the means for which the mask is set."""
        return Means(*(getattr(self, column.name)[mask] for column in fields(self)))


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
        means.shift[young] = judged.shift
        means.errors[young] = judged.errors
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
    of_interest = beyond.any(axis=1)
    begins = begins[of_interest]
    sizes = sizes[of_interest]
    nights = sliding_window_view(np.concatenate([x, np.full(LONGEST, np.nan)]), LONGEST)
    after = nights[begins] - references.base[sizes, None]
    shifts = np.cumsum(clipped(after, references.noise[sizes]), axis=1) / lengths
    shifts -= references.offset[sizes, None]
    units = references.wide[sizes, None] * np.sqrt(1 / lengths + 1 / sizes[:, None])
    errors = np.abs(shifts) / units
    errors[begins < YOUNG] = np.inf
    row, column = np.nonzero(beyond[of_interest] & (errors > SUSPICIOUS * MEANS))
    length = lengths[column]
    return Means(
        begin=begins[row],
        length=length,
        nights=np.where(lengths <= length[:, None], after[row], np.nan),
        side=np.sign(means[of_interest][row, column]),
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
