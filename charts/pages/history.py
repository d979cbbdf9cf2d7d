"""Charts of the history of a suite: levels and change points, recent runs, and noise."""

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from perfdag.charts.style import (
    INK,
    MUTED,
    PALE,
    PNG_DPI,
    SERIES,
    arrow,
    figure,
    in_house_style,
    no_data,
    on_cell,
    value_axis,
)
from perfdag.regress.changes import LevelChange
from perfdag.regress.history import Series
from perfdag.regress.series import RunInfo
from perfdag.stats.robust import Array
from perfdag.stats.variability import Variability

A_PAGE = 12
PANEL = 1.35
"""Height of a panel in inches."""
NAME = 96
"""Characters of a line of a name above a panel."""
MOST_RUNS = 120
"""Runs of a small multiple; older ones are left out, which the subtitle says."""
BLUE_ORANGE = LinearSegmentedColormap.from_list("diverging", [SERIES[1], PALE, SERIES[0]])
CLIP = 20.0
"""Per cent at which the overview's colours end."""


@in_house_style
def pages(series: Sequence[Series], runs: Sequence[RunInfo], title: str) -> list[Figure]:
    """Draw the run medians of series below each other, A_PAGE of them per figure.

    A band is the spread within a run, a line the level. A change is a dashed line with its size. A
    failed run is a tick at the foot, a change of the environment a mark on top.
    """
    series = [line for line in series if np.isfinite(line.value[-MOST_RUNS:]).any()]
    if not series or not runs:
        return [no_data("no runs")]
    first = max(0, len(runs) - MOST_RUNS)
    count = f"{len(runs) - first} of {len(runs)}"
    runs_text = f"runs {runs[first].run_id[:8]} to {runs[-1].run_id[:8]} ({count})"
    figures = []
    for start in range(0, len(series), A_PAGE):
        part = series[start : start + A_PAGE]
        number = f", page {start // A_PAGE + 1}" if len(series) > A_PAGE else ""
        subtitle = (
            f"{runs_text}; points: run medians, band: range or interval within the run, "
            "line: level; mark on top: kernel, image or tool changed, "
            f"at the foot: failed samples{number}"
        )
        fig, axes = figure(rows=len(part), heights=(PANEL,), title=title, subtitle=subtitle)
        fig.set_dpi(PNG_DPI)
        for ax, line in zip(axes, part, strict=True):
            _panel(ax, line, runs, first)
        figures.append(fig)
    return figures


def _panel(ax: Axes, series: Series, runs: Sequence[RunInfo], first: int) -> None:
    """Draw one series, with its name above."""
    x = np.arange(first, len(runs))
    value, low, high = series.value[first:], series.low[first:], series.high[first:]
    ok = np.isfinite(value)
    look: dict[str, Any] = {"color": SERIES[0], "linewidth": 0}
    ax.fill_between(x[ok], low[ok], high[ok], alpha=0.18, gid="spread", **look)
    ax.plot(x[ok], value[ok], marker=".", markersize=4, gid="medians", **look)
    for level in series.levels:
        if level.end > first:
            at = range(max(level.start, first), level.end)
            ax.plot(at, [level.value] * len(at), color=INK, linewidth=1.1, gid="level")
    _changes(ax, [finding for finding in series.findings if finding.index >= first], len(x))
    failed = [
        i for i in range(first, len(runs)) if runs[i].points.get(series.info.point, (0, 0))[1]
    ]
    marks: dict[str, Any] = {"transform": ax.get_xaxis_transform(), "linestyle": "none"}
    ax.plot(failed, [0.03] * len(failed), marker="|", color=MUTED, gid="failed", **marks)
    upgrades = [
        i for i in range(first + 1, len(runs)) if _versions(runs[i]) != _versions(runs[i - 1])
    ]
    marks |= {"marker": 7, "markersize": 4, "clip_on": False}
    ax.plot(upgrades, [1.0] * len(upgrades), color=INK, gid="environment", **marks)
    ax.margins(y=0.2)
    unit = value_axis(ax.yaxis, series.info.unit, float(np.nanmax(np.abs(value))), bins=4)
    about = ", ".join(filter(None, (unit, arrow(series.info.better))))
    name = textwrap.wrap(series.name, NAME, break_on_hyphens=False)
    ax.set_title("\n".join([*name[:-1], f"{name[-1]} ({about})" if about else name[-1]]))
    ax.title.set(fontsize=8, color=INK)
    ax.set_xlim(first - 1, len(runs))
    ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    labels = _run_labels(runs)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda at, _: labels.get(at, "")))
    ax.tick_params(labelsize=7.5)


def _changes(ax: Axes, findings: Sequence[LevelChange], count: int) -> None:
    """Draw changes. Their texts take turns in two lines where they are close to each other."""
    places: list[float] = [-math.inf, -math.inf]
    for finding in findings:
        colour = {"worse": SERIES[1], "better": SERIES[0]}.get(finding.word, MUTED)
        at = finding.index - 0.5
        ax.axvline(at, color=colour, linestyle=(0, (3, 2)), linewidth=1, gid="change")
        line = next((i for i, last in enumerate(places) if at - last > 0.16 * count), None)
        if line is None:  # the table has it
            continue
        places[line] = at
        left = at - ax.get_xlim()[0] < 0.16 * count
        ax.annotate(
            f"{finding.size} {finding.run[4:6]}-{finding.run[6:8]}",
            (at, 1),
            xycoords=("data", "axes fraction"),
            xytext=(2 if left else -2, -2 - 10 * line),
            textcoords="offset points",
            ha="left" if left else "right",
            va="top",
            fontsize=7.5,
            color=INK,
        )


