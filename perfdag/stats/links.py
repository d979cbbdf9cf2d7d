"""Find the slow node or the slow link in measurements of pairs of nodes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from perfdag.stats.nodes import FEWEST_NODES, GATE, outliers
from perfdag.stats.robust import Array, Scale, finite, middle, robust_sigma, scale_for

Link = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Slow:
    """A node (one name) or link (two names) that is worse than others by `effect` (0.3 is 30 %)."""

    names: tuple[str, ...]
    effect: float


def slow(
    values: Mapping[Link, ArrayLike], higher_is_better: bool, *, min_effect: float = 0.05
) -> list[Slow]:
    """Return slow nodes, then slow links, the worst first.

    `values` maps a pair of nodes to the values of one metric. A node with three partners or more is
    judged by the median of its pairs (perfdag.stats.nodes.outliers). With fewer partners, as in a
    ring, its best pair decides: a good node beside a slow one still has another good pair. A link
    is slow where it is worse than the other pairs of both its nodes. Pairs of a slow node are
    therefore no slow links. Both must exceed `min_effect` and four robust standard deviations of
    the pairs. Fewer than four nodes give no result.
    """
    groups = {
        link: array for link, array_like in values.items() if (array := finite(array_like)).size
    }
    nodes = sorted({name for link in groups for name in link})
    if len(nodes) < FEWEST_NODES:
        return []
    scale = scale_for(np.concatenate(list(groups.values())))
    sign = -1.0 if higher_is_better else 1.0
    worse = {link: sign * middle(scale.apply(array)) for link, array in groups.items()}
    of = {name: [link for link in groups if name in link] for name in nodes}
    partners = min(len(links) for links in of.values())
    slow_nodes = (
        _by_median(groups, of, sign, min_effect)
        if partners >= 3
        else _by_best(worse, of, scale, sign, min_effect)
    )
    bad = {name for node in slow_nodes for name in node.names}
    return slow_nodes + _links(worse, of, bad, scale, sign, min_effect)


def _by_median(
    groups: Mapping[Link, Array], of: Mapping[str, list[Link]], sign: float, min_effect: float
) -> list[Slow]:
    off = outliers(
        {name: np.concatenate([groups[link] for link in links]) for name, links in of.items()},
        min_effect=min_effect,
    )
    return [Slow((outlier.node,), outlier.effect) for outlier in off if outlier.effect * sign > 0]


def _by_best(
    worse: Mapping[Link, float],
    of: Mapping[str, list[Link]],
    scale: Scale,
    sign: float,
    min_effect: float,
) -> list[Slow]:
    slow_nodes = []
    for name, links in of.items():
        others = np.array([level for link, level in worse.items() if name not in link])
        if others.size < 2:
            continue
        off = min(worse[link] for link in links) - middle(others)
        if len(links) > 1 and off > max(scale.gate(min_effect), GATE * robust_sigma(others)):
            slow_nodes.append(Slow((name,), scale.effect(sign * off)))
    return sorted(slow_nodes, key=lambda node: -abs(node.effect))


def _links(
    worse: Mapping[Link, float],
    of: Mapping[str, list[Link]],
    bad: set[str],
    scale: Scale,
    sign: float,
    min_effect: float,
) -> list[Slow]:
    off: dict[Link, float] = {}
    for link in worse:
        beside = [np.array([worse[other] for other in of[name] if other != link]) for name in link]
        if all(levels.size for levels in beside):
            off[link] = worse[link] - max(middle(levels) for levels in beside)
    good = np.array([worse[link] for link in worse if not bad.intersection(link)])
    sigma = robust_sigma(good) if good.size > 1 else math.inf
    limit = max(scale.gate(min_effect), GATE * sigma)
    slow_links = [
        Slow(link, scale.effect(sign * distance))
        for link, distance in off.items()
        if distance > limit
    ]
    return sorted(slow_links, key=lambda item: -abs(item.effect))
