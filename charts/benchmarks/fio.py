"""Charts of fio: IOPS, bandwidth and latency by point, latency distributions, and queue depth.

IOPS stand against p99 latency where the queue depth has three or more values. Distributed points
show their workers.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from perfdag.charts import dots, style
from perfdag.charts.benchmarks import fio_workers
from perfdag.charts.benchmarks.generic import finding, pages
from perfdag.charts.series import Cell, Series, band_words, read, runs_words, words_without
from perfdag.units import short

PERCENTILES = ("p50", "p99", "p99.9")
SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999, "p99.99": 0.9999}
COLUMNS = 3  # block sizes in a figure
DEPTHS = 3  # fewest queue depths that make a curve


def figures(rows: pa.Table) -> Iterable[tuple[str, Figure]]:
    """Dots of IOPS, bandwidth and latency; a curve over queue depth for each pattern that has one."""
    cells = read(rows)
    where = runs_words(rows)
    if not cells:
        yield "points", style.no_data()
        return
    for slug, some, note in pages(cells):
        yield slug, _points(some, "; ".join(part for part in (note, where) if part))
    if apart := fio_workers.figure(rows, cells, where):
        yield "workers", apart
    if distributed := _distributions(cells):
        yield "latency", _distribution(distributed, where)
    curves = _curves(cells)
    sizes = list(dict.fromkeys(size for _, size in curves))
    for start in range(0, len(sizes), COLUMNS):
        shown = {
            facet: named
            for facet, named in curves.items()
            if facet[1] in sizes[start : start + COLUMNS]
        }
        yield (
            "queue-depth" if start == 0 else f"queue-depth-{start // COLUMNS + 1}",
            _queue_depth(shown, where),
        )


def _points(cells: Sequence[Cell], where: str) -> Figure:
    panels = [
        (name, list(cells), groups)
        for name in ("iops", "bandwidth")
        if (groups := dots.groups(cells, name))
    ]
    for direction in dict.fromkeys(
        str(one_series.coords.get("direction", ""))
        for cell in cells
        for one_series in cell.series("latency", "p50")
    ):
        own = [cell for cell in cells if _late(cell, "p50", direction)]
        panels.append((f"{direction} latency".strip(), own, _percentiles(own, direction)))
    panels = panels or [("iops", list(cells), [])]
    series = [
        one_series
        for _, _, groups in panels
        for group in groups
        for one_series in group.series
        if one_series
    ]
    noisy = "~ and hollow: a sample was disturbed" if any(cell.noisy for cell in cells) else ""
    fig, axes = style.figure(
        len(panels),
        [dots.height(own, groups) for _, own, groups in panels],
        title=finding(cells, "iops"),
        subtitle="; ".join(part for part in (band_words(series), noisy, where) if part),
    )
    for i, (ax, (name, own, groups)) in enumerate(zip(axes, panels, strict=True)):
        dots.panel(ax, own, groups, name, reasons=i == 0)
    return fig


def _late(cell: Cell, stat: str, direction: str) -> Series | None:
    return next(
        (
            series
            for series in cell.series("latency", stat)
            if str(series.coords.get("direction", "")) == direction
        ),
        None,
    )


def _percentiles(cells: Sequence[Cell], direction: str) -> list[dots.Group]:
    groups = [
        dots.Group(stat, [_late(cell, stat, direction) for cell in cells]) for stat in PERCENTILES
    ]
    return [group for group in groups if any(group.series)]


def _distributions(cells: Sequence[Cell]) -> dict[str, list[tuple[float, Series]]]:
    """Point and direction -> (share of the I/Os that took no longer, their latency), by rising share; at least three percentiles."""
    by_name: dict[str, list[tuple[float, Series]]] = {}
    for cell in cells:
        mixed = _both_ways(cell)
        for series in cell.series("completion_latency"):
            if series.stat in SHARES and series.values and series.middle > 0:
                direction = str(series.coords.get("direction", ""))
                by_name.setdefault(
                    f"{cell.label} ({direction})" if mixed else cell.label, []
                ).append((SHARES[series.stat], series))
    return {
        name: sorted(shares, key=lambda pair: pair[0])
        for name, shares in by_name.items()
        if len(shares) >= 3
    }


def _both_ways(cell: Cell) -> bool:
    """Whether a point has series of several directions: reads and writes, or trims and writes."""
    return len({series.coords.get("direction") for series in cell.series("iops")}) > 1


def _distribution(distributions: dict[str, list[tuple[float, Series]]], where: str) -> Figure:
    """Latency on a log axis against the share of I/Os that took no longer, which is drawn by the decades of what is left."""
    common = set.intersection(
        *({series.stat for _, series in shares} for shares in distributions.values())
    )
    least, most = (f(common, key=lambda stat: SHARES[stat], default="") for f in (min, max))
    tails = {
        name: _middle(shares, most) / _middle(shares, least) if common else 1.0
        for name, shares in distributions.items()
    }
    shown = sorted(distributions, key=lambda name: -tails[name])[: len(style.SERIES)]
    longest = shown[0]
    title = (
        f"{longest}: {most} of the completion latency is {tails[longest]:.1f} times its {least}"
        if common
        else "Completion latency"
    )
    cut = (
        f"the {len(shown)} longest tails of {len(distributions)}"
        if len(shown) < len(distributions)
        else ""
    )
    legend = (
        band_words([series for name in shown for _, series in distributions[name]])
        .replace("dot", "line")
        .replace("bar", "band")
    )
    fig, (ax,) = style.figure(
        title=title,
        subtitle="; ".join(part for part in (legend, cut, where) if part),
        heights=(3.2,),
    )
    ax.set_xscale("log")
    for k, name in enumerate(shown):
        look = style.look(k)
        ys = [_decades(share) for share, _ in distributions[name]]
        bands = [series.band for _, series in distributions[name]]
        ax.fill_betweenx(
            ys,
            [b.low for b in bands],
            [b.high for b in bands],
            color=look["color"],
            alpha=0.2,
            linewidth=0,
            gid=f"band {name}",
        )
        ax.plot(
            [series.middle for _, series in distributions[name]],
            ys,
            label=name,
            gid=f"median {name}",
            **look,
        )
    top = max(share for name in shown for share, _ in distributions[name])
    ticks = [share for share in SHARES.values() if share <= top]
    ax.set_yticks([_decades(share) for share in ticks], [f"p{100 * share:g}" for share in ticks])
    style.value_axis(ax.xaxis, "s", 1.0, log=True)
    ax.set_xlabel("completion latency, lower is better")
    ax.set_ylabel("I/Os that took no longer")
    ax.legend(
        loc="upper left", bbox_to_anchor=(0, -0.16), ncols=2
    )  # below: lines of tails cross all of the panel
    return fig


def _middle(shares: Sequence[tuple[float, Series]], stat: str) -> float:
    return next(series.middle for _, series in shares if series.stat == stat)


def _decades(share: float) -> float:
    """p90 is 1, p99 is 2, p99.9 is 3: the tail is what matters."""
    return -math.log10(1 - share)


Curve = list[tuple[int, Series, Series]]
"""(I/Os in flight on all hosts, IOPS, p99 latency) by rising depth."""


def _curves(cells: Sequence[Cell]) -> dict[tuple[str, str], dict[str, Curve]]:
    """Pattern and block size -> curve by what else tells points apart; only those of enough depths."""
    by_facet: dict[tuple[str, str], dict[str, Curve]] = {}
    for cell in cells:
        depth = _in_flight(cell)
        rw, size, mixed = (
            str(cell.state.params.get("rw", "")),
            cell.state.params.get("bs"),
            _both_ways(cell),
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
    """I/Os in flight of all jobs on all hosts, of whom IOPS are the sum too; None where no queue depth is known."""
    depth, jobs = cell.state.params.get("iodepth"), cell.state.params.get("numjobs") or 1
    return (
        None
        if depth is None
        else int(depth) * int(jobs) * int(cell.state.shape.get("hosts", {}).get("count") or 1)
    )


def knee(curve: Curve) -> int:
    """Depth of the knee of a curve: where IOPS over p99 latency is highest (Kleinrock's power, ICC 1979). Beyond it waiting grows faster."""
    return max(
        curve, key=lambda point: point[1].middle / point[2].middle if point[2].middle > 0 else 0.0
    )[0]


def _knees(curves: dict[tuple[str, str], dict[str, Curve]]) -> str:
    texts = []
    named_curves = [
        (" ".join(part for part in (*facet, name) if part), curve)
        for facet, named in curves.items()
        for name, curve in named.items()
    ]
    for name, curve in named_curves:
        depth = knee(curve)
        _, iops, late = next(point for point in curve if point[0] == depth)
        where = f"{depth} in flight: {short(iops.middle, '1/s')} at p99 {short(late.middle, 's')}"
        texts.append(
            f"{f'{name}: ' if len(named_curves) > 1 else ''}{'no knee up to' if depth == curve[-1][0] else 'knee at'} {where}"
        )
    return "; ".join(texts[:3]) + (f" and {len(texts) - 3} more" if len(texts) > 3 else "")


def _queue_depth(curves: dict[tuple[str, str], dict[str, Curve]], where: str) -> Figure:
    """A panel for each pattern (row) and block size (column) on the same axes."""
    most, lines = max(map(len, curves.values())), len(style.SERIES)
    curves = {facet: dict(list(named.items())[:lines]) for facet, named in curves.items()}
    patterns = list(dict.fromkeys(pattern for pattern, _ in curves))
    sizes = list(dict.fromkeys(size for _, size in curves))
    series = [
        one_series
        for named in curves.values()
        for curve in named.values()
        for _, iops, late in curve
        for one_series in (iops, late)
    ]
    legend = f"numbers: I/Os in flight (iodepth x numjobs x hosts); ring: knee, where IOPS over p99 latency is highest; {band_words(series)}"
    legend += (
        f"; first {lines} of {most} curves{' of a panel' if len(curves) > 1 else ''}"
        if most > lines
        else ""
    )
    rows, columns = len(patterns), len(sizes)
    heights = (3.4,) if len(curves) == 1 else (2.2,)
    fig, axes = style.figure(
        rows,
        heights,
        columns,
        title=_knees(curves),
        subtitle=f"{legend}; {where}",
        sharex=True,
        sharey=True,
    )
    largest = max(
        iops.band.high
        for named in curves.values()
        for curve in named.values()
        for _, iops, _ in curve
    )
    waits = [one_series.band for one_series in series if one_series.metric == "latency"]
    lowest, highest = min(band.low for band in waits), max(band.high for band in waits)
    for i, ax in enumerate(axes):
        facet = patterns[i // columns], sizes[i % columns]
        ax.set_yscale("log")
        ax.set_xlim(0, largest * 1.08)
        ax.set_ylim(lowest / 1.5, highest * 1.5)
        for k, (name, curve) in enumerate(curves.get(facet, {}).items()):
            _curve(ax, curve, name, style.look(k))
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
        if len(curves.get(facet, {})) > 1:
            ax.legend(loc="best")
    return fig


def _curve(ax: Axes, curve: Curve, name: str, look: dict[str, Any]) -> None:
    xs, ys = [iops.middle for _, iops, _ in curve], [late.middle for _, _, late in curve]
    ax.plot(xs, ys, label=name or "otherwise", gid=f"median {name}", **look)
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
        ax.annotate(
            str(depth),
            (x, y),
            xytext=(5, -10),
            textcoords="offset points",
            fontsize=8,
            color=style.MUTED,
        )
