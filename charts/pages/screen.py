"""The first screen of a report: headline values with their last runs, and the history of a series.

The card of a run shows the same on a picture.
"""

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, zip_longest
from typing import Any, TypeVar

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from perfdag.analysis.gate_result import RunVerdicts, banner
from perfdag.analysis.history import Series, Step
from perfdag.analysis.verdict import percent
from perfdag.charts import style
from perfdag.charts.pictures import to_bytes
from perfdag.charts.series import amount, figures_of
from perfdag.results.run_store import start_of
from perfdag.results.summary import PointState, RunSeries
from perfdag.stats.evidence import STEP
from perfdag.units import plural

Part = TypeVar("Part")
TILES = 8
"""Headline values on the first screen."""
BIG: Any = {"fontsize": 27, "fontweight": "bold"}
SMALL: Any = {"fontsize": 15, "color": style.MUTED}
"""The letters of a card."""
TWO_LINES: Any = {"max_lines": 2, "placeholder": " ..."}
SPARK = 30
"""Runs of a spark."""
WIDE = 120
HIGH = 30
MARGIN = 3
"""The size of a spark, and its margin on every side, in pixels."""
KINDS = {"better": "good", "unclear": "noisy", "worse": "bad", "slow": "bad", "failed": "failed"}
"""The class of the colour of a verdict."""
CHANGED = ("worse", "better")
DOUBTS = {
    "load": "the machine was busy",
    "steal": "the host of the machine took CPU time",
    "throttled": "a CPU quota throttled it",
    "canary": "the machine itself changed speed",
    "spread": "values spread by more than 10 %",
    "no": "a point has no value",
}
"""What lowers the trust in a run, by the first word of the reason."""


def colour(verdict: str) -> str:
    """Return the class of the colour of a verdict."""
    return KINDS.get(verdict, "same")


@dataclass(frozen=True)
class Headline:
    """A headline series of a run with its point, and its history where it has one."""

    state: PointState
    series: RunSeries
    history: Series | None

    @property
    def label(self) -> str:
        """What people call it."""
        return self.series.titled(self.state.label)

    @property
    def verdict(self) -> str:
        """The kind of its verdict, or nothing without a history."""
        return self.history.verdict.kind if self.history else ""

    @property
    def change(self) -> str:
        """Its verdict for people, as the size of what changed; nothing without a history."""
        if self.history and self.verdict in CHANGED:
            return self.history.verdict.size
        return "cannot tell" if self.verdict == "unclear" else self.verdict

    @property
    def level(self) -> str:
        """Its level before and after a change, or nothing where it has not changed."""
        if self.history is None or self.verdict not in CHANGED:
            return ""
        verdict = self.history.verdict
        before = amount(verdict.before, self.series.display_unit)
        return f"{before} \N{RIGHTWARDS ARROW} {amount(verdict.value, self.series.display_unit)}"


def tiles(run: RunVerdicts) -> list[Headline]:
    """Return the headline values of the first screen: those that changed, then one a point.

    Entries take turns, and of the points of an entry, the best one stands first. One figure stands
    for a point: a bandwidth is its IOPS times the block size.
    """
    changed: list[Headline] = []
    groups: dict[tuple[str, str], list[Headline]] = {}
    for state in run.summary.points:
        headlines = [
            Headline(state, series, run.histories.get(series.series_id))
            for series in state.headlines
        ]
        changed += [headline for headline in headlines if headline.verdict in CHANGED]
        if headlines and state.pair is None:  # a matrix shows pairs
            first = headlines[0].series
            of_metric = [line for line in headlines if line.series.metric == first.metric]
            alike = [line for line in of_metric if line.series.stat == first.stat]
            groups.setdefault((state.entry, first.metric), []).append(min(alike, key=_rank))
    changed.sort(key=lambda headline: CHANGED.index(headline.verdict))
    entries = [sorted(group, key=_rank) for group in groups.values()]
    shown = {headline.series.series_id: headline for headline in [*changed, *in_turn(entries)]}
    return list(shown.values())[:TILES]


def _rank(headline: Headline) -> tuple[bool, float]:
    """Return what sorts the headlines of an entry: usable ones first, the best of them first."""
    series = headline.series
    return series.unusable, -series.middle if series.better == "higher" else series.middle


def in_turn(groups: Iterable[Sequence[Part]]) -> list[Part]:
    """Return the first of each group, then the second of each, and so on."""
    rounds = zip_longest(*groups)
    return [part for part in chain.from_iterable(rounds) if part is not None]


