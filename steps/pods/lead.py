"""The lead of a gang: find its pods, connect to them, and measure the samples of one batch.

Of `perfdag ab` it measures both variants in turn. It stores each sample before the next, so a gang
that falls apart loses only the sample under way: its exit code makes Argo create the batch's pods
again, and the next lead goes on from the store.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any

import orjson

from perfdag import signals
from perfdag.benchmark.contract import Failed, Infrastructure
from perfdag.benchmark.registry import display_unit
from perfdag.hosts.base import Forwarding, Host
from perfdag.hosts.local import LocalHost
from perfdag.hosts.ssh import SshHost
from perfdag.kube.client import Kube
from perfdag.kube.patch import SSH, SUMMARY, VOLUME, account_of, ssh_port
from perfdag.kube.pods import Pod, read_pod, selector
from perfdag.plan import Plan, TimeLeft, stored_duet
from perfdag.results.run_store import plan_of_batch, variants
from perfdag.results.samples import (
    MissingReason,
    SampleRecord,
    budget_spent,
    forget_reasons,
    stored_reasons,
    stored_samples,
    write_reason,
)
from perfdag.shape import ACROSS, Shape
from perfdag.stats.robust import median, spread
from perfdag.steps.loop import PRECISE, GangLost, LocalPool, MeasuringLoop, ProgressListener
from perfdag.steps.on_host import PROGRAM
from perfdag.steps.pods.context import (
    EXIT_RETRYABLE,
    PodContext,
    clock_deadline,
    explain_end,
    refuse,
)
from perfdag.steps.pods.peer import HOME, client_config
from perfdag.store.base import Store
from perfdag.suite.points import Point
from perfdag.units import plural, short, short_seconds, with_spread

CONNECT_PATIENCE = 30.0
"""Seconds within which a peer must accept the lead's connection."""
CONNECT_AT_ONCE = 8
"""Peers that a lead connects to, or dismisses, at the same time."""
QUIET = 30.0, 4.0
"""Seconds before the end of a batch between which no progress is reported. Argo looks at a Workflow
10 s after a change, and again 10 s after what it wrote itself. So the report at 4 s brings a look
when the kubelets have told of the end, which takes up to 6 s; otherwise it would come 10 s later
than that."""
CRASHES = 2
"""Pods that may be lost while they measure a point; of the variants of `ab` both together."""


