"""fio over queue depth: IOPS against p99 latency, with the knee of each curve."""

import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from perfdag.charts import style
from perfdag.charts.series import Cell, band_words, words_without
from perfdag.results.summary import Series, unusable
from perfdag.units import short

DEPTHS = 3  # fewest queue depths that make a curve
LINE = 0.17  # inches of a line of the legend
NUMBER = (0.011, 0.11)  # room of a digit, in shares of a panel 7 inches wide and 2.2 high
Place = tuple[float, float]


def is_mixed(cell: Cell) -> bool:
    """Whether a point has series of several directions, such as reads and writes."""
    return len({series.coords.get("direction") for series in cell.series("iops")}) > 1


Curve = list[tuple[int, Series, Series]]
"""(I/Os in flight on all hosts, IOPS, p99 latency) by rising depth."""


def queue_depth_curves(cells: Sequence[Cell]) -> dict[tuple[str, str], dict[str, Curve]]:
    """Return (pattern, block size) -> name -> curve. Curves with few depths are left out."""
    by_facet: dict[tuple[str, str], dict[str, Curve]] = {}
    for cell in cells:
        depth = _in_flight(cell)
        rw, size, mixed = (
            str(cell.state.params.get("rw", "")),
            cell.state.params.get("bs"),
            is_mixed(cell),
        )
        for iops in cell.series("iops"):
            late = next(
                (
                    series
                    for series in cell.series("latency", "p99")
                    if series.coords == iops.coords
                ),
                None,
            )
            if late is not None and depth is not None:
                pattern = f"{rw} ({iops.coords.get('direction', '')})" if mixed else rw
                facet = (
                    pattern,
                    short(float(size), "B") if isinstance(size, int | float) else str(size or ""),
                )
                name = words_without(cell, ("iodepth", "rw", "bs"))
                by_facet.setdefault(facet, {}).setdefault(name, []).append((depth, iops, late))
    long_curves = {}
    for facet, curves in by_facet.items():
        long = {
            name: sorted(points, key=lambda point: point[0])
            for name, points in curves.items()
            if len({d for d, _, _ in points}) >= DEPTHS
        }
        if long:
            long_curves[facet] = long
    return long_curves


def _in_flight(cell: Cell) -> int | None:
    """Return the I/Os in flight of all jobs on all hosts, or None where no queue depth is known."""
    depth, jobs = cell.state.params.get("iodepth"), cell.state.params.get("numjobs") or 1
    return (
        None
        if depth is None
        else int(depth) * int(jobs) * int(cell.state.shape.get("hosts", {}).get("count") or 1)
    )


def knee(curve: Curve) -> int:
    """Return the depth of the knee of a curve, where IOPS over p99 latency is highest.

    This is the power of Kleinrock (ICC 1979). Beyond the knee, waiting grows faster than IOPS.
    """
    return max(
        _usable(curve) or curve,
        key=lambda point: point[1].middle / point[2].middle if point[2].middle > 0 else 0.0,
    )[0]


def _usable(curve: Curve) -> Curve:
    return [point for point in curve if not any(map(unusable, point[1:]))]


def _knees(curves: dict[tuple[str, str], dict[str, Curve]]) -> str:
    texts = []
    named_curves = [
        (" ".join(part for part in (*facet, name) if part), curve)
        for facet, by_name in curves.items()
        for name, curve in by_name.items()
        if _usable(curve)
    ]
    for name, curve in named_curves:
        depth = knee(curve)
        _, iops, late = next(point for point in curve if point[0] == depth)
        where = f"{depth} in flight: {short(iops.middle, '1/s')} at p99 {short(late.middle, 's')}"
        head = f"{name}: " if len(named_curves) > 1 else ""
        texts.append(f"{head}{'no knee up to' if depth == curve[-1][0] else 'knee at'} {where}")
    if not texts:
        return "IOPS over queue depth: too noisy to rank"
    return "; ".join(texts[:3]) + (f" and {len(texts) - 3} more" if len(texts) > 3 else "")


