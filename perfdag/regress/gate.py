"""The gate of a run: thresholds, changes of level and absent data."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pyarrow as pa

from perfdag.regress.absence import AbsentSeries, explaining_losses, find_absent
from perfdag.regress.alert_records import STORE, Alert, Record, read_records, record_key
from perfdag.regress.alerts import by_cause, mark_known, recovery, regression, unreported_recoveries
from perfdag.regress.changes import SeriesLevels, series_levels, suspects
from perfdag.regress.result import (
    CheckResult,
    GateResult,
    LostSeries,
    Rules,
    acknowledged,
    add_alert,
)
from perfdag.regress.rollup import read_run_medians
from perfdag.regress.run_medians import COLUMNS, RunMedians
from perfdag.regress.selection import SelectionError
from perfdag.regress.thresholds import References, judge_thresholds
from perfdag.regress.tuning import Tuning
from perfdag.results.result_files import day_of
from perfdag.results.schema import explain_unreadable, load_rows
from perfdag.results.verdicts import OwnVerdict, own_verdicts
from perfdag.stats.changes import HEAD
from perfdag.store.base import Store
from perfdag.units import short


def check(store: Store, suite: str, run_id: str, rules: Rules) -> GateResult:
    """Check a run against the checks of its suite and its history.

    Raises StoreError, SelectionError.
    """
    history = history_until(read_run_medians(store, suite), run_id)
    gate = GateResult(
        run_id,
        suite,
        store.url(f"runs/{run_id}/report.html"),
        damaged=list(history.damaged),
        runs=len(history.runs),
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
    series = series_levels(history, tuning, rules.accepted)
    gate.changes = [change for line in series for change in line.changes]
    records = read_records(store, suite)
    _levels(gate, history, series, tuning, records)
    _own_verdicts(gate, own_verdicts(table), rules)
    absent = find_absent(gate, store, history, tuning, rules, records)
    references = References(store, history, tuning, rules.accepted, gate.damaged)
    _thresholds(gate, references, table, rules, absent)
    if rules.acks_wrong:
        gate.alerts.append(_unreadable_acks(gate, rules))
    gate.suspects = suspects(history, tuning, series)
    mark_known(history, run_id, gate.alerts, records)
    return gate


def history_until(history: RunMedians, run_id: str) -> RunMedians:
    """Return the history of a run's cluster up to the run, as it was known then."""
    cluster = history.cluster_of(run_id)
    return history.select(lambda run: run.run_id <= run_id and run.cluster == cluster)


def store_record(store: Store, gate: GateResult) -> None:
    """Store the alerts of a run, so that none is sent twice. Raises StoreError."""
    store.put(record_key(gate.suite, gate.run), Record(gate.run, gate.alerts, gate.failed).dump())


STATES = {
    "ok": "at its level",
    "watching": "watching: two runs beyond the gate, one more opens an alert",
    "recovered": "recovered: three runs at the level before the regression",
    "accepted": "at an accepted level",
}


def _levels(
    gate: GateResult,
    history: RunMedians,
    series: Sequence[SeriesLevels],
    tuning: Tuning,
    records: Mapping[str, Record],
) -> None:
    """Add the open alerts, the recoveries and the state of every series that pages."""
    paging = [line for line in series if tuning.pages(line.info)]
    others = [
        change
        for line in series
        if not tuning.pages(line.info)
        for change in line.changes
        if change.word == "worse"
    ]
    for group in by_cause(change for line in paging for change in line.alerts):
        gate.alerts.append(regression(history, group, others, gate.run))
    kinds = {key: alert.kind for alert in gate.alerts for key in alert.keys}
    back = [line.changes[-1] for line in paging if line.changes]
    back = [change for change in back if change.kind == "recovered"]
    earlier = [records[run.run_id] for run in history.runs if run.run_id in records]
    for group in by_cause(unreported_recoveries(back, gate.run, earlier)):
        gate.alerts.append(recovery(gate.suite, group))
    newest = {info.series_id: history.value[i, -1] for i, info in enumerate(history.series)}
    for line in paging:
        value, levels = newest[line.info.series_id], line.levels
        state: Literal["ok", "failed", "unsure"] = "ok"
        if line.alerts:
            kind = kinds[line.info.series_id]
            state = "failed" if kind == "regression" else "ok"
            text = f"regressed: {line.alerts[-1].size} since {day_of(line.alerts[0].run)} ({kind})"
        elif not np.isfinite(value):
            continue
        elif levels.state == "too little history":
            state, text = "unsure", f"too little history: a level needs {HEAD} runs"
        else:
            text = f"{short(value, line.info.unit)}; {STATES[levels.state]}"
        gate.cases.append(CheckResult("change", line.name, state, text))


