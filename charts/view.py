"""The declaration of a chart: what is on x, what on y, and what splits into lines.

What a declaration leaves open follows from the points: a number with three values or more makes
lines, two of them a heat map, and anything else a row of dots for each point.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

import numpy as np
import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from perfdag.benchmark.registry import short_form, short_forms, units_of_settings
from perfdag.charts import draw, style
from perfdag.charts.draw import Axis
from perfdag.charts.series import (
    SWEPT,
    Item,
    Items,
    by_name,
    items_of,
    items_of_subjects,
    notes,
    spread_text,
    swept,
    title,
    values_of,
    varied,
)
from perfdag.results.summary import PointState
from perfdag.units import plural, scaled

GRID = 24  # points of two such numbers that make a heat map
LINES = 12  # most lines of a chart
PANELS = 6  # most charts of one declaration
ROWS = 24  # most rows of dots
COLUMNS = 12  # most columns of a heat map

Panels = dict[str, list[Item]]
"""Items by metric."""
Drawn = Iterator[tuple[str, Figure]]
"""Figures with their slugs."""


@dataclass(frozen=True)
class View:
    """One chart of a benchmark: a panel for each of `metrics`, the one of its title first.

    `x` is a parameter or coordinate, or what the suite sweeps. `stats` are the statistics that are
    drawn. `facet` is a parameter whose values are charts of their own. `ideal` is what would be
    linear. `subjects` takes the rows of workers, devices or seconds.
    """

    metrics: Sequence[str]
    x: str = ""
    stats: Sequence[str] = ()
    facet: str = ""
    ideal: Literal["", "rate", "time"] = ""
    subjects: bool = False
    slug: str = ""


Chart = View | Callable[[Sequence[PointState], pa.Table], Iterable[tuple[str, Figure]]]
"""A declaration, or a function for what no declaration can say."""


@dataclass(frozen=True)
class Plot:
    """What a declaration draws: its panels, the value of its facet, and a note for readers."""

    view: View
    name: str
    panels: Panels
    note: str

    @property
    def items(self) -> list[Item]:
        """The items of its first metric."""
        return next(iter(self.panels.values()))

    def part(self, panels: Panels, name: str = "") -> "Plot":
        """Return the plot of some of its items, with what their name adds to its own."""
        return replace(self, name=f"{self.name} {name}".strip(), panels=panels)

    def slug(self, *keys: str) -> str:
        """Return what tells its file from others: `throughput-by-streams`."""
        metric = next(iter(self.panels))
        return _slug("-".join([self.view.slug or metric, "by", *keys]))

    def title(self, x: str = "", pair: str = "") -> str:
        """Return its result in words."""
        return title(self.name, self.items, x, pair, self.view.ideal)

    def remarks(self, *texts: str) -> list[str]:
        """Return how to read it."""
        items = list(chain.from_iterable(self.panels.values()))
        return [*texts, spread_text(items), self.note]

    def axis(self, key: str) -> Axis:
        """Return the axis of a number that was swept."""
        benchmark = self.items[0].state.benchmark
        unit = units_of_settings(benchmark).get(key, "")
        form = short_forms(benchmark).get(key, "")
        name = form.replace("{}", "").strip() if isinstance(form, str) else ""
        items = chain.from_iterable(self.panels.values())
        values = {item.numbers[key] for item in items if key in item.numbers}
        return Axis(key, name or key.replace("_", " "), unit, sorted(values))


def _slug(text: str) -> str:
    """Return a text as a part of a slug: of lower case, with `-` between words."""
    return re.sub(r"[\W_]", "-", text.lower())


@style.house()
def figures(
    states: Sequence[PointState], rows: pa.Table, charts: Sequence[Chart]
) -> list[tuple[str, Figure]]:
    """Return the charts of a benchmark by their slugs; a reason where nothing was measured.

    `states` are its points, and `rows` the rows that these points summarise.
    """
    if not states:
        return [("points", style.no_data())]
    note = "; ".join(notes(states, rows))
    drawn: dict[str, Figure] = {}
    for chart in charts:
        made = chart(states, rows) if callable(chart) else _figures(chart, states, rows, note)
        for slug, figure in made:
            drawn[f"{slug}-{len(drawn) + 1}" if slug in drawn else slug] = figure
    if not drawn and all(state.why for state in states):
        reason = f"{states[0].title}: {states[0].why}"
        drawn["points"] = style.no_data(f"no value in {plural(len(states), 'point')}; {reason}")
    return list(drawn.items())


def _figures(view: View, states: Sequence[PointState], rows: pa.Table, note: str) -> Drawn:
    plots: dict[str, Plot] = {}
    for metric in view.metrics:
        items = items_of(states, metric, view.stats)
        if view.subjects:
            items = items_of_subjects(states, rows, metric)
        for item in items:
            value = item.state.params.get(view.facet)
            name = "" if value is None else short_form(item.state.benchmark, view.facet, value)
            plot = plots.setdefault(name, Plot(view, name, {}, note))
            plot.panels.setdefault(metric, []).append(item)
    for name, plot in plots.items():
        for slug, figure in _automatic(plot):
            yield f"{_slug(name)}-{slug}" if len(plots) > 1 else slug, figure


def _automatic(plot: Plot) -> Drawn:
    """Yield lines over what was swept, a heat map of two swept numbers, or dots."""
    x = swept(plot.items, plot.view.x)
    lines: Panels = {}
    dots: Panels = {}
    for metric, items in plot.panels.items():
        if x and swept(items, x) == x:
            y = _second(items, x)
            if y:
                yield from _heats(plot.part({metric: items}), x, y)
            else:
                lines[metric] = items
        elif len(items) > 1:
            dots[metric] = items
    if lines:
        yield from _lines_of_facets(plot.part(lines), x)
    if dots:
        slug = "" if x else plot.view.slug
        yield slug or "points", _dots(plot.part(dots))


def _heats(plot: Plot, x: str, y: str) -> Drawn:
    """Yield a heat map over two numbers for each value of the rest."""
    keys = [key for key in varied(plot.items) if key not in (x, y)]
    groups = by_name(plot.items, keys) if keys else {"": plot.items}
    for name, items in list(groups.items())[:PANELS]:
        if any(item.usable for item in items):
            part = plot.part({items[0].series.metric: items}, name)
            yield plot.slug(x, y), _heat(part, x, y)


def _second(items: Items, x: str) -> str:
    """Return the second number that was swept, where its grid with `x` is nearly complete."""
    if len(items) < GRID:
        return ""
    keys = [key for key in varied(items) if key != x]
    for key in keys:
        on_grid = [item for item in items if {x, key} <= item.numbers.keys()]
        rows = len({item.numbers[key] for item in on_grid})
        columns = len({item.numbers[x] for item in on_grid})
        groups = by_name(on_grid, [name for name in keys if name != key])
        fewest = min(map(len, groups.values()), default=0)
        # A map needs more than half of its cells.
        if 2 * fewest > rows * columns and rows >= SWEPT and columns <= COLUMNS:
            return key
    return ""


def _lines_of_facets(plot: Plot, x: str) -> Drawn:
    """Yield lines, as a chart for each value of what splits best where they are too many for one.

    The setting with most values splits best, if these are not too many for charts.
    """
    keys = [key for key in varied(plot.items) if key != x]
    counts = {key: len(values_of(plot.items, key)) for key in keys}
    facets = [key for key in keys if counts[key] <= PANELS]
    if not facets or len(by_name(plot.items, keys)) <= len(style.SERIES):
        yield plot.slug(x), _lines(plot, x)
        return
    facet = max(facets, key=lambda key: counts[key])
    for metric, items in plot.panels.items():
        for name, group in by_name(items, [facet]).items():
            part = plot.part({metric: group}, name)
            yield part.slug(x), _lines(part, x)


def _lines(plot: Plot, x: str) -> Figure:
    """Draw each metric over x."""
    panels = []
    for items in plot.panels.values():
        on_axis = [item for item in items if x in item.numbers]
        panels.append(by_name(on_axis, [key for key in varied(items) if key != x]))
    names = list(dict.fromkeys(chain.from_iterable(panels)))
    cut = f"first {LINES} of {len(names)} lines" if len(names) > LINES else ""
    names = names[:LINES]
    ideal = "grey dashes: linear" if plot.view.ideal else ""
    columns = 1 if style.is_narrow() or max(map(len, names)) > 44 else 2
    heights = [2.3 if len(panels) > 1 else 3.0] * len(panels)
    if len(names) > 1:
        heights[-1] += 0.2 * math.ceil(len(names) / columns)
    fig, axes = style.figure(heights, plot.title(x), plot.remarks(cut, ideal))
    handles: dict[str, Line2D] = {}
    for ax, lines in zip(axes, panels, strict=True):
        shown = {name: lines[name] for name in names if name in lines}
        handles |= draw.lines(ax, shown, plot.axis(x), names, log=bool(ideal))
        if ideal:
            _ideal(ax, plot.view.ideal, shown, x)
    if len(names) > 1:
        ordered = [handles[name] for name in names]
        fig.legend(handles=ordered, loc="outside lower left", ncols=columns)
    return fig


def _ideal(ax: Axes, ideal: str, lines: Mapping[str, Items], x: str) -> None:
    """Draw for each line the one that begins at its first point and scales linearly."""
    for line in lines.values():
        ordered = sorted(line, key=lambda item: item.numbers[x])
        xs = [item.numbers[x] for item in ordered]
        factors = [at / xs[0] if ideal == "rate" else xs[0] / at for at in xs]
        ys = [ordered[0].value * factor for factor in factors]
        ax.plot(xs, ys, color=style.MUTED, ls="--", lw=1, gid="ideal", label="_ideal")
        low, high = ax.get_ylim()
        ax.set_ylim(min(low, *ys), max(high, *ys))


def _dots(plot: Plot) -> Figure:
    """Draw a row for each point; two values of one setting are joined where the rest is alike."""
    pair = _pair(plot.items)
    panels = []
    cut = ""
    for items in plot.panels.values():
        keys = varied(items)
        split = pair or ("stat" if "stat" in keys else "")
        rows = by_name(items, [key for key in keys if key != split])
        if len(rows) > ROWS:
            cut = f"first {ROWS} of {plural(len(rows), 'point')}"
        groups: draw.Groups = {}
        for name, of_row in list(rows.items())[:ROWS]:
            for item in of_row:
                groups.setdefault(item.labels.get(split, ""), {})[name] = item
        panels.append(dict(list(groups.items())[: len(style.SERIES)]))
    heights = list(map(draw.dots_height, panels))
    fig, axes = style.figure(heights, plot.title(pair=pair), plot.remarks(cut))
    for ax, groups in zip(axes, panels, strict=True):
        draw.dots(ax, groups, joined=bool(pair))
    return fig


def _pair(items: Items) -> str:
    """Return the setting with two values of which every point but for it has both."""
    numbers = set(chain.from_iterable(item.numbers for item in items))
    keys = varied(items)
    for key in sorted(keys, key=lambda key: key in numbers):
        rest = by_name(items, [name for name in keys if name != key])
        both = all(len(group) == 2 for group in rest.values())
        if key != "stat" and both and len(values_of(items, key)) == 2 and len(items) > 2:
            return key
    return ""


def _heat(plot: Plot, x: str, y: str) -> Figure:
    """Draw a map of the medians over two numbers."""
    usable = [item for item in plot.items if item.usable and {x, y} <= item.numbers.keys()]
    values = [item.value for item in usable]
    across = plot.axis(x)
    down = plot.axis(y)
    unit = usable[0].series.display_unit
    _, name = scaled(unit, max(values))
    key = f"number: median in {name}, hatched: none or unusable"
    height = max(1.6, 0.32 * len(down.values) + 0.9)
    fig, (ax,) = style.figure([height], plot.title(), [key, plot.note])
    grid = np.full((len(down.values), len(across.values)), np.nan)
    for item in usable:
        row = down.values.index(item.numbers[y])
        column = across.values.index(item.numbers[x])
        grid[row, column] = item.value
    scale = LogNorm if draw.far_apart(values) else Normalize
    most = COLUMNS // 2 if style.is_narrow() else COLUMNS
    texts = draw.cell_texts(grid, unit) if len(across.values) <= most else None
    draw.heat(ax, grid, scale(np.nanmin(grid), np.nanmax(grid)), texts=texts)
    ax.set(xlabel=across.name, ylabel=down.name)
    ax.set_xticks(np.arange(len(across.values)) + 0.5, list(map(across.text, across.values)))
    ax.set_yticks(np.arange(len(down.values)) + 0.5, list(map(down.text, down.values)))
    return fig
