"""Find the slow node or the slow link among many."""

import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from perfdag.stats.robust import SIGMA_OF_MAD, binomial_tail
from perfdag.stats.scale import MIN_EFFECT, Array, finite, middle, robust_sigma, scale_for

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


def outliers(values: Mapping[str, ArrayLike], *, min_effect: float = MIN_EFFECT) -> list[Outlier]:
    """Return the nodes whose median differs from the median of the others, the farthest first.

    `values` maps a node to the values of one series that it took part in. A sample over two nodes
    counts for both, and the median limits the effect of a slow partner. A node must differ by more
    than `min_effect` and four standard errors. Their noise is the larger of the spread among the
    others and the uncertainty of the medians. Fewer than four nodes with three values each give no
    result.
    """
    arrays = {node: finite(of_node) for node, of_node in values.items()}
    groups = {node: array for node, array in arrays.items() if array.size >= FEWEST_VALUES}
    if len(groups) < FEWEST_NODES:
        return []
    scale = scale_for(np.concatenate(list(groups.values())))
    levels = {node: middle(scale.apply(array)) for node, array in groups.items()}
    residuals = np.concatenate(
        [scale.apply(array) - levels[node] for node, array in groups.items()]
    )
    # Residuals around a median of n are too small by about (n - 1) / n in variance.
    shrink = math.sqrt(residuals.size / max(1, residuals.size - len(groups)))
    within = SIGMA_OF_MAD * middle(np.abs(residuals)) * shrink
    typical = middle(np.array([array.size for array in groups.values()]))
    different = []
    for node, level in levels.items():
        beside = np.array([value for name, value in levels.items() if name != node])
        n = groups[node].size
        error = within * math.sqrt(math.pi / 2 * (1 / n + 1 / (typical * beside.size)))
        noise = max(robust_sigma(beside), error)
        off = level - middle(beside)
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


@dataclass(frozen=True, slots=True)
class SlowPart:
    """A node or a link that is slower than the others, by an effect on its values.

    An effect of -0.3 is -30 %: a throughput falls, and a latency rises.
    """

    kind: Literal["node", "link"]
    name: str
    effect: float

    @property
    def text(self) -> str:
        """The part and its effect, such as `node node-5 (-87 %)`."""
        return f"{self.kind} {self.name} ({100 * self.effect:+.0f} %)"


def slow_parts(values: Mapping[Link, ArrayLike], higher_is_better: bool) -> list[SlowPart]:
    """Return the slow nodes, then the slow links, the worst of each first.

    `values` maps a pair of nodes to the values of one metric. A slow part is off by more than
    MIN_EFFECT and four robust standard deviations of the pairs. Fewer than four nodes give no
    result.
    """
    pairs = PairLevels(values, higher_is_better)
    if len(pairs.links) < FEWEST_NODES:
        return []
    nodes = slow_nodes(pairs)
    links = slow_links(pairs, {node.name for node in nodes})
    return sorted([*nodes, *links], key=lambda part: (part.kind == "link", -abs(part.effect)))


class PairLevels:
    """The levels of the pairs of nodes in one metric, on a scale where more is slower."""

    def __init__(self, values: Mapping[Link, ArrayLike], higher_is_better: bool) -> None:
        arrays = {link: finite(array) for link, array in values.items()}
        self.values = {link: array for link, array in arrays.items() if array.size}
        self.links: dict[str, list[Link]] = {}
        for link in self.values:
            for node in link:
                self.links.setdefault(node, []).append(link)
        self.sign = -1.0 if higher_is_better else 1.0
        self.scale = scale_for([value for array in self.values.values() for value in array])
        self.level = {
            link: self.sign * middle(self.scale.apply(array)) for link, array in self.values.items()
        }

    def levels(self, links: Iterable[Link]) -> Array:
        """Return the levels of these links."""
        return np.array([self.level[link] for link in links])

    def limit(self, levels: Array) -> float:
        """Return by how much a slow level differs from these levels: infinity below two of them."""
        if levels.size < 2:
            return math.inf
        return max(self.scale.gate(MIN_EFFECT), GATE * robust_sigma(levels))

    def effect(self, difference: float) -> float:
        """Return a difference of levels as an effect on the values, with its sign."""
        return self.scale.effect(self.sign * difference)


def slow_nodes(pairs: PairLevels) -> list[SlowPart]:
    """Return the slow nodes.

    Where each node has three partners or more, the median of its pairs decides (`outliers`). With
    fewer, as in a ring, its best pair decides: a good node beside a slow one still has another good
    pair.
    """
    if min(map(len, pairs.links.values())) >= 3:
        values = {
            node: np.concatenate([pairs.values[link] for link in links])
            for node, links in pairs.links.items()
        }
        different = outliers(values)
        slower = [outlier for outlier in different if outlier.effect * pairs.sign > 0]
        return [SlowPart("node", outlier.node, outlier.effect) for outlier in slower]
    slow = []
    for node, links in pairs.links.items():
        beside = pairs.levels(link for link in pairs.level if node not in link)
        if len(links) > 1 and beside.size > 1:
            off = float(pairs.levels(links).min()) - middle(beside)
            if off > pairs.limit(beside):
                slow.append(SlowPart("node", node, pairs.effect(off)))
    return slow


def slow_links(pairs: PairLevels, slow: Set[str]) -> list[SlowPart]:
    """Return the links that are slower than the other pairs of both their nodes.

    The pairs of the nodes in `slow` are therefore no slow links. The other pairs tell the spread.
    """
    limit = pairs.limit(pairs.levels(link for link in pairs.level if not slow & {*link}))
    links = []
    for link, level in pairs.level.items():
        first, second = link
        beside_first = pairs.levels({*pairs.links[first]} - {link})
        beside_second = pairs.levels({*pairs.links[second]} - {link})
        if beside_first.size and beside_second.size:
            off = level - max(middle(beside_first), middle(beside_second))
            if off > limit:
                links.append(SlowPart("link", " - ".join(link), pairs.effect(off)))
    return links
