"""Figures of KubeVirt's components and the nodes, from Prometheus.

All are PromQL over the run's own window, with the extrapolation of `rate` and `increase`. Missing
data is None, never 0. Some are those of KubeVirt's perfscale-audit, under its names: memory in MiB
of container_memory_rss, CPU in cores, those of virt-handler per VMI of a node. Source: kubevirt,
tools/perfscale-audit. docs/scale.md lists the differences.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfdag.kube.client import Cluster, Kube, KubeError, tls_context

REQUESTS = "virt_requests"
"""Prefix of the figures `virt_requests/<VERB>-<resource>`: requests of KubeVirt's own pods."""
LOOK_BACK_S = 300
"""How far back samples are read for the scrape interval."""
POINTS = 20
"""Points of a level in a window."""
_RSS, _CPU = "container_memory_rss", "container_cpu_usage_seconds_total"
_PODS = 'pod=~"virt-(api|controller|handler|operator).*"'
_SENT = f'{{__name__=~"(kubevirt_)?rest_client_requests_total",{_PODS}}}'
_SOURCES = (
    f'{_RSS}{{{_PODS},container!=""}}',
    'kubevirt_workqueue_adds_total{name=~"virt-controller.*"}',
    "node_memory_MemTotal_bytes",
    _SENT,
)
"""A metric of each target that the figures are from."""
_VMIS = 'sum by (node) (node:kubevirt_vmi_phase:sum{node!="",node!="<no value>"})'