@dataclass
class GangPool(LocalPool):
    """The pods of a batch by rank, and the hosts that they are: this pod, then its peers.

    `crashed` has the ids of the points that lost CRASHES pods.
    """

    shape: Shape = field(default_factory=Shape)
    pods: Mapping[int, Pod] = field(default_factory=dict)
    hosts: Sequence[LocalHost | SshHost] = ()
    peers: list[SshHost] = field(default_factory=list)
    crashed: Collection[str] = ()

    def hosts_for(self, shape: Shape) -> Sequence[Host]:
        # a shape of one host in a gang of several is the lead alone
        all_hosts = shape.hosts.count > 1 or self.shape.hosts.count == 1
        return self.hosts if all_hosts else self.hosts[:1]

    def check(self, point: Point, shape: Shape) -> None:
        if point.id in self.crashed:
            raise Failed(f"{CRASHES} pods were lost while they measured this point")

    def mismatch(self, hosts: Sequence[Host]) -> str | None:
        """Return why hosts run different images, or None: a tag may differ between nodes.

        An image that was loaded, not pulled, may have only the digest of its configuration. No
        digest of a manifest equals it, so the two kinds are compared apart.
        """
        nodes = {host.name for host in hosts}
        for of_manifest in (True, False):
            digests = {
                pod.image_digest.rpartition("@")[2]: pod.node
                for pod in self.pods.values()
                if pod.node in nodes
                and pod.image_digest
                and ("@" in pod.image_digest) == of_manifest
            }
            if len(digests) > 1:
                listed = ", ".join(f"{digest} on {node}" for digest, node in digests.items())
                return (
                    f"hosts ran different images: {listed}; "
                    "name the image by its digest, or pull it again on all nodes"
                )
        return None

    def lost(self) -> str | None:
        gone = next((peer for peer in self.peers if peer.is_closed()), None)
        return f"the peer on {gone.name} is gone" if gone else None

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Interrupt the block as Ctrl-C does as soon as a peer is gone, and raise GangLost.

        The connection to a peer is a child process, so its end is a signal.
        """

        def child_ended(number: int, frame: FrameType | None) -> None:
            if self.lost():
                signal.signal(number, signal.SIG_DFL)  # cleaning up ends other children
                raise KeyboardInterrupt

        before = signal.signal(signal.SIGCHLD, child_ended)
        try:
            signal.raise_signal(signal.SIGCHLD)  # one may be gone already
            yield
        except KeyboardInterrupt:
            reason = self.lost()
            if reason:
                raise GangLost(reason) from None
            raise
        finally:
            signal.signal(signal.SIGCHLD, before)

    def connect(self, run_id: str, config: Path) -> None:
        """Add the other pods to the hosts, several at once. Raises Infrastructure.

        `config` is that of ssh. The environment gets how `perfdag step rsh`, which MPI launchers
        call with measured addresses, reaches the hosts.
        """

        def reach(peer: SshHost) -> None:
            peer.connect(CONNECT_PATIENCE)
            peer.clean()  # what an earlier lead left running
            peer.address = extra_address(peer, self.shape) or peer.address

        start = time.monotonic()
        for rank, pod in sorted(self.pods.items()):
            if rank:
                port = ssh_port(self.shape, run_id, rank)
                self.peers.append(SshHost(pod.address or "", pod.node or "", config, port))
        try:
            with ThreadPoolExecutor(CONNECT_AT_ONCE) as pool:
                list(pool.map(reach, self.peers))
        except Infrastructure as error:
            mtu = self.shape.network.mtu
            hint = f"; does its network carry packets of {mtu} bytes (network.mtu)?" if mtu else ""
            raise Infrastructure(f"{error}{hint}") from None
        took = time.monotonic() - start
        print(f"connected to {len(self.peers)} peers in {took:.1f} s", flush=True)  # noqa: T201
        addresses = (os.environ.get("PERFDAG_IPS"), self.hosts[0].address)
        os.environ |= {
            "PERFDAG_SSH_CONFIG": str(config),
            "PERFDAG_SSH_PORTS": " ".join(
                f"{peer.address}={peer.at}={peer.port}" for peer in self.peers
            ),
            "PERFDAG_IPS": ",".join(filter(None, addresses)),
        }
        self.hosts = [*self.hosts, *self.peers]

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


def pool_of(
    context: PodContext,
    shape: Shape,
    pods: Mapping[int, Pod],
    attempt: int = 0,
    nodes: Mapping[str, Any] | None = None,
) -> GangPool:
    """Return the pool of pods by rank, with this pod as its only host yet.

    `nodes` are the facts of the cluster's nodes, if known. Raises Infrastructure.
    """
    volume = shape.volume
    own_pod = pods.get(0)
    # an earlier gang used the claim that the pods of a batch share
    reused = volume and (
        volume.claim or volume.kind == "hostPath" or (attempt and volume.batch_claim)
    )
    by_zone = nodes if nodes and shape.hosts.pairs == ACROSS else {}
    local = LocalHost((own_pod and own_pod.address) or context.addresses[0], context.node)
    local.address = extra_address(local, shape) or local.address
    return GangPool(
        where={
            "image_digest": own_pod.image_digest if own_pod else None,
            "pods": sorted(pod.name for pod in pods.values()),
            "store": context.store,
            "namespace": context.namespace,
            "workflow_uid": context.workflow_uid,
        },
        facts={"volume_reused": True} if reused else {},
        volume=VOLUME if volume else None,
        earlier_attempts=attempt,
        zones={name: str(node["zone"]) for name, node in by_zone.items()},
        shape=shape,
        pods=pods,
        hosts=[local],
    )


@contextlib.contextmanager
def assembled(
    context: PodContext, plan: Plan, shape: Shape, number: int, attempt: int
) -> Iterator[GangPool]:
    """Yield the gang of a batch, all hosts reachable, and dismiss the peers at the end.

    Raises Infrastructure if they do not run within pending_limit, and KubeError.
    """
    labels = selector(context.run_id, context.workflow, number, attempt)
    pods = signals.run(running(context, labels, shape, plan.options.pending_limit))
    gang = pool_of(context, shape, pods, attempt, plan.where.get("nodes"))
    measured = False
    try:
        if len(pods) > 1:
            gang.connect(context.run_id, client_config(Path(SSH), HOME / "lead"))
        with gang.watched():
            yield gang
        measured = True
    finally:
        gang.dismiss(measured)


async def running(context: PodContext, labels: str, shape: Shape, limit: float) -> dict[int, Pod]:
    """Return the selected pods by rank, once all that the shape has run.

    The watchdog ends a gang that cannot become complete, and says why. Raises Infrastructure after
    `limit` seconds, or if a pod has no address of the shape's family, and KubeError.
    """
    count = shape.hosts.count
    deadline = time.monotonic() + limit
    async with Kube() as kube:
        while True:
            listed = await kube.list("v1/Pod", context.namespace, labels=labels)
            pods = [read_pod(pod, shape.network.family) for pod in listed]
            started = {
                pod.rank or 0: pod
                for pod in pods
                if pod.phase == "Running" and pod.addresses and pod.node
            }
            require_family(started.values(), shape)
            if len(started) >= count:
                return started
            if time.monotonic() > deadline:
                raise Infrastructure(
                    f"{len(started)} of {count} pods ran within {limit:g} s (pending_limit)"
                )
            await asyncio.sleep(0.3)


def require_family(pods: Collection[Pod], shape: Shape) -> None:
    """Raise Infrastructure if a pod has no address of the family. One pod alone needs no IPv4."""
    family = shape.network.family
    lacking = next((pod for pod in pods if not pod.address), None)
    if lacking and (shape.hosts.count > 1 or family == "ipv6"):
        raise Infrastructure(
            f"{lacking.name} has no {family} address, only {', '.join(lacking.addresses)}: "
            f"the pod network has none to give (network.family: {family})"
        )


def extra_address(host: Host, shape: Shape) -> str | None:
    """Return the address on the interface of a Multus network; None without such a network.

    The host knows it before the API server does. A link-local IPv6 address often comes first, and
    nobody reaches it without a zone. Raises Infrastructure.
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
        raise Infrastructure(
            f"{host.name} has no address on {interface} "
            f"of network {', '.join(shape.network.attachments)}: "
            f"{listing.tail()}"
        ) from None


