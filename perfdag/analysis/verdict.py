"""The one verdict on a series: worse, better, same, unclear or failed.

Every surface prints this object: terminal, report, index, history, compare page, `compare`,
`check`, JUnit, Markdown and webhook. The sign of an effect is the direction of the value.
"""

import fnmatch
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np

from perfdag.results.run_store import day_of
from perfdag.results.summary import UNUSABLE_SPREAD, NamedSeries, SeriesInfo
from perfdag.stats.evidence import STEP
from perfdag.stats.levels import Level, Levels
from perfdag.stats.robust import Spread
from perfdag.stats.scale import (
    MIN_EFFECT,
    MIN_FRACTION,
    WINDOW,
    Array,
    Nights,
    Scale,
    VerdictKind,
    kind_of_change,
)
from perfdag.suite.model import Check
from perfdag.units import plural, short

MIN_EFFECT_TAIL = 0.15
PAIR_SIGMAS = 2.9
"""Standard errors by which two runs without a common history differ."""


def covers(check: Check, info: SeriesInfo) -> bool:
    """Return whether a check applies to a series.

    Without `stat`, a check against a number covers the value alone, any other all statistics.
    """
    default_stat = "value" if check.op else "*"
    return (
        fnmatch.fnmatchcase(info.entry, check.entry or "*")
        and fnmatch.fnmatchcase(info.metric, check.metric)
        and fnmatch.fnmatchcase(info.stat, check.stat or default_stat)
        and not info.canary
        and (not check.where or check.selects(info.coords, info.params, info.shape))
    )


def fraction(info: SeriesInfo, values: Array) -> bool:
    """Return whether a series is a fraction from 0 to 1 that touches 0, such as a loss.

    A relative change of such a series means nothing.
    """
    return bool(info.unit == "1" and values.size and values.min() == 0 and values.max() <= 1)


class Tuning:
    """Detector settings by series. The last check that covers a series wins, then the defaults."""

    def __init__(self, checks: Sequence[Check] = (), cluster: str | None = None) -> None:
        self.checks = [check for check in checks if check.on(cluster)]

    def effect(self, info: SeriesInfo, values: Array) -> tuple[float, bool]:
        """Return (min_effect, absolute) of a series.

        The default is 5 %, for tails of latency 15 %, and 0.01 for a fraction from 0 to 1 that
        touches 0.
        """
        for check in reversed(self.checks):
            if check.min_effect is not None and covers(check, info):
                return check.min_effect, check.absolute
        if fraction(info, values):
            return MIN_FRACTION, True
        tail = info.unit == "s" and (info.stat == "max" or info.stat.startswith("p99"))
        return (MIN_EFFECT_TAIL if tail else MIN_EFFECT), False

    def limits(self, info: SeriesInfo, nights: Nights) -> Levels:
        """Return the nights of a series and the smallest effect that counts, without its levels.

        A level of a fraction that begins with 0 is judged by differences; see `effect`.
        """
        min_effect, absolute = self.effect(info, np.array([]))
        return Levels(min_effect, absolute, info.unit == "1", info.display_unit, nights)

    def alerts(self, info: SeriesInfo) -> bool:
        """Return whether a change of this series alerts."""
        for check in reversed(self.checks):
            if check.page is not None and covers(check, info):
                return check.page
        return info.headline and not info.canary


LEAST_SEEN = 0.5
"""Where only larger changes than this would be seen, nothing is called the same.

A rate that falls to 1 / 1.5 changes as much as a time that rises to 1.5.
"""
RANK: tuple[VerdictKind, ...] = ("failed", "worse", "better", "unclear", "same")
"""The kinds of verdicts, the one that matters most first."""
CANNOT_TELL = "cannot tell"
"""What is said where the noise hides the verdict, before what would help."""


