"""The cluster of a run: its lock, rights, nodes, namespaces, and the deletion of its objects."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from perfdag import signals
from perfdag.benchmark.contract import rbac_rule
from perfdag.kube.client import Kube, KubeError, Object, annotations_of, ignore_status, status_of
from perfdag.kube.pods import is_ready, is_schedulable
from perfdag.redaction import logger
from perfdag.steps.scale.objects import RUN_LABEL, VMI

LEASE = "perfdag-performance-run"
LEASE_DURATION_S = 30
"""Time without renewal after which a Lease is free."""
LEASE_NAMESPACE = "default"
"""Namespace of the Lease: runs on a laptop and in pods of any namespace must share one."""
_LEASES = "coordination.k8s.io/v1/Lease"


@dataclass
class ExclusiveRun:
    """Hold the Lease of performance runs; wait up to `timeout` seconds for another run.

    A holder has stopped if it did not renew the Lease for LEASE_DURATION_S by our clock: clocks of
    two machines need not agree. `lost` describes a run that took the Lease over. Raises KubeError.
    """

    kube: Kube
    run: str
    timeout: float
    lost: str = ""
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _renewal: tuple[Any, Any] = (None, None)
    _renewed_at: float = 0.0

    async def __aenter__(self) -> "ExclusiveRun":
        deadline = time.monotonic() + self.timeout
        holder = await self.try_acquire()
        if holder is not None:
            logger.info(f"waiting for performance run {holder} to end")
        while holder is not None:
            if time.monotonic() >= deadline:
                raise KubeError(
                    0,
                    "Locked",
                    f"performance run {holder} still holds the cluster after {self.timeout:g} s",
                    f"wait for it, or delete lease {LEASE}",
                )
            await asyncio.sleep(min(1.0, max(0.05, deadline - time.monotonic())))
            holder = await self.try_acquire()
        self._tasks = [asyncio.create_task(self._renew())]
        return self

    async def __aexit__(self, *_: object) -> None:
        await signals.cancel(self._tasks)
        with suppress(KubeError):
            lease = await self._read()
            if lease and self._ours(lease):
                await self.kube.delete(_LEASES, LEASE, LEASE_NAMESPACE)

    async def _read(self) -> Object | None:
        return await get_or_none(self.kube, _LEASES, LEASE, LEASE_NAMESPACE)

    async def _write(self, lease: Object | None) -> None:
        """Create the Lease, or replace the one that was read: of two takers only one succeeds.

        Raises KubeError.
        """
        # The label lets `scale delete --run` find it.
        metadata = {"name": LEASE, "labels": {RUN_LABEL: self.run}}
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        spec = {
            "holderIdentity": self.run,
            "leaseDurationSeconds": LEASE_DURATION_S,
            "renewTime": now,
        }
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": spec,
        }
        if lease is None:
            await self.kube.create(body, LEASE_NAMESPACE)
        else:
            metadata["resourceVersion"] = lease["metadata"]["resourceVersion"]
            path = await self.kube.path(_LEASES, LEASE_NAMESPACE, LEASE)
            await self.kube.request("PUT", path, json=body)

    def _ours(self, lease: Object) -> bool:
        """Return whether we still hold the Lease, and log its loss once."""
        holder = lease["spec"].get("holderIdentity")
        if holder != self.run and not self.lost:
            self.lost = (
                f"performance run {holder} took the cluster over: the figures of both runs are "
                "mixed"
            )
            logger.error(self.lost)
        return bool(holder == self.run)

    async def try_acquire(self) -> str | None:
        """Take the Lease and return None, or return its holder."""
        lease = await self._read()
        if lease:
            holder = lease["spec"].get("holderIdentity")
            renewal = (holder, lease["spec"].get("renewTime"))
            if renewal != self._renewal:
                self._renewal = renewal
                self._renewed_at = time.monotonic()
            if time.monotonic() - self._renewed_at <= LEASE_DURATION_S:
                return str(holder)
        with ignore_status(404, 409):
            await self._write(lease)
        # After a retry it may be another run's Lease: all runs are one field manager.
        lease = await self._read()
        holder = lease["spec"].get("holderIdentity") if lease else "<released>"
        return None if holder == self.run else str(holder)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(LEASE_DURATION_S / 3)
            with suppress(KubeError):
                lease = await self._read()
                if lease and not self._ours(lease):  # it expired, and another run took it
                    return
                await self._write(lease)


PERFORMANCE_RUN = (
    rbac_rule("discovery.k8s.io", "endpointslices", "list"),
    rbac_rule("coordination.k8s.io", "leases", "create"),
    rbac_rule("coordination.k8s.io", "leases", "get update delete", [LEASE]),
)
"""RBAC rules in the namespace `default`: the Lease of performance runs, and the API servers."""
WHOLE_CLUSTER = (
    rbac_rule("", "nodes", "list"),
    rbac_rule("coordination.k8s.io", "leases", "list"),
    {"nonResourceURLs": ["/metrics", "/version"], "verbs": ["get"]},
)
"""RBAC rules in the cluster: nodes, how many API servers there are, and their requests."""
OWN_NAMESPACE = (
    rbac_rule("", "namespaces", "get"),
    rbac_rule("", "events", "list watch"),
    rbac_rule("", "configmaps", "list watch create patch delete"),
)
"""RBAC rules in the namespaces of the objects: that they exist, events, and the watch lag."""


NODE_ANNOTATION = "kwok.x-k8s.io/node"


_HYPERVISOR = "feature.node.kubernetes.io/cpu-cpuid.HYPERVISOR"
"""Label of Node Feature Discovery. KubeVirt's `cpu-feature.node.kubevirt.io/hypervisor` is about
the guests' CPU instead."""


