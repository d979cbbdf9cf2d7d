"""Sources of the noise of a series: within a run, between runs, between nodes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from perfdag.stats.robust import cv, finite, noise_floor, robust_sigma, scale_for
from perfdag.stats.student import student_t

INFORMATIONAL = 0.10
"""A series whose runs differ by more than 10 % pages nobody until its noise is fixed."""


@dataclass(frozen=True, slots=True)
class Variability:
    """Relative noise of one series (0.02 is 2 %), None where there are too few values.

    `within`: median over runs of the CV of repetitions. `between`: robust noise of run medians (the
    floor). `nodes`: robust spread of the medians of nodes. `detectable`: change found in nine of
    ten cases with 20 runs before and 3 after. `repetitions`: repetitions in a run beyond which only
    more runs help.
    """

    within: float | None
    between: float | None
    nodes: float | None
    detectable: float | None
    repetitions: int | None
    runs: int

    @property
    def informational(self) -> bool:
        """Whether the series is too noisy to page."""
        return self.between is not None and self.between > INFORMATIONAL


def detectable(
    floor: float, before: int = 20, after: int = 3, alpha: float = 0.01, power: float = 0.9
) -> float:
    """Return the smallest relative step found with `power` at two-sided `alpha`, by Student's t.

    It is (t_{1-alpha/2} + t_power) * floor * sqrt(1/before + 1/after) on the log scale.
    """
    freedom = before + after - 2
    reach = sum(student_t(p, freedom) for p in (1 - alpha / 2, power))
    return math.expm1(reach * floor * math.sqrt(1 / before + 1 / after))


def variability_of(
    repetitions: Sequence[ArrayLike], by_node: Mapping[str, ArrayLike]
) -> Variability:
    """Return the noise of a series from the repetitions of each run (oldest first) and by node."""
    runs = [array for values in repetitions if (array := finite(values)).size]
    inside = finite([cv(array) for array in runs if array.size >= 3])
    medians = np.array([float(np.median(array)) for array in runs])
    within = float(np.median(inside)) if inside.size else None
    between = noise_floor(medians) if medians.size >= 5 else None
    levels = [float(np.median(array)) for v in by_node.values() if (array := finite(v)).size >= 3]
    nodes = robust_sigma(scale_for(levels).apply(levels)) if len(levels) >= 3 else None
    wanted = None
    if within is not None and between is not None and len(runs) >= 20:
        # Make the variance of a median of R repetitions, 1.57 s^2 / R, equal to that between runs.
        typical = float(np.median([array.size for array in runs]))
        own = max(between**2 - 1.57 * within**2 / typical, (0.1 * between) ** 2)
        wanted = min(10, max(3, math.ceil(1.57 * within**2 / own))) if own > 0 else 10
    floor = between if between is not None and math.isfinite(between) else None
    return Variability(
        within, floor, nodes, None if floor is None else detectable(floor), wanted, len(runs)
    )
