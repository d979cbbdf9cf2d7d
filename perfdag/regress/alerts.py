"""Alerts: one for each cause, sent once, with changes of the machine itself kept apart."""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from perfdag.regress.alert_records import (
    CHANGE_KINDS,
    REPORT,
    STORE,
    Alert,
    Kind,
    Record,
    acknowledgement,
)
from perfdag.regress.changes import LevelChange, percent
from perfdag.regress.run_medians import RunMedians
from perfdag.regress.tuning import canaries_of
from perfdag.results.result_files import day_of
from perfdag.stats.changes import Change, moved_at
from perfdag.stats.verdicts import side
from perfdag.units import plural, short

EXPLAINS = 0.5
"""The part of a change that the change of a canary must reach to explain it."""


def mark_known(
    medians: RunMedians, run_id: str, alerts: Sequence[Alert], records: dict[str, Record]
) -> None:
    """Mark the alerts that were reported before as not fresh.

    A change of level is known by its series and the run that showed it. Any other alert is known
    where this run reported it, or where it was open in the run before. The run medians are those of
    one cluster, because another cluster that shares the store has its own sequence of runs.
    """
    own = records.get(run_id)
    known_runs = {run.run_id for run in medians.runs}
    earlier = [run for run in records if run < run_id and run in known_runs]
    previous = records[max(earlier)].alerts if earlier else []
    for alert in alerts:
        if alert.kind in CHANGE_KINDS:
            # A regression pages even if it was reported before as a change of the environment.
            alike = {"regression", alert.kind} if alert.kind == "environment" else {alert.kind}
            known = [
                old
                for record in records.values()
                for old in record.alerts
                if old.kind in alike
                and old.decided == alert.decided
                and set(alert.keys) <= set(old.keys)
            ]
            alert.fresh = not known
            alert.sent = any(old.sent for old in known)
            continue
        reported = [
            old for old in [*previous, *(own.alerts if own else [])] if old.kind == alert.kind
        ]
        # One more series of an entry makes a reported alert fresh.
        alert.fresh = not set(alert.keys) <= {key for old in reported for key in old.keys}
        alert.sent = set(alert.keys) <= {key for old in reported if old.sent for key in old.keys}


def by_cause(changes: Iterable[LevelChange]) -> list[list[LevelChange]]:
    """Group changes by the benchmark and the run that showed them: each group is one message."""
    groups: dict[tuple[str, str], list[LevelChange]] = {}
    for change in changes:
        groups.setdefault((change.info.benchmark, change.decided), []).append(change)
    return list(groups.values())


def unreported_recoveries(
    changes: Iterable[LevelChange], run_id: str, records: Iterable[Record]
) -> list[LevelChange]:
    """Return the recoveries that this run shows, and those of earlier runs that nobody was told.

    A recovery is a message where its regression was one. `records` are those of the runs so far.
    """
    alerts = [alert for record in records for alert in record.alerts]
    recoveries = []
    for change in changes:
        about = [alert for alert in alerts if change.info.series_id in alert.keys]
        regressions = [
            old for old in about if old.kind == "regression" and old.decided < change.decided
        ]
        same = [old for old in about if (old.kind, old.decided) == ("recovered", change.decided)]
        unsent = any(alert.sent for alert in regressions) and not any(alert.sent for alert in same)
        if regressions and (not same or unsent or change.decided == run_id):
            recoveries.append(change)
    return recoveries


def canary_moves(medians: RunMedians, index: int) -> dict[str, Change]:
    """Return the canaries that got worse at a run or one beside it, by metric."""
    moves = {}
    for i, info in enumerate(medians.series):
        if not info.canary or info.metric == "steal":
            continue
        for at in (index, index - 1, index + 1):
            change = moved_at(medians.value[i], at)
            if change is not None and side(change.effect, info.better) == "worse":
                moves[info.metric] = change
                break
    return moves


def explaining(moves: Mapping[str, Change], benchmark: str, change: Change) -> list[str]:
    """Return the canaries whose move explains the change of a series.

    A canary explains it where the benchmark depends on that part of the machine and the move is at
    least half as large. Sizes are compared on the log scale, where half the throughput equals twice
    the latency.
    """
    wanted = canaries_of(benchmark)
    return [
        metric
        for metric, moved in moves.items()
        if metric in wanted and _size(moved) >= EXPLAINS * _size(change)
    ]