def forward(context: PodContext, store: Store, number: int, gang: GangPool) -> None:
    """Set how clients reach each host of a gang, and wait until the Services forward.

    Raises Infrastructure, StoreError.
    """
    path = gang.shape.network.path
    if not gang.shape.network.forwarded:
        return
    for rank, service in orjson.loads(store.get(context.services_key(number))).items():
        node = gang.pods[int(rank)].node_address
        address = node if path == "nodeport" else service["address"]
        gang.hosts[int(rank)].forwarding = Forwarding(str(address), service["ports"])
    reach = [(host, host.forwarding) for host in gang.hosts if host.forwarding]
    with contextlib.ExitStack() as listeners:
        for host, forwarding in reach:
            argv = [*PROGRAM, "listen", host.address, *map(str, forwarding.ports)]
            try:
                listeners.enter_context(host.serve(argv, port=forwarding.ports[-1]))
            except Failed as error:
                raise Infrastructure(str(error)) from None
        for client in gang.hosts:
            targets = [
                (forwarding.address, str(port))
                for host, forwarding in reach
                if host is not client
                for port in forwarding.ports
            ]
            argv = [*PROGRAM, "connect", str(CONNECT_PATIENCE), *chain.from_iterable(targets)]
            finished = client.run(argv, timeout=2 * CONNECT_PATIENCE)
            if finished.code:
                raise Infrastructure(
                    f"network.path: {path}: {client.name} reaches no server at "
                    f"{finished.tail()}; does a NetworkPolicy refuse it?"
                )


