"""Rows as a Parquet file, and figures in the form of KubeVirt's audit."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import orjson

from perfdag.steps.scale.figures.rows import Row
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
    "deletion": "vmiDeletionToGoneSeconds",
}
_MIB = 2.0**20
_COMPONENTS = {
    "virt_api": "VirtAPI",
    "virt_controller": "VirtController",
    "virt_handler": "VirtHandler",
}
_QUEUES = {
    "workqueue_adds_per_s": "AddRate",
    "workqueue_depth_max": "Depth",
    "workqueue_p99_s_max": "P99Latency",
}


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

    `Rungs` holds the same for every size with all gates. Memory is in MiB, CPU in cores.
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
    values: dict[str, Any] = {}
    for stage, key in _AUDIT.items():
        for p in (50, 95, 99):
            values[f"{key}P{p}"] = {"value": result.figures.get(f"{stage}_p{p}")}
    values |= {
        name: {"value": value} for name, value in result.figures.items() if name.endswith("-count")
    }
    for name in ("throughput_mean", "throughput_best_5s", "api_p99", "success_ratio"):
        values[name] = {"value": result.figures.get(name)}
    for ours, theirs in _COMPONENTS.items():
        for how in ("avg", "min", "max"):
            memory = result.figures.get(f"{ours}_memory_bytes_{how}")
            values[f"{how}{theirs}MemoryUsageInMB"] = {
                "value": None if memory is None else memory / _MIB
            }
            values[f"{how}{theirs}CPUUsage"] = {
                "value": result.figures.get(f"{ours}_cpu_cores_{how}")
            }
    adds, seconds = result.figures.get("workqueue_adds"), result.ended - result.started
    queues = {
        **result.figures,
        "workqueue_adds_per_s": adds / seconds if adds is not None and seconds > 0 else None,
    }
    values |= {
        f"virtControllerWorkqueue{theirs}": {"value": queues.get(ours)}
        for ours, theirs in _QUEUES.items()
    }
    # Of several gates on a metric, a breach comes last and is shown.
    for verdict in sorted(result.verdicts, key=lambda verdict: not verdict.passed):
        threshold: dict[str, Any] = {
            "thresholdValue": verdict.threshold,
            "thresholdExceeded": not verdict.passed,
        }
        if verdict.gate.other:
            threshold |= {
                "thresholdMetric": verdict.gate.other,
                "thresholdRatio": verdict.gate.value,
            }
        # A gate sees the worse value of creation and deletion.
        values[verdict.gate.metric] = {"value": verdict.value, "thresholdResult": threshold}
    return values


def write_json(path: Path, value: Any) -> None:
    """Write JSON (atomically, keys in the order given)."""
    new = path.with_suffix(".new")
    new.write_bytes(orjson.dumps(value, option=orjson.OPT_INDENT_2))
    new.replace(path)
