"""What the nights of a level say of a next one: the three ways in which a change is decided.

- One night: at least STEP measurements, all beyond the level, their mean ONE_NIGHT errors away.
- STEP nights in a row beyond the level on one side, each by SIGMAS errors.
- The mean of the last 2 to 30 nights, with mean and median beyond the smallest effect
  (perfdag.stats.means).

All nights are judged at once, as arrays. benchmarks/detector.py chose the constants: it prints how
often the rule is wrong, and how fast it finds what is there.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from perfdag.stats.means import decide_by_mean
from perfdag.stats.references import Nights, References
from perfdag.stats.scale import Array, Counts, Flags, middle
from perfdag.stats.split import Split, best_split

STEP = 3
"""Nights in a row, or measurements of one night, that decide; and the fewest of the first level."""
SIGMAS, ONE_NIGHT = 2.8, 3.9
"""Errors from the reference: of each night in a row, and of a night that decides alone."""
REST = 3
"""Nights from a refused decision on that are not suspicious."""


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
