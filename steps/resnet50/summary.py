"""Read the log of one LoadGen test."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class UnreadableError(ValueError):
    """A log lacks what every finished LoadGen test writes; the text names it."""


@dataclass(frozen=True)
class Summary:
    """One test: latencies by percentile (0.99) in s, rates in 1/s; Offline counts samples.

    `estimate` is early stopping's estimate of a stream's p90 in seconds. `met` has the constraints
    of the test by name, as far as they apply.
    """

    valid: bool
    reasons: tuple[str, ...]
    queries: int
    rate: float | None
    scheduled_rate: float | None
    mean: float | None
    percentiles: Mapping[float, float]
    estimate: float | None
    version: str
    met: Mapping[str, bool]


_CONSTRAINTS = {
    "result_perf_constraints_met": "Performance constraints",
    "result_min_duration_met": "Min duration",
    "result_min_queries_met": "Min queries",
    "early_stopping_met": "Early stopping",
}
_PERCENTILE = re.compile(r"^result_(\d+\.\d+)_percentile_latency_ns$")


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


def read(detail: str) -> Summary:
    """Read the detail log of a performance test. Raises UnreadableError if it is cut.

    Source: the `:::MLLOG` lines of LoadGen 6.0 (mlcommons/inference, loadgen/results.cc).
    """
    keys = mllog(detail)
    # One of the last lines that a finished test writes.
    if "result_99.90_percentile_latency_ns" not in keys or "result_validity" not in keys:
        raise UnreadableError(
            "LoadGen's detail log has no result: the test did not end, or it is cut"
        )

    def number(*names: str) -> float | None:
        found = [keys[name] for name in names if isinstance(keys.get(name), int | float)]
        return float(found[0]) if found else None

    def seconds(name: str) -> float | None:
        return value / 1e9 if (value := number(name)) else None

    valid = keys["result_validity"] == "VALID"
    met = {name: keys[name] for name in _CONSTRAINTS if isinstance(keys.get(name), bool)}
    reasons = [f"{_CONSTRAINTS[name]} satisfied: NO" for name, held in met.items() if not held]
    reasons.append(str(keys.get("result_invalid_reason") or "").strip())
    if met.get("early_stopping_met") is False:
        reasons.append(" ".join(str(keys.get("early_stopping_result")).replace("*", "").split()))
    offline = keys.get("effective_scenario") == "Offline"
    samples = int(number("effective_samples_per_query") or 1) if offline else 1
    return Summary(
        valid,
        () if valid else tuple(filter(None, reasons)) or ("LoadGen gives no reason",),
        int(number("result_query_count") or 0) * samples,
        number("result_completed_samples_per_sec", "result_samples_per_second"),
        number("result_scheduled_samples_per_sec"),
        seconds("result_mean_latency_ns"),
        {
            round(float(found[1]) / 100, 6): value / 1e9
            for key, value in keys.items()
            if (found := _PERCENTILE.match(key))
        },
        seconds("early_stopping_latency_ss"),
        str(keys.get("loadgen_version", "unknown")),
        met,
    )
