"""What a run lacks that earlier ones had: series that are expected and absent, and what to do about them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfdag.alerts import Record
from perfdag.cases import Case, Gate, Lost, Rules, acknowledged, raise_alert
from perfdag.checks import Check
from perfdag.findings import names
from perfdag.runs import load_plan
from perfdag.samples import stored_parts
from perfdag.store import Store, StoreError
from perfdag.trends import SeriesInfo, Trends
from perfdag.tuning import Tuning, covers

PRESENT_OF, PRESENT = 5, 3
"""A headline series that at least 3 of the last 5 runs had is expected."""


@dataclass(frozen=True)
class Gone:
    """A series that is expected and absent, and whether that is acknowledged."""

    info: SeriesInfo
    accepted: bool


def absent(gate: Gate, store: Store, history: Trends, tuning: Tuning, rules: Rules, records: dict[str, Record]) -> list[Gone]:
    """Name headline series that earlier runs of the same trigger had and this one lacks, and return them: one alert an entry.

    Runs that confirm, and those that somebody started for a part of a suite, are no measure of a scheduled one. A series whose absence
    was told, or acknowledged before it could be, is missed until it is back, however long ago it was last seen.
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
        if info.key in tonight or not tuning.pages(info):
            continue
        told = info.series_id in missed and not finite[i, missed[info.series_id] :].any()
        looked_for = before.sum() >= min(PRESENT, before.size) or told
        if not looked_for and not any(acknowledged(rules, night, name, info.series_id) for night in _untold(history, finite[i], same)):
            continue
        ok, bad, error, _ = history.runs[-1].points.get(info.point, (0, 0, "", ""))
        why = f"all {bad} samples failed, {error}" if bad and not ok else "not in the run any more" if not ok else "the samples lack it"
        gone.append(Gone(info, acknowledged(rules, gate.run, name, info.series_id)))
        if gone[-1].accepted:
            gate.cases.append(Case("present", name, "ok", f"{why} (acknowledged)"))
            continue
        entries.setdefault(info.entry, []).append((name, info.series_id, why))
        gate.cases.append(Case("present", name, "absent", why))
    resume, left = _resume(store, gate.run) if entries else ("", set())
    for entry, lost in entries.items():
        title = f"ABSENT {gate.suite}/{entry}: {len(lost)} series"
        helps = any(each.info.entry == entry and each.info.point in left and not each.accepted for each in gone)
        raise_alert(gate, rules, "absent", title, lost, f"{gate.report}   {resume}" if helps else gate.report)
    return gone


def _alike(history: Trends) -> list[int]:
    """Return the positions of the earlier runs with the trigger of the last one."""
    return [i for i, run in enumerate(history.runs[:-1]) if run.trigger == history.runs[-1].trigger]


def _untold(history: Trends, finite: NDArray[np.bool_], same: Sequence[int]) -> list[str]:
    """Return the runs that would have told of a series, the first PRESENT without it; none where it came and went before.

    What was acknowledged in one of them raised no alert that would be remembered: else a rule about it, or the day when the
    acknowledgement runs out, would find it forgotten.
    """
    had = [at for at, k in enumerate(same) if finite[k]]
    last = same[: had[-1] + 1][-PRESENT_OF:] if had else []
    if not last or finite[last].sum() < min(PRESENT, len(last)):
        return []
    return [history.runs[k].run_id for k in same[had[-1] + 1 :]][:PRESENT]


def _missed(history: Trends, same: Sequence[int], records: dict[str, Record]) -> dict[str, int]:
    """Return the series that an earlier run of these was told to lack, and the newest run (its position) that was."""
    positions = {history.runs[i].run_id: i for i in same}
    found: dict[str, int] = {}
    for run_id in sorted(records.keys() & positions.keys()):
        for alert in records[run_id].alerts:
            if alert.kind == "absent":
                found |= dict.fromkeys(alert.keys, positions[run_id])
    return found


def why_no_data(history: Trends, rule: Check, gone: Sequence[Gone]) -> list[Gone]:
    """Return the losses that say why a rule has no data, none where one of the series that it was about is lost untold.

    The loss of a series tells of it, and of its whole entry where nothing of that is left. A rule is about what it covers and one of
    the last PRESENT_OF runs had, up to the newest that had any of it: an entry removed before is forgotten, what went with the rest
    is not, however long ago that was.
    """
    finite = np.isfinite(history.value)
    here = {info.entry for i, info in enumerate(history.series) if finite[i, -1]}
    covered = [i for i, info in enumerate(history.series) if covers(rule, info)]
    vanished = {history.series[i].entry for i in covered} - here
    told = [lost for lost in gone if covers(rule, lost.info) or lost.info.entry in vanished]
    keys, entries = {lost.info.key for lost in told}, {lost.info.entry for lost in told} & vanished
    same = _alike(history)
    had = np.flatnonzero(finite[np.ix_(covered, same)].any(axis=0))
    last = same[: had[-1] + 1][-PRESENT_OF:] if had.size else []
    about = [history.series[i] for i in covered if finite[i, last].any()]
    return told if all(info.key in keys or info.entry in entries for info in about) else []


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
