"""Find the slow node or the slow link among many."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from perfdag.stats.levels import finite, middle, robust_sigma, scale_for
from perfdag.stats.robust import SIGMA_OF_MAD, binomial_tail

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


Link = tuple[str, str]


def slow(
    values: Mapping[Link, ArrayLike], higher_is_better: bool, *, min_effect: float = 0.05
) -> dict[tuple[str, ...], float]:
    """Return slow nodes (one name), then slow links (two names), the worst first, by their effect.

    `values` maps a pair of nodes to the values of one metric. A node with three partners or more is
    judged by the median of its pairs (perfdag.stats.nodes.outliers). With fewer partners, as in a
    ring, its best pair decides: a good node beside a slow one still has another good pair. A link
    is slow where it is worse than the other pairs of both its nodes. Pairs of a slow node are
    therefore no slow links. Both must exceed `min_effect` and four robust standard deviations of
    the pairs. Fewer than four nodes give no result. An effect of 0.3 is 30 %.
    """
    groups = {
        link: array for link, array_like in values.items() if (array := finite(array_like)).size
    }
    nodes = sorted({name for link in groups for name in link})
    if len(nodes) < FEWEST_NODES:
        return {}
    scale = scale_for(np.concatenate(list(groups.values())))
    sign = -1.0 if higher_is_better else 1.0
    worse = {link: sign * middle(scale.apply(array)) for link, array in groups.items()}
    of = {name: [link for link in groups if name in link] for name in nodes}
    slow_nodes: dict[tuple[str, ...], float] = {}
    if min(len(links) for links in of.values()) >= 3:
        pooled = {name: np.concatenate([groups[link] for link in of[name]]) for name in nodes}
        off_median = outliers(pooled, min_effect=min_effect)
        slow_nodes = {(each.node,): each.effect for each in off_median if each.effect * sign > 0}
    else:
        for name, links in of.items():
            others = np.array([level for link, level in worse.items() if name not in link])
            if len(links) > 1 and others.size > 1:
                off = min(worse[link] for link in links) - middle(others)
                if off > max(scale.gate(min_effect), GATE * robust_sigma(others)):
                    slow_nodes[(name,)] = scale.effect(sign * off)
    bad = {name for names in slow_nodes for name in names}
    good = np.array([level for link, level in worse.items() if not bad.intersection(link)])
    limit = max(scale.gate(min_effect), GATE * robust_sigma(good)) if good.size > 1 else math.inf
    slow_links: dict[tuple[str, ...], float] = {}
    for link in worse:
        beside = [np.array([worse[other] for other in of[name] if other != link]) for name in link]
        if all(levels.size for levels in beside):
            off = worse[link] - max(middle(levels) for levels in beside)
            if off > limit:
                slow_links[link] = scale.effect(sign * off)
    found = slow_nodes | slow_links
    return dict(sorted(found.items(), key=lambda item: (len(item[0]), -abs(item[1]))))