def _own_verdicts(gate: GateResult, verdicts: Sequence[OwnVerdict], rules: Rules) -> None:
    """Add the verdicts of the benchmarks themselves, with one alert per entry for failed ones."""
    states: dict[str, Literal["ok", "failed", "unsure"]]
    states = {"passed": "ok", "failed": "failed", "inconclusive": "unsure"}
    broken: dict[str, list[LostSeries]] = {}
    for verdict in verdicts:
        state, text = states[verdict.word], f"{verdict.word}: {verdict.note}"
        if state == "failed" and acknowledged(rules, gate.run, verdict.name, verdict.name):
            state, text = "ok", f"{text} (acknowledged)"
        gate.cases.append(CheckResult("verdict", verdict.name, state, text))
        if state == "failed":
            broken.setdefault(verdict.entry, []).append((verdict.name, verdict.name, verdict.note))
    for entry, lost in broken.items():
        about = f"{len(lost)} of its own verdicts"
        title = f"VERDICT {gate.suite}/{entry}: {about} failed"
        add_alert(gate, "verdict", title, lost)


def _thresholds(
    gate: GateResult,
    past: References,
    table: pa.Table,
    rules: Rules,
    absent: Sequence[AbsentSeries],
) -> None:
    """Check thresholds, with one alert per rule and entry.

    A rule without data raises no alert where its absent series are reported already.
    """
    broken: dict[tuple[str, str], list[LostSeries]] = {}
    for outcome in judge_thresholds(past, table, rules.checks):
        info = outcome.info
        losses = [] if info else explaining_losses(past.history, outcome.rule, absent)
        name = f"{outcome.name}: {outcome.rule.text()}" if info else outcome.name
        bad = outcome.state in ("failed", "absent")
        key = info.series_id if info else outcome.name
        accepted = acknowledged(rules, gate.run, outcome.name, key)
        if bad and (accepted or (losses and all(lost.accepted for lost in losses))):
            gate.cases.append(
                CheckResult("threshold", name, "ok", f"{outcome.text} (acknowledged)")
            )
            continue
        gate.cases.append(CheckResult("threshold", name, outcome.state, outcome.text))
        if bad and not losses:
            entry = info.entry if info else outcome.rule.entry or ""
            broken.setdefault((outcome.rule.text(), entry), []).append(
                (outcome.name, outcome.key, outcome.text)
            )
    for (reason, entry), lost in broken.items():
        about = lost[0][0] if len(lost) == 1 else f"{entry}: {len(lost)} series"
        add_alert(gate, "threshold", f"THRESHOLD {gate.suite}/{about}", lost, rule=reason)


def _unreadable_acks(gate: GateResult, rules: Rules) -> Alert:
    """Return the alert that the acknowledgements are ignored. It does not fail the gate."""
    title = f"ACKS {gate.suite}: {rules.acks_file} is unreadable and accepts nothing"
    errors = [f"what    {line}"[:300] for line in rules.acks_wrong.splitlines()[:6]]
    do = f"correct the file, then: perfdag acks set FILE --store {STORE}"
    text = "\n".join([title, *errors])
    return Alert("acks", title, text, [rules.acks_wrong], gate.run, do, gates=False)
