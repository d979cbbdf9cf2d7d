"""Figures of KubeVirt's components and the nodes, from Prometheus (/api/v1/query_range).

Queries cover the run's own window and start after the first scrape behind its end. Missing data is
None, never 0. Some are those of KubeVirt's perfscale-audit, under its names: memory in MiB of
container_memory_rss, CPU in cores, those of virt-handler per VMI of a node. Source: kubevirt,
tools/perfscale-audit. docs/scale.md lists the differences.
"""

import asyncio
import math
import re
import time
from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from perfdag.kube.client import Prometheus
from perfdag.steps.scale.figures.api_metrics import quantile

RATE_WINDOW = 60.0
"""Seconds of the windows in which rates are computed."""
Point = tuple[float, float]
"""Unix seconds and value."""


def points_of(data: dict[str, Any], label: str = "") -> list[list[Point]]:
    """Return the points of all series of an answer, or of those with the label."""
    chosen = [series for series in data["result"] if not label or series["metric"].get(label)]
    return [[(float(at), float(value)) for at, value in series["values"]] for series in chosen]


def fold(series: list[list[Point]], how: str, start: float = -math.inf) -> dict[str, float | None]:
    """Fold the series of a query to figures by suffix. NaN points are skipped.

    Growth and rates are computed per series and summed. New series start from 0 if another one has
    a point at `start`.
    """
    series = [[point for point in points if not math.isnan(point[1])] for points in series]
    if how in ("growth", "rate"):
        series = with_starts(series, start)
    if how == "growth":
        grown = [sum(grown for _, grown in growth(points)) for points in series if len(points) > 1]
        return {"": sum(grown) if grown else None}
    if how == "rate":
        values = rates(series)
    else:
        at: dict[float, float] = defaultdict(float)
        for points in series:
            for moment, value in points:
                at[moment] += value
        values = list(at.values())
    return _avg_min_max(values)


def with_starts(series: list[list[Point]], start: float) -> list[list[Point]]:
    """Add a point of 0 before counters that begin after `start`.

    Without any point at `start`, new counters cannot be recognised and stay unchanged.
    """
    moments = sorted({at for points in series for at, _ in points})
    if not moments or moments[0] > start + 0.01:
        return series
    before = {after: at for at, after in pairwise(moments)}
    return [
        [(before[points[0][0]], 0.0), *points] if points and points[0][0] in before else points
        for points in series
    ]


def share(rest: list[list[Point]], every: list[list[Point]]) -> dict[str, float | None]:
    """Return the share of the growth of `every` series that is not growth of the `rest`."""
    parts = [
        1 - part / whole for part, whole in zip(rates(rest), rates(every), strict=False) if whole
    ]
    return _avg_min_max(parts)


def p99(buckets: Mapping[float, list[Point]]) -> dict[str, float | None]:
    """Return the p99 of the growth of cumulative buckets, in every window with growth."""
    windows = zip(*(rates([points]) for points in buckets.values()), strict=False)
    values = [quantile(dict(zip(buckets, grown, strict=True)), 0.99)[0] for grown in windows]
    return _avg_min_max([value for value in values if value is not None])


def _avg_min_max(values: list[float]) -> dict[str, float | None]:
    if not values:
        return {"_avg": None, "_min": None, "_max": None}
    return {"_avg": sum(values) / len(values), "_min": min(values), "_max": max(values)}


def growth(points: list[Point]) -> list[Point]:
    """Return the growth of a counter at every point after the first.

    A counter that falls was reset.
    """
    return [
        (at, after - before if after >= before else after)
        for (_, before), (at, after) in pairwise(points)
    ]


def rates(series: list[list[Point]]) -> list[float]:
    """Return the growth per second of all series, over windows of RATE_WINDOW or the whole run.

    PromQL's rate over a fixed range would include time before the run.
    """
    moments = sorted({at for points in series for at, _ in points})
    if len(moments) < 2:
        return []
    count = max(1, int((moments[-1] - moments[0]) / RATE_WINDOW))
    length = (moments[-1] - moments[0]) / count
    grown = [0.0] * count
    for points in series:
        for at, value in growth(points):
            grown[min(count - 1, int((at - moments[0]) / length - 1e-9))] += value
    return [value / length for value in grown]


