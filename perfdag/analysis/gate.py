"""The gate of a run: thresholds, changes of level and absent data."""

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from perfdag.analysis.alerts import (
    POINTS,
    STORE,
    Alert,
    CheckResult,
    GateResult,
    Record,
    Rules,
    State,
    acknowledged,
    case_alerts,
    mark_known,
    read_records,
    record_key,
    recovered_alerts,
    worse_alerts,
)
from perfdag.analysis.history import (
    Acknowledgement,
    Series,
    full_name,
    series_names,
    series_of,
    suspects,
)
from perfdag.analysis.medians import (
    COLUMNS,
    RunMedians,
    SeriesInfo,
    medians_of_rows,
    read_run_medians,
    series_labels,
)
from perfdag.analysis.selection import SelectionError, baseline
from perfdag.analysis.verdict import Tuning, covers
from perfdag.plan.plan import Options
from perfdag.results.runs import PARTIAL, load_plan
from perfdag.results.samples import stored_runs
from perfdag.results.schema import explain_unreadable, load_rows
from perfdag.results.summary import OwnVerdict, own_verdicts
from perfdag.stats.levels import Word
from perfdag.stats.robust import TooFewSamplesError, median, percentile
from perfdag.stats.scales import Array
from perfdag.store.base import NotStoredError, Store, StoreError
from perfdag.suite.document import BadDocument, Document, Problem, parse_document, read_document
from perfdag.suite.model import Check, checks_of, setting
from perfdag.units import plural, short

ACKS = "acks.yaml"


class Ack(BaseModel):
    """From `run` on, the level of these series is the baseline, and they raise no alert."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    series: str = Field(
        min_length=1, description="series as alerts name it, a glob, or a series id"
    )
    run: str = Field(pattern=r"^\d{8}T\d{6}Z", description="first run of the accepted level")
    reason: str = Field(min_length=1)
    until: Annotated[date | None, BeforeValidator(lambda value: value or None)] = Field(
        None, description="last day that it holds"
    )


class Acks(BaseModel):
    """The content of acks.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    acks: list[Ack] = []


def read_acks(file: str | None, store: Store) -> tuple[list[Acknowledgement], str]:
    """Return the acknowledgements and the name of their file. Raises BadDocument, StoreError.

    The file is `file`, else ./acks.yaml, else acks.yaml of the store.
    """
    if file is not None or Path(ACKS).exists():
        return _accepted(read_document(file or ACKS)), file or ACKS
    accepted, url = stored_acks(store)
    return accepted, url if accepted else ACKS


def stored_acks(store: Store) -> tuple[list[Acknowledgement], str]:
    """Return the acknowledgements of the store and their URL. Raises BadDocument, StoreError."""
    url = store.url(ACKS)
    try:
        return _accepted(parse_document(store.get(ACKS).decode(errors="replace"), url)), url
    except NotStoredError:
        return [], url


def unattended_rules(store: Store, checks: list[Check]) -> Rules:
    """Return the rules for a scheduled run. Raises StoreError.

    Unreadable acknowledgements of the store count as none. The error becomes an alert of the gate.
    """
    try:
        accepted, file = stored_acks(store)
    except BadDocument as error:
        return Rules(checks, [], store.url(ACKS), acks_wrong=str(error))
    return Rules(checks, accepted, file)


def put_acks(store: Store, file: str) -> list[Acknowledgement]:
    """Validate a file of acknowledgements and store it. Raises BadDocument, StoreError."""
    document = read_document(file)
    accepted = _accepted(document)
    store.put(ACKS, document.text.encode())
    return accepted


def _accepted(document: Document) -> list[Acknowledgement]:
    data = document.data if document.data is not None else {}
    content = {"acks": data} if isinstance(data, list) else data
    try:
        model = Acks.model_validate(content)
    except ValidationError as error:
        raise BadDocument(
            [_problem(document, problem, isinstance(data, list)) for problem in error.errors()]
        ) from None
    return [
        Acknowledgement(a.series, a.run, a.reason, a.until.isoformat() if a.until else "")
        for a in model.acks
    ]


def _problem(document: Document, error: Mapping[str, Any], bare: bool) -> Problem:
    path = tuple(error["loc"])[1 if bare else 0 :]
    text = (
        "is required"
        if error["type"] == "missing"
        else str(error["msg"]).removeprefix("Value error, ")
    )
    if error["type"] == "extra_forbidden":
        text = "unknown key; allowed: series, run, reason, until"
    return document.problem(path, text)


