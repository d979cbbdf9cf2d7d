"""Pairs of a gang's hosts: the hosts of a pair, concurrent pairs, and the search for slow hosts."""

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import orjson

from perfdag.hosts.base import Host
from perfdag.hosts.local import descendants
from perfdag.outcome import VERDICT, VERDICT_VALUES, VerdictWord
from perfdag.results.labels import difference
from perfdag.results.samples import SampleRecord, now
from perfdag.shape import Shape
from perfdag.stats.design import Hunt
from perfdag.stats.robust import median
from perfdag.steps.loop.measure import GangLost, LocalPool, Sampler, by_number
from perfdag.suite.points import Pair, Point

OVERLAP = 0.5
"""Least share of a sample's time that each companion must overlap."""


def run_concurrently(
    samples: Sequence[Callable[[], SampleRecord]], halt: Callable[[], None]
) -> list[SampleRecord]:
    """Run samples concurrently; return their records in order.

    Raises the exception of a sample after all have ended. An interrupt calls `halt` and kills
    every child process: these samples are not stored.
    """
    with ThreadPoolExecutor(len(samples)) as pool:
        running = [pool.submit(sample) for sample in samples]
        try:
            return [future.result() for future in running]
        except (KeyboardInterrupt, SystemExit):
            halt()
            for pid in descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            raise


def missing_overlaps(records: Sequence[SampleRecord]) -> list[str | None]:
    """Return for each sample why its companions did not overlap with it; None if they did."""
    return [
        _missing_overlap(record, [other for other in records if other is not record])
        for record in records
    ]


def _missing_overlap(record: SampleRecord, others: Sequence[SampleRecord]) -> str | None:
    claim = f"{len(others) + 1} pairs were to be measured at once"
    start, end = _times(record)
    for other in others:
        if other.status != "ok":
            return f"{claim}, but another of them was {other.status}: {other.error}"
        begin, stop = _times(other)
        shared = max(0.0, (min(end, stop) - max(start, begin)).total_seconds())
        if shared < OVERLAP * (end - start).total_seconds():
            total = (end - start).total_seconds()
            return f"{claim}, but this one shared {shared:.2f} s of its {total:.2f} s with another"
    return None


def _times(record: SampleRecord) -> tuple[datetime, datetime]:
    return datetime.fromisoformat(record.started_at), datetime.fromisoformat(record.finished_at)


# -- `hosts.pairs: hunt` ---------------------------------------------------------------------------

SLOWNESS = "slowness"
"""The score of a host: the part of the typical speed that its pairs lack."""
RULE = "no slow host"
EXPLAINED = 200
"""Characters of the facts in which a slow host differs from the others."""
Measured = tuple[str, int, int, SampleRecord]
"""A pair by its hosts' names, its round (0: alone), the pairs at once, and its record."""


def hunt(
    sampler: Sampler,
    pool: LocalPool,
    halt: Callable[[], None],
    point: Point,
    shape: Shape,
    repetition: int,
) -> SampleRecord:
    """Return the record of a hunt, with a row for each pair and host, and a verdict.

    If no pair of the first round can be measured, return the record of one. Raises GangLost.
    """
    hosts = by_number(pool.hosts_for(shape))
    names = _names(hosts)
    state = Hunt(len(hosts), f"{point.id}:{repetition}")
    measured: list[Measured] = []
    while pairs := state.pairs():
        limit = shape.hosts.parallel_pairs if shape.hosts.parallel_pairs > 1 else len(pairs)
        alone = len(pairs) == 1
        speeds: list[float | None] = []
        for start in range(0, len(pairs), limit):
            group = pairs[start : start + limit]
            points = [replace(point, pair=Pair(a, b, 0, 0, point.id)) for a, b in group]
            samples = [
                partial(sampler.measure, pair_point, shape, repetition) for pair_point in points
            ]
            records = [samples[0]()] if alone else run_concurrently(samples, halt)
            if any(r.status != "ok" for r in records) and (why := pool.lost()):
                raise GangLost(why)
            speeds += map(_speed, records)
            measured += [
                (f"{names[a]} - {names[b]}", 0 if alone else state.rounds + 1, len(group), record)
                for (a, b), record in zip(group, records, strict=True)
            ]
        if not any(record.status == "ok" for *_, record in measured):
            return measured[0][-1]
        state.record(pairs, speeds)
    record = _merged(measured)
    sampler.add_provenance(record, hosts)
    facts = {name: sampler.host_facts[host.name] for name, host in zip(names, hosts, strict=True)}
    record.rows += [_slowness(name, state.slowness(at)) for at, name in enumerate(names)]
    record.rows.append(_verdict(state, names, facts))
    return record


