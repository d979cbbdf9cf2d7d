"""The first screen of a report: headline values with their last runs, and the history of a series.

The card of a run shows the same on a picture.
"""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import chain, pairwise, zip_longest
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from perfdag.analysis.history import Series as Line, Step
from perfdag.analysis.sentence import Judged, banner
from perfdag.charts import style
from perfdag.charts.pictures import to_bytes
from perfdag.charts.series import amount
from perfdag.results.summary import PointState, Series, headlines, unusable
from perfdag.stats.evidence import STEP
from perfdag.units import digits, plural, scaled

TILES = 8
"""Headline values on the first screen."""
SPARK, WIDE, HIGH = 30, 120, 30
"""Runs of a spark, and its size in pixels."""
KINDS = {"better": "good", "unclear": "noisy", "worse": "bad", "slow": "bad", "failed": "failed"}
"""The class of the colour of a verdict."""
CHANGED = ("worse", "better")
DOUBTS = {
    "load": "the machine was busy",
    "steal": "the host of the machine took CPU time",
    "throttled": "a CPU quota throttled it",
    "canary": "the machine itself changed speed",
    "spread": "values spread by more than 10 %",
}
"""What lowers the trust in a run, by the first word of the reason."""


def colour(verdict: str) -> str:
    """Return the class of the colour of a verdict."""
    return KINDS.get(verdict, "same")


@dataclass(frozen=True, eq=False)
class Tile:
    """A headline value of a run, with the history of its series where it has one."""

    state: PointState
    series: Series
    history: Line | None

    @property
    def verdict(self) -> str:
        """The verdict on the series, or nothing in a first run."""
        return self.history.answer.word if self.history else ""

    @property
    def kind(self) -> str:
        """The class of the colour of the verdict."""
        return colour(self.verdict)

    @property
    def name(self) -> str:
        """What was measured."""
        return self.series.name

    @property
    def where(self) -> str:
        """Where it was measured: the entry, and what tells the point from the others."""
        title = self.state.title
        return title if self.state.entry in title else f"{self.state.entry}: {title}"

    @property
    def usable(self) -> bool:
        """Whether its samples are close enough for a median to say something."""
        return not unusable(self.series)

    @property
    def value(self) -> str:
        """The median of the run with its unit."""
        return amount(self.series.middle, self.series.display_unit)

    @property
    def number(self) -> str:
        """The median without its unit."""
        return digits(self.series.middle / self._scale[0])

    @property
    def unit(self) -> str:
        """The unit of the median."""
        return self._scale[1]

    @property
    def spread(self) -> str:
        """Where the samples lie, in the unit of the median. Empty for one sample."""
        band = self.series.band
        factor = self._scale[0]
        return f"{digits(band.low / factor)} to {digits(band.high / factor)}" if band.n > 1 else ""

    @property
    def _scale(self) -> tuple[float, str]:
        return scaled(self.series.display_unit, self.series.middle)

    @property
    def change(self) -> str:
        """The size of a change, or another verdict."""
        if self.history and self.verdict in CHANGED:
            return self.history.answer.size
        return "cannot tell" if self.verdict == "unclear" else self.verdict

    @property
    def level(self) -> str:
        """The levels before and after a change, whose size is that of the levels."""
        if self.history is None or self.verdict not in CHANGED:
            return ""
        answer = self.history.answer
        before, after = (
            amount(value, self.series.display_unit) for value in (answer.before, answer.value)
        )
        return f"level {before} \N{RIGHTWARDS ARROW} {after}"

    @property
    def title(self) -> str:
        """The verdict in words."""
        return self.history.text if self.history else ""

    @property
    def spark(self) -> Markup:
        """The last runs of the series."""
        return spark(self.history) if self.history else Markup()

    def order(self) -> tuple[bool, float]:
        """Return what sorts the points of an entry: usable ones first, the best of them first."""
        middle = self.series.middle
        return not self.usable, -middle if self.series.better == "higher" else middle


def tiles(run: Judged) -> list[Tile]:
    """Return the headline values of the first screen: those that changed, then one a point."""
    every = list(_headlines(run))
    changed = sorted((tile for tile in every if tile.verdict in CHANGED), key=_worse_first)
    shown = dict.fromkeys([*changed, *_one_a_point(every)])
    return list(shown)[:TILES]


def _worse_first(tile: Tile) -> int:
    return CHANGED.index(tile.verdict)


def _headlines(run: Judged) -> Iterator[Tile]:
    for state in run.summary.points:
        for series in headlines(state):
            yield Tile(state, series, run.lines.get(series.series_id))


