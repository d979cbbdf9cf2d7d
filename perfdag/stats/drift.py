"""A slow drift of a series: no night and no split shows it, but a line does."""

import math
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from perfdag.stats.levels import Level, Levels
from perfdag.stats.references import widening
from perfdag.stats.scale import Array, Counts

NIGHTS, SIGMAS = 20, 5.0
"""Fewest nights of a drift, and the errors by which its slope differs from 0.

They are many, because the line is the best one of all that may be drawn.
"""


@dataclass(frozen=True, slots=True)
class Drift:
    """A line through the nights from the one at position `start` on, with the values of its ends.

    `change` is from `begin` to `end`: relative, or in the unit of the metric.
    """

    start: int
    begin: float
    end: float
    change: float


def drift_of(levels: Levels) -> Drift | None:
    """Return the drift of the newest nights of a series, or None.

    It is the line that explains most of what the levels leave. Its slope is SIGMAS errors away from
    0, and it moved by at least the smallest effect.
    """
    newest = levels.levels[-1]
    scale = newest.scale
    alike = takewhile(lambda level: level.scale.kind == scale.kind, reversed(levels.levels))
    chosen = list(alike)[::-1]
    first = int(np.searchsorted(levels.nights.at, chosen[0].start))
    at, values = levels.nights.at[first:], levels.nights.value[first:]
    if len(at) < NIGHTS:
        return None
    x = scale.apply(values)
    line = _line(x, x - _by_level(x, chosen, at))
    if line is None or abs(line.moved) < scale.gate(newest.min_effect):
        return None
    begin, end = scale.value(line.end - line.moved), scale.value(line.end)
    return Drift(int(at[line.start]), begin, end, scale.change(begin, end))


def _by_level(x: Array, levels: list[Level], at: Counts) -> Array:
    """Return the mean of the level of each night."""
    which = np.searchsorted([level.start for level in levels], at, side="right") - 1
    means: Array = np.bincount(which, x) / np.bincount(which)
    return means[which]


@dataclass(frozen=True, slots=True)
class _Line:
    """A line since a night: what it is at the newest night, and by how much it moved up to that."""

    start: int
    end: float
    moved: float


def _line(x: Array, left: Array) -> _Line | None:
    """Return the line that explains most of what is left by levels, where its slope is sure.

    Sums go from each night to the newest, so that lines since every night are fitted at once.
    """
    count = np.arange(x.size, 0, -1)
    ago = count - 1.0  # nights before the newest
    mean_ago, spread_ago = ago / 2, count * (count**2 - 1.0) / 12
    y = x - x[-1]
    mean = _sums(y) / count
    together = _sums(y * ago) - count * mean_ago * mean
    slopes = np.divide(together, spread_ago, out=np.zeros_like(y), where=spread_ago > 0)
    unexplained = _sums(y**2) - count * mean**2 - slopes * together
    gains = _sums(left**2) - unexplained
    start = int(np.argmax(gains[: x.size - NIGHTS + 1]))
    slope, at_end = float(slopes[start]), float(mean[start] - slopes[start] * mean_ago[start])
    around = (y - at_end - slope * ago)[start:]
    noise = math.sqrt(float((around**2).sum()) / (around.size - 2))
    wide = float(widening(around[None], np.array([noise]), np.array([around.size]))[0])
    if gains[start] <= 0 or abs(slope) <= SIGMAS * wide * noise / math.sqrt(spread_ago[start]):
        return None
    return _Line(start, float(x[-1]) + at_end, -slope * float(ago[start]))


def _sums(values: Array) -> Array:
    """Return the sum of each value and those after it."""
    return np.cumsum(values[::-1])[::-1]
