"""The panels of charts: lines, dots and a heat map."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.ticker import MaxNLocator, NullLocator

from perfdag.charts import style
from perfdag.charts.series import Item, amount, value_words
from perfdag.results.summary import Series, unusable
from perfdag.units import digits, scaled, short

NAME = 30  # letters of a name at the end of a line
DIRECT = 6  # up to so many lines are named at their ends
ROW = 0.27  # inches of a row of dots
LOG_FROM = 50.0
"""Values of which the largest is this many times the smallest are drawn on a log axis."""

Line = Mapping[float, Series]
"""Series by x."""


def needs_log(values: Sequence[float]) -> bool:
    """Return whether values are so far apart that they need a log axis."""
    return bool(values) and min(values) > 0 and max(values) / min(values) > LOG_FROM


def lines(
    ax: Axes, curves: Mapping[str, Line], unit_x: str, log: bool = False, names: Sequence[str] = ()
) -> None:
    """Draw medians as lines and spreads as bands over x, which is log2 over a factor of 8.

    `unit_x` is B for sizes. A size of zero stands left of the smallest. The place of a name in
    `names` gives its colour.
    """
    every = [series for curve in curves.values() for series in curve.values()]
    xs = sorted({x for curve in curves.values() for x in curve})
    positive = [x for x in xs if x > 0]
    log_x = len(positive) > 2 and positive[-1] / positive[0] >= 8
    log_x = log_x and not _evenly(positive)
    zero = positive[0] / 2 if log_x and xs[0] == 0 else None
    if log_x:
        ax.set_xscale("log", base=2)
        ax.set_xlim((zero or positive[0]) / 1.3, positive[-1] * 1.3)
        style.size_axis(ax.xaxis, positive, unit_x, zero)
    elif xs:
        pad = 0.04 * (xs[-1] - xs[0]) or 1.0
        ax.set_xlim(xs[0] - pad, xs[-1] + pad)
        style.value_axis(ax.xaxis, unit_x, max(xs))
        if all(x == int(x) for x in xs):  # there is nothing at 1.2 processes
            ax.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10], integer=True))
    order = list(names or curves)
    for name, curve in curves.items():
        k = order.index(name)
        own = sorted(curve.items())
        at = [zero if x == 0 and zero is not None else x for x, _ in own]
        bands = [series.band for _, series in own]
        colour = style.look(k)["color"]
        shade: Any = {"color": colour, "alpha": 0.2, "linewidth": 0, "gid": f"band {name}"}
        ax.fill_between(at, [b.low for b in bands], [b.high for b in bands], **shade)
        middles = [series.middle for _, series in own]
        gid = f"median {name}"
        (marks,) = ax.plot(
            at, middles, label=_in_legend(name), markersize=3.6, gid=gid, **style.look(k)
        )
        style.HOVERS[marks] = [f"{name}, {short(x, unit_x)}: {value_words(s)}" for x, s in own]
        _cross(ax, zip(at, middles, (series for _, series in own), strict=True))
    _values(ax, every, log)


def _cross(ax: Axes, places: Iterable[tuple[float, float, Series]]) -> None:
    """Cross out the medians, at x and y, of series whose samples are too far apart."""
    crossed = [(x, y) for x, y, series in places if unusable(series)]
    _over(ax, crossed, "unusable", marker="x", ms=9, mew=1.6, color=style.INK, zorder=6)


def _over(ax: Axes, places: Sequence[tuple[float, float]], gid: str, **look: Any) -> None:
    """Draw marks over those of some medians."""
    if places:
        ax.plot(*zip(*places, strict=True), ls="none", label=f"_{gid}", gid=gid, **look)


def _in_legend(name: str) -> str:
    """Return a name as a legend has room for it: below the panels on a phone, else beside them."""
    return style.wrap(name, 44 if style.is_narrow() else 30)


def lines_height(names: Iterable[str], least: float = 3.2) -> float:
    """Return the height in inches of a panel whose legend has these names."""
    legend = 0.18 * sum(_in_legend(name).count("\n") + 1 for name in names)
    return least + legend if style.is_narrow() else max(least, 0.35 + legend)


def _evenly(xs: Sequence[float]) -> bool:
    """Return whether numbers such as those of steps or seconds follow each other evenly."""
    return len(xs) > 8 and np.allclose(np.diff(xs), xs[1] - xs[0])


def _values(ax: Axes, every: Sequence[Series], log: bool) -> None:
    """Set the limits, ticks and label of the axis of values."""
    values = [value for series in every for value in series.values]
    first = every[0]
    if log and min(values) > 0:
        ax.set_yscale("log")
        ax.set_ylim(min(values) / 1.4, max(values) * 1.4)
    else:
        log = False
        ax.set_ylim(min(0.0, min(values) * 1.05), (max(values) * 1.08) or 1.0)
    largest = max(abs(value) for value in values)
    unit = style.value_axis(ax.yaxis, first.display_unit, largest, log=log)
    ax.set_ylabel(style.axis_label(first.metric, unit, first.better).replace(", ", "\n"))


def name_lines(ax: Axes, names: Sequence[str]) -> None:
    """Name the lines at their right ends, or in a legend where there are many or long names."""
    if len(names) < 2:
        return
    if style.is_narrow() or len(names) > DIRECT or any(len(name) > NAME for name in names):
        style.legend_beside(ax)
        return
    drawn = [line for line in ax.lines if str(line.get_gid()).startswith("median")]
    scale = ax.yaxis.get_transform()
    ends = sorted(
        (
            float(
                ax.transLimits.transform(
                    (0, float(scale.transform(np.asarray(line.get_ydata())[-1])))
                )[1]
            ),
            k,
        )
        for k, line in enumerate(drawn)
    )
    gap, places = 0.085, list[float]()
    for y, _ in ends:
        places.append(max(y, places[-1] + gap if places else 0.0))
    ceiling = 1.0
    for i in reversed(range(len(places))):
        places[i] = min(places[i], ceiling)
        ceiling = places[i] - gap
    for at, (_, k) in zip(places, ends, strict=True):
        look = {**style.look(k), "marker": ""}
        ax.plot([1.008, 1.03], [at, at], transform=ax.transAxes, clip_on=False, **look)
        here: Any = {"transform": ax.transAxes, "va": "center", "gid": "direct"}
        ax.text(1.04, at, names[k], **here)


Groups = Mapping[str, Mapping[str, Item]]
"""Items by group (a colour) and row."""


def dots_height(groups: Groups) -> float:
    """Return the height in inches of a panel of dots."""
    rows = rows_of(groups)
    lines = sum(max(1, 0.62 * (style.wrap(row).count("\n") + 1)) + 0.25 for row in rows)
    legend = 0.2 * len(groups) if style.is_narrow() else 0.25
    return lines * ROW + 0.55 + (legend if len(groups) > 1 else 0)


def rows_of(groups: Groups) -> list[str]:
    """Return the rows of all groups in their order."""
    return list(dict.fromkeys(row for own in groups.values() for row in own))


def dots(ax: Axes, groups: Groups, joined: bool = False) -> None:
    """Draw a row for each point: median, spread and samples. `joined` connects two groups."""
    rows = rows_of(groups)
    every = [item.series for own in groups.values() for item in own.values()]
    values = [value for series in every for value in series.values]
    first, log = every[0], needs_log(values)
    if log:
        ax.set_xscale("log")
        ax.set_xlim(min(values) / 1.4, max(values) * 1.4)
    else:  # zero is in sight: a small difference must look small
        ax.set_xlim(min(0.0, *values) * 1.06, (max(0.0, *values) * 1.06) or 1.0)
    for y, row in enumerate(rows):
        pair = [own[row].series.middle for own in groups.values() if row in own]
        if joined and len(pair) > 1:
            ax.plot(pair, [y] * len(pair), color=style.GRID, lw=3, zorder=1, label="_", gid="join")
    for k, (name, own) in enumerate(groups.items()):
        step = 0 if joined else (k - (len(groups) - 1) / 2) * min(0.25, 0.6 / len(groups))
        _dots(ax, name, [(rows.index(row) + step, item) for row, item in own.items()], k)
    if len(groups) == 1:
        for row, item in next(iter(groups.values())).items():
            series = item.series
            text = amount(series.middle, series.display_unit)
            text = text if style.is_narrow() else value_words(series)
            text = "unusable" if unusable(series) else text + (" ~" if item.state.noise else "")
            side: Any = {"transform": ax.get_yaxis_transform(), "va": "center"}
            ax.text(1.015, rows.index(row), text, **side)
    else:
        at: Any = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.1}
        columns = 1 if style.is_narrow() else min(4, len(groups))
        ax.legend(ncols=columns, handletextpad=0.3, columnspacing=1.2, **at)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_yticks(range(len(rows)), [style.wrap(row) for row in rows])
    ax.yaxis.set_minor_locator(NullLocator())
    ax.tick_params(axis="y", length=0, pad=8)
    ax.grid(axis="y", visible=False)
    ax.spines["left"].set_visible(False)
    largest = max(abs(value) for value in values)
    unit = style.value_axis(ax.xaxis, first.display_unit, largest, log=log)
    label = "log scale" if log else unit
    ax.set_xlabel(style.axis_label(first.metric, label, first.better))


def _dots(ax: Axes, name: str, places: Sequence[tuple[float, Item]], k: int) -> None:
    """Draw a group: samples as light ticks, spreads as bars, medians as marks with their texts."""
    look = style.look(k)
    colour = look["color"]
    bands = [item.series.band for _, item in places]
    ys = [y for y, _ in places]
    bar: Any = {"color": colour, "linewidth": 2.2, "alpha": 0.55, "gid": f"band {name}"}
    ax.hlines(ys, [b.low for b in bands], [b.high for b in bands], **bar)
    samples = [(value, y) for y, item in places for value in item.series.values[:200]]
    tick: Any = {"ls": "none", "marker": "|", "markersize": 6, "color": colour, "alpha": 0.45}
    ax.plot([v for v, _ in samples], [y for _, y in samples], gid=f"samples {name}", **tick)
    middles = [item.series.middle for _, item in places]
    mark: Any = {"marker": look["marker"], "color": colour, "ms": 7, "zorder": 5}
    (marks,) = ax.plot(middles, ys, ls="none", label=name, gid=f"median {name}", **mark)
    style.HOVERS[marks] = [
        f"{item.state.title} {name}: {value_words(item.series)}" for _, item in places
    ]
    noisy = [(item.series.middle, y) for y, item in places if item.state.noise]
    _over(ax, noisy, "disturbed", mfc=style.PAPER, **mark)
    _cross(ax, ((item.series.middle, y, item.series) for y, item in places))


def heat(ax: Axes, grid: Any, unit: str, norm: Any = None, words: bool = True) -> Any:
    """Draw a matrix of medians with their numbers. Grey cells have no value. Return its mesh."""
    finite = grid[np.isfinite(grid)]
    factor, _ = scaled(unit, float(finite.max()))
    norm = norm or color_norm(finite.tolist())
    ax.set_facecolor(style.GRID)
    rows, columns = grid.shape
    edges = np.arange(columns + 1), np.arange(rows + 1)
    mesh = ax.pcolormesh(*edges, grid, cmap="cividis", norm=norm, gid="median")
    for y, x in np.argwhere(np.isfinite(grid)) if words else ():
        look: Any = {
            "ha": "center",
            "va": "center",
            "fontsize": 8.5 if columns < 7 else 7.5 if columns < 13 else 6,
        }
        text = digits(grid[y, x] / factor)
        ax.text(x + 0.5, y + 0.5, text, color=style.on_cell(mesh, grid[y, x]), **look)
    ax.grid(visible=False)
    ax.tick_params(length=0)
    return mesh


def color_norm(values: Sequence[float]) -> Any:
    """Return the scale of colours for values."""
    low, high = min(values), max(values)
    if needs_log(values):
        return LogNorm(low, high)
    return Normalize(low, high if high > low else low * 1.01 or 1.0)
