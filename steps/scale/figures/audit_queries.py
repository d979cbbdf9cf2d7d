"""The figures of KubeVirt's perfscale-audit that only Prometheus has, under the audit's names.

Memory is in MiB of container_memory_rss, CPU in cores. Those of virt-handler are per VMI of a node.
Source: kubevirt, tools/perfscale-audit. docs/scale.md lists the differences.
"""

import math
import re
from collections import defaultdict
from collections.abc import Mapping

from perfdag.kube.prometheus import Prometheus
from perfdag.steps.scale.figures.series import Point, fold, points_of, with_starts

LONGEST_STEP, POINTS = 15.0, 20
"""Seconds between points, and how many points a short run has at least."""
REQUESTS = "virt_requests"
"""Prefix of the figures `virt_requests/<VERB>-<resource>`: requests of KubeVirt's own pods."""
_PODS = 'pod=~"virt-(api|controller|handler|operator).*"'
SENT = f'{{__name__=~"(kubevirt_)?rest_client_requests_total",{_PODS}}}'
_RSS, _CPU = "container_memory_rss", "container_cpu_usage_seconds_total"
_QUEUE = 'kubevirt_workqueue_%s{container="virt-controller"}[$d]'
_VMIS = 'sum by (node) (node:kubevirt_vmi_phase:sum{node!="",node!="<no value>"})'


def queries() -> dict[str, str]:
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


KEYS = frozenset(queries())


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
        figures |= await single_values(prometheus, queries(), start, end)
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
