"""The pool of a gang: its hosts, how clients reach them, and whether it matches the shape."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from perfdag.hosts.base import Host
from perfdag.hosts.forwarding import PROGRAM, Forwarding
from perfdag.kube.patch import USER, VOLUME
from perfdag.kube.pods import Pod
from perfdag.outcome import Failed
from perfdag.shape import ACROSS, Shape
from perfdag.steps.loop.pools import LocalPool
from perfdag.steps.runner.batch_objects import services_key
from perfdag.steps.runner.gather import CONNECT_PATIENCE, GangUnavailable, Hosts, by_rank
from perfdag.steps.runner.pod_context import PodContext
from perfdag.store.base import Store


class GangPool(LocalPool):
    """The hosts of a gang.

    `nodes` are the facts of the cluster's nodes, if known. `reused`: an earlier gang wrote to its
    volume.
    """

    def __init__(
        self,
        context: PodContext,
        shape: Shape,
        gang: Hosts,
        nodes: Mapping[str, Any] | None = None,
        reused: bool = False,
    ) -> None:
        own, volume = gang.pods.get(context.pod), shape.volume
        existing = volume is not None and (volume.claim is not None or volume.kind == "hostPath")
        pods = {"image_digest": own.image_digest if own else None, "pods": sorted(gang.pods)}
        facts = {"volume_reused": True} if existing or reused else {}
        super().__init__({**pods, **context.where}, facts)
        self._gang, self._shape = gang, shape
        self.volume = VOLUME if volume else None
        self.earlier_attempts = own.attempt if own else 0
        if shape.hosts.pairs == ACROSS:
            self.zones = {name: str(node["zone"]) for name, node in (nodes or {}).items()}

    def hosts_for(self, shape: Shape) -> Sequence[Host]:
        whole = shape.hosts.count > 1 or self._shape.hosts.count == 1
        return self._gang.hosts if whole else self._gang.hosts[:1]

    def refuses(self, shape: Shape) -> str | None:
        return None

    def misplacement(self, shape: Shape, hosts: Sequence[Host]) -> str | None:
        return wrong_placement(shape, hosts) or wrong_images(self._gang.pods.values(), hosts)

    def advice(self, shape: Shape, error: str) -> str | None:
        return host_path_advice(shape, error)

    def lost(self) -> str | None:
        return self._gang.lost()


def wrong_images(pods: Iterable[Pod], hosts: Sequence[Host]) -> str | None:
    """Return why hosts run different images, or None: a tag may differ between nodes.

    An image that was loaded, not pulled, may have only the digest of its configuration. No digest
    of a manifest equals it, so the two kinds are compared apart.
    """
    nodes = {host.name for host in hosts}
    for of_manifest in (True, False):
        digests = {
            pod.image_digest.rpartition("@")[2]: pod.node
            for pod in pods
            if pod.node in nodes and pod.image_digest and ("@" in pod.image_digest) == of_manifest
        }
        if len(digests) > 1:
            listed = ", ".join(f"{digest} on {node}" for digest, node in digests.items())
            return (
                f"hosts ran different images: {listed}; "
                "name the image by its digest, or pull it again on all nodes"
            )
    return None


def host_path_advice(shape: Shape, error: str) -> str | None:
    """Return what to do if a hostPath refuses its pods: the kubelet creates it for root."""
    volume = shape.volume
    if volume is None or volume.kind != "hostPath" or shape.privileges:
        return None
    if VOLUME not in error or "Permission denied" not in error:
        return None
    return (
        f"volume.path: make it writable for uid {USER}, which pods run as: "
        f"chown {USER} {volume.path} on the node"
    )


def wrong_placement(shape: Shape, hosts: Sequence[Host]) -> str | None:
    """Return why hosts break the placement: spread needs one node a host, packed one node."""
    nodes = [host.name for host in hosts]
    distinct = sorted(set(nodes))
    if shape.hosts.placement == "spread" and len(distinct) < len(nodes):
        twice = next(node for node in nodes if nodes.count(node) > 1)
        return (
            f"{len(nodes)} nodes are required (placement: spread), "
            f"but {nodes.count(twice)} hosts were on {twice}"
        )
    if shape.hosts.placement == "packed" and len(distinct) > 1:
        return (
            f"one node is required (placement: packed), but the hosts were on {', '.join(distinct)}"
        )
    return None


def forward(context: PodContext, store: Store, shape: Shape, number: int, gang: Hosts) -> None:
    """Set how clients reach each host of a gang, and wait until the Services forward.

    Raises GangUnavailable, StoreError.
    """
    if not shape.network.forwarded:
        return
    ranked = by_rank(gang.pods)
    for rank, service in orjson.loads(store.get(services_key(context, number))).items():
        node = ranked[int(rank)].node_address
        address = node if shape.network.path == "nodeport" else service["address"]
        gang.hosts[int(rank)].forwarding = Forwarding(str(address), service["ports"])
    reach = [(host, host.forwarding) for host in gang.hosts if host.forwarding]
    with contextlib.ExitStack() as listeners:
        for host, forwarding in reach:
            argv = [*PROGRAM, "listen", host.address, *map(str, forwarding.ports)]
            try:
                listeners.enter_context(host.serve(argv, port=forwarding.ports[-1]))
            except Failed as error:
                raise GangUnavailable(str(error)) from None
        for client in gang.hosts:
            others = [forwarding for host, forwarding in reach if host is not client]
            targets = [
                text
                for forwarding in others
                for port in forwarding.ports
                for text in (forwarding.address, str(port))
            ]
            argv = [*PROGRAM, "connect", str(CONNECT_PATIENCE), *targets]
            finished = client.run(argv, timeout=2 * CONNECT_PATIENCE)
            if finished.code:
                raise GangUnavailable(
                    f"network.path: {shape.network.path}: {client.name} reaches no server at "
                    f"{finished.tail()}; does a NetworkPolicy refuse it?"
                )
