"""The first screen of a report: headline values with their last runs, and the history of a series.

The card of a run shows the same on a picture.
"""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from perfdag.analysis.history import Series as Line
from perfdag.analysis.sentence import Judged, banner
from perfdag.analysis.verdict import Verdict
from perfdag.charts import style
from perfdag.charts.pictures import to_bytes
from perfdag.charts.series import amount, spread_text
from perfdag.results.run_store import day_of
from perfdag.results.summary import PointState, Series, headlines, unusable
from perfdag.stats.evidence import STEP

ROWS = 6
"""Headline values on the first screen."""
SPARK, WIDE, HIGH = 30, 120, 30
"""Runs of a spark, and its size in pixels."""


def colour(word: str) -> str:
    """Return the class of the colour of an answer."""
    signs = {"better": "good", "unclear": "noisy"} | dict.fromkeys(
        ("worse", "slow", "failed"), "bad"
    )
    return signs.get(word, "same")


@dataclass(frozen=True)
class Row:
    """A headline value: where it was measured, the value, and its answer."""

    name: str
    where: str
    value: str
    spread: str
    answer: Verdict | None
    spark: Markup
    usable: bool

    @property
    def kind(self) -> str:
        """The class of the colour of the answer."""
        return colour(self.answer.word) if self.answer else "muted"


def values(run: Judged) -> list[tuple[PointState, Series]]:
    """Return the headline series shown, changed ones first.

    Of many, they are those of the first and last point of each entry: points are no alternatives
    of which one could be the best. A value that cannot be trusted is none while there is another.
    """
    every = [(state, series) for state in run.summary.points for series in headlines(state)]
    every = [pair for pair in every if not unusable(pair[1])] or every
    shown = [
        pair
        for word in ("worse", "better")
        for pair in every
        if (line := run.lines.get(pair[1].series_id)) and line.answer.word == word
    ]
    groups: dict[tuple[str, str], list[tuple[PointState, Series]]] = {}
    for state, series in every:
        groups.setdefault((state.entry, series.metric), []).append((state, series))
    ends = [own[at] for at in (0, -1) for own in groups.values()]
    shown += every if len(every) <= ROWS else ends
    return list({id(series): (state, series) for state, series in shown}.values())[:ROWS]


def rows(run: Judged) -> Iterator[Row]:
    """Yield the headline values of the first screen."""
    for state, series in values(run):
        line = run.lines.get(series.series_id)
        unit = series.display_unit
        where = state.title if state.entry in state.title else f"{state.entry}: {state.title}"
        value, below = amount(series.middle, unit), spread_text(series)
        if line and line.answer.word in ("worse", "better"):  # the levels, as the change is theirs
            below = f"{amount(line.answer.before, unit)} before; this run {value}, {below}"
            value = amount(line.answer.value, unit)
        yield Row(
            series.name,
            where,
            value,
            below,
            line.answer if line else None,
            spark(line) if line else Markup(),
            not unusable(series),
        )


def spark(line: Line) -> Markup:
    """Return the last runs of a series as an SVG, with the band of the noise of its level."""
    values = line.value[-SPARK:]
    known = np.flatnonzero(np.isfinite(values))
    if known.size < STEP:
        return Markup()
    level, first = line.levels.levels[-1], len(line.value) - len(values)
    low = float(np.nanmin([level.low, *values[known]]))
    scale = (HIGH - 6) / ((float(np.nanmax([level.high, *values[known]])) - low) or 1.0)

    def place(at: float, value: float) -> tuple[str, str]:
        x = 3 + max(0.0, at) * (WIDE - 6) / (len(values) - 1)
        return f"{x:.1f}", f"{HIGH - 3 - (value - low) * scale:.1f}"

    places = [place(at, float(values[at])) for at in known.tolist()]
    band = ""
    if np.isfinite([level.low, level.high]).all():
        x, y = place(level.start - first, level.high)
        high = (level.high - level.low) * scale
        size = f'width="{WIDE - float(x):.1f}" height="{high:.1f}"'
        band = f'<rect class="band" x="{x}" y="{y}" {size}/>'
    points, (x, y) = " ".join(map(",".join, places)), places[-1]
    end = f'<circle class="{colour(line.answer.word)}" cx="{x}" cy="{y}" r="3"/>'
    head = f'<svg class="spark" viewBox="0 0 {WIDE} {HIGH}" aria-hidden="true">'
    return Markup(f'{head}{band}<polyline points="{points}"/>{end}</svg>')


