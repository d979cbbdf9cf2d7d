"""OpenFOAM: strong scaling with its ideal line, phases of each point, and time per step."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from matplotlib.figure import Figure

from perfdag.charts import lines, style
from perfdag.charts.benchmarks.generic import points
from perfdag.charts.benchmarks.sweeps import FIGURES
from perfdag.charts.series import (
    Cell,
    alike,
    band_words,
    hosts_words,
    nodes_used,
    read,
    runs_words,
    value_words,
    words_without,
)
from perfdag.results.summary import Series

LINES, BARS = 12, 16
_SCALE_PARAMS = ("procs", "nodes", "procs_per_node")
_PHASES = (
    ("mesh_time", "mesh"),
    ("decompose_time", "decompose"),
    ("startup_time", "MPI start and reading"),
    ("solve_time", "time loop"),
)


def figures(rows: pa.Table) -> Iterable[tuple[str, Figure]]:
    """Yield the scaling of each case that ran with several numbers of processes, and the phases."""
    cells, where = read(rows), runs_words(rows)
    valid = [cell for cell in cells if _time(cell)]
    if not valid:
        yield from points(cells, ["solve_time"], where, title="OpenFOAM: no sample")
        return
    node_counts = nodes_used(rows)
    scalings = [
        group
        for group in alike(valid, _SCALE_PARAMS)
        if len({cell.state.params["procs"] for cell in group}) > 1
    ]
    cut = f"first {FIGURES} of {len(scalings)} cases" if len(scalings) > FIGURES else ""
    for number, group in enumerate(scalings[:FIGURES]):
        case = words_without(group[0], (*_SCALE_PARAMS, "hosts.count")) if len(scalings) > 1 else ""
        yield (
            "scaling" if not number else f"scaling-{number + 1}",
            _scaling(group, style.caption(case, cut, where), node_counts),
        )
    if not scalings:
        yield from points(cells, ["solve_time"], where)
    yield "phases", _phases(valid, where)
    along = _along(valid, where)
    if along is not None:
        yield "steps", along


def _along(cells: Sequence[Cell], where: str) -> Figure | None:
    """Draw the mean time of a step by its number, which shows outliers that a total hides."""
    pairs = [
        (cell.label or cell.state.entry, series)
        for cell in cells
        for series in cell.series("step_time", "mean")
        if "step" in series.coords
    ]
    curves = lines.lines_of(pairs, "step")
    if not curves:
        return None
    middles = {line.name: [series.middle for series in line.series.values()] for line in curves}
    slowdowns = {
        name: max(times) / min(times) if min(times) > 0 else 1.0 for name, times in middles.items()
    }
    uneven = sorted(slowdowns, key=lambda name: -slowdowns[name])[:LINES]
    worst = slowdowns[uneven[0]]
    worst_curves = [line for line in curves if line.name in uneven]
    legend = band_words([series for _, series in pairs], "line", "band")
    cut = f"the {LINES} most uneven of {len(curves)} points" if len(curves) > LINES else ""
    fig, (ax,) = style.figure(
        title=f"OpenFOAM: the slowest steps took {worst:.3g} times as long as the fastest of a run",
        subtitle=style.caption(legend, cut, where),
        heights=(lines.height(worst_curves, least=3.0),),
    )
    lines.panel(
        ax,
        worst_curves,
        metric="step_time",
        x_label="time step",
        x_unit="1",
    )
    return fig


def _time(cell: Cell) -> Series | None:
    return cell.first("solve_time", "value")


def _scaling(cells: Sequence[Cell], where: str, node_counts: Mapping[str, int]) -> Figure:
    names: dict[int, str] = {}
    by_nodes: dict[int, list[tuple[int, Series]]] = {}
    for cell in cells:
        time = _time(cell)
        if time:
            nodes = int(cell.state.params["nodes"])
            by_nodes.setdefault(nodes, []).append((int(cell.state.params["procs"]), time))
            # on fewer nodes than hosts in some sample: then the line is not one of so many nodes
            names[nodes] = max(
                names.get(nodes, ""), hosts_words(nodes, node_counts.get(cell.state.point)), key=len
            )
    points = sorted((procs, time.middle) for group in by_nodes.values() for procs, time in group)
    base_procs, base = points[0]
    largest = points[-1][0]
    fastest, on = min(
        (time.middle, nodes)
        for nodes, group in by_nodes.items()
        for procs, time in group
        if procs == largest
    )
    efficiency = base * base_procs / (fastest * largest)
    nodes_text = f" on {names[on]}" if sum(procs == largest for procs, _ in points) > 1 else ""
    title = (
        f"OpenFOAM: {base / fastest:.3g} times as fast with {largest} processes{nodes_text} "
        f"as with {base_procs}: {efficiency * 100:.0f} % efficient"
    )
    legend = band_words(time for group in by_nodes.values() for _, time in group)
    close = ", ".join(name for _, name in sorted(names.items()) if " on " in name)
    subtitle = style.caption(legend, f"dashed: ideal from {base_procs}", close, where)
    fig, (above, below) = style.figure(2, [2.6, 1.5], title=title, subtitle=subtitle, sharex=True)
    procs = sorted({p for p, _ in points})
    above.set_xscale("log", base=2)
    above.set_yscale("log")
    above.plot(
        procs,
        [base * base_procs / p for p in procs],
        color=style.MUTED,
        linestyle="--",
        linewidth=1,
        gid="ideal",
    )
    below.axhline(1, color=style.MUTED, linestyle="--", linewidth=1, gid="ideal efficiency")
    for k, (nodes, group) in enumerate(sorted(by_nodes.items())):
        group.sort(key=lambda pair: pair[0])
        xs, middles = [p for p, _ in group], [t.middle for _, t in group]
        bars = [
            [t.middle - t.band.low for _, t in group],
            [t.band.high - t.middle for _, t in group],
        ]
        name = names[nodes]
        above.errorbar(
            xs, middles, yerr=bars, label=name, capsize=3, gid=f"median {name}", **style.look(k)
        )
        below.plot(
            xs,
            [base * base_procs / (p * t) for p, t in zip(xs, middles, strict=True)],
            gid=f"efficiency {name}",
            **style.look(k),
        )
    unit = style.value_axis(above.yaxis, "s", base, log=True)
    above.set_ylabel(style.axis_label("solve_time", unit, "lower").replace(", ", "\n"))
    below.set_ylabel("efficiency\n(1: ideal)")
    below.set_ylim(0, max(1.15, *(base * base_procs / (p * t) * 1.1 for p, t in points)))
    below.set_xlabel("processes")
    below.set_xticks(procs, [str(p) for p in procs])
    below.minorticks_off()
    if len(by_nodes) > 1:
        above.legend(loc="upper right")
    return fig


def _phases(cells: Sequence[Cell], where: str) -> Figure:
    """Draw the medians of the phases as stacked horizontal bars from zero."""
    longest = sorted(cells, key=lambda cell: -time.middle if (time := _time(cell)) else 0.0)
    bars = [cell for cell in cells if cell in longest[:BARS]]  # in their own order
    time = _time(longest[0])
    title = f"OpenFOAM: time loop {value_words(time)}, the longest" if time else "OpenFOAM: phases"
    cut = f"the {len(bars)} longest of {len(cells)} points" if len(bars) < len(cells) else ""
    subtitle = style.caption("median of each phase; spread is in the table", cut, where)
    fig, (ax,) = style.figure(heights=(0.5 * len(bars) + 1.2,), title=title, subtitle=subtitle)
    places: list[Any] = list(range(len(bars)))
    left = [0.0] * len(bars)
    for k, (metric, name) in enumerate(_PHASES):
        lengths = [cell.middle(metric) or 0.0 for cell in bars]
        ax.barh(
            places,
            lengths,
            left=left,
            label=name,
            color=style.look(k)["color"],
            height=0.6,
            gid=f"phase {name}",
        )
        left = [a + b for a, b in zip(left, lengths, strict=True)]
    labels = [textwrap.fill(cell.label or cell.state.entry, 28) for cell in bars]
    ax.set_yticks(places, labels)
    ax.invert_yaxis()
    ax.set_xlim(0, max(left) * 1.05)
    unit = style.value_axis(ax.xaxis, "s", max(left), bins=4)
    ax.set_xlabel(f"time ({unit})")
    style.legend_beside(ax)
    return fig
