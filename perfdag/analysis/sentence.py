"""The sentence about a run: what decides how a reader takes it, on every surface."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

from perfdag.analysis.gate_result import GateResult
from perfdag.benchmark import registry
from perfdag.results.schema import facts_of_nodes
from perfdag.results.summary import (
    PointState,
    Series,
    Summary,
    headlines,
    unusable,
    worst_of_points,
)
from perfdag.units import RATES, plural, short

if TYPE_CHECKING:
    from perfdag.analysis.history import Series as Line

CLAIMS = 2
"""Claims that stand in a sentence: a failure must not hide that a series became worse."""
FIRST_CLAIMS = 3
"""Entries whose best value stands in the sentence of a first run."""


@dataclass(frozen=True)
class Banner:
    """The verdict on a run in one sentence, and below it what decided it.

    `word` is that of a verdict, `slow` for a slow node or link, or empty for a first run.
    """

    word: str
    sentence: str
    why: Sequence[str] = ()
    command: str = ""


@dataclass(frozen=True)
class Judged:
    """A run with what is said of it: its summary, and the verdicts of its gate."""

    summary: Summary
    gate: GateResult | None

    @property
    def past(self) -> GateResult | None:
        """The gate of a run that has earlier ones to compare with."""
        return self.gate if self.gate and self.gate.runs > 1 else None

    @cached_property
    def lines(self) -> dict[str, "Line"]:
        """The histories of the series by their ids; none for a first run."""
        return {line.info.series_id: line for line in self.past.series} if self.past else {}

    def deciding(self) -> list["Line"]:
        """Return the headline series with a value that matter most, those of usable values first.

        The largest change stands first.
        """
        every = self.past.headlines if self.past else ()
        every = [line for line in every if line.verdict.word != "failed"]
        if not every:
            return []
        from perfdag.analysis.verdict import worst_word  # a first run needs no history

        word = worst_word([line.verdict for line in every])
        own = [line for line in every if line.verdict.word == word]
        return sorted(own, key=lambda line: (line.verdict.noisy, -abs(line.verdict.effect or 0.0)))


def banner(run: Judged) -> Banner:
    """Return the sentence about a run, and below it the reasons, the trust and the history.

    It makes the strongest claims: what failed, a failed verdict of a benchmark, what became worse,
    a slow node. A run without a claim is better, same, unclear, or the first.
    """
    claims = [*_failure(run), *_worse(run), *_slow(run)]
    findings = claims[:CLAIMS] or [_without_claim(run)]
    strongest = findings[0]
    sentence = ". ".join(finding.sentence for finding in findings)
    reasons = _lost_point(run, failed=strongest.word == "failed")
    for finding in [*findings, *claims[CLAIMS:]]:
        reasons += finding.why
    reasons += [finding.sentence for finding in claims[CLAIMS:]]
    reasons.append(f"trust {run.summary.trust.text}")
    if run.past:
        reasons.append(f"{run.past.counted}, {plural(run.past.runs, 'run')} of history")
    elif run.gate:
        reasons.append("first run: the next one is compared with it")
    commands = [finding.command for finding in findings if finding.command]
    whole = "; ".join([sentence, *_doubts(run)])
    return replace(strongest, sentence=whole, why=reasons, command="".join(commands[:1]))


def _failure(run: Judged) -> Iterator[Banner]:
    """Yield what failed: points, or else verdicts of benchmarks, checks, or lost series."""
    trust = run.summary.trust
    failed = trust.count("failed")
    if failed == len(trust.points):
        yield Banner("failed", "Nothing was measured", command="perfdag doctor")
    elif failed:
        yield Banner("failed", f"{failed} of {len(trust.points)} points failed")
    else:
        texts = _failed_verdicts(run) or _failed_checks(run) or _lost_series(run)
        if texts:
            yield Banner("failed", texts[0], texts[1:3])


def _failed_verdicts(run: Judged) -> list[str]:
    """Return the failed verdicts of benchmarks, the first with their number."""
    worst = [verdict for verdict, _ in worst_of_points(run.summary.verdicts)]
    texts = [f"{verdict.title}: {verdict.text}" for verdict in worst if verdict.word == "failed"]
    if texts and len(worst) > 1:
        texts[0] = f"{len(texts)} of {len(worst)} verdicts failed. {texts[0]}"
    return texts


def _failed_checks(run: Judged) -> list[str]:
    """Return the checks that fail the gate, without those of claims that a run makes itself."""
    broken = run.gate.broken if run.gate else []
    texts = [f"{case.title}: {case.text}" for case in broken if case.group != "slow"]
    if texts:
        more = f", and {len(texts) - 1} more" if texts[1:] else ""
        texts[0] = f"Failed: {texts[0]}{more}"
    return texts


def _lost_series(run: Judged) -> list[str]:
    """Return the headline series that earlier runs had and this one lacks."""
    lines = run.past.headlines if run.past else []
    return [f"{line.label} {line.verdict.text}" for line in lines if line.verdict.word == "failed"]


def _worse(run: Judged) -> Iterator[Banner]:
    """Yield what became worse, and with what."""
    deciding = run.deciding()
    if not run.past or not deciding or deciding[0].verdict.word != "worse":
        return
    step = deciding[0].worsening
    if step is None:
        yield Banner("worse", _change(deciding))
        return
    why = [*run.past.slower_machine, f"changed with it: {step.changed}"[:200]]
    yield Banner("worse", _change(deciding), why, run.past.compare(step.run_before))


def _slow(run: Judged) -> Iterator[Banner]:
    """Yield the slow nodes and links among pairs that nobody accepted, by their largest effect."""
    if not any("pair" in state.words for state in run.summary.points):
        return
    from perfdag.analysis.pairs import matrices, why_slow

    cases = run.gate.cases if run.gate else []
    accepted = {case.name for case in cases if case.group == "slow" and case.state == "ok"}
    parts = [
        (part, matrix)
        for matrix in matrices(run.summary.points)
        for part in matrix.slow
        if matrix.name_of(part) not in accepted
    ]
    if not parts:
        return
    parts.sort(key=lambda pair: (pair[0].kind == "link", -abs(pair[0].effect)))
    sentences: dict[tuple[str, str], str] = {}
    for part, matrix in parts:
        text = f"{part.kind.capitalize()} {part.name} is slow: {matrix.title}"
        sentences.setdefault((part.kind, part.name), f"{text} {100 * part.effect:+.0f} %")
    first, *others = sentences.values()
    more = f", and {len(others)} more" if others else ""
    differs = why_slow(parts[0][0], facts_of_nodes(run.summary.table))
    yield Banner("slow", first + more, [*filter(None, [differs]), *others[:2]])


def _without_claim(run: Judged) -> Banner:
    """Return what a run is in which nothing failed, became worse, or is slow."""
    deciding = run.deciding()
    if not run.past or not deciding:
        return _first_run(run)
    verdict = deciding[0].verdict
    if verdict.word == "same":
        before = f"last {run.past.runs - 1} runs" if run.past.runs > 2 else "run before"
        return Banner("same", f"Same as the {before}")
    if verdict.word == "unclear":
        why = f"{deciding[0].label}: {_size(deciding[0])}"
        return Banner("unclear", run.past.counted, [why])
    return Banner(verdict.word, _change(deciding))


def _first_run(run: Judged) -> Banner:
    """Return what a run without one before it measured: unclear where values are not usable."""
    trust = run.summary.trust
    points = len(trust.points)
    unclear = trust.lost or trust.count("unusable") == points
    claims = ", ".join(islice(_best_values(run.summary.points), FIRST_CLAIMS))
    sentence = claims or f"First run of {plural(points, 'point')}, nothing to compare with"
    return Banner("unclear" if unclear else "", sentence[:1].upper() + sentence[1:])


def _best_values(points: Iterable[PointState]) -> Iterator[str]:
    """Yield the best usable value of each entry: `36 kIOPS at depth 16`, `MPI starts in 0.3 µs`."""
    entries: dict[str, list[tuple[Series, PointState]]] = {}
    for state in points:
        for series in headlines(state):
            if series.better in ("higher", "lower") and not unusable(series):
                entries.setdefault(state.entry, []).append((series, state))
    for entry, pairs in entries.items():
        declared = registry.metrics_of(pairs[0][1].benchmark).values()
        claims = {metric.name: metric.claim for metric in declared if metric.claim}
        name = next((own.metric for own, _ in pairs if own.metric in claims), pairs[0][0].metric)
        series, state = max(
            (pair for pair in pairs if pair[0].metric == name), key=lambda pair: _strength(pair[0])
        )
        plain = series.unit in RATES and not claims
        text = "{value}" if plain else f"{entry} {series.label} {{value}}"
        claim = claims.get(name, text).replace("{value}", short(series.middle, series.display_unit))
        settings = (state.differences | series.coords).items()
        numbers = {key: value for key, value in settings if str(value).isdecimal()}
        words = registry.point_words(state.benchmark, numbers).values()
        yield " at ".join([claim, *list(words)[-1:]])


def _strength(series: Series) -> float:
    """Return by what a value is the best; a share of the shortest sweep is 1 by definition."""
    if series.display_unit == "%":
        return max((x for x in series.coords.values() if isinstance(x, int)), default=0)
    return series.middle if series.better == "higher" else -series.middle


def _change(deciding: Sequence["Line"]) -> str:
    """Return the verdict on the first of these series, and the number of the others."""
    first = deciding[0]
    more = f", and {len(deciding) - 1} more" if deciding[1:] else ""
    return f"{first.verdict.word.capitalize()}: {first.label} {_size(first)}{more}"


def _size(line: "Line") -> str:
    """Return the verdict on a series without its word."""
    return line.text.removeprefix(line.verdict.word).lstrip(": ")


def _lost_point(run: Judged, failed: bool) -> list[str]:
    """Return why a point has no value, or lost samples, where the verdict depends on it."""
    trust = run.summary.trust
    if not failed and not trust.lost:
        return []
    lost = [point for point in run.summary.points if point.why or point.reasons]
    lost.sort(key=lambda point: (point.point not in trust.points, not point.why))
    return [f"{point.title}: {point.why or point.reasons[0]}" for point in lost[:1]]


def _doubts(run: Judged) -> Iterator[str]:
    """Yield what limits the sentence: values that cannot be used, and changed parameters."""
    trust = run.summary.trust
    unusable = trust.count("unusable")
    if unusable:
        yield f"{unusable} of {plural(len(trust.points), 'point')} unusable"
    if trust.lost:
        yield trust.lost
    if run.gate and run.gate.changed:
        yield f"changed: {run.gate.changed}"
