"""resnet50: throughput by batch, latency against the bound, and the phases of a batch."""

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from perfdag.charts import style
from perfdag.charts.benchmarks.generic import finding, points
from perfdag.charts.benchmarks.resnet50_marks import with_marks
from perfdag.charts.lines import NAME
from perfdag.charts.series import Cell, band_words, read, runs_words
from perfdag.results.summary import Series
from perfdag.units import short

PHASES = ("copy", "compute", "postprocess")
"""Phases of a batch that LoadGen's clock sees; images are preprocessed before it starts."""
LINES = 12
PAGE = 24
"""Points that one figure of phases holds."""
STATS = ("p50", "p90", "p95", "p99", "p99.9")
T4_FIGURES = {
    "offline": {1: 200.0, 8: 1200.0, 32: 3500.0},  # samples/s by batch
    "server": {1: 0.010, 8: 0.015, 32: 0.030},  # p99 in seconds by batch
    "single-stream": {1: 0.005},  # p90 in seconds
}
"""Figures published for a Tesla T4, unverified: shown beside results, never a gate.

3,500/s at batch 32 is far above the figures of NVIDIA for PyTorch on a T4: 420/s in fp32 and
1,128/s in mixed precision (NVIDIA/DeepLearningExamples, resnet50v1.5).
"""


def figures(rows: pa.Table) -> Iterable[tuple[str, Figure]]:
    """Yield a figure per scenario, and the phases of the batches."""
    cells = read(rows)
    where = runs_words(rows)
    for scenario in ("offline", "server", "single-stream"):
        own = [cell for cell in cells if cell.state.params.get("scenario", "offline") == scenario]
        if not own:
            continue
        if scenario in ("server", "single-stream"):
            yield f"{scenario}-latency", _latencies(own, scenario, where)
        else:
            notes = style.caption(_t4_figures(own, scenario), where)
            yield from points(own, ["throughput"], notes, scenario)
    with_times = [cell for cell in cells if _batch_time(cell) > 0]
    parts = [with_times[start : start + PAGE] for start in range(0, len(with_times), PAGE)]
    for number, part_cells in enumerate(parts, 1):
        part = (
            f"part {number} of {len(parts)}, {len(part_cells)} of {len(with_times)} points"
            if len(parts) > 1
            else ""
        )
        yield (
            f"phases-{number}" if number > 1 else "phases",
            _phases(part_cells, style.caption(part, where)),
        )


def _t4_figures(cells: Sequence[Cell], scenario: str) -> str:
    """Return the figures published for a T4 at these batches, marked as unverified."""
    batch_values = T4_FIGURES.get(scenario, {})
    batches = sorted({int(cell.state.params.get("batch", 1)) for cell in cells} & set(batch_values))
    unit = "1/s" if scenario == "offline" else "s"
    values = ", ".join(f"batch {batch} {short(batch_values[batch], unit)}" for batch in batches)
    return f"published for a Tesla T4, unverified: {values}" if values else ""


def _latencies(cells: Sequence[Cell], scenario: str, where: str) -> Figure:
    """Draw latency over percentiles, a line per point, with the bound dashed."""
    points = [
        (cell, {s: series for s in STATS for series in cell.series("latency", s)[:1]})
        for cell in cells[:LINES]
    ]
    series = [series for _, by_stat in points for series in by_stat.values()]
    cut = f"first {LINES} of {len(cells)} points" if len(cells) > LINES else ""
    notes = (
        band_words(series).replace("dot", "marker"),
        "from the scheduled time; dotted: the bound that p99 must hold" * (scenario == "server"),
        _t4_figures(cells, scenario),
        cut,
        where,
    )
    title = (
        finding(cells, "tail_latency")
        if any(cell.series("tail_latency") for cell in cells)
        else finding(cells, "latency")
    )
    names = [textwrap.fill(_label(cell), NAME) for cell, _ in points]
    height = max(3.4, 0.35 + 0.18 * sum(name.count("\n") + 1 for name in names))
    fig, (ax,) = style.figure(heights=(height,), title=title, subtitle=style.caption(*notes))
    for number, (cell, by_stat) in enumerate(points):
        xs = [STATS.index(stat) for stat in by_stat]
        if not xs:
            continue
        look = style.look(number)
        middles = [series.middle for series in by_stat.values()]
        lows = [m - series.band.low for m, series in zip(middles, by_stat.values(), strict=True)]
        highs = [series.band.high - m for m, series in zip(middles, by_stat.values(), strict=True)]
        ax.errorbar(xs, middles, yerr=[lows, highs], label=names[number], capsize=3, **look)
        bound = cell.state.params.get("latency_bound")
        if scenario == "server" and bound is not None:
            ax.axhline(float(bound), color=look["color"], linewidth=0.8, linestyle=(0, (2, 2)))
    if failed := [f"{cell.label}: {cell.why}"[:100] for cell, by_stat in points if not by_stat]:
        look = {"fontsize": 8, "color": style.MUTED, "va": "bottom"}
        ax.text(0.01, 0.02, "\n".join(failed[:4]), transform=ax.transAxes, **look)
    ax.set_xticks(range(len(STATS)), STATS)
    ax.set_xlim(-0.4, len(STATS) - 0.6)
    _from_zero(ax, "latency", "s")
    if ax.get_legend_handles_labels()[0]:
        style.legend_beside(ax)
    return fig


