"""The declaration of a chart: what is on x, what on y, and what splits into lines.

What a declaration leaves open follows from the points: a number with three values or more makes
lines, two of them a heat map, and anything else a row of dots for each point.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from perfdag.benchmark.registry import units_of_settings
from perfdag.charts import draw, style
from perfdag.charts.series import (
    Item,
    amount,
    band_words,
    items_of,
    items_of_subjects,
    notes,
)
from perfdag.results.labels import setting
from perfdag.results.summary import PointState, unusable
from perfdag.units import digits, plural, scaled

SWEPT = 3  # values of a number that make a line
GRID = 24  # points of two such numbers that make a heat map
LINES, PANELS, ROWS = 12, 6, 24
"""Most lines of a panel, panels of small multiples, and rows of dots."""
TITLE = 60  # letters
PERCENTILES = ("p50", "p90", "p95", "p99", "p99.9", "p99.99")

Panels = Mapping[str, Sequence[Item]]
"""Items by metric."""


@dataclass(frozen=True)
class View:
    """One chart of a benchmark: a panel for each of `metrics`, the one of its title first.

    `x` is a parameter or coordinate, or what the suite sweeps. `stats` are the statistics that are
    drawn. `each` is a parameter whose values are charts of their own. `tail` takes the percentiles
    as x. `ideal` is what would be linear. `subjects` takes the rows of workers, devices or seconds.
    """

    metrics: Sequence[str]
    x: str = ""
    stats: Sequence[str] = ()
    each: str = ""
    tail: bool = False
    ideal: Literal["", "rate", "time"] = ""
    log: bool = False
    subjects: bool = False
    slug: str = ""


Drawing = Callable[[Sequence[PointState], pa.Table], Iterable[tuple[str, Figure]]]
Chart = View | Drawing
"""A declaration, or a function for what no declaration can say."""


@style.house()
def figures(
    states: Sequence[PointState], rows: pa.Table, charts: Sequence[Chart]
) -> list[tuple[str, Figure]]:
    """Return the charts of a benchmark by their slugs; a reason where nothing was measured.

    `states` are its points, and `rows` the rows that these points summarise.
    """
    note, drawn = notes(states, rows), dict[str, Figure]()
    for chart in charts:
        found = chart(states, rows) if callable(chart) else _figures(chart, states, rows, note)
        for slug, figure in found:
            drawn.setdefault(slug, figure)
    if not drawn and any(state.why is None for state in states):
        drawn = dict(_samples(states, note))
    if not drawn and all(state.why for state in states):
        why = f"{states[0].title}: {states[0].why}" if states else "no data"
        drawn["points"] = style.no_data(f"no value in {plural(len(states), 'point')}; {why}")
    return list(drawn.items())


def _figures(
    view: View, states: Sequence[PointState], rows: pa.Table, note: str
) -> Iterator[tuple[str, Figure]]:
    every: dict[str, list[Item]] = {}
    for metric in view.metrics:
        if view.subjects:
            items = items_of_subjects(states, rows, metric)
        else:
            items = items_of(states, metric, view.stats)
        if items:
            every[metric] = items
    groups: dict[str, dict[str, list[Item]]] = {}
    for metric, items in every.items():
        for item in items:
            name = str(item.state.params.get(view.each, "")) if view.each else ""
            groups.setdefault(name, {}).setdefault(metric, []).append(item)
    draw_panels = _tail if view.tail else _automatic
    for name, panels in groups.items():
        own = {metric: _without(items, view.each) for metric, items in panels.items()}
        for slug, figure in draw_panels(view, own, "; ".join(filter(None, (name, note)))):
            yield "-".join(filter(None, (_slug(name) if len(groups) > 1 else "", slug))), figure


def _without(items: Sequence[Item], key: str) -> list[Item]:
    return [
        replace(item, words={name: word for name, word in item.words.items() if name != key})
        for item in items
    ]


def _slug(text: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in text.lower())


def _varied(items: Sequence[Item]) -> list[str]:
    """Return the names of the words that tell the items apart, in their order."""
    names = list(dict.fromkeys(name for item in items for name in item.words))
    names = [name for name in names if len({item.words.get(name) for item in items}) > 1]
    numbers = {name for item in items for name in item.numbers}
    for name in [name for name in reversed(names) if name not in numbers]:
        rest = [other for other in names if other != name]
        if len({_name(item, rest) for item in items}) == len(
            {_name(item, names) for item in items}
        ):
            names = rest  # such as the direction, where the pattern says it
    return names


def _name(item: Item, keys: Sequence[str]) -> str:
    """Return the name of an item by some of its words."""
    words = [item.words[key] for key in keys if key in item.words]
    name = ", ".join(words) or item.state.entry
    return name.removeprefix("subject=")


def _named(items: Iterable[Item], keys: Sequence[str]) -> dict[str, list[Item]]:
    """Return the items by their names."""
    named: dict[str, list[Item]] = {}
    for item in items:
        named.setdefault(_name(item, keys), []).append(item)
    return named


def swept(items: Sequence[Item], asked: str = "") -> str:
    """Return the number over which most items are lines, or an empty text."""
    long: dict[str, int] = {}
    for key in dict.fromkeys(name for item in items for name in item.numbers):
        own = [item for item in items if key in item.numbers]
        rest = dict.fromkeys(name for item in own for name in item.words if name != key)
        lines = [{i.numbers[key] for i in line} for line in _named(own, list(rest)).values()]
        sweeps = [values for values in lines if len(values) >= (2 if key == asked else SWEPT)]
        if sweeps and 2 * sum(map(len, sweeps)) >= len(items):
            long[key] = len(set().union(*sweeps))
    return asked if asked in long else max(sorted(long), key=lambda key: long[key], default="")


def _automatic(view: View, panels: Panels, note: str) -> Iterator[tuple[str, Figure]]:
    """Yield lines over what was swept, a heat map of two swept numbers, or dots."""
    first = next(iter(panels.values()))
    x = swept(first, view.x)
    if not x:
        panels = {metric: items for metric, items in panels.items() if len(items) > 1}
        if panels:
            yield view.slug or "points", _dots(panels, note)
        return
    for metric, items in panels.items():
        own = swept(items, x) == x
        y = _second(items, x) if own and len(items) >= GRID else ""
        if y:
            yield f"{view.slug or _slug(metric)}-by-{_slug(x)}-{_slug(y)}", _heat(items, x, y, note)
    lines = {metric: items for metric, items in panels.items() if swept(items, x) == x}
    facets = _facet(first, x)
    if facets and len(lines) > 1:
        for metric, items in lines.items():
            yield (
                f"{view.slug or _slug(metric)}-by-{_slug(x)}",
                _lines(view, {metric: items}, x, note),
            )
    elif lines:
        yield f"{view.slug or _slug(next(iter(lines)))}-by-{_slug(x)}", _lines(view, lines, x, note)
    if rest := {metric: items for metric, items in panels.items() if metric not in lines}:
        yield "points", _dots(rest, note)


def _second(items: Sequence[Item], x: str) -> str:
    """Return the second number that was swept, where its grid with `x` is nearly complete.

    The cells of the grid must have room for their numbers, as a chart of lines says the same.
    """
    xs = {item.numbers.get(x) for item in items}
    for key in (key for key in _varied(items) if key != x):
        own = [item for item in items if {x, key} <= item.numbers.keys()]
        ys = {item.numbers[key] for item in own}
        groups = _named(own, [name for name in _varied(items) if name not in (x, key)])
        places = [{(i.numbers[x], i.numbers[key]) for i in group} for group in groups.values()]
        room = len(xs) <= 6 if style.is_narrow() else len(xs) * min(3, len(groups)) <= 12
        if len(ys) >= SWEPT and room and all(2 * len(own) > len(xs) * len(ys) for own in places):
            return key
    return ""


def _facet(items: Sequence[Item], x: str) -> str:
    """Return the word whose values are small multiples, where there are too many lines for one."""
    keys = [key for key in _varied(items) if key != x]
    if len({_name(item, keys) for item in items}) <= len(style.SERIES):
        return ""
    counts = {key: len({item.words.get(key) for item in items}) for key in keys}
    some = {key: count for key, count in counts.items() if 1 < count <= PANELS}
    return max(some, key=lambda key: some[key], default="")


def _grouped(items: Sequence[Item], key: str) -> dict[str, list[Item]]:
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(item.words.get(key, "otherwise") if key else "", []).append(item)
    return dict(list(groups.items())[:PANELS])


def _multiples(
    panels: Mapping[tuple[str, str], Any],
    title: str,
    subtitle: str,
    height: float,
    below: float = 0,
) -> tuple[Figure, dict[tuple[str, str], Any]]:
    """Return a figure with axes by metric and facet: one column, or up to three for facets.

    `below` is the height of a legend below them.
    """
    columns = 1 if style.is_narrow() else min(3, max(1, len({facet for _, facet in panels})))
    rows = -(-len(panels) // columns)
    heights = [(height if columns == 1 else height * 0.85) + below / rows] * rows
    fig, axes = style.figure(heights, columns, title, subtitle)
    for ax in axes[len(panels) :]:
        ax.remove()
    for ax, (_, facet) in zip(axes, panels, strict=False):
        ax.set_title(style.wrap(facet, 24 if columns == 3 else 40 if style.is_narrow() else 60))
    return fig, dict(zip(panels, axes, strict=False))


Curves = dict[tuple[str, str], dict[str, draw.Line]]
"""Lines by name, by metric and facet."""


def _curves(panels: Panels, x: str, facet: str) -> tuple[Curves, list[str], str]:
    """Return the first lines of each metric and facet, their names, and what was left out."""
    drawn: Curves = {}
    for metric, items in panels.items():
        keys = [key for key in _varied(items) if key not in (x, facet)]
        for value, group in _grouped(items, facet).items():
            own = _named((item for item in group if x in item.numbers), keys)
            drawn[metric, value] = {
                name + (" ~" if any(i.state.noise for i in line) else ""): {
                    i.numbers[x]: i.series for i in line
                }
                for name, line in own.items()
            }
    names = list(dict.fromkeys(name for curves in drawn.values() for name in curves))
    cut = f"first {LINES} of {len(names)} lines" if len(names) > LINES else ""
    names = names[:LINES]
    drawn = {key: {n: own[n] for n in names if n in own} for key, own in drawn.items()}
    return {key: own for key, own in drawn.items() if own}, names, cut


def _lines(view: View, panels: Panels, x: str, note: str) -> Figure:
    """Draw each metric over x, with a small multiple for each value of what splits best."""
    first = next(iter(panels.values()))
    drawn, names, cut = _curves(panels, x, "" if view.tail else _facet(first, x))
    every = [item for items in panels.values() for item in items]
    title = claim(panels, x, ideal=view.ideal)
    ideal = "grey dashes: linear" if view.ideal else ""
    subtitle = "; ".join(filter(None, (cut, band_words(every), ideal, note)))
    multiples = len(drawn) > len(panels)
    below = draw.lines_height(names, 0.0) if multiples and len(names) > 1 else 0.0
    height = 2.5 if len(drawn) > 1 else 3.2
    height = height if multiples else draw.lines_height(names, height)
    fig, axes = _multiples(drawn, title, subtitle, height, below)
    unit = units_of_settings(every[0].state.benchmark).get(x, "1")
    for metric in panels:
        same = {key: ax for key, ax in axes.items() if key[0] == metric}
        series = [one for key in same for line in drawn[key].values() for one in line.values()]
        far = draw.needs_log([value for one in series for value in one.values])
        for key, ax in same.items():
            draw.lines(ax, drawn[key], unit, far or view.log or bool(view.ideal), names)
            if view.ideal:
                _ideal(ax, view.ideal, drawn[key])
            if not multiples:
                draw.name_lines(ax, list(drawn[key]))
            ax.set_xlabel(x)
        limits = [ax.get_ylim() for ax in same.values()]
        for number, ax in enumerate(same.values()):  # small multiples share the axis of values
            ax.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
            ax.set_ylabel("" if number else ax.get_ylabel())
    if below:
        pairs = [zip(*ax.get_legend_handles_labels(), strict=True) for ax in fig.axes]
        named = {label: handle for own in pairs for handle, label in own}
        fig.legend(named.values(), named.keys(), loc="outside lower left")
    return fig


def _ideal(ax: Any, ideal: str, curves: Mapping[str, draw.Line]) -> None:
    """Draw for each line the one that begins at its first point and scales linearly."""
    for line in curves.values():
        xs = sorted(line)
        base = line[xs[0]].middle
        ys = [base * (x / xs[0] if ideal == "rate" else xs[0] / x) for x in xs]
        look: Any = {"color": style.MUTED, "ls": "--", "lw": 1, "gid": "ideal", "label": "_ideal"}
        ax.plot(xs, ys, **look)
        low, high = ax.get_ylim()
        ax.set_ylim(min(low, *ys), max(high, *ys))


def _dots(panels: Panels, note: str) -> Figure:
    """Draw a row for each point; two values of one setting are joined where the rest is alike."""
    joined, cut = _pair(next(iter(panels.values()))), ""
    drawn: dict[str, dict[str, dict[str, Item]]] = {}
    for metric, items in panels.items():
        split = joined or ("stat" if "stat" in _varied(items) else "")
        keys = [key for key in _varied(items) if key != split]
        names = list(dict.fromkeys(_name(item, keys) for item in items))
        cut = f"first {ROWS} of {plural(len(names), 'point')}" if len(names) > ROWS else cut
        groups: dict[str, dict[str, Item]] = {}
        for item in items:
            if (name := _name(item, keys)) in names[:ROWS]:
                groups.setdefault(item.words.get(split, "") if split else "", {})[name] = item
        drawn[metric] = dict(list(groups.items())[: len(style.SERIES)])
    every = [item for items in panels.values() for item in items]
    fig, axes = style.figure(
        [draw.dots_height(groups) for groups in drawn.values()],
        title=claim(panels, pair=joined),
        subtitle="; ".join(filter(None, (cut, band_words(every), note))),
    )
    for ax, groups in zip(axes, drawn.values(), strict=True):
        draw.dots(ax, groups, bool(joined))
    return fig


def _pair(items: Sequence[Item]) -> str:
    """Return the setting with two values of which every point but for it has both."""
    numbers = {name for item in items for name in item.numbers}
    for key in sorted(_varied(items), key=lambda key: key in numbers):
        values = {item.words.get(key) for item in items}
        keys = [name for name in _varied(items) if name != key]
        if key != "stat" and len(values) == 2 and len(items) > 2:
            rest = [_name(item, keys) for item in items]
            if all(rest.count(name) == 2 for name in rest):
                return key
    return ""


def _heat(items: Sequence[Item], x: str, y: str, note: str) -> Figure:
    """Draw a map of the medians over two numbers, one for each value of the rest."""
    keys = [key for key in _varied(items) if key not in (x, y)]
    items = [item for item in items if not unusable(item.series)] or items
    groups = _named((i for i in items if {x, y} <= i.numbers.keys()), keys)
    groups = groups if keys else {"": list(items)}
    cut = f"first {PANELS} of {len(groups)}" if len(groups) > PANELS else ""
    groups = dict(list(groups.items())[:PANELS])
    xs, ys = ([*sorted({i.numbers[key] for own in groups.values() for i in own})] for key in (x, y))
    first = items[0].series
    middles = [item.series.middle for own in groups.values() for item in own]
    unit = scaled(first.display_unit, max(middles))[1]
    fig, axes = _multiples(
        {(first.metric, name): own for name, own in groups.items()},
        claim({first.metric: items}, x, second=y),
        "; ".join(filter(None, (f"number: median in {unit}, grey: none or unusable", cut, note))),
        max(1.6, 0.32 * len(ys) + 0.9),
    )
    norm = draw.color_norm(middles)
    for number, ((_, name), ax) in enumerate(axes.items()):
        grid = np.full((len(ys), len(xs)), np.nan)
        for item in groups[name]:
            grid[ys.index(item.numbers[y]), xs.index(item.numbers[x])] = item.series.middle
        draw.heat(ax, grid, first.display_unit, norm)
        ax.set_xticks(np.arange(len(xs)) + 0.5, _ticks(items, x, xs))
        ax.set_yticks(np.arange(len(ys)) + 0.5, _ticks(items, y, ys))
        ax.set_xlabel(x)
        ax.set_ylabel(y if number % 3 == 0 else "")
    return fig


def _ticks(items: Sequence[Item], name: str, values: Iterable[float]) -> list[str]:
    """Return values of a setting as a suite writes them."""
    benchmark = items[0].state.benchmark
    numbers = (f"{value:g}" if value < 1e6 else f"{value:.0f}" for value in values)
    return [setting(benchmark, name, number) for number in numbers]


def _tail(view: View, panels: Panels, note: str) -> Iterator[tuple[str, Figure]]:
    """Yield a metric over the percentiles, of points that have three of them."""
    metric, items = next(iter(panels.items()))
    known = [stat for stat in PERCENTILES if any(item.series.stat == stat for item in items)]
    items = [item for item in items if item.series.stat in known]
    items = [
        replace(
            item,
            words={"percentile" if key == "stat" else key: w for key, w in item.words.items()},
            numbers={"percentile": known.index(item.series.stat)},
        )
        for item in items
    ]
    curves = _named(items, [key for key in _varied(items) if key != "percentile"])
    whole = [own for own in curves.values() if len(own) >= SWEPT]
    if not whole:
        return
    fig = _lines(view, {metric: [item for own in whole for item in own]}, "percentile", note)
    (ax,) = fig.axes
    ax.set_xticks(range(len(known)), known)
    ax.set_xlabel("")
    for bound in {item.state.params.get("latency_bound") or 0 for item in items} - {0}:
        ax.axhline(bound, color=style.INK, ls=(0, (4, 2)), lw=1, gid="bound")
    yield view.slug or f"{_slug(metric)}-percentiles", fig


def _samples(states: Sequence[PointState], note: str) -> Iterator[tuple[str, Figure]]:
    """Yield the samples of a single value in their order."""
    series = [s for state in states for s in state.series if len(s.values) > 1]
    series.sort(key=lambda own: not own.headline)
    if not series:
        return
    own = series[0]
    value = "unusable" if unusable(own) else amount(own.middle, own.display_unit)
    subtitle = f"each sample, and the median of n={len(own.values)}; {note}"
    fig, (ax,) = style.figure([2.4], title=f"{own.metric}: {value}", subtitle=subtitle)
    order = range(1, len(own.values) + 1)
    ax.plot(order, own.values, "o", color=style.SERIES[0], gid="samples", label="sample")
    ax.axhline(own.middle, color=style.MUTED, lw=1, gid="median")
    ax.set_ylim(min(0.0, *own.values), 1.15 * max(0.0, *own.values) or 1.0)
    unit = style.value_axis(ax.yaxis, own.display_unit, max(own.values))
    ax.set_ylabel(style.axis_label(own.metric, unit, own.better).replace(", ", "\n"))
    ax.set_xlabel("sample")
    ax.set_xticks([at for at in order if len(order) < 12 or at % 5 == 0])
    yield "samples", fig


def claim(panels: Panels, x: str = "", pair: str = "", second: str = "", ideal: str = "") -> str:
    """Return in at most 60 letters what holds for a whole chart: a result, or what differs in it.

    A result is how the first panel scales or what a value of `pair` is to the other, and of one
    panel each value, or the ends of its only line. Unusable values are left out.
    """
    name, items = next(iter(panels.items()))
    keys = _varied(items)
    usable = [i for i in items if not unusable(i.series) and x in ("", *i.numbers)]
    if not usable:
        return f"{name}: unusable"
    told = usable if len(panels) == 1 else []
    if x:
        single = keys == [x] and usable[0].series.better in ("higher", "lower")
        told = sorted(told, key=lambda item: item.numbers[x]) if single else []
        told = told[:1] + told[1:][-1:]
    values = ", ".join(f"{_name(item, keys)} {_median(item)}" for item in told)
    by = [key for key in (x, second) if key] or [key for key in keys if key != "stat"] or ["entry"]
    titles = [
        _scaling(usable, x, ideal) if ideal else _ratio(usable, pair) if pair else "",
        values and f"{name}: {values}",
        f"{', '.join(panels)} by {', '.join(by)}",
        f"{name} of {plural(len(usable), 'value')}",
    ]
    return next((title for title in titles if 0 < len(title) <= TITLE), name[:TITLE])


def _median(item: Item) -> str:
    return amount(item.series.middle, item.series.display_unit)


def _span(values: Iterable[float]) -> str:
    """Return the least and the largest of some numbers, or the one that they are."""
    ordered = sorted(values)
    return " to ".join(dict.fromkeys(digits(value) for value in (ordered[0], ordered[-1])))


def _scaling(items: Sequence[Item], x: str, ideal: str) -> str:
    """Return how much of linear scaling the lines have at the largest x."""
    parts: dict[float, list[float]] = {}
    for own in _named(items, [key for key in _varied(items) if key != x]).values():
        few, most = (end(own, key=lambda item: item.numbers[x]) for end in (min, max))
        more = most.numbers[x] / few.numbers[x]
        faster = most.series.middle / few.series.middle
        part = (faster if ideal == "rate" else 1 / faster) / more
        parts.setdefault(most.numbers[x], []).append(round(100 * part))
    largest = max(parts)
    return f"{_span(parts[largest])}\u00a0% of linear scaling at {largest:g} {x}"


def _ratio(items: Sequence[Item], pair: str) -> str:
    """Return how many times one value of a setting the other is, of the points that have both."""
    keys = [key for key in _varied(items) if key != pair]
    groups = _grouped(items, pair)
    if len(groups) != 2:
        return ""
    (a, left), (b, right) = groups.items()
    before = {_name(item, keys): item.series.middle for item in left}
    ratios = [i.series.middle / before[_name(i, keys)] for i in right if before.get(_name(i, keys))]
    return f"{items[0].series.metric}: {b} is {_span(ratios)} times {a}" if ratios else ""
