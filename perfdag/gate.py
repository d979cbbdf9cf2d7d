"""The gate of a daily run: thresholds, changes of level, absent data; what of it is new, and what fails the gate."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from perfdag import results
from perfdag.alerts import Alert, Kind, Record, causes, mark_known, read_records, record_key, regression
from perfdag.checks import Check, Tuning
from perfdag.collect import load_plan
from perfdag.findings import Accepted, Finding, Suspicion, day_of, find, names, suspicions
from perfdag.missed import newest, stale
from perfdag.parts import stored_parts
from perfdag.rollup import trends
from perfdag.selection import SelectionError
from perfdag.stats.noise import INFORMATIONAL
from perfdag.store import Store, StoreError
from perfdag.thresholds import Past, judge
from perfdag.trends import COLUMNS, SeriesInfo, Trends
from perfdag.units import short

OWN_GATES = "gates_failed"
"""The metric of a benchmark that has gates among its params: 1 for one that was breached or had no data (coords: gate)."""
PRESENT_OF, PRESENT = 5, 3
"""A headline series that at least 3 of the last 5 runs had is expected."""


@dataclass(frozen=True)
class Case:
    """One thing that was checked, as a JUnit test case: `state` ok, failed (a gate), absent (its data), unsure or skipped (as its samples)."""

    group: str
    name: str
    state: Literal["ok", "failed", "absent", "unsure", "skipped"]
    text: str


@dataclass
class Gate:
    """What a run was found to be. `confirm` names points worth measuring again the same night, `confirmed` the runs that did.

    `store` is its address.
    """

    run: str
    suite: str
    report: str
    cases: list[Case] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    confirm: list[Suspicion] = field(default_factory=list)
    confirmed: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    runs: int = 0
    store: str = ""

    @property
    def failed(self) -> bool:
        """Whether the gate is shut: a regression nobody accepted, a threshold, or absent data."""
        return any(each.gates for each in self.alerts) or any(each.state in ("failed", "absent") for each in self.cases)


Lost = tuple[str, str, str]
"""What an alert about several series says of each: its name, the key it is known by, what is wrong."""


@dataclass(frozen=True)
class Gone:
    """A series that is expected and absent, and whether that is acknowledged."""

    info: SeriesInfo
    accepted: bool


@dataclass(frozen=True)
class Rules:
    """What a run is held against: the suite's checks, acknowledgements, and how old the newest run may be (hours).

    `acks_wrong`: what is wrong with a file of acknowledgements that is not used.
    """

    checks: Sequence[Check] = ()
    accepted: Sequence[Accepted] = ()
    acks_file: str = "acks.yaml"
    max_age: float | None = None
    acks_wrong: str = ""


def check(store: Store, suite: str, run_id: str, rules: Rules, now: datetime | None = None, report: str | None = None) -> Gate:
    """Hold a run against its suite's checks and its past; messages link to `report`, by default the run's own.

    Raises StoreError, SelectionError where it has no rows.
    """
    everything = trends(store, suite)
    history = until(everything, run_id)
    gate = Gate(run_id, suite, report or store.url(f"runs/{run_id}/report.html"), damaged=list(history.damaged), runs=len(history.runs))
    gate.store = store.root
    table = results.load(store, suites=[suite], runs=[run_id], columns=list(COLUMNS), damaged=gate.damaged)
    if not table.num_rows:
        raise SelectionError(f"run {run_id} has no readable rows{': ' + ', '.join(gate.damaged) if gate.damaged else ''}")
    tuning = Tuning(rules.checks)
    gate.findings = find(history, tuning, rules.accepted)
    _regressions(gate, history, tuning, rules)
    _own_gates(gate, table, rules)
    records = read_records(store, suite)
    gone = _absent(gate, store, history, tuning, rules, records)
    _thresholds(gate, Past(store, history, rules.accepted, gate.damaged), table, rules, gone)
    if rules.max_age is not None:
        last = newest(everything.runs, history.runs[-1].cluster)
        old = stale(suite, last, rules.max_age, now or datetime.now(UTC)) if last else None
        if old:
            gate.cases.append(Case("present", "newest run", "absent", old.title))
            gate.alerts.append(old)
    if rules.acks_wrong:
        gate.alerts.append(_unread(gate, rules))
    gate.confirm = suspicions(history, tuning, rules.accepted)
    mark_known(history, run_id, gate.alerts, records)
    return gate


def _resume(store: Store, run_id: str) -> tuple[str, set[str]]:
    """Return the command that measures what a run lacks, where it was measured, and the points it has samples of to measure.

    A sample that failed is stored, and not measured again. No command where the run's plan is gone or cannot be read.
    """
    try:
        plan = load_plan(store, run_id)
    except StoreError:
        return "", set()
    stored = stored_parts(store, run_id)
    samples = [(plan.points[index], repetition, plan.key(at)) for at, (index, repetition) in enumerate(plan.order)]
    left = {point.id for point, repetition, key in samples if 0 < repetition <= point.repetitions and key not in stored}
    if plan.where:
        return f"perfdag submit --resume {run_id} --namespace {plan.where.get('namespace', 'perfdag')}", left
    return f"perfdag run --resume {run_id} --store {shlex.quote(store.root)}", left


def own_gates(table: pa.Table) -> list[Case]:
    """The gates that benchmarks of a run held by themselves: a breach fails the run's gate with no rule of the suite."""
    return [case for _, case in _cases_of_own(table)]


