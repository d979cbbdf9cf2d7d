"""Figures of KubeVirt's components and the nodes, from Prometheus (/api/v1/query_range).

Queries cover the run's own window and start after the first scrape behind its end. Missing data is
None, never 0. `audit_queries` has the figures of KubeVirt's own audit.
"""

import asyncio
import math
import time
from collections.abc import Mapping
from itertools import pairwise

from perfdag.kube.prometheus import Prometheus
from perfdag.steps.scale.figures.audit_queries import LONGEST_STEP, POINTS, REQUESTS, SENT
from perfdag.steps.scale.figures.series import fold, p99, points_of, share

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