def read_checks(store: Store, run_id: str) -> list[Check]:
    """Return the checks of the suite in a run's plan; none without a plan. Raises BadDocument."""
    try:
        plan = load_plan(store, run_id)
    except StoreError:
        return []
    return checks_of(plan.suite_text)


OPERATORS = {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal}


@dataclass(frozen=True)
class ThresholdResult:
    """The result of a rule for one series. `info` is None where the run has no matching series."""

    rule: Check
    info: SeriesInfo | None
    name: str
    state: Literal["ok", "failed", "absent", "unsure", "skipped"]
    text: str

    @property
    def key(self) -> str:
        """The rule and the series, which identify the result across runs."""
        return f"{self.rule.text()} {self.info.series_id if self.info else ''}".strip()


@dataclass(frozen=True)
class References:
    """What ratios refer to: the good levels of series before the run, and named baselines.

    `history` ends with the run, `series` by id are judged with it. `damaged` collects files that
    were left out.
    """

    store: Store
    history: RunMedians
    series: Mapping[str, Series]
    damaged: list[str]


def judge_thresholds(
    past: References, table: pa.Table, rules: Sequence[Check]
) -> Iterator[ThresholdResult]:
    """Yield the result of each threshold for each series that it covers. Raises StoreError."""
    measured = medians_of_rows(table, past.history.suite)
    # Changes and absences of the same series have the same names.
    labels = series_labels([*past.history.series, *measured.series])
    for rule in rules:
        if rule.op is None:
            continue
        covered = [(i, info) for i, info in enumerate(measured.series) if covers(rule, info)]
        if not covered:
            why = _skipped(table, rule)
            state: Literal["skipped", "absent", "unsure"] = "skipped" if why else "absent"
            text = why or f"the run has no value of it{_values_of(rule, measured.series)}"
            yield ThresholdResult(rule, None, rule.text(), state, text)
            continue
        try:
            reference = _reference(past, rule)
        except SelectionError as error:
            yield from (
                ThresholdResult(rule, info, full_name(info, labels), "absent", str(error))
                for _, info in covered
            )
            continue
        for i, info in covered:
            name = full_name(info, labels)
            try:
                limit = _limit(past, reference, rule, info)
                value = _judged_value(table, rule, info, float(measured.value[i, 0]))
            except (TooFewSamplesError, SelectionError) as error:
                # A first run has nothing behind it: the rule will judge the next one.
                first = rule.ratio and not rule.baseline and len(past.history.runs) == 1
                state = "unsure" if first else "absent"
                yield ThresholdResult(rule, info, name, state, str(error))
                continue
            holds = bool(OPERATORS[rule.op](value, limit))
            what = f"p{rule.percentile:g} " if rule.percentile else ""
            word = "holds" if holds else "breaks"
            measured_text, limit_text = (short(v, info.unit, info.metric) for v in (value, limit))
            text = f"{what}{measured_text} {word} {rule.op} {limit_text}"
            yield ThresholdResult(rule, info, name, "ok" if holds else "failed", text)


def _values_of(rule: Check, series: Sequence[SeriesInfo]) -> str:
    """Return the values that the series of a rule have of the names in its `where`."""
    anywhere = rule.model_copy(update={"where": {}})
    covered = [info.mappings for info in series if covers(anywhere, info)]
    parts = []
    for name in rule.where if covered else ():
        values = {value: None for kinds in covered if (value := setting(name, *kinds)) is not None}
        has = ", ".join(map(str, values)) or "no series has it"
        parts.append(f"{name}: {has}")
    return f"; there are {'; '.join(parts)}" if parts else ""


def _skipped(table: pa.Table, rule: Check) -> str | None:
    """Return why all samples of the entries of a rule were skipped, or None."""
    rows = [
        row
        for row in table.select(["entry", "status", "error"]).to_pylist()
        if fnmatch.fnmatchcase(row["entry"], rule.entry or "")
    ]
    skipped = rows and all(row["status"] == "skipped" for row in rows)
    return str(rows[0]["error"]) if skipped else None


