"""API latency and request counts of a run, from two scrapes of the API servers' /metrics.

Metric: apiserver_request_duration_seconds (Kubernetes metrics reference). Buckets are cumulative. A
percentile is interpolated inside its bucket. WATCH, CONNECT, logs,
exec and proxy are left out, as in the SLO (kubernetes/community, slos/api_call_latency.md).
Requests without a resource (/readyz, /livez, /openapi) are left out too, because frequent fast
probes would hide slow requests.

The request counts of one server among several would be mistaken for the total. The servers are
known from the EndpointSlices of the Service `kubernetes` and from the Leases in `kube-system`
(https://kubernetes.io/docs/concepts/architecture/leases/#api-server-identity).
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from perfdag.kube.client import Kube, KubeError
from perfdag.stats.robust import needed
from perfdag.steps.scale.objects import unix_ns

FRESH_S = 60.0
"""Maximum age of a live API server's Lease, against the newest. Renewal takes place every 10 s."""


async def addresses(kube: Kube) -> list[str]:
    """Return host:port of all API servers, or an empty list without the right to list them.

    Raises KubeError.
    """
    label = "kubernetes.io/service-name=kubernetes"
    servers: list[str] = []
    kind = "discovery.k8s.io/v1/EndpointSlice"
    for slice_ in await kube.list_readable(kind, "default", labels=label) or []:
        for endpoint in slice_.get("endpoints") or []:
            for host in endpoint.get("addresses") or []:
                name = f"[{host}]" if ":" in host else host
                servers += [f"{name}:{port['port']}" for port in slice_.get("ports") or []]
    return sorted(servers)


async def live(kube: Kube) -> int:
    """Count the API servers that renew their Lease; 0 without the right to list them."""
    label = "apiserver.kubernetes.io/identity=kube-apiserver"
    kind = "coordination.k8s.io/v1/Lease"
    leases = await kube.list_readable(kind, "kube-system", labels=label) or []
    renewed = [unix_ns(lease["spec"].get("renewTime")) / 1e9 for lease in leases]
    return sum(max(renewed) - at <= FRESH_S for at in renewed)


@asynccontextmanager
async def clients(kube: Kube) -> AsyncIterator[list[Kube]]:
    """Yield a client for every API server; for a single server, the client `kube`.

    Raises KubeError if several servers share an address, because then the counts would be
    incomplete.
    """
    servers = await addresses(kube)
    count = await live(kube)
    if max(len(servers), count) < 2:
        yield [kube]
        return
    if len(servers) < count:
        raise KubeError(
            0,
            "Several",
            f"{count} API servers share {len(servers) or 'an'} address(es), and every server "
            "counts only its own requests",
        )
    address = urlsplit(kube.cluster.server)
    name = kube.cluster.server_name or address.hostname
    async with AsyncExitStack() as stack:
        kubes = []
        for server in servers:
            cluster = replace(kube.cluster, server=f"{address.scheme}://{server}", server_name=name)
            kubes.append(await stack.enter_async_context(Kube(cluster, retries=0)))
        yield kubes


_PREFIX = b"apiserver_request_duration_seconds_bucket{"
_STARTED = b"process_start_time_seconds "
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_SKIPPED = {"WATCH", "WATCHLIST", "CONNECT", "PROXY"}
_SKIPPED_SUBRESOURCES = {"log", "exec", "portforward", "attach", "proxy"}
_BULK = ("LIST", "DELETECOLLECTION")
"""Verbs of many objects: they have limits of their own and are not among single-object requests."""
_ALIASES = {"POST": "CREATE", "PUT": "UPDATE"}
"""Verbs of HTTP and of the API: KubeVirt's audit has the latter."""
VERBS = ("GET", "LIST", "POST", "PUT", "PATCH", "DELETE", "DELETECOLLECTION", *_ALIASES.values())
"""Verbs that a count may be of."""
CREATION = "creation"
DELETION = "deletion"
"""Phases of a run whose calls are counted apart."""


@dataclass
class Scrape:
    """The histograms of all API servers, and the start of their processes in Unix seconds.

    `calls` has them by verb, resource[/subresource] and scope.
    """

    calls: dict[tuple[str, str, str], dict[float, float]] = field(default_factory=dict)
    started: list[float | None] = field(default_factory=list)


async def scrape(servers: Sequence[Kube]) -> Scrape:
    """Read the histograms of all API servers line by line, because the text can have tens of MB.

    Raises KubeError (403: no right to read /metrics).
    """
    total = Scrape()
    for kube in servers:
        total.started.append(None)
        async for line, _ in kube.lines("/metrics"):
            add(total, line)
    return total


def add(total: Scrape, line: bytes) -> None:
    """Add one line of the text format; other metrics are ignored."""
    if line.startswith(_STARTED):
        total.started[-1:] = [float(line[len(_STARTED) :])]
    if not line.startswith(_PREFIX):
        return
    labels_text, _, value = line[len(_PREFIX) :].rpartition(b"} ")
    labels = dict(_LABEL.findall(labels_text.decode()))
    verb, resource, subresource = (
        labels.get(name, "") for name in ("verb", "resource", "subresource")
    )
    skipped = verb in _SKIPPED or subresource in _SKIPPED_SUBRESOURCES
    if skipped or not resource or labels.get("dry_run"):
        return
    bound = float(labels["le"])
    target = f"{resource}/{subresource}" if subresource else resource
    buckets = total.calls.setdefault((verb, target, labels.get("scope", "")), {})
    buckets[bound] = buckets.get(bound, 0.0) + float(value)


