"""Rows as a Parquet file, one row a workload and stage, and KubeVirt's audit form of the figures."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import orjson

from perfdag.steps.scale.rows import Row
from perfdag.steps.scale.vmi import Result

_NUMBERS = {"seconds", "resolution_s", "api_time", "event_time", "receive_time", "intended", "submitted"}
_AUDIT = {"creation_to_running": "vmiCreationToRunningSeconds", "deletion": "vmiDeletionToSucceededSeconds"}


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write rows (atomically). Times are Unix seconds, `seconds` seconds; columns are those of Row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types: dict[str, Any] = {"index": pa.int64(), "retries": pa.int64(), "objects": pa.int64(), "simulated": pa.bool_()}
    schema = pa.schema([(f.name, types.get(f.name, pa.float64() if f.name in _NUMBERS else pa.string())) for f in fields(Row)])
    columns = {f.name: [getattr(row, f.name) for row in rows] for f in fields(Row)}
    new = path.with_suffix(".new")
    pq.write_table(pa.table(columns, schema=schema), new, compression="zstd")
    new.replace(path)


def audit(results: Sequence[Result]) -> dict[str, Any]:
    """The audit's `Values` of the last result, with its keys, thresholds and verdicts (kubevirt/kubevirt, tools/perfscale-audit)."""
    result = results[-1]
    values: dict[str, Any] = {}
    for stage, key in _AUDIT.items():
        for p in (50, 95, 99):
            values[f"{key}P{p}"] = {"value": result.figures.get(f"{stage}_p{p}")}
    values |= {name: {"value": value} for name, value in result.figures.items() if name.endswith("-count")}
    for name in ("throughput_mean", "throughput_best_5s", "api_p99", "success_ratio"):
        values[name] = {"value": result.figures.get(name)}
    for verdict in result.verdicts:
        threshold: dict[str, Any] = {"thresholdValue": verdict.threshold, "thresholdExceeded": not verdict.passed}
        if verdict.gate.other:
            threshold |= {"thresholdMetric": verdict.gate.other, "thresholdRatio": verdict.gate.value}
        values.setdefault(verdict.gate.metric, {"value": verdict.value})["thresholdResult"] = threshold
    return {"Values": values}


def write_json(path: Path, value: Any) -> None:
    """Write JSON (atomically, keys in the order given)."""
    new = path.with_suffix(".new")
    new.write_bytes(orjson.dumps(value, option=orjson.OPT_INDENT_2))
    new.replace(path)
