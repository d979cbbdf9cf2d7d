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
from urllib.parse import urlsplit

from perfdag.kube.client import Cluster, Kube, KubeError, tls_context
from perfdag.redaction import register

REQUESTS = "virt_requests"
"""Prefix of the figures `virt_requests/<VERB>-<resource>`: requests of KubeVirt's own pods."""
LOOK_BACK_S = 300
"""How far back samples are read for the scrape interval."""
POINTS = 20
"""Points of a level in a window."""
_RSS = "container_memory_rss"
_CPU = "container_cpu_usage_seconds_total"
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

    It may want a bearer token, as text or in a file, or `name:password` as its login. Its CA
    certificate may be in a file. No message has these secrets, nor the password of the address.
    """

    url: str
    token_file: str | None = None
    ca_file: str | None = None
    token: str = field(default="", repr=False)
    login: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        passwords = self.login.partition(":")[2], urlsplit(self.url).password
        register(filter(None, (self.token, *passwords)))

    async def query(self, queries: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
        """Return the `data` of the answers by query name. Raises KubeError."""
        address = self.url.rstrip("/")
        try:
            ca = Path(self.ca_file).read_text() if self.ca_file else None
            file = Path(self.token_file) if self.token_file else None
            prometheus = Cluster(
                address, address, "", tls_context(ca), self.token, token_file=file, login=self.login
            )
            async with Kube(prometheus, retries=0) as server:
                return {
                    name: (await server.request("GET", "/api/v1/query", params=params))["data"]
                    for name, params in queries.items()
                }
        except (KubeError, OSError, LookupError, ValueError) as error:
            status = getattr(error, "status", 0)
            text = f"no answer of Prometheus: {getattr(error, 'message', error)}"
            hint = "check --prometheus"
            if status in (401, 403):
                hint = (
                    "it needs a token, which `scale` takes (--prometheus-token-file), or a user of "
                    "the configuration of an audit"
                )
            raise KubeError(status, "Prometheus", text, hint) from None


_API = '{pod=~"virt-api.*",container!="",container!="POD"}'
_LEADER = '{pod=~"virt-controller.*",container!="",container!="POD"}'
_HANDLER = '{pod=~"virt-handler.*",container="virt-handler"}'
_HANDLER_CPU = f"sum by (node) (rate({_CPU}{_HANDLER}[$d])) / {_VMIS}"
_HANDLER_RSS = f"avg_over_time((sum by (node) ({_RSS}{_HANDLER}) / {_VMIS})[$d:$s])"
_QUEUE = 'kubevirt_workqueue_%s{container="virt-controller"}[$d]'
_WAITED = f"sum by (le) (rate({_QUEUE % 'queue_duration_seconds_bucket'}))"
AUDIT_QUERIES = {
    # The audit takes the mean of all virt-api pods, and the largest virt-controller: the leader.
    "avgVirtAPICPUUsage": f"avg(rate({_CPU}{_API}[$d]))",
    "avgVirtAPIMemoryUsageInMB": f"avg(avg_over_time({_RSS}{_API}[$d])) / 1024 / 1024",
    "minVirtAPIMemoryUsageInMB": f"avg(min_over_time({_RSS}{_API}[$d])) / 1024 / 1024",
    "maxVirtAPIMemoryUsageInMB": f"avg(max_over_time({_RSS}{_API}[$d])) / 1024 / 1024",
    "avgVirtControllerCPUUsage": f"max(rate({_CPU}{_LEADER}[$d]))",
    "avgVirtControllerMemoryUsageInMB": f"max(avg_over_time({_RSS}{_LEADER}[$d])) / 1024 / 1024",
    "minVirtControllerMemoryUsageInMB": f"max(min_over_time({_RSS}{_LEADER}[$d])) / 1024 / 1024",
    "maxVirtControllerMemoryUsageInMB": f"max(max_over_time({_RSS}{_LEADER}[$d])) / 1024 / 1024",
    "avgVirtHandlerCPUUsage": f"avg({_HANDLER_CPU})",
    "minVirtHandlerCPUUsage": f"min({_HANDLER_CPU})",
    "maxVirtHandlerCPUUsage": f"max({_HANDLER_CPU})",
    "avgVirtHandlerMemoryUsageInMB": f"avg({_HANDLER_RSS}) / 1024 / 1024",
    "minVirtHandlerMemoryUsageInMB": f"min({_HANDLER_RSS}) / 1024 / 1024",
    "maxVirtHandlerMemoryUsageInMB": f"max({_HANDLER_RSS}) / 1024 / 1024",
    "virtControllerWorkqueueAddRate": f"sum(rate({_QUEUE % 'adds_total'}))",
    "virtControllerWorkqueueDepth": f"sum(rate({_QUEUE % 'depth'}))",
    "virtControllerWorkqueueP99Latency": f"histogram_quantile(0.99, {_WAITED})",
}
"""PromQL by audit key; `single_values` has the placeholders."""
_USED = "1 - avg(node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes)"
NODE_QUERIES = {
    "node_memory_ratio_avg": f"avg_over_time(({_USED})[$d:$s])",
    "node_memory_ratio_max": f"max_over_time(({_USED})[$d:$s])",
    "node_cpu_ratio_avg": '1 - avg(rate(node_cpu_seconds_total{mode="idle"}[$d]))',
}
"""PromQL by figure: how busy the processors and the memory of the nodes were."""
_TRANSITION = "kubevirt_vmi_phase_transition_time_from"
_RUNNING = f'sum by (le) (rate({_TRANSITION}_creation_seconds_bucket{{phase="Running"}}[$d]))'
_SUCCEEDED = f'sum by (le) (rate({_TRANSITION}_deletion_seconds_bucket{{phase="Succeeded"}}[$d]))'
_FAILED = f'sum by (le) (rate({_TRANSITION}_deletion_seconds_bucket{{phase="Failed"}}[$d]))'
TRANSITION_QUERIES = {
    "vmiCreationToRunningSecondsP50": f"histogram_quantile(0.5, {_RUNNING})",
    "vmiCreationToRunningSecondsP95": f"histogram_quantile(0.95, {_RUNNING})",
    "vmiCreationToRunningSecondsP99": f"histogram_quantile(0.99, {_RUNNING})",
    "vmiDeletionToSucceededSecondsP50": f"histogram_quantile(0.5, {_SUCCEEDED})",
    "vmiDeletionToSucceededSecondsP95": f"histogram_quantile(0.95, {_SUCCEEDED})",
    "vmiDeletionToSucceededSecondsP99": f"histogram_quantile(0.99, {_SUCCEEDED})",
    "vmiDeletionToFailedSecondsP50": f"histogram_quantile(0.5, {_FAILED})",
    "vmiDeletionToFailedSecondsP95": f"histogram_quantile(0.95, {_FAILED})",
    "vmiDeletionToFailedSecondsP99": f"histogram_quantile(0.99, {_FAILED})",
}
"""PromQL of KubeVirt's own phase transition times, by audit key."""
FIGURES = AUDIT_QUERIES.keys() | NODE_QUERIES.keys()
"""Figures of a run, beside its counts of requests."""