@dataclass(frozen=True)
class Calls:
    """Requests of one kind: their number, and the p99 of their latency in seconds."""

    verb: str
    target: str
    scope: str
    count: int
    p99: float | None
    buckets: Mapping[float, float] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """For people and for a row's coordinates."""
        return f"{self.verb} {self.target} {self.scope}"

    @property
    def end(self) -> float:
        """The upper end in seconds of the last bucket in use."""
        return min(bound for bound, count in self.buckets.items() if count >= self.count)


def delta(before: Scrape, after: Scrape) -> list[Calls]:
    """Return the requests between two scrapes of the same processes, most frequent first."""
    delta_calls = []
    for call, buckets in after.calls.items():
        then = before.calls.get(call, {})
        grown = {bound: value - then.get(bound, 0.0) for bound, value in buckets.items()}
        count = round(grown.get(math.inf, 0.0))
        if count:
            delta_calls.append(Calls(*call, count, quantile(grown, 0.99), grown))
    return sorted(delta_calls, key=lambda calls: -calls.count)


def quantile(buckets: Mapping[float, float], p: float) -> float | None:
    """Return the interpolated p-quantile of cumulative buckets, at least below the last one."""
    rank = p * buckets.get(math.inf, 0.0)
    if not rank:
        return None
    low = below = 0.0
    for bound, count in sorted(buckets.items()):
        if math.isinf(bound):
            break
        if count >= rank:
            share = (rank - below) / (count - below) if count > below else 1.0
            return low + (bound - low) * share
        low = bound
        below = count
    return low


def worst(calls: Iterable[Calls], bulk_verb: str = "", least: int = needed(0.99)) -> float | None:
    """Return the p99 in seconds of the slowest kind of request with at least `least` requests.

    `bulk_verb` selects one verb; without it only requests for single objects count. Kinds with
    fewer requests are merged. None means too few requests for a p99.
    """
    merged = Counter[float]()
    pools: list[Mapping[float, float]] = []
    for call in _of(calls, bulk_verb):
        # Kinds without a p99 of their own are judged together, so that none escapes the limit.
        if call.count < least:
            merged.update(call.buckets)
        else:
            pools.append(call.buckets)
    if merged[math.inf] >= least:  # the last bucket counts all requests
        pools.append(merged)
    return max((quantile(pool, 0.99) or 0.0 for pool in pools), default=None)


def _of(calls: Iterable[Calls], bulk_verb: str) -> list[Calls]:
    if bulk_verb:
        return [call for call in calls if call.verb == bulk_verb]
    return [call for call in calls if call.verb not in _BULK]


def slowest(calls: Sequence[Calls], bulk_verb: str = "") -> float | None:
    """Return an upper bound in seconds of the slowest request: the end of the last bucket in use.

    `bulk_verb` selects one verb; without it only requests for single objects count. Return 0 if
    only other requests were made, and None if the last bucket has no end.
    """
    ends = [call.end for call in _of(calls, bulk_verb)]
    slowest_end = max(ends, default=0.0 if calls and bulk_verb else math.inf)
    return None if math.isinf(slowest_end) else slowest_end


def requests(calls: Sequence[Calls], bulk_verb: str = "") -> float | None:
    """Return how many requests `worst` and `slowest` are of; None without any data."""
    return float(sum(call.count for call in _of(calls, bulk_verb))) if calls else None


def latencies(calls: Sequence[Calls]) -> dict[str, float | None]:
    """Named latencies of a phase, in seconds; None below the requests that a p99 needs."""
    return {
        "api_p99": worst(calls),
        "api_slowest": slowest(calls),
        "api_requests": requests(calls),
        "api_list_p99": worst(calls, "LIST"),
        "api_list_slowest": slowest(calls, "LIST"),
        "api_list_requests": requests(calls, "LIST"),
        "api_deletecollection_p99": worst(calls, "DELETECOLLECTION"),
    }


def figures(phases: Mapping[str, Sequence[Calls]]) -> dict[str, float | None]:
    """Return latencies and counts of the creation, and with `deletion/` before their names.

    A phase without a scrape at both ends is absent, and has latencies of None and no counts.
    """
    by_name: dict[str, float | None] = {}
    for phase, prefix in ((CREATION, ""), (DELETION, f"{DELETION}/")):
        calls = phases.get(phase, [])
        of_phase = {**latencies(calls), **counts(calls)}
        by_name |= {f"{prefix}{name}": value for name, value in of_phase.items()}
    return by_name


def counts(calls: Iterable[Calls]) -> dict[str, float]:
    """Count requests as `<VERB>-<resource>[/<subresource>]-count`.

    POST and PUT also count under KubeVirt's audit names CREATE and UPDATE. A server-side apply
    counts as PATCH.
    """
    by_name: dict[str, float] = defaultdict(float)
    for call in calls:
        verb = "PATCH" if call.verb == "APPLY" else call.verb
        for name in {verb, _ALIASES.get(verb, verb)}:
            by_name[f"{name}-{call.target}-count"] += call.count
    return dict(by_name)
