"""The history of one series with its levels and steps, and the card of a run."""

import io
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from perfdag.analysis.alerts import Judged, banner
from perfdag.analysis.history import Series
from perfdag.charts import style
from perfdag.charts.pages import screen
from perfdag.charts.series import amount
from perfdag.results.runs import day_of

RUNS = 60
"""Newest runs of a picture."""
_COLOURS = {"worse": style.WORSE, "better": style.BETTER}


@style.in_house_style
def history(line: Series) -> Figure:
    """Draw the newest runs of a series with their levels and steps."""
    note = "median of each run; band: noise of the level"
    fig, (ax,) = style.figure(heights=(3.6,), title=line.name, subtitle=note)
    panel(ax, line)
    return fig


def panel(ax: Axes, line: Series) -> None:
    """Draw the newest runs. The span of a change for the worse that is open is shaded."""
    first = max(0, len(line.value) - RUNS)
    known = np.flatnonzero(np.isfinite(line.value))
    known = known[known >= first]
    ends = len(line.value) - 0.5
    for level in line.levels.levels:
        start = max(level.start, first) - 0.5
        end = ends if level.ends is None else level.ends - 0.5
        if end > first:
            ax.fill_between(
                [start, end], level.low, level.high, color=style.MUTED, alpha=0.15, lw=0
            )
            ax.plot([start, end], [level.reference] * 2, color=style.MUTED, lw=1, gid="level")
    if line.left:
        ax.axvspan(
            line.left.after.start - 0.5, ends, color=style.WORSE, alpha=0.08, gid="regressed"
        )
    look: Any = {"color": style.SERIES[0], "marker": "o", "markersize": 4, "linewidth": 1.2}
    ax.plot(known, line.value[known], gid="median", label="_value", **look)
    for step in line.steps:
        if step.after.start >= first:
            colour = _COLOURS.get(step.word, style.UNCLEAR)
            ax.axvline(step.after.start - 0.5, color=colour, lw=1, ls=(0, (2, 2)), gid="step")
            late = step.after.start > (first + ends) / 2
            ax.annotate(
                f"{step.size} {day_of(step.run)}",
                (step.after.start - 0.5, 1),
                xycoords=("data", "axes fraction"),
                xytext=(-4 if late else 4, -3),
                textcoords="offset points",
                va="top",
                ha="right" if late else "left",
                color=colour,
                fontweight="bold",
            )
    bounds = [bound for level in line.levels.levels for bound in (level.low, level.high)]
    shown = np.array([*line.value[known], *bounds])
    low, high = float(np.nanmin(shown)), float(np.nanmax(shown[np.isfinite(shown)]))
    ax.set_ylim(low - 0.08 * (high - low), high + 0.22 * (high - low) or 1.0)
    ax.set_xlim(first - 0.5, ends)
    oldest, last = int(known[0]), int(known[-1])
    shown_runs = [line.runs[oldest], line.runs[last]]
    one_day = len(set(map(day_of, shown_runs))) == 1
    words = [f"{run[9:11]}:{run[11:13]} UTC" if one_day else day_of(run) for run in shown_runs]
    ax.set_xticks([oldest, last], words)
    ax.get_xticklabels()[0].set_horizontalalignment("left")
    ax.get_xticklabels()[-1].set_horizontalalignment("right")
    newest = amount(float(line.value[known[-1]]), line.info.unit, line.info.metric)
    ax.set_xlabel(f"one point a run, the newest: {newest}")
    unit = style.value_axis(ax.yaxis, line.info.unit, high, line.info.metric)
    ax.set_ylabel(style.axis_label(line.info.metric, unit, line.info.better).replace(", ", "\n"))


@style.in_house_style
def card(run: Judged, suite: str, head: Sequence[str]) -> bytes:
    """Return a PNG of 1200 x 630 for chats and slides: the sentence, values, and the history."""
    said, rows = banner(run), screen.rows(run)
    colour = {"bad": style.WORSE, "good": style.BETTER, "noisy": style.UNCLEAR}.get(
        screen.colour(said.word)
    )
    fig = Figure(figsize=(12, 6.3))
    fig.text(0.04, 0.93, f"{suite}  ·  {'  ·  '.join(head)}"[:130], fontsize=12, color=style.MUTED)
    sentence = textwrap.fill(said.sentence, 54, max_lines=2, placeholder=" ...")
    big: Any = {"fontsize": 24, "fontweight": "bold", "va": "top"}
    fig.text(0.04, 0.89, sentence, color=colour or style.INK, **big)
    fig.text(0.04, 0.72, "; ".join(said.why)[:130], fontsize=12, color=style.MUTED)
    lines = [line for line in run.deciding() if line.levels.measured > 1][:1]
    places = [(0.04 + 0.48 * (i // 3), 0.56 - 0.2 * (i % 3)) for i in range(3 if lines else 6)]
    for (x, y), row in zip(places, rows, strict=False):
        delta = row.answer.size if row.answer and row.answer.word in ("worse", "better") else ""
        where = textwrap.shorten(f"{row.name}  {row.where}", 40, placeholder=" ...")
        fig.text(x, y + 0.08, where, fontsize=12, color=style.MUTED)
        value = f"{row.value}  {delta}" if row.usable else "unusable"
        fig.text(x, y, value, **{**big, "va": "bottom"})
    for line in lines:
        ax = fig.add_axes((0.46, 0.1, 0.51, 0.5))
        panel(ax, line)
        ax.set_title(line.name[:70], fontsize=12)
    png = io.BytesIO()
    fig.savefig(png, format="png", dpi=100, metadata={"Software": None})
    return png.getvalue()
