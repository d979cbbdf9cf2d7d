"""What the nights of a level say of a next one: the three ways in which a change is decided.

- One night: at least STEP measurements, all beyond the level, their mean ONE_NIGHT errors away.
- STEP nights in a row beyond the level on one side, each by SIGMAS errors.
- The mean of the last 2 to LONGEST nights, MEANS errors away, with mean and median beyond the
  smallest effect. Nights farther away than CLIP times the noise count as that far.

All nights are judged at once, as arrays. benchmarks/detector.py chose the constants: it prints how
often the rule is wrong, and how fast it finds what is there.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, NDArray

from perfdag.stats.scale import Array, Counts, Scale, middle, middles, noises
from perfdag.stats.split import Split, best_split

WINDOW = 30
"""Nights of a level that make its reference and its noise."""
STEP = 3
"""Nights in a row, or measurements of one night, that decide; and the fewest of the first level."""
SIGMAS, ONE_NIGHT, MEANS = 2.8, 3.9, 5.0
"""Errors from the reference: of each night in a row, of a night that decides alone, of a mean."""
FEW = 1.5
"""The error of a night is 1 + FEW / n times the noise, for a reference of n nights.

It is more than the error of a median, because few nights may agree by chance.
"""
LONGEST = 30
"""Nights of the longest mean."""
CLIP = 3.0
SUSPICIOUS = 0.7
"""The part of MEANS from which on a mean makes a night suspicious."""
YOUNG = 12
"""A mean takes its noise from both sides where fewer nights are before it."""
NEIGHBOURS = 8
"""Fewest nights that tell how alike neighbours are, and those that stand for no likeness."""
REST = 3
"""Nights from a refused decision on that are not suspicious."""

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Nights:
    """The nights of a series: their positions, and the mean, least, most and number of values."""

    at: Counts
    value: Array
    least: Array
    most: Array
    count: Counts

    @classmethod
    def of(cls, values: ArrayLike) -> "Nights":
        """Return nights of one value each; NaN, where nothing was measured, is skipped."""
        array = np.asarray(values, dtype=np.float64).ravel()
        at = np.flatnonzero(np.isfinite(array))
        measured = array[at]
        return cls(at, measured, measured, measured, np.ones(at.size, np.int64))

    def since(self, night: int) -> "Nights":
        """Return the nights from one on."""
        kept = slice(night, None)
        values = (self.value[kept], self.least[kept], self.most[kept])
        return Nights(self.at[kept], *values, self.count[kept])

    def on(self, scale: Scale) -> "Nights":
        """Return the nights on a scale, which keeps the order of values."""
        values = (scale.apply(self.value), scale.apply(self.least), scale.apply(self.most))
        return Nights(self.at, *values, self.count)


@dataclass(frozen=True, slots=True)
class References:
    """The medians of the first nights of a level and their noises, by the number of nights.

    `wide` is the noise for means, because nights that follow each other may be alike. `offset` is
    the mean of the clipped residuals, which the mean of later nights is compared with.
    """

    base: Array
    noise: Array
    wide: Array
    offset: Array

    @classmethod
    def of(cls, x: Array, prior: float) -> "References":
        """Return the references of the first 1 to WINDOW nights; that of none is NaN."""
        window = x[:WINDOW]
        counts = np.arange(1, window.size + 1)
        rows = np.where(np.arange(window.size) < counts[:, None], window, np.nan)
        base = middles(rows, counts)
        residuals = rows - base[:, None]
        noise = noises(residuals, counts, prior)
        wide = noises(residuals, counts, prior, widening(residuals, noise, counts))
        offset = clipped(residuals, noise).sum(axis=1) / counts
        return cls(*(np.concatenate([[np.nan], each]) for each in (base, noise, wide, offset)))

    def sizes(self, nights: Counts) -> Counts:
        """Return how many nights make the reference where so many come before."""
        return np.minimum(nights, len(self.base) - 1)

    def widths(self, sizes: Counts, errors: float, gate: float) -> Array:
        """Return the distances from references of these sizes from which on a night is beyond.

        Where nights are alike, several of them stay beyond together: half of that counts.
        """
        noise = (self.noise[sizes] + self.wide[sizes]) / 2
        widths: Array = np.maximum(gate, errors * noise * (1 + FEW / sizes))
        return widths


def clipped(residuals: Array, noise: Array) -> Array:
    """Return rows of residuals clipped at CLIP times the noise of the row; NaN counts as 0."""
    bounds = CLIP * noise[:, None]
    rows: Array = np.minimum(np.maximum(residuals, -bounds), bounds)
    rows[np.isnan(rows)] = 0.0
    return rows


def widening(residuals: Array, noise: Array, counts: Counts) -> Array:
    """Return by how much the correlation of neighbours widens the error of a mean, row by row."""
    rows = clipped(residuals, noise)
    size = (rows**2).sum(axis=1)
    alike = (rows[:, 1:] * rows[:, :-1]).sum(axis=1)
    share = np.divide(alike, size, out=np.zeros_like(size), where=size > 0)
    known = np.where(counts >= NEIGHBOURS, counts / (counts + NEIGHBOURS), 0.0)
    correlation = np.maximum(share, 0.0) * known
    widening: Array = np.sqrt((1 + correlation) / (1 - correlation))
    return widening


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
        x, references = nights.value, References.of(nights.value, prior)
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


def decide_by_mean(
    x: Array, references: References, gate: float, prior: float
) -> tuple[Counts, Counts]:
    """Return, for each night, the nights of the shortest mean up to it that decides, else 0.

    Beside it, return the side of a mean up to it that nearly decides, or 0. Medians are computed
    only where a mean is beyond, as most nights are of no interest.
    """
    shortest = np.full(x.size, LONGEST + 1)
    doubts = np.zeros(x.size, np.int64)
    lengths = np.arange(1, LONGEST + 1)
    far = np.flatnonzero(np.abs(x - references.base[-1]) >= gate)
    begins = np.arange(STEP, max(x.size - 1, STEP))
    soon = np.searchsorted(far, begins + LONGEST) > np.searchsorted(far, begins)
    begins = begins[soon | (begins < WINDOW)]  # no mean is beyond where no night is
    sums = np.concatenate([[0.0], np.cumsum(x), np.full(LONGEST, np.nan)])
    totals = sliding_window_view(sums, LONGEST)[begins + 1] - sums[begins, None]
    means = totals / lengths - references.base[references.sizes(begins), None]
    beyond = (np.abs(means) >= gate) & (lengths > 1)
    some = beyond.any(axis=1)
    begins, means, beyond = begins[some], means[some], beyond[some]
    sizes = references.sizes(begins)
    nights = sliding_window_view(np.concatenate([x, np.full(LONGEST, np.nan)]), LONGEST)
    after = nights[begins] - references.base[sizes, None]
    shifts = np.cumsum(clipped(after, references.noise[sizes]), axis=1) / lengths
    shifts -= references.offset[sizes, None]
    units = np.sqrt(1 / lengths + 1 / sizes[:, None])
    errors = np.abs(shifts) / (references.wide[sizes, None] * units)
    errors[begins < YOUNG] = np.inf  # they are judged below
    likely = beyond & (errors > SUSPICIOUS * MEANS)
    row, column = np.nonzero(likely)
    rows = np.where(lengths <= lengths[column, None], after[row], np.nan)
    sides = np.sign(means[row, column])
    agree = sides * middles(rows, lengths[column]) >= gate
    row, column, rows, sides = row[agree], column[agree], rows[agree], sides[agree]
    begin, length = begins[row], lengths[column]
    shift, error = shifts[row, column], errors[row, column]
    young = begin < YOUNG
    if young.any():
        early = x[: YOUNG - 1] - references.base[begin[young], None]
        means_of = mean_of_young(early, rows[young], begin[young], length[young], prior)
        shift[young], error[young] = means_of
    agree = sides * shift > 0
    ends = begin + length - 1
    decides = agree & (error > MEANS)
    np.minimum.at(shortest, ends[decides], length[decides])
    nearly = agree & (error > SUSPICIOUS * MEANS)
    doubts[ends[nearly]] = sides[nearly]
    return shortest % (LONGEST + 1), doubts


def mean_of_young(
    early: Array, after: Array, begin: Counts, length: Counts, prior: float
) -> tuple[Array, Array]:
    """Return the clipped mean of each row after few early nights, and its errors from these.

    Few nights tell little of the noise: that of both sides counts, each around its own middle.
    """
    before = np.where(np.arange(early.shape[1]) < begin[:, None], early, np.nan)
    around = after - middles(after, length)[:, None]
    both, counts = np.concatenate([before, around], axis=1), begin + length
    noise = noises(both, counts, prior)
    wide = noises(both, counts, prior, widening(both, noise, counts))
    shift = clipped(after, noise).sum(axis=1) / length
    return shift, np.abs(shift) / (wide * np.sqrt(1 / length + 1 / begin))