def _cases_of_own(table: pa.Table) -> list[tuple[str, Case]]:
    rows = table.filter(pc.fill_null(pc.equal(table["metric"], OWN_GATES), False))
    worst: dict[tuple[str, str, str], float] = {}
    for row in rows.select(["entry", "coords", "value"]).to_pylist():
        coords = orjson.loads(row["coords"] or "{}")
        name = ", ".join(f"{key}={value}" for key, value in sorted(coords.items()) if key != "gate")
        key = row["entry"], f"{row['entry']} {name}".strip(), str(coords.get("gate", ""))
        worst[key] = max(worst.get(key, 0.0), row["value"] if row["value"] is not None else 1.0)
    return [
        (entry, Case("gate", f"{where}: {said}", "failed" if value else "ok", "was breached or had no data" if value else "held"))
        for (entry, where, said), value in worst.items()
    ]


def until(history: Trends, run_id: str) -> Trends:
    """Return the history up to a run, of that run's cluster: what was known that night, also when it is looked at later."""
    cluster = next((run.cluster for run in history.runs if run.run_id == run_id), None)
    return history.keep([i for i, run in enumerate(history.runs) if run.run_id <= run_id and run.cluster == cluster])


def remember(store: Store, gate: Gate) -> None:
    """Store what was found, so that nobody is told twice. Raises StoreError."""
    store.put(record_key(gate.suite, gate.run), Record(gate.run, gate.alerts).dump())


def _regressions(gate: Gate, history: Trends, tuning: Tuning, rules: Rules) -> None:
    # A series whose runs differ by more than 10 % informs and pages nobody until its noise is fixed.
    paging = [each for each in gate.findings if tuning.pages(each.info) and each.change.noise <= INFORMATIONAL]
    others = [each for each in gate.findings if each.word == "worse" and not tuning.pages(each.info)]
    links = {"report": gate.report, "run": gate.run, "acks": rules.acks_file, "store": gate.store}
    groups = causes(paging, len(history.runs))
    for group in groups:
        gate.alerts.append(regression(history, group, others, True, links))
    told = {id(each) for group in groups for each in group}
    kinds = {key: alert.kind for alert in gate.alerts for key in alert.keys}
    for i, name in enumerate(names(history)):
        info = history.series[i]
        if info.canary or not tuning.pages(info) or not np.isfinite(history.value[i, -1]):
            continue
        mine = [each for each in paging if each.info.series_id == info.series_id]
        open_ones = [each for each in mine if id(each) in told]
        if open_ones:
            c = open_ones[-1]
            state: Literal["ok", "failed"] = "failed" if kinds[info.series_id] == "regression" else "ok"
            gate.cases.append(
                Case("change", name, state, f"{100 * c.change.effect:+.1f} % since {day_of(c.run)} ({kinds[info.series_id]})")
            )
            continue
        n = int(np.isfinite(history.value[i]).sum())
        enough = n >= 11
        text = (
            f"{short(history.value[i, -1], info.unit)}; no change for the worse in its last 7 runs"
            if enough
            else f"{n} of the 11 runs that change points need"
        )
        gate.cases.append(Case("change", name, "ok" if enough else "unsure", text))


