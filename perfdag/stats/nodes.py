"""Find the node whose level differs from that of the other nodes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from perfdag.stats.robust import SIGMA_OF_MAD, binomial_tail, finite, robust_sigma, scale_for

FEWEST_NODES = 4
FEWEST_VALUES = 3
GATE = 4.0
"""Standard errors that a node must lie off."""
ALPHA = 0.01
"""Chance that equal nodes are told apart: in one series, and in all series together."""
LONE_GROWTH = 0.25
"""The gate of a node that differs in one of n points alone is GATE n^LONE_GROWTH.

Beyond four sigmas, the chance of a false alarm falls faster than with the fourth power. This was
simulated: median absolute deviations of a dozen levels have heavy tails. The gate of n points
therefore keeps the chance of one point.
"""


@dataclass(frozen=True, slots=True)
class Outlier:
    """A node that differs by `effect` from the median of the others, with `sigmas` of evidence."""

    node: str
    effect: float
    sigmas: float
    n: int


def outliers(values: Mapping[str, ArrayLike], *, min_effect: float = 0.05) -> list[Outlier]:
    """Return the nodes whose median differs from the median of the others, the farthest first.

    `values` maps a node to the values of one series that it took part in. A sample over two nodes
    counts for both, and the median limits the effect of a slow partner. A node must differ by more
    than `min_effect` and four standard errors. Their noise is the larger of the spread among the
    others and the uncertainty of the medians. Fewer than four nodes with three values each give no
    result.
    """
    groups = {
        node: array for node, v in values.items() if (array := finite(v)).size >= FEWEST_VALUES
    }
    if len(groups) < FEWEST_NODES:
        return []
    scale = scale_for(np.concatenate(list(groups.values())))
    levels = {node: float(np.median(scale.apply(array))) for node, array in groups.items()}
    residuals = np.concatenate(
        [scale.apply(array) - levels[node] for node, array in groups.items()]
    )
    # Residuals around a median of n are too small by about (n - 1) / n in variance.
    shrink = math.sqrt(residuals.size / max(1, residuals.size - len(groups)))
    within = SIGMA_OF_MAD * float(np.median(np.abs(residuals))) * shrink
    typical = float(np.median([array.size for array in groups.values()]))
    different = []
    for node, level in levels.items():
        others = np.array([value for name, value in levels.items() if name != node])
        middle = float(np.median(others))
        between = robust_sigma(others)
        n = groups[node].size
        known = within * math.sqrt(math.pi / 2 * (1 / n + 1 / (typical * others.size)))
        noise = max(between, known)
        off = level - middle
        if abs(off) > max(scale.gate(min_effect), GATE * noise):
            sigmas = abs(off) / noise if noise else math.inf
            different.append(Outlier(node, scale.effect(off), sigmas, int(n)))
    return sorted(different, key=lambda outlier: -abs(outlier.effect))


def confirming(points: int, nodes: int) -> int:
    """Return in how many of `points` a node must differ to be named.

    Chance names a node in 1 % of suites. Without a slow node, each point names a node with
    probability ALPHA / nodes. For independent points, a node is named k times with a binomial tail,
    shared among the nodes (Bonferroni). One point needs only itself.
    """
    once = ALPHA / nodes
    return next(
        k
        for k in range(1, points + 1)
        if k == points or nodes * (1 - binomial_tail(points, k - 1, once)) <= ALPHA * (1 + 1e-9)
    )


def lone_gate(points: int) -> float:
    """Return the sigmas that name a node in one of `points` points alone."""
    return float(GATE * points**LONE_GROWTH)
