"""From scenario results to a benchmark's measurements."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perfdag.benchmark import (
    SIMULATED,
    Failed,
    Infrastructure,
    Measurement,
    Metric,
    SampleError,
    Skip,
)
from perfdag.kube import KubeError
from perfdag.steps.scale.apimetrics import DELETION
from perfdag.steps.scale.gates import Gate
from perfdag.steps.scale.generator import nameless
from perfdag.steps.scale.rights import LackingError
from perfdag.steps.scale.rows import Row
from perfdag.steps.scale.summary import Summary

METRICS = (
    Metric(
        "stage_latency",
        "s",
        "lower",
        "time from the stage before, over all objects (coords: stage, since)",
    ),
    Metric("object_latency", "s", "lower", "the same of one object"),
    Metric(
        "object_time", "s", "lower", "when an object reached a stage, from the first submission"
    ),
    Metric(
        "object_missing",
        "s",
        "none",
        "how long an object had waited for a stage that it never reached",
    ),
    Metric(
        "throughput",
        "1/s",
        "higher",
        "objects that reached the goal a second: mean, and the best 5 s",
    ),
    Metric(
        "paced_throughput", "1/s", "none", "the same where the arrivals set the pace (open loop)"
    ),
    Metric("create_rate", "1/s", "none", "objects created a second"),
    Metric("success_ratio", "1", "higher", "objects that reached the goal, of those planned"),
    Metric("create_ratio", "1", "higher", "creations accepted, of those planned"),
    Metric("schedule_held", "1", "higher", "share of its rate that the open loop reached"),
    Metric("submit_lag", "s", "lower", "how late creations were sent (open loop)"),
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
        "objects that were refused or did not get there and of which this is said (coords: message)",
    ),
    Metric(
        "watch_lag",
        "s",
        "lower",
        "from when a change was due to its arrival on the watch: the error bar of all times",
    ),
    Metric(
        "component",
        "1",
        "none",
        "figures from Prometheus (coords: figure; the unit is in its name)",
    ),
    Metric(
        "gates_failed",
        "1",
        "lower",
        "1 for a gate that was breached or had no data, 0 for one that passed (coords: gate)",
    ),
)
_STATS = ("p50", "p95", "p99", "mean", "least", "most")
MOST = 50
"""Distinct messages that are kept."""
_NAMES = {"least": "min", "most": "max"}


def explained(error: KubeError, benchmark: str, rules: Iterable[Mapping[str, Any]]) -> SampleError:
    """What a cluster's refusal means for a sample: no cluster, no such kind or no rights are nobody's fault; an outage is retried.

    `rules` are the rights that `install --allow` grants to the benchmark.
    """
    if error.reason in ("Config", "NoKind"):
        return Skip(str(error))
    if isinstance(error, LackingError) and not all(
        each.granted_by(rules) for each in error.lacking
    ):
        return Skip(
            f"{error}; it is beyond what `--allow {benchmark}` grants, so make the namespace and bind the Role before the run"
        )
    if error.status in (401, 403):
        return Skip(
            f"{error}; `perfdag install --store ... --allow {benchmark}`, with its other options again, grants it to its pods"
        )
    return (
        Infrastructure(str(error))
        if error.status in (0, 429) or error.status >= 500
        else Failed(str(error))
    )


def tool(name: str, simulated: bool) -> str:
    """What was measured, for the rows' column `tool`: comparisons and charts say so where nodes were simulated."""
    return f"{name}, {SIMULATED}" if simulated else name


def of_stages(stages: Sequence[Summary], coords: dict[str, Any]) -> list[Measurement]:
    """Percentiles of each stage; those with too few samples are left out."""
    found = []
    for each in stages:
        here = {**coords, "stage": each.stage, "since": each.since}
        for stat in _STATS:
            value = getattr(each, stat)
            if value is not None:
                found.append(
                    Measurement(
                        "stage_latency",
                        value,
                        _NAMES.get(stat, stat),
                        here,
                        each.ok + each.censored,
                    )
                )
    return found


