"""The gate of a run: thresholds, changes of level and absent data."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import pyarrow as pa

from perfdag.regress.absence import AbsentSeries, explaining_losses, find_absent
from perfdag.regress.alert_records import (
    STORE,
    Alert,
    Record,
    mark_known,
    read_records,
    record_key,
)
from perfdag.regress.alerts import recovered_alerts, worse_alerts
from perfdag.regress.history import series_of, suspects
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
from perfdag.results.runs import PARTIAL, load_plan, stored_runs
from perfdag.results.schema import explain_unreadable, load_rows
from perfdag.results.summary import OwnVerdict, own_verdicts
from perfdag.stats.levels import Word
from perfdag.store.base import Store, StoreError


def check(store: Store, suite: str, run_id: str, rules: Rules) -> GateResult:
    """Judge a run with its re-measurements against its history and the checks of its suite.

    A re-measurement stands for the run that it repeats. Thresholds and presence come from that run
    alone, because a re-measurement has suspicious points only. Raises StoreError, SelectionError.
    """
    options = _options(store, run_id)
    if "confirms" in options:
        run_id = str(options["confirms"])
        options = _options(store, run_id)
    stored = {run for run, _ in stored_runs(store, suite)}
    rechecks = [run for run in options.get("confirmed", []) if run in stored]
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
    absent = find_absent(gate, store, history, tuning, rules, records)
    by_id = {line.info.series_id: line for line in series}
    references = References(store, history, by_id, gate.damaged)
    _thresholds(gate, references, table, rules, absent)
    if rules.acks_wrong:
        gate.alerts.append(_unreadable_acks(gate, rules))
    if not rechecks:
        gate.suspects = suspects(tuning, gate.series)
    mark_known(gate.alerts, previous, records.get(run_id))
    return gate


def _options(store: Store, run_id: str) -> dict[str, Any]:
    """Return the options of a run's plan, or none where the plan was removed."""
    try:
        return load_plan(store, run_id).options
    except StoreError:
        return {}


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
    states: dict[Word, Literal["ok", "failed", "unsure"]]
    states = {"same": "ok", "better": "ok", "unclear": "unsure", "worse": "failed"}
    for line in paging:
        if line.answer.word in states:  # what was not measured is an absence
            state = states[line.answer.word]
            if state == "failed" and line.left is None:
                state = "unsure"  # two runs alone fail no gate
            gate.cases.append(CheckResult("change", line.name, state, line.answer.text))


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
