"""Find the node whose level differs from that of the other nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from perfdag.stats.robust import binomial_tail, finite, scale_for

FEWEST_NODES = 4
FEWEST_VALUES = 3
GATE = 4.0
"""Standard errors that a node must lie off."""
ALPHA = 0.01
"""Chance that anybody is named where no node is off: in one series, and in all that are looked at together."""
LONE_GROWTH = 0.25
"""Power of the number of points by which the gate of a node grows that is off in one of them alone.

Beyond four sigmas the chance of one that is not off falls faster than with the fourth power (median absolute deviations of a dozen
levels have heavy tails, simulated), so that the gate of n points, GATE n^(1/4), keeps the chance of one.
"""


@dataclass(frozen=True, slots=True)
class Outlier:
    """A node that differs: `effect` against the median of the others, `n` values, `sigmas` of
    evidence.
    """

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
    within = 1.4826 * float(np.median(np.abs(residuals))) * shrink
    named = []
    for node, level in levels.items():
        others = np.array([value for name, value in levels.items() if name != node])
        middle = float(np.median(others))
        between = 1.4826 * float(np.median(np.abs(others - middle)))
        n = groups[node].size
        typical = float(np.median([array.size for array in groups.values()]))
        known = within * math.sqrt(math.pi / 2 * (1 / n + 1 / (typical * others.size)))
        noise = max(between, known)
        off = level - middle
        if abs(off) > max(scale.gate(min_effect), GATE * noise):
            named.append(
                Outlier(node, scale.effect(off), abs(off) / noise if noise else math.inf, int(n))
            )
    return sorted(named, key=lambda outlier: -abs(outlier.effect))


def confirming(points: int, nodes: int) -> int:
    """Return in how many of `points` a node must differ, so that chance names one in 1 % of
    suites.

    Without a slow node, each point names a node with probability ALPHA / nodes. For independent
    points, a node is named k times with a binomial tail, shared among the nodes (Bonferroni). One
    point needs only itself.
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
