"""The first screen of a report: the headline values beside the answer, and their last runs."""

from dataclasses import dataclass

import numpy as np

from perfdag.analysis.alerts import Judged
from perfdag.analysis.history import Series as Line
from perfdag.analysis.verdict import Answer
from perfdag.charts.series import amount, spread_text
from perfdag.results.summary import PointState, Series, headlines, unusable
from perfdag.units import metric_text, setting

ROWS = 6
"""Headline values on the first screen."""
SPARK, WIDE, HIGH = 30, 120, 30
"""Runs of a spark, and its size in pixels."""


def colour(word: str) -> str:
    """Return the class of the colour of an answer."""
    signs = {"worse": "bad", "better": "good", "unclear": "noisy", "failed": "bad"}
    return signs.get(word, "same")


@dataclass(frozen=True)
class Spark:
    """The last runs of a series as points of an SVG, with the band that its noise fills."""

    points: str
    end: tuple[str, str]
    band: tuple[float, float, float, float]
    kind: str


@dataclass(frozen=True)
class Row:
    """A headline value: where it was measured, the value, and its answer."""

    name: str
    where: str
    value: str
    spread: str
    answer: Answer | None
    spark: Spark | None
    usable: bool

    @property
    def kind(self) -> str:
        """The class of the colour of the answer."""
        return colour(self.answer.word) if self.answer else "muted"


def values(run: Judged) -> list[tuple[PointState, Series, str]]:
    """Return the headline series shown, changed ones first, and a word for the ends of many.

    A value that cannot be trusted is none of them while there is another.
    """
    every = [(state, series) for state in run.summary.points for series in headlines(state)]
    every = [pair for pair in every if not unusable(pair[1])] or every
    words = [line.answer.word if (line := run.line(series)) else "" for _, series in every]
    shown: dict[int, tuple[PointState, Series, str]] = {}
    for changed in ("worse", "better"):
        for pair, word in zip(every, words, strict=True):
            if word == changed:
                shown[id(pair[1])] = *pair, ""
    groups: dict[tuple[str, str], list[tuple[PointState, Series]]] = {}
    for state, series in every:
        key = (state.entry, series.metric) if len(every) > ROWS else (series.series_id, "")
        groups.setdefault(key, []).append((state, series))
    for best in (True, False):
        for own in groups.values():
            end, word = (
                (max, "highest") if (own[0][1].better == "higher") is best else (min, "lowest")
            )
            state, series = end(own, key=lambda pair: pair[1].middle)
            shown.setdefault(id(series), (state, series, f", {word}" if len(own) > 1 else ""))
    return list(shown.values())[:ROWS]


def rows(run: Judged) -> list[Row]:
    """Return the headline values of the first screen."""
    found = []
    for state, series, end in values(run):
        line = run.line(series)
        stat = "" if series.stat == "value" else f" {series.stat}"
        about = " ".join(f"{key}={setting(key, value)}" for key, value in series.coords.items())
        where = " ".join(filter(None, (state.title, about)))
        if state.entry not in where:
            where = f"{state.entry}: {where}" if where else state.entry
        found.append(
            Row(
                metric_text(series.metric) + stat + end,
                where,
                amount(series.middle, series.unit, series.metric),
                spread_text(series),
                line.answer if line else None,
                spark(line) if line else None,
                not unusable(series),
            )
        )
    return found


def spark(line: Line) -> Spark | None:
    """Return the last runs of a series. Its range is at least that of the noise of its level."""
    values = line.value[-SPARK:]
    known = np.flatnonzero(np.isfinite(values))
    if known.size < 2:
        return None
    level, first = line.levels.levels[-1], len(line.value) - len(values)
    low = float(np.nanmin([level.low, *values[known]]))
    high = float(np.nanmax([level.high, *values[known]]))

    def x(at: float) -> float:
        return 3 + max(0.0, at) * (WIDE - 6) / max(1, len(values) - 1)

    def y(value: float) -> float:
        return HIGH - 3 - (value - low) / ((high - low) or 1.0) * (HIGH - 6)

    places = [(f"{x(at):.1f}", f"{y(float(values[at])):.1f}") for at in known.tolist()]
    start, top, bottom = x(level.start - first), level.high, level.low
    band = start, y(top), WIDE - start, y(bottom) - y(top)
    finite = np.isfinite([top, bottom]).all()
    return Spark(
        " ".join(",".join(place) for place in places),
        places[-1],
        band if finite else (0.0, 0.0, 0.0, 0.0),
        colour(line.answer.word),
    )
