"""fio: IOPS, bandwidth and latency percentiles by point; IOPS against p99 latency where the queue depth has three or more values."""

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from matplotlib.figure import Figure

from perfdag.charts import dots, style
from perfdag.charts.generic import finding, pages
from perfdag.charts.series import Cell, Series, band_words, read, runs_words
from perfdag.units import short

PERCENTILES = ("p50", "p99", "p99.9")
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
    curves = _curves(cells)
    if curves:
        yield "queue-depth", _queue_depth(curves, where)


def _points(cells: Sequence[Cell], where: str) -> Figure:
    panels = [(name, list(cells), groups) for name in ("iops", "bandwidth") if (groups := dots.groups(cells, name))]
    for direction in dict.fromkeys(str(each.coords.get("direction", "")) for cell in cells for each in cell.series("latency", "p50")):
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
    return next((each for each in cell.series("latency", stat) if str(each.coords.get("direction", "")) == direction), None)


def _percentiles(cells: Sequence[Cell], direction: str) -> list[dots.Group]:
    made = [dots.Group(stat, [_late(cell, stat, direction) for cell in cells]) for stat in PERCENTILES]
    return [group for group in made if any(group.series)]


def _curves(cells: Sequence[Cell]) -> dict[str, list[tuple[int, Series, Series]]]:
    """Pattern -> (depth, IOPS, p99 latency) by rising depth."""
    made: dict[str, list[tuple[int, Series, Series]]] = {}
    for cell in cells:
        depth: Any = cell.state.params.get("iodepth")
        for iops in cell.series("iops"):
            late = next((each for each in cell.series("latency", "p99") if each.coords == iops.coords), None)
            if late is not None and depth is not None:
                direction = str(iops.coords.get("direction", ""))
                rest = " ".join(word for word in cell.label.split(" ") if word != f"iodepth={depth}") or cell.state.entry
                name = f"{rest} ({direction})" if cell.state.params.get("rw") in ("rw", "randrw") else rest
                made.setdefault(name, []).append((int(depth), iops, late))
    return {name: sorted(found, key=lambda each: each[0]) for name, found in made.items() if len({d for d, _, _ in found}) >= DEPTHS}


def knee(found: Sequence[tuple[int, Series, Series]]) -> int:
    """Depth of the knee of a curve: where IOPS over p99 latency is highest (Kleinrock's power, ICC 1979). Beyond it waiting grows faster."""
    return max(found, key=lambda each: each[1].middle / each[2].middle if each[2].middle > 0 else 0.0)[0]


def _knees(curves: dict[str, list[tuple[int, Series, Series]]]) -> str:
    said = []
    for name, found in curves.items():
        depth = knee(found)
        _, iops, late = next(each for each in found if each[0] == depth)
        where = f"{depth} in flight: {short(iops.middle, '1/s')} at p99 {short(late.middle, 's')}"
        said.append(f"{f'{name}: ' if len(curves) > 1 else ''}{'no knee up to' if depth == found[-1][0] else 'knee at'} {where}")
    return "; ".join(said[:3]) + (f" and {len(said) - 3} more" if len(said) > 3 else "")


def _queue_depth(curves: dict[str, list[tuple[int, Series, Series]]], where: str) -> Figure:
    series = [each for found in curves.values() for _, iops, late in found for each in (iops, late)]
    said = f"numbers: I/Os in flight; ring: knee, where IOPS over p99 latency is highest; {band_words(series)}"
    fig, (ax,) = style.figure(title=_knees(curves), subtitle=f"{said}; {where}", heights=(3.4,))
    ax.set_yscale("log")
    for k, (name, found) in enumerate(list(curves.items())[: len(style.SERIES)]):
        look = style.look(k)
        xs, ys = [iops.middle for _, iops, _ in found], [late.middle for _, _, late in found]
        ax.plot(xs, ys, label=name, gid=f"median {name}", **look)
        ax.hlines(ys, [i.band.low for _, i, _ in found], [i.band.high for _, i, _ in found], color=look["color"], alpha=0.45)
        ax.vlines(xs, [p.band.low for _, _, p in found], [p.band.high for _, _, p in found], color=look["color"], alpha=0.45)
        best = knee(found)
        for x, y, (depth, _, _) in zip(xs, ys, found, strict=True):
            if depth == best and best != found[-1][0]:
                ax.plot([x], [y], "o", markersize=13, markerfacecolor="none", markeredgecolor=look["color"], gid=f"knee {name}")
            ax.annotate(str(depth), (x, y), xytext=(5, -10), textcoords="offset points", fontsize=8, color=style.MUTED)
    largest = max(iops.band.high for found in curves.values() for _, iops, _ in found)
    ax.set_xlim(0, largest * 1.08)
    name = style.value_axis(ax.xaxis, "1/s", largest)
    style.value_axis(ax.yaxis, "s", 1.0, log=True)
    ax.set_xlabel(style.axis_label("iops", name, "higher"))
    ax.set_ylabel("p99 latency\nlower is better")
    ax.legend(loc="best")
    return fig