def _own_gates(gate: Gate, table: pa.Table, rules: Rules) -> None:
    """The gates that benchmarks held by themselves: one alert an entry for those that were breached or had no data."""
    broken: dict[str, list[Lost]] = {}
    for entry, case in _cases_of_own(table):
        if case.state == "failed" and _accepted(rules, gate.run, case.name, case.name):
            gate.cases.append(Case(case.group, case.name, "ok", f"{case.text} (acknowledged)"))
            continue
        gate.cases.append(case)
        if case.state == "failed":
            broken.setdefault(entry, []).append((case.name, case.name, case.text))
    for entry, lost in broken.items():
        _alert(gate, rules, "gate", f"GATE {gate.suite}/{entry}: {len(lost)} of its own gates", lost, gate.report)


def _thresholds(gate: Gate, past: Past, table: pa.Table, rules: Rules, gone: Sequence[Gone]) -> None:
    """Hold the run against thresholds: one alert for each rule and entry, and none for data whose absence is told already."""
    broken: dict[tuple[str, str], list[Lost]] = {}
    for each in judge(past, table, rules.checks):
        told = _why_no_data(past.history, each.rule, gone) if each.info is None else []
        name = f"{each.name}: {each.rule.words()}" if each.info else each.name
        bad = each.state in ("failed", "absent")
        accepted = _accepted(rules, gate.run, each.name, each.info.series_id if each.info else each.name)
        if bad and (accepted or (told and all(lost.accepted for lost in told))):
            gate.cases.append(Case("threshold", name, "ok", f"{each.text} (acknowledged)"))
            continue
        gate.cases.append(Case("threshold", name, each.state, each.text))
        if bad and not told:
            entry = each.info.entry if each.info else each.rule.entry or ""
            broken.setdefault((each.rule.words(), entry), []).append((each.name, each.key, each.text))
    for (words, entry), lost in broken.items():
        about = lost[0][0] if len(lost) == 1 else f"{entry}: {len(lost)} series"
        _alert(gate, rules, "threshold", f"THRESHOLD {gate.suite}/{about}", lost, gate.report, rule=words)


def _why_no_data(history: Trends, rule: Check, gone: Sequence[Gone]) -> list[Gone]:
    """Return the losses that say why a rule has no data, none where one of the series that it was about is lost untold.

    The loss of a series tells of it, and of its whole entry where nothing of that is left. A rule is about what it covers and one of
    the last PRESENT_OF runs had, up to the newest that had any of it: an entry removed before is forgotten, what went with the rest
    is not, however long ago that was.
    """
    finite = np.isfinite(history.value)
    here = {info.entry for i, info in enumerate(history.series) if finite[i, -1]}
    covered = [i for i, info in enumerate(history.series) if rule.covers(info)]
    vanished = {history.series[i].entry for i in covered} - here
    told = [lost for lost in gone if rule.covers(lost.info) or lost.info.entry in vanished]
    keys, entries = {lost.info.key for lost in told}, {lost.info.entry for lost in told} & vanished
    same = _alike(history)
    had = np.flatnonzero(finite[np.ix_(covered, same)].any(axis=0))
    last = same[: had[-1] + 1][-PRESENT_OF:] if had.size else []
    about = [history.series[i] for i in covered if finite[i, last].any()]
    return told if all(info.key in keys or info.entry in entries for info in about) else []


def _alert(gate: Gate, rules: Rules, kind: Kind, title: str, lost: Sequence[Lost], do: str, rule: str = "") -> None:
    """Word one alert about several series, the first six by name."""
    shown = [f"{name}: {why}"[:300] for name, _, why in lost[:6]] + ([f"and {len(lost) - 6} more"] if len(lost) > 6 else [])
    lines = [title, *(f"what    {each}" for each in shown), *([f"rule    {rule}"] if rule else []), f"do      {do}"]
    lines.append(f"accept  in {rules.acks_file}: {{series: '{lost[0][0]}', run: {gate.run}, reason: ...}}")
    gate.alerts.append(Alert(kind, title, "\n".join(lines), [key for _, key, _ in lost], gate.run))


def _accepted(rules: Rules, run: str, name: str, series_id: str) -> bool:
    return any(each.holds(name, series_id, day_of(run)) and each.run <= run for each in rules.accepted)


