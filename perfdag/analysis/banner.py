"""The answer about a run: one sentence, and what decided it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from perfdag.analysis.alerts import GateResult
from perfdag.analysis.history import Series as Line
from perfdag.results.summary import Series, Summary
from perfdag.units import plural


@dataclass(frozen=True)
class Banner:
    """The answer about a run in one sentence, and below it what decided it."""

    word: str
    sentence: str
    why: Sequence[str] = ()
    command: str = ""


@dataclass(frozen=True)
class Judged:
    """A run with what is said of it: its summary, and the answers of its gate."""

    summary: Summary
    gate: GateResult | None

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


def banner(run: Judged) -> Banner:
    """Return the sentence about a run: what failed, what changed, or why nothing can be said."""
    states, gate, trust = run.summary.points, run.gate, run.summary.trust
    points, unusable, failed = len(trust.points), trust.count("unusable"), trust.count("failed")
    broken = [verdict for verdict in run.summary.verdicts if verdict.word == "failed"]
    gating = [a for a in gate.alerts if a.gates and a.kind != "worse"] if gate else []
    deciding = run.deciding()
    history = (
        [f"{gate.counted}, {plural(gate.runs, 'run')} of history"] if gate and run.known else []
    )
    noisy = f"; {unusable} of {points} points too noisy" if unusable else ""
    lost = [state for state in states if state.why]
    lost.sort(key=lambda state: state.point not in trust.points)  # what was skipped is less
    why = [f"{state.title}: {state.why}" for state in lost[:1]]
    if failed == points:
        return Banner("failed", "Nothing was measured", why)
    if failed:
        return Banner("failed", f"{failed} of {points} points failed{noisy}", [*why, *history])
    if broken:
        return Banner("failed", f"{broken[0].where}: {broken[0].text}", history)
    if gating:
        return Banner("failed", gating[0].title, [*(a.title for a in gating[1:3]), *history])
    if unusable == points:
        return Banner("unclear", "Too noisy to judge", [trust.text, *history])
    if not deciding or gate is None:
        sentence = f"First run of {plural(points, 'point')}, nothing to compare with{noisy}"
        return Banner("", sentence, [trust.text])
    answer, name = deciding[0].answer, deciding[0].name
    rest = f", and {len(deciding) - 1} more{noisy}" if len(deciding) > 1 else noisy
    if answer.word == "same":
        earlier = f"last {gate.runs - 1} runs" if gate.runs > 2 else "run before"
        return Banner("same", f"Same as the {earlier}{noisy}", history)
    text = answer.text.removeprefix(answer.word).lstrip(": ")
    if answer.word == "unclear":
        sentence = f"Unclear: {len(deciding)} of {plural(len(gate.headlines), 'value')}{noisy}"
        return Banner("unclear", sentence, [f"{name}: {text}", *history])
    sentence = f"{answer.word.capitalize()}: {name} {text}{rest}"
    left = deciding[0].left
    if answer.word == "worse" and left:
        changed = f"changed with it: {left.changed}"
        command = f"perfdag compare {left.run_before} {gate.run}"
        return Banner("worse", sentence, [changed[:200], *history], command)
    return Banner(answer.word, sentence, history)
