"""The API servers of a cluster, by their own addresses.

The request counts of one server among several would be mistaken for the total. The servers are
known from the EndpointSlices of the Service `kubernetes` and from the Leases in `kube-system`
(https://kubernetes.io/docs/concepts/architecture/leases/#api-server-identity).
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from perfdag.kube.client import Kube, KubeError
from perfdag.kube.errors import ignore_status
from perfdag.steps.scale.model.stages import unix_ns

IDENTITY = "apiserver.kubernetes.io/identity=kube-apiserver"
FRESH = 60.0
"""Maximum age in seconds of a live API server's Lease, against the newest. Renewal takes place
every 10 s.
"""
PATIENCE = 5.0
"""Seconds for an address to answer."""


async def addresses(kube: Kube) -> list[str]:
    """Return host:port of all API servers, or an empty list without the right to list them.

    Raises KubeError.
    """
    hosts_and_ports: set[str] = set()
    for endpoints in await _list(
        kube,
        "discovery.k8s.io/v1",
        "EndpointSlice",
        "default",
        "kubernetes.io/service-name=kubernetes",
    ):
        ports = [port["port"] for port in endpoints.get("ports") or []]
        hosts = [
            host
            for endpoint in endpoints.get("endpoints") or []
            for host in endpoint.get("addresses") or []
        ]
        hosts_and_ports |= {
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            for host in hosts
            for port in ports
        }
    return sorted(hosts_and_ports)


async def live(kube: Kube) -> int:
    """Count the API servers that renew their Lease; 0 without the right to list them."""
    leases = await _list(kube, "coordination.k8s.io/v1", "Lease", "kube-system", IDENTITY)
    renewed = [unix_ns(lease["spec"].get("renewTime")) / 1e9 for lease in leases]
    return sum(max(renewed) - at <= FRESH for at in renewed) if renewed else 0


async def _list(
    kube: Kube, api_version: str, kind: str, namespace: str, labels: str
) -> list[dict[str, Any]]:
    with ignore_status(403, 404):
        return await kube.list(await kube.resource(api_version, kind), namespace, labels=labels)
    return []


@asynccontextmanager
async def clients(kube: Kube) -> AsyncIterator[list[Kube]]:
    """Yield a client for every API server; for a single server, the client `kube`.

    Raises KubeError if one of several servers cannot be reached at its own address, because then
    the counts would be incomplete.
    """
    known_addresses, count = await addresses(kube), await live(kube)
    if max(len(known_addresses), count) < 2:
        yield [kube]
        return
    if len(known_addresses) < count:
        raise KubeError(
            0,
            "Several",
            f"{count} API servers share {len(known_addresses) or 'an'} address(es), and every "
            "server counts only its own requests",
        )
    async with AsyncExitStack() as stack:
        clients = []
        for address in known_addresses:
            host = kube.cluster.server_name or urlsplit(kube.cluster.server).hostname
            own = replace(
                kube.cluster,
                server=f"{urlsplit(kube.cluster.server).scheme}://{address}",
                server_name=host,
            )
            client = await stack.enter_async_context(Kube(own, retries=0))
            try:
                await client.raw("GET", "/version", timeout=PATIENCE)
            except KubeError as error:
                raise KubeError(
                    0,
                    "Several",
                    f"there are {len(known_addresses)} API servers, and {address} does not answer: "
                    f"{error}",
                ) from None
            clients.append(client)
        yield clients
