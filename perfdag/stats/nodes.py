"""Find the slow node or the slow link among many."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from perfdag.stats.robust import (
    SIGMA_OF_MAD,
    Array,
    Scale,
    binomial_tail,
    finite,
    middle,
    robust_sigma,
    scale_for,
)

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


Pair = tuple[int, int]

MIN_EFFECT = -math.log(0.9)
EFFECT_SIGMAS = 2.5
"""The slowness that is looked for, as a logarithm: the larger of both, in sigmas of the noise."""
CLEAR, SUSPECT = -7.0, 8.0
"""Scores that settle a host. A slow host is cleared with a chance of e^-7."""
ROUNDS, FEWEST_PAIRS = 10, 20
"""Most rounds before open hosts are suspects, and pairs without which no host is settled."""
TURNS, MOST_SUSPECTS, FEWEST_TURNS = 9, 20, 5
"""Pairs that confirm a suspect, suspects that are confirmed, and values that decide."""
CONFIRM_SIGMAS = 4.0
"""Standard errors by which a suspect is slower than the control."""
_ERROR_OF_MEDIAN = _SIGMA_OF_MEAN = math.sqrt(math.pi / 2)
"""Of normal noise: the error of a median against that of a mean, and sigma over mean deviation."""
LEAST_SIGMA = 0.002


@dataclass(frozen=True)
class SlowHost:
    """A host whose pairs lack a part (0.2 is 20 %) of the speed of the control."""

    host: int
    slowness: float


class Hunt:
    """The state of a hunt over `hosts` hosts, which are numbers from 0.

    Measure `pairs()` at once and hand the speeds to `record`, until `pairs` is empty. `slow` and
    `unknown` then hold the confirmed hosts, the slowest first, and those without enough values.
    """

    def __init__(self, hosts: int, seed: object = 0) -> None:
        self.rounds = 0
        self.slow: list[SlowHost] = []
        self.unknown: list[int] = []
        self._random = random.Random(f"{seed}:hunt")
        self._worse, self._counts = np.zeros(hosts), np.zeros(hosts)
        self._residuals: list[float] = []
        self._open, self._cleared = set(range(hosts)), list[int]()
        self._suspects: list[int] = []
        self._alone: list[Pair] = []
        self._control: list[float] = []
        self._values: dict[int, list[float]] = {}

    def pairs(self) -> list[Pair]:
        """Return the pairs to measure at once next, or none at the end."""
        if not self._open:
            return self._alone[:1]
        unsettled, others = self._shuffled(self._open), self._shuffled(self._cleared)
        others += self._shuffled(self._suspects)
        partners = [others.pop(0) for _ in unsettled[: len(others)]]
        rest = unsettled[len(partners) :] + others
        matched = list(zip(unsettled, partners, strict=False))
        return matched + list(zip(rest[::2], rest[1::2], strict=False))

    def record(self, pairs: Sequence[Pair], speeds: Sequence[float | None]) -> None:
        """Take the speeds of pairs, higher is better, None where a pair has none."""
        logs = [-math.log(speed) if speed else math.nan for speed in speeds]
        if self._open:
            self._record_round(pairs, np.array(logs))
        else:
            self._alone.pop(0)
            self._record_alone(pairs[0], logs[0])
            if not self._alone:
                self._conclude()

    def slowness(self, host: int) -> float:
        """Return the part of the typical speed that the pairs of a host lack."""
        return float(1 - math.exp(-self._worse[host] / max(self._counts[host], 1)))

    def _shuffled(self, hosts: "set[int] | list[int]") -> list[int]:
        return self._random.sample(sorted(hosts), len(hosts))

    def _record_round(self, pairs: Sequence[Pair], logs: Array) -> None:
        self.rounds += 1
        measured = np.isfinite(logs)
        level = float(np.median(logs[measured])) if measured.any() else 0.0
        for hosts, off in zip(pairs, logs - level, strict=True):
            if math.isfinite(off):
                self._worse[list(hosts)] += off
                self._counts[list(hosts)] += 1
                self._residuals.append(off)
        enough, last = len(self._residuals) >= FEWEST_PAIRS, self.rounds >= ROUNDS
        if enough or last:
            self._settle(last)

    def _settle(self, last: bool) -> None:
        """Clear or suspect hosts by their scores. In the last round every open one is suspected."""
        # Slow hosts lie on one side of the level. The other side shows the noise.
        better = [-off for off in self._residuals if off < 0]
        sigma = max(SIGMA_OF_MAD * float(np.median(better)) if better else 0.0, LEAST_SIGMA)
        effect = max(MIN_EFFECT, EFFECT_SIGMAS * sigma)
        scores = effect * (self._worse - self._counts * effect / 2) / sigma**2
        for host in sorted(self._open):
            if last and not self._counts[host]:
                self.unknown.append(host)
            elif scores[host] > SUSPECT or (last and scores[host] > CLEAR):
                self._suspects.append(host)
            elif scores[host] < CLEAR:
                self._cleared.append(host)
            else:
                continue
            self._open.remove(host)
        if not self._open:
            self._suspects.sort(key=lambda host: -scores[host])
            self._plan_confirmation()

    def _plan_confirmation(self) -> None:
        if len(self._cleared) < 2:
            self.unknown += self._suspects
            return
        self.unknown += self._suspects[MOST_SUSPECTS:]
        suspects = self._suspects[:MOST_SUSPECTS]
        for _ in range(TURNS if suspects else 0):
            self._alone.append(tuple(self._random.sample(self._cleared, 2)))  # type: ignore[arg-type]
            self._alone += [(host, self._random.choice(self._cleared)) for host in suspects]
        self._values = {host: [] for host in suspects}

    def _record_alone(self, pair: Pair, log: float) -> None:
        self._values.get(pair[0], self._control).append(log)

    def _conclude(self) -> None:
        groups = {host: finite(values) for host, values in self._values.items()}
        control = finite(self._control)
        enough = [host for host, group in groups.items() if group.size >= FEWEST_TURNS]
        if control.size < FEWEST_TURNS:
            enough = []
        self.unknown += sorted(groups.keys() - set(enough))
        if not enough:
            return
        samples = [control, *(groups[host] for host in enough)]
        off = np.concatenate([group - np.median(group) for group in samples])
        # Medians of few values lie close to them: as many degrees of freedom are lost.
        mean_off = float(np.abs(off).mean()) * math.sqrt(off.size / (off.size - len(samples)))
        sigma = max(_SIGMA_OF_MEAN * mean_off, LEAST_SIGMA)
        for host in enough:
            worse = float(np.median(groups[host]) - np.median(control))
            error = sigma * _ERROR_OF_MEDIAN * math.sqrt(1 / groups[host].size + 1 / control.size)
            if worse > max(MIN_EFFECT / 2, CONFIRM_SIGMAS * error):
                self.slow.append(SlowHost(host, 1 - math.exp(-worse)))
        self.slow.sort(key=lambda slow: -slow.slowness)
