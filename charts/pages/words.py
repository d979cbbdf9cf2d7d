"""Describe a run in sentences: what ran, where, when, and how it ended."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from perfdag.charts.series import Cell
from perfdag.units import plural, short, short_seconds

BAD = ("failed", "invalid", "missing")


def counts(cells: Sequence[Cell]) -> Counter[str]:
    """Return the number of samples by status."""
    total: Counter[str] = Counter()
    for cell in cells:
        total.update(cell.state.statuses)
    return total


def what_ran(table: pa.Table, cells: Sequence[Cell], suite: str) -> str:
    """Return `Suite quick: 13 points of 3 benchmarks (fio, imb, iperf), 39 samples.`."""
    names = sorted({cell.state.benchmark for cell in cells})
    total = sum(counts(cells).values())
    warm = pc.sum(pc.equal(table["phase"], "warmup")).as_py()
    tail = " Warm-up rounds are stored and left out here." if warm else ""
    what = (
        f"{plural(len(cells), 'point')} of {plural(len(names), 'benchmark')} ({', '.join(names)})"
        if cells
        else "no points"
    )
    return f"Suite {suite}: {what}, {plural(total, 'sample')}.{tail}"


def when_where(table: pa.Table) -> str:
    """Return times (UTC), duration, cluster, nodes and hardware."""
    start, end = pc.min(table["started_at"]).as_py(), pc.max(table["finished_at"]).as_py()
    parts = []
    if start is not None:
        parts.append(f"Measured {start:%Y-%m-%d %H:%M:%S} UTC{_for(start, end)}")
    names = _distinct(table["cluster"])
    nodes = sorted(
        name
        for name in pc.unique(pc.list_flatten(table["nodes"].combine_chunks())).to_pylist()
        if name
    )
    if names:
        parts.append(f"in cluster {', '.join(names)}")
    if nodes:
        first_nodes = ", ".join(nodes[:6]) + (
            f" and {len(nodes) - 6} more" if len(nodes) > 6 else ""
        )
        parts.append(
            f"on {first_nodes}" if len(nodes) == 1 else f"on {len(nodes)} hosts: {first_nodes}"
        )
    classes = _distinct(table["env_class"])
    classes = [
        name for name in classes if " x [" not in name
    ] or classes  # a multiple says no more than the count of hosts
    if classes:
        parts.append(f"({'; '.join(classes[:3])})")
    return " ".join(parts) + "." if parts else ""


def _for(start: datetime, end: datetime | None) -> str:
    return (
        f", {short_seconds((end - start).total_seconds())} from the first sample to the last"
        if end is not None
        else ""
    )


def _distinct(column: Any) -> list[str]:
    return sorted(text for text in column.unique().to_pylist() if text)


def how_it_ended(cells: Sequence[Cell]) -> tuple[bool, str]:
    """Return whether every sample was measured, and a sentence with the samples by status."""
    counts_by_status = counts(cells)
    bad = {status: counts_by_status[status] for status in BAD if counts_by_status[status]}
    parts = [
        f"{counts_by_status['ok']:,} ok",
        *(f"{count:,} {status}" for status, count in bad.items()),
    ]
    if counts_by_status["skipped"]:
        parts.append(f"{counts_by_status['skipped']:,} skipped")
    text = f"Samples: {', '.join(parts)}."
    without = sum(1 for cell in cells if cell.why)
    if without:
        verb = "has" if without == 1 else "have"
        text += f" {plural(without, 'point')} of {len(cells):,} {verb} no valid sample."
    if not counts_by_status:
        return False, "No samples."
    return not bad, text


def environment(table: pa.Table) -> list[tuple[str, str]]:
    """Return the facts of the hosts as flat text, with all values of a fact that differs."""
    facts: dict[str, dict[str, None]] = {}
    for text in _distinct(table["env"]):
        for name, value in _flat({k: v for k, v in orjson.loads(text).items() if k != "sample"}):
            facts.setdefault(name, {})[value] = None
    return _facts_text(facts)


def sample_facts(table: pa.Table) -> list[tuple[str, str]]:
    """Return the facts of samples, such as the file system of a target, and their tools."""
    facts: dict[str, dict[str, None]] = {}
    columns = [table[name].to_pylist() for name in ("benchmark", "env", "tool")]
    for benchmark, text, tool in sorted(set(zip(*columns, strict=True)), key=str):
        if tool:
            facts.setdefault(f"{benchmark}: tool", {})[tool] = None
        for name, value in _flat((orjson.loads(text) if text else {}).get("sample") or {}):
            facts.setdefault(f"{benchmark}: {name}", {})[value] = None
    return _facts_text(facts)


def _facts_text(facts: Mapping[str, Collection[str]]) -> list[tuple[str, str]]:
    return [
        (name, " | ".join(list(values)[:4]) + (" | ..." if len(values) > 4 else ""))
        for name, values in facts.items()
    ]


def _flat(value: Any, prefix: str = "") -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [
            item
            for key, inner in value.items()
            for item in _flat(inner, f"{prefix}.{key}" if prefix else str(key))
        ]
    if isinstance(value, list):
        if all(not isinstance(item, dict | list) for item in value):
            return [(prefix, ", ".join(map(str, value)))] if value else []
        return [item for i, inner in enumerate(value) for item in _flat(inner, f"{prefix}.{i + 1}")]
    if value is None or value == "":
        return []
    if isinstance(value, int | float) and not isinstance(value, bool) and prefix.endswith("bytes"):
        return [(prefix, short(float(value), "B"))]
    return [(prefix, str(value))]