def _from_zero(ax: Axes, name: str, unit: str) -> None:
    top = ax.get_ylim()[1]
    ax.set_ylim(0, top * 1.05)
    ax.set_ylabel(style.axis_label(name, style.value_axis(ax.yaxis, unit, top), "lower"))


def _phases(cells: Sequence[Cell], where: str) -> Figure:
    """Draw the median seconds per sample of each timed phase as stacked bars.

    LoadGen does not time preprocessing, which stands beside them.
    """
    note = "median of each phase of one full batch, the device idle before and after"
    shares = [100 * _phase(cell, "compute") / _batch_time(cell) for cell in cells]
    low, high = (f"{end:.0f}" for end in (min(shares), max(shares)))
    common, labels = _labels(cells)
    title = with_marks(
        f"Compute is {high if low == high else f'{low} to {high}'} % of what is timed", common
    )
    lines = max(label.count("\n") + 1 for label in labels)
    height = 1.2 + max(0.32, 0.18 * lines) * len(cells)
    subtitle = style.caption(note, where)
    fig, (ax, apart) = style.figure(
        columns=2,
        heights=(height,),
        title=title,
        subtitle=subtitle,
        sharey=True,
        width_ratios=(3, 1),
    )
    left = [0.0] * len(cells)
    for number, phase in enumerate(PHASES):
        widths = [_phase(cell, phase) / cell_batch(cell) for cell in cells]
        ax.barh(
            range(len(cells)),
            widths,
            left=left,
            height=0.62,
            color=style.SERIES[number],
            label=phase,
        )
        left = [a + b for a, b in zip(left, widths, strict=True)]
    before = [_phase(cell, "preprocess") / cell_batch(cell) for cell in cells]
    apart.barh(
        range(len(cells)),
        before,
        height=0.62,
        color=style.GRID,
        edgecolor=style.MUTED,
        hatch="////",
        linewidth=0.5,
    )
    ax.set_yticks(range(len(cells)), labels)
    ax.set_ylim(len(cells) - 0.5, -0.5)
    apart.tick_params(axis="y", length=0)
    for panel, name, top, heading, bins in (
        (ax, "time of a sample", max(left), "timed", 6),
        (apart, "preprocess", max(before), "outside\nthe clock", 2),
    ):
        panel.grid(axis="y", visible=False)
        panel.set_xlim(0, 1.02 * top or 1.0)
        panel.set_title(heading)
        panel.set_xlabel(
            style.axis_label(
                name,
                style.value_axis(panel.xaxis, "s", top, bins=bins),
                "lower" if panel is ax else None,
            )
        )
    fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=len(PHASES))
    return fig


def _labels(cells: Sequence[Cell]) -> tuple[dict[str, Any], list[str]]:
    """Return the coordinates that all points share, and a label per point with its other marks."""
    own = [
        {
            name: mark
            for phase in PHASES
            if (series := _phase_series(cell, phase))
            for name, mark in series.coords.items()
        }
        for cell in cells
    ]
    common = {name: mark for name, mark in own[0].items() if all(name in marks for marks in own)}
    labels = []
    for cell, coords in zip(cells, own, strict=True):
        label = with_marks(
            _label(cell), {name: mark for name, mark in coords.items() if name not in common}
        )
        labels.append(textwrap.fill(label, 36, break_on_hyphens=False))
    return common, labels


def _batch_time(cell: Cell) -> float:
    """Return the seconds of a batch that LoadGen times."""
    return sum(_phase(cell, phase) for phase in PHASES)


def _phase(cell: Cell, phase: str) -> float:
    series = _phase_series(cell, phase)
    return series.middle if series else 0.0


def _phase_series(cell: Cell, phase: str) -> Series | None:
    """Return the first series of a phase. Other series have other marks."""
    return next(
        (
            series
            for series in cell.series("phase_time")
            if series.coords.get("phase") == phase and series.values
        ),
        None,
    )


def _label(cell: Cell) -> str:
    return cell.label + (" (no valid sample)" if cell.why else "")


def cell_batch(cell: Cell) -> int:
    """Return the samples in a batch of a point."""
    return int(cell.state.params.get("batch", 1))