def _size(change: Change) -> float:
    """Return the size of a change as |log(after / before)|.

    It is infinite for a level at or below zero, so that no canary can explain it.
    """
    positive = change.before > 0 and change.after > 0
    return abs(math.log(change.after / change.before)) if positive else math.inf


RULES = {"three runs": "three runs beyond gate and 4 floors", "permutations": "p <= 0.002"}


def regression(
    medians: RunMedians,
    group: Sequence[LevelChange],
    related: Sequence[LevelChange],
    run_id: str,
) -> Alert:
    """Return the alert that a run raises of one cause.

    `related` are changes at the same time that do not page.
    """
    worst = max(group, key=lambda finding: abs(finding.change.effect))
    change, info = worst.change, worst.info
    moves = canary_moves(medians, worst.index)
    kind: Kind = "environment" if explaining(moves, info.benchmark, change) else "regression"
    size, low, high = (
        percent(effect, worst.absolute)
        for effect in (change.effect, *sorted((change.low, change.high)))
    )
    title = f"{kind.upper()} {medians.suite}/{info.entry} {info.name} {size}"
    others = [finding for finding in group if finding is not worst]
    peers = sum(1 for series in medians.series if series.benchmark == info.benchmark)
    same_time = len(others) + sum(
        1
        for finding in related
        if finding.info.benchmark == info.benchmark and abs(finding.index - worst.index) <= 1
    )
    recent = " ".join(short(value, info.unit).partition(" ")[0] for value in worst.recent)
    gate = (
        f"{worst.min_effect:g} {info.unit}" if worst.absolute else f"{100 * worst.min_effect:g} %"
    )
    moved = ", ".join(f"{metric} {percent(change.effect)}" for metric, change in moves.items())
    explains = "moved too" if kind == "environment" else "does not explain it"
    canary = f"canary {explains}: {moved}" if moved else _canary_words(medians, worst.index)
    differs = "; ".join(f"{key} {a} -> {b}" for key, (a, b) in worst.environment.items())
    wish = f" ({info.better} is better)" if info.better in ("higher", "lower") else ""
    before = f"{plural(change.n_before, 'run')}, noise {100 * change.noise:.1f} %"
    lines = [
        f"{title}   {short(change.before, info.unit)} -> {short(change.after, info.unit)}{wish}",
        f"where   {worst.name}",
        f"since   {day_of(worst.run)} (first runs {recent}; before: {before})",
        f"why     {RULES[worst.rule]}, size {low} to {high}, gate {gate}, {canary}; "
        f"also moved: {same_time} of {max(peers - 1, 0)} related series",
        f"changed {_shorten(differs) or 'nothing recorded of kernel, images, tools and nodes'}",
    ]
    if others:
        also = "; ".join(f"{finding.name} {finding.size}" for finding in others)
        lines.append(f"also    {_shorten(also)}")
    return Alert(
        kind,
        title,
        "\n".join(lines),
        [finding.info.series_id for finding in group],
        worst.run,
        do=f"{REPORT}   perfdag compare {worst.run_before} {run_id} --store {STORE}",
        accept=acknowledgement(worst.name, worst.run),
        gates=kind == "regression",
        decided=worst.decided,
    )


def recovery(suite: str, group: Sequence[LevelChange]) -> Alert:
    """Return the message that series of one benchmark are back at the level before an alert."""
    first = group[0]
    change, unit = first.change, first.info.unit
    title = f"RECOVERED {suite}/{first.info.entry} {first.info.name} {first.size}"
    lines = [
        f"{title}   {short(change.before, unit)} -> {short(change.after, unit)}",
        f"where   {_shorten('; '.join(change.name for change in group))}",
        f"since   {day_of(first.run)} (three runs at the level before the regression)",
    ]
    return Alert(
        "recovered",
        title,
        "\n".join(lines),
        [change.info.series_id for change in group],
        first.run,
        do=REPORT,
        gates=False,
        decided=first.decided,
    )


def _canary_words(medians: RunMedians, index: int) -> str:
    """Return the change of the CPU canary around a run, in words."""
    for i, info in enumerate(medians.series):
        if info.canary and info.metric == "cpu":
            before, after = medians.value[i, :index], medians.value[i, index:]
            if np.isfinite(before).any() and np.isfinite(after).any():
                moved = float(np.nanmedian(after) / np.nanmedian(before) - 1)
                word = "unchanged" if abs(moved) < 0.05 else "no change for the worse shown"
                return f"canary {percent(moved)} ({word})"
    return "no canary"


def _shorten(text: str) -> str:
    return text if len(text) <= 300 else f"{text[:300]} ..."
