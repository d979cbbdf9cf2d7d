"""The lead of a gang: find the peers, measure the samples of one batch, dismiss the peers."""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from perfdag import signals
from perfdag.hosts.base import Host
from perfdag.hosts.local import LocalHost
from perfdag.hosts.ssh import SshHost
from perfdag.kube.client import Kube, KubeError
from perfdag.kube.pods import Pod, read_pod, selector, troubles, with_events
from perfdag.kube.podspec import VOLUME, shares, ssh_port
from perfdag.kube.security import USER
from perfdag.outcome import Infrastructure
from perfdag.plan.plan import Plan
from perfdag.results import missing_reason
from perfdag.results.confirming import plan_of_batch
from perfdag.results.missing_reason import MissingReason, budget_spent
from perfdag.results.samples import SampleRecord, run_folder, stored_samples
from perfdag.shape import Shape
from perfdag.steps.measure import PRECISE, GangLost, MeasuringLoop, Site
from perfdag.steps.runner import budget, peer
from perfdag.steps.runner.pod_context import KEYS, PodContext, scratch_home
from perfdag.steps.runner.quarantine import UnderWay, known, skip_crashers, suspects_last
from perfdag.store.base import NotStoredError, Store
from perfdag.suite.point import Point

CONNECT_PATIENCE = 30.0


class GangUnavailable(Exception):
    """The gang cannot measure now, but another attempt may; the message tells why."""


@dataclass
class Hosts:
    """The hosts of a batch, rank 0 first, and the pods they are in."""

    hosts: list[Host]
    pods: dict[str, Pod]
    peers: list[SshHost] = field(default_factory=list)

    def lost(self) -> str | None:
        """Return which peer is gone, None where all are there."""
        gone = [each.name for each in self.peers if not each.alive()]
        return f"the peer on {gone[0]} is gone" if gone else None

    def dismiss(self, measured: bool) -> None:
        """Let the peers end, with 0 only where all is measured.

        `argo retry` creates failed pods alone: a peer that ended with 0 would leave half a gang.
        """
        for each in self.peers:
            each.dismiss(0 if measured else peer.RETRYABLE)
            each.close()


def lead(here: PodContext, store: Store, plan: Plan, number: int, attempt: int, last: bool) -> int:
    """Measure batch `number`; return 0, or RETRYABLE or REFUSED where the gang fell apart.

    Raises StoreError, KubeError.
    """
    plan, index = plan_of_batch(store, plan, number)
    batch = plan.batches[index]
    stored = stored_samples(store, plan.run_id)
    left = [position for position in batch.samples if plan.key(position) not in stored]
    shape = plan.shape_of(index)
    said = ProgressReporter(len(left))
    if not left:
        return 0
    try:
        crashes = known(here, store, number, attempt)
        over = skip_crashers(here, store, plan, index, crashes)
        for position, part in over.items():
            said.ended(plan.points[plan.order[position][0]], part)
        left = [position for position in left if position not in over]
        if not left:
            return 0
        with assembled(here, plan, shape, number, attempt) as gang:
            missing_reason.forget_batch(store, plan.run_id, index)
            reused = shares(shape.volume) and used_before(here, store, number)
            measure_batch(
                store,
                plan,
                place_for(here, shape, gang, reused),
                index,
                suspects_last(plan, batch.samples, left, attempt, crashes),
                said,
            )
        return 0
    except (GangUnavailable, GangLost, KubeError) as error:
        return fell_apart(store, [plan], index, f"batch {number}, attempt {attempt}", last, error)


def fell_apart(
    store: Store, plans: Sequence[Plan], index: int, attempt: str, last: bool, error: Exception
) -> int:
    """Write why an attempt at batch `index` of the plans ended early.

    Returns RETRYABLE, or REFUSED for missing rights. Raises StoreError, and other KubeErrors again.
    """
    refused = isinstance(error, KubeError)
    if isinstance(error, KubeError) and error.status != 403:
        raise error
    print(f"{attempt}: {error}", flush=True)  # noqa: T201
    for plan in plans:
        missing_reason.write(
            store, plan.run_id, MissingReason("batch", "failed", str(error), index)
        )
    if last:
        print(f"{attempt}: given up; the reason is in the rows of what is left", flush=True)  # noqa: T201
    return peer.REFUSED if refused else peer.RETRYABLE