def percent(value: float | None, unit: str = "", sign: bool = True) -> str:
    """Return a relative number such as `-11.8 %`, one in a unit such as `+490 ms`, or `-`.

    One in % is a share, so its change is in points: `+2.0 points`. From 100 on, no decimal says
    anything.
    """
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value):
        return "from 0"
    if unit not in ("", "%"):
        return f"{'+' if sign and value >= 0 else ''}{short(value, unit)}"
    plus = "+" if sign else ""
    decimals = 0 if abs(value) >= 0.9995 else 1
    return f"{100 * value:{plus}.{decimals}f} {'points' if unit else '%'}"


@dataclass(frozen=True)
class Verdict:
    """What perfdag says of a series in a run, or of B against A.

    `effect` is `value` against `before`: relative (0.1 is +10 %), or in the unit of the metric
    where `unit` is its name for people. `newest` is the value of the run, and `moved` its change
    against the good level. `noise` is that of one measurement, `seen` the smallest change for the
    worse that would have been seen, both like the effect. `since` is the first run of the level,
    which may have begun at any run from `since_first` on (or `earlier`) to `since_last`. `runs`
    counts the runs since. `why` says what is missing where nothing is decided, `noisy` that it is
    the values that cannot be trusted, and `notes` what else a reader must know.
    """

    kind: VerdictKind
    effect: float | None = None
    before: float = math.nan
    value: float = math.nan
    noise: float = math.nan
    seen: float = math.nan
    unit: str = ""
    since: str = ""
    since_first: str = ""
    since_last: str = ""
    earlier: bool = False
    runs: int = 0
    newest: float = math.nan
    moved: float | None = None
    why: str = ""
    noisy: bool = False
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text

    @property
    def size(self) -> str:
        """The effect for people, such as `+52.1 %`."""
        return percent(self.effect, self.unit)

    @property
    def text(self) -> str:
        """The verdict in words, such as `worse +52.1 % since 2026-11-20 (3 runs)`."""
        return "; ".join([self._text(), *self.notes])

    def _text(self) -> str:
        if self.kind == "same":
            seen = percent(self.seen, self.unit)
            return f"same ({seen} would be seen)" if math.isfinite(self.seen) else "same"
        if self.why:
            return f"{CANNOT_TELL if self.noisy else self.kind}: {self.why}"
        runs = f" ({self._between}{plural(self.runs, 'run')})" if self.since else ""
        return f"{self.kind} {self.size}{self.since_text}{runs}"

    @property
    def since_text(self) -> str:
        """The day of the first run of the level, such as ` since 2026-11-20`, or nothing."""
        return f" since {day_of(self.since)}" if self.since else ""

    @property
    def _between(self) -> str:
        """The days from which on and up to which the level may have begun, where they differ."""
        first = day_of(self.since_first)
        last = day_of(self.since_last)
        if self.earlier:
            return f"{first} or earlier to {last}, "
        return f"{first} to {last}, " if first != last else ""


@dataclass(frozen=True)
class SeriesData(NamedSeries):
    """A series with its verdict, as `check` and `history` print it with --json."""

    verdict: Verdict
    text: str


GOOD_NIGHTS = 10
"""Nights after which a level that is better by more than a factor of two is the good one."""


@dataclass(frozen=True)
class Standing:
    """The level that counts as good, and where the series is beside it.

    `worse` is the level at which it left the good one for the worse. `replaced` is the good level
    before, where it reached this one by an improvement. `leap` is a level that is much better: a
    benchmark that ends early is fast, so it is not the good one yet. `back` is the level that ended
    the leap.
    """

    good: Level
    worse: Level | None = None
    replaced: Level | None = None
    leap: Level | None = None
    back: Level | None = None

    def kind(self, level: Level, nights: int, undecided: bool, better: str) -> VerdictKind:
        """Return the kind of verdict on a series at its level, after so many nights of it."""
        if self.worse:
            return "worse"
        if undecided or (self.back is level and nights <= GOOD_NIGHTS):
            return "unclear"
        improved = self.replaced is not None and self.good is level and nights < WINDOW
        if improved or self.leap is level:
            return "better" if better in ("higher", "lower") else "unclear"
        return "same"