# -- the batch ------------------------------------------------------------------------------------


Headline = tuple[Point, dict[str, Any], list[float]]
"""A point, the row of its headline and its values until now."""


def _goodness(headline: Headline) -> float:
    _, row, values = headline
    return median(values) if row["better"] == "higher" else -median(values)


class ProgressReporter:
    """Report progress: lines on stdout, N/M in Argo's progress file, and SUMMARY.

    `time_left` is that of the run from the first sample of this lead on. `points` is how many
    points the samples are of.
    """

    def __init__(self, total: int, time_left: TimeLeft, points: int) -> None:
        self.total = total
        self.done = 0
        self._points = points
        self._values: dict[str, Headline] = {}
        self._time = time_left
        self._begun = self._started = time.monotonic()
        self._file = os.environ.get("ARGO_PROGRESS_FILE")
        self._report()

    def started(self, point: Point, repetition: int) -> None:
        """Record that a sample begins."""
        self._started = time.monotonic()

    def finished(self, point: Point, record: SampleRecord) -> None:
        """Record and print that a sample is stored."""
        self.done += 1
        name = f"{point.full_title}, repetition {record.repetition}"
        error = f": {record.error}" if record.error else self._figure(point, record)
        self._time.done(point, record.repetition, time.monotonic() - self._started)
        remaining = f" (about {short_seconds(self._time.seconds())} left)"
        print(f"{self.done}/{self.total} {record.status} {name}{error}{remaining}", flush=True)  # noqa: T201
        self._report()

    def _figure(self, point: Point, record: SampleRecord) -> str:
        """Note the headline of a sample; return it for the log."""
        row = next((row for row in record.rows if row["headline"]), None)
        if row is None:
            return ""
        if record.repetition > 0:
            self._values.setdefault(point.id, (point, row, []))[2].append(row["value"])
        unit = display_unit(point.benchmark, row["metric"], row["unit"])
        return f" {short(row['value'], unit)}"

    def summary(self) -> str:
        """Return the best point with its spread, and how many points have a value."""
        best = max(self._values.values(), key=_goodness, default=None)
        counts = f"{len(self._values)} of {plural(self._points, 'point')}"
        if best is None:
            return counts
        point, row, values = best
        band = spread(values)
        unit = display_unit(point.benchmark, row["metric"], row["unit"])
        text = with_spread(band.middle, band.low, band.high, unit)
        return ", ".join(filter(None, (point.title, text, counts)))

    def skipped(self, point: Point, repetition: int, why: str) -> None:
        """Count a sample that `until` does not need. The total excludes samples stored before."""
        if why == PRECISE:
            self._time.done(point, repetition)
            self.done += 1
            self._report()

    def _report(self) -> None:
        if self._file:
            elapsed = time.monotonic() - self._begun
            remaining = (self.total - self.done) * elapsed / max(self.done, 1)
            with contextlib.suppress(OSError):  # it costs no sample
                Path(SUMMARY).write_text(self.summary())
                if not QUIET[0] > remaining > QUIET[1]:
                    Path(self._file).write_text(f"{self.done}/{self.total}\n")


def check_account(account: str | None, plan: Plan, number: int) -> None:
    """Raise BadDocument if a pod with rights of one benchmark is to measure another one.

    The plan is read again from the store, so it may differ from the one that the plan step checked.
    """
    for position in plan.batches[number].samples if account else ():
        benchmark = plan.point_at(position).benchmark
        if account_of(benchmark) != account:
            raise refuse(f"batch {number}: {benchmark} may not use the account {account}")