def of_objects(rows: Sequence[Row], coords: dict[str, Any]) -> list[Measurement]:
    """Each object's own times for the stages that it reached or never will: two rows a stage, 32,000 of 2,000 training workloads (0.3 MB in the
    results)."""
    first = min((row.submitted for row in rows if row.submitted), default=0.0)
    found = []
    for row in rows:
        if row.seconds is None:
            continue
        here = {**coords, "stage": row.stage, "since": row.since}
        if row.status == "censored":
            found.append(Measurement("object_missing", row.seconds, coords=here, subject=row.name))
        elif row.status == "ok":
            found.append(Measurement("object_latency", row.seconds, coords=here, subject=row.name))
            if row.reached:
                found.append(
                    Measurement("object_time", row.reached - first, coords=here, subject=row.name)
                )
    return found


def of_figures(
    figures: dict[str, float | None], coords: dict[str, Any], count: int, of: str = "vms"
) -> list[Measurement]:
    """Named figures of a run of `count` VMs (or what `of` says): rates, ratios, API latency and calls (those of the deletion with coords of
    their own), components."""
    deletion = {name: value for key, value in figures.items() if (name := of_deletion(key))}
    figures = {key: value for key, value in figures.items() if not of_deletion(key)}
    found = of_figures(deletion, {**coords, "phase": DELETION}, count, of) if deletion else []

    def put(metric: str, key: str, stat: str = "value", **more: Any) -> None:
        value = figures.get(key)
        if value is not None:
            found.append(Measurement(metric, value, stat, {**coords, **more}))

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
        if call := call_of(key):
            put("api_calls", key, "value", **{"call": call, of: count})
        elif key.startswith(("virt_", "workqueue_", "node_")):
            put("component", key, figure=key)
    return found


def of_deletion(figure: str) -> str:
    """The name of a figure of the deletion without what says so; nothing for any other (the call of one may have a slash too)."""
    return figure.removeprefix(f"{DELETION}/") if figure.startswith(f"{DELETION}/") else ""


def call_of(figure: str) -> str:
    """The kind of request that a figure counts, or nothing: the audit's second names of POST and PUT would be calls of their own."""
    if (
        figure.endswith("-phase-count")
        or not figure.endswith("-count")
        or figure.startswith(("CREATE-", "UPDATE-"))
    ):
        return ""
    return figure.removesuffix("-count")


def of_calls(
    calls: Sequence[dict[str, Any]], coords: dict[str, Any], most: int = 40
) -> list[Measurement]:
    """p99 by kind of request, the most frequent kinds of each phase."""
    found = []
    for phase in dict.fromkeys(each["phase"] for each in calls):
        here = {**coords, "phase": phase} if phase == DELETION else coords
        for each in [each for each in calls if each["phase"] == phase][:most]:
            if each["p99_s"] is not None:
                found.append(
                    Measurement(
                        "api_latency",
                        each["p99_s"],
                        "p99",
                        {**here, "call": each["call"]},
                        each["count"],
                    )
                )
    return found


def of_gates(verdicts: Sequence[dict[str, Any]], coords: dict[str, Any]) -> list[Measurement]:
    """A row a gate, so that a check names the one that failed."""
    found = []
    for each in verdicts:
        gate = Gate(**each["gate"])
        found.append(
            Measurement(
                "gates_failed", 0.0 if each["passed"] else 1.0, coords={**coords, "gate": str(gate)}
            )
        )
    return found


def messages(rows: Sequence[Row]) -> Counter[str]:
    """What is said of objects that were refused or did not get to a stage, without their names: message -> how many objects."""
    bad = {row.name: row for row in rows if row.error and row.status in ("failed", "censored")}
    return Counter(nameless(row.error or "", row.name) for row in bad.values())


def of_messages(rows: Sequence[Row], coords: dict[str, Any]) -> list[Measurement]:
    """A row for each distinct message with the number of objects; `perfdag history --failures` searches them."""
    return [
        Measurement("failures", float(count), coords={**coords, "message": text})
        for text, count in messages(rows).most_common(MOST)
    ]


def failure_text(rows: Sequence[Row], notes: Sequence[str], limit: int = 5) -> str:
    """The failure messages of objects, most frequent first, and the notes, for a sample's error."""
    parts = [f"{count} x {text}" for text, count in messages(rows).most_common(limit)]
    return "; ".join([*parts, *notes])
