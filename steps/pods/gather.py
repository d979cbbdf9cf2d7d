"""The pods of a gang: find them, connect to them, and make a site of them."""

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from perfdag import signals
from perfdag.benchmark.contract import Failed, Infrastructure
from perfdag.hosts.base import Forwarding, Host
from perfdag.hosts.local import LocalHost
from perfdag.hosts.ssh import SshHost
from perfdag.kube.client import Kube
from perfdag.kube.config import SERVICE_ACCOUNT
from perfdag.kube.patch import USER, VOLUME, ssh_port
from perfdag.kube.pods import Pod, read_pod, selector
from perfdag.plan.plan import Plan
from perfdag.shape import ACROSS, Shape
from perfdag.steps.loop import GangLost, LocalPool
from perfdag.steps.on_host import PROGRAM
from perfdag.steps.pods.context import EXIT_RETRYABLE, PodContext
from perfdag.steps.pods.credentials import HOME, client_config
from perfdag.steps.pods.objects import services_key
from perfdag.store.base import Store

LOOK_SECONDS = 0.5
"""Seconds between two looks at the connections to the peers."""
CONNECT_PATIENCE = 30.0
"""Seconds within which a peer must accept the lead's connection."""
GONE_SECONDS = 30.0
"""Seconds after which a deleted pod is gone; Argo creates one that never ran again before."""
CONNECT_AT_ONCE = 8
"""Peers that a lead connects to, or dismisses, at the same time."""


class GangUnavailable(Exception):
    """The gang cannot measure now; another attempt may. The message says why."""