def is_request_count(name: str) -> bool:
    """Return whether this is a figure `virt_requests/<VERB>-<resource>`."""
    return re.fullmatch(rf"{REQUESTS}/[A-Za-z]+-[\w./-]+", name) is not None


async def scrape_interval(prometheus: Prometheus, at: float) -> float | None:
    """Return the longest scrape interval of KubeVirt and the nodes before `at`, in seconds.

    None means that nothing of them was scraped. Raises KubeError.
    """
    queries = {
        query: {"query": f"{query}[{LOOK_BACK_S}s]", "time": f"{at:.3f}"} for query in _SOURCES
    }
    gaps = []
    for data in (await prometheus.query(queries)).values():
        for series in data["result"]:
            times = [float(time) for time, _ in series["values"]]
            if len(times) > 1:
                gaps.append((times[-1] - times[0]) / (len(times) - 1))
    return max(gaps, default=None)


async def audit_figures(
    prometheus: Prometheus, start: float, end: float
) -> dict[str, float | None]:
    """Return the audit's figures of the window from `start` to `end` (Unix seconds).

    The window ends before the deletion, because handlers are divided by their present VMIs.
    Figures without data are None. Raises KubeError.
    """
    figures = await single_values(prometheus, AUDIT_QUERIES, start, end)
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
        figures |= await single_values(prometheus, NODE_QUERIES, start, end)
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
    step = max(1, seconds // POINTS)
    queries = {}
    for name, query in by_name.items():
        promql = query.replace("$d", f"{seconds}s").replace("$s", f"{step}s")
        queries[name] = {"query": promql, "time": f"{end:.3f}"}
    answers = await prometheus.query(queries)
    return {
        name: _number(data["result"][0]) if data["result"] else None
        for name, data in answers.items()
    }


def _number(series: Mapping[str, Any]) -> float | None:
    value = float(series["value"][1])
    return value if math.isfinite(value) else None
