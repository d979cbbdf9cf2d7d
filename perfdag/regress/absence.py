"""What a run lacks: points without a value and expected series, and what to do about them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfdag.plan.plan import Plan
from perfdag.regress.alert_records import REPORT, STORE, Record
from perfdag.regress.history import series_names
from perfdag.regress.result import (
    CheckResult,
    GateResult,
    LostSeries,
    Rules,
    acknowledged,
    add_alert,
)
from perfdag.regress.run_medians import RunMedians
from perfdag.regress.series import SeriesInfo
from perfdag.regress.tuning import Tuning, covers
from perfdag.results.runs import load_plan
from perfdag.results.samples import stored_samples
from perfdag.store.base import Store, StoreError
from perfdag.suite.model import Check
from perfdag.units import plural

PRESENT_OF, PRESENT = 5, 3
"""A headline series that at least 3 of the last 5 runs had is expected."""


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
    records: dict[str, Record],
) -> list[AbsentSeries]:
    """Return the headline series that earlier runs had and this one lacks. Add an alert per entry.

    Only earlier runs with the same trigger count, and what `--only` left out is not absent. A
    series stays absent once it was reported or acknowledged, until a run has it again. The other
    points without a value fail the gate too, unless their entry is optional.
    """
    last, same = history.runs[-1], _alike(history)
    if last.trigger == "confirm":
        return []
    reported = _reported_absent(history, same, records)
    finite = np.isfinite(history.value)
    # Without the span: a series is not absent if its hosts were on other nodes this time.
    measured = {info.key[:-1] for i, info in enumerate(history.series) if finite[i, -1]}
    absent: list[AbsentSeries] = []
    entries: dict[str, list[LostSeries]] = {}
    for i, name in enumerate(series_names(history) if same else ()):
        info = history.series[i]
        if info.key[:-1] in measured or not tuning.pages(info):
            continue
        if last.trigger == "part" and info.point not in last.points:
            continue
        before = finite[i, same[-PRESENT_OF:]]
        since = reported.get(info.series_id)
        expected = before.sum() >= min(PRESENT, before.size) or (
            since is not None and not finite[i, since:].any()
        )
        if not expected and not any(
            acknowledged(rules, run, name, info.series_id)
            for run in _first_runs_without(history, finite[i], same)
        ):
            continue
        ok, bad, error, _ = last.points.get(info.point, (0, 0, "", ""))
        if ok:
            why = "its samples are ok, but have no value of it"
        else:
            why = _no_value(bad, error) if bad else "its point was not measured"
        accepted = acknowledged(rules, gate.run, name, info.series_id)
        absent.append(AbsentSeries(info, accepted))
        if accepted:
            gate.cases.append(CheckResult("present", name, "ok", f"{why} (acknowledged)"))
            continue
        entries.setdefault(info.entry, []).append((name, info.series_id, why))
        gate.cases.append(CheckResult("present", name, "absent", why))
    told = {series.info.point for series in absent}
    idle = [point for point, state in last.points.items() if not state[0] and point not in told]
    plan = _plan(store, gate.run) if entries or idle else None
    _add_idle(gate, last.points, idle, plan, rules)
    resume, unmeasured = _resume(store, plan) if entries and plan else ("", set())
    for entry, lost in entries.items():
        title = f"ABSENT {gate.suite}/{entry}: {len(lost)} series"
        resumable = any(
            series.info.entry == entry and series.info.point in unmeasured and not series.accepted
            for series in absent
        )
        do = f"{REPORT}   {resume}" if resumable else REPORT
        add_alert(gate, "absent", title, lost, do)
    return absent


def _no_value(samples: int, error: str) -> str:
    return f"none of {plural(samples, 'sample')} is ok; {error}"


def _add_idle(
    gate: GateResult,
    states: Mapping[str, tuple[int, int, str, str]],
    idle: Sequence[str],
    plan: Plan | None,
    rules: Rules,
) -> None:
    """Add a case for each of these points, none of whose samples is ok, and an alert per entry.

    Optional ones are skipped where the run measured another point.
    """
    measured = any(state[0] for point, state in states.items() if point != "canary")
    planned = {point.id: point for point in plan.points} if plan else {}
    entries: dict[str, list[LostSeries]] = {}
    for key in idle:
        _, samples, error, entry = states[key]
        point, why = planned.get(key), _no_value(samples, error)
        name = f"{entry} {point.label if point else key}".strip()
        if point and point.optional and measured:
            gate.cases.append(CheckResult("present", name, "skipped", f"{why} (optional)"))
        elif acknowledged(rules, gate.run, name, key):
            gate.cases.append(CheckResult("present", name, "ok", f"{why} (acknowledged)"))
        else:
            gate.cases.append(CheckResult("present", name, "absent", why))
            entries.setdefault(entry, []).append((name, key, why))
    for entry, lost in entries.items():
        about = f"{plural(len(lost), 'point')} without a value"
        add_alert(gate, "absent", f"ABSENT {gate.suite}/{entry}: {about}", lost)


def _alike(history: RunMedians) -> list[int]:
    """Return the positions of the earlier runs with the trigger of the last run."""
    return [i for i, run in enumerate(history.runs[:-1]) if run.trigger == history.runs[-1].trigger]


def _first_runs_without(
    history: RunMedians, finite: NDArray[np.bool_], same: Sequence[int]
) -> list[str]:
    """Return the first PRESENT runs without a series, or none where it was never expected.

    An acknowledged absence raises no alert, so no record of it exists. These runs tell whether the
    absence was acknowledged, so that it is reported when the acknowledgement expires.
    """
    present = [at for at, k in enumerate(same) if finite[k]]
    last = same[: present[-1] + 1][-PRESENT_OF:] if present else []
    if not last or finite[last].sum() < min(PRESENT, len(last)):
        return []
    return [history.runs[k].run_id for k in same[present[-1] + 1 :]][:PRESENT]


def _reported_absent(
    history: RunMedians, same: Sequence[int], records: dict[str, Record]
) -> dict[str, int]:
    """Return series id -> position of the newest run that reported it absent."""
    positions = {history.runs[i].run_id: i for i in same}
    reported: dict[str, int] = {}
    for run_id in sorted(records.keys() & positions.keys()):
        for alert in records[run_id].alerts:
            if alert.kind == "absent":
                reported |= dict.fromkeys(alert.keys, positions[run_id])
    return reported


def explaining_losses(
    history: RunMedians, rule: Check, absent: Sequence[AbsentSeries]
) -> list[AbsentSeries]:
    """Return the absent series that explain why a rule has no data.

    An absent series explains a rule about it. Where nothing of its entry is left, it explains a
    rule about the entry. The rule concerns the series it covers that the last PRESENT_OF runs had,
    counted back from the newest run with any of them. Return nothing where one of those series is
    absent without a report.
    """
    finite = np.isfinite(history.value)
    present_entries = {info.entry for i, info in enumerate(history.series) if finite[i, -1]}
    covered = [i for i, info in enumerate(history.series) if covers(rule, info)]
    vanished = {history.series[i].entry for i in covered} - present_entries
    losses = [lost for lost in absent if covers(rule, lost.info) or lost.info.entry in vanished]
    keys = {lost.info.key for lost in losses}
    entries = {lost.info.entry for lost in losses} & vanished
    same = _alike(history)
    present = np.flatnonzero(finite[np.ix_(covered, same)].any(axis=0))
    last = same[: present[-1] + 1][-PRESENT_OF:] if present.size else []
    about = [history.series[i] for i in covered if finite[i, last].any()]
    return losses if all(info.key in keys or info.entry in entries for info in about) else []


def _plan(store: Store, run_id: str) -> Plan | None:
    """Return the plan of a run, or None where it is gone or unreadable."""
    try:
        return load_plan(store, run_id)
    except StoreError:
        return None


def _resume(store: Store, plan: Plan) -> tuple[str, set[str]]:
    """Return the command that completes a run, and the ids of the points that it would measure.

    A failed sample is stored and is not measured again.
    """
    stored = stored_samples(store, plan.run_id)
    samples = [
        (plan.points[index], repetition, plan.key(at))
        for at, (index, repetition) in enumerate(plan.order)
    ]
    unmeasured = {
        point.id
        for point, repetition, key in samples
        if 0 < repetition <= point.repetitions and key not in stored
    }
    if plan.where:
        namespace = plan.where.get("namespace", "perfdag")
        return f"perfdag submit --resume {plan.run_id} --namespace {namespace}", unmeasured
    return f"perfdag run --resume {plan.run_id} --store {STORE}", unmeasured
