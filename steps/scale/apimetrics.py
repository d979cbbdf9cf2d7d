"""API latency and request counts of a run, from the difference of two scrapes of the API server's own /metrics.

Metric: apiserver_request_duration_seconds (histogram; labels verb, resource, subresource, scope, group), Kubernetes metrics
reference. Buckets are cumulative; a percentile is interpolated inside its bucket, whose bounds are its error bar. WATCH, CONNECT,
logs, exec and proxy are left out, as the SLO does (kubernetes/community, slos/api_call_latency.md).
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from perfdag.kube import Kube

_PREFIX = b"apiserver_request_duration_seconds_bucket{"
_SKIPPED = {"WATCH", "WATCHLIST", "CONNECT", "PROXY"}
_SKIPPED_SUBRESOURCES = {"log", "exec", "portforward", "attach", "proxy"}
Call = tuple[str, str, str, str]
"""verb, resource, subresource, scope."""
Scrape = dict[Call, dict[float, float]]


async def scrape(kube: Kube) -> Scrape:
    """Read the histograms, line by line (the whole text has tens of MB on a large cluster).

    Raises KubeError (403: no right to /metrics).
    """
    found: Scrape = {}
    async for line, _ in kube.lines("/metrics", {}, "text/plain", 60.0):
        add(found, line)
    return found


def add(found: Scrape, line: bytes) -> None:
    """Add one line of the text format; other metrics are ignored."""
    if not line.startswith(_PREFIX):
        return
    labels_text, _, value = line[len(_PREFIX) :].rpartition(b"} ")
    labels = dict(_label(part) for part in labels_text.decode().split('",') if part)
    if labels.get("dry_run"):
        return
    call = (labels.get("verb", ""), labels.get("resource", ""), labels.get("subresource", ""), labels.get("scope", ""))
    if call[0] in _SKIPPED or call[2] in _SKIPPED_SUBRESOURCES:
        return
    bound = math.inf if labels["le"] == "+Inf" else float(labels["le"])
    buckets = found.setdefault(call, {})
    buckets[bound] = buckets.get(bound, 0.0) + float(value)


def _label(part: str) -> tuple[str, str]:
    name, _, value = part.partition("=")
    return name.strip(), value.strip('"')


@dataclass(frozen=True)
class Calls:
    """Requests of one kind during a run: how many, and the latency percentile in seconds with its bucket's bounds."""

    verb: str
    resource: str
    subresource: str
    scope: str
    count: int
    p99: float | None
    low: float | None
    high: float | None

    @property
    def slo(self) -> float:
        """The SLO's limit in seconds: 1 for one object, 30 for a list."""
        return 30.0 if self.verb == "LIST" else 1.0

    @property
    def name(self) -> str:
        """For people and for a row's coordinates."""
        resource = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        return f"{self.verb} {resource or '-'} {self.scope}"


def delta(before: Scrape, after: Scrape, p: float = 0.99) -> list[Calls]:
    """What was asked between two scrapes, most frequent first. A counter that fell (a restart) counts from 0."""
    found = []
    for call, buckets in after.items():
        grown = _grown(before.get(call, {}), buckets)
        count = round(grown.get(math.inf, 0.0))
        if count:
            value, low, high = quantile(grown, p)
            found.append(Calls(*call, count, value, low, high))
    return sorted(found, key=lambda each: -each.count)


def _grown(before: Mapping[float, float], after: Mapping[float, float]) -> dict[float, float]:
    restarted = after.get(math.inf, 0.0) < before.get(math.inf, 0.0)
    return {bound: value - (0.0 if restarted else before.get(bound, 0.0)) for bound, value in after.items()}


def quantile(buckets: Mapping[float, float], p: float) -> tuple[float | None, float | None, float | None]:
    """The p-quantile of cumulative buckets, interpolated, and the bounds of its bucket; the last bucket gives its lower bound."""
    bounds = sorted(buckets)
    total = buckets.get(math.inf, 0.0)
    if not total:
        return None, None, None
    wanted, low, below = p * total, 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= wanted:
            if math.isinf(bound):
                return low, low, None
            inside = buckets[bound] - below
            return low + (bound - low) * ((wanted - below) / inside if inside else 1.0), low, bound
        low, below = bound, buckets[bound]
    return low, low, None


def worst(calls: Iterable[Calls], lists: bool = False, least: int = 1) -> Calls | None:
    """The slowest kind of request (single objects, or lists) with at least `least` requests."""
    wanted = [each for each in calls if (each.verb == "LIST") == lists and each.p99 is not None and each.count >= least]
    return max(wanted, key=lambda each: each.p99 or 0.0, default=None)


def counts(calls: Iterable[Calls]) -> dict[str, int]:
    """`<VERB>-<resource>-count` -> requests, as KubeVirt's audit names them."""
    found: dict[str, int] = defaultdict(int)
    for each in calls:
        found[f"{each.verb}-{each.resource or 'other'}-count"] += each.count
    return dict(found)