def standing(levels: Sequence[Level], better: str, accepted: Collection[int] = ()) -> Standing:
    """Return where a series stands after its levels.

    A level for the better replaces the good one, if it is no leap that is still new, and so does
    any level of a metric without a better direction. One for the worse does so where it holds one
    of the measurements `accepted`.
    """
    now = Standing(levels[0])
    for level in levels[1:]:
        side = now.good.side_of(level)
        leaps = level.scale.leaps(now.good.reference, level.became)
        if any(level.start <= i and (level.ends is None or i < level.ends) for i in accepted):
            now = Standing(level)
        elif not side:
            now = Standing(now.good, replaced=now.replaced, leap=now.leap, back=now.leap and level)
        elif kind_of_change(side, better) == "worse":
            now = replace(now, worse=now.worse or level, leap=None, back=None)
        elif leaps and level.nights < GOOD_NIGHTS and kind_of_change(side, better) == "better":
            now = Standing(now.good, leap=level)
        else:
            now = Standing(level, replaced=now.good)
    return now


def verdict_of(
    values: Array,
    band: Spread,
    levels: Levels,
    runs: Sequence[str],
    better: str,
    accepted: Collection[int] = (),
) -> Verdict:
    """Return the verdict on a series at its newest measurement.

    `values` are the measurements of `runs`, of which the newest has the spread `band`. A series
    with fewer than three earlier measurements has no verdict of its levels: compare it with the run
    before.
    """
    newest = float(values[np.isfinite(values)][-1])
    level = levels.current
    now = standing(levels.levels, better, accepted)
    kind = now.kind(level, level.nights, bool(levels.side), better)
    near = _against(level, newest, better)
    if now.worse:
        verdict = replace(_changed(now.good, level, now.worse, values, runs, better), kind=kind)
    elif levels.side:
        verdict = _undecided(near, levels)
    elif now.back is level and now.leap and kind == "unclear":
        verdict = replace(near, kind=kind, why=_returned(now.good, now.leap, runs))
    elif kind == "same":
        # back at the good level, the nights of that see more than the first ones since
        surest = max(level, now.good, key=attrgetter("nights"))
        verdict = _unless_blind(_against(surest, newest, better), surest.scale, surest.nights)
    else:
        before = now.good if now.leap is level or not now.replaced else now.replaced
        verdict = _of_change(_changed(before, level, level, values, runs, better), kind)
    verdict = unless_apart(verdict, levels, {"the run": band})
    return replace(verdict, newest=newest, moved=now.good.effect(newest))


def _changed(
    before: Level, now: Level, first: Level, values: Array, runs: Sequence[str], better: str
) -> Verdict:
    """Return the change from one level to another, since the `first` level of the change."""
    return replace(
        _against(before, now.became, better),
        since=runs[first.start],
        since_first=runs[first.first],
        since_last=runs[first.last],
        earlier=first.earlier,
        runs=int(np.isfinite(values[first.start :]).sum()),
    )


def _returned(good: Level, leap: Level, runs: Sequence[str]) -> str:
    """Return that a series is back at its good level after a leap for the better."""
    low, high = sorted((abs(good.reference), abs(leap.became)))
    factor = f"{high / low:.2g} times" if low else "much"
    since = day_of(runs[leap.start])
    return f"back at the level of {day_of(runs[good.start])}, it was {factor} better since {since}"


def _against(level: Level, value: float, better: str) -> Verdict:
    """Return the verdict `same` on a value against a level, with what would have been seen."""
    bound = level.low if better == "higher" else level.high
    return Verdict(
        "same",
        effect=level.effect(value),
        before=level.reference,
        value=value,
        noise=level.noise,
        seen=level.effect(bound),
        unit=level.unit,
    )