LONGEST_STEP, POINTS = 15.0, 20
"""Seconds between points, and how many points a short run has at least."""
REQUESTS = "virt_requests"
"""Prefix of the figures `virt_requests/<VERB>-<resource>`: requests of KubeVirt's own pods."""
_PODS = 'pod=~"virt-(api|controller|handler|operator).*"'
SENT = f'{{__name__=~"(kubevirt_)?rest_client_requests_total",{_PODS}}}'
_RSS, _CPU = "container_memory_rss", "container_cpu_usage_seconds_total"
_QUEUE = 'kubevirt_workqueue_%s{container="virt-controller"}[$d]'
_VMIS = 'sum by (node) (node:kubevirt_vmi_phase:sum{node!="",node!="<no value>"})'


def audit_queries() -> dict[str, str]:
    """Return PromQL by audit key, with `$d` for the length of the window and `$s` for a step."""
    by_key = {}
    # The audit takes the mean of all virt-api pods, and the largest virt-controller: the leader.
    for name, pod, across in (("API", "api", "avg"), ("Controller", "controller", "max")):
        own = f'{{pod=~"virt-{pod}.*",container!="",container!="POD"}}'
        by_key[f"avgVirt{name}CPUUsage"] = f"{across}(rate({_CPU}{own}[$d]))"
        for how in ("avg", "min", "max"):
            by_key[f"{how}Virt{name}MemoryUsageInMB"] = (
                f"{across}({how}_over_time({_RSS}{own}[$d])) / 1024 / 1024"
            )
    own = '{pod=~"virt-handler.*",container="virt-handler"}'
    cpu = f"sum by (node) (rate({_CPU}{own}[$d])) / {_VMIS}"
    memory = f"avg_over_time((sum by (node) ({_RSS}{own}) / {_VMIS})[$d:$s])"
    for how in ("avg", "min", "max"):
        by_key[f"{how}VirtHandlerCPUUsage"] = f"{how}({cpu})"
        by_key[f"{how}VirtHandlerMemoryUsageInMB"] = f"{how}({memory}) / 1024 / 1024"
    waited = _QUEUE % "queue_duration_seconds_bucket"
    return by_key | {
        "virtControllerWorkqueueAddRate": f"sum(rate({_QUEUE % 'adds_total'}))",
        "virtControllerWorkqueueDepth": f"sum(rate({_QUEUE % 'depth'}))",
        "virtControllerWorkqueueP99Latency": (
            f"histogram_quantile(0.99, sum by (le) (rate({waited})))"
        ),
    }


def transition_queries() -> dict[str, str]:
    """Return PromQL of KubeVirt's own phase transition times, by audit key; `$d` as in queries."""
    name = "kubevirt_vmi_phase_transition_time_from_%s_seconds_bucket"
    ends = (("creation", "Running"), ("deletion", "Succeeded"), ("deletion", "Failed"))
    return {
        f"vmi{start.title()}To{phase}SecondsP{p}": (
            f"histogram_quantile({p / 100}, sum by (le) "
            f'(rate({name % start}{{phase="{phase}"}}[$d])))'
        )
        for start, phase in ends
        for p in (50, 95, 99)
    }


async def phase_figures(prometheus: Prometheus, at: float) -> dict[str, float | None]:
    """Return `<phase>-phase-count`: all VMIs by phase at a moment in Unix seconds.

    Raises KubeError.
    """
    query = {"query": "sum by (phase) (node:kubevirt_vmi_phase:sum)", "time": f"{at:.3f}"}
    data = (await prometheus.query({"phases": query}, "query"))["phases"]
    return {
        f"{series['metric']['phase']}-phase-count": float(series["value"][1])
        for series in data["result"]
        if series["metric"].get("phase")
    }


KEYS = frozenset(audit_queries())


def is_request_count(name: str) -> bool:
    """Return whether this is a figure `virt_requests/<VERB>-<resource>`."""
    return re.fullmatch(rf"{REQUESTS}/[A-Za-z]+-[\w./-]+", name) is not None


