"""fio: IOPS, bandwidth and latency percentiles by point; the distribution of completion latency; IOPS against p99 latency where the
queue depth has three or more values, a panel for each pattern and block size; the workers of points of several hosts."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from perfdag.charts import dots, fio_workers, style
from perfdag.charts.generic import finding, pages
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
        str(each.coords.get("direction", ""))
        for cell in cells
        for each in cell.series("latency", "p50")
    ):
        own = [cell for cell in cells if _late(cell, "p50", direction)]
        panels.append((f"{direction} latency".strip(), own, _percentiles(own, direction)))
    panels = panels or [("iops", list(cells), [])]
    series = [each for _, _, groups in panels for group in groups for each in group.series if each]
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
            each
            for each in cell.series("latency", stat)
            if str(each.coords.get("direction", "")) == direction
        ),
        None,
    )


def _percentiles(cells: Sequence[Cell], direction: str) -> list[dots.Group]:
    made = [
        dots.Group(stat, [_late(cell, stat, direction) for cell in cells]) for stat in PERCENTILES
    ]
    return [group for group in made if any(group.series)]


def _distributions(cells: Sequence[Cell]) -> dict[str, list[tuple[float, Series]]]:
    """Point and direction -> (share of the I/Os that took no longer, their latency), by rising share; at least three percentiles."""
    made: dict[str, list[tuple[float, Series]]] = {}
    for cell in cells:
        mixed = _both_ways(cell)
        for each in cell.series("completion_latency"):
            if each.stat in SHARES and each.values and each.middle > 0:
                direction = str(each.coords.get("direction", ""))
                made.setdefault(f"{cell.label} ({direction})" if mixed else cell.label, []).append(
                    (SHARES[each.stat], each)
                )
    return {
        name: sorted(found, key=lambda pair: pair[0])
        for name, found in made.items()
        if len(found) >= 3
    }


def _both_ways(cell: Cell) -> bool:
    """Whether a point has series of several directions: reads and writes, or trims and writes."""
    return len({each.coords.get("direction") for each in cell.series("iops")}) > 1


def _distribution(told: dict[str, list[tuple[float, Series]]], where: str) -> Figure:
    """Latency on a log axis against the share of I/Os that took no longer, which is drawn by the decades of what is left."""
    common = set.intersection(*({each.stat for _, each in found} for found in told.values()))
    least, most = (f(common, key=lambda stat: SHARES[stat], default="") for f in (min, max))
    tails = {
        name: _middle(found, most) / _middle(found, least) if common else 1.0
        for name, found in told.items()
    }
    shown = sorted(told, key=lambda name: -tails[name])[: len(style.SERIES)]
    longest = shown[0]
    title = (
        f"{longest}: {most} of the completion latency is {tails[longest]:.1f} times its {least}"
        if common
        else "Completion latency"
    )
    cut = f"the {len(shown)} longest tails of {len(told)}" if len(shown) < len(told) else ""
    said = (
        band_words([each for name in shown for _, each in told[name]])
        .replace("dot", "line")
        .replace("bar", "band")
    )
    fig, (ax,) = style.figure(
        title=title, subtitle="; ".join(part for part in (said, cut, where) if part), heights=(3.2,)
    )
    ax.set_xscale("log")
    for k, name in enumerate(shown):
        look = style.look(k)
        ys = [_decades(share) for share, _ in told[name]]
        bands = [each.band for _, each in told[name]]
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
            [each.middle for _, each in told[name]], ys, label=name, gid=f"median {name}", **look
        )
    top = max(share for name in shown for share, _ in told[name])
    ticks = [share for share in SHARES.values() if share <= top]
    ax.set_yticks([_decades(share) for share in ticks], [f"p{100 * share:g}" for share in ticks])
    style.value_axis(ax.xaxis, "s", 1.0, log=True)
    ax.set_xlabel("completion latency, lower is better")
    ax.set_ylabel("I/Os that took no longer")
    ax.legend(
        loc="upper left", bbox_to_anchor=(0, -0.16), ncols=2
    )  # below: lines of tails cross all of the panel
    return fig


def _middle(found: Sequence[tuple[float, Series]], stat: str) -> float:
    return next(each.middle for _, each in found if each.stat == stat)


def _decades(share: float) -> float:
    """p90 is 1, p99 is 2, p99.9 is 3: the tail is what matters."""
    return -math.log10(1 - share)


Curve = list[tuple[int, Series, Series]]
"""(I/Os in flight on all hosts, IOPS, p99 latency) by rising depth."""


def _curves(cells: Sequence[Cell]) -> dict[tuple[str, str], dict[str, Curve]]:
    """Pattern and block size -> curve by what else tells points apart; only those of enough depths."""
    made: dict[tuple[str, str], dict[str, Curve]] = {}
    for cell in cells:
        depth = _in_flight(cell)
        rw, size, mixed = (
            str(cell.state.params.get("rw", "")),
            cell.state.params.get("bs"),
            _both_ways(cell),
        )
        for iops in cell.series("iops"):
            late = next(
                (each for each in cell.series("latency", "p99") if each.coords == iops.coords), None
            )
            if late is not None and depth is not None:
                pattern = f"{rw} ({iops.coords.get('direction', '')})" if mixed else rw
                facet = (
                    pattern,
                    short(float(size), "B") if isinstance(size, int | float) else str(size or ""),
                )
                name = words_without(cell, ("iodepth", "rw", "bs"))
                made.setdefault(facet, {}).setdefault(name, []).append((depth, iops, late))
    found = {}
    for facet, curves in made.items():
        long = {
            name: sorted(told, key=lambda each: each[0])
            for name, told in curves.items()
            if len({d for d, _, _ in told}) >= DEPTHS
        }
        if long:
            found[facet] = long
    return found


def _in_flight(cell: Cell) -> int | None:
    """I/Os in flight of all jobs on all hosts, of whom IOPS are the sum too; None where no queue depth is known."""
    depth, jobs = cell.state.params.get("iodepth"), cell.state.params.get("numjobs") or 1
    return (
        None
        if depth is None
        else int(depth) * int(jobs) * int(cell.state.shape.get("hosts", {}).get("count") or 1)
    )


def knee(found: Curve) -> int:
    """Depth of the knee of a curve: where IOPS over p99 latency is highest (Kleinrock's power, ICC 1979). Beyond it waiting grows faster."""
    return max(
        found, key=lambda each: each[1].middle / each[2].middle if each[2].middle > 0 else 0.0
    )[0]


def _knees(curves: dict[tuple[str, str], dict[str, Curve]]) -> str:
    said = []
    told = [
        (" ".join(part for part in (*facet, name) if part), found)
        for facet, named in curves.items()
        for name, found in named.items()
    ]
    for name, found in told:
        depth = knee(found)
        _, iops, late = next(each for each in found if each[0] == depth)
        where = f"{depth} in flight: {short(iops.middle, '1/s')} at p99 {short(late.middle, 's')}"
        said.append(
            f"{f'{name}: ' if len(told) > 1 else ''}{'no knee up to' if depth == found[-1][0] else 'knee at'} {where}"
        )
    return "; ".join(said[:3]) + (f" and {len(said) - 3} more" if len(said) > 3 else "")


def _queue_depth(curves: dict[tuple[str, str], dict[str, Curve]], where: str) -> Figure:
    """A panel for each pattern (row) and block size (column) on the same axes."""
    most, lines = max(map(len, curves.values())), len(style.SERIES)
    curves = {facet: dict(list(named.items())[:lines]) for facet, named in curves.items()}
    patterns = list(dict.fromkeys(pattern for pattern, _ in curves))
    sizes = list(dict.fromkeys(size for _, size in curves))
    series = [
        each
        for named in curves.values()
        for found in named.values()
        for _, iops, late in found
        for each in (iops, late)
    ]
    said = f"numbers: I/Os in flight (iodepth x numjobs x hosts); ring: knee, where IOPS over p99 latency is highest; {band_words(series)}"
    said += (
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
        subtitle=f"{said}; {where}",
        sharex=True,
        sharey=True,
    )
    largest = max(
        iops.band.high
        for named in curves.values()
        for found in named.values()
        for _, iops, _ in found
    )
    waits = [each.band for each in series if each.metric == "latency"]
    lowest, highest = min(band.low for band in waits), max(band.high for band in waits)
    for i, ax in enumerate(axes):
        facet = patterns[i // columns], sizes[i % columns]
        ax.set_yscale("log")
        ax.set_xlim(0, largest * 1.08)
        ax.set_ylim(lowest / 1.5, highest * 1.5)
        for k, (name, found) in enumerate(curves.get(facet, {}).items()):
            _curve(ax, found, name, style.look(k))
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


def _curve(ax: Axes, found: Curve, name: str, look: dict[str, Any]) -> None:
    xs, ys = [iops.middle for _, iops, _ in found], [late.middle for _, _, late in found]
    ax.plot(xs, ys, label=name or "otherwise", gid=f"median {name}", **look)
    ax.hlines(
        ys,
        [i.band.low for _, i, _ in found],
        [i.band.high for _, i, _ in found],
        color=look["color"],
        alpha=0.45,
    )
    ax.vlines(
        xs,
        [p.band.low for _, _, p in found],
        [p.band.high for _, _, p in found],
        color=look["color"],
        alpha=0.45,
    )
    best = knee(found)
    for x, y, (depth, _, _) in zip(xs, ys, found, strict=True):
        if depth == best and best != found[-1][0]:
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
