"""Pairs of hosts: a matrix for each headline metric, which names the slow node or link."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from perfdag.charts import draw, style
from perfdag.charts.series import amount, runs_words
from perfdag.results.labels import Facts, difference
from perfdag.results.schema import facts_of_nodes
from perfdag.results.summary import PointState, Series, points_of
from perfdag.stats.nodes import FEWEST_NODES, slow
from perfdag.units import plural

NUMBERS = 12  # most hosts whose states carry their numbers
MOST_NAMES, MOST_REASON = 3, 160
"""Slow nodes that are named, and characters of the facts in which one of them differs."""
Place = tuple[int, int]


def figures(rows: pa.Table) -> Iterator[tuple[str, Figure]]:
    """Yield a matrix for each point of pairs and each of its headline metrics."""
    points: dict[tuple[str, str, str], list[PointState]] = {}
    for state in points_of(rows):
        points.setdefault((state.entry, str(state.params), str(state.shape)), []).append(state)
    where, facts = runs_words(rows), facts_of_nodes(rows)
    for number, states in enumerate(points.values()):
        slug = f"pairs-{number + 1}" if len(points) > 1 else "pairs"
        words = [word for name, word in states[0].words.items() if name != "pair"]
        about = " ".join([states[0].entry, *words])
        series = [one for state in states for one in state.series if one.headline]
        names = list(dict.fromkeys(one.metric for one in series))
        if not names:
            yield slug, style.no_data(f"{about}: no valid sample in {plural(len(states), 'pair')}")
        for name in names:
            matrix = _matrix(states, name, f"{about}; {where}", facts)
            yield f"{slug}-{name.replace('_', '-')}", matrix


def _place(state: PointState) -> Place:
    first, second = str(state.pair).split("-")
    return int(first), int(second)


def hosts_of(states: Sequence[PointState]) -> list[str]:
    """Return a name for each host by its number.

    It is the node where each host had a node of its own, otherwise `0 (node)` or `host 0`.
    """
    nodes: dict[int, set[str]] = {}
    for state in states:
        for used in state.nodes:
            for host, node in zip(_place(state), used, strict=False):
                nodes.setdefault(host, set()).add(node)
    count = max(host for state in states for host in _place(state)) + 1
    own = [min(nodes[host]) if len(nodes.get(host, ())) == 1 else "" for host in range(count)]
    if all(own) and len(set(own)) == count:
        return own
    return [f"{host} ({node})" if node else f"host {host}" for host, node in enumerate(own)]


def finding(
    names: Sequence[str], by_place: Mapping[Place, Series], between: str, facts: Facts | None = None
) -> tuple[str, str]:
    """Return the slow node or link, and the facts in which the slow ones differ."""
    if not by_place:
        return f"No valid sample{between}", ""
    first = next(iter(by_place.values()))
    metric = first.metric
    if first.better not in ("higher", "lower"):
        return f"{metric} by pair", ""
    if len({host for place in by_place for host in place}) < FEWEST_NODES:
        middle = sorted(by_place.values(), key=lambda series: series.middle)[len(by_place) // 2]
        value = amount(middle.middle, middle.unit, middle.metric)
        why = f"a slow host needs at least {FEWEST_NODES} hosts to be named"
        return f"{metric} {value} in the middle{between}", why
    values = {(names[a], names[b]): series.values for (a, b), series in by_place.items()}
    outliers = slow(values, first.better == "higher")
    if not outliers:
        return f"No node and no link stands out in {metric}{between}", ""
    words, reasons = [], []
    for own, effect in [*outliers.items()][:MOST_NAMES]:
        kind = "node" if len(own) == 1 else "link"
        words.append(f"{kind} {' - '.join(own)} ({100 * effect:+.0f} %)")
        if kind == "node" and (differs := difference(facts or {}, own[0], MOST_REASON)):
            reasons.append(f"{own[0]}: {differs}")
    more = f" and {len(outliers) - 1} more" if len(outliers) > 1 else ""
    rest = ["slow too: " + ", ".join(words[1:])] if words[1:] else []
    return f"Slow in {metric}{between}: {words[0]}{more}", "; ".join([*rest, *reasons])


def _matrix(states: Sequence[PointState], metric: str, about: str, facts: Facts) -> Figure:
    names = hosts_of(states)
    by_place = {
        _place(state): series
        for state in states
        for series in reversed(state.series)
        if series.metric == metric and series.headline and series.values
    }
    same_node, count = _same_node_pairs(states), len(names)
    between = " between nodes" if same_node else ""
    # no link is as fast as the memory of a node
    apart = {place: series for place, series in by_place.items() if place not in same_node}
    title, why = finding(names, apart, between, facts)
    grid = np.full((count, count), np.nan)
    for (a, b), series in by_place.items():
        grid[a, b] = series.middle
    height = (min(6.5, 0.32 * count + 1.6),)
    subtitle = "; ".join(filter(None, (why, _subtitle(states, by_place), about)))
    fig, (ax,) = style.figure(title=title, subtitle=subtitle, heights=height)
    finite = grid[np.isfinite(grid)]
    # colours over a tenth of the value at least, or noise of 1 % would look like a slow node
    middle = float(np.median(finite))
    low, high = min(float(finite.min()), 0.95 * middle), max(float(finite.max()), 1.05 * middle)
    norm = draw.color_norm([low, high])
    first = next(iter(by_place.values()))
    mesh = draw.heat(
        ax, grid, first.unit, metric, norm, words=count <= (5 if style.is_narrow() else NUMBERS)
    )
    for a, b in sorted(same_node):
        hatch: Any = {"fill": False, "hatch": "////", "edgecolor": style.MUTED, "linewidth": 0}
        ax.fill([b, b + 1, b + 1, b], [a, a, a + 1, a + 1], gid="same-node", **hatch)
    failed = [_place(state) for state in states if state.why]
    cross: Any = {"ls": "none", "marker": "X", "mfc": "none", "mec": style.MUTED, "ms": 8}
    ax.plot([b + 0.5 for _, b in failed], [a + 0.5 for a, _ in failed], gid="failed", **cross)
    step = max(1, count // (8 if style.is_narrow() else 24))
    places = np.arange(0, count, step) + 0.5
    ax.set_yticks(places, names[::step])
    rotation = 45 if max(map(len, names)) > 4 else 0
    ax.set_xticks(places, names[::step], rotation=rotation, ha="right")
    ax.invert_yaxis()
    ax.set_ylabel("first host")
    ax.set_xlabel("second host")
    bar = fig.colorbar(mesh, ax=ax, pad=0.01)
    unit = style.value_axis(bar.ax.yaxis, first.unit, high, metric)
    bar.set_label(style.axis_label(metric, unit, first.better))
    return fig


def _same_node_pairs(states: Sequence[PointState]) -> set[Place]:
    """Return the pairs that shared a node in a sample, or none where all pairs did."""
    every = [(_place(state), used) for state in states for used in state.nodes if len(used) > 1]
    near = {place for place, used in every if len(set(used)) == 1}
    return near if any(len(set(used)) > 1 for _, used in every) else set()


def _subtitle(states: Sequence[PointState], by_place: Mapping[Place, Series]) -> str:
    """Return the number of samples, their spread, and what is missing."""
    counts = sorted({len(series.values) for series in by_place.values()})
    n = f"n={counts[0]}" if len(counts) == 1 else f"n={counts[0]} to {counts[-1]}"
    wide = [share for own in by_place.values() if (share := own.band.share()) is not None]
    parallel = int((states[0].shape.get("hosts") or {}).get("parallel_pairs", 1))
    used = [nodes for state in states for nodes in state.nodes if len(nodes) > 1]
    same = {len(set(nodes)) == 1 for nodes in used}
    failed, noisy = (
        sum(map(bool, own)) for own in ([c.why for c in states], [c.noise for c in states])
    )
    parts = [
        f"number: median of {n}",
        f"widest range {100 * max(wide):.0f} % of its median" if wide else "one sample a pair",
        f"concurrent: {parallel} pairs at once" if parallel > 1 else "one pair at a time",
        "all hosts on one node" if same == {True} else "",
        "hatched: both hosts on one node" if len(same) == 2 else "",
        f"X: no valid sample ({failed})" if failed else "",
        f"{plural(noisy, 'pair')} disturbed" if noisy else "",
    ]
    return "; ".join(part for part in parts if part)