def _one_a_point(every: Sequence[Tile]) -> Iterator[Tile]:
    """Yield the first headline of each point: the best of each metric of an entry, then the next.

    One figure of a point stands for it: a bandwidth is its IOPS times the block size.
    """
    first: dict[str, Tile] = {}
    for tile in every:
        first.setdefault(tile.state.point, tile)
    groups: dict[tuple[str, str], list[Tile]] = {}
    for tile in first.values():
        groups.setdefault((tile.state.entry, tile.series.metric), []).append(tile)
    ordered = [sorted(group, key=Tile.order) for group in groups.values()]
    return filter(None, chain.from_iterable(zip_longest(*ordered)))


def doubts(run: Judged) -> str:
    """Return why the figures of a run are not to be quoted yet, or nothing where they may be."""
    trust = run.summary.trust
    if trust.level == "good" or not trust.points:
        return ""
    marks = chain.from_iterable(state.noise for state in run.summary.points)
    examples = {text.split(" ")[0]: text for text in reversed(", ".join(marks).split(", "))}
    reasons: dict[str, str] = {}
    for point in trust.points.values():
        for kind in point.reasons:
            cause = kind.split(" ")[0]
            text = DOUBTS.get(cause)
            example = f" ({examples[cause]})" if cause in examples else ""
            reasons.setdefault(cause, text + example if text else kind)
    texts = list(reasons.values())[:3]
    unusable_points = trust.count("unusable")
    if unusable_points:
        texts.append(f"{unusable_points} of {plural(len(trust.points), 'point')} unusable")
    return f"Do not quote these yet: {', '.join(texts)}."


def spark(line: Line) -> Markup:
    """Return the last runs of a series as an SVG, with the band of the noise of its level."""
    values = line.value[-SPARK:]
    measured = np.flatnonzero(np.isfinite(values))
    if measured.size < STEP:
        return Markup()
    level = line.levels.levels[-1]
    first = len(line.value) - len(values)
    low = float(np.nanmin([level.low, *values[measured]]))
    scale = (HIGH - 6) / ((float(np.nanmax([level.high, *values[measured]])) - low) or 1.0)

    def place(at: float, value: float) -> tuple[str, str]:
        x = 3 + max(0.0, at) * (WIDE - 6) / (len(values) - 1)
        return f"{x:.1f}", f"{HIGH - 3 - (value - low) * scale:.1f}"

    places = [place(at, float(values[at])) for at in measured.tolist()]
    band = ""
    if np.isfinite([level.low, level.high]).all():
        x, y = place(level.start - first, level.high)
        high = (level.high - level.low) * scale
        size = f'width="{WIDE - float(x):.1f}" height="{high:.1f}"'
        band = f'<rect class="band" x="{x}" y="{y}" {size}/>'
    points = " ".join(map(",".join, places))
    x, y = places[-1]
    end = f'<circle class="{colour(line.answer.word)}" cx="{x}" cy="{y}" r="3"/>'
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


def time_of(run: str) -> float:
    """Return when a run began, in days since 1970."""
    return datetime.strptime(run[:16] + "+0000", "%Y%m%dT%H%M%SZ%z").timestamp() / DAY


@dataclass(frozen=True)
class Past:
    """The newest runs of a series on an axis of time."""

    line: Line

    @cached_property
    def first(self) -> int:
        """The position of the first run shown."""
        return max(0, len(self.line.value) - RUNS)

    @cached_property
    def measured(self) -> list[int]:
        """The positions of the runs with a value."""
        positions = np.flatnonzero(np.isfinite(self.line.value))
        return positions[positions >= self.first].tolist()  # type: ignore[no-any-return]

    @cached_property
    def times(self) -> list[float]:
        """When each run began."""
        return [time_of(run) for run in self.line.runs]

    @cached_property
    def margin(self) -> float:
        """The distance of the first and the last run to the frame."""
        return (self.times[-1] - self.times[self.first]) / 60 or 0.01

    def edge(self, position: int) -> float:
        """Return the moment between a run and the one before it."""
        if position <= self.first:
            return self.times[self.first] - self.margin
        if position >= len(self.times):
            return self.times[-1] + self.margin
        return (self.times[position - 1] + self.times[position]) / 2

    def gaps(self) -> Iterator[tuple[float, float]]:
        """Yield the ends of each time without a run that is far longer than usual."""
        moments = [self.times[at] for at in self.measured]
        usual = float(np.median(np.diff(moments))) if len(moments) > STEP else np.inf
        for before, after in pairwise(moments):
            if after - before > max(GAP * usual, 2 * self.margin):
                yield before, after


@style.house()
def history(line: Line, wide: bool = False) -> Figure:
    """Draw the newest runs of a series with their levels and steps."""
    level = line.levels.levels[-1]
    half = (level.high - level.low) / 2
    whole = half / abs(level.reference) if level.reference else np.nan
    lie = f" (±{100 * whole:.2g} %)" if np.isfinite(whole) else ""
    note = f"a dot a run; band: where equal runs lie{lie}"
    if any(step.after.first < step.after.last for step in line.steps):
        note += "; shaded: when a change may have begun"
    title = f"{line.name} {line.text}"
    fig, (ax,) = style.figure([3.0], title=title, subtitle=note, wide=wide)
    panel(ax, line)
    return fig