def _names(hosts: Sequence[Host]) -> list[str]:
    """Return the nodes of hosts, or `3 (node)` where a node has several."""
    nodes = [host.name for host in hosts]
    distinct = len(set(nodes)) == len(nodes)
    return nodes if distinct else [f"{number} ({node})" for number, node in enumerate(nodes)]


def _headline(record: SampleRecord) -> dict[str, Any] | None:
    return next((row for row in record.rows if row["headline"]), None)


def _speed(record: SampleRecord) -> float | None:
    """Return a value whose higher is better: that of a latency is inverted."""
    row = _headline(record)
    if record.status != "ok" or row is None or not row["value"] > 0:
        return None
    return float(row["value"] if row["better"] == "higher" else 1 / row["value"])


def _merged(measured: Sequence[Measured]) -> SampleRecord:
    """Return one record of all pairs: their medians at once, then the headline of each pair."""
    good = [(name, number, at_once, r) for name, number, at_once, r in measured if r.status == "ok"]
    failed = [f"{name}: {r.error}" for name, _, _, r in measured if r.status != "ok"]
    first, noise = good[0][-1], [r.noise for *_, r in measured if r.noise]
    series: dict[bytes, list[dict[str, Any]]] = {}
    rows: list[dict[str, Any]] = []
    for name, number, together, record in good:
        if number:
            for row in record.rows:
                key = orjson.dumps([row["metric"], row["stat"], row.get("coords")])
                series.setdefault(key, []).append(row)
        if (own := _headline(record)) is not None:
            coords = {**own.get("coords", {}), "round": number, "pairs_at_once": together}
            rows.append({**own, "coords": coords, "subject": name, "headline": False})
    medians = [
        {**group[0], "value": median([row["value"] for row in group]), "n": len(group)}
        for group in series.values()
        if group[0].get("subject") is None
    ]
    return replace(
        first,
        rows=[*medians, *rows],
        texts={},
        facts={**first.facts, "pairs": len(measured), "failed_pairs": failed[:20]},
        noise=f"{noise[0]} ({len(noise)} of {len(measured)} pairs)" if noise else None,
        finished_at=now(),
    )


def _slowness(name: str, value: float) -> dict[str, Any]:
    return {**_ROW, "metric": SLOWNESS, "value": value, "better": "lower", "subject": name}


_ROW = {"stat": "value", "unit": "1", "headline": False}


def _verdict(state: Hunt, names: Sequence[str], facts: dict[str, Any]) -> dict[str, Any]:
    """Return the row that names the slow hosts and the facts in which each differs."""
    word: VerdictWord = "passed"
    notes = []
    for slow in state.slow:
        differs = difference(facts, names[slow.host], EXPLAINED)
        why = f" ({differs})" if differs else ""
        notes.append(f"{names[slow.host]} is {100 * slow.slowness:.0f} % slow{why}")
    if state.unknown:
        notes.append(f"undecided: {', '.join(names[host] for host in state.unknown[:6])}")
        word = "inconclusive"
    if state.slow:
        word = "failed"
    note = "; ".join(notes) or f"{len(names)} hosts cleared in {state.rounds} rounds"
    value = VERDICT_VALUES[word]
    return {
        **_ROW,
        "metric": VERDICT,
        "value": value,
        "better": "higher",
        "subject": RULE,
        "note": note,
    }
