"""Which node is slow: each node's level against the other nodes', robustly."""

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
    """A node off the others: `effect` against the median of the others (relative), `n` values, `sigmas` of evidence."""

    node: str
    effect: float
    sigmas: float
    n: int


def outliers(values: Mapping[str, ArrayLike], *, min_effect: float = 0.05) -> list[Outlier]:
    """Name the nodes whose median lies off the median of the others, the farthest first.

    `values`: the values (of one series) that each node took part in; a sample over two nodes counts for both, and the
    median keeps a slow partner from tainting it. A node is named when it is off by more than `min_effect` and four
    standard errors, of which the noise is the larger of how the others differ among themselves and how well the
    medians are known. Fewer than four nodes with three values each: nobody is named.
    """
    groups = {node: array for node, v in values.items() if (array := finite(v)).size >= FEWEST_VALUES}
    if len(groups) < FEWEST_NODES:
        return []
    scale = scale_for(np.concatenate(list(groups.values())))
    levels = {node: float(np.median(scale.apply(array))) for node, array in groups.items()}
    residuals = np.concatenate([scale.apply(array) - levels[node] for node, array in groups.items()])
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
            named.append(Outlier(node, scale.effect(off), abs(off) / noise if noise else math.inf, int(n)))
    return sorted(named, key=lambda outlier: -abs(outlier.effect))


def confirming(points: int, nodes: int) -> int:
    """Return in how many of `points` measured a node must be off to be named for it, so that chance names anybody in 1 % of suites.

    Each of them names each node with probability ALPHA / nodes where none is off; independent, they name a node k times or more with a
    binomial tail, which the nodes share (Bonferroni). One point needs itself alone.
    """
    once = ALPHA / nodes
    return next(k for k in range(1, points + 1) if k == points or nodes * (1 - binomial_tail(points, k - 1, once)) <= ALPHA * (1 + 1e-9))


def lone_gate(points: int) -> float:
    """Return the sigmas that name a node in one point alone, of so many that were looked at."""
    return float(GATE * points**LONE_GROWTH)