def crashed_points(
    store: Store, plans: Sequence[Plan], batch: int, stored: Mapping[str, Set[str]]
) -> set[str]:
    """Return the ids of the points of a batch during whose samples CRASHES pods were lost.

    `stored` names the samples that the store has, by run. Raises StoreError.
    """
    lost_pods = Counter[int]()
    for plan in plans:
        numbers = {point.id: number for number, point in enumerate(plan.points)}
        for reason in stored_reasons(store, plan.run_id):
            if reason.batch == batch:
                names = {*reason.samples} - stored[plan.run_id]
                lost_pods.update({numbers[name.partition("-")[0]] for name in names})
    # the points of variants have the same numbers, and their own ids
    crashed = [number for number, pods in lost_pods.items() if pods >= CRASHES]
    return {plan.points[number].id for plan in plans for number in crashed}


def lead(context: PodContext, store: Store, plan: Plan, number: int, attempt: int) -> int:
    """Measure batch `number`; return 0, or EXIT_RETRYABLE if the gang fell apart.

    Where all samples are stored, it only dismisses its peers. Raises StoreError, KubeError.
    """
    plan, index = plan_of_batch(store, plan, number)
    plans = variants(store, plan)
    for variant in plans:
        check_account(context.account, variant, index)
    text = f"in flight when its pod ended (attempt {attempt + 1} on {context.node})"
    note = MissingReason("sample", "failed", text, index, attempt=attempt + 1, node=context.node)
    try:
        with assembled(context, plan, plan.shape_of(index), number, attempt) as gang:
            forward(context, store, number, gang)
            stored = {variant.run_id: stored_samples(store, variant.run_id) for variant in plans}
            progress = _progress(plans, index, stored)
            gang.crashed = crashed_points(store, plans, index, stored)
            measure_batch(store, plans, gang, index, progress, note, stored)
    except (GangLost, Infrastructure) as error:
        print(f"batch {number}, attempt {attempt}: {error}", flush=True)  # noqa: T201
        explain_end(str(error))
        return EXIT_RETRYABLE
    except SystemExit:  # told to end: the samples under way are no cause
        for variant in plans:
            forget_reasons(store, variant.run_id, note.name)
        raise
    return 0


def _progress(
    plans: Sequence[Plan], index: int, stored: Mapping[str, Set[str]]
) -> ProgressReporter:
    """Return the progress over the missing samples of a batch, with the time to the run's end."""
    total = 0
    time_left = TimeLeft()
    points = set[str]()
    for plan in plans:
        samples = plan.batches[index].samples
        missing = [sample for sample in samples if plan.key(sample) not in stored[plan.run_id]]
        total += len(missing)
        points |= {plan.point_at(position).id for position in missing}
        time_left.add(plan, missing)
        for batch in plan.batches[index + 1 :]:
            time_left.add(plan, batch.samples)
    return ProgressReporter(total, time_left, len(points))


def measure_batch(
    store: Store,
    plans: Sequence[Plan],
    pool: LocalPool,
    index: int,
    listener: ProgressListener,
    note: MissingReason | None = None,
    stored: Mapping[str, set[str]] = {},
) -> None:
    """Measure a batch; `note` is the reason of the samples under way. Raises StoreError.

    `stored` names the samples that the store has, by run, where they were listed already. Write
    why the rest is missing if the budget ends.
    """
    loops = {
        plan.variant: MeasuringLoop(plan, store, pool, listener, note, stored.get(plan.run_id))
        for plan in plans
    }
    deadline = clock_deadline(store, plans[0])
    # variants measure in short turns, so that what changes on the nodes meets both of them
    turns: Sequence[tuple[str | None, list[int]]] = [(None, plans[0].batches[index].samples)]
    if len(plans) > 1:
        turns = stored_duet(*plans).turns(index)
    for variant, samples in turns:
        if not loops[variant].measure(samples, index, deadline):
            for plan in plans:
                write_reason(store, plan.run_id, budget_spent(plan.budget or 0, index))
            return
