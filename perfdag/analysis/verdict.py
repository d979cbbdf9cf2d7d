"""The one answer about a series: worse, better, same, unclear or failed.

Every surface prints this object: terminal, report, index, history, compare page, `compare`,
`check`, JUnit, Markdown and webhook. The sign of an effect is the direction of the value.
"""

import fnmatch
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfdag.results.runs import day_of
from perfdag.results.summary import UNUSABLE_SPREAD, SeriesInfo
from perfdag.stats.levels import (
    MIN_EFFECT,
    MIN_FRACTION,
    SIGMAS,
    STEP,
    WINDOW,
    Array,
    Level,
    Levels,
    Word,
    side_word,
)
from perfdag.stats.robust import Spread
from perfdag.suite.model import Check
from perfdag.units import plural

MIN_EFFECT_TAIL = 0.15


def covers(check: Check, info: SeriesInfo) -> bool:
    """Return whether a check applies to a series."""
    stat = check.stat or ("value" if check.op else "*")
    return (
        fnmatch.fnmatchcase(info.entry, check.entry or "*")
        and fnmatch.fnmatchcase(info.metric, check.metric)
        and fnmatch.fnmatchcase(info.stat, stat)
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

    def limits(self, info: SeriesInfo) -> dict[str, Any]:
        """Return the arguments of `levels_of` for a series.

        A level of a fraction that begins with 0 is judged by differences; see `effect`.
        """
        min_effect, absolute = self.effect(info, np.array([]))
        return {"min_effect": min_effect, "absolute": absolute, "fraction": info.unit == "1"}

    def pages(self, info: SeriesInfo) -> bool:
        """Return whether a change of this series alerts."""
        for check in reversed(self.checks):
            if check.page is not None and covers(check, info):
                return check.page
        return info.headline and not info.canary


LEAST_SEEN = 0.5
"""Where only larger changes than this would be seen, nothing is called the same."""
RANK: tuple[Word, ...] = ("failed", "worse", "better", "unclear", "same")
"""The words, the one that matters most first."""


def percent(value: float | None, absolute: bool = False, sign: bool = True) -> str:
    """Return a relative number such as `-11.8 %`, an absolute one with its sign, or `-`.

    From 100 % on, no decimal says anything.
    """
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value):
        return "from 0"
    plus = "+" if sign else ""
    if absolute:
        return f"{value:{plus}.3g}"
    decimals = 0 if abs(value) >= 1 else 1
    return f"{100 * value:{plus}.{decimals}f} %"


@dataclass(frozen=True)
class Verdict:
    """What perfdag says of a series in a run, or of B against A.

    `effect` is `value` against `before`: relative (0.1 is +10 %), or in the unit of the metric
    where it is `absolute`. `noise` is that of one measurement, `seen` the smallest change for the
    worse that would have been seen, both like the effect. `since` is the first run of the level and
    `runs` the measurements since. `why` says what is missing where nothing is decided, and `noisy`
    that it is the values that cannot be trusted.
    """

    word: Word
    effect: float | None = None
    before: float = math.nan
    value: float = math.nan
    noise: float = math.nan
    seen: float = math.nan
    absolute: bool = False
    since: str = ""
    runs: int = 0
    why: str = ""
    noisy: bool = False

    def __str__(self) -> str:
        return self.text

    @property
    def size(self) -> str:
        """The effect for people, such as `+52.1 %`."""
        return percent(self.effect, self.absolute)

    @property
    def text(self) -> str:
        """The answer in words, such as `worse +52.1 % since 2026-11-20 (3 runs)`."""
        if self.word == "same":
            seen = percent(self.seen, self.absolute)
            return f"same ({seen} would be seen)" if not math.isnan(self.seen) else "same"
        if self.why:
            return f"{self.word}: {self.why}"
        since = f" since {day_of(self.since)} ({plural(self.runs, 'run')})" if self.since else ""
        return f"{self.word} {self.size}{since}"


@dataclass(frozen=True)
class JudgedSeries:
    """A series with its verdict, as `check` and `history` print it with --json."""

    info: SeriesInfo
    name: str
    answer: Verdict
    text: str