def doubts(run: RunVerdicts) -> str:
    """Return why the figures of a run are not to be quoted yet, or nothing where they may be."""
    trust = run.summary.trust
    if trust.level == "good" or not trust.points:
        return ""
    marks = ", ".join(chain.from_iterable(state.noise for state in run.summary.points))
    examples = {mark.split(" ")[0]: f" ({mark})" for mark in marks.split(", ")}
    reasons = chain.from_iterable(point.reasons for point in trust.points.values())
    causes = dict.fromkeys(reason.split(" ")[0] for reason in reasons)
    texts = [DOUBTS.get(cause, "other work ran") + examples.get(cause, "") for cause in causes][:3]
    return f"Do not quote these yet: {', '.join(texts)}."


def spark(line: Series) -> Markup:
    """Return the last runs of a series as an SVG, with the band of the noise of its level."""
    values = line.value[-SPARK:]
    measured = np.flatnonzero(np.isfinite(values))
    if measured.size < STEP:
        return Markup()
    level = line.levels.current
    has_band = bool(np.isfinite([level.low, level.high]).all())
    shown = values[measured]
    if has_band:
        shown = np.append(shown, [level.low, level.high])
    low = shown.min()
    step = (WIDE - 2 * MARGIN) / (len(values) - 1)
    scale = (HIGH - 2 * MARGIN) / (shown.max() - low or 1.0)
    xs = MARGIN + measured * step
    ys = HIGH - MARGIN - (values[measured] - low) * scale
    parts = [f'<svg class="spark" viewBox="0 0 {WIDE} {HIGH}" aria-hidden="true">']
    if has_band:
        oldest = len(line.value) - len(values)
        left = MARGIN + max(0, level.start - oldest) * step
        top = HIGH - MARGIN - (level.high - low) * scale
        size = f'width="{WIDE - left:.1f}" height="{(level.high - level.low) * scale:.1f}"'
        parts.append(f'<rect class="band" x="{left:.1f}" y="{top:.1f}" {size}/>')
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
    parts.append(f'<polyline points="{points}"/>')
    tone = colour(line.verdict.kind)
    parts.append(f'<circle class="{tone}" cx="{xs[-1]:.1f}" cy="{ys[-1]:.1f}" r="3"/></svg>')
    return Markup("".join(parts))


RUNS = 60
"""Newest runs of a picture."""
DAY = 86400.0
GAP = 4
"""Usual distances of two runs without one that are marked as a gap."""
_TONES = {
    "bad": style.WORSE,
    "good": style.BETTER,
    "noisy": style.UNCLEAR,
    "failed": style.INK,
}


class Past:
    """The newest runs of a series on an axis of time.

    `first` is the position of the oldest run shown, `measured` has those of the runs with a value,
    and `gaps` the places in it after a time without a run that is far longer than usual. `edges`
    are the moments between the runs.
    """

    def __init__(self, line: Series) -> None:
        self.line = line
        self.first = max(0, len(line.value) - RUNS)
        measured = np.flatnonzero(np.isfinite(line.value))
        self.measured = measured[measured >= self.first]
        self.times = np.array([start_of(run).timestamp() for run in line.runs]) / DAY
        shown = self.times[self.first :]
        # In days. A single run spans no time.
        self.margin = (shown[-1] - shown[0]) / 60 or 0.01
        middles = (shown[1:] + shown[:-1]) / 2
        self.edges = np.array([shown[0] - self.margin, *middles, shown[-1] + self.margin])
        distances = np.diff(self.times[self.measured])
        usual = np.median(distances) if distances.size else 0.0
        # A gap of two margins is too narrow to be seen.
        shortest = max(GAP * usual, 2 * self.margin)
        # A gap stands before the run that ends it.
        self.gaps = np.flatnonzero(distances > shortest) + 1

    def edge(self, position: int) -> float:
        """Return the moment between a run and the one before it, within the axis."""
        return float(self.edges[min(max(0, position - self.first), len(self.edges) - 1)])


@style.house()
def history(line: Series, wide: bool = False) -> Figure:
    """Draw the newest runs of a series with their levels and steps."""
    fig, (ax,) = style.figure([3.0], f"{line.label} {line.text}", _remarks(line), wide=wide)
    panel(ax, line)
    return fig