def _versions(run: RunInfo) -> dict[str, str]:
    return {key: value for key, value in run.env.items() if key != "nodes"}


def _run_labels(runs: Sequence[RunInfo]) -> dict[float, str]:
    """Return position -> day of a run, with the time where runs share a day."""
    days = [f"{run.run_id[4:6]}-{run.run_id[6:8]}" for run in runs]
    if len(set(days)) < len(days):
        clocks = [f"{run.run_id[9:11]}:{run.run_id[11:13]}" for run in runs]
        days = [f"{day} {clock}" for day, clock in zip(days, clocks, strict=True)]
    return {float(i): day for i, day in enumerate(days)}


def _short(name: str, limit: int = 52) -> str:
    return name if len(name) <= limit else f"{name[: limit - 3]}..."


@in_house_style
def overview(
    names: Sequence[str], better: Sequence[str], effects: Array, runs: Sequence[RunInfo], title: str
) -> Figure:
    """Draw series by recent runs as a heat map: orange for worse, blue for better."""
    if not len(names) or not effects.size:
        return no_data("no runs")
    good = np.array(
        [
            1.0 if direction == "higher" else -1.0 if direction == "lower" else 0.0
            for direction in better
        ]
    )
    percents = 100 * effects * np.where(good, good, 1.0)[:, None]
    size = np.nan_to_num(np.abs(effects)).max(axis=1)
    largest = np.sort(np.argsort(-size, kind="stable")[:60])
    subtitle = (
        "% against the level of each series: blue and + are better, orange and - are worse; "
        f"no colour: no direction is better; hatched: no value; "
        f"{len(largest)} of {len(names)} series"
    )
    fig, (ax,) = figure(
        heights=(max(1.4, 0.16 * len(largest) + 0.9),), title=title, subtitle=subtitle
    )
    fig.set_dpi(PNG_DPI)
    cells = np.ma.masked_invalid(
        np.where(good[largest, None], percents[largest], 0 * percents[largest])
    )
    ax.patch.set(hatch="////", edgecolor=MUTED, facecolor=PALE)
    mesh = ax.pcolormesh(cells, cmap=BLUE_ORANGE, vmin=-CLIP, vmax=CLIP, gid="overview")
    for (i, j), value in np.ndenumerate(percents[largest]):
        if np.isfinite(value) and abs(value) >= 5 and len(largest) * effects.shape[1] <= 900:
            colour = on_cell(mesh, float(cells[i, j]))
            form = f"{value:+.0f}"
            ax.text(j + 0.5, i + 0.5, form, ha="center", va="center", fontsize=5.5, color=colour)
    ax.set_yticks(
        np.arange(len(largest)) + 0.5, [_short(names[i], 44) for i in largest], fontsize=7
    )
    step = max(1, len(runs) // 10)
    ax.set_xticks(
        np.arange(0, len(runs), step) + 0.5,
        [label.replace(" ", "\n") for label in list(_run_labels(runs).values())[::step]],
        fontsize=7,
    )
    ax.invert_yaxis()
    ax.grid(visible=False)
    bar = fig.colorbar(mesh, ax=ax, shrink=0.9, pad=0.01, extend="both")
    bar.set_label("worse   %   better", fontsize=7.5)
    return fig


@in_house_style
def noise(report: Sequence[tuple[str, Variability]], title: str) -> Figure:
    """Draw the noise of each series, sorted: within runs, between runs and between nodes."""
    largest = [item for item in report if item[1].between or item[1].within][:60]
    if not largest:
        return no_data("too few runs to tell the noise")
    subtitle = (
        "detectable: change found nine times in ten with 20 runs before and 3 after; "
        "above 10 % between runs a series pages nobody"
    )
    fig, (ax,) = figure(
        heights=(max(1.6, 0.19 * len(largest) + 0.8),), title=title, subtitle=subtitle
    )
    fig.set_dpi(PNG_DPI)
    kinds = (
        ("within runs", "within", "o", SERIES[5]),
        ("between runs", "between", "s", SERIES[0]),
        ("between nodes", "nodes", "^", SERIES[1]),
        ("detectable", "detectable", "|", INK),
    )
    for label, attribute, marker, colour in kinds:
        at = [
            (100 * value, y)
            for y, (_, item) in enumerate(largest)
            if (value := getattr(item, attribute))
        ]
        if at:
            ax.plot(
                *zip(*at, strict=True),
                linestyle="none",
                marker=marker,
                color=colour,
                label=label,
                gid=attribute,
            )
    ax.set_xscale("log")
    for guide in (1, 2, 5, 10):
        ax.axvline(guide, color=MUTED, linewidth=0.7, linestyle=(0, (2, 2)), zorder=0)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    ax.set_yticks(range(len(largest)), [_short(name) for name, _ in largest], fontsize=7)
    ax.invert_yaxis()
    ax.set_xlabel("relative noise (%)")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, fontsize=7)
    return fig