@dataclass
class Hosts:
    """The hosts of a batch, rank 0 first, and their pods by name."""

    hosts: list[LocalHost | SshHost]
    pods: dict[str, Pod]
    peers: list[SshHost] = field(default_factory=list)

    def lost(self) -> str | None:
        """Return which peer is gone, or None if all answer."""
        return next(
            (f"the peer on {peer.name} is gone" for peer in self.peers if peer.is_closed()), None
        )

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Interrupt the block as Ctrl-C does as soon as a peer is gone, and raise GangLost."""
        reasons: list[str] = []
        stop = threading.Event()
        main = threading.main_thread().ident

        def watch() -> None:
            while not reasons and not stop.wait(LOOK_SECONDS):
                if (why := self.lost()) and main:
                    reasons.append(why)
                    signal.pthread_kill(main, signal.SIGUSR1)

        before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
        watch_thread = threading.Thread(target=watch, daemon=True)
        watch_thread.start()
        try:
            yield
        except KeyboardInterrupt:
            if not reasons:
                raise
            raise GangLost(reasons[0]) from None
        finally:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # else a late one interrupts what follows
            stop.set()
            watch_thread.join()
            signal.signal(signal.SIGUSR1, before)

    def dismiss(self, measured: bool) -> None:
        """End the peers, with exit code 0 only if the batch is measured.

        `argo retry` creates only failed pods again: a peer that ended with 0 would leave half a
        gang.
        """

        def end(peer: SshHost) -> None:
            if not peer.is_closed():  # else it ends by itself, and ssh would wait for it
                peer.dismiss(0 if measured else EXIT_RETRYABLE)
            peer.close()

        with ThreadPoolExecutor(CONNECT_AT_ONCE) as pool:
            list(pool.map(end, self.peers))


@contextlib.contextmanager
def assembled(
    context: PodContext, plan: Plan, shape: Shape, number: int, attempt: int
) -> Iterator[Hosts]:
    """Yield the hosts of a batch, all reachable, and dismiss the peers at the end.

    Raises GangUnavailable if they do not run within pending_limit, and KubeError.
    """
    count, limit = shape.hosts.count, plan.options.pending_limit
    labels = selector(context.run_id, context.workflow, number, attempt)
    pods = signals.run(running(context, labels, count, limit, shape.network.family))
    gang = Hosts([own_host(context, pods, shape)], pods)
    measured = False
    try:
        if count > 1:
            ranked = by_rank(pods)
            peers = [ranked[rank] for rank in sorted(ranked) if rank]
            config = client_config(SERVICE_ACCOUNT, HOME / "lead")
            add_peers(gang, peers, config, shape, context.run_id)
        with gang.watched():
            yield gang
        measured = True
    finally:
        gang.dismiss(measured)


def by_rank(pods: dict[str, Pod]) -> dict[int, Pod]:
    """Return the pods of a batch by their rank."""
    return {pod.rank or 0: pod for pod in pods.values()}


def add_peers(gang: Hosts, pods: Sequence[Pod], config: Path, shape: Shape, run_id: str) -> None:
    """Connect to the other pods of a gang, several at once, and add them to its hosts.

    Raises GangUnavailable if one cannot be reached.
    """

    def reach(peer: SshHost) -> None:
        peer.connect(CONNECT_PATIENCE)
        peer.clean()  # what an earlier lead left running
        if extra := extra_address(peer, shape):
            peer.address = extra

    start = time.monotonic()
    for pod in pods:
        port = ssh_port(shape, run_id, pod.rank or 0)
        gang.peers.append(SshHost(pod.address or "", pod.node or "", config, port))
    try:
        with ThreadPoolExecutor(CONNECT_AT_ONCE) as pool:
            list(pool.map(reach, gang.peers))
    except Infrastructure as error:
        mtu = shape.network.mtu
        hint = f"; does its network carry packets of {mtu} bytes (network.mtu)?" if mtu else ""
        raise GangUnavailable(f"{error}{hint}") from None
    print(f"connected to {len(pods)} peers in {time.monotonic() - start:.1f} s", flush=True)  # noqa: T201
    gang.hosts += gang.peers
    # How `perfdag step rsh`, which MPI launchers call with measured addresses, reaches the hosts.
    own = (os.environ.get("PERFDAG_IPS"), gang.hosts[0].address)
    os.environ |= {
        "PERFDAG_SSH_CONFIG": str(config),
        "PERFDAG_SSH_PORTS": " ".join(
            f"{peer.address}={peer.at}={peer.port}" for peer in gang.peers
        ),
        "PERFDAG_IPS": ",".join(filter(None, own)),
    }


def own_host(context: PodContext, pods: dict[str, Pod], shape: Shape) -> LocalHost:
    """Return this pod with its address on the measured network. Raises GangUnavailable."""
    own = pods.get(context.pod)
    address = (own.address if own else None) or context.addresses[0]
    local = LocalHost(address, context.node)
    extra = extra_address(local, shape)
    return LocalHost(extra, context.node) if extra else local


def extra_address(host: Host, shape: Shape) -> str | None:
    """Return the address on the interface of a Multus network; None without such a network.

    The host knows it before the API server does. A link-local IPv6 address often comes first, and
    nobody reaches it without a zone.
    """
    if not shape.network.name or shape.network.default:
        return None
    interface = shape.network.interface or "net1"
    flag = "-6" if shape.network.family == "ipv6" else "-4"
    listing = host.run(["ip", flag, "-j", "addr", "show", "dev", interface], timeout=15)
    try:
        addresses = [
            address["local"]
            for address in orjson.loads(listing.stdout)[0]["addr_info"]
            if address.get("scope") == "global"
        ]
        return str(addresses[0])
    except (ValueError, LookupError):
        raise GangUnavailable(
            f"{host.name} has no address on {interface} "
            f"of network {', '.join(shape.network.attachments)}: "
            f"{listing.tail()}"
        ) from None


async def running(
    context: PodContext, labels: str, count: int, limit: float, family: str
) -> dict[str, Pod]:
    """Return the selected pods by name, once `count` of them run with an address of `family`.

    Raises GangUnavailable after `limit` seconds, and KubeError.
    """
    deadline, seen = time.monotonic() + limit, dict[str, float]()
    async with Kube() as kube:
        kind = await kube.resource("v1", "Pod")
        while True:
            listed = await kube.list(kind, context.namespace, labels=labels)
            pods = [read_pod(pod, family) for pod in listed]
            seen |= dict.fromkeys((pod.name for pod in pods), time.monotonic())
            started = [pod for pod in pods if pod.phase == "Running" and pod.addresses and pod.node]
            require_family(started, family, count)
            if len(started) >= count:
                return {pod.name: pod for pod in started}
            terminated = [pod for pod in pods if pod.phase in ("Failed", "Succeeded")]
            if terminated:
                trouble = terminated[0].trouble or terminated[0].phase
                raise GangUnavailable(
                    f"{terminated[0].name} ended before the gang was complete: {trouble}"
                )
            for name, last in seen.items():
                if time.monotonic() - last > GONE_SECONDS:
                    raise GangUnavailable(f"{name} was deleted before the gang was complete")
            if time.monotonic() > deadline:
                raise GangUnavailable(
                    f"{len(started)} of {count} pods ran within {limit:g} s (pending_limit)"
                )
            await asyncio.sleep(0.3)


def require_family(pods: Sequence[Pod], family: str, count: int) -> None:
    """Raise GangUnavailable if a pod has no address of the family. One pod alone needs no IPv4."""
    lacking = next((pod for pod in pods if not pod.address), None)
    if lacking and (count > 1 or family == "ipv6"):
        raise GangUnavailable(
            f"{lacking.name} has no {family} address, only {', '.join(lacking.addresses)}: "
            f"the pod network has none to give (network.family: {family})"
        )


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
        volume = shape.volume
        if volume is None or volume.kind != "hostPath" or shape.privileges:
            return None
        if VOLUME not in error or "Permission denied" not in error:
            return None
        return (
            f"volume.path: make it writable for uid {USER}, which pods run as: "
            f"chown {USER} {volume.path} on the node"
        )

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
