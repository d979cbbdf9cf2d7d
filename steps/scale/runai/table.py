"""Rows as a Parquet file, and figures in the form of KubeVirt's audit."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import orjson

from perfdag.steps.scale.figures.audit_queries import KEYS, REQUESTS, is_request_count
from perfdag.steps.scale.figures.rows import Row
from perfdag.steps.scale.model.gates import Verdict
from perfdag.steps.scale.scenarios.base import Result

_NUMBERS = {
    "seconds",
    "resolution_s",
    "api_time",
    "event_time",
    "receive_time",
    "reached",
    "intended",
    "submitted",
}
_AUDIT = {
    "creation_to_running": "vmiCreationToRunningSeconds",
    "deletion_to_succeeded": "vmiDeletionToSucceededSeconds",
    "deletion_to_failed": "vmiDeletionToFailedSeconds",
}
"""Stages of VMIs. Those of a VM or a replica set begin with `vmi_`."""
_OWN: tuple[str, ...] = ("throughput_mean", "throughput_best_5s", "api_p99", "success_ratio")
_OWN += tuple(f"deletion_p{p}" for p in (50, 95, 99))
_SERVER = "apiserver/"
"""Prefix of request counts of all clients, which the audit does not have."""


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write rows (atomically). Times are Unix seconds; the columns are the fields of Row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types: dict[str, Any] = {
        "index": pa.int64(),
        "retries": pa.int64(),
        "objects": pa.int64(),
        "simulated": pa.bool_(),
    }
    schema = pa.schema(
        [
            (f.name, types.get(f.name, pa.float64() if f.name in _NUMBERS else pa.string()))
            for f in fields(Row)
        ]
    )
    columns = {f.name: [getattr(row, f.name) for row in rows] for f in fields(Row)}
    new = path.with_suffix(".new")
    pq.write_table(pa.table(columns, schema=schema), new, compression="zstd")
    new.replace(path)


def audit(results: Sequence[Result]) -> dict[str, Any]:
    """Return the last measured result in the form of KubeVirt's tools/perfscale-audit.

    `Rungs` holds the same for every size with all gates. Figures of our own have other names.
    """
    if not results:
        return {"Values": {}, "Rungs": []}
    rungs = [
        {
            "Count": result.count,
            "Values": _values(result),
            "Gates": [
                {"gate": str(v.gate), "value": v.value, "passed": v.passed} for v in result.verdicts
            ],
        }
        for result in results
    ]
    last = max(i for i, result in enumerate(results) if i == 0 or not result.error)
    return {"Values": rungs[last]["Values"], "Rungs": rungs}


def _values(result: Result) -> dict[str, Any]:
    figures, values = result.figures, dict[str, Any]()
    for stage, key in _AUDIT.items():
        vmi = f"vmi_{stage}" if f"vmi_{stage}_p50" in figures else stage
        for p in (50, 95, 99):
            values[f"{key}P{p}"] = {"value": figures.get(f"{vmi}_p{p}")}
    for name, value in figures.items():
        if name.endswith("-count"):
            values[_count_key(name)] = {"value": value}
        elif is_request_count(name):
            values[audit_key(name)] = {"value": value}
    for name in (*sorted(KEYS), *_OWN):
        values[name] = {"value": figures.get(name)}
    # Of several gates on a metric, a breach comes last and is shown.
    for verdict in sorted(result.verdicts, key=lambda verdict: not verdict.passed):
        # A gate sees the worse value of creation and deletion.
        values[_count_key(verdict.gate.metric)] = {
            "value": verdict.value,
            "thresholdResult": threshold_result(verdict, _count_key(verdict.gate.other or "")),
        }
    return values


def threshold_result(verdict: Verdict, other: str) -> dict[str, Any]:
    """Return a verdict as the audit writes it. `other` is the key of the gate's other metric."""
    result: dict[str, Any] = {
        "thresholdValue": verdict.threshold,
        "thresholdExceeded": not verdict.passed,
    }
    if other:
        result |= {"thresholdMetric": other, "thresholdRatio": verdict.ratio}
    return result


def audit_key(figure: str) -> str:
    """Return the audit's key of a figure from Prometheus."""
    if not is_request_count(figure):
        return figure
    return f"{figure.removeprefix(f'{REQUESTS}/')}-count"


def _count_key(figure: str) -> str:
    """Return the key of a figure: request counts of all clients get a prefix."""
    counts_requests = figure.endswith("-count") and not figure.endswith("-phase-count")
    return _SERVER + figure if counts_requests else figure


def write_json(path: Path, value: Any) -> None:
    """Write JSON (atomically, keys in the order given)."""
    new = path.with_suffix(".new")
    new.write_bytes(orjson.dumps(value, option=orjson.OPT_INDENT_2))
    new.replace(path)
