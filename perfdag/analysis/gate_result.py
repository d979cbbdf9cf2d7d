"""What a run has come to: the result of its gate, and the sentence about it on every surface.

A first run has no past, so what compares with it is imported where it is used.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import islice
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal

from perfdag.benchmark import registry
from perfdag.identity import grouped
from perfdag.results.schema import facts_of_nodes
from perfdag.results.summary import PointState, RunSeries, Summary, worst_of_points
from perfdag.store.base import store_option
from perfdag.suite.document import quoted
from perfdag.suite.model import Check
from perfdag.units import RATES, plural, short

if TYPE_CHECKING:
    from perfdag.analysis.history import Acknowledgement, Series
    from perfdag.analysis.verdict import SeriesData
    from perfdag.stats.scale import VerdictKind

Kind = Literal["worse", "recovered", "threshold", "slow", "verdict", "absent", "stale", "acks"]


@dataclass
class Alert:
    """One cause: `keys` are its series, `run` is its start.

    `text` is its message of at most 12 lines: what was seen, what to do, and what accepts it.
    `gates`: it fails the gate. `fresh`: the run before did not have it. `sent`: the webhook
    accepted it.
    """

    kind: Kind
    title: str
    text: str
    keys: list[str]
    run: str
    gates: bool = True
    fresh: bool = True
    sent: bool = False


State = Literal["ok", "failed", "absent", "unsure", "skipped"]


@dataclass(frozen=True)
class CheckResult:
    """The result of one check, as a JUnit test case.

    `state` is ok, failed (fails the gate), absent (no data), unsure (too little history,
    or an inconclusive verdict) or skipped (its samples were skipped). One that fails is in an
    alert with the others of its `cause` (entry, and rule or what is missing). Acknowledgements call
    it `label`, and people `title`; `key` identifies it across runs.
    """

    group: str
    name: str
    title: str
    state: State
    text: str
    key: str = ""
    label: str = ""
    cause: tuple[str, str] | None = None

    @property
    def heading(self) -> str:
        """The title, with the rule of a threshold."""
        rule = self.cause[1] if self.cause and self.group == "threshold" else ""
        return self.title if rule in ("", self.title) else f"{self.title}: {rule}"


@dataclass
class GateResult:
    """The result of checking a run. `store` is its store, and `history` that of earlier runs.

    `report` and `acks_file` are the addresses that its messages name. `series` are those that the
    run measured, with their verdicts, and `canaries` those of its canary. `suspects` has one of
    each point worth measuring again, `rechecks` are the runs that did so. `changed` names the
    parameters that differ from those of the run before. `revision` is that of what the run
    measured.
    `of_base` has what is worse already in a history that is only read, and fails nothing.
    `unclear_fails`: it does not pass where nothing can be said of a series that alerts.
    """

    run: str
    suite: str
    report: str
    cases: list[CheckResult] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)
    series: list["Series"] = field(default_factory=list)
    canaries: list["Series"] = field(default_factory=list)
    suspects: list["Series"] = field(default_factory=list)
    rechecks: list[str] = field(default_factory=list)
    changed: str = ""
    revision: str = ""
    of_base: list[str] = field(default_factory=list)
    unclear_fails: bool = False
    damaged: list[str] = field(default_factory=list)
    runs: int = 0
    store: str = ""
    history: str = ""
    acks_file: str = "acks.yaml"

    @property
    def broken(self) -> list[CheckResult]:
        """The checks that fail the gate with a cause of their own; what is worse has alerts."""
        return [case for case in self.cases if case.cause and case.state in ("failed", "absent")]

    @property
    def slow(self) -> list[CheckResult]:
        """The slow nodes and links that no check forbids."""
        return [case for case in self.cases if case.group == "slow" and case.state == "unsure"]

    @property
    def failed(self) -> bool:
        """Whether the gate fails.

        It does by a regression, a slow node, a verdict of a benchmark, a broken threshold or absent
        data.
        """
        return any(alert.gates for alert in self.alerts) or any(
            result.state in ("failed", "absent") for result in self.cases
        )

    @property
    def unclear(self) -> list[CheckResult]:
        """The series that alert and of which nothing can be said."""
        return [case for case in self.cases if case.group == "change" and case.state == "unsure"]

    @property
    def decision(self) -> str:
        """Whether it `passed`, `FAILED`, or is `UNCLEAR` where that matters."""
        if self.failed:
            return "FAILED"
        return "UNCLEAR" if self.unclear_fails and self.unclear else "passed"

    @property
    def slower_machine(self) -> list[str]:
        """The line that says which canaries became worse, and with them the machine; or none."""
        moved = [
            f"{line.info.metric} {line.verdict.text}"
            for line in self.canaries
            if line.verdict.kind == "worse" and line.info.metric != "steal"
        ]
        return [f"canary  {', '.join(moved)}: the machine itself became slower"] if moved else []

    @property
    def verdict(self) -> "VerdictKind | None":
        """The verdict on the run: the one that matters most of its headline series."""
        from perfdag.analysis.verdict import worst_kind

        return worst_kind([line.verdict.kind for line in self.headlines])

    @property
    def headlines(self) -> Sequence["Series"]:
        """The headline series, or all where the run has none."""
        from perfdag.analysis.history import headline_series

        return headline_series(self.series)

    @property
    def counted(self) -> str:
        """The headline series by verdict, such as `1 worse, 20 same`."""
        from perfdag.analysis.verdict import counts

        return counts([line.verdict.kind for line in self.headlines])

    def data(self) -> dict[str, Any]:
        """Return the gate as data for JSON."""
        from perfdag.analysis.verdict import SeriesData

        return asdict(
            GateData(
                run_id=self.run,
                suite=self.suite,
                passed=not self.failed,
                verdict=self.verdict,
                runs=self.runs,
                report=self.report,
                revision=self.revision,
                cases=self.cases,
                alerts=self.alerts,
                series=[
                    SeriesData(line.info, line.name, line.label, line.verdict, line.verdict.text)
                    for line in self.series
                ],
                suspects=[line.name for line in self.suspects],
                rechecks=self.rechecks,
                damaged=self.damaged,
            )
        )

    def compare(self, before: str) -> str:
        """Return the command that compares this run with one of its history."""
        command = f"perfdag compare {before} {self.run} {store_option(self.history)}"
        return command if self.store == self.history else f"{command} --store-b {quote(self.store)}"

    def accept(self, name: str, run: str) -> str:
        """Return the line with an acknowledgement as acks.yaml has it, for a person to complete."""
        series = quoted(name)
        return f"accept  in {self.acks_file}: {{series: {series}, run: {run}, reason: ...}}"


@dataclass(frozen=True)
class GateData:
    """A gate as `check` prints it with --json."""

    run_id: str
    suite: str
    passed: bool
    verdict: "VerdictKind | None"
    runs: int
    report: str
    revision: str
    cases: Sequence[CheckResult]
    alerts: Sequence[Alert]
    series: Sequence["SeriesData"]
    suspects: Sequence[str]
    rechecks: Sequence[str]
    damaged: Sequence[str]


@dataclass(frozen=True)
class Rules:
    """What a run is checked against: the checks and acknowledgements of its suite.

    `acks_wrong` is the error in a file of acknowledgements that is ignored.
    """

    checks: Sequence[Check] = ()
    accepted: Sequence["Acknowledgement"] = ()
    acks_file: str = "acks.yaml"
    acks_wrong: str = ""


CLAIMS = 2
"""Claims that stand in a sentence: a failure must not hide that a series became worse."""
FIRST_CLAIMS = 3
"""Entries whose best value stands in the sentence of a first run."""


@dataclass(frozen=True)
class Banner:
    """The verdict on a run in one sentence, and below it what decided it.

    `kind` is that of a verdict, `slow` for a slow node or link, or empty for a first run.
    """

    kind: str
    sentence: str
    reasons: Sequence[str] = ()
    command: str = ""


@dataclass(frozen=True)
class RunVerdicts:
    """A run with its summary and the verdicts of its gate."""

    summary: Summary
    gate: GateResult | None

    @property
    def past(self) -> GateResult | None:
        """The gate of a run that has earlier ones to compare with."""
        return self.gate if self.gate and self.gate.runs > 1 else None

    @cached_property
    def histories(self) -> dict[str, "Series"]:
        """The histories of the series by their ids; none for a first run."""
        return {line.info.series_id: line for line in self.past.series} if self.past else {}

    def deciding(self) -> list["Series"]:
        """Return the headline series with a value that matter most, those of usable values first.

        The largest change stands first.
        """
        headlines = self.past.headlines if self.past else ()
        series = [line for line in headlines if line.verdict.kind != "failed"]
        if not series:
            return []
        from perfdag.analysis.verdict import worst_kind  # a first run needs no history

        kind = worst_kind([line.verdict.kind for line in series])
        series = [line for line in series if line.verdict.kind == kind]
        return sorted(
            series, key=lambda line: (line.verdict.noisy, -abs(line.verdict.effect or 0.0))
        )


def banner(run: RunVerdicts) -> Banner:
    """Return the sentence about a run, and below it the reasons, the trust and the history.

    It makes the strongest claims: what failed, a failed verdict of a benchmark, what became worse,
    a slow node. A run without a claim is better, same, unclear, or the first.
    """
    claims = [*_failure(run), *_worse(run), *_slow(run)]
    findings = claims[:CLAIMS] or [_without_claim(run)]
    strongest = findings[0]
    reasons = _lost_point(run, failed=strongest.kind == "failed")
    for finding in [*findings, *claims[CLAIMS:]]:
        reasons += finding.reasons
    reasons += [finding.sentence for finding in claims[CLAIMS:]]
    reasons.append(f"trust {run.summary.trust.text}")
    if run.past:
        reasons.append(f"{run.past.counted}, {plural(run.past.runs, 'run')} of history")
    elif run.gate:
        reasons.append("first run: the next one is compared with it")
    sentence = ". ".join(finding.sentence for finding in findings)
    return Banner(
        kind=strongest.kind,
        sentence="; ".join([sentence, *_doubts(run)]),
        reasons=reasons,
        command=next((finding.command for finding in findings if finding.command), ""),
    )


def _failure(run: RunVerdicts) -> Iterator[Banner]:
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


def _failed_verdicts(run: RunVerdicts) -> list[str]:
    """Return the failed verdicts of benchmarks, the first with their number."""
    worst = [verdict for verdict, _ in worst_of_points(run.summary.verdicts)]
    texts = [f"{verdict.title}: {verdict.text}" for verdict in worst if verdict.kind == "failed"]
    if texts and len(worst) > 1:
        texts[0] = f"{len(texts)} of {len(worst)} verdicts failed. {texts[0]}"
    return texts


def _failed_checks(run: RunVerdicts) -> list[str]:
    """Return the checks that fail the gate, without those of claims that a run makes itself."""
    broken = run.gate.broken if run.gate else []
    return [f"Failed: {case.title}: {case.text}" for case in broken if case.group != "slow"]


def _lost_series(run: RunVerdicts) -> list[str]:
    """Return the headline series that earlier runs had and this one lacks."""
    lines = run.past.headlines if run.past else []
    return [f"{line.label} {line.verdict.text}" for line in lines if line.verdict.kind == "failed"]


def _worse(run: RunVerdicts) -> Iterator[Banner]:
    """Yield what became worse, and with what."""
    deciding = run.deciding()
    if not run.past or not deciding or deciding[0].verdict.kind != "worse":
        return
    step = deciding[0].worsening
    if step is None:
        yield Banner("worse", _change(deciding))
        return
    reasons = [*run.past.slower_machine, f"changed with it: {step.changed}"[:200]]
    yield Banner("worse", _change(deciding), reasons, run.past.compare(step.run_before))


def _slow(run: RunVerdicts) -> Iterator[Banner]:
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
    first, *further = sentences.values()
    if further:
        first += f", and {len(further)} more"
    differs = why_slow(parts[0][0], facts_of_nodes(run.summary.table))
    yield Banner("slow", first, [*filter(None, [differs]), *further[:2]])


def _without_claim(run: RunVerdicts) -> Banner:
    """Return what a run is in which nothing failed, became worse, or is slow."""
    deciding = run.deciding()
    if not run.past or not deciding:
        return _first_run(run)
    verdict = deciding[0].verdict
    if verdict.kind == "same":
        before = f"last {run.past.runs - 1} runs" if run.past.runs > 2 else "run before"
        return Banner("same", f"Same as the {before}")
    if verdict.kind == "unclear":
        reason = f"{deciding[0].label}: {_size(deciding[0])}"
        return Banner("unclear", run.past.counted, [reason])
    return Banner(verdict.kind, _change(deciding))


def _first_run(run: RunVerdicts) -> Banner:
    """Return what a run without one before it measured: unclear where values are not usable."""
    trust = run.summary.trust
    points = len(trust.points)
    unclear = trust.bad_samples or trust.count("unusable") == points
    claims = ", ".join(islice(_best_values(run.summary.points), FIRST_CLAIMS))
    sentence = claims or f"First run of {plural(points, 'point')}, nothing to compare with"
    return Banner("unclear" if unclear else "", sentence[:1].upper() + sentence[1:])


def _best_values(points: Iterable[PointState]) -> Iterator[str]:
    """Yield the best usable value of each entry: `36 kIOPS at depth 16`, `MPI starts in 0.3 µs`."""
    headlines = [(series, state) for state in points for series in state.headlines]
    usable = [
        (series, state)
        for series, state in headlines
        if series.better in ("higher", "lower") and not series.unusable
    ]
    for entry, pairs in grouped(usable, lambda pair: pair[1].entry).items():
        declared = registry.metrics_of(pairs[0][1].benchmark).values()
        claims = {metric.name: metric.claim for metric in declared if metric.claim}
        names = [series.metric for series, _ in pairs]
        name = next((name for name in names if name in claims), names[0])
        of_metric = [pair for pair in pairs if pair[0].metric == name]
        series, state = max(of_metric, key=lambda pair: _strength(pair[0]))
        text = (
            "{value}"
            if series.unit in RATES and not claims
            else f"{entry} {series.label} {{value}}"
        )
        claim = claims.get(name, text).replace("{value}", short(series.middle, series.display_unit))
        settings = (state.differences | series.coords).items()
        numbers = {key: value for key, value in settings if str(value).isdecimal()}
        labels = registry.point_words(state.benchmark, numbers).values()
        yield " at ".join([claim, *list(labels)[-1:]])


def _strength(series: RunSeries) -> float:
    """Return by what a value is the best; a share of the shortest sweep is 1 by definition."""
    if series.display_unit == "%":
        return max((x for x in series.coords.values() if isinstance(x, int)), default=0)
    return series.middle if series.better == "higher" else -series.middle


def _change(deciding: Sequence["Series"]) -> str:
    """Return the verdict on the first of these series, and the number of the others."""
    first = deciding[0]
    text = f"{first.verdict.kind.capitalize()}: {first.label} {_size(first)}"
    return f"{text}, and {len(deciding) - 1} more" if deciding[1:] else text


def _size(line: "Series") -> str:
    """Return the verdict on a series without its kind."""
    return line.text.removeprefix(line.verdict.kind).lstrip(": ")


def _lost_point(run: RunVerdicts, failed: bool) -> list[str]:
    """Return why a point has no value, or lost samples, where the verdict depends on it."""
    trust = run.summary.trust
    if not failed and not trust.bad_samples:
        return []
    points = [point for point in run.summary.points if point.why or point.reasons]
    points.sort(key=lambda point: (point.point not in trust.points, not point.why))
    return [f"{point.title}: {point.why or point.reasons[0]}" for point in points[:1]]


def _doubts(run: RunVerdicts) -> Iterator[str]:
    """Yield what limits the sentence: values that cannot be used, and changed parameters."""
    trust = run.summary.trust
    unusable = trust.count("unusable")
    if unusable:
        yield f"{unusable} of {plural(len(trust.points), 'point')} unusable"
    if trust.bad_samples:
        yield trust.bad_samples
    if run.gate and run.gate.changed:
        yield f"changed: {run.gate.changed}"
