"""Findings to alerts: one a cause, sent once, told from a change of the machine itself."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import orjson

from perfdag import benchmark
from perfdag.findings import Finding, day_of
from perfdag.stats.changes import Change, moved_at
from perfdag.stats.verdicts import side
from perfdag.store import Store
from perfdag.trends import Trends
from perfdag.units import short

Kind = Literal["regression", "environment", "threshold", "gate", "absent", "stale", "acks"]
RECENT = 7
"""Runs back to which a change still alerts."""
EXPLAINS = 0.5
"""Part of a change that the canary's own must reach to explain it."""
SAME = 5
"""Runs within which a change of the same series is the same one: its place may move as runs come in."""


@dataclass
class Alert:
    """One cause: `text` is the message (Markdown, at most 12 lines), `keys` what it is about, `run` where it began.

    `gates` says whether it fails the gate; `fresh` whether nobody was told yet; `sent` whether the webhook took it.
    """

    kind: Kind
    title: str
    text: str
    keys: list[str]
    run: str
    gates: bool = True
    fresh: bool = True
    sent: bool = False


@dataclass
class Record:
    """What was found at one run, as stored under alerts/."""

    run: str
    alerts: list[Alert] = field(default_factory=list)

    def dump(self) -> bytes:
        """The record as JSON."""
        data = {"schema": 1, "run": self.run, "alerts": [each.__dict__ for each in self.alerts]}
        return orjson.dumps(data, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)


def record_key(suite: str, run_id: str) -> str:
    """Key of what was found at a run."""
    return f"alerts/suite={suite}/{run_id}.json"


def read_records(store: Store, suite: str, newest: int = 120) -> dict[str, Record]:
    """Return the newest records by run id, oldest first; a damaged one counts as none. Raises StoreError."""
    keys = [key for key in store.list(f"alerts/suite={suite}") if key.endswith(".json")][-newest:]
    found = {}
    for _, data in store.get_many(keys):
        try:
            raw = orjson.loads(data)
            found[raw["run"]] = Record(raw["run"], [Alert(**each) for each in raw["alerts"]])
        except (ValueError, KeyError, TypeError):
            continue
    return found


def mark_known(
    trends: Trends, run_id: str, alerts: Sequence[Alert], records: dict[str, Record]
) -> None:
    """Mark as not fresh what was told before: at this run, near the same change, or open at the run before of these trends.

    The trends are those of one cluster: another one that uses the same store has its own run before.
    """
    position = {run.run_id: i for i, run in enumerate(trends.runs)}
    own = records.get(run_id)
    earlier = [run for run in records if run < run_id and run in position]
    previous = records[max(earlier)].alerts if earlier else []
    for alert in alerts:
        if alert.kind in ("regression", "environment"):
            # what the machine was to blame for does not page; where it is to blame no longer, somebody must be told
            alike = ("regression",) if alert.kind == "regression" else ("regression", "environment")
            known = [
                old
                for record in records.values()
                for old in record.alerts
                if old.kind in alike
                and set(old.keys) & set(alert.keys)
                and abs(position.get(old.run, -99) - position.get(alert.run, 99)) <= SAME
            ]
            alert.fresh = not known
            alert.sent = any(old.sent for old in known)
            continue
        told = [old for old in [*previous, *(own.alerts if own else [])] if old.kind == alert.kind]
        # one more series of an entry is news, where the others were told
        alert.fresh = not set(alert.keys) <= {key for old in told for key in old.keys}
        alert.sent = set(alert.keys) <= {key for old in told if old.sent for key in old.keys}


def causes(findings: Sequence[Finding], runs: int) -> list[list[Finding]]:
    """Group recent changes for the worse: one group a benchmark and place in time (changes within one run of each other)."""
    groups: list[list[Finding]] = []
    for each in sorted(findings, key=lambda one: (one.info.benchmark, one.index)):
        if each.word != "worse" or each.index < runs - RECENT:
            continue
        last = groups[-1][-1] if groups else None
        if (
            last is not None
            and last.info.benchmark == each.info.benchmark
            and each.index - last.index <= 1
        ):
            groups[-1].append(each)
        else:
            groups.append([each])
    return groups


def canary_moves(trends: Trends, index: int) -> dict[str, Change]:
    """Return the canaries that got worse at a run (or one beside it), by metric; empty: the machine is as it was."""
    moves = {}
    for i, info in enumerate(trends.series):
        if not info.canary or info.metric == "steal":
            continue
        for at in (index, index - 1, index + 1):
            change = moved_at(trends.value[i], at, info.series_id)
            if change is not None and side(change.effect, info.better) == "worse":
                moves[info.metric] = change
                break
    return moves


def explaining(moves: Mapping[str, Change], benchmark: str, change: Change) -> list[str]:
    """Return the canaries whose move explains that of a series: of a part that the benchmark leans on, and at least half as large.

    Sizes are compared on the log scale, where a throughput halved and a latency doubled are alike.
    """
    wanted = _leans_on(benchmark)
    return [
        metric
        for metric, moved in moves.items()
        if metric in wanted and _size(moved) >= EXPLAINS * _size(change)
    ]


