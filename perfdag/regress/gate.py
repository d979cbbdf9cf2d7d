"""The gate of a run: thresholds, changes of level and absent data."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pyarrow as pa

from perfdag.regress.absence import AbsentSeries, explaining_losses, find_absent
from perfdag.regress.alerts import (
    RECENT,
    Alert,
    Record,
    causes,
    mark_known,
    read_records,
    record_key,
    regression,
)
from perfdag.regress.changes import day_of, level_changes, series_names, suspects
from perfdag.regress.result import CheckResult, Gate, LostSeries, Rules, acknowledged, add_alert
from perfdag.regress.rollup import read_run_medians
from perfdag.regress.run_medians import COLUMNS, RunMedians
from perfdag.regress.selection import SelectionError
from perfdag.regress.thresholds import References, judge_thresholds
from perfdag.regress.tuning import Tuning
from perfdag.results.schema import load_rows
from perfdag.results.verdicts import OwnVerdict, own_verdicts
from perfdag.stats.changes import HEAD, TAIL
from perfdag.stats.variability import INFORMATIONAL
from perfdag.store.base import Store
from perfdag.units import short


def check(
    store: Store,
    suite: str,
    run_id: str,
    rules: Rules,
    report: str | None = None,
) -> Gate:
    """Check a run against the checks of its suite and its history.

    Messages link to `report`, by default the report of the run. Raises StoreError, SelectionError.
    """
    history = history_until(read_run_medians(store, suite), run_id)
    gate = Gate(
        run_id,
        suite,
        report or store.url(f"runs/{run_id}/report.html"),
        damaged=list(history.damaged),
        runs=len(history.runs),
        store=store.root,
    )
    table = load_rows(
        store, suites=[suite], runs=[run_id], columns=[*COLUMNS, "note"], damaged=gate.damaged
    )
    if not table.num_rows:
        raise SelectionError(
            ": ".join(filter(None, (f"run {run_id} has no readable rows", ", ".join(gate.damaged))))
        )
    tuning = Tuning(rules.checks, history.runs[-1].cluster)
    rules = replace(rules, checks=tuning.checks)
    gate.findings = level_changes(history, tuning, rules.accepted)
    _regressions(gate, history, tuning, rules)
    _own_verdicts(gate, own_verdicts(table), rules)
    records = read_records(store, suite)
    absent = find_absent(gate, store, history, tuning, rules, records)
    references = References(store, history, rules.accepted, gate.damaged)
    _thresholds(gate, references, table, rules, absent)
    if rules.acks_wrong:
        gate.alerts.append(_unreadable_acks(gate, rules))
    gate.confirm = suspects(history, tuning, rules.accepted)
    mark_known(history, run_id, gate.alerts, records)
    return gate


def history_until(history: RunMedians, run_id: str) -> RunMedians:
    """Return the history of a run's cluster up to the run, as it was known then."""
    cluster = next((run.cluster for run in history.runs if run.run_id == run_id), None)
    return history.keep(
        [i for i, run in enumerate(history.runs) if run.run_id <= run_id and run.cluster == cluster]
    )


def store_record(store: Store, gate: Gate) -> None:
    """Store the alerts of a run, so that none is sent twice. Raises StoreError."""
    store.put(record_key(gate.suite, gate.run), Record(gate.run, gate.alerts).dump())


def _regressions(gate: Gate, history: RunMedians, tuning: Tuning, rules: Rules) -> None:
    # A series whose runs differ by more than 10 % pages nobody until its noise is fixed.
    paging = [
        finding
        for finding in gate.findings
        if tuning.pages(finding.info) and finding.change.noise <= INFORMATIONAL
    ]
    others = [
        finding
        for finding in gate.findings
        if finding.word == "worse" and not tuning.pages(finding.info)
    ]
    links = {"report": gate.report, "run": gate.run, "acks": rules.acks_file, "store": gate.store}
    groups = causes(paging, len(history.runs))
    for group in groups:
        gate.alerts.append(regression(history, group, others, links))
    alerted = {id(finding) for group in groups for finding in group}
    kinds = {key: alert.kind for alert in gate.alerts for key in alert.keys}
    for i, name in enumerate(series_names(history)):
        info = history.series[i]
        if info.canary or not tuning.pages(info) or not np.isfinite(history.value[i, -1]):
            continue
        recent = [
            finding
            for finding in paging
            if finding.info.series_id == info.series_id and id(finding) in alerted
        ]
        n = int(np.isfinite(history.value[i]).sum())
        state: Literal["ok", "failed", "unsure"]
        if recent:
            kind = kinds[info.series_id]
            state = "failed" if kind == "regression" else "ok"
            text = f"{recent[-1].size} since {day_of(recent[-1].run)} ({kind})"
        elif n >= HEAD + TAIL:
            state, value = "ok", short(history.value[i, -1], info.unit)
            text = f"{value}; no change for the worse in its last {RECENT} runs"
        else:
            state, text = "unsure", f"{n} of the {HEAD + TAIL} runs that change points need"
        gate.cases.append(CheckResult("change", name, state, text))


def _own_verdicts(gate: Gate, verdicts: Sequence[OwnVerdict], rules: Rules) -> None:
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
        add_alert(gate, rules, "verdict", title, lost, gate.report)


def _thresholds(
    gate: Gate, past: References, table: pa.Table, rules: Rules, absent: Sequence[AbsentSeries]
) -> None:
    """Check thresholds, with one alert per rule and entry.

    A rule without data raises no alert where its absent series are reported already.
    """
    broken: dict[tuple[str, str], list[LostSeries]] = {}
    for outcome in judge_thresholds(past, table, rules.checks):
        info = outcome.info
        losses = [] if info else explaining_losses(past.history, outcome.rule, absent)
        name = f"{outcome.name}: {outcome.rule.words()}" if info else outcome.name
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
            broken.setdefault((outcome.rule.words(), entry), []).append(
                (outcome.name, outcome.key, outcome.text)
            )
    for (words, entry), lost in broken.items():
        about = lost[0][0] if len(lost) == 1 else f"{entry}: {len(lost)} series"
        add_alert(
            gate,
            rules,
            "threshold",
            f"THRESHOLD {gate.suite}/{about}",
            lost,
            gate.report,
            rule=words,
        )


def _unreadable_acks(gate: Gate, rules: Rules) -> Alert:
    """Return the alert that the acknowledgements are ignored. It does not fail the gate."""
    title = f"ACKS {gate.suite}: {rules.acks_file} is unreadable and accepts nothing"
    errors = [f"what    {line}"[:300] for line in rules.acks_wrong.splitlines()[:6]]
    command = f"perfdag acks set FILE --store {shlex.quote(gate.store)}"
    text = "\n".join([title, *errors, f"do      correct the file, then: {command}"])
    return Alert("acks", title, text, [rules.acks_wrong], gate.run, gates=False)