def measure_batch(
    store: Store,
    plan: Plan,
    place: Site,
    number: int,
    samples: Sequence[int],
    said: "ProgressReporter",
) -> None:
    measuring = MeasuringLoop(plan, store, place, said)
    if not measuring.measure(
        samples, batch=number, deadline=budget.deadline(store, plan.run_id, plan)
    ):
        missing_reason.write(store, plan.run_id, budget_spent(plan.budget or 0, number))


def used_before(here: PodContext, store: Store, batch: int) -> bool:
    """Return whether an earlier gang used the claim of this batch, and mark it as used. Raises StoreError."""
    mark = f"{run_folder(here.run_id)}/volumes/{here.workflow_uid}-b{batch}"
    try:
        store.get(mark)
    except NotStoredError:
        store.put(mark, b"used\n")
        return False
    return True


def place_for(here: PodContext, shape: Shape, gang: Hosts, reused: bool = False) -> Site:
    """Return the site of a gang. `reused`: an earlier gang wrote to its volume."""
    own = gang.pods.get(here.pod)
    where = {"image_digest": own.image_digest if own else None, "pods": sorted(gang.pods)}
    given = shape.volume is not None and (
        shape.volume.claim is not None or shape.volume.kind == "hostPath"
    )
    return Site(
        hosts_for=lambda asked: (
            gang.hosts if asked.hosts.count > 1 or shape.hosts.count == 1 else gang.hosts[:1]
        ),
        volume=VOLUME if shape.volume else None,
        where={
            **where,
            "store": here.store,
            "namespace": here.namespace,
            "workflow_uid": here.workflow_uid,
        },
        facts={"volume_reused": True} if given or reused else {},
        placed=lambda asked, hosts: (
            wrong_place(asked, hosts) or wrong_images(shape, own, gang.pods.values(), hosts)
        ),
        advice=writable,
        lost=gang.lost,
    )


def wrong_images(
    shape: Shape, own: Pod | None, pods: Iterable[Pod], hosts: Sequence[Host]
) -> str | None:
    """Return why hosts do not run one image, None where they do: a tag may differ between nodes.

    A loaded image may have only the digest of its configuration, which no manifest's digest equals.
    `own` is a pod of the gang: pods of the other variant have another image.
    """
    side, nodes = (own.rank or 0) // shape.hosts.count if own else 0, {host.name for host in hosts}
    for of_manifest in (True, False):
        found = {
            pod.image_digest.rpartition("@")[2]: pod.node
            for pod in pods
            if (pod.rank or 0) // shape.hosts.count == side
            and pod.node in nodes
            and pod.image_digest
            and ("@" in pod.image_digest) == of_manifest
        }
        if len(found) > 1:
            said = ", ".join(f"{digest} on {node}" for digest, node in found.items())
            return f"hosts ran different images: {said}; give the image by its digest, or pull it anew on all nodes"
    return None


def writable(shape: Shape, error: str) -> str | None:
    """Return what to do where a hostPath refuses its pods: the kubelet creates it for root."""
    volume = shape.volume
    if (
        volume is None
        or volume.kind != "hostPath"
        or shape.privileges
        or VOLUME not in error
        or "Permission denied" not in error
    ):
        return None
    return f"volume.path: make it writable for uid {USER}, which pods run as: chown {USER} {volume.path} on the node"


def wrong_place(shape: Shape, hosts: Sequence[Host]) -> str | None:
    """Return why hosts break the placement: spread needs a node for each, packed one node."""
    nodes = [host.name for host in hosts]
    if shape.hosts.placement == "spread" and len(set(nodes)) < len(nodes):
        twice = next(node for node in nodes if nodes.count(node) > 1)
        return f"{len(nodes)} nodes were asked for (placement: spread), but {nodes.count(twice)} hosts were on {twice}"
    if shape.hosts.placement == "packed" and len(set(nodes)) > 1:
        return f"one node was asked for (placement: packed), but the hosts were on {', '.join(sorted(set(nodes)))}"
    return None


