"""The sentence about a run: what decides how a reader takes it, on every surface."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from perfdag.analysis.gate_result import GateResult
from perfdag.analysis.history import Series
from perfdag.analysis.verdict import worst_word
from perfdag.results.summary import Summary
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

    @property
    def past(self) -> GateResult | None:
        """The gate of a run that has earlier ones to compare with."""
        return self.gate if self.gate and self.gate.runs > 1 else None

    @cached_property
    def lines(self) -> dict[str, Series]:
        """The histories of the series by their ids; none for a first run."""
        return {line.info.series_id: line for line in self.past.series} if self.past else {}

    def failures(self) -> list[str]:
        """Return what failed: points, or else own verdicts, checks, or series without a value."""
        trust, verdicts, past = self.summary.trust, self.summary.verdicts, self.past
        points, failed = len(trust.points), trust.count("failed")
        if failed == points:
            return ["Nothing was measured"]
        if failed:
            return [f"{failed} of {points} points failed"]
        broken = [f"{own.where}: {own.text}" for own in verdicts if own.word == "failed"]
        alerts = self.gate.alerts if self.gate else []
        gating = [alert.title for alert in alerts if alert.gates and alert.kind != "worse"]
        gone = [line for line in past.headlines if line.answer.word == "failed"] if past else []
        return broken or gating or [f"{line.name} {line.answer.text}" for line in gone]

    def deciding(self) -> list[Series]:
        """Return the headline series with a value that matter most, those of usable values first.

        The largest change stands first.
        """
        every = self.past.headlines if self.past else ()
        every = [line for line in every if line.answer.word != "failed"]
        word = worst_word([line.answer for line in every])
        own = [line for line in every if line.answer.word == word]
        return sorted(own, key=lambda line: (line.answer.noisy, -abs(line.answer.effect or 0.0)))


def banner(run: Judged) -> Banner:
    """Return the sentence about a run: what failed, what is worse, and what cannot be used.

    Where nothing failed, its answer stands there whatever it is. Below it are the reasons, the
    trust and the history.
    """
    trust, past, failed, deciding = run.summary.trust, run.past, run.failures(), run.deciding()
    points, unusable = len(trust.points), trust.count("unusable")
    every = sorted(run.summary.points, key=lambda own: (own.point not in trust.points, not own.why))
    lost = [own for own in every if own.why or own.reasons] if failed or trust.lost else []
    why = [f"{own.title}: {own.why or own.reasons[0]}" for own in lost[:1]]
    word: str = "unclear" if trust.lost or unusable == points else ""
    said = f"First run of {plural(points, 'point')}, nothing to compare with"
    command = "perfdag doctor" if trust.count("failed") == points else ""
    if past and deciding:
        answer, name, left = deciding[0].answer, deciding[0].name, deciding[0].left
        word, text = answer.word, answer.text.removeprefix(answer.word).lstrip(": ")
        more = len(deciding) - 1
        said = f"{word.capitalize()}: {name} {text}{f', and {more} more' if more else ''}"
        if word == "same":
            said = f"Same as the {f'last {past.runs - 1} runs' if past.runs > 2 else 'run before'}"
        elif word == "unclear":
            said = f"Unclear: {len(deciding)} of {plural(len(past.headlines), 'value')}"
            why.append(f"{name}: {text}")
        elif word == "worse" and left:
            why += [*past.slower_machine, f"changed with it: {left.changed}"[:200]]
            command = f"perfdag compare {left.run_before} {past.run}"
    says = ". ".join([*failed[:1], *([said] if word == "worse" or not failed else [])])
    doubt = f"{unusable} of {plural(points, 'point')} unusable" if unusable else ""
    changed = f"changed: {run.gate.changed}" if run.gate and run.gate.changed else ""
    says = "; ".join(filter(None, [says, doubt, trust.lost, changed]))
    why += [*failed[1:3], f"trust {trust.text}"]
    why += [f"{past.counted}, {plural(past.runs, 'run')} of history"] if past else []
    return Banner("failed" if failed else word, says, why, command)
