"""Pairs of hosts: a matrix for each headline metric, which names the slow node or link."""

from collections.abc import Collection, Iterable, Sequence

import numpy as np
import pyarrow as pa
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from perfdag.charts import style
from perfdag.charts.series import Cell, metrics, read, runs_words, value_words
from perfdag.results.labels import Facts, difference, facts_of_nodes
from perfdag.results.summary import Series
from perfdag.stats.nodes import FEWEST_NODES, slow
from perfdag.units import plural, scaled

NUMBERS = 12  # most hosts whose cells carry their numbers
MOST_NAMES, MOST_REASON = 3, 160
"""Slow nodes in a title, and characters of the facts in which one of them differs."""
Place = tuple[int, int]


def figures(rows: pa.Table) -> Iterable[tuple[str, Figure]]:
    """Yield a matrix for each point of pairs and each of its headline metrics."""
    by_point: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in read(rows):
        by_point.setdefault(
            (cell.state.entry, str(cell.state.params), str(cell.state.shape)), []
        ).append(cell)
    where, facts = runs_words(rows), facts_of_nodes(rows)
    for number, cells in enumerate(by_point.values()):
        slug = f"pairs-{number + 1}" if len(by_point) > 1 else "pairs"
        about = _about(cells, list(by_point.values()))
        names = [
            name
            for name in metrics(cells)
            if any(series.headline for cell in cells for series in cell.series(name))
        ]
        if not names:
            yield slug, style.no_data(f"{about}: no valid sample in {plural(len(cells), 'pair')}")
        for metric in names:
            yield f"{slug}-{metric.replace('_', '-')}", _matrix(cells, metric, about, where, facts)


def _about(cells: Sequence[Cell], all_cells: Sequence[Sequence[Cell]]) -> str:
    """Return the entry, and what tells the point from others of the entry."""
    entry = cells[0].state.entry
    same = [
        cells_of_point for cells_of_point in all_cells if cells_of_point[0].state.entry == entry
    ]
    words = cells[0].label.removeprefix(f"{entry}: ").split(" ")
    return " ".join(
        [
            entry,
            *(
                word
                for word in words
                if len(same) > 1 and word != entry and not word.startswith("pair=")
            ),
        ]
    )


def _place(cell: Cell) -> Place:
    first, second = str(cell.state.pair).split("-")
    return int(first), int(second)


def hosts_of(cells: Sequence[Cell]) -> list[str]:
    """Return a name for each host by its number.

    It is the node where each host had a node of its own, otherwise `0 (node)` or `host 0`.
    """
    nodes: dict[int, set[str]] = {}
    for cell in cells:
        for nodes_of_hosts in cell.state.nodes:
            for host, node in zip(_place(cell), nodes_of_hosts, strict=False):
                nodes.setdefault(host, set()).add(node)
    count = max(host for cell in cells for host in _place(cell)) + 1
    own_nodes = [
        next(iter(nodes[host])) if len(nodes.get(host, ())) == 1 else None for host in range(count)
    ]
    if None not in own_nodes and len(set(own_nodes)) == count:
        return [str(node) for node in own_nodes]
    return [f"{host} ({node})" if node else f"host {host}" for host, node in enumerate(own_nodes)]


def _values(cells: Sequence[Cell], metric: str) -> dict[Place, Series]:
    """Return the first headline series of the metric for each pair."""
    by_place = {
        _place(cell): next(
            (series for series in cell.series(metric) if series.headline and series.values), None
        )
        for cell in cells
    }
    return {place: series for place, series in by_place.items() if series is not None}