@contextlib.contextmanager
def assembled(here: PodContext, plan: Plan, shape: Shape, number: int, attempt: int) -> "Any":
    """Yield the hosts of a batch, all reachable, and dismiss the peers at the end.

    Raises GangUnavailable where they do not run within pending_limit.
    """
    limit = float(plan.options.get("pending_limit", 600))
    wanted = shape.hosts.count
    pods = signals.run(
        running(here, here.run_id, number, attempt, wanted, limit, shape.network.family)
    )
    gang = Hosts([own_host(here, pods, shape)], pods)
    measured = False
    try:
        if wanted > 1:
            ranked = sorted(
                (each for each in pods.values() if each.rank), key=lambda each: each.rank or 0
            )
            add_peers(gang, ranked, ssh_config(), shape, here.run_id)
        yield gang
        measured = True
    finally:
        gang.dismiss(measured)


def ssh_config() -> Path:
    """Write the ssh configuration for the peers and return it. Raises PeerError."""
    return peer.client_config(peer.Keys(KEYS), scratch_home() / "lead")


def add_peers(gang: Hosts, pods: Sequence[Pod], config: Path, shape: Shape, run_id: str) -> None:
    """Reach the other pods of a gang, by rank, and add them to its hosts. Raises GangUnavailable."""
    connect(gang, pods, config, shape, run_id)
    # how `perfdag step rsh`, which MPI launchers call, reaches the peers
    os.environ |= {
        "PERFDAG_SSH_CONFIG": str(config),
        "PERFDAG_SSH_PORTS": " ".join(f"{each.at}={each.port}" for each in gang.peers),
    }
    gang.hosts += [_measured_host(host, shape) for host in gang.peers]


def connect(gang: Hosts, pods: Sequence[Pod], config: Path, shape: Shape, run_id: str) -> None:
    """Reach the peers in these pods and end what an earlier lead left in them. Raises GangUnavailable where one cannot be reached."""
    for pod in pods:
        host = SshHost(
            pod.address or "", pod.node or "", config, ssh_port(shape, run_id, pod.rank or 0)
        )
        try:
            host.connect(CONNECT_PATIENCE)
            host.clean()
        except Infrastructure as error:
            mtu = (
                f"; does its network carry packets of {shape.network.mtu} bytes (network.mtu)?"
                if shape.network.mtu
                else ""
            )
            raise GangUnavailable(f"{error}{mtu}") from None
        gang.peers.append(host)


def own_host(here: PodContext, pods: dict[str, Pod], shape: Shape) -> LocalHost:
    """Return this pod with its address on the measured network. Raises GangUnavailable."""
    own = pods.get(here.pod)
    address = (own.address if own else None) or here.address
    local = LocalHost(address, here.node)
    extra = extra_address(local, shape)
    return LocalHost(extra, here.node) if extra else local


def _measured_host(host: SshHost, shape: Shape) -> Host:
    """Return a peer with its address on the measured network. Raises GangUnavailable."""
    extra = extra_address(host, shape)
    if extra:
        host.measure(extra)
    return host


def extra_address(host: Host, shape: Shape) -> str | None:
    """Return the address on the interface of a Multus network; the host tells it before any API does."""
    if not shape.network.name or shape.network.default:
        return None
    interface = shape.network.interface or "net1"
    flag = "-6" if shape.network.family == "ipv6" else "-4"
    said = host.run(["ip", flag, "-j", "addr", "show", "dev", interface], timeout=15)
    try:
        found = [
            each["local"]
            for each in orjson.loads(said.stdout)[0]["addr_info"]
            if each.get("scope") == "global"
        ]
        return str(
            found[0]
        )  # a link-local IPv6 address comes first on many interfaces, and nobody reaches it without a zone
    except (ValueError, LookupError):
        raise GangUnavailable(
            f"{host.name} has no address on {interface} of network {shape.network.name}: {said.tail()}"
        ) from None


