"""From scenario results to a benchmark's measurements."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from perfdag.benchmark.contract import SIMULATED, Metric, Rights
from perfdag.kube.client import KubeError
from perfdag.outcome import (
    Failed,
    Infrastructure,
    Measurement,
    SampleError,
    Skip,
    VerdictWord,
    verdict,
)
from perfdag.steps.scale.cluster.rights import MissingRightsError
from perfdag.steps.scale.figures.api_metrics import DELETION
from perfdag.steps.scale.figures.gates import Gate, Verdict
from perfdag.steps.scale.figures.prometheus import KEYS
from perfdag.steps.scale.figures.rows import Row, Summary
from perfdag.steps.scale.measure.generator import without_name

METRICS = (
    Metric(
        "stage_latency",
        "s",
        "lower",
        "time since the previous stage, over all objects (coords: stage, since)",
        lowest=-math.inf,
    ),
    Metric(
        "object_latency",
        "s",
        "lower",
        "time since the previous stage of one object",
        lowest=-math.inf,
    ),
    Metric(
        "object_time", "s", "lower", "when an object reached a stage, from the first submission"
    ),
    Metric(
        "object_missing",
        "s",
        "none",
        "time that an object waited for a stage that it never reached",
    ),
    Metric(
        "throughput",
        "1/s",
        "higher",
        "objects that reached the goal a second: mean, and the best 5 s",
    ),
    Metric(
        "paced_throughput", "1/s", "none", "throughput if the arrivals set the pace (open loop)"
    ),
    Metric("create_rate", "1/s", "none", "objects created a second"),
    Metric(
        "success_ratio", "1", "higher", "objects that reached the goal, of those planned", highest=1
    ),
    Metric(
        "create_ratio",
        "1",
        "higher",
        "creations accepted, of those planned",
        highest=1,
    ),
    Metric("schedule_held", "1", "higher", "share of its rate that the open loop reached"),
    Metric(
        "submit_lag", "s", "lower", "how late creations were sent (open loop)", lowest=-math.inf
    ),
    Metric("left_behind", "1", "lower", "objects still there after deletion"),
    Metric(
        "api_latency",
        "s",
        "lower",
        "p99 of API requests of one kind (coords: call; phase: deletion)",
    ),
    Metric(
        "api_p99",
        "s",
        "lower",
        "p99 of the slowest kind of single-object API request (coords of the deletion: phase)",
    ),
    Metric(
        "api_calls",
        "1",
        "none",
        "API requests of one kind (coords: call, vms or objects; phase: deletion)",
    ),
    Metric(
        "failures",
        "1",
        "lower",
        "objects that were refused or missed the goal, by reason (coords: message)",
    ),
    Metric(
        "watch_lag",
        "s",
        "lower",
        "p99 of the time from a due change to its watch event",
        lowest=-math.inf,
    ),
    Metric(
        "component",
        "1",
        "none",
        "figures from Prometheus (coords: figure; the unit is in its name)",
    ),
)
COORDS = ("stage", "since", "phase", "call", "figure", "message", "vms", "objects")
_STATS = ("p50", "p95", "p99", "mean", "least", "most")
MOST = 50
"""Distinct messages that are kept."""
_NAMES = {"least": "min", "most": "max"}


def sample_error(error: KubeError, benchmark: str, rights: Rights) -> SampleError:
    """Convert an error of the cluster to the outcome of a sample.

    A missing cluster, kind or right skips the sample, and an outage is retried. `rights` are
    those that `install --allow` grants to the benchmark.
    """
    if error.reason in ("Config", "NoKind"):
        return Skip(str(error))
    if isinstance(error, MissingRightsError) and not all(
        lack.granted_by(rights.named) for lack in error.missing
    ):
        return Skip(
            f"{error}; `--allow {benchmark}` does not grant it: create the namespace and bind a "
            "Role before the run"
        )
    if error.status in (401, 403):
        return Skip(
            f"{error}; `perfdag install --store ... --allow {benchmark}=NAMESPACE`, with its other "
            "options repeated, grants it to its pods there"
        )
    return (
        Infrastructure(str(error))
        if error.status in (0, 429) or error.status >= 500
        else Failed(str(error))
    )


def tool(name: str, simulated: bool) -> str:
    """Return the value of the column `tool`, which also says whether nodes were simulated."""
    return f"{name}, {SIMULATED}" if simulated else name


def percentile_measurements(
    stages: Sequence[Summary], stage: str, coords: dict[str, Any]
) -> list[Measurement]:
    """Return the percentiles of one stage as a metric of its name, where it has enough samples."""
    summary = next((summary for summary in stages if summary.stage == stage), None)
    if summary is None:
        return []
    values = {"p50": summary.p50, "p95": summary.p95, "p99": summary.p99}
    n = summary.ok + summary.censored
    return [
        Measurement(stage, value, stat, coords, n)
        for stat, value in values.items()
        if value is not None
    ]


def stage_measurements(stages: Sequence[Summary], coords: dict[str, Any]) -> list[Measurement]:
    """Return the percentiles of all stages that have enough samples."""
    measurements = []
    for summary in stages:
        stage_coords = {**coords, "stage": summary.stage, "since": summary.since}
        for stat in _STATS:
            value = getattr(summary, stat)
            if value is not None:
                measurements.append(
                    Measurement(
                        "stage_latency",
                        value,
                        _NAMES.get(stat, stat),
                        stage_coords,
                        summary.ok + summary.censored,
                    )
                )
    return measurements


def object_measurements(rows: Sequence[Row], coords: dict[str, Any]) -> list[Measurement]:
    """Return the times of single objects: two rows per stage, 0.3 MB for 2,000 workloads."""
    first = min((row.submitted for row in rows if row.submitted), default=0.0)
    measurements = []
    for row in rows:
        if row.seconds is None:
            continue
        stage_coords = {**coords, "stage": row.stage, "since": row.since}
        if row.status == "censored":
            measurements.append(
                Measurement("object_missing", row.seconds, coords=stage_coords, subject=row.name)
            )
        elif row.status == "ok":
            measurements.append(
                Measurement("object_latency", row.seconds, coords=stage_coords, subject=row.name)
            )
            if row.reached:
                measurements.append(
                    Measurement(
                        "object_time", row.reached - first, coords=stage_coords, subject=row.name
                    )
                )
    return measurements


def figure_measurements(
    figures: dict[str, float | None], coords: dict[str, Any], count: int, of: str = "vms"
) -> list[Measurement]:
    """Return the named figures of `count` objects. Those of the deletion have the coord `phase`."""
    deletion = {name: value for key, value in figures.items() if (name := deletion_name(key))}
    figures = {key: value for key, value in figures.items() if not deletion_name(key)}
    measurements = (
        figure_measurements(deletion, {**coords, "phase": DELETION}, count, of) if deletion else []
    )

    def put(metric: str, key: str, stat: str = "value", **more: Any) -> None:
        value = figures.get(key)
        if value is not None:
            measurements.append(Measurement(metric, value, stat, {**coords, **more}))

    pace = "throughput" if figures.get("submit_lag") is None else "paced_throughput"
    put(pace, "throughput_mean", "mean")
    put(pace, "throughput_best_5s", "best_5s")
    for name in (
        "create_rate",
        "success_ratio",
        "create_ratio",
        "schedule_held",
        "submit_lag",
        "left_behind",
        "api_p99",
    ):
        put(name, name, "p99" if name in ("submit_lag", "api_p99") else "value")
    put("watch_lag", "watch_lag_p99", "p99")
    for key in figures:
        if call := call_name(key):
            put("api_calls", key, "value", **{"call": call, of: count})
        elif key in KEYS or key.startswith(("virt_", "workqueue_", "node_")):
            put("component", key, figure=key)
    return measurements


def deletion_name(figure: str) -> str:
    """Return a deletion figure's name without its prefix, or an empty string for other figures."""
    return figure.removeprefix(f"{DELETION}/") if figure.startswith(f"{DELETION}/") else ""


