"""Sources of the noise of a series: within a run, between runs, between nodes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from perfdag.stats.robust import cv, finite, noise_floor, robust_sigma, scale_for


@dataclass(frozen=True, slots=True)
class Variability:
    """Relative noise of one series (0.02 is 2 %), None where there are too few values.

    `within`: median over runs of the CV of repetitions. `between`: robust noise of run medians.
    `nodes`: robust spread of the medians of nodes. `repetitions`: repetitions in a run beyond which
    only more runs help.
    """

    within: float | None
    between: float | None
    nodes: float | None
    repetitions: int | None
    runs: int


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
    return Variability(within, floor, nodes, wanted, len(runs))