@dataclass(frozen=True)
class Standing:
    """The level that counts as good, and the level at which the series left it for the worse.

    `replaced` is the good level before, where the series reached this one by an improvement.
    """

    good: Level
    left: Level | None = None
    replaced: Level | None = None

    def improved(self, level: Level, measurements: int) -> bool:
        """Return whether a level with so many measurements is the new good one, and still news."""
        return self.replaced is not None and self.good is level and measurements < WINDOW


def standing(levels: Sequence[Level], better: str, accepted: Collection[int] = ()) -> Standing:
    """Return where a series stands after its levels.

    A level for the better replaces the good one at once, and so does any level of a metric without
    a better direction. One for the worse does so where it holds one of the measurements `accepted`.
    """
    now = Standing(levels[0])
    for level in levels[1:]:
        side = now.good.side(level.reference)
        if any(level.start <= i and (level.ends is None or i < level.ends) for i in accepted):
            now = Standing(level)
        elif not side:
            now = replace(now, left=None)
        elif side_word(side, better) == "worse":
            now = replace(now, left=now.left or level)
        else:
            now = Standing(level, replaced=now.good)
    return now


def answer_of(
    values: Array,
    band: Spread,
    levels: Levels,
    runs: Sequence[str],
    better: str,
    accepted: Collection[int] = (),
) -> Verdict:
    """Return the answer about a series at its newest measurement.

    `values` are the measurements of `runs`, of which the newest has the spread `band`. A series
    with fewer than three earlier measurements has no answer of its levels: compare it with the run
    before.
    """
    measured = np.flatnonzero(np.isfinite(values))
    newest = float(values[measured[-1]])
    level, now = levels.levels[-1], standing(levels.levels, better, accepted)
    word: Word = "worse"
    if now.left is not None:
        before, first = now.good, now.left
    elif levels.beyond:
        return _undecided(_against(level, newest, better), level, len(levels.beyond))
    elif now.replaced is not None and now.improved(level, len(level.values)):
        before, first = now.replaced, level
        word = "better" if better in ("higher", "lower") else "unclear"
    else:
        return trusted(_unless_blind(_against(level, newest, better)), levels, band)
    count = int((measured >= first.start).sum())
    moved = _against(before, level.reference, better)
    moved = replace(moved, word=word, since=runs[first.start], runs=count)
    if word == "unclear":
        return _without_direction(moved)
    return trusted(moved, levels, band)


def _against(level: Level, value: float, better: str) -> Verdict:
    """Return the answer `same` about a value against a level, with what would have been seen."""
    seen = level.scale.effect((-1 if better == "higher" else 1) * level.threshold)
    figures = level.effect(value), level.reference, value, level.noise, seen
    return Verdict("same", *figures, level.scale.kind == "absolute")


def _undecided(answer: Verdict, level: Level, beyond: int) -> Verdict:
    """Return the answer about a measurement that may begin a level, as `beyond` in a row may."""
    limit = percent(level.scale.effect(level.threshold), answer.absolute, sign=False)
    why = f"{answer.size}; {beyond} of {STEP} measurements beyond {limit}"
    return replace(answer, word="unclear", why=why)


def within(level: Level, better: str) -> Verdict:
    """Return the answer about two measurements of one level, neither of them beyond it."""
    answer = _against(level, level.reference, better)
    return _unless_blind(replace(answer, effect=None, before=math.nan, value=math.nan))


def _unless_blind(answer: Verdict) -> Verdict:
    """Return `same` as unclear where only a very large change would have been seen."""
    if answer.absolute or abs(answer.seen) <= LEAST_SEEN:
        return answer
    why = f"only {percent(answer.seen)} would be seen"
    return replace(answer, word="unclear", why=why, noisy=True)


def trusted(answer: Verdict, limits: Levels, *runs: Spread) -> Verdict:
    """Return an answer as unclear where the samples of one of its runs spread too far."""
    for band in runs:
        share = band.share(float(limits.fraction)) or 0.0
        if share > UNUSABLE_SPREAD and answer.word != "unclear" and not limits.absolute:
            why = f"{answer.size}, but the samples of the run spread by {100 * share:,.0f} %"
            answer = replace(answer, word="unclear", why=why, noisy=True)
    return answer


