"""The first screen of a report: headline values with their last runs, and the history of a series.

The card of a run shows the same on a picture.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, zip_longest
from typing import Any

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


Headline = tuple[PointState, RunSeries]


@dataclass(frozen=True)
class Tile:
    """A headline value of a run for people, with the verdict on its series where it has one."""

    benchmark: str
    label: str
    number: str
    unit: str
    spread: str
    usable: bool
    verdict: str = ""
    kind: str = ""
    change: str = ""
    level: str = ""
    spark: Markup | str = ""


def tiles(run: RunVerdicts) -> list[Tile]:
    """Return the headline values of the first screen: those that changed, then one a point.

    Entries take turns, and of the points of an entry, the best one stands first. One figure stands
    for a point: a bandwidth is its IOPS times the block size.
    """
    kinds = {series: line.verdict.kind for series, line in run.histories.items()}
    changed: list[Headline] = []
    groups: dict[tuple[str, str], list[Headline]] = {}
    for state in run.summary.points:
        headlines = state.headlines
        changed += [(state, line) for line in headlines if kinds.get(line.series_id) in CHANGED]
        if headlines and state.pair is None:  # a matrix shows pairs
            first = headlines[0]
            alike = [line for line in headlines if line.metric == first.metric]
            best = min((line for line in alike if line.stat == first.stat), key=_order)
            groups.setdefault((state.entry, first.metric), []).append((state, best))
    changed.sort(key=lambda pair: CHANGED.index(kinds[pair[1].series_id]))
    ordered = [sorted(group, key=lambda pair: _order(pair[1])) for group in groups.values()]
    in_turn = filter(None, chain.from_iterable(zip_longest(*ordered)))
    shown = {series.series_id: (state, series) for state, series in [*changed, *in_turn]}
    return [_tile(run, *pair) for pair in list(shown.values())[:TILES]]


def _order(series: RunSeries) -> tuple[bool, float]:
    """Return what sorts the points of an entry: usable ones first, the best of them first."""
    return series.unusable, -series.middle if series.better == "higher" else series.middle


def _tile(run: RunVerdicts, state: PointState, series: RunSeries) -> Tile:
    number, spread, unit = figures_of(series)
    label = series.titled(state.label)
    tile = Tile(state.benchmark, label, number, unit, spread, not series.unusable)
    line = run.histories.get(series.series_id)
    if line is None:
        return tile
    verdict = line.verdict
    change = "cannot tell" if verdict.kind == "unclear" else str(verdict.kind)
    level = ""
    if verdict.kind in CHANGED:
        change = verdict.size
        before = amount(verdict.before, series.display_unit)
        level = f"level {before} \N{RIGHTWARDS ARROW} {amount(verdict.value, series.display_unit)}"
    return replace(
        tile,
        verdict=line.text,
        kind=colour(verdict.kind),
        change=change,
        level=level,
        spark=spark(line),
    )


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
    level = line.levels.levels[-1]
    has_band = bool(np.isfinite([level.low, level.high]).all())
    shown = values[measured].tolist()
    if has_band:
        shown += [level.low, level.high]
    low = min(shown)
    scale = (HIGH - 2 * MARGIN) / (max(shown) - low or 1.0)
    step = (WIDE - 2 * MARGIN) / (len(values) - 1)

    def place(position: int, value: float) -> tuple[float, float]:
        return MARGIN + position * step, HIGH - MARGIN - (value - low) * scale

    band = ""
    if has_band:
        oldest = len(line.value) - len(values)
        x, y = place(max(0, level.start - oldest), level.high)
        size = f'width="{WIDE - x:.1f}" height="{(level.high - level.low) * scale:.1f}"'
        band = f'<rect class="band" x="{x:.1f}" y="{y:.1f}" {size}/>'
    places = [place(position, values[position]) for position in measured.tolist()]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    x, y = places[-1]
    end = f'<circle class="{colour(line.verdict.kind)}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
    head = f'<svg class="spark" viewBox="0 0 {WIDE} {HIGH}" aria-hidden="true">'
    return Markup(f'{head}{band}<polyline points="{points}"/>{end}</svg>')


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
        # A gap stands before the run that ends it. One of two margins is too narrow to be seen.
        self.gaps = np.flatnonzero(distances > max(GAP * usual, 2 * self.margin)) + 1

    def edge(self, position: int) -> float:
        """Return the moment between a run and the one before it."""
        return float(self.edges[min(max(0, position - self.first), len(self.edges) - 1)])


@style.house()
def history(line: Series, wide: bool = False) -> Figure:
    """Draw the newest runs of a series with their levels and steps."""
    level = line.levels.levels[-1]
    ends = [level.effect(level.low), level.effect(level.high)]
    notes = ["a dot a run", "band: where equal runs lie"]
    if np.isfinite(ends).all():
        notes[1] += f" ({' to '.join(percent(end, level.unit) for end in ends)})"
    if any(step.after.first < step.after.last for step in line.steps):
        notes.append("shaded: when a change may have begun")
    notes += [step.values(line.info) for step in line.steps[-1:]]
    fig, (ax,) = style.figure([3.0], f"{line.label} {line.text}", notes, wide=wide)
    panel(ax, line)
    return fig


def panel(ax: Axes, line: Series) -> None:
    """Draw the newest runs. The span of a change for the worse that is open is shaded."""
    past = Past(line)
    _draw_levels(ax, past)
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


def _draw_runs(ax: Axes, past: Past) -> None:
    """Draw the median of each run. The line is broken where nothing ran for long."""
    blue = style.SERIES[0]
    for piece in np.split(past.measured, past.gaps):
        ax.plot(past.times[piece], past.line.value[piece], color=blue, lw=1.2, gid="line")
    for at in past.gaps.tolist():
        before, after = past.times[past.measured[at - 1 : at + 1]]
        ax.axvspan(before, after, color=style.GRID, alpha=0.5, lw=0, gid="gap")
        if after - before > 6 * past.margin:
            days = plural(round(after - before), "day")
            middle: Any = {"x": (before + after) / 2, "y": 0.02, "ha": "center"}
            ax.text(s=days, color=style.MUTED, transform=ax.get_xaxis_transform(), **middle)
    moments = past.times[past.measured]
    values = past.line.value[past.measured]
    (marks,) = ax.plot(moments, values, "o", label="_value", color=blue, ms=4, gid="median")
    texts = [amount(value, past.line.info.display_unit) for value in values.tolist()]
    dates = [_date(moment, "%-d %b %Y %H:%M") for moment in moments.tolist()]
    style.HOVERS[marks] = [": ".join(pair) for pair in zip(dates, texts, strict=True)]


def _date(moment: float, form: str) -> str:
    return datetime.fromtimestamp(round(moment * DAY), UTC).strftime(form)


def _draw_step(ax: Axes, past: Past, step: Step, *, newest: bool) -> None:
    """Draw where a level began and may have begun, its size, and what changed with the newest."""
    tone = _TONES.get(colour(step.kind), style.MUTED)
    if step.after.first < step.after.last:
        span = past.edge(step.after.first), past.edge(step.after.last + 1)
        ax.axvspan(*span, color=tone, alpha=0.12, lw=0, gid="since")
    begin = past.edge(step.after.start)
    ax.axvline(begin, color=tone, lw=1, ls=(0, (2, 2)), gid="step")
    late = begin > (past.edge(past.first) + past.edge(len(past.times))) / 2
    place: Any = {
        "xycoords": ("data", "axes fraction"),
        "textcoords": "offset points",
        "va": "top",
        "ha": "right" if late else "left",
        "color": tone,
    }
    indent = -4 if late else 4
    size = f"{step.size} {_date(past.times[step.after.start], '%-d %b')}"
    ax.annotate(size, (begin, 1), xytext=(indent, -3), fontweight="bold", **place)
    if newest and step.changes.text:
        changed = textwrap.shorten(step.changes.text, 34, placeholder=" ...")
        ax.annotate(changed, (begin, 1), xytext=(indent, -16), **place)


def _set_axes(ax: Axes, past: Past) -> None:
    """Set limits, ticks and names of the axes of time and value."""
    line = past.line
    bounds = chain.from_iterable((level.low, level.high) for level in line.levels.levels)
    shown = np.array([*line.value[past.measured], *bounds])
    finite = shown[np.isfinite(shown)]
    low = float(finite.min())
    high = float(finite.max())
    days = past.edges[-1] - past.edges[0]
    form = "%-d %b %H:%M" if days < 2 else "%-d %b" if days < 300 else "%b %Y"
    ticks = 4 if style.is_narrow() else 8
    locator = AutoDateLocator(minticks=3, maxticks=ticks)  # type: ignore[no-untyped-call]
    ax.xaxis.set_major_locator(locator)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda moment, _: _date(moment, form)))
    height = high - low or abs(high) or 1.0
    ax.set(xlim=past.edges[[0, -1]], ylim=(low - 0.08 * height, high + 0.3 * height))
    unit = style.linear_axis(ax.yaxis, line.info.display_unit, high)
    label = style.axis_label(line.info.label, unit, line.info.better)
    ax.set_ylabel(label.replace(", ", "\n"))


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
    said = banner(run)
    fig = _card("  ·  ".join([suite, *head]), said.sentence, said.kind, "; ".join(said.reasons))
    lines = [line for line in run.deciding() if line.levels.measured >= STEP][:1]
    for place, tile in enumerate(tiles(run)[: 3 if lines else 6]):
        value = f"{tile.number} {tile.unit}" if tile.usable else "unusable"
        tone = style.INK if tile.usable else style.MUTED
        if tile.usable and tile.level:
            value += f"  {tile.change}"
            tone = _TONES[tile.kind]
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
        _value(
            fig,
            place,
            label,
            f"{a} \N{RIGHTWARDS ARROW} {b}  {change}",
            _TONES.get(colour(kind), style.INK),
        )
        fig.text(0.96, 0.43 - 0.19 * place, interval, ha="right", color=style.MUTED, fontsize=22)
    return to_bytes(fig, dpi=100)[1]
