"""Pairs of hosts: a matrix for each headline metric, which names the slow node or link."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from perfdag.analysis.pairs import (
    TOO_FEW,
    PairMatrix,
    Place,
    matrices,
    pair_groups,
    place_of,
    why_slow,
)
from perfdag.charts import draw, style
from perfdag.charts.series import amount, runs_words
from perfdag.results.labels import Facts
from perfdag.results.schema import facts_of_nodes
from perfdag.results.summary import PointState, Series
from perfdag.units import plural

NUMBERS = 12  # most hosts whose states carry their numbers
MOST_NAMES = 3
"""Slow nodes and links that are named."""


def figures(points: Sequence[PointState], rows: pa.Table) -> Iterator[tuple[str, Figure]]:
    """Yield a matrix for each point of pairs and each of its headline metrics.

    `points` are those measured in pairs, and `rows` the rows that they summarise.
    """
    groups = pair_groups(points)
    where, facts = runs_words(rows), facts_of_nodes(rows)
    for number, states in enumerate(groups):
        slug = f"pairs-{number + 1}" if len(groups) > 1 else "pairs"
        drawn = list(matrices(states))
        if not drawn:
            about = PairMatrix(states, "").label
            yield slug, style.no_data(f"{about}: no valid sample in {plural(len(states), 'pair')}")
        for matrix in drawn:
            name = f"{slug}-{matrix.metric.replace('_', '-')}"
            yield name, _figure(matrix, f"{matrix.label}; {where}", facts)


def finding(matrix: PairMatrix, facts: Facts) -> tuple[str, str]:
    """Return the slow node or link, and the facts in which the slow ones differ."""
    metric = matrix.metric
    between = " between nodes" if matrix.on_one_node else ""
    if not matrix.between:
        return f"No valid sample{between}", ""
    first = next(iter(matrix.between.values()))
    if first.better not in ("higher", "lower"):
        return f"{metric} by pair", ""
    if not matrix.judges:
        ordered = sorted(matrix.between.values(), key=lambda series: series.middle)
        middle = ordered[len(ordered) // 2]
        value = amount(middle.middle, middle.display_unit)
        return f"{metric} {value} in the middle{between}", TOO_FEW
    if not matrix.slow:
        return f"No node and no link stands out in {metric}{between}", ""
    worst, *others = matrix.slow
    more = f" and {len(others)} more" if others else ""
    named = [worst, *others[: MOST_NAMES - 1]]
    reasons = [why_slow(part, facts) for part in named]
    if others:
        reasons.insert(0, "slow too: " + ", ".join(part.text for part in named[1:]))
    title = f"Slow in {metric}{between}: {worst.text}{more}"
    return title, "; ".join(filter(None, reasons))


def _figure(matrix: PairMatrix, about: str, facts: Facts) -> Figure:
    states, names, by_place = matrix.states, matrix.hosts, matrix.series
    same_node, count = matrix.on_one_node, len(names)
    title, why = finding(matrix, facts)
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
        ax,
        grid,
        first.display_unit,
        norm,
        words=count <= (5 if style.is_narrow() else NUMBERS),
    )
    for a, b in sorted(same_node):
        hatch: Any = {"fill": False, "hatch": "////", "edgecolor": style.MUTED, "linewidth": 0}
        ax.fill([b, b + 1, b + 1, b], [a, a, a + 1, a + 1], gid="same-node", **hatch)
    failed = [place_of(state) for state in states if state.why]
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
    unit = style.value_axis(bar.ax.yaxis, first.display_unit, high)
    bar.set_label(style.axis_label(matrix.metric, unit, first.better))
    return fig


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