def queue_depth_figure(curves: dict[tuple[str, str], dict[str, Curve]], where: str) -> Figure:
    """Draw a panel for each pattern (row) and block size (column) on the same axes."""
    every = list(dict.fromkeys(name for by_name in curves.values() for name in by_name))
    names = every[: len(style.SERIES)]
    curves = {
        facet: {name: by_name[name] for name in names if name in by_name}
        for facet, by_name in curves.items()
        if not by_name.keys().isdisjoint(names)
    }
    patterns = list(dict.fromkeys(pattern for pattern, _ in curves))
    sizes = list(dict.fromkeys(size for _, size in curves))
    series = [
        series
        for by_name in curves.values()
        for curve in by_name.values()
        for _, iops, late in curve
        for series in (iops, late)
    ]
    legend = (
        "numbers: I/Os in flight (iodepth x numjobs x hosts); "
        f"ring: knee, where IOPS over p99 latency is highest; {band_words(series)}"
    )
    cut = f"first {len(names)} of {len(every)} curves" if len(names) < len(every) else ""
    rows, columns = len(patterns), len(sizes)
    height = (3.4 if len(curves) == 1 else 2.2) + LINE * len(names) / rows
    fig, axes = style.figure(
        rows,
        (height,),
        columns,
        title=_knees(curves),
        subtitle=style.caption(legend, cut, where),
        sharex=True,
        sharey=True,
    )
    largest = max(
        iops.band.high
        for by_name in curves.values()
        for curve in by_name.values()
        for _, iops, _ in curve
    )
    waits = [series.band for series in series if series.metric == "latency"]
    lowest, highest = min(band.low for band in waits), max(band.high for band in waits)
    for i, ax in enumerate(axes):
        facet = patterns[i // columns], sizes[i % columns]
        ax.set_yscale("log")
        ax.set_xlim(0, largest * 1.08)
        ax.set_ylim(lowest / 1.5, highest * 1.5)
        room, places = (NUMBER[0] * columns, NUMBER[1] * 2.2 / height), dict[Place, int]()
        for name, curve in curves.get(facet, {}).items():
            _curve(ax, curve, name, style.look(names.index(name)))
            _numbers(ax, curve, room, places)
        name = style.value_axis(ax.xaxis, "1/s", largest, bins=6 if columns < 3 else 3)
        style.value_axis(ax.yaxis, "s", 1.0, log=True)
        if len(curves) > 1:
            ax.set_title(
                ", ".join(part for part in facet if part)
                + ("" if facet in curves else ": not measured")
            )
        if i >= (rows - 1) * columns:
            ax.set_xlabel(style.axis_label("iops", name, "higher" if columns < 3 else ""))
        if i % columns == 0:
            ax.set_ylabel("p99 latency\nlower is better")
    if len(names) > 1:
        handles = {
            label: handle
            for ax in axes
            for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
        }
        fig.legend(handles.values(), handles.keys(), loc="outside lower left")
    return fig


def _curve(ax: Axes, curve: Curve, name: str, look: dict[str, Any]) -> None:
    xs, ys = [iops.middle for _, iops, _ in curve], [late.middle for _, _, late in curve]
    label = textwrap.shorten(name or "otherwise", 90, placeholder=" ...")
    ax.plot(xs, ys, label=label, gid=f"median {name}", **look)
    ax.hlines(
        ys,
        [i.band.low for _, i, _ in curve],
        [i.band.high for _, i, _ in curve],
        color=look["color"],
        alpha=0.45,
    )
    ax.vlines(
        xs,
        [p.band.low for _, _, p in curve],
        [p.band.high for _, _, p in curve],
        color=look["color"],
        alpha=0.45,
    )
    best = knee(curve)
    for x, y, (depth, _, _) in zip(xs, ys, curve, strict=True):
        if depth == best and best != curve[-1][0]:
            ax.plot(
                [x],
                [y],
                "o",
                markersize=13,
                markerfacecolor="none",
                markeredgecolor=look["color"],
                gid=f"knee {name}",
            )


def _numbers(ax: Axes, curve: Curve, room: Place, places: dict[Place, int]) -> None:
    """Write the I/Os in flight at the points. A number that would cover another is left out.

    `places` are the places of numbers and their digits.
    """
    best, numbers = knee(curve), []
    for depth, iops, late in sorted(curve, key=lambda point: point[0] != best):
        at = iops.middle, late.middle
        x, y = ax.transLimits.transform(ax.transScale.transform(at))
        digits = len(str(depth))
        if not any(
            abs(x - i) < room[0] * (2 + max(digits, other)) and abs(y - j) < room[1]
            for (i, j), other in places.items()
        ):
            places[x, y] = digits
            numbers.append((depth, at))
    for depth, at in sorted(numbers):
        ax.annotate(
            str(depth),
            at,
            xytext=(5, -10),
            textcoords="offset points",
            fontsize=8,
            color=style.MUTED,
        )