def panel(ax: Axes, line: Line) -> None:
    """Draw the newest runs. The span of a change for the worse that is open is shaded."""
    past = Past(line)
    _draw_levels(ax, past)
    for before, after in past.gaps():
        ax.axvspan(before, after, color=style.GRID, alpha=0.5, lw=0, gid="gap")
        days = plural(round(after - before), "day")
        place: Any = {"transform": ax.get_xaxis_transform(), "ha": "center", "color": style.MUTED}
        if after - before > 15 * past.margin:
            ax.text((before + after) / 2, 0.03, f"no run\nfor {days}", **place)
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
            band: Any = {"color": style.MUTED, "alpha": 0.15, "lw": 0, "gid": "band"}
            ax.fill_between(span, level.low, level.high, **band)
            ax.plot(span, [level.reference] * 2, color=style.MUTED, lw=1, gid="level")
    if line.left:
        begin = past.edge(line.left.after.start)
        regressed: Any = {"color": style.WORSE, "alpha": 0.08, "gid": "regressed"}
        ax.axvspan(begin, past.edge(len(line.value)), **regressed)
    if line.drift:
        ends_of_drift = [past.times[line.drift.start], past.times[past.measured[-1]]]
        trend: Any = {"color": style.INK, "lw": 1.5, "ls": (0, (4, 2)), "gid": "trend"}
        ax.plot(ends_of_drift, [line.drift.begin, line.drift.end], **trend)


def _draw_runs(ax: Axes, past: Past) -> None:
    """Draw the median of each run. The line is broken where nothing ran for long."""
    values = past.line.value
    after_gap = {after for _, after in past.gaps()}
    xs: list[float] = []
    ys: list[float] = []
    for at in past.measured:
        moment = past.times[at]
        if moment in after_gap:
            xs.append(moment)
            ys.append(np.nan)
        xs.append(moment)
        ys.append(float(values[at]))
    ax.plot(xs, ys, color=style.SERIES[0], lw=1.2, gid="line", label="_line")
    moments = [past.times[at] for at in past.measured]
    dots: Any = {"color": style.SERIES[0], "marker": "o", "ms": 4, "ls": "none", "gid": "median"}
    (marks,) = ax.plot(moments, values[past.measured], label="_value", **dots)
    unit = past.line.info.display_unit
    style.HOVERS[marks] = [
        f"{_date(past.times[at], '%-d %b %Y %H:%M')}: {amount(float(values[at]), unit)}"
        for at in past.measured
    ]


def _date(moment: float, form: str) -> str:
    return datetime.fromtimestamp(round(moment * DAY), UTC).strftime(form)


def _draw_step(ax: Axes, past: Past, step: Step, *, newest: bool) -> None:
    """Draw where a level began and may have begun, its size, and what changed with the newest."""
    tone = _TONES.get(colour(step.word), style.MUTED)
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
    shown = [*line.value[past.measured]]
    for level in line.levels.levels:
        shown += [level.low, level.high]
    finite = [float(value) for value in shown if np.isfinite(value)]
    low, high = min(finite), max(finite)
    ax.set_ylim(low - 0.08 * (high - low), high + 0.3 * (high - low) or 1.0)
    start, end = past.edge(past.first), past.edge(len(past.times))
    ax.set_xlim(start, end)
    days = end - start
    form = "%H:%M" if days < 2 else "%-d %b" if days < 300 else "%b %Y"
    most = 4 if style.is_narrow() else 8
    locator = AutoDateLocator(minticks=3, maxticks=most)  # type: ignore[no-untyped-call]
    ax.xaxis.set_major_locator(locator)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda moment, _: _date(moment, form)))
    if days < 2:
        ax.set_xlabel(_date(end, "%-d %b %Y, UTC"))
    unit = style.value_axis(ax.yaxis, line.info.display_unit, high)
    label = style.axis_label(line.info.metric, unit, line.info.better)
    ax.set_ylabel(label.replace(", ", "\n"))


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
    for (x, y), tile in zip(places, tiles(run), strict=False):
        delta = tile.change if tile.verdict in CHANGED else ""
        where = textwrap.shorten(f"{tile.name}  {tile.where}", 50, placeholder=" ...")
        fig.text(x, y + 0.08, where, fontsize=12, color=style.MUTED)
        value = f"{tile.value}  {delta}" if tile.usable else "unusable"
        fig.text(x, y, value, **{**big, "va": "bottom"})
    for line in lines:
        ax = fig.add_axes((0.46, 0.1, 0.51, 0.5))
        panel(ax, line)
        ax.set_title(line.name[:70], fontsize=12)
    return to_bytes(fig, dpi=100)[1]