def _absent(gate: Gate, store: Store, history: Trends, tuning: Tuning, rules: Rules, records: dict[str, Record]) -> list[Gone]:
    """Name headline series that earlier runs of the same trigger had and this one lacks, and return them: one alert an entry.

    Runs that confirm, and those that somebody started for a part of a suite, are no measure of a scheduled one. A series that was
    missed once is missed until it is back or acknowledged, however long ago it was last seen.
    """
    same = _alike(history)
    if not same or history.runs[-1].trigger == "confirm":
        return []
    alike = same[-PRESENT_OF:]
    missed = _missed(history, same, records)
    finite = np.isfinite(history.value)
    tonight = {info.key for i, info in enumerate(history.series) if finite[i, -1]}
    gone: list[Gone] = []
    entries: dict[str, list[Lost]] = {}
    for i, name in enumerate(names(history)):
        info = history.series[i]
        before = finite[i, alike]
        expected = before.sum() >= min(PRESENT, before.size) or (info.series_id in missed and not finite[i, missed[info.series_id] :].any())
        if info.key in tonight or not tuning.pages(info) or not expected:
            continue
        ok, bad, error, _ = history.runs[-1].points.get(info.point, (0, 0, "", ""))
        why = f"all {bad} samples failed, {error}" if bad and not ok else "not in the run any more" if not ok else "the samples lack it"
        gone.append(Gone(info, _accepted(rules, gate.run, name, info.series_id)))
        if gone[-1].accepted:
            gate.cases.append(Case("present", name, "ok", f"{why} (acknowledged)"))
            continue
        entries.setdefault(info.entry, []).append((name, info.series_id, why))
        gate.cases.append(Case("present", name, "absent", why))
    resume, left = _resume(store, gate.run) if entries else ("", set())
    for entry, lost in entries.items():
        title = f"ABSENT {gate.suite}/{entry}: {len(lost)} series"
        helps = any(each.info.entry == entry and each.info.point in left and not each.accepted for each in gone)
        _alert(gate, rules, "absent", title, lost, f"{gate.report}   {resume}" if helps else gate.report)
    return gone


def _alike(history: Trends) -> list[int]:
    """Return the positions of the earlier runs with the trigger of the last one."""
    return [i for i, run in enumerate(history.runs[:-1]) if run.trigger == history.runs[-1].trigger]


def _missed(history: Trends, same: Sequence[int], records: dict[str, Record]) -> dict[str, int]:
    """Return the series that an earlier run of these was told to lack, and the newest run (its position) that was."""
    positions = {history.runs[i].run_id: i for i in same}
    found: dict[str, int] = {}
    for run_id in sorted(records.keys() & positions.keys()):
        for alert in records[run_id].alerts:
            if alert.kind == "absent":
                found |= dict.fromkeys(alert.keys, positions[run_id])
    return found


def _unread(gate: Gate, rules: Rules) -> Alert:
    """Say that acknowledgements are not used, so that what they accept is told as if nobody had: no failure by itself."""
    title = f"ACKS {gate.suite}: {rules.acks_file} cannot be read and accepts nothing"
    wrong = [f"what    {line}"[:300] for line in rules.acks_wrong.splitlines()[:6]]
    text = "\n".join([title, *wrong, f"do      mend the file, then: perfdag acks set FILE --store {shlex.quote(gate.store)}"])
    return Alert("acks", title, text, [rules.acks_wrong], gate.run, gates=False)


def worst(alerts: Sequence[Alert]) -> list[Alert]:
    """Return the alerts, those that fail the gate first."""
    return sorted(alerts, key=lambda each: (not each.gates, each.kind))


def data(gate: Gate) -> dict[str, Any]:
    """Return the gate as plain data."""
    from dataclasses import asdict

    return {
        "run_id": gate.run,
        "suite": gate.suite,
        "passed": not gate.failed,
        "runs": gate.runs,
        "report": gate.report,
        "cases": [asdict(each) for each in gate.cases],
        "alerts": [asdict(each) for each in gate.alerts],
        "changes": [asdict(each) for each in gate.findings],
        "confirm": [asdict(each) for each in gate.confirm],
        "confirmed": gate.confirmed,
        "damaged": gate.damaged,
    }
