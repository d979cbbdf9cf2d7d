"""Pairs of hosts as matrices, and the slow nodes and links that they show.

Chart, sentence and gate read the same matrices, so that they name the same node.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

from perfdag.benchmark.registry import point_label
from perfdag.identity import grouped
from perfdag.results.labels import Facts, difference, words
from perfdag.results.summary import PointState, RunSeries, SeriesInfo
from perfdag.stats.nodes import FEWEST_NODES, SlowPart, slow_parts

MOST_REASON = 160
"""Characters of the facts in which a slow node differs."""
TOO_FEW = f"a slow host needs at least {FEWEST_NODES} hosts to be named"
Place = tuple[int, int]
"""The numbers of the two hosts of a pair."""


@dataclass(frozen=True)
class PairMatrix:
    """One headline metric of the pairs of a point. `states` are those of its pairs."""

    states: Sequence[PointState]
    metric: str

    @property
    def label(self) -> str:
        """The entry and what tells the point from the others of it."""
        return f"{self.states[0].entry} {words(self._differences)}".strip()

    @property
    def name(self) -> str:
        """The label and the metric."""
        return f"{self.label} {self.metric}"

    @property
    def title(self) -> str:
        """What people call it: `net throughput, 4 streams`."""
        info = replace(self.info, span="")
        return info.titled(point_label(info.benchmark, self._differences))

    @property
    def _differences(self) -> dict[str, str]:
        differences = self.states[0].differences
        return {name: text for name, text in differences.items() if name != "pair"}

    @property
    def info(self) -> SeriesInfo:
        """The series of one of its pairs."""
        return next(iter(self.series.values()))

    @cached_property
    def series(self) -> dict[Place, RunSeries]:
        """The series of the pairs that have a value."""
        return {
            place_of(state): series
            for state in self.states
            for series in reversed(state.series)
            if series.metric == self.metric and series.headline and series.values
        }

    @cached_property
    def hosts(self) -> list[str]:
        """A name for each host by its number.

        It is the node where each host had a node of its own, otherwise `0 (node)` or `host 0`.
        """
        nodes: dict[int, set[str]] = {}
        for state in self.states:
            for used in state.nodes:
                for host, node in zip(place_of(state), used, strict=False):
                    nodes.setdefault(host, set()).add(node)
        count = max(host for state in self.states for host in place_of(state)) + 1
        names = [min(nodes[host]) if len(nodes.get(host, ())) == 1 else "" for host in range(count)]
        if all(names) and len(set(names)) == count:
            return names
        return [f"{host} ({node})" if node else f"host {host}" for host, node in enumerate(names)]

    @cached_property
    def on_one_node(self) -> set[Place]:
        """The pairs that shared a node in a sample, or none where all pairs did."""
        used = [(place_of(state), nodes) for state in self.states for nodes in state.nodes]
        near = {place for place, nodes in used if len(nodes) > 1 and len(set(nodes)) == 1}
        return near if any(len(set(nodes)) > 1 for _, nodes in used) else set()

    @cached_property
    def between(self) -> dict[Place, RunSeries]:
        """The series of pairs to compare: no link is as fast as the memory of a node."""
        return {
            place: series for place, series in self.series.items() if place not in self.on_one_node
        }

    @property
    def judges(self) -> bool:
        """Whether it has enough hosts for a slow one to be named, and a better direction."""
        hosts = {host for place in self.between for host in place}
        directions = {series.better for series in self.between.values()}
        return len(hosts) >= FEWEST_NODES and directions <= {"higher", "lower"}

    @cached_property
    def slow(self) -> list[SlowPart]:
        """The slow nodes, then the slow links, the worst of each first."""
        if not self.judges:
            return []
        values = {
            (self.hosts[first], self.hosts[second]): series.values
            for (first, second), series in self.between.items()
        }
        better = next(iter(self.between.values())).better
        return slow_parts(values, better == "higher")

    def name_of(self, part: SlowPart) -> str:
        """Return what checks and acknowledgements call a slow part: `net throughput node n-5`."""
        return f"{self.name} {part.kind} {part.name}"


def place_of(state: PointState) -> Place:
    """Return the numbers of the hosts of a pair."""
    first, second = str(state.pair).split("-")
    return int(first), int(second)


def pair_groups(states: Iterable[PointState]) -> list[list[PointState]]:
    """Return the pairs among these points, those of one point in each group."""
    pairs = [state for state in states if state.pair is not None]
    points = grouped(pairs, lambda state: (state.entry, str(state.params), str(state.shape)))
    return list(points.values())


def matrices(states: Iterable[PointState]) -> Iterator[PairMatrix]:
    """Yield a matrix for each point of pairs and each of its headline metrics."""
    for group in pair_groups(states):
        of_pairs = chain.from_iterable(state.series for state in group)
        measured = [series for series in of_pairs if series.headline and series.values]
        for metric in dict.fromkeys(series.metric for series in measured):
            yield PairMatrix(group, metric)


def why_slow(part: SlowPart, facts: Facts) -> str:
    """Return the facts in which a slow node differs from the others, with its name, or ""."""
    differs = difference(facts, part.name, MOST_REASON) if part.kind == "node" else ""
    return f"{part.name}: {differs}" if differs else ""
