"""A panel of dots: one row per point, with the median on its range and all samples as ticks."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from perfdag.charts import style
from perfdag.charts.series import Cell, value_words
from perfdag.results.summary import Series

ROW = 0.27  # inches a line of a row
LOG_FROM = 50.0
"""A metric whose largest value is this many times its smallest is drawn on a log axis."""


@dataclass
class Group:
    """One colour of a panel: its name in the legend, and a series or None for every point."""

    name: str
    series: list[Series | None]


def groups(cells: Sequence[Cell], metric: str, limit: int = len(style.SERIES)) -> list[Group]:
    """Return the series of a metric by statistic and coordinates, at most `limit` groups."""
    names: dict[str, dict[int, Series]] = {}
    for index, cell in enumerate(cells):
        for series in cell.series(metric):
            name = detail(series)
            names.setdefault(name, {}).setdefault(index, series)
    first_groups = list(names.items())[:limit]
    return [
        Group(name, [by_cell.get(i) for i in range(len(cells))]) for name, by_cell in first_groups
    ]


def series_of(groups: Sequence[Group]) -> list[Series]:
    """Return the series of all groups."""
    return [series for group in groups for series in group.series if series]


def detail(series: Series) -> str:
    """Return statistic and coordinates in short: `p99 read`. Numbers keep their names."""
    values = [
        str(value) if isinstance(value, str) else f"{key}={value}"
        for key, value in series.coords.items()
    ]
    return " ".join([*([] if series.stat == "value" else [series.stat]), *values])


def height(cells: Sequence[Cell], groups: Sequence[Group]) -> float:
    """Return the height of a panel in inches."""
    legend = 0.22 * math.ceil(len(groups) / _columns(groups)) if len(groups) > 1 else 0.0
    return (
        sum(_lines(cell, _present(groups, i)) for i, cell in enumerate(cells)) * ROW + 0.55 + legend
    )


def wrap(label: str) -> str:
    """Return the label of a row in at most three lines."""
    return "\n".join(
        textwrap.wrap(label, 30, max_lines=3, placeholder=" ...", break_on_hyphens=False) or [label]
    )


def _present(groups: Sequence[Group], index: int) -> int:
    return sum(1 for group in groups if group.series[index] is not None)


def _lines(cell: Cell, count: int) -> float:
    text = wrap(cell.label).count("\n") + 1
    return max(1 if cell.why else max(count, 1), 0.62 * text) + 0.25


def panel(
    ax: Axes, cells: Sequence[Cell], groups: Sequence[Group], metric: str, reasons: bool = True
) -> None:
    """Draw one metric. Points without a valid sample are grey crosses, with `reasons`."""
    values = [value for series in series_of(groups) for value in series.values]
    first = next(iter(series_of(groups)), None)
    unit, better = (first.unit, first.better) if first else ("1", "none")
    log = needs_log(values)
    tops, middles, total = _rows(cells, groups)
    _limits(ax, values, log)
    for k, group in enumerate(groups):
        before = [_present(groups[:k], i) for i in range(len(cells))]
        _group(
            ax,
            cells,
            group,
            k,
            [
                m + b - (_present(groups, i) - 1) / 2
                for i, (m, b) in enumerate(zip(middles, before, strict=True))
            ],
        )
    failed = [i for i, cell in enumerate(cells) if cell.why]
    _failures(ax, cells, failed, middles, reasons)
    ax.set_ylim(total, 0)
    ax.set_yticks(middles, [wrap(cell.label) for cell in cells])
    ax.yaxis.set_minor_locator(NullLocator())
    ax.tick_params(axis="y", length=0, pad=8)
    ax.grid(axis="y", visible=False)
    ax.spines["left"].set_visible(False)
    for edge in tops[1:]:
        ax.axhline(edge, color=style.GRID, linewidth=0.5, zorder=0)
    largest = max((abs(v) for v in values), default=1.0)
    name = style.value_axis(ax.xaxis, unit, largest, log=log) if values else ""
    ax.set_xlabel(style.axis_label(metric, "log scale" if log and not name else name, better))
    if len(groups) > 1:
        ax.legend(
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=_columns(groups),
            borderaxespad=0.1,
            handletextpad=0.3,
            columnspacing=1.2,
        )


def needs_log(values: Sequence[float]) -> bool:
    """Return whether values are so far apart that they need a log axis."""
    return bool(values) and min(values) > 0 and max(values) / min(values) > LOG_FROM


def _columns(groups: Sequence[Group]) -> int:
    """Return the columns of the legend. The longest name leaves room for its neighbours."""
    longest = max((len(group.name) for group in groups), default=0)
    return max(1, min(len(groups), 4, 76 // (longest + 5)))


def _rows(cells: Sequence[Cell], groups: Sequence[Group]) -> tuple[list[float], list[float], float]:
    tops, at = [], 0.0
    for i, cell in enumerate(cells):
        tops.append(at)
        at += _lines(cell, _present(groups, i))
    return tops, [(top + bottom) / 2 for top, bottom in zip(tops, [*tops[1:], at], strict=True)], at


def _limits(ax: Axes, values: Sequence[float], log: bool) -> None:
    if log:
        ax.set_xscale("log")
        ax.set_xlim(10 ** (math.log10(min(values)) - 0.15), 10 ** (math.log10(max(values)) + 0.15))
    elif values:
        low, high = min(0.0, *values), max(0.0, *values)
        # zero is in sight: a small difference must look small
        ax.set_xlim(low * 1.06, (high * 1.06) or 1.0)
    else:
        ax.set_xlim(0, 1)
        ax.set_xticks([])


def _group(ax: Axes, cells: Sequence[Cell], group: Group, k: int, places: Sequence[float]) -> None:
    look = style.look(k)
    color = look["color"]
    points = [
        (places[i], cell, series)
        for i, (cell, series) in enumerate(zip(cells, group.series, strict=True))
        if series and series.values
    ]
    if not points:
        return
    ys = [y for y, _, _ in points]
    bands = [series.band for _, _, series in points]
    ax.hlines(
        ys,
        [b.low for b in bands],
        [b.high for b in bands],
        color=color,
        linewidth=2.2,
        alpha=0.55,
        zorder=2,
        gid=f"band {group.name}",
    )
    samples = [(v, y) for y, _, series in points for v in series.values[:200]]
    ax.plot(
        [v for v, _ in samples],
        [y for _, y in samples],
        linestyle="none",
        marker="|",
        markersize=7,
        markeredgewidth=0.9,
        color=color,
        zorder=3,
        gid=f"samples {group.name}",
    )
    for hollow in (False, True):
        some = [(y, cell, series) for y, cell, series in points if cell.noisy is hollow]
        if some:
            (marks,) = ax.plot(
                [series.middle for *_, series in some],
                [y for y, *_ in some],
                linestyle="none",
                marker=look["marker"],
                color=color,
                markerfacecolor=style.PAPER if hollow else color,
                zorder=5,
                label=group.name if not hollow or len(some) == len(points) else "_noisy",
                gid=f"median {group.name}",
            )
            style.HOVERS[marks] = [
                " ".join(filter(None, (cell.label, group.name))) + f": {value_words(series)}"
                for _, cell, series in some
            ]
    for y, cell, series in points:
        mark = " ~" if cell.noisy else ""
        ax.text(
            1.015,
            y,
            value_words(series) + mark,
            transform=ax.get_yaxis_transform(),
            va="center",
            fontsize=8,
            color=style.INK,
        )


def _failures(
    ax: Axes, cells: Sequence[Cell], failed: Sequence[int], middles: Sequence[float], reasons: bool
) -> None:
    if not failed:
        return
    left = ax.get_yaxis_transform()
    style.cross(ax, [0.0] * len(failed), [middles[i] for i in failed], left)
    for i in failed if reasons else ():
        why = textwrap.fill(cells[i].why or "", 60, max_lines=2, placeholder=" ...")
        ax.text(0.025, middles[i], why, transform=left, va="center", fontsize=8, color=style.MUTED)