async def audit_figures(
    prometheus: Prometheus, start: float, end: float, gaps: Mapping[str, float]
) -> dict[str, float | None]:
    """Return the audit's figures of the window from `start` to `end` (Unix seconds).

    The window ends before the deletion, because handlers are divided by their present VMIs.
    `gaps` are the scrape intervals. Figures without data are None. Raises KubeError.
    """
    figures: dict[str, float | None] = dict.fromkeys(KEYS)
    if end - start >= 2 * min(gaps.values(), default=math.inf):
        figures |= await single_values(prometheus, audit_queries(), start, end)
    gap = gaps.get(REQUESTS, math.inf)
    if end - start >= 2 * gap:
        every = min(LONGEST_STEP, max(1.0, (end + gap - start) / POINTS))
        window = {"start": f"{start:.3f}", "end": f"{end + gap:.3f}", "step": f"{every:.3f}"}
        data = (await prometheus.query({REQUESTS: {"query": SENT, **window}}))[REQUESTS]
        labels = [series["metric"] for series in data["result"]]
        figures |= _requests(labels, points_of(data), start)
    return figures


async def single_values(
    prometheus: Prometheus, by_key: Mapping[str, str], start: float, end: float
) -> dict[str, float | None]:
    """Return the single value of each query at `end` (Unix seconds); None without one.

    Raises KubeError.
    """
    seconds, at = math.ceil(end - start), f"{end:.3f}"
    # By default a subquery has a point a minute, and a short window may have none.
    length, step = f"{seconds}s", f"{max(1, seconds // POINTS)}s"
    wanted = {
        key: {"query": query.replace("$d", length).replace("$s", step), "time": at}
        for key, query in by_key.items()
    }
    figures: dict[str, float | None] = {}
    for key, data in (await prometheus.query(wanted, "query")).items():
        values = [float(series["value"][1]) for series in data["result"]]
        figures[key] = values[0] if values and math.isfinite(values[0]) else None
    return figures


def _requests(
    metrics: list[dict[str, str]], every: list[list[Point]], start: float
) -> dict[str, float | None]:
    """Return the growth by verb and resource."""
    # All series together: the first request of a kind creates its series.
    every = with_starts(every, start)
    groups: dict[str, list[list[Point]]] = defaultdict(list)
    for metric, points in zip(metrics, every, strict=True):
        verb, resource = metric.get("verb", metric.get("method", "")), metric.get("resource", "")
        groups[f"{REQUESTS}/{verb}-{resource}"].append(points)
    return {name: fold(series, "growth")[""] for name, series in groups.items()}


LOOK_BACK = 300
"""Seconds of samples from which the scrape interval is derived."""
LATEST = 150.0
"""Seconds after a run in which its last scrape must come."""
_POD = 'pod=~"%s-.*",container!=""'
COMPONENTS = ("virt-api", "virt-controller", "virt-handler", "virt-operator")


_ANY = f'pod=~"({"|".join(COMPONENTS)})-.*"'
_CONTAINERS = f'container_memory_working_set_bytes{{{_ANY},container!=""}}'
_WORK = 'kubevirt_workqueue_adds_total{name=~"virt-controller.*"}'
SOURCES = {
    "virt": _CONTAINERS,
    "workqueue": _WORK,
    "node": "node_memory_MemTotal_bytes",
    REQUESTS: SENT,
}
"""Prefix of the names of figures that are scraped together -> one metric of them."""
_SUFFIXES = {"growth": ("",)}
_SPREAD = ("_avg", "_min", "_max")


def queries() -> dict[str, tuple[str, str]]:
    """Return figure prefix -> (PromQL, how to fold its series).

    range, rate: avg, min and max of the sum. share: part of the growth whose label `rest` is empty.
    p99: of a histogram's growth. growth: increase.
    """
    by_prefix: dict[str, tuple[str, str]] = {}
    for component in COMPONENTS:
        name, pods = component.replace("-", "_"), _POD % component
        by_prefix[f"{name}_cpu_cores"] = (f"container_cpu_usage_seconds_total{{{pods}}}", "rate")
        by_prefix[f"{name}_memory_bytes"] = (
            f"sum(container_memory_working_set_bytes{{{pods}}})",
            "range",
        )
    queue = 'name=~"virt-controller.*"'
    by_prefix["workqueue_adds"] = (_WORK, "growth")
    by_prefix["workqueue_depth"] = (f"sum(kubevirt_workqueue_depth{{{queue}}})", "range")
    by_prefix["workqueue_p99_s"] = (
        f"sum by (le) (kubevirt_workqueue_queue_duration_seconds_bucket{{{queue}}})",
        "p99",
    )
    by_idle = 'label_replace(node_cpu_seconds_total, "rest", "idle", "mode", "idle")'
    by_prefix["node_cpu_ratio"] = (f"sum by (instance, rest) ({by_idle})", "share")
    by_prefix["node_memory_ratio"] = (
        "1 - avg(node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes)",
        "range",
    )
    return by_prefix


