"""API latency and request counts of a run, from the difference of two scrapes of the API servers' own /metrics.

Metric: apiserver_request_duration_seconds (histogram; labels verb, resource, subresource, scope, group), Kubernetes metrics
reference. Buckets are cumulative; a percentile is interpolated inside its bucket, whose bounds are its error bar. WATCH, CONNECT,
logs, exec and proxy are left out, as the SLO does (kubernetes/community, slos/api_call_latency.md), and what is of no resource (/readyz,
/livez, /openapi ...): probes are many and quick, and would hide slow requests.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfdag.kube import Kube
from perfdag.steps.scale.summary import NEEDED as SAMPLES

_PREFIX, _STARTED = b"apiserver_request_duration_seconds_bucket{", b"process_start_time_seconds "
_SKIPPED = {"WATCH", "WATCHLIST", "CONNECT", "PROXY"}
_SKIPPED_SUBRESOURCES = {"log", "exec", "portforward", "attach", "proxy"}
Call = tuple[str, str, str, str]
"""verb, resource, subresource, scope."""
_BULK = ("LIST", "DELETECOLLECTION")
"""Verbs of many objects: they have limits of their own and are not among single-object requests."""
NEEDED = SAMPLES[0.99]
"""Requests a p99 needs."""
_ALIASES = {"POST": "CREATE", "PUT": "UPDATE"}
"""Verbs of HTTP and of the API: KubeVirt's audit has the latter."""
VERBS = ("GET", "LIST", "POST", "PUT", "PATCH", "DELETE", "DELETECOLLECTION", *_ALIASES.values())
"""Verbs that a count may be of."""
CREATION, DELETION = "creation", "deletion"
"""Phases of a run whose calls are counted apart."""


@dataclass
class Scrape:
    """The histograms of all API servers together, and when each of their processes started (Unix seconds; None: it does not say)."""

    calls: dict[Call, dict[float, float]] = field(default_factory=dict)
    started: list[float | None] = field(default_factory=list)


async def scrape(servers: Sequence[Kube]) -> Scrape:
    """Read the histograms of each API server, line by line (the whole text has tens of MB on a large cluster).

    Raises KubeError (403: no right to /metrics).
    """
    found = Scrape()
    for kube in servers:
        found.started.append(None)
        async for line, _ in kube.lines("/metrics", {}, "text/plain", 60.0):
            add(found, line)
    return found


def add(found: Scrape, line: bytes) -> None:
    """Add one line of the text format; other metrics are ignored."""
    if line.startswith(_STARTED):
        found.started[-1:] = [float(line[len(_STARTED) :])]
    if not line.startswith(_PREFIX):
        return
    labels_text, _, value = line[len(_PREFIX) :].rpartition(b"} ")
    labels = dict(_label(part) for part in labels_text.decode().split('",') if part)
    if labels.get("dry_run"):
        return
    call = (
        labels.get("verb", ""),
        labels.get("resource", ""),
        labels.get("subresource", ""),
        labels.get("scope", ""),
    )
    if call[0] in _SKIPPED or not call[1] or call[2] in _SKIPPED_SUBRESOURCES:
        return
    bound = math.inf if labels["le"] == "+Inf" else float(labels["le"])
    buckets = found.calls.setdefault(call, {})
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
    buckets: Mapping[float, float] = field(default_factory=dict, repr=False)

    @property
    def single(self) -> bool:
        """Whether it is of one object."""
        return self.verb not in _BULK

    @property
    def slo(self) -> float:
        """The SLO's limit in seconds: 1 for one object, 30 for a list or the deletion of a collection."""
        return 1.0 if self.single else 30.0

    @property
    def name(self) -> str:
        """For people and for a row's coordinates."""
        resource = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        return f"{self.verb} {resource} {self.scope}"


Phases = Mapping[str, Sequence[Calls]]
"""Calls by phase; one whose books could not be closed is absent."""


def delta(before: Scrape, after: Scrape, p: float = 0.99) -> list[Calls]:
    """What was asked between two scrapes of the same processes, most frequent first."""
    found = []
    for call, buckets in after.calls.items():
        then = before.calls.get(call, {})
        grown = {bound: value - then.get(bound, 0.0) for bound, value in buckets.items()}
        count = round(grown.get(math.inf, 0.0))
        if count:
            value, low, high = quantile(grown, p)
            found.append(Calls(*call, count, value, low, high, grown))
    return sorted(found, key=lambda each: -each.count)


