"""The first screen of a report: the answer, the headline values, and the chart that shows it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from perfdag.analysis.alerts import GateResult
from perfdag.analysis.history import Series as Line
from perfdag.analysis.verdict import Answer
from perfdag.charts.series import Cell, amount, spread_text
from perfdag.results.summary import (
    WORSE_LEVELS,
    OwnVerdict,
    RunTrust,
    Series,
    headlines,
    unusable,
)
from perfdag.units import metric_text, plural, setting

ROWS = 6
"""Headline values on the first screen."""
SPARK, WIDE, HIGH = 30, 120, 30
"""Runs of a spark, and its size in pixels."""
SIGNS = {"worse": "bad", "better": "good", "unclear": "noisy", "failed": "bad"}
"""Words of the answer and the classes of their colours."""


@dataclass(frozen=True)
class Banner:
    """The answer about a run in one sentence, and below it what decided it."""

    word: str
    sentence: str
    why: Sequence[str] = ()
    command: str = ""

    @property
    def kind(self) -> str:
        """The class of its colour."""
        return SIGNS.get(self.word, "same")


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
        return SIGNS.get(self.answer.word, "muted") if self.answer else "muted"


@dataclass(frozen=True)
class Judged:
    """A run with what is said of it: its points, the answers of its gate, trust and verdicts."""

    cells: Sequence[Cell]
    gate: GateResult | None
    trust: RunTrust
    verdicts: Sequence[OwnVerdict] = ()

    @cached_property
    def lines(self) -> dict[str, Line]:
        """The histories of the series by their ids."""
        return {line.info.series_id: line for line in self.gate.series} if self.gate else {}

    @property
    def known(self) -> bool:
        """Whether there are earlier runs to compare with."""
        return self.gate is not None and self.gate.runs > 1

    def line(self, series: Series) -> Line | None:
        """Return the history of a series, or None for a first run."""
        return self.lines.get(series.series_id) if self.known else None

    def deciding(self) -> list[Line]:
        """Return the headline series that have the word of the run, those of usable values first.

        The largest change stands first.
        """
        word = self.gate.word if self.gate and self.known else None
        every = self.gate.headlines if self.gate and word else ()
        own = [line for line in every if line.answer.word == word]
        return sorted(own, key=lambda line: (line.answer.noisy, -abs(line.answer.effect or 0.0)))

    @property
    def unusable(self) -> int:
        """The points with values of which none can be trusted."""
        return sum(
            all(
                unusable(series) or ((line := self.line(series)) and line.answer.noisy)
                for series in headlines(cell.state)
            )
            for cell in self.cells
            if cell.state.series
        )

    def headlines(self) -> list[tuple[Cell, Series]]:
        """Return the series of the first screen: changed ones, then one of each metric of an entry.

        A value that cannot be trusted is none of them while there is another.
        """
        every = [(cell, series) for cell in self.cells for series in headlines(cell.state)]
        every = [pair for pair in every if not unusable(pair[1])] or every
        words = [line.answer.word if (line := self.line(series)) else "" for _, series in every]
        chosen = [
            pair
            for word in ("worse", "better")
            for pair, own in zip(every, words, strict=True)
            if own == word
        ]
        first: dict[tuple[str, str], tuple[Cell, Series]] = {}
        for cell, series in every:
            first.setdefault((cell.state.entry, series.metric), (cell, series))
        return list({id(pair[1]): pair for pair in [*chosen, *first.values(), *every]}.values())[
            :ROWS
        ]


def banner(run: Judged) -> Banner:
    """Return the sentence about a run: what failed, what changed, or why nothing can be said."""
    cells, gate, trust = run.cells, run.gate, run.trust
    lost = [cell for cell in cells if cell.why and "skipped" not in cell.state.statuses]
    measured = any(cell.state.statuses.get("ok") for cell in cells)
    broken = [verdict for verdict in run.verdicts if verdict.word == "failed"]
    gating = [a for a in gate.alerts if a.gates and a.kind != "worse"] if gate else []
    deciding = run.deciding()
    history = (
        [f"{gate.counted}, {plural(gate.runs, 'run')} of history"] if gate and run.known else []
    )
    if not measured:
        reasons = [f"{cell.label}: {cell.why}" for cell in cells if cell.why]
        return Banner("failed", "Nothing was measured", reasons[:1])
    if lost:
        why = f"{lost[0].label}: {lost[0].why}"
        return Banner(
            "failed", f"{len(lost)} of {plural(len(cells), 'point')} failed", [why, *history]
        )
    if broken:
        return Banner("failed", f"{broken[0].where}: {broken[0].text}", history)
    if gating:
        return Banner("failed", gating[0].title, [*(a.title for a in gating[1:3]), *history])
    points = sum(bool(cell.state.series) for cell in cells)
    if run.unusable == points:
        return Banner("unclear", "Too noisy to judge", [doubts(trust), *history])
    noisy = f"; {run.unusable} of {points} points too noisy" if run.unusable else ""
    if not deciding or gate is None:
        sentence = f"First run of {plural(points, 'point')}, nothing to compare with{noisy}"
        return Banner("", sentence, [doubts(trust)])
    answer, name = deciding[0].answer, deciding[0].name
    rest = f", and {len(deciding) - 1} more{noisy}" if len(deciding) > 1 else noisy
    if answer.word == "same":
        earlier = f"last {gate.runs - 1} runs" if gate.runs > 2 else "run before"
        return Banner("same", f"Same as the {earlier}{noisy}", history)
    text = answer.text.removeprefix(answer.word).lstrip(": ")
    if answer.word == "unclear":
        open_series = sum(not line.answer.noisy for line in deciding)
        sentence = f"Unclear: {open_series} of {plural(len(gate.headlines), 'value')}{noisy}"
        return Banner("unclear", sentence, [f"{name}: {text}", *history])
    sentence = f"{answer.word.capitalize()}: {name} {text}{rest}"
    left = deciding[0].left
    if answer.word == "worse" and left:
        facts = "; ".join(f"{key} {old} -> {new}" for key, (old, new) in left.environment.items())
        changed = f"changed with it: {facts}" if facts else "no recorded change of the environment"
        command = f"perfdag compare {left.run_before} {gate.run}"
        return Banner("worse", sentence, [changed[:200], *history], command)
    return Banner(answer.word, sentence, history)


def doubts(trust: RunTrust) -> str:
    """Return how many points cannot be trusted, and the most frequent reasons."""
    counts = [f"{len(own)} {level}" for level in WORSE_LEVELS if (own := trust.of_level(level))]
    every = Counter(kind for point in trust.points.values() for kind in point.reasons)
    kinds = ", ".join(kind for kind, _ in every.most_common(3))
    points = plural(len(trust.points), "point")
    good = f"of {points}, {', '.join(counts)}" if counts else f"{points}, all good"
    return f"{good} ({kinds})" if kinds else good


def rows(run: Judged) -> list[Row]:
    """Return the headline values of the first screen."""
    found = []
    for cell, series in run.headlines():
        line = run.line(series)
        stat = "" if series.stat == "value" else f" {series.stat}"
        about = " ".join(f"{key}={setting(key, value)}" for key, value in series.coords.items())
        where = " ".join(filter(None, (cell.label, about)))
        if cell.state.entry not in where:
            where = f"{cell.state.entry}: {where}" if where else cell.state.entry
        found.append(
            Row(
                metric_text(series.metric) + stat,
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
        SIGNS.get(line.answer.word, "same"),
    )