async def running(
    here: PodContext, run_id: str, number: int, attempt: int, wanted: int, limit: float, family: str
) -> dict[str, Pod]:
    """The pods of a batch by name, once `wanted` of them run with an address of `family`. Raises GangUnavailable after `limit` seconds, KubeError."""
    deadline = time.monotonic() + limit
    async with Kube() as kube:
        kind = await kube.resource("v1", "Pod")
        while True:
            listed = await kube.list(
                kind, here.namespace, labels=selector(run_id, here.workflow, number, attempt)
            )
            pods = {pod.name: pod for pod in (read_pod(each, family) for each in listed)}
            there = [
                pod
                for pod in pods.values()
                if pod.phase == "Running" and pod.addresses and pod.node
            ]
            check_family(there, family, wanted)
            if len(there) >= wanted:
                return {pod.name: pod for pod in there}
            ended = [pod for pod in pods.values() if pod.phase in ("Failed", "Succeeded")]
            if ended:
                raise GangUnavailable(
                    f"{ended[0].name} ended before the gang was complete: {ended[0].trouble or ended[0].phase}"
                )
            if time.monotonic() > deadline:
                why = absent(await with_events(kube, here.namespace, pods.values()), wanted)
                raise GangUnavailable(
                    f"{len(there)} of {wanted} pods ran within {limit:g} s (pending_limit): {why}"
                )
            await asyncio.sleep(0.3)


def absent(pods: Sequence[Pod], wanted: int) -> str:
    """Return why too few pods run: their troubles, or how many were not created."""
    waiting = [
        f"{pod.name} is {pod.phase} on {pod.node or 'no node'}, and no event says why"
        for pod in pods
        if pod.phase != "Running"
    ]
    unmade = [f"{wanted - len(pods)} pods were not created"] if len(pods) < wanted else []
    return "; ".join([*(troubles(pods) or waiting), *unmade])


def check_family(pods: Sequence[Pod], family: str, wanted: int) -> None:
    """Raises GangUnavailable where a pod has no address of the family that is to be measured. One pod alone may do without IPv4: it is no peer."""
    lacking = next((pod for pod in pods if not pod.address), None)
    if lacking and (wanted > 1 or family == "ipv6"):
        raise GangUnavailable(
            f"{lacking.name} has no {family} address, only {', '.join(lacking.addresses)}: "
            f"the pod network has none to give (network.family: {family})"
        )


class ProgressReporter:
    """Report progress: lines on stdout, and N/M in Argo's progress file."""

    def __init__(self, total: int) -> None:
        self._total, self._done = total, 0
        self._file = os.environ.get("ARGO_PROGRESS_FILE")
        self._under_way = UnderWay()
        self._report()

    def started(self, point: Point, repetition: int) -> None:
        """Record that a sample begins."""
        self._under_way.began(point, repetition)

    def ended(self, point: Point, part: SampleRecord) -> None:
        """Record and print that a sample is stored."""
        self._under_way.ended(point)
        self._done += 1
        text = f"{self._done}/{self._total} {part.status} {point.entry} {point.label} repetition {part.repetition}"
        print(text if part.error is None else f"{text}: {part.error}", flush=True)  # noqa: T201
        self._report()

    def passed(self, point: Point, repetition: int, why: str) -> None:
        """Count a sample that `until` does not need; the total has no samples stored before."""
        if why == PRECISE:
            self._done += 1
            self._report()

    def count(self, samples: int) -> None:
        """Count samples that another pod stored."""
        self._done += samples
        print(f"{self._done}/{self._total}", flush=True)  # noqa: T201
        self._report()

    def _report(self) -> None:
        if self._file:
            try:
                Path(self._file).write_text(f"{self._done}/{self._total}\n")
            except OSError as error:
                print(f"progress is not reported to Argo: {error}", file=sys.stderr)  # noqa: T201
                self._file = None