def quantile(
    buckets: Mapping[float, float], p: float
) -> tuple[float | None, float | None, float | None]:
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


def worst(calls: Iterable[Calls], bulk: str = "", least: int = NEEDED) -> float | None:
    """p99 in seconds of the slowest kind of request (of single objects; `bulk`: of that verb) with at least `least` requests.

    Kinds with fewer are taken together, and left out only where all of them have fewer. None: too few requests for a p99.
    """
    wanted = [each for each in calls if (each.verb == bulk if bulk else each.single)]
    found = [each.p99 for each in wanted if each.count >= least]
    rest: dict[float, float] = defaultdict(float)
    for each in wanted:
        if each.count < least:
            for bound, count in each.buckets.items():
                rest[bound] += count
    if rest.get(math.inf, 0.0) >= least:
        found.append(quantile(rest, 0.99)[0])
    return max((value for value in found if value is not None), default=None)


def slowest(calls: Sequence[Calls], bulk: str = "") -> float | None:
    """What no request of a single object (`bulk`: of that verb) took longer than, in seconds: the end of the last bucket in use, and 0
    where there were others alone; None where there is no such end."""
    wanted = [each for each in calls if (each.verb == bulk if bulk else each.single)]
    ends = [
        min(bound for bound, count in each.buckets.items() if count >= each.count)
        for each in wanted
    ]
    found = max(ends, default=0.0 if calls and bulk else math.inf)
    return None if math.isinf(found) else found


def latencies(calls: Sequence[Calls]) -> dict[str, float | None]:
    """Named latencies of a phase, in seconds; None below the requests that a p99 needs."""
    return {
        "api_p99": worst(calls),
        "api_slowest": slowest(calls),
        "api_list_p99": worst(calls, "LIST"),
        "api_list_slowest": slowest(calls, "LIST"),
        "api_deletecollection_p99": worst(calls, "DELETECOLLECTION"),
    }


def judged(phases: Phases, whole: Sequence[Calls]) -> dict[str, float | None]:
    """The latencies that a gate sees: of the worse phase; one with too few requests for a p99 is judged within the `whole`, of which the
    bound of the slowest request always is.

    No data where a phase is absent.
    """
    together = latencies(whole)
    if not {CREATION, DELETION} <= set(phases):
        return dict.fromkeys(together)
    found = [latencies(each) for each in phases.values()]
    worse: dict[str, float | None] = {}
    for name, value in together.items():
        values = [each[name] for each in found]
        present = [
            each for each in (*values, value if None in values else None) if each is not None
        ]
        worse[name] = (
            value if name.endswith("_slowest") else max(present, default=None)
        )  # None of a phase: slower than any bound
    return worse


def named(calls: Sequence[Calls]) -> dict[str, float | None]:
    """Latencies and counts of a phase by name."""
    return latencies(calls) | {name: float(value) for name, value in counts(calls).items()}


def of_deletion(phases: Phases) -> dict[str, float | None]:
    """Those of the deletion, with `deletion/` before their names."""
    return {f"{DELETION}/{name}": value for name, value in named(phases.get(DELETION, [])).items()}


def told(phases: Phases) -> list[dict[str, Any]]:
    """Each kind of request of each phase: count, and p99 in seconds with its error bar; the most frequent of a phase first."""
    return [
        {
            "phase": phase,
            "call": each.name,
            "count": each.count,
            "p99_s": each.p99,
            "low_s": each.low,
            "high_s": each.high,
        }
        for phase, calls in phases.items()
        for each in calls
    ]


def counts(calls: Iterable[Calls]) -> dict[str, int]:
    """`<VERB>-<resource>[/<subresource>]-count` -> requests, by the verb of the metric and, as KubeVirt's audit names them, CREATE and UPDATE.

    A server-side apply is a PATCH, as for the client that sends it.
    """
    found: dict[str, int] = defaultdict(int)
    for each in calls:
        verb = "PATCH" if each.verb == "APPLY" else each.verb
        resource = f"{each.resource}/{each.subresource}" if each.subresource else each.resource
        for name in {verb, _ALIASES.get(verb, verb)}:
            found[f"{name}-{resource}-count"] += each.count
    return dict(found)