@dataclass(frozen=True)
class Prometheus:
    """The address of a Prometheus.

    It may want a bearer token, as text or in a file, and have a CA certificate in a file.
    """

    url: str
    token_file: str | None = None
    ca_file: str | None = None
    token: str = field(default="", repr=False)

    async def query(self, queries: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
        """Return the `data` of the answers by query name. Raises KubeError."""
        at = self.url.rstrip("/")
        try:
            ca = Path(self.ca_file).read_text() if self.ca_file else None
            file = Path(self.token_file) if self.token_file else None
            prometheus = Cluster(at, at, "", tls_context(ca), self.token, token_file=file)
            async with Kube(prometheus, retries=0) as server:
                return {
                    name: (await server.request("GET", "/api/v1/query", params=params))["data"]
                    for name, params in queries.items()
                }
        except (KubeError, OSError, LookupError, ValueError) as error:
            status, why = getattr(error, "status", 0), getattr(error, "message", error)
            hint = "check --prometheus"
            if status in (401, 403):
                hint = "it needs a token, which `scale` takes (--prometheus-token-file)"
            raise KubeError(status, "Prometheus", f"no answer of Prometheus: {why}", hint) from None


def audit_queries() -> dict[str, str]:
    """Return PromQL by audit key. See `single_values` for its placeholders."""
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
    queue = 'kubevirt_workqueue_%s{container="virt-controller"}[$d]'
    waited = f"sum by (le) (rate({queue % 'queue_duration_seconds_bucket'}))"
    return by_key | {
        "virtControllerWorkqueueAddRate": f"sum(rate({queue % 'adds_total'}))",
        "virtControllerWorkqueueDepth": f"sum(rate({queue % 'depth'}))",
        "virtControllerWorkqueueP99Latency": f"histogram_quantile(0.99, {waited})",
    }


def node_queries() -> dict[str, str]:
    """Return PromQL by figure: how busy the processors and the memory of the nodes were."""
    used = "1 - avg(node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes)"
    idle = 'avg(rate(node_cpu_seconds_total{mode="idle"}[$d]))'
    by_figure = {
        f"node_memory_ratio_{how}": f"{how}_over_time(({used})[$d:$s])" for how in ("avg", "max")
    }
    return by_figure | {"node_cpu_ratio_avg": f"1 - {idle}"}


def transition_queries() -> dict[str, str]:
    """Return PromQL of KubeVirt's own phase transition times, by audit key."""
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


AUDIT_KEYS = frozenset(audit_queries())
FIGURES = AUDIT_KEYS | frozenset(node_queries())
"""Figures of a run, beside its counts of requests."""


def is_request_count(name: str) -> bool:
    """Return whether this is a figure `virt_requests/<VERB>-<resource>`."""
    return re.fullmatch(rf"{REQUESTS}/[A-Za-z]+-[\w./-]+", name) is not None


async def scrape_interval(prometheus: Prometheus, at: float) -> float | None:
    """Return the longest scrape interval of KubeVirt and the nodes before `at`, in seconds.

    None means that nothing of them was scraped. Raises KubeError.
    """
    wanted = {
        query: {"query": f"{query}[{LOOK_BACK_S}s]", "time": f"{at:.3f}"} for query in _SOURCES
    }
    answers = await prometheus.query(wanted)
    every = [series["values"] for data in answers.values() for series in data["result"]]
    gaps = [(float(v[-1][0]) - float(v[0][0])) / (len(v) - 1) for v in every if len(v) > 1]
    return max(gaps, default=None)


async def audit_figures(
    prometheus: Prometheus, start: float, end: float
) -> dict[str, float | None]:
    """Return the audit's figures of the window from `start` to `end` (Unix seconds).

    The window ends before the deletion, because handlers are divided by their present VMIs.
    Figures without data are None. Raises KubeError.
    """
    figures = await single_values(prometheus, audit_queries(), start, end)
    grown = f"sum by (verb, method, resource) (increase({_SENT}[{math.ceil(end - start)}s]))"
    answer = await prometheus.query({REQUESTS: {"query": grown, "time": f"{end:.3f}"}})
    for series in answer[REQUESTS]["result"]:
        labels = series["metric"]
        verb = labels.get("verb") or labels.get("method", "")
        figures[f"{REQUESTS}/{verb}-{labels.get('resource', '')}"] = _number(series)
    return figures


async def run_figures(
    prometheus: Prometheus, start: float, end: float
) -> tuple[dict[str, float | None], float | None]:
    """Return the figures of a run, and the scrape interval.

    The window is as in `audit_figures`. All figures are None for one shorter than two scrapes.
    Raises KubeError.
    """
    figures: dict[str, float | None] = dict.fromkeys(FIGURES)
    gap = await scrape_interval(prometheus, end)
    if gap is not None and end - start >= 2 * gap:
        figures |= await audit_figures(prometheus, start, end)
        figures |= await single_values(prometheus, node_queries(), start, end)
    return figures, gap


async def phase_figures(prometheus: Prometheus, at: float) -> dict[str, float | None]:
    """Return `<phase>-phase-count`: all VMIs by phase at a moment in Unix seconds.

    Raises KubeError.
    """
    query = {"query": "sum by (phase) (node:kubevirt_vmi_phase:sum)", "time": f"{at:.3f}"}
    series = (await prometheus.query({"phases": query}))["phases"]["result"]
    return {
        f"{item['metric']['phase']}-phase-count": _number(item)
        for item in series
        if item["metric"].get("phase")
    }


async def single_values(
    prometheus: Prometheus, by_name: Mapping[str, str], start: float, end: float
) -> dict[str, float | None]:
    """Return the single value of each query at `end` (Unix seconds); None without one.

    `$d` stands for the length of the window, `$s` for a step. Raises KubeError.
    """
    seconds = math.ceil(end - start)
    # By default a subquery has a point a minute, and a short window may have none.
    length, step = f"{seconds}s", f"{max(1, seconds // POINTS)}s"
    wanted = {
        name: {
            "query": query.replace("$d", length).replace("$s", step),
            "time": f"{end:.3f}",
        }
        for name, query in by_name.items()
    }
    answers = await prometheus.query(wanted)
    return {
        name: _number(data["result"][0]) if data["result"] else None
        for name, data in answers.items()
    }


def _number(series: Mapping[str, Any]) -> float | None:
    value = float(series["value"][1])
    return value if math.isfinite(value) else None