def is_simulated(node: Object) -> bool:
    """Tell whether KWOK simulates it."""
    return NODE_ANNOTATION in annotations_of(node)


async def check_nodes(kube: Kube, count: int, per_node: int) -> dict[str, Any]:
    """Return facts about the nodes that can run VMIs; `vmis_before` are those that exist.

    Without the right to list them these are 0. Raises ValueError if all VMIs together exceed
    `per_node`; KubeError.
    """
    nodes = [node for node in await kube.list("v1/Node") if is_schedulable(node)]
    fake = [node for node in nodes if is_simulated(node)]
    marked = [node for node in nodes if _label(node, "kubevirt.io/schedulable") == "true"]
    control_plane = "node-role.kubernetes.io/control-plane"
    workers = [node for node in nodes if _label(node, control_plane) is None]
    usable = marked or fake or workers
    vmis = await kube.list_readable(f"kubevirt.io/v1/{VMI}") or []
    phases = [status_of(vmi).get("phase") for vmi in vmis]
    before = sum(phase not in ("Succeeded", "Failed") for phase in phases)
    if count + before > per_node * len(usable):
        beside = f" beside {before} existing ones" if before else ""
        raise ValueError(
            f"{count} VMIs{beside} on {len(usable)} nodes are more than {per_node} a node; use "
            f"{-(-(count + before) // per_node)} nodes, or raise per_node"
        )
    # there is none where KubeVirt is simulated
    kubevirts = await kube.list_readable("kubevirt.io/v1/KubeVirt") or []
    versions = [status_of(body).get("observedKubeVirtVersion") for body in kubevirts]
    return {
        "nodes": len(usable),
        "simulated_nodes": len(fake),
        "nested_virtualisation": [
            node["metadata"]["name"] for node in usable if _label(node, _HYPERVISOR) == "true"
        ],
        "vmis_before": before,
        "version": next(filter(None, versions), None),
    }


def _label(node: Object, name: str) -> str | None:
    value: str | None = (node["metadata"].get("labels") or {}).get(name)
    return value


async def simulated_nodes(kube: Kube) -> set[str] | None:
    """Return the names of the nodes that KWOK simulates; None without the right to list nodes.

    They are known by their annotation. Raises KubeError.
    """
    nodes = await kube.list_readable("v1/Node")
    if nodes is None:
        return None
    return {node["metadata"]["name"] for node in nodes if is_simulated(node)}


