"""The panels of charts: lines, dots and a heat map."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
from matplotlib.ticker import MaxNLocator, NullLocator

from perfdag.charts import style
from perfdag.charts.series import Item, Items, Lines, metric_of, value_words
from perfdag.units import digits, scaled, short

ROW = 0.27  # inches of a row of dots
LOG_FROM = 50.0
"""Values of which the largest is this many times the smallest are drawn on a log axis."""
ONE_HUE = LinearSegmentedColormap.from_list("one hue", ["#eaf3f9", style.SERIES[0]])


def needs_log(items: Iterable[Item]) -> bool:
    """Return whether the samples of items are so far apart that they need a log axis."""
    return far_apart(list(chain.from_iterable(item.series.values for item in items)))


def far_apart(values: Sequence[float]) -> bool:
    """Return whether values are so far apart that they need a log scale."""
    return min(values) > 0 and max(values) / min(values) > LOG_FROM


@dataclass(frozen=True)
class Axis:
    """A number that was swept: its key, its name for people, its unit, and its values in order."""

    key: str
    name: str
    unit: str
    values: Sequence[float]

    @cached_property
    def log(self) -> bool:
        """Whether its values are far apart, and do not follow each other evenly, as seconds do."""
        positive = [value for value in self.values if value > 0]
        if len(positive) < 3 or positive[-1] < 8 * positive[0]:
            return False
        return len(positive) <= 8 or not np.allclose(np.diff(positive), positive[1] - positive[0])

    def place(self, value: float) -> float:
        """Return where a value stands: a zero left of the smallest, as a log axis has none."""
        return self.values[1] / 2 if self.log and value == 0 else value

    def text(self, value: float) -> str:
        """Return a value for people."""
        return short(value, self.unit) if self.unit in ("B", "s", "bit/s") else f"{value:g}"

    def draw(self, ax: Axes) -> None:
        """Set limits, ticks and name of the axis of x."""
        places = [self.place(value) for value in self.values]
        margin = 0.04 * (places[-1] - places[0]) or 1.0
        ax.set(xlabel=self.name, xlim=(places[0] - margin, places[-1] + margin))
        few = 4 if style.is_narrow() else 8
        if self.log:
            ax.set_xscale("log", base=2)
            ax.set_xlim(places[0] / 1.3, places[-1] * 1.3)
        elif len(places) > few:  # there is nothing at 1.2 processes
            ax.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10], integer=True))
            return
        step = math.ceil(len(places) / few)
        words = [self.text(value).replace(" ", "\n") for value in self.values[::step]]
        ax.set_xticks(places[::step], words)
        ax.xaxis.set_minor_locator(NullLocator())


def lines(
    ax: Axes, curves: Lines, x: Axis, names: Sequence[str] = (), *, log: bool = False
) -> None:
    """Draw medians as lines and spreads as bands over x.

    The place of a name in `names` gives its colour.
    """
    x.draw(ax)
    order = list(names or curves)
    for name, items in curves.items():
        line = sorted(items, key=lambda item: item.numbers[x.key])
        look = style.look(order.index(name))
        at = [x.place(item.numbers[x.key]) for item in line]
        bands = [item.series.band for item in line]
        ax.fill_between(
            at,
            [band.low for band in bands],
            [band.high for band in bands],
            color=look["color"],
            alpha=0.15,
            lw=0,
            gid=f"band {name}",
        )
        middles = [item.value for item in line]
        label = style.wrap(name, 44)
        ax.plot(
            at,
            middles,
            label=label,
            gid=f"line {name}",
            color=look["color"],
            linestyle=look["linestyle"],
        )
        texts = [
            f"{name}, {x.text(item.numbers[x.key])}: {value_words(item.series)}" for item in line
        ]
        _marks(ax, name, list(zip(at, middles, line, texts, strict=True)), look, 3.6)
    values_axis(ax, "y", list(chain.from_iterable(curves.values())), log=log)


Mark = tuple[float, float, Item, str]
"""The place of a median, its item, and the text that it shows under the pointer."""


def _marks(ax: Axes, name: str, marks: Sequence[Mark], look: Any, size: float) -> None:
    """Mark medians: filled, hollow where they were disturbed, and faint where they are unusable."""
    for kind in ("median", "disturbed", "unusable"):
        chosen = [mark for mark in marks if mark[2].mark == kind]
        if chosen:
            face = look["color"] if kind == "median" else style.PAPER
            xs = [mark[0] for mark in chosen]
            ys = [mark[1] for mark in chosen]
            gid = f"{kind} {name}"
            (line,) = ax.plot(
                xs,
                ys,
                gid=gid,
                label=f"_{kind}",
                marker=look["marker"],
                ms=size,
                mfc=face,
                color=look["color"],
                alpha=0.4 if kind == "unusable" else 1.0,
                ls="none",
                zorder=5,
            )
            style.HOVERS[line] = [mark[3] for mark in chosen]


def values_axis(ax: Axes, side: str, items: Items, *, log: bool) -> None:
    """Set limits, ticks and name of the axis of values. Without a log scale, zero is in sight."""
    values = list(chain.from_iterable(item.series.values for item in items))
    low = min(values)
    high = max(values)
    axis = ax.yaxis if side == "y" else ax.xaxis
    first = items[0].series
    if log and low > 0:
        ax.set(**{f"{side}scale": "log", f"{side}lim": (low / 1.4, high * 1.4)})
    else:
        log = False
        ax.set(**{f"{side}lim": (min(0.0, low * 1.06), max(0.0, high * 1.06) or 1.0)})
    unit = style.value_axis(axis, first.display_unit, max(-low, high), log=log)
    label = style.axis_label(metric_of(items), unit, first.better)
    axis.set_label_text(label.replace(", ", "\n") if side == "y" else label)


Groups = dict[str, dict[str, Item]]
"""Items by group (a colour) and row."""


def dots_height(groups: Groups) -> float:
    """Return the height in inches of a panel of dots."""
    count = sum(max(1, 0.62 * (style.wrap(row).count("\n") + 1)) + 0.25 for row in rows_of(groups))
    legend = 0.2 * len(groups) if style.is_narrow() else 0.25
    return count * ROW + 0.55 + (legend if len(groups) > 1 else 0)


def rows_of(groups: Groups) -> list[str]:
    """Return the rows of all groups in their order."""
    return list(dict.fromkeys(chain.from_iterable(groups.values())))


def dots(ax: Axes, groups: Groups, *, joined: bool = False) -> None:
    """Draw a row for each point: median, spread and samples. `joined` connects two groups."""
    rows = rows_of(groups)
    every = list(chain.from_iterable(group.values() for group in groups.values()))
    for y, row in enumerate(rows if joined else ()):
        pair = [group[row].value for group in groups.values() if row in group]
        ax.plot(pair, [y] * len(pair), color=style.GRID, lw=3, zorder=1, label="_", gid="join")
    for number, (name, group) in enumerate(groups.items()):
        apart = min(0.25, 0.6 / len(groups))
        shift = 0 if joined else (number - (len(groups) - 1) / 2) * apart
        _dots(ax, name, [(rows.index(row) + shift, item) for row, item in group.items()], number)
    if len(groups) == 1:
        _texts(ax, every)
    else:
        columns = 1 if style.is_narrow() else min(4, len(groups))
        ax.legend(
            ncols=columns,
            handletextpad=0.3,
            columnspacing=1.2,
            loc="lower left",
            bbox_to_anchor=(0, 1),
            borderaxespad=0.1,
        )
    names = [style.wrap(row) for row in rows]
    ax.set(ylim=(len(rows) - 0.5, -0.5), yticks=range(len(rows)), yticklabels=names)
    ax.tick_params(axis="y", length=0, pad=8)
    ax.grid(axis="y", visible=False)
    ax.spines["left"].set_visible(False)
    values_axis(ax, "x", every, log=needs_log(every))


def _texts(ax: Axes, items: Items) -> None:
    """Write the values of the only group beside its rows."""
    for row, item in enumerate(items):
        value = item.text if style.is_narrow() else value_words(item.series)
        tone = style.INK if item.usable else style.MUTED
        ax.text(
            1.015,
            row,
            value if item.usable else "unusable",
            color=tone,
            transform=ax.get_yaxis_transform(),
            va="center",
        )


def _dots(ax: Axes, name: str, places: Sequence[tuple[float, Item]], number: int) -> None:
    """Draw a group: samples as light ticks, spreads as bars, and medians as marks."""
    look = style.look(number)
    for y, item in places:
        band = item.series.band
        faint = 1.0 if item.usable else 0.4
        dashes = "-" if item.usable else (0, (2, 1))
        ax.plot(
            [band.low, band.high],
            [y, y],
            ls=dashes,
            gid=f"band {name}",
            color=look["color"],
            lw=2.2,
            alpha=0.55 * faint,
            label="_",
        )
        samples = item.series.values[:200]
        ax.plot(
            samples,
            [y] * len(samples),
            color=look["color"],
            gid=f"samples {name}",
            ls="none",
            marker="|",
            ms=6,
            alpha=0.45 * faint,
            label="_",
        )
    marks = [
        (item.value, y, item, f"{item.state.title} {name}: {value_words(item.series)}")
        for y, item in places
    ]
    ax.plot([], [], look["marker"], color=look["color"], ms=7, label=name)
    _marks(ax, name, marks, look, 7)


def heat(
    ax: Axes,
    grid: Any,
    norm: Any,
    colours: Any = ONE_HUE,
    texts: Any = None,
    missing: str = "////",
) -> Any:
    """Draw a matrix with `texts` in its cells. Return its mesh.

    Cells without a value have the hatch `missing`.
    """
    ax.patch.set(facecolor=style.PAPER, hatch=missing, edgecolor=style.GRID)
    rows, columns = grid.shape
    edges = np.arange(columns + 1), np.arange(rows + 1)
    mesh = ax.pcolormesh(*edges, grid, cmap=colours, norm=norm, gid="median")
    for y, x in np.argwhere(np.isfinite(grid)) if texts is not None else ():
        ax.text(
            x + 0.5,
            y + 0.5,
            texts[y, x],
            color=style.on_cell(mesh, grid[y, x]),
            ha="center",
            va="center",
            fontsize=9 if columns < 13 else 7.5,
        )
    ax.grid(visible=False)
    ax.tick_params(length=0)
    return mesh


def cell_texts(grid: Any, unit: str) -> Any:
    """Return the numbers of a matrix in one unit, or each in its own where it would lose digits."""
    finite = grid[np.isfinite(grid)]
    factor, _ = scaled(unit, float(finite.max()))
    if float(np.abs(finite).min()) >= 0.1 * factor:
        return np.vectorize(lambda value: digits(value / factor))(grid)
    return np.vectorize(lambda value: short(value, unit).replace(" ", "\n"))(grid)


def color_norm(values: Sequence[float]) -> Any:
    """Return the scale of colours for values."""
    scale = LogNorm if far_apart(values) else Normalize
    return scale(min(values), max(values))