def compare_levels(
    values: Array, levels: Levels, runs: Sequence[str], a: int, b: int, better: str
) -> Verdict | None:
    """Return what the level rule decided about measurement `b` against `a` of one series.

    Return None where the rule knows too little: up to the later of them, fewer than three earlier
    measurements.
    """
    measured = np.flatnonzero(np.isfinite(values))
    left, right = levels.at(a), levels.at(b)
    if left is None or right is None or (measured < max(a, b)).sum() < STEP:
        return None
    if left is not right:
        side = left.side(right.reference)
        answer = _against(left, right.reference, better)
        if side and a < b and left.ends is not None:
            end = right.ends if right.ends is not None else len(values)
            count = int(((measured >= left.ends) & (measured < end)).sum())
            answer = replace(answer, since=runs[left.ends], runs=count)
        answer = replace(answer, word=side_word(side, better) if side else "same")
        return _without_direction(answer) if answer.word == "unclear" else answer
    if a < b and any(b == index for index, _ in levels.beyond):
        newest = levels.beyond[-1][1]
        return _undecided(_against(left, newest, better), left, len(levels.beyond))
    answer = _against(replace(left, reference=float(values[a])), float(values[b]), better)
    for index, name in ((b, "B"), (a, "A")):
        if left.side(float(values[index])):
            size = percent(left.effect(float(values[index])), answer.absolute)
            why = f"{name} is {size} beyond its level, but {STEP} measurements in a row decide"
            return replace(answer, word="unclear", why=why)
    return _unless_blind(answer)


def compare_sides(
    a: Spread,
    b: Spread,
    limits: Levels,
    better: str,
    runs: tuple[int, int] = (1, 1),
    noise: float | None = None,
) -> Verdict:
    """Return the answer about B against A without a common history.

    Each is the samples of a run, or the medians of so many `runs`. `limits` are those of the
    series, and `noise` is that of one run where other runs tell it. B is worse or better where the
    effect exceeds the smallest one and SIGMAS standard errors, and the spreads do not overlap.

    They are the spreads that every surface shows. Ranges would grow with each sample, so that one
    outlier of many hides any change, whereas the interval of the median becomes narrower.
    """
    scale, min_effect = limits.scale([a.low, a.middle, a.high, b.low, b.middle, b.high])
    gate = scale.gate(min_effect)
    noise = gate if noise is None else noise
    threshold = max(gate, SIGMAS * noise * math.sqrt(1 / runs[0] + 1 / runs[1]))
    x, y = scale.apply([a.middle, b.middle])
    difference = float(y - x)
    effect = Level(0, 0, scale, min_effect, [], reference=a.middle).effect(b.middle)
    seen = scale.effect((-1 if better == "higher" else 1) * threshold)
    absolute = scale.kind == "absolute"
    answer = Verdict("same", effect, a.middle, b.middle, noise, seen, absolute)
    overlap = max(a.low, b.low) <= min(a.high, b.high)
    if abs(difference) > threshold and not overlap:
        answer = replace(answer, word=side_word(difference, better))
        if answer.word == "unclear":
            return _without_direction(answer)
        return trusted(answer, limits, b, a)
    if abs(difference) <= gate:
        return trusted(_unless_blind(answer), limits, b, a)
    # to the side of the change: `answer.seen` is a change for the worse
    least = percent(scale.effect(math.copysign(threshold, difference)), absolute)
    why = "the spreads overlap" if abs(difference) > threshold else f"only {least} would be seen"
    why = f"{answer.size}, but {why}; more runs or `perfdag ab` decide"
    return replace(answer, word="unclear", why=why)


def _without_direction(answer: Verdict) -> Verdict:
    """Return a change of a metric that has no better direction."""
    since = f" since {day_of(answer.since)}" if answer.since else ""
    why = f"{answer.size}{since}, and neither direction is better"
    return replace(answer, word="unclear", why=why)


def worst_word(answers: Collection[Verdict]) -> Word | None:
    """Return the word of a run: the first of RANK that any of its series has.

    Values that cannot be trusted do not count where there are others.
    """
    words = {each.word for each in answers if not each.noisy} or {each.word for each in answers}
    return next((word for word in RANK if word in words), None)


def counts(words: Sequence[Word]) -> str:
    """Return the number of series by word, such as `1 worse, 20 same`."""
    return ", ".join(f"{words.count(word)} {word}" for word in RANK if word in words)