def _remarks(line: Series) -> list[str]:
    """Return how to read a history, and the values of its newest step."""
    level = line.levels.current
    ends = [level.effect(level.low), level.effect(level.high)]
    remarks = ["a dot a run", "band: where equal runs lie"]
    if np.isfinite(ends).all():
        remarks[1] += f" ({' to '.join(percent(end, level.unit) for end in ends)})"
    if any(step.after.first < step.after.last for step in line.steps):
        remarks.append("shaded: when a change may have begun")
    return remarks + [step.values(line.info) for step in line.steps[-1:]]


def panel(ax: Axes, line: Series) -> None:
    """Draw the newest runs. The span of a change for the worse that is open is shaded."""
    past = Past(line)
    _draw_levels(ax, past)
    _draw_gaps(ax, past)
    _draw_runs(ax, past)
    shown = [step for step in line.steps if step.after.start >= past.first]
    for step in shown:
        _draw_step(ax, past, step, newest=step is shown[-1])
    _set_axes(ax, past)


def _draw_levels(ax: Axes, past: Past) -> None:
    """Draw each level with its band, and a slow drift as a line."""
    line = past.line
    for level in line.levels.levels:
        ends = len(line.value) if level.ends is None else level.ends
        if ends > past.first:
            span = [past.edge(level.start), past.edge(ends)]
            ax.fill_between(
                span, level.low, level.high, color=style.MUTED, alpha=0.15, lw=0, gid="band"
            )
            ax.plot(span, [level.reference] * 2, color=style.MUTED, lw=1, gid="level")
    if line.worsening:
        span = [past.edge(line.worsening.after.start), past.edge(len(line.value))]
        ax.axvspan(*span, color=style.WORSE, alpha=0.08, gid="regressed")
    if line.drift:
        xs = [past.times[line.drift.start], past.times[past.measured[-1]]]
        ys = [line.drift.begin, line.drift.end]
        ax.plot(xs, ys, color=style.INK, lw=1.5, ls=(0, (4, 2)), gid="trend")


def _draw_gaps(ax: Axes, past: Past) -> None:
    """Shade the times in which nothing ran for long, with their days where these have room."""
    for at in past.gaps.tolist():
        begin, end = past.times[past.measured[at - 1 : at + 1]]
        ax.axvspan(begin, end, color=style.GRID, alpha=0.5, lw=0, gid="gap")
        if end - begin > 6 * past.margin:
            ax.text(
                (begin + end) / 2,
                0.02,
                plural(round(end - begin), "day"),
                color=style.MUTED,
                ha="center",
                transform=ax.get_xaxis_transform(),
            )


def _draw_runs(ax: Axes, past: Past) -> None:
    """Draw the median of each run. The line is broken where nothing ran for long."""
    blue = style.SERIES[0]
    for piece in np.split(past.measured, past.gaps):
        ax.plot(past.times[piece], past.line.value[piece], color=blue, lw=1.2, gid="line")
    moments = past.times[past.measured]
    values = past.line.value[past.measured]
    (marks,) = ax.plot(moments, values, "o", label="_value", color=blue, ms=4, gid="median")
    texts = [amount(value, past.line.info.display_unit) for value in values.tolist()]
    dates = [_date(moment, "%-d %b %Y %H:%M") for moment in moments.tolist()]
    style.HOVERS[marks] = [f"{date}: {text}" for date, text in zip(dates, texts, strict=True)]


def _date(moment: float, form: str) -> str:
    """Return a moment in days as text."""
    return datetime.fromtimestamp(round(moment * DAY), UTC).strftime(form)


def _draw_step(ax: Axes, past: Past, step: Step, *, newest: bool) -> None:
    """Draw where a level began and may have begun, its size, and what changed with the newest."""
    tone = _TONES.get(colour(step.kind), style.MUTED)
    if step.after.first < step.after.last:
        earliest = past.edge(step.after.first)
        latest = past.edge(step.after.last + 1)
        ax.axvspan(earliest, latest, color=tone, alpha=0.12, lw=0, gid="since")
    begin = past.edge(step.after.start)
    ax.axvline(begin, color=tone, lw=1, ls=(0, (2, 2)), gid="step")
    # The text stands on the side where the axis is longer.
    late = begin > (past.edges[0] + past.edges[-1]) / 2
    indent = -4 if late else 4
    place: Any = {
        "xy": (begin, 1),
        "xycoords": ("data", "axes fraction"),
        "textcoords": "offset points",
        "va": "top",
        "ha": "right" if late else "left",
        "color": tone,
    }
    size = f"{step.size} {_date(past.times[step.after.start], '%-d %b')}"
    ax.annotate(size, xytext=(indent, -3), fontweight="bold", **place)
    if newest and step.changes.text:
        changed = textwrap.shorten(step.changes.text, 34, placeholder=" ...")
        ax.annotate(changed, xytext=(indent, -16), **place)