SIMULATED_LABEL = "perfdag/simulated"
_PREFIX = "perfdag-sim-"
_NODE_INFO = {
    "architecture": "amd64",
    "operatingSystem": "linux",
    "kubeletVersion": "simulated",
    "kubeProxyVersion": "simulated",
    "bootID": "",
    "containerRuntimeVersion": "",
    "kernelVersion": "",
    "machineID": "",
    "osImage": "",
    "systemUUID": "",
}


async def make_nodes(kube: Kube, count: int, gpus: int) -> int:
    """Create KWOK nodes with `gpus` GPUs each, and return how many are new.

    Existing ones stay as they are. A taint keeps other pods away. Raises KubeError.
    """
    resources = {"cpu": "96", "memory": "1Ti", "pods": "250", "ephemeral-storage": "1Ti"}
    labels = {
        SIMULATED_LABEL: "true",
        "type": "kwok",
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
    }
    if gpus:
        resources["nvidia.com/gpu"] = str(gpus)
        # by which fake-gpu-operator selects its nodes
        labels |= {"run.ai/simulated-gpu-node-pool": "default", "nvidia.com/gpu.present": "true"}

    async def make(name: str) -> bool:
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "labels": {**labels, "kubernetes.io/hostname": name},
                "annotations": {NODE_ANNOTATION: "fake", "node.alpha.kubernetes.io/ttl": "0"},
            },
            "spec": {"taints": [{"key": NODE_ANNOTATION, "value": "fake", "effect": "NoSchedule"}]},
            "status": {"capacity": resources, "allocatable": resources, "nodeInfo": _NODE_INFO},
        }
        with ignore_status(409):
            await kube.create(body)
            return True
        return False

    return sum(await asyncio.gather(*(make(f"{_PREFIX}{index}") for index in range(count))))


async def remove_nodes(kube: Kube) -> int:
    """Delete all nodes of `make_nodes`, and return how many."""
    labelled = await kube.list("v1/Node", labels=f"{SIMULATED_LABEL}=true")
    # A real node may have the label by mistake.
    names = [node["metadata"]["name"] for node in labelled if is_simulated(node)]
    await asyncio.gather(*(kube.delete("v1/Node", name) for name in names))
    return len(names)


async def ready_nodes(kube: Kube, count: int, timeout: float = 60.0) -> int:
    """Wait until `count` simulated nodes are Ready, at most `timeout` s. Return how many are."""
    deadline = time.monotonic() + timeout
    while True:
        simulated = await kube.list("v1/Node", labels=f"{SIMULATED_LABEL}=true")
        ready = sum(is_ready(node) for node in simulated)
        if ready >= count or time.monotonic() >= deadline:
            return ready
        await asyncio.sleep(0.5)


PRIMER = "primer"
PROBE = "watch-lag"
"""Suffixes of the labels of what runs before the measurement, and of the object that measures the
lag of the watch. Sizes of a ladder are `<run>-1` ..."""
POLL_S = 0.3


def belongs(run: str, metadata: Object) -> bool:
    """Whether an object's label is that of a run, or of a part of it."""
    label = (metadata.get("labels") or {}).get(RUN_LABEL) or ""
    return re.fullmatch(rf"{re.escape(run)}(-\d{{1,4}})?(-{PRIMER})?(-{PROBE})?", label) is not None


async def remove(
    kube: Kube,
    run: str,
    kinds: Sequence[str],
    namespaces: Sequence[str | None],
    timeout: float,
    *,
    also: Callable[[Object], bool] | None = None,
) -> int:
    """Delete the objects of a run and its parts, and return how many are left after `timeout`.

    `also` selects objects without the label. Namespace None is the whole cluster. Raises KubeError,
    of a refused deletion after all were tried.
    """
    deadline = time.monotonic() + timeout
    slots = asyncio.Semaphore(20)  # deletions in flight

    async def list_left() -> list[tuple[str, Object]]:
        objects = []
        for kind in kinds:
            for namespace in namespaces:
                for body in await kube.list(kind, namespace, labels="" if also else RUN_LABEL):
                    if belongs(run, body["metadata"]) or (also and also(body)):
                        objects.append((kind, body["metadata"]))
        return objects

    async def delete(kind: str, metadata: Object) -> None:
        async with slots:
            await kube.delete(kind, metadata["name"], metadata.get("namespace"))

    while (objects := await list_left()) and time.monotonic() <= deadline:
        deletions = [delete(*item) for item in objects if "deletionTimestamp" not in item[1]]
        for error in await asyncio.gather(*deletions, return_exceptions=True):
            if error:
                raise error
        await asyncio.sleep(POLL_S)
    return len(objects)