def finding(
    names: Sequence[str],
    by_place: dict[Place, Series],
    metric: str,
    same_node: Collection[Place] = (),
    facts: Facts | None = None,
) -> str:
    """Name the slow node or link, if any, with the `facts` in which the node differs.

    `same_node` has the pairs on one node where others use two. They are not judged: no link is as
    fast as the memory of a node.
    """
    by_place = {place: series for place, series in by_place.items() if place not in same_node}
    between = " between nodes" if same_node else ""
    if not by_place:
        return f"no valid sample{between}"
    first = next(iter(by_place.values()))
    if first.better not in ("higher", "lower"):
        return f"{style.metric_text(metric)} by pair"
    if len({host for place in by_place for host in place}) < FEWEST_NODES:
        middle = sorted(by_place.values(), key=lambda series: series.middle)[len(by_place) // 2]
        value = f"{style.metric_text(metric)} {value_words(middle)} in the middle{between}"
        return f"{value}; a slow host needs at least {FEWEST_NODES} hosts to be named"
    outliers = slow(
        {(names[a], names[b]): series.values for (a, b), series in by_place.items()},
        first.better == "higher",
    )
    if not outliers:
        return f"no node and no link stands out in {style.metric_text(metric)}{between}"
    words = [
        f"{'node' if len(outlier.names) == 1 else 'link'} "
        f"{' - '.join(outlier.names)} ({outlier.effect:+.0%}"
        f"{_explanation(facts or {}, outlier.names)})"
        for outlier in outliers[:MOST_NAMES]
    ]
    more = f" and {len(outliers) - MOST_NAMES} more" if len(outliers) > MOST_NAMES else ""
    return f"slow in {style.metric_text(metric)}{between}: {', '.join(words)}{more}"


def _explanation(facts: Facts, names: Sequence[str]) -> str:
    differs = difference(facts, names[0], MOST_REASON) if len(names) == 1 else ""
    return f"; {differs}" if differs else ""


def _matrix(
    cells: Sequence[Cell], metric: str, about: str, where: str, facts: Facts | None = None
) -> Figure:
    names, by_place = hosts_of(cells), _values(cells, metric)
    count, unit = len(names), next(iter(by_place.values())).unit if by_place else "1"
    same_node = _same_node_pairs(cells)
    grid = np.full((count, count), np.nan)
    for (a, b), series in by_place.items():
        grid[a, b] = series.middle
    finite = grid[np.isfinite(grid)]
    factor, unit_name = scaled(unit, float(finite.max()))
    fig, (ax,) = style.figure(
        title=f"{about}: {finding(names, by_place, metric, same_node, facts)}",
        subtitle=_subtitle(cells, by_place, where),
        heights=(min(6.5, 0.32 * count + 1.6),),
    )
    edges = np.arange(count + 1)
    # colours over a tenth of the value at least, or noise of 1 % would look like a slow node
    middle = float(np.median(finite))
    low, high = min(float(finite.min()), 0.95 * middle), max(float(finite.max()), 1.05 * middle)
    mesh = ax.pcolormesh(
        edges,
        edges,
        grid,
        cmap="cividis",
        norm=Normalize(low, high if high > low else low * 1.01 or 1.0),
        gid="median",
    )
    ax.set_facecolor(style.GRID)
    for a, b in zip(*np.nonzero(np.isfinite(grid)), strict=True):
        if count <= NUMBERS:
            ax.text(
                b + 0.5,
                a + 0.5,
                f"{grid[a, b] / factor:.3g}",
                ha="center",
                va="center",
                fontsize=7,
                color=style.on_cell(mesh, grid[a, b]),
            )
    for a, b in sorted(same_node):
        ax.add_patch(
            Rectangle(
                (b, a),
                1,
                1,
                fill=False,
                hatch="////",
                edgecolor=style.MUTED,
                linewidth=0,
                gid="same-node",
            )
        )
    failed = [_place(cell) for cell in cells if cell.why]
    if failed:
        style.cross(ax, [b + 0.5 for _, b in failed], [a + 0.5 for a, _ in failed])
    step = max(1, count // 24)
    ax.set_yticks(np.arange(0, count, step) + 0.5, names[::step])
    ax.set_xticks(
        np.arange(0, count, step) + 0.5,
        names[::step],
        rotation=45 if max(map(len, names)) > 4 else 0,
        ha="right",
    )
    ax.invert_yaxis()
    ax.grid(visible=False)
    ax.set_ylabel("first host")
    ax.set_xlabel("second host")
    bar = fig.colorbar(mesh, ax=ax, pad=0.01)
    bar.set_label(style.axis_label(metric, unit_name, next(iter(by_place.values())).better))
    style.value_axis(bar.ax.yaxis, unit, high)
    return fig


def _same_node_pairs(cells: Sequence[Cell]) -> set[Place]:
    """Return the pairs that shared a node in a sample, or none where all pairs did."""
    near = {
        _place(cell)
        for cell in cells
        if any(
            len(nodes_of_hosts) > 1 and len(set(nodes_of_hosts)) == 1
            for nodes_of_hosts in cell.state.nodes
        )
    }
    apart = any(
        len(set(nodes_of_hosts)) > 1 for cell in cells for nodes_of_hosts in cell.state.nodes
    )
    return near if apart else set()


def _subtitle(cells: Sequence[Cell], by_place: dict[Place, Series], where: str) -> str:
    """Return the subtitle: number of samples, spread, and what is missing."""
    counts = sorted({len(series.values) for series in by_place.values()})
    n = f"n={counts[0]}" if len(counts) == 1 else f"n={counts[0]} to {counts[-1]}"
    parallel = int((cells[0].state.shape.get("hosts") or {}).get("parallel_pairs", 1))
    at_once = f"concurrent: {parallel} pairs at once" if parallel > 1 else "one pair at a time"
    same = {
        len(set(nodes_of_hosts)) == 1
        for cell in cells
        for nodes_of_hosts in cell.state.nodes
        if len(nodes_of_hosts) > 1
    }
    placement = (
        "all hosts on one node"
        if same == {True}
        else "hatched: both hosts on one node"
        if same == {True, False}
        else ""
    )
    with_spread = [series for series in by_place.values() if series.band.n > 1 and series.middle]
    widest = max(
        (abs((series.band.high - series.band.low) / series.middle) for series in with_spread),
        default=0.0,
    )
    spread = f"widest range {widest:.0%} of its median" if with_spread else "one sample a pair"
    failed = (
        f"X: no valid sample ({sum(1 for cell in cells if cell.why)})"
        if any(cell.why for cell in cells)
        else ""
    )
    noisy = (
        f"{plural(sum(1 for cell in cells if cell.noisy), 'pair')} disturbed"
        if any(cell.noisy for cell in cells)
        else ""
    )
    parts = [
        f"number: median of {n}, {spread}",
        at_once,
        placement,
        "grey: not measured",
        failed,
        noisy,
        where,
    ]
    return style.caption(*parts)