def _leans_on(name: str) -> tuple[str, ...]:
    """Canaries of a benchmark; one that is not installed here leans on the CPU, as most do."""
    try:
        return benchmark.get(name).canaries
    except (KeyError, ImportError):
        return benchmark.Benchmark.canaries


def _size(change: Change) -> float:
    """Return the size of a change as |log(after / before)|; of a level at or below zero it has none that a canary could explain."""
    return (
        abs(math.log(change.after / change.before))
        if change.before > 0 and change.after > 0
        else math.inf
    )


def percent(effect: float) -> str:
    """Write a relative effect with its sign: `-11.8 %`."""
    return f"{100 * effect:+.1f} %"


def regression(
    trends: Trends,
    group: Sequence[Finding],
    related: Sequence[Finding],
    pages: bool,
    links: dict[str, str],
) -> Alert:
    """Word the alert of one cause. `related` are changes at the same time that do not page; `links`: report, run, acks, store."""
    worst = max(group, key=lambda each: abs(each.change.effect))
    c, info = worst.change, worst.info
    moves = canary_moves(trends, worst.index)
    kind: Kind = "environment" if explaining(moves, info.benchmark, c) else "regression"
    size = f"{c.effect:+.3g}" if worst.absolute else percent(c.effect)
    title = f"{kind.upper()} {trends.suite}/{info.entry} {info.name} {size}"
    others = [each for each in group if each is not worst]
    peers = sum(1 for each in trends.series if each.benchmark == info.benchmark)
    same_time = len(others) + sum(
        1
        for each in related
        if each.info.benchmark == info.benchmark and abs(each.index - worst.index) <= 1
    )
    recent = " ".join(short(value, info.unit).partition(" ")[0] for value in worst.recent)
    gate = (
        f"{worst.min_effect:g} {info.unit}" if worst.absolute else f"{100 * worst.min_effect:g} %"
    )
    low, high = sorted((c.low, c.high))
    band = f"{low:+.3g} to {high:+.3g}" if worst.absolute else f"{percent(low)} to {percent(high)}"
    moved = ", ".join(f"{metric} {percent(each.effect)}" for metric, each in moves.items())
    explains = "moved too" if kind == "environment" else "does not explain it"
    canary = f"canary {explains}: {moved}" if moved else _canary_words(trends, worst.index)
    differs = [f"{key} {a} -> {b}" for key, (a, b) in worst.environment.items()]
    lines = [
        f"{title}   {short(c.before, info.unit)} -> {short(c.after, info.unit)}{_wish(info.better)}",
        f"where   {worst.name}",
        f"since   {day_of(worst.run)} ({c.n_after} runs, newest {recent}; before: {c.n_before} runs, noise {100 * c.noise:.1f} %)",
        f"why     p <= 0.002, size {band}, gate {gate}, {canary}; also moved: {same_time} of {max(peers - 1, 0)} related series",
        f"changed {_shorten('; '.join(differs)) if differs else 'nothing that is recorded of kernel, images, tools and nodes'}",
    ]
    if others:
        lines.append(
            f"also    {_shorten('; '.join(f'{each.name} {percent(each.change.effect)}' for each in others))}"
        )
    lines.append(
        f"do      {links['report']}   perfdag compare {worst.run_before} {links['run']} --store {shlex.quote(links['store'])}"
    )
    lines.append(
        f"accept  in {links['acks']}: {{series: '{worst.name}', run: {worst.run}, reason: ...}}"
    )
    return Alert(
        kind,
        title,
        "\n".join(lines),
        [each.info.series_id for each in group],
        worst.run,
        gates=pages and kind == "regression",
    )


def _wish(better: str) -> str:
    return f" ({better} is better)" if better in ("higher", "lower") else ""


def _canary_words(trends: Trends, index: int) -> str:
    """Say how the CPU canary stands around a run, which did not move."""
    for i, info in enumerate(trends.series):
        if info.canary and info.metric == "cpu":
            before, after = trends.value[i, :index], trends.value[i, index:]
            if np.isfinite(before).any() and np.isfinite(after).any():
                moved = float(np.nanmedian(after) / np.nanmedian(before) - 1)
                return f"canary {percent(moved)} ({'unchanged' if abs(moved) < 0.05 else 'no change for the worse shown'})"
    return "no canary"


def _shorten(text: str, limit: int = 300) -> str:
    return text if len(text) <= limit else f"{text[:limit]} ..."


def as_json(alert: Alert, suite: str, run_id: str) -> dict[str, Any]:
    """What a webhook is sent: `text` is what chat systems show."""
    return {
        "text": f"```\n{alert.text}\n```",
        "title": alert.title,
        "kind": alert.kind,
        "page": alert.gates,
        "suite": suite,
        "run_id": run_id,
        "since": alert.run,
        "keys": alert.keys,
    }