async def served(kube: Kube, kinds: Iterable[str]) -> list[str]:
    """Return the kinds that the cluster serves. Raises KubeError."""
    served_kinds = []
    for kind in kinds:
        with ignore_status(404):
            await kube.path(kind)
            served_kinds.append(kind)
    return served_kinds


async def remove_run(kube: Kube, run: str, namespace: str | None, timeout: float) -> int:
    """Delete all objects of a run and its parts, of any kind except namespaces.

    Kinds that may not be listed are skipped. Returns how many objects are left after `timeout`
    seconds. Raises KubeError.
    """
    groups = (await kube.request("GET", "/apis"))["groups"]
    present = []
    for version in ["v1", *(group["preferredVersion"]["groupVersion"] for group in groups)]:
        path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        kinds: list[Object] = []
        with suppress(KubeError):  # an API service that is down serves nothing of ours
            kinds = (await kube.request("GET", path))["resources"]
        for kind in kinds:
            if not _may_be_ours(kind, namespace):
                continue
            with ignore_status(403, 404, 405):
                name = f"{version}/{kind['kind']}"
                bodies = await kube.list(name, namespace, labels=RUN_LABEL)
                if any(belongs(run, body["metadata"]) for body in bodies):
                    present.append(name)
    return await remove(kube, run, present, [namespace], timeout)


def _may_be_ours(kind: Object, namespace: str | None) -> bool:
    """Return whether objects of a kind that the API serves may be a run's, and be deleted."""
    usable = {"list", "delete"} <= set(kind.get("verbs") or ())
    subresource = "/" in kind["name"]
    if subresource or not usable or kind["kind"] in ("Event", "Namespace"):
        return False
    return not namespace or bool(kind["namespaced"])


async def get_or_none(
    kube: Kube, kind: str, name: str, namespace: str | None = None
) -> Object | None:
    """Return an object, or None if it does not exist. Raises KubeError."""
    with ignore_status(404):
        return await kube.get(kind, name, namespace)
    return None


@asynccontextmanager
async def own_namespaces(kube: Kube, names: Sequence[str], run: str) -> AsyncIterator[None]:
    """Create missing namespaces, and delete these at the end. Raises KubeError."""
    created: list[str] = []
    try:
        for name in names:
            if await ensure_namespace(kube, name, run):
                created.append(name)
        yield
    finally:
        for name in created:
            with suppress(KubeError):
                await kube.delete("v1/Namespace", name)


async def ensure_namespace(kube: Kube, name: str, run: str, timeout: float = 120.0) -> bool:
    """Create a namespace if it is missing, and return whether it was created.

    Waits up to `timeout` seconds for a namespace that is being deleted. Raises KubeError.
    """
    deadline = time.monotonic() + timeout
    while namespace := await get_or_none(kube, "v1/Namespace", name):
        if not namespace["metadata"].get("deletionTimestamp"):
            return False
        if time.monotonic() >= deadline:
            raise KubeError(
                0,
                "Terminating",
                f"namespace {name} is still being deleted after {timeout:g} s",
                "wait for it, fix what blocks it, or use another namespace",
            )
        await asyncio.sleep(POLL_S)
    metadata = {"name": name, "labels": {RUN_LABEL: run}}
    await kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    for _ in range(100):  # pods are refused until the controller has created the account
        with suppress(KubeError):
            await kube.get("v1/ServiceAccount", "default", name)
            break
        await asyncio.sleep(0.05)
    return True
