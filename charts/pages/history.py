"""The history of one series: its values, the noise of its levels as a band, and its steps."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from perfdag.analysis.history import Series
from perfdag.charts import style
from perfdag.charts.numbers import amount, readable
from perfdag.results.samples import day_of

RUNS = 60
"""Newest runs of a picture."""
_COLOURS = {"worse": style.WORSE, "better": style.BETTER}


@style.in_house_style
def history(line: Series) -> Figure:
    """Draw the newest runs. The span of a change for the worse that is open is shaded."""
    first = max(0, len(line.value) - RUNS)
    known = np.flatnonzero(np.isfinite(line.value))
    known = known[known >= first]
    fig, (ax,) = style.figure(
        heights=(3.6,),
        title=readable(line.name),
        subtitle=f"median of each run; band: noise of the level; {len(known)} runs",
    )
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
    shown = [
        *line.value[known],
        *(v for level in line.levels.levels for v in (level.low, level.high)),
    ]
    shown = [value for value in shown if np.isfinite(value)]
    low, high = min(shown), max(shown)
    ax.set_ylim(low - 0.08 * (high - low), high + 0.22 * (high - low) or 1.0)
    ax.set_xlim(first - 0.5, ends)
    ax.set_xticks([])
    newest = amount(float(line.value[known[-1]]), line.info.unit, line.info.metric)
    ax.set_xlabel(f"one point a run, the newest: {newest}")
    unit = style.value_axis(ax.yaxis, line.info.unit, high, line.info.metric)
    ax.set_ylabel(style.axis_label(line.info.metric, unit, line.info.better).replace(", ", "\n"))
    return fig
