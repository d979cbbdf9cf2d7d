"""CPU, memory and work queues of KubeVirt's components and the nodes, from Prometheus (HTTP API /api/v1/query_range).

Direct queries over the run's own window. No data is None: it is never taken for 0, and a gate on it is a breach.
"""

import math
from itertools import pairwise
from typing import Any

from perfdag.kube import KubeError

STEP = 15
"""Seconds between points."""
_POD = 'pod=~"%s-.*",container!=""'
COMPONENTS = ("virt-api", "virt-controller", "virt-handler", "virt-operator")


def queries() -> dict[str, tuple[str, str]]:
    """Figure prefix -> (PromQL, how to fold the points: range gives avg, min and max; growth the increase; last the last value)."""
    found: dict[str, tuple[str, str]] = {}
    for component in COMPONENTS:
        name, pods = component.replace("-", "_"), _POD % component
        found[f"{name}_cpu_cores"] = (f"sum(rate(container_cpu_usage_seconds_total{{{pods}}}[2m]))", "range")
        found[f"{name}_memory_bytes"] = (f"sum(container_memory_working_set_bytes{{{pods}}})", "range")
    queue = 'name=~"virt-controller.*"'
    found["workqueue_adds"] = (f"sum(kubevirt_workqueue_adds_total{{{queue}}})", "growth")
    found["workqueue_depth"] = (f"sum(kubevirt_workqueue_depth{{{queue}}})", "range")
    bucket = f"sum by (le) (rate(kubevirt_workqueue_queue_duration_seconds_bucket{{{queue}}}[2m]))"
    found["workqueue_p99_s"] = (f"histogram_quantile(0.99, {bucket})", "range")
    found["node_cpu_ratio"] = ('1 - avg(rate(node_cpu_seconds_total{mode="idle"}[2m]))', "range")
    found["node_memory_ratio"] = ("1 - avg(node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes)", "range")
    return found


def fold(points: list[tuple[float, float]], how: str) -> dict[str, float | None]:
    """Suffix -> figure of a series; NaN points are no points. A counter that falls was reset and goes on from 0."""
    values = [value for _, value in points if not math.isnan(value)]
    if how == "growth":
        grown = sum(after - before if after >= before else after for before, after in pairwise(values))
        return {"": grown if len(values) > 1 else None}
    if not values:
        return {"_avg": None, "_min": None, "_max": None}
    return {"_avg": sum(values) / len(values), "_min": min(values), "_max": max(values)}


async def component_figures(url: str, start: float, end: float) -> dict[str, float | None]:
    """All figures of a window (Unix seconds). Raises KubeError where Prometheus does not answer."""
    import aiohttp

    found: dict[str, float | None] = {}
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
            for name, (query, how) in queries().items():
                params = {"query": query, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": str(STEP)}
                async with session.get(f"{url.rstrip('/')}/api/v1/query_range", params=params) as answer:
                    body: dict[str, Any] = await answer.json(content_type=None)
                if body.get("status") != "success":
                    raise KubeError(0, "Prometheus", f"Prometheus at {url} refuses {name}: {body.get('error', answer.status)}")
                found |= {f"{name}{suffix}": value for suffix, value in fold(_points(body), how).items()}
    except (aiohttp.ClientError, TimeoutError, ValueError, OSError) as error:
        raise KubeError(0, "Unreachable", f"no answer from Prometheus at {url}: {error}", "check --prometheus") from None
    return found


def _points(body: dict[str, Any]) -> list[tuple[float, float]]:
    """The points of the one series; the queries sum, so there is one or none."""
    series = body["data"]["result"]
    return [(float(at), float(value)) for at, value in series[0]["values"]] if series else []
