"""Charts of iperf: throughput by point, by path, over streams and by second.

Retransmits, loss and jitter stand beside it as explanations.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

import pyarrow as pa
from matplotlib.figure import Figure

from perfdag.charts import dots, lines, style
from perfdag.charts.benchmarks.generic import ROWS, finding, points
from perfdag.charts.series import (
    Cell,
    band_words,
    read,
    runs_words,
    swept_param,
    valid,
    words_without,
)
from perfdag.digest import canonical
from perfdag.units import plural

FACETS = 8
LINES = 6  # points whose seconds are drawn
PANELS = {
    "tcp": ("throughput", "direction_throughput", "retransmits"),
    "udp": ("throughput", "lost_fraction", "jitter"),
}


def figures(rows: pa.Table) -> Iterable[tuple[str, Figure]]:
    """Yield the points of each protocol, and throughput by path and by second."""
    cells = read(rows)
    where = runs_words(rows)
    for protocol, panels in PANELS.items():
        own = [cell for cell in cells if cell.state.params.get("protocol", "tcp") == protocol]
        if not own:
            continue
        yield from points(own, panels, style.caption(_bound(own), where), protocol)
        facets = _facets([cell for cell in own if not cell.state.pair])
        swept = swept_param([cell for cell in own if not cell.why])
        if len({_path(cell) for cell in own}) > 1 and len(facets) > 1 and not swept:
            yield f"{protocol}-paths", _paths(facets, where)
        if seconds := _seconds(rows, own):
            yield f"{protocol}-seconds", _within(seconds, where)


def _bound(cells: Sequence[Cell]) -> str:
    """Name the points that were limited by a core and not by the network."""
    bound = [
        cell.label
        for cell in cells
        if any(series.values and series.middle >= 1 for series in cell.series("cpu_bound"))
    ]
    return f"bound by a core, not the network: {', '.join(bound[:6])}" if bound else ""


def _path(cell: Cell) -> str:
    """Return the path of packets: network and placement of the hosts, without the MTU."""
    network = {
        name: value
        for name, value in (cell.state.shape.get("network") or {}).items()
        if name != "mtu"
    }
    return canonical([network, (cell.state.shape.get("hosts") or {}).get("placement")])


def _facets(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """Return points by MTU and streams. Their labels name the path between the hosts."""
    by_size: dict[tuple[int, int], list[Cell]] = {}
    for cell in cells:
        mtu = int((cell.state.shape.get("network") or {}).get("mtu") or 0)
        by_size.setdefault((mtu, int(cell.state.params.get("streams", 1))), []).append(cell)
    several = len({mtu for mtu, _ in by_size}) > 1
    facets = {}
    for (mtu, streams), group in sorted(by_size.items()):
        size = f"MTU {mtu or 'of the network'}, " if several else ""
        short = [
            replace(
                cell, label=words_without(cell, ("streams", "network.mtu")) or "default network"
            )
            for cell in group
        ]
        facets[f"{size}{plural(streams, 'stream')}"] = short
    return facets


def _paths(facets: dict[str, list[Cell]], where: str) -> Figure:
    """Draw throughput by path, a panel for each MTU and number of streams, on one axis."""
    everything = [cell for cells in facets.values() for cell in cells]
    title = f"Throughput by path; {finding(everything, 'throughput')}"
    cut = (
        f"the first {FACETS} of {len(facets)} numbers of streams and MTUs"
        if len(facets) > FACETS
        else ""
    )
    facets = {name: cells[:ROWS] for name, cells in list(facets.items())[:FACETS]}
    panels = {name: dots.groups(cells, "throughput") for name, cells in facets.items()}
    series = [series for groups in panels.values() for series in dots.series_of(groups)]
    fig, axes = style.figure(
        len(facets),
        [dots.height(cells, panels[name]) for name, cells in facets.items()],
        title=title,
        subtitle=style.caption(band_words(series), cut, where),
    )
    for ax, (name, cells) in zip(axes, facets.items(), strict=True):
        dots.panel(ax, cells, panels[name], "throughput")
        ax.set_title(name)
    farthest = max(ax.get_xlim()[1] for ax in axes)
    for ax in axes:
        ax.set_xlim(right=farthest)
        name = style.value_axis(ax.xaxis, "bit/s", farthest)
        ax.set_xlabel(style.axis_label("throughput", name, "higher") if ax is axes[-1] else "")
    return fig


def _seconds(rows: pa.Table, cells: Sequence[Cell]) -> list[lines.Line]:
    """Return lines of throughput by second over the valid samples, the unsteadiest points first."""
    by_second: dict[str, dict[float, list[float]]] = {}
    for row in valid(rows, "second_throughput").select(["point", "subject", "value"]).to_pylist():
        by_second.setdefault(row["point"], {}).setdefault(
            float(row["subject"].split(" ")[1]), []
        ).append(row["value"])
    curves = []
    for cell in cells:
        whole = next(iter(cell.series("throughput", "value")), None)
        if whole and len(by_second.get(cell.state.point, {})) >= 3:
            by = {
                second: replace(whole, values=values)
                for second, values in by_second[cell.state.point].items()
            }
            curves.append(lines.Line(cell.label, by))
    return sorted(curves, key=_unsteadiness, reverse=True)


def _unsteadiness(line: lines.Line) -> float:
    """Return the range of the medians of a line as a share of their median."""
    _, middles, _, _ = line.columns()
    return (max(middles) - min(middles)) / (median(middles) or 1.0)


def _within(curves: Sequence[lines.Line], where: str) -> Figure:
    """Draw throughput second by second."""
    percent = 100 * _unsteadiness(curves[0])
    worst = f"{curves[0].name}: the medians of its seconds differ by {percent:.1f} %"
    cut = f"the {LINES} unsteadiest of {len(curves)} points" if len(curves) > LINES else ""
    legend = band_words(lines.series_of(curves[:LINES]), "line", "band")
    fig, (ax,) = style.figure(
        title=worst,
        subtitle=style.caption(legend, cut, where),
        heights=(lines.height(curves[:LINES], least=2.2),),
    )
    lines.panel(
        ax,
        curves[:LINES],
        metric="throughput",
        x_label="second of the run",
        x_unit="1",
        linear=True,
    )
    return fig