def _judged_value(table: pa.Table, rule: Check, info: SeriesInfo, middle: float) -> float:
    """Return the median of the run, or a percentile of its values. Raises TooFewSamplesError.

    A percentile uses the values of pods or devices where the metric has them.
    """
    if rule.percentile is None:
        return middle
    same = pc.and_(pc.equal(table["point"], info.point), pc.equal(table["metric"], info.metric))
    same = pc.and_(same, pc.equal(pc.fill_null(table["coords"], ""), info.coords))
    ok = pc.and_(pc.equal(table["status"], "ok"), pc.equal(table["phase"], "measure"))
    rows = table.filter(pc.fill_null(pc.and_(same, ok), False))
    of_stat = pc.equal(rows["stat"], info.stat)
    # A pod or device has one value, whatever statistic of them the series is.
    has_subject = pc.is_valid(rows["subject"])
    wanted = (
        pc.and_(has_subject, of_stat),
        pc.and_(has_subject, pc.equal(rows["stat"], "value")),
        of_stat,
    )
    chosen = next(
        (matching for mask in wanted if (matching := rows.filter(mask)).num_rows), rows.slice(0, 0)
    )
    values: Array = chosen["value"].to_numpy().astype(np.float64)
    return percentile(values, rule.percentile / 100).value


def _reference(past: References, rule: Check) -> RunMedians | None:
    """Return the run medians of a rule's baseline, or None without one. Raises SelectionError."""
    if rule.baseline is None:
        return None
    chosen = baseline(past.store, rule.baseline, past.history.suite)
    damaged: list[str] = []
    rows = load_rows(
        past.store,
        suites=[chosen.suite],
        runs=list(chosen.runs),
        columns=list(COLUMNS),
        damaged=damaged,
    )
    past.damaged.extend(key for key in damaged if key not in past.damaged)
    if not rows.num_rows:
        names = f": {', '.join(damaged)}" if damaged else ""
        raise SelectionError(f"baseline {rule.baseline} has no readable rows{names}")
    return medians_of_rows(rows, chosen.suite)


def _limit(past: References, reference: RunMedians | None, rule: Check, info: SeriesInfo) -> float:
    """Return the threshold in the unit of the metric.

    Raises SelectionError where there is no reference value.
    """
    if rule.value is not None:
        return rule.value
    ratio = rule.ratio or 1.0
    if reference is not None:
        positions = [i for i, series in enumerate(reference.series) if series.key == info.key]
        if not positions:
            raise SelectionError(f"baseline {rule.baseline} has no value of it")
        return ratio * median(reference.value[positions[0]])
    line = past.series.get(info.series_id)
    level = line.good_before(len(past.history.runs) - 1) if line else None
    if level is None:
        raise SelectionError("no earlier run has a value of it")
    return ratio * level


PRESENT_OF, PRESENT = 5, 3
"""A headline series is expected if 3 of the 5 runs up to its newest one had it ..."""
MISSED_FOR = 30
"""... and one of so many earlier runs did. So a loss is told until it is acknowledged or old."""


@dataclass(frozen=True)
class AbsentSeries:
    """An expected series that a run lacks, and whether its absence is acknowledged."""

    info: SeriesInfo
    accepted: bool


def find_absent(
    gate: GateResult,
    store: Store,
    history: RunMedians,
    tuning: Tuning,
    rules: Rules,
) -> list[AbsentSeries]:
    """Return the headline series that earlier runs had and this one lacks. Add an alert per entry.

    Only earlier runs with the same trigger count, and what `--only` left out is not absent. The
    other points without a value fail the gate too, unless their entry is optional.
    """
    last = history.runs[-1]
    if last.trigger == "recheck":
        return []
    earlier = enumerate(history.runs[:-1])
    same = [i for i, run in earlier if run.trigger == last.trigger][-MISSED_FOR:]
    finite = np.isfinite(history.value)
    # Without the span: a series is not absent if its hosts were on other nodes this time.
    measured = {info.key[:-1] for i, info in enumerate(history.series) if finite[i, -1]}
    absent: list[AbsentSeries] = []
    for i, name in enumerate(series_names(history) if same else ()):
        info = history.series[i]
        left_out = last.trigger == "part" and info.point not in last.points
        if info.key[:-1] in measured or left_out or not tuning.pages(info):
            continue
        if not _expected(finite[i], same):
            continue
        ok, bad, error, _ = last.points.get(info.point, (0, 0, "", ""))
        if ok:
            why = "its samples are ok, but have no value of it"
        else:
            why = _no_value(bad, error) if bad else "its point was not measured"
        cause = info.entry, "series"
        case = _add_case(gate, rules, "present", name, "absent", why, info.series_id, cause)
        absent.append(AbsentSeries(info, case.state == "ok"))
    told = {series.info.point for series in absent}
    idle = [point for point, state in last.points.items() if not state[0] and point not in told]
    if idle:
        _add_idle(gate, store, last.points, idle, rules)
    return absent