def _undecided(verdict: Verdict, levels: Levels) -> Verdict:
    """Return the verdict on a night that may begin a level, and for how long nights may."""
    level = levels.current
    bound = level.high if levels.side > 0 else level.low
    limit = percent(abs(level.effect(bound)), level.unit, sign=False)
    reason = f"{levels.row} of {STEP} nights beyond {limit}"
    if not levels.row:
        reason = "the mean of the last nights is beyond its level, more nights decide"
    if levels.undecided > max(levels.row, 1):
        reason += f", unclear for {plural(levels.undecided, 'night')}"
    return replace(verdict, kind="unclear", why=f"{verdict.size}; {reason}")


def undecided_alone(verdict: Verdict, levels: Levels) -> Verdict:
    """Return the verdict on an undecided night that no other one follows, as of a pull request.

    It says what would decide: measurements of this night, nights of its level, or `perfdag ab`.
    """
    count = levels.nights.count[-1]
    if count < STEP:
        reason = f"{verdict.size}; {STEP} measurements of the run decide, and it has {count}"
        return replace(verdict, why=reason, noisy=True)
    before = levels.current.nights - levels.row
    needed = levels.nights_to_judge(verdict.value)
    decide = f"after {needed:g} one can, and so can `perfdag ab`"
    if not before < needed <= WINDOW:
        decide = "`perfdag ab` can"
    of_level = f"no run alone can judge it against a level of {plural(before, 'run')}"
    return replace(verdict, why=f"{verdict.size}; {of_level}; {decide}", noisy=True)


def compare_within(level: Level, better: str) -> Verdict:
    """Return the verdict on two measurements of one level, neither of them beyond it."""
    same = _against(level, level.reference, better)
    verdict = _unless_blind(same, level.scale, level.nights)
    return replace(verdict, effect=None, before=math.nan, value=math.nan)


def _unless_blind(verdict: Verdict, scale: Scale, nights: int = 0) -> Verdict:
    """Return `same` as unclear where only a very large change would have been seen.

    The level has so many nights, where one is known.
    """
    after = verdict.before + verdict.seen * abs(verdict.before)
    x, y = scale.apply([verdict.before, after]).tolist()
    if verdict.unit or not abs(y - x) > scale.gate(LEAST_SEEN):
        return verdict
    count = f" ({plural(nights, 'night')})" if nights else ""
    reason = f"changes below {percent(verdict.seen)} drown in the noise of this series{count}"
    return replace(verdict, kind="unclear", why=reason, noisy=True)


def unless_apart(verdict: Verdict, limits: Levels, runs: Mapping[str, Spread]) -> Verdict:
    """Return a verdict as unclear where the samples of one of its runs spread too far."""
    for run, band in runs.items():
        share = band.share(float(limits.fraction)) or 0.0
        if share > UNUSABLE_SPREAD and verdict.kind != "unclear" and not limits.absolute:
            reason = f"{verdict.size}, but the samples of {run} spread by {100 * share:,.0f} %"
            verdict = replace(verdict, kind="unclear", why=reason, noisy=True)
    return verdict


def compare_levels(
    values: Array, levels: Levels, runs: Sequence[str], a: int, b: int, better: str
) -> Verdict | None:
    """Return what the level rule decided about measurement `b` against `a` of one series.

    Return None where the rule knows too little: up to the later of them, fewer than three earlier
    measurements.
    """
    measured = np.flatnonzero(np.isfinite(values))
    level = levels.at(a)
    level_of_b = levels.at(b)
    if level is None or level_of_b is None or (measured < max(a, b)).sum() < STEP:
        return None
    if level is not level_of_b:
        side = level.side_of(level_of_b)
        verdict = _against(level, level_of_b.became, better)
        if side and a < b:
            first = next(later for later in levels.levels if later.start == level.ends)
            verdict = _changed(level, level_of_b, first, values[: level_of_b.ends], runs, better)
        return _of_change(verdict, kind_of_change(side, better) if side else "same")
    before = float(values[a])
    after = float(values[b])
    verdict = _against(level, after, better)
    if a < b == measured[-1] and levels.side:
        return _undecided(verdict, levels)
    verdict = replace(verdict, before=before, effect=level.scale.change(before, after))
    for name, value in (("B", after), ("A", before)):
        if level.side(value):
            size = percent(level.effect(value), level.unit)
            reason = f"{name} is {size} beyond its level, but {STEP} nights in a row decide"
            return replace(verdict, kind="unclear", why=reason)
    return _unless_blind(verdict, level.scale, level.nights)


