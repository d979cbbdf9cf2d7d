"""A panel of lines over a numeric coordinate: median as line, spread as band."""

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from perfdag.charts import style
from perfdag.charts.series import value_words
from perfdag.results.summary import Series
from perfdag.units import short

DIRECT = 5  # up to so many lines are labelled at their ends instead of in a legend
NAME = 30  # letters of a line of a name in a legend


@dataclass
class Line:
    """One line: `series` by the value of the coordinate."""

    name: str
    series: dict[float, Series] = field(default_factory=dict)

    def columns(self) -> tuple[list[float], list[float], list[float], list[float]]:
        """Return x, median, low and high, by rising x."""
        points = sorted(self.series.items())
        bands = [series.band for _, series in points]
        return (
            [x for x, _ in points],
            [series.middle for _, series in points],
            [b.low for b in bands],
            [b.high for b in bands],
        )


def lines_of(pairs: Sequence[tuple[str, Series]], coordinate: str) -> list[Line]:
    """Return lines by name from (name, series) pairs with that coordinate."""
    by_name: dict[str, Line] = {}
    for name, series in pairs:
        if coordinate in series.coords and series.values:
            by_name.setdefault(name, Line(name)).series[float(series.coords[coordinate])] = series
    return list(by_name.values())


def series_of(curves: Iterable[Line]) -> list[Series]:
    """Return the series of all lines."""
    return [series for line in curves for series in line.series.values()]


def panel(
    ax: Axes,
    lines: Sequence[Line],
    *,
    metric: str,
    x_label: str,
    x_unit: str = "B",
    log_y: bool = False,
    linear: bool = False,
    failed: Sequence[str] = (),
    sizes: Sequence[float] = (),
) -> None:
    """Draw lines over sizes, on a log2 axis where they span a factor of 8 and `linear` is unset.

    A size of zero then stands left of the smallest and is labelled 0.
    """
    xs = sorted({*sizes, *(x for line in lines for x in line.series)})
    positive = [x for x in xs if x > 0]
    log_x = not linear and len(positive) > 2 and positive[-1] / positive[0] >= 8
    zero = positive[0] / 2 if log_x and xs[0] == 0 else None
    _x_axis(ax, xs, positive, zero, log_x, x_unit)
    values = [value for series in series_of(lines) for value in series.values]
    log = log_y and bool(values) and min(values) > 0
    if log:
        ax.set_yscale("log")
    for k, line in enumerate(lines):
        _line(ax, line, k, zero, x_unit)
    _y_limits(ax, values, log)
    first = next(iter(series_of(lines)), None)
    unit, better = (first.unit, first.better) if first else ("1", "none")
    name = style.value_axis(ax.yaxis, unit, max((abs(v) for v in values), default=1.0), log=log)
    ax.set_ylabel(style.axis_label(metric, name, better).replace(", ", "\n"))
    ax.set_xlabel(x_label)
    names, crosses = [line.name for line in lines], _fewer(failed)
    if len(names) > DIRECT or any(len(name) > NAME for name in (*names, *crosses)):
        style.legend_beside(ax, [textwrap.fill(name, NAME) for name in crosses])
        return
    if crosses:
        _failures(ax, crosses)
    if len(names) > 1 or crosses:
        _direct_labels(ax, lines, 0.08 * len(crosses))


def height(lines: Iterable[Line], failed: Sequence[str] = (), least: float = 2.5) -> float:
    """Return the height in inches of a panel whose legend is as long as this."""
    names = [*(line.name for line in lines), *_fewer(failed)]
    return max(least, 0.35 + 0.18 * sum(len(textwrap.wrap(name, NAME)) for name in names))


def _fewer(failed: Sequence[str]) -> list[str]:
    return [*failed[:3], f"and {len(failed) - 3} more"] if len(failed) > 4 else list(failed)


def _x_axis(
    ax: Axes,
    xs: Sequence[float],
    positive: Sequence[float],
    zero: float | None,
    log_x: bool,
    unit: str,
) -> None:
    if log_x:
        ax.set_xscale("log", base=2)
        ax.set_xlim((zero or positive[0]) / 1.3, positive[-1] * 1.3)
        style.size_axis(ax.xaxis, positive, unit, zero)
    elif xs:
        pad = 0.04 * (xs[-1] - xs[0]) or 1.0
        ax.set_xlim(xs[0] - pad, xs[-1] + pad)
        style.value_axis(ax.xaxis, unit, max(xs))
        if all(
            x == int(x) for x in xs
        ):  # batch sizes, processes, hosts: there is nothing at 1.2 of them
            ax.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=True))


def _line(ax: Axes, line: Line, k: int, zero: float | None, unit: str) -> None:
    look = style.look(k)
    xs, middles, lows, highs = line.columns()
    xs = [zero if x == 0 and zero is not None else x for x in xs]
    ax.fill_between(
        xs, lows, highs, color=look["color"], alpha=0.2, linewidth=0, gid=f"band {line.name}"
    )
    label = textwrap.fill(line.name, NAME)
    (marks,) = ax.plot(xs, middles, label=label, markersize=3.6, gid=f"median {line.name}", **look)
    style.HOVERS[marks] = [
        f"{line.name}, {short(x, unit)}: {value_words(series)}"
        for x, series in sorted(line.series.items())
    ]


def _y_limits(ax: Axes, values: Sequence[float], log: bool) -> None:
    if not values:
        return
    if log:
        ax.set_ylim(min(values) / 1.4, max(values) * 1.4)
    else:
        ax.set_ylim(min(0.0, min(values) * 1.05), (max(values) * 1.08) or 1.0)


def _direct_labels(ax: Axes, lines: Sequence[Line], floor: float) -> None:
    """Write names at the right ends, moved apart where they overlap, from `floor` (axes) up."""
    scale = ax.yaxis.get_transform()
    ends = []
    for k, line in enumerate(lines):
        xs, middles, _, _ = line.columns()
        if xs:
            y = float(ax.transLimits.transform((0, float(scale.transform(middles[-1]))))[1])
            ends.append((y, k, line.name))
    ends.sort()
    gap = min(0.085, (1.0 - floor) / max(len(ends), 1))
    places: list[float] = []
    for y, _, _ in ends:
        places.append(max(y, places[-1] + gap if places else floor))
    ceiling = 1.0
    for i in range(len(places) - 1, -1, -1):
        places[i] = min(places[i], ceiling)
        ceiling = places[i] - gap
    for at, (_, k, name) in zip(places, ends, strict=True):
        look = {**style.look(k), "marker": ""}
        ax.plot([1.008, 1.03], [at, at], transform=ax.transAxes, clip_on=False, **look)
        ax.text(
            1.04,
            at,
            name,
            transform=ax.transAxes,
            va="center",
            fontsize=8.5,
            color=style.INK,
            gid="direct",
        )


def _failures(ax: Axes, names: Sequence[str]) -> None:
    # at the right end of the axis, one above the other: they have a name but no x
    places = [0.08 * i for i in range(len(names))]
    style.cross(ax, [1.03] * len(names), places, ax.transAxes)
    for at, name in zip(places, names, strict=True):
        ax.text(
            1.055,
            at,
            name,
            transform=ax.transAxes,
            va="center",
            fontsize=8,
            color=style.MUTED,
            gid="failed name",
        )