def _set_axes(ax: Axes, past: Past) -> None:
    """Set limits, ticks and names of the axes of time and value."""
    line = past.line
    bounds = chain.from_iterable((level.low, level.high) for level in line.levels.levels)
    shown = np.array([*line.value[past.measured], *bounds])
    finite = shown[np.isfinite(shown)]
    low = float(finite.min())
    high = float(finite.max())
    height = high - low or abs(high) or 1.0
    # The sizes of the steps stand above the values.
    ax.set(xlim=past.edges[[0, -1]], ylim=(low - 0.08 * height, high + 0.3 * height))
    _set_dates(ax, days=past.edges[-1] - past.edges[0])
    unit = style.linear_axis(ax.yaxis, line.info.display_unit, high)
    label = style.axis_label(line.info.label, unit, line.info.better)
    ax.set_ylabel(label.replace(", ", "\n"))


def _set_dates(ax: Axes, days: float) -> None:
    """Set the ticks of an axis of time, with hours where it spans less than two days."""
    form = "%-d %b %H:%M" if days < 2 else "%-d %b" if days < 300 else "%b %Y"
    ticks = 4 if style.is_narrow() else 8
    locator = AutoDateLocator(minticks=3, maxticks=ticks)  # type: ignore[no-untyped-call]
    ax.xaxis.set_major_locator(locator)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda moment, _: _date(moment, form)))


def _card(title: str, sentence: str, verdict: str, why: str) -> Figure:
    """Return a card of 1200 x 630 with a title, a sentence in the colour of a verdict, and why."""
    fig = Figure(figsize=(12, 6.3))
    tone = _TONES.get(colour(verdict), style.INK)
    fig.text(0.04, 0.93, textwrap.shorten(title, 100, placeholder=" ..."), **SMALL)
    fig.text(0.04, 0.9, textwrap.fill(sentence, 50, **TWO_LINES), color=tone, va="top", **BIG)
    fig.text(0.04, 0.72, textwrap.fill(why, 100, **TWO_LINES), va="top", **SMALL)
    return fig


def _value(fig: Figure, place: int, label: str, value: str, tone: str) -> None:
    """Write a value with its label at one of six places of a card: three on the left come first."""
    x = 0.04 + 0.49 * (place // 3)
    y = 0.43 - 0.19 * (place % 3)
    fig.text(x, y + 0.085, label, **SMALL)
    fig.text(x, y, value, color=tone, **BIG)


@style.house()
def card(run: RunVerdicts, suite: str, head: Sequence[str]) -> bytes:
    """Return a PNG of 1200 x 630 for chats and slides: the sentence, values, and the history."""
    claim = banner(run)
    fig = _card("  ·  ".join([suite, *head]), claim.sentence, claim.kind, "; ".join(claim.reasons))
    lines = [line for line in run.deciding() if line.levels.measured >= STEP][:1]
    # The history takes the right half.
    for place, tile in enumerate(tiles(run)[: 3 if lines else 6]):
        number, _, unit = figures_of(tile.series)
        usable = not tile.series.unusable
        value = f"{number} {unit}" if usable else "unusable"
        tone = style.INK if usable else style.MUTED
        if usable and tile.level:
            value += f"  {tile.change}"
            tone = _TONES[colour(tile.verdict)]
        label = textwrap.shorten(tile.label, 40 if lines else 52, placeholder=" ...")
        _value(fig, place, label, value, tone)
    for line in lines:
        panel(fig.add_axes((0.48, 0.08, 0.49, 0.52)), line)
    return to_bytes(fig, dpi=100)[1]


@style.house()
def card_of_variants(
    names: Sequence[str], sentence: str, verdict: str, rows: Sequence[tuple[str, ...]]
) -> bytes:
    """Return the card of `perfdag ab`, with the names of its suite and variants above the sentence.

    A row is the label of a series, both values, the change with its interval, and the verdict.
    """
    fig = _card("  ·  ".join(names), sentence, verdict, "values, the change, and its interval")
    for place, (label, a, b, change, interval, kind) in enumerate(rows[:3]):
        values = f"{a} \N{RIGHTWARDS ARROW} {b}  {change}"
        _value(fig, place, label, values, _TONES.get(colour(kind), style.INK))
        fig.text(0.96, 0.43 - 0.19 * place, interval, ha="right", color=style.MUTED, fontsize=22)
    return to_bytes(fig, dpi=100)[1]