def names() -> set[str]:
    """Return the names of the figures of `component_figures`."""
    return {
        f"{name}{suffix}"
        for name, (_, how) in queries().items()
        for suffix in _SUFFIXES.get(how, _SPREAD)
    }


async def wait_for_scrape(
    prometheus: Prometheus, end: float, deadline: float = math.inf
) -> tuple[dict[str, float], str]:
    """Wait for the first scrape after `end` (Unix seconds), and return the scrape intervals.

    Gives up after two intervals, after LATEST seconds, or with a note at `deadline`
    (time.monotonic()). Raises KubeError.
    """
    while True:
        now = time.time()
        moments = await _scrapes(prometheus, now)
        gaps = {name: gap for name, series in moments.items() if (gap := _gap(series))}
        late = [
            name
            for name, gap in gaps.items()
            if any(end - 2 * gap <= ats[-1] < end for ats in moments[name] if ats)
        ]
        if not late or now >= end + min(LATEST, 2 * max(gaps[name] for name in late)):
            return gaps, ""
        if time.monotonic() >= deadline:
            return (
                gaps,
                "the component figures end before this size did: the time limit of the sample came "
                "before the next scrape",
            )
        await asyncio.sleep(min(1.0, min(gaps[name] for name in late) / 4))


async def scrape_intervals(prometheus: Prometheus, at: float) -> dict[str, float]:
    """Return the scrape intervals before `at` (Unix seconds), in seconds. Raises KubeError."""
    moments = await _scrapes(prometheus, at)
    return {name: gap for name, series in moments.items() if (gap := _gap(series))}


async def _scrapes(prometheus: Prometheus, at: float) -> dict[str, list[list[float]]]:
    """Return when each source was scraped, by its series, within LOOK_BACK before `at`."""
    lookbacks = {
        name: {"query": f"{metric}[{LOOK_BACK}s]", "time": f"{at:.3f}"}
        for name, metric in SOURCES.items()
    }
    return {
        name: [[moment for moment, _ in points] for points in points_of(data)]
        for name, data in (await prometheus.query(lookbacks, "query")).items()
    }


def _gap(series: list[list[float]]) -> float | None:
    """Return the median of the seconds between samples."""
    gaps = sorted(after - before for moments in series for before, after in pairwise(moments))
    return gaps[len(gaps) // 2] if gaps else None


async def component_figures(
    prometheus: Prometheus, start: float, end: float, gaps: Mapping[str, float]
) -> dict[str, float | None]:
    """Return all figures of a window (Unix seconds); None for less than two scrapes in it.

    Counters are read from the last scrape before the window to the first one after it. Levels are
    read from scrapes inside it. Raises KubeError.
    """
    wanted = queries()
    figures: dict[str, float | None] = dict.fromkeys(names())
    ranges = {}
    for name, (query, how) in wanted.items():
        gap = gaps.get(_source(name), math.inf)
        if end - start >= 2 * gap:
            first, last = (start + gap, end) if how == "range" else (start, end + gap)
            step = min(LONGEST_STEP, max(1.0, (last - first) / POINTS))
            ranges[name] = {
                "query": query,
                "start": f"{first:.3f}",
                "end": f"{last:.3f}",
                "step": f"{step:.3f}",
            }
    data = await prometheus.query(ranges)
    for name in ranges:
        how, every = wanted[name][1], points_of(data[name])
        labels = [series["metric"] for series in data[name]["result"]]
        if how == "p99":
            folded = p99(dict(zip((float(label["le"]) for label in labels), every, strict=True)))
        elif how == "share":
            folded = share(points_of(data[name], "rest"), every)
        else:
            folded = fold(every, how, start)
        figures |= {f"{name}{suffix}": value for suffix, value in folded.items()}
    return figures


def _source(name: str) -> str:
    return next(
        source for source in sorted(SOURCES, key=len, reverse=True) if name.startswith(source)
    )