def _add_case(
    gate: GateResult,
    rules: Rules,
    group: str,
    name: str,
    state: State,
    text: str,
    key: str,
    cause: tuple[str, str] | None,
    label: str = "",
) -> CheckResult:
    """Add a case, which passes where it is acknowledged."""
    label = label or name
    if state in ("failed", "absent") and acknowledged(rules, gate.run, label, key):
        state, text = "ok", f"{text} (acknowledged)"
    gate.cases.append(CheckResult(group, name, state, text, key, label, cause))
    return gate.cases[-1]


def _no_value(samples: int, error: str) -> str:
    return f"none of {plural(samples, 'sample')} is ok; {error}"


def _add_idle(
    gate: GateResult,
    store: Store,
    states: Mapping[str, tuple[int, int, str, str]],
    idle: Sequence[str],
    rules: Rules,
) -> None:
    """Add a case for each of these points, none of whose samples is ok.

    Optional ones are skipped where the run measured another point.
    """
    measured = any(state[0] for point, state in states.items() if point != "canary")
    try:
        planned = {point.id: point for point in load_plan(store, gate.run).points}
    except StoreError:  # the plan was removed, or is damaged
        planned = {}
    for key in idle:
        _, samples, error, entry = states[key]
        point, why = planned.get(key), _no_value(samples, error)
        name = f"{entry} {point.label if point else key}".strip()
        if point and point.optional and measured:
            gate.cases.append(CheckResult("present", name, "skipped", f"{why} (optional)"))
        else:
            _add_case(gate, rules, "present", name, "absent", why, key, (entry, POINTS))


def _expected(finite: NDArray[np.bool_], same: Sequence[int]) -> bool:
    """Return whether the runs `same` had a series often enough, up to the newest that had it.

    So it is missed until it is back or acknowledged, or until none of these runs had it.
    """
    present = [at for at, k in enumerate(same) if finite[k]]
    last = same[: present[-1] + 1][-PRESENT_OF:] if present else []
    return bool(last) and bool(finite[last].sum() >= min(PRESENT, len(last)))


def explaining_absences(
    history: RunMedians, rule: Check, absent: Sequence[AbsentSeries]
) -> list[AbsentSeries]:
    """Return the absent series that explain why a rule has no data: they are told already.

    They are series that it covers, or those of its entries where no series of them is left.
    """
    finite = np.isfinite(history.value[:, -1])
    about = {info.entry for info in history.series if covers(rule, info)}
    left = {info.entry for i, info in enumerate(history.series) if finite[i]}
    gone = about if not about & left else set[str]()
    return [lost for lost in absent if covers(rule, lost.info) or lost.info.entry in gone]


def check(store: Store, suite: str, run_id: str, rules: Rules) -> GateResult:
    """Judge a run with its re-measurements against its history and the checks of its suite.

    A re-measurement stands for the run that it repeats. Thresholds and presence come from that run
    alone, because a re-measurement has suspicious points only. Raises StoreError, SelectionError.
    """
    options = _options(store, run_id)
    if options.repeats:
        run_id = options.repeats
        options = _options(store, run_id)
    stored = {run for run, _ in stored_runs(store, suite)}
    rechecks = [run for run in options.rechecks if run in stored]
    everything = read_run_medians(store, suite)
    history = history_until(everything, run_id)
    night = history_until(everything, max([run_id, *rechecks]))
    gate = GateResult(
        run_id,
        suite,
        store.url(f"runs/{run_id}/report.html"),
        damaged=list(history.damaged),
        runs=sum(run.trigger not in PARTIAL for run in night.runs),
        rechecks=rechecks,
        store=store.root,
        acks_file=rules.acks_file,
    )
    table = load_rows(
        store, suites=[suite], runs=[run_id], columns=[*COLUMNS, "note"], damaged=gate.damaged
    )
    if not table.num_rows:
        why = [explain_unreadable(store, key) for key in gate.damaged[-1:]]
        raise SelectionError("; ".join([f"run {run_id} has no readable rows", *why]))
    tuning = Tuning(rules.checks, history.runs[-1].cluster)
    rules = replace(rules, checks=tuning.checks)
    series = series_of(night, tuning, rules.accepted)
    points = history.runs[-1].points
    gate.series = [line for line in series if line.info.point in points]
    records = read_records(store, suite)
    previous = _previous(history, records)
    _levels(gate, night, tuning, previous)
    _own_verdicts(gate, own_verdicts(table), rules)
    absent = find_absent(gate, store, history, tuning, rules)
    by_id = {line.info.series_id: line for line in series}
    references = References(store, history, by_id, gate.damaged)
    _thresholds(gate, references, table, rules, absent)
    gate.alerts += case_alerts(gate)
    if rules.acks_wrong:
        gate.alerts.append(_unreadable_acks(gate, rules))
    if not rechecks:
        gate.suspects = suspects(tuning, gate.series)
    mark_known(gate.alerts, previous, records.get(run_id))
    return gate


