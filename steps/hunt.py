"""`hosts.pairs: hunt`: the slow hosts of a gang, found by measuring pairs of them at once.

`perfdag.stats.design` decides which pairs are next, and which hosts are slow.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from perfdag.benchmark.contract import VERDICT, Measurement, Metric, VerdictWord, verdict
from perfdag.results.labels import difference
from perfdag.results.samples import SampleRecord, as_row, now
from perfdag.shape import Shape, canonical
from perfdag.stats.design import Hunt
from perfdag.stats.robust import median

RULE = "no slow host"
SLOWNESS = Metric("slowness", "1", "lower", "part of the typical speed that the pairs of it lack")
OWN_VERDICT = Metric(VERDICT, "1", "higher", RULE)
EXPLAINED = 200
"""Characters of the facts in which a slow host differs from the others."""
Measured = tuple[str, int, int, SampleRecord]
"""A pair by its hosts' names, its round (0: alone), the pairs at once, and its record."""


def hunt(
    nodes: Sequence[str],
    facts: Mapping[str, Mapping[str, Any]],
    shape: Shape,
    seed: str,
    measure: Callable[[Sequence[tuple[int, int]]], list[SampleRecord]],
) -> SampleRecord:
    """Return the record of a hunt, with a row for each pair and host, and a verdict.

    `nodes` are those of the hosts by number, `facts` gets theirs while `measure` returns the
    records of pairs that it measures at once. If no pair of the first round can be measured, return
    the record of one.
    """
    distinct = len(set(nodes)) == len(nodes)
    names = [node if distinct else f"{number} ({node})" for number, node in enumerate(nodes)]
    state = Hunt(len(nodes), seed)
    measured: list[Measured] = []
    while pairs := state.pairs():
        limit = shape.hosts.parallel_pairs if shape.hosts.parallel_pairs > 1 else len(pairs)
        number = 0 if len(pairs) == 1 else state.rounds + 1
        speeds: list[float | None] = []
        for start in range(0, len(pairs), limit):
            group = pairs[start : start + limit]
            for (a, b), record in zip(group, measure(group), strict=True):
                speeds.append(_speed(record))
                measured.append((f"{names[a]} - {names[b]}", number, len(group), record))
        if not any(record.status == "ok" for *_, record in measured):
            return measured[0][-1]
        state.record(pairs, speeds)
    record = _merged(measured)
    record.rows += [
        as_row(SLOWNESS, Measurement(SLOWNESS.name, state.slowness(at), subject=name))
        for at, name in enumerate(names)
    ]
    by_name = {name: facts.get(node, {}) for name, node in zip(names, nodes, strict=True)}
    record.rows.append(as_row(OWN_VERDICT, _verdict(state, names, by_name)))
    return record


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
    good = [each for each in measured if each[-1].status == "ok"]
    failed = [f"{name}: {record.error}" for name, *_, record in measured if record.status != "ok"]
    first, noise = good[0][-1], [record.noise for *_, record in measured if record.noise]
    series: dict[str, list[dict[str, Any]]] = {}
    rows: list[dict[str, Any]] = []
    for name, number, together, record in good:
        for row in record.rows if number else ():
            key = canonical([row["metric"], row["stat"], row.get("coords")])
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


def _verdict(state: Hunt, names: Sequence[str], facts: Mapping[str, Any]) -> Measurement:
    """Return the verdict, whose note names the slow hosts and the facts in which each differs."""
    notes = []
    for host, slowness in state.slow.items():
        differs = difference(facts, names[host], EXPLAINED)
        why = f" ({differs})" if differs else ""
        notes.append(f"{names[host]} is {100 * slowness:.0f} % slow{why}")
    if state.unknown:
        notes.append(f"undecided: {', '.join(names[host] for host in state.unknown[:6])}")
    word: VerdictWord = "failed" if state.slow else "inconclusive" if state.unknown else "passed"
    cleared = f"{len(names)} hosts cleared in {state.rounds} rounds"
    return verdict(word, RULE, "; ".join(notes) or cleared)