RUNS = 60
"""Newest runs of a picture."""
_TONES = {"bad": style.WORSE, "good": style.BETTER, "noisy": style.UNCLEAR}


@style.house()
def history(line: Line) -> Figure:
    """Draw the newest runs of a series with their levels and steps."""
    note = "median of each run; band: noise of the level"
    fig, (ax,) = style.figure(heights=(3.6,), title=line.name, subtitle=note)
    panel(ax, line)
    return fig


def panel(ax: Axes, line: Line) -> None:
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
    if line.drift:
        run, value = [line.drift.start, known[-1]], [line.drift.begin, line.drift.end]
        ax.plot(run, value, color=style.INK, lw=1.5, ls=(0, (4, 2)), gid="trend")
    if line.left:
        ax.axvspan(
            line.left.after.start - 0.5, ends, color=style.WORSE, alpha=0.08, gid="regressed"
        )
    look: Any = {"color": style.SERIES[0], "marker": "o", "markersize": 4, "linewidth": 1.2}
    ax.plot(known, line.value[known], gid="median", label="_value", **look)
    for step in line.steps:
        if step.after.start >= first:
            tone = _TONES[colour(step.word)]
            begins = (max(step.after.first, first) - 0.5, step.after.last + 0.5)
            if step.after.first < step.after.last:
                ax.axvspan(*begins, color=tone, alpha=0.12, lw=0, gid="since")
            ax.axvline(step.after.start - 0.5, color=tone, lw=1, ls=(0, (2, 2)), gid="step")
            late = step.after.start > (first + ends) / 2
            ax.annotate(
                f"{step.size} {day_of(step.run)}",
                (step.after.start - 0.5, 1),
                xycoords=("data", "axes fraction"),
                xytext=(-4 if late else 4, -3),
                textcoords="offset points",
                va="top",
                ha="right" if late else "left",
                color=tone,
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
    newest = amount(float(line.value[known[-1]]), line.info.display_unit)
    ax.set_xlabel(f"one dot a run, the newest: {newest}")
    unit = style.value_axis(ax.yaxis, line.info.display_unit, high)
    ax.set_ylabel(style.axis_label(line.info.metric, unit, line.info.better).replace(", ", "\n"))


@style.house()
def card(run: Judged, suite: str, head: Sequence[str]) -> bytes:
    """Return a PNG of 1200 x 630 for chats and slides: the sentence, values, and the history."""
    said = banner(run)
    fig = Figure(figsize=(12, 6.3))
    title = textwrap.shorten("  ·  ".join([suite, *head]), 120, placeholder=" ...")
    fig.text(0.04, 0.93, title, fontsize=12, color=style.MUTED)
    sentence = textwrap.fill(said.sentence, 60, max_lines=2, placeholder=" ...")
    big: Any = {"fontsize": 21, "fontweight": "bold", "va": "top"}
    fig.text(0.04, 0.89, sentence, color=_TONES.get(colour(said.word), style.INK), **big)
    why = textwrap.fill("; ".join(said.why), 120, max_lines=2, placeholder=" ...")
    fig.text(0.04, 0.75, why, fontsize=12, color=style.MUTED, va="top")
    lines = [line for line in run.deciding() if line.levels.measured >= STEP][:1]
    places = [(0.04 + 0.48 * (i // 3), 0.54 - 0.2 * (i % 3)) for i in range(3 if lines else 6)]
    for (x, y), row in zip(places, rows(run), strict=False):
        delta = row.answer.size if row.answer and row.answer.word in ("worse", "better") else ""
        where = textwrap.shorten(f"{row.name}  {row.where}", 50, placeholder=" ...")
        fig.text(x, y + 0.08, where, fontsize=12, color=style.MUTED)
        value = f"{row.value}  {delta}" if row.usable else "unusable"
        fig.text(x, y, value, **{**big, "va": "bottom"})
    for line in lines:
        ax = fig.add_axes((0.46, 0.1, 0.51, 0.5))
        panel(ax, line)
        ax.set_title(line.name[:70], fontsize=12)
    return to_bytes(fig, dpi=100)[1]
