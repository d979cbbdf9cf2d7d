"""Read LoadGen's logs: validity with its reasons, rates, percentiles.

Source: mlperf_log_summary.txt and the `:::MLLOG` lines of mlperf_log_detail.txt of LoadGen 6.0
(mlcommons/inference, loadgen/results.cc).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_PERCENTILE = re.compile(r"^result_(\d+\.\d+)_percentile_latency_ns$")
_CONSTRAINT = re.compile(
    r"^\s*((?:Performance constraints|Min duration|Min queries|Early stopping) satisfied)"
    r"\s*:\s*(\w+)",
    re.M,
)
_LINE = re.compile(r"^([A-Za-z0-9_ .]+?)\s*(?:\((?:ns|ms)\)\s*)?:\s*(.+)$", re.M)


class UnreadableError(ValueError):
    """A log lacks what every finished LoadGen test writes; the text names it."""


@dataclass(frozen=True)
class Summary:
    """One test: latencies by percentile (0.99) in s, rates in 1/s; Offline counts samples."""

    scenario: str
    valid: bool
    reasons: tuple[str, ...]
    queries: int
    rate: float | None
    scheduled_rate: float | None
    mean: float | None
    percentiles: Mapping[float, float]
    estimate: float | None
    """Early stopping's estimate of a stream's percentile in seconds: p90, in MultiStream p99."""
    version: str
    keys: Mapping[str, Any] = field(default_factory=dict)


def read(summary: str, detail: str) -> Summary:
    """Read the two logs of a performance test. Raises UnreadableError if one is cut."""
    keys = mllog(detail)
    verdict = re.search(r"^Result is\s*:\s*(VALID|INVALID)\s*$", summary, re.M)
    scenario = re.search(r"^Scenario\s*:\s*(\S+)", summary, re.M)
    if verdict is None or scenario is None:
        raise UnreadableError(
            "LoadGen's summary has no `Result is` line: the test did not end, or the log is cut"
        )
    percentiles = {
        round(float(m[1]) / 100, 6): value / 1e9
        for key, value in keys.items()
        if (m := _PERCENTILE.match(key))
    }
    if not percentiles:
        raise UnreadableError("LoadGen's detail log has no percentiles: the log is cut")
    if keys.get("result_validity") != verdict[1]:
        raise UnreadableError(
            f"LoadGen's summary says {verdict[1]} and its detail log"
            f" {keys.get('result_validity')}: they are of different tests"
        )
    lines = {name.strip(): text.strip() for name, text in _LINE.findall(summary)}
    return Summary(
        scenario=scenario[1],
        valid=verdict[1] == "VALID",
        reasons=_reasons(summary, verdict[1] == "VALID"),
        queries=_completed(scenario[1], keys, lines),
        rate=_number(keys, "result_completed_samples_per_sec", "result_samples_per_second"),
        scheduled_rate=_number(keys, "result_scheduled_samples_per_sec"),
        mean=_scaled(_number(keys, "result_mean_latency_ns")),
        percentiles=percentiles,
        estimate=_scaled(
            _number(keys, "early_stopping_latency_ss", "early_stopping_latency_ms") or None
        ),
        version=str(keys.get("loadgen_version", "unknown")),
        keys=keys,
    )


def mllog(detail: str) -> dict[str, Any]:
    """Return the `:::MLLOG` pairs; the last value of a key wins, a cut last line is skipped."""
    keys: dict[str, Any] = {}
    for line in detail.splitlines():
        if line.startswith(":::MLLOG "):
            try:
                record = json.loads(line[9:])
            except ValueError:
                continue
            keys[str(record.get("key"))] = record.get("value")
    return keys


def _reasons(summary: str, valid: bool) -> tuple[str, ...]:
    """Return LoadGen's reasons for INVALID: constraints, recommendations, early stopping."""
    if valid:
        return ()
    reasons = [
        f"{name}: {word}" for name, word in _CONSTRAINT.findall(summary) if word.lower() != "yes"
    ]
    recommendations = re.search(
        r"^Recommendations:\s*\n(.*?)(?=^Early Stopping Result|^=====|\Z)", summary, re.M | re.S
    )
    if recommendations:
        reasons += [line.strip(" *\t") for line in recommendations[1].splitlines() if line.strip()]
    if (early := _early(summary)) and any(reason.startswith("Early") for reason in reasons):
        reasons.append(early)
    return tuple(reasons) or ("LoadGen gives no reason",)


def _early(summary: str) -> str:
    block = re.search(r"^Early Stopping Result:\s*\n((?: \*? ?.*\n)+)", summary, re.M)
    return " ".join(line.strip(" *\t") for line in block[1].splitlines()) if block else ""


def _number(keys: Mapping[str, Any], *names: str) -> float | None:
    for name in names:
        if isinstance(value := keys.get(name), int | float):
            return float(value)
    return None


def _scaled(nanoseconds: float | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1e9


def _completed(scenario: str, keys: Mapping[str, Any], lines: Mapping[str, str]) -> int:
    """Return the completed queries; in Offline, with one query, its samples."""
    queries = int(keys.get("result_query_count") or 0)
    return queries * int(lines.get("samples_per_query", "1")) if scenario == "Offline" else queries
