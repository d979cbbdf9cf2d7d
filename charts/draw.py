"""The panels of charts: lines, dots and a heat map."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullLocator

from perfdag.charts import style
from perfdag.charts.series import Item, Items, metric_of
from perfdag.units import digits, scaled, short

ROW = 0.27  # inches of a row of dots
LOG_FROM = 50.0
"""How many times the smallest value the largest one is where a linear scale hides it."""
ONE_HUE = LinearSegmentedColormap.from_list("one hue", ["#eaf3f9", style.SERIES[0]])


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
        ax.set_xlabel(self.name)
        if self.log:
            ax.set_xscale("log", base=2)
            ax.set_xlim(places[0] / 1.3, places[-1] * 1.3)
        else:
            margin = 0.04 * (places[-1] - places[0]) or 1.0
            ax.set_xlim(places[0] - margin, places[-1] + margin)
        few = 4 if style.is_narrow() else 8
        if len(places) > few and not self.log:  # there is nothing at 1.2 processes
            ax.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10], integer=True))
            return
        step = math.ceil(len(places) / few)
        labels = [self.text(value).replace(" ", "\n") for value in self.values[::step]]
        ax.set_xticks(places[::step], labels)
        ax.xaxis.set_minor_locator(NullLocator())


def lines(
    ax: Axes, curves: Mapping[str, Items], x: Axis, names: Sequence[str], *, log: bool
) -> dict[str, Line2D]:
    """Draw medians as lines and spreads as bands over x. Return the lines by their names.

    The place of a name in `names` gives its colour.
    """
    x.draw(ax)
    drawn: dict[str, Line2D] = {}
    for name, items in curves.items():
        color, marker, dashes = style.look(names.index(name))
        line = sorted(items, key=lambda item: item.numbers[x.key])
        places = [x.place(item.numbers[x.key]) for item in line]
        lows = [item.series.band.low for item in line]
        highs = [item.series.band.high for item in line]
        ax.fill_between(places, lows, highs, color=color, alpha=0.15, lw=0, gid=f"band {name}")
        middles = [item.value for item in line]
        label = style.wrap(name, 44)
        (drawn[name],) = ax.plot(
            places, middles, label=label, gid=f"line {name}", color=color, ls=dashes
        )
        texts = [f"{name}, {x.text(item.numbers[x.key])}: {item.full_text}" for item in line]
        marks = list(zip(places, middles, line, texts, strict=True))
        _marks(ax, name, marks, color=color, marker=marker, ms=3.6)
    values_axis(ax, "y", list(chain.from_iterable(curves.values())), log=log)
    return drawn


def _marks(
    ax: Axes, name: str, marks: Sequence[tuple[float, float, Item, str]], **looks: Any
) -> None:
    """Mark medians: filled, hollow where they were disturbed, and faint where they are unusable.

    `marks` are the place of each, its item, and the text that it shows under the pointer.
    """
    for kind in ("median", "disturbed", "unusable"):
        chosen = [(x, y, text) for x, y, item, text in marks if item.mark == kind]
        if chosen:
            xs, ys, texts = zip(*chosen, strict=True)
            (line,) = ax.plot(
                xs,
                ys,
                gid=f"{kind} {name}",
                label=f"_{kind}",
                mfc=looks["color"] if kind == "median" else style.PAPER,
                alpha=0.4 if kind == "unusable" else 1.0,
                ls="none",
                zorder=5,
                **looks,
            )
            style.HOVERS[line] = list(texts)


def values_axis(ax: Axes, side: str, items: Items, *, log: bool = False) -> None:
    """Set limits, ticks and name of the axis of values. Without a log scale, zero is in sight."""
    values = list(chain.from_iterable(item.series.values for item in items))
    low = min(values)
    high = max(values)
    axis = ax.yaxis if side == "y" else ax.xaxis
    first = items[0].series
    if (log and low > 0) or far_apart(values):
        ax.set(**{f"{side}scale": "log", f"{side}lim": (low / 1.4, high * 1.4)})
        style.log_axis(axis, first.display_unit)
        unit = ""  # each tick has it
    else:
        ax.set(**{f"{side}lim": (min(0.0, low * 1.06), max(0.0, high * 1.06) or 1.0)})
        unit = style.linear_axis(axis, first.display_unit, max(-low, high))
    label = style.axis_label(metric_of(items), unit, first.better)
    axis.set_label_text(label.replace(", ", "\n") if side == "y" else label)


Groups = dict[str, dict[str, Item]]
"""Items by group (a colour) and row."""


def dots_height(groups: Groups) -> float:
    """Return the height in inches of a panel of dots."""
    lines = [style.wrap(row).count("\n") + 1 for row in rows_of(groups)]
    # In rows: a line of a wrapped name takes 0.62, and the room between two names 0.25.
    count = sum(max(1, 0.62 * of_name) + 0.25 for of_name in lines)
    legend = 0.2 * len(groups) if style.is_narrow() else 0.25
    return count * ROW + 0.55 + (legend if len(groups) > 1 else 0)


def rows_of(groups: Groups) -> list[str]:
    """Return the rows of all groups in their order."""
    return list(dict.fromkeys(chain.from_iterable(groups.values())))


def dots(ax: Axes, groups: Groups, *, joined: bool = False) -> None:
    """Draw a row for each point: median, spread and samples. `joined` connects two groups."""
    rows = rows_of(groups)
    items = list(chain.from_iterable(group.values() for group in groups.values()))
    if joined:
        _join(ax, groups, rows)
    # Groups that are not joined stand side by side in a row.
    apart = 0.0 if joined else min(0.25, 0.6 / len(groups))
    for number, (name, group) in enumerate(groups.items()):
        shift = (number - (len(groups) - 1) / 2) * apart
        places = [(rows.index(row) + shift, item) for row, item in group.items()]
        _dots(ax, name, places, number)
    if len(groups) == 1:
        _write_values(ax, items)
    else:
        ax.legend(
            ncols=1 if style.is_narrow() else min(4, len(groups)),
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
    values_axis(ax, "x", items)


def _join(ax: Axes, groups: Groups, rows: Sequence[str]) -> None:
    """Connect the medians of a row."""
    for y, row in enumerate(rows):
        medians = [group[row].value for group in groups.values() if row in group]
        ys = [y] * len(medians)
        ax.plot(medians, ys, color=style.GRID, lw=3, zorder=1, label="_", gid="join")


def _write_values(ax: Axes, items: Items) -> None:
    """Write the value of each row on its right."""
    for y, item in enumerate(items):
        text = "unusable"
        color = style.MUTED
        if item.usable:
            text = item.text if style.is_narrow() else item.full_text
            color = style.INK
        ax.text(1.015, y, text, color=color, va="center", transform=ax.get_yaxis_transform())


def _dots(ax: Axes, name: str, places: Sequence[tuple[float, Item]], number: int) -> None:
    """Draw a group: samples as light ticks, spreads as bars, and medians as marks."""
    color, marker, _ = style.look(number)
    marks = []
    for y, item in places:
        band = item.series.band
        faint = 1.0 if item.usable else 0.4
        ax.plot(
            [band.low, band.high],
            [y, y],
            ls="-" if item.usable else (0, (2, 1)),
            gid=f"band {name}",
            color=color,
            lw=2.2,
            alpha=0.55 * faint,
            label="_",
        )
        samples = item.series.values[:200]
        ax.plot(
            samples,
            [y] * len(samples),
            color=color,
            gid=f"samples {name}",
            ls="none",
            marker="|",
            ms=6,
            alpha=0.45 * faint,
            label="_",
        )
        marks.append((item.value, y, item, f"{item.state.title} {name}: {item.full_text}"))
    ax.plot([], [], marker, color=color, ms=7, label=name)
    _marks(ax, name, marks, color=color, marker=marker, ms=7)


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
    mesh = ax.pcolormesh(grid, cmap=colours, norm=norm, gid="median")
    if texts is not None:
        size = 9 if grid.shape[1] < 13 else 7.5
        centred: Any = {"ha": "center", "va": "center", "fontsize": size}
        for y, x in np.argwhere(np.isfinite(grid)):
            tone = style.on_cell(mesh, grid[y, x])
            ax.text(x + 0.5, y + 0.5, texts[y, x], color=tone, **centred)
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
