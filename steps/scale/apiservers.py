"""The API servers of a cluster, each by its own address: request counts of one of several would be taken for all there are.

They are told by the EndpointSlices of the Service `kubernetes` and by the Leases that each API server keeps in `kube-system`
(https://kubernetes.io/docs/concepts/architecture/leases/#api-server-identity).
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from perfdag.kube import Kube, KubeError
from perfdag.steps.scale.stages import unix_ns

IDENTITY = "apiserver.kubernetes.io/identity=kube-apiserver"
FRESH = 60.0
"""Seconds that a live API server's Lease is at most older than the newest; each renews its own each 10 s."""
PATIENCE = 5.0
"""Seconds for an address to answer."""


async def addresses(kube: Kube) -> list[str]:
    """host:port of each API server; empty where we may not ask. Raises KubeError."""
    found: set[str] = set()
    for each in await _list(
        kube,
        "discovery.k8s.io/v1",
        "EndpointSlice",
        "default",
        "kubernetes.io/service-name=kubernetes",
    ):
        ports = [port["port"] for port in each.get("ports") or []]
        hosts = [
            host
            for endpoint in each.get("endpoints") or []
            for host in endpoint.get("addresses") or []
        ]
        found |= {
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            for host in hosts
            for port in ports
        }
    return sorted(found)


async def live(kube: Kube) -> int:
    """How many API servers renew their Lease; 0 where we may not ask. Raises KubeError."""
    leases = await _list(kube, "coordination.k8s.io/v1", "Lease", "kube-system", IDENTITY)
    renewed = [unix_ns(each["spec"].get("renewTime")) / 1e9 for each in leases]
    return sum(max(renewed) - at <= FRESH for at in renewed) if renewed else 0


async def _list(
    kube: Kube, api_version: str, kind: str, namespace: str, labels: str
) -> list[dict[str, Any]]:
    try:
        return await kube.list(await kube.resource(api_version, kind), namespace, labels=labels)
    except KubeError as error:
        if error.status in (403, 404):
            return []
        raise


@asynccontextmanager
async def each_of(kube: Kube) -> AsyncIterator[list[Kube]]:
    """A client of each API server; of the only one, or where nothing tells how many there are, the client that we have.

    Raises KubeError where there are several and one cannot be reached by its address: then nobody can tell what all were asked.
    """
    there, count = await addresses(kube), await live(kube)
    if max(len(there), count) < 2:
        yield [kube]
        return
    if len(there) < count:
        raise KubeError(
            0,
            "Several",
            f"{count} API servers answer behind {len(there) or 'an'} address(es): each counts its own requests alone",
        )
    async with AsyncExitStack() as stack:
        clients = []
        for address in there:
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
                    f"there are {len(there)} API servers, and {address} cannot be asked: {error}",
                ) from None
            clients.append(client)
        yield clients
