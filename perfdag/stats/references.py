"""What the nights of a level have in common: their median, and how far single ones lie from it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from perfdag.stats.scale import Array, Counts, Scale, middles, noises

WINDOW = 30
"""Nights of a level that make its reference and its noise."""
FEW = 1.5
"""The error of a night is 1 + FEW / n times the noise, for a reference of n nights.

It is more than the error of a median, because few nights may agree by chance.
"""
CLIP = 3.0
"""Times the noise that a night lies away at most where means are compared."""
NEIGHBOURS = 8
"""Fewest nights that tell how alike neighbours are, and those that stand for no likeness."""


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
        arrays = (base, noise, wide, offset)
        return cls(*(np.concatenate([[np.nan], array]) for array in arrays))

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