def call_name(figure: str) -> str:
    """Return the kind of request that a figure counts. Audit aliases of POST and PUT give none."""
    if (
        figure.endswith("-phase-count")
        or not figure.endswith("-count")
        or figure.startswith(("CREATE-", "UPDATE-"))
    ):
        return ""
    return figure.removesuffix("-count")


def call_measurements(
    calls: Sequence[dict[str, Any]], coords: dict[str, Any], most: int = 40
) -> list[Measurement]:
    """Return the p99 by kind of request, for the most frequent kinds of every phase."""
    measurements = []
    for phase in dict.fromkeys(call["phase"] for call in calls):
        phase_coords = {**coords, "phase": phase} if phase == DELETION else coords
        for call in [call for call in calls if call["phase"] == phase][:most]:
            if call["p99_s"] is not None:
                measurements.append(
                    Measurement(
                        "api_latency",
                        call["p99_s"],
                        "p99",
                        {**phase_coords, "call": call["call"]},
                        call["count"],
                    )
                )
    return measurements


def gate_measurements(
    verdicts: Sequence[dict[str, Any]], coords: dict[str, Any]
) -> list[Measurement]:
    """Return the verdict of each gate. Missing data fails it."""
    measurements = []
    for raw in verdicts:
        gate = Verdict(**{**raw, "gate": Gate(**raw["gate"])})
        word: VerdictWord = "passed" if gate.passed else "failed"
        measurements.append(verdict(word, str(gate.gate), gate.figures(), coords))
    return measurements


def messages(rows: Sequence[Row]) -> Counter[str]:
    """Count the failed and censored objects by message, without object names."""
    bad = {row.name: row for row in rows if row.error and row.status in ("failed", "censored")}
    return Counter(without_name(row.error or "", row.name) for row in bad.values())


def message_measurements(rows: Sequence[Row], coords: dict[str, Any]) -> list[Measurement]:
    """Return one row per distinct message; `perfdag history --failures` searches them."""
    return [
        Measurement("failures", float(count), coords={**coords, "message": text})
        for text, count in messages(rows).most_common(MOST)
    ]


def failure_text(rows: Sequence[Row], notes: Sequence[str], limit: int = 5) -> str:
    """Return failure messages, most frequent first, and the notes, for a sample's error."""
    parts = [f"{count} x {text}" for text, count in messages(rows).most_common(limit)]
    return "; ".join([*parts, *notes])