def _options(store: Store, run_id: str) -> Options:
    """Return the options of a run's plan, or none where the plan was removed."""
    try:
        return load_plan(store, run_id).options
    except StoreError:
        return Options()


def _previous(history: RunMedians, records: Mapping[str, Record]) -> Record | None:
    """Return the newest record of an earlier run of the same cluster."""
    earlier = [run.run_id for run in history.runs[:-1] if run.run_id in records]
    return records[earlier[-1]] if earlier else None


def history_until(history: RunMedians, run_id: str) -> RunMedians:
    """Return the history of a run's cluster up to the run, as it was known then."""
    cluster = history.cluster_of(run_id)
    return history.select(lambda run: run.run_id <= run_id and run.cluster == cluster)


def store_record(store: Store, gate: GateResult) -> None:
    """Store the alerts of a run, so that none is sent twice. Raises StoreError."""
    store.put(record_key(gate.suite, gate.run), Record(gate.run, gate.alerts, gate.failed).dump())


def _levels(
    gate: GateResult,
    medians: RunMedians,
    tuning: Tuning,
    previous: Record | None,
) -> None:
    """Add the alerts of series that are worse or good again, and the answer about each series."""
    paging = [line for line in gate.series if tuning.pages(line.info)]
    canaries = series_of(medians, tuning, canaries=True)
    gate.alerts += worse_alerts(gate.suite, paging, canaries, gate.run)
    gate.alerts += recovered_alerts(gate.suite, paging, previous)
    states: dict[Word, State]
    states = {"same": "ok", "better": "ok", "unclear": "unsure", "worse": "failed"}
    for line in paging:
        if line.answer.word in states:  # what was not measured is an absence
            state = states[line.answer.word]
            if state == "failed" and line.left is None:
                state = "unsure"  # two runs alone fail no gate
            gate.cases.append(CheckResult("change", line.name, state, line.answer.text))


def _own_verdicts(gate: GateResult, verdicts: Sequence[OwnVerdict], rules: Rules) -> None:
    """Add the verdicts of the benchmarks themselves."""
    states: dict[str, State] = {"passed": "ok", "failed": "failed", "inconclusive": "unsure"}
    for verdict in verdicts:
        state, text = states[verdict.word], f"{verdict.word}: {verdict.note}"
        cause = verdict.entry, ""
        _add_case(gate, rules, "verdict", verdict.name, state, text, verdict.name, cause)


def _thresholds(
    gate: GateResult,
    past: References,
    table: pa.Table,
    rules: Rules,
    absent: Sequence[AbsentSeries],
) -> None:
    """Check thresholds. A rule without data is told with the absent series that explain it."""
    for outcome in judge_thresholds(past, table, rules.checks):
        info, rule = outcome.info, outcome.rule
        losses = [] if info else explaining_absences(past.history, rule, absent)
        name = f"{outcome.name}: {rule.text()}" if info else outcome.name
        state, text, bad = outcome.state, outcome.text, outcome.state in ("failed", "absent")
        key = info.series_id if info else outcome.name
        accepted = acknowledged(rules, gate.run, outcome.name, key)
        if bad and (accepted or (losses and all(lost.accepted for lost in losses))):
            state, text = "ok", f"{text} (acknowledged)"
        cause = None if losses else (info.entry if info else rule.entry or "", rule.text())
        gate.cases.append(
            CheckResult("threshold", name, state, text, outcome.key, outcome.name, cause)
        )


def _unreadable_acks(gate: GateResult, rules: Rules) -> Alert:
    """Return the alert that the acknowledgements are ignored. It does not fail the gate."""
    title = f"ACKS {gate.suite}: {rules.acks_file} is unreadable and accepts nothing"
    errors = [f"what    {line}"[:300] for line in rules.acks_wrong.splitlines()[:6]]
    do = f"correct the file, then: perfdag acks set FILE --store {STORE}"
    text = "\n".join([title, *errors])
    return Alert("acks", title, text, [rules.acks_wrong], gate.run, do, gates=False)
