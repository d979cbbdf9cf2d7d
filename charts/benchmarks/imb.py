"""IMB: latency and bandwidth over message size, and collectives by message size and ranks."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from perfdag.charts import lines, style
from perfdag.charts.benchmarks.generic import points
from perfdag.charts.benchmarks.sweeps import FIGURES
from perfdag.charts.series import (
    Cell,
    alike,
    band_words,
    failed_labels,
    hosts_words,
    nodes_used,
    noise_words,
    read,
    runs_words,
    value_words,
    words_without,
)
from perfdag.results.summary import Series, unusable
from perfdag.units import short

MARKS = ("zero_byte_latency", "half_bandwidth_size")
RANKS = 3  # fewest numbers of ranks that make a heatmap
_SCALING = ("ranks", "ranks_per_host")
LINES = 12


def figures(rows: pa.Table) -> Iterable[tuple[str, Figure]]:
    """Yield a figure for each benchmark of IMB that ran."""
    cells = read(rows)
    where, node_counts = runs_words(rows), nodes_used(rows)
    for kind in dict.fromkeys(str(cell.state.params.get("benchmark")) for cell in cells):
        own = [cell for cell in cells if str(cell.state.params.get("benchmark")) == kind]
        swept = [
            cell
            for cell in own
            if any("message_bytes" in series.coords for series in cell.state.series)
        ]
        if swept:
            yield kind.lower(), _sizes(kind, own, where)
            maps = [
                group
                for group in alike([c for c in swept if c.series("latency", "mean")], _SCALING)
                if len({_size(cell) for cell in group}) >= RANKS
            ]
            for number, group in enumerate(maps[:FIGURES], start=1):
                slug = f"{kind.lower()}-ranks" if number == 1 else f"{kind.lower()}-ranks-{number}"
                yield (
                    slug,
                    _heatmap(
                        _title(kind, group) if len(maps) > 1 else kind, group, where, node_counts
                    ),
                )
        else:
            title = None if any(not cell.why for cell in own) else f"{kind}: no sample"
            yield from points(own, ["operation_time"], where, kind.lower(), title)


def _name(cell: Cell, kind: str) -> str:
    words = [word for word in cell.label.split(" ") if word != f"benchmark={kind}"]
    return " ".join(words).strip(": ") or kind


def _sizes(kind: str, cells: Sequence[Cell], where: str) -> Figure:
    cells = [replace(cell, label=_name(cell, kind)) for cell in cells]
    panels = {}
    for metric, stat in (("latency", "mean"), ("bandwidth", "value")):
        pairs = [(cell.label, series) for cell in cells for series in cell.series(metric, stat)]
        curves = lines.lines_of(pairs, "message_bytes")
        if curves:
            panels[metric] = curves[:LINES]
    series = [series for curves in panels.values() for series in lines.series_of(curves)]
    legend = band_words(series, "line", "band")
    ring = (
        "ring: first size at half of the peak"
        if any(cell.series("half_bandwidth_size") for cell in cells)
        else ""
    )
    cut = f"first {LINES} of {len(cells)} points" if len(cells) > LINES else ""
    failed = failed_labels(cells)
    fig, axes = style.figure(
        len(panels),
        [lines.height(curves, failed) for curves in panels.values()],
        title=_finding(kind, cells),
        subtitle=style.caption(legend, ring, noise_words(cells, "~"), cut, where),
        sharex=True,
    )
    noisy_names = {cell.label for cell in cells if cell.noisy}
    sizes = sorted({x for curves in panels.values() for line in curves for x in line.series})
    for i, (ax, (metric, curves)) in enumerate(zip(axes, panels.items(), strict=True)):
        last = i == len(panels) - 1
        for line in curves:
            line.name += " ~" if line.name in noisy_names else ""
        label = "message size" if last else ""
        lines.panel(
            ax,
            curves,
            metric=metric,
            x_label=label,
            log_y=metric == "latency",
            failed=failed if last else (),
            sizes=sizes,
        )
        _marks(ax, {cell.label: cell for cell in cells}, curves, metric)
    return fig


def _marks(ax: Axes, cells: Mapping[str, Cell], curves: Sequence[lines.Line], metric: str) -> None:
    """Mark the latency of zero bytes, and the first size at half of the peak bandwidth."""
    marks: list[float] = []
    for k, line in enumerate(curves):
        cell = cells[line.name.removesuffix(" ~")]
        colour = style.look(k)["color"]
        zero, half = (cell.first(name) for name in MARKS)
        apart = zero and all(abs(math.log2(zero.middle / other)) > 1 for other in marks)
        if metric == "latency" and zero and apart and 0 in line.series:
            marks.append(zero.middle)
            at = ax.get_lines()[k].get_xdata()[0]  # type: ignore[index]  # where the panel has put the size of zero
            label = short(zero.middle, "s")
            ax.annotate(
                label,
                (at, zero.middle),
                xytext=(0, 5),
                textcoords="offset points",
                fontsize=7.5,
                color=style.INK,
                gid="zero-byte",
            )
        if metric == "bandwidth" and half and (there := line.series.get(half.middle)):
            ax.plot(
                [half.middle],
                [there.middle],
                "o",
                ms=11,
                mfc="none",
                mec=colour,
                gid=f"half-bandwidth {line.name}",
            )


def _finding(kind: str, cells: Sequence[Cell]) -> str:
    """Return zero-byte latency, peak bandwidth and the size at half of it, of the best point."""
    parts = []
    for metric, word, best in (
        ("zero_byte_latency", "0 B in", min),
        ("operation_time", "largest message in", min),
        ("peak_bandwidth", "peak", max),
    ):
        candidates = [
            (series.middle, cell.label, series, cell)
            for cell in cells
            for series in cell.series(metric)
            if series.values and not unusable(series)
        ]
        if candidates:
            _, name, series, cell = best(candidates, key=lambda row: row[0])
            of_point = f" ({name})" if len(cells) > 1 else ""
            half = cell.first("half_bandwidth_size") if metric == "peak_bandwidth" else None
            parts.append(
                f"{word} {value_words(series)}{of_point}"
                + (f", half of it at {short(half.middle, 'B')}" if half else "")
            )
    return f"{kind}: {'; '.join(parts)}" if parts else f"{kind} over message size"


def _size(cell: Cell) -> tuple[int, int]:
    """Return hosts and ranks of a point."""
    return int(cell.state.shape.get("hosts", {}).get("count", 1)), int(
        cell.state.params.get("ranks", 1)
    )


def _title(kind: str, cells: Sequence[Cell]) -> str:
    return f"{kind} {words_without(cells[0], (*_SCALING, 'benchmark', 'hosts.count'))}".strip()


def _heatmap(
    kind: str, cells: Sequence[Cell], where: str, node_counts: Mapping[str, int]
) -> Figure:
    """Draw the median time in us by message size and by hosts x ranks."""
    by_size: dict[tuple[tuple[int, int], int], Series] = {}
    for cell in cells:
        for series in cell.series("latency", "mean"):
            by_size.setdefault((_size(cell), int(series.coords["message_bytes"])), series)
    ranks = sorted({key[0] for key in by_size})
    nodes = {
        size: min(
            (
                node_counts[c.state.point]
                for c in cells
                if _size(c) == size and c.state.point in node_counts
            ),
            default=None,
        )
        for size in ranks
    }
    sizes = sorted({key[1] for key in by_size})
    grid = np.array(
        [[by_size[r, s].middle if (r, s) in by_size else np.nan for s in sizes] for r in ranks]
    )
    title = f"{kind}: median time by message size, hosts and ranks"
    legend = "number: median in us, its spread is in the table; grey: not measured"
    fig, (ax,) = style.figure(
        title=title, subtitle=f"{legend}; {where}", heights=(0.35 * len(ranks) + 1.2,)
    )
    ax.set_facecolor(style.GRID)
    mesh = ax.pcolormesh(
        np.arange(len(sizes) + 1),
        np.arange(len(ranks) + 1),
        grid,
        cmap="cividis",
        norm=LogNorm(),
        gid="median",
    )
    for y, x in np.argwhere(np.isfinite(grid)):
        ax.text(
            x + 0.5,
            y + 0.5,
            _us(grid[y, x] * 1e6),
            ha="center",
            va="center",
            fontsize=5.5,
            color=style.on_cell(mesh, grid[y, x]),
        )
    ax.set_yticks(
        np.arange(len(ranks)) + 0.5,
        [f"{hosts_words(size[0], nodes[size])} x {size[1] // size[0]}" for size in ranks],
    )
    style.size_columns(ax, sizes)
    ax.grid(visible=False)
    ax.set_ylabel("hosts x ranks of each")
    bar = fig.colorbar(mesh, ax=ax, pad=0.01)
    style.value_axis(bar.ax.yaxis, "s", 1.0, log=True)
    return fig


def _us(value: float) -> str:
    return (
        f"{value:.3g}"
        if value < 999.5
        else f"{value:.0f}"
        if value < 10_000
        else f"{value / 1000:.3g}k"
    )