def compare_sides(
    a: Spread,
    b: Spread,
    limits: Levels,
    better: str,
    runs: tuple[int, int] = (1, 1),
    noise: float | None = None,
) -> Verdict:
    """Return the verdict on B against A without a common history.

    Each is the samples of a run, or the medians of so many `runs`. `limits` are those of the
    series, and `noise` is that of one run where other runs tell it. B is worse or better where the
    effect exceeds the smallest one and PAIR_SIGMAS standard errors, and the spreads do not overlap.

    They are the spreads that every surface shows. Ranges would grow with each sample, so that one
    outlier of many hides any change, whereas the interval of the median becomes narrower.
    """
    scale, min_effect = limits.scale([a.low, a.middle, a.high, b.low, b.middle, b.high])
    gate = scale.gate(min_effect)
    noise = gate if noise is None else noise
    threshold = max(gate, PAIR_SIGMAS * noise * math.sqrt(1 / runs[0] + 1 / runs[1]))
    x, y = scale.apply([a.middle, b.middle]).tolist()
    difference = y - x

    def change_by(side: float) -> float:
        """Return the change to that side from which on there would be a verdict."""
        return scale.change(a.middle, scale.value(x + math.copysign(threshold, side)))

    verdict = Verdict(
        "same",
        effect=scale.change(a.middle, b.middle),
        before=a.middle,
        value=b.middle,
        noise=noise,
        seen=change_by(-1 if better == "higher" else 1),
        unit=limits.effect_unit(scale),
    )
    sides = {"B": b, "A": a}
    overlap = max(a.low, b.low) <= min(a.high, b.high)
    if abs(difference) > threshold and not overlap:
        verdict = _of_change(verdict, kind_of_change(difference, better))
        return unless_apart(verdict, limits, sides)
    if abs(difference) <= gate:
        return unless_apart(_unless_blind(verdict, scale), limits, sides)
    reason = "the spreads overlap"
    if abs(difference) <= threshold:
        # to the side of the change: `verdict.seen` is a change for the worse
        reason = f"changes below {percent(change_by(difference), verdict.unit)} drown in the noise"
    reason = f"{verdict.size}, but {reason}; more runs or `perfdag ab` decide"
    return replace(verdict, kind="unclear", why=reason, noisy=True)


def _of_change(verdict: Verdict, kind: VerdictKind) -> Verdict:
    """Return the verdict of a change; it is unclear of a metric that has no better direction."""
    if kind != "unclear":
        return replace(verdict, kind=kind)
    reason = f"{verdict.size}{verdict.since_text}, and neither direction is better"
    return replace(verdict, kind=kind, why=reason)


def worst_kind(kinds: Collection[VerdictKind | None]) -> VerdictKind | None:
    """Return the kind of verdict that matters most, the first of RANK; None where there is none."""
    return next((kind for kind in RANK if kind in kinds), None)


NOT_JUDGED = "cannot be judged"
"""What counts say of unclear series."""


def counts(kinds: Sequence[VerdictKind]) -> str:
    """Return the number of series by verdict, such as `1 worse, 20 same, 2 cannot be judged`."""
    texts = {kind: kind for kind in ("failed", "worse", "better", "same")} | {"unclear": NOT_JUDGED}
    return ", ".join(f"{kinds.count(kind)} {text}" for kind, text in texts.items() if kind in kinds)
