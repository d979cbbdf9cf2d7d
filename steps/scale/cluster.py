"""The cluster of a run: its lock, rights on it, its nodes, and nodes that KWOK simulates."""

import asyncio
import logging
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from perfdag import signals
from perfdag.kube.client import Kube, KubeError, Object
from perfdag.kube.config import ignore_status
from perfdag.kube.pods import is_ready, is_schedulable
from perfdag.steps.scale.objects import RUN_LABEL, VMI

logger = logging.getLogger(__name__)
LEASE = "perfdag-performance-run"
LEASE_DURATION_S = 30
"""Time without renewal after which a Lease is free."""
LEASE_NAMESPACE = "default"
"""Namespace of the Lease: runs on a laptop and in pods of any namespace must share one."""
_COORDINATION = "coordination.k8s.io/v1"


class LockTimeoutError(KubeError):
    """Another performance run still holds the cluster."""

    def __init__(self, message: str) -> None:
        super().__init__(0, "Locked", message)


class ExclusiveRun:
    """Hold the Lease of performance runs; wait up to `timeout` seconds for another run.

    Without rights in LEASE_NAMESPACE, our own namespace is used. A holder has stopped if it did not
    renew the Lease for LEASE_DURATION_S by our clock. `lost` describes a run that took the Lease
    over. Raises LockTimeoutError, KubeError.
    """

    def __init__(self, kube: Kube, run: str, timeout: float) -> None:
        self._kube, self._run, self._timeout = kube, run, timeout
        self._namespace = LEASE_NAMESPACE
        self._task: asyncio.Task[None] | None = None
        self._seen: tuple[Any, Any] = (None, None)
        self._since = 0.0
        self.lost = ""

    async def __aenter__(self) -> "ExclusiveRun":
        deadline, announced = time.monotonic() + self._timeout, False
        while (holder := await self.try_acquire()) is not None:
            if not announced:
                logger.info(f"waiting for performance run {holder} to end")
                announced = True
            if time.monotonic() >= deadline:
                raise LockTimeoutError(
                    f"performance run {holder} still holds the cluster after {self._timeout:g} s; "
                    f"wait for it, or delete lease {LEASE}"
                )
            await asyncio.sleep(min(1.0, max(0.05, deadline - time.monotonic())))
        self._task = asyncio.create_task(self._renew())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task:
            await signals.cancel([self._task])
        leases = await self._kube.resource(_COORDINATION, "Lease")
        with suppress(KubeError):
            if self._ours(await self._kube.get(leases, LEASE, self._namespace)):
                await self._kube.delete(leases, LEASE, self._namespace)

    def _body(self) -> Object:
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        spec = {"holderIdentity": self._run, "leaseDurationSeconds": LEASE_DURATION_S}
        return {
            "apiVersion": _COORDINATION,
            "kind": "Lease",
            # The label lets `scale delete --run` find it.
            "metadata": {"name": LEASE, "labels": {RUN_LABEL: self._run}},
            "spec": {**spec, "renewTime": now},
        }

    def _ours(self, lease: Object) -> bool:
        """Return whether we still hold the Lease, and log its loss once."""
        holder = lease["spec"].get("holderIdentity")
        if holder != self._run and not self.lost:
            self.lost = (
                f"performance run {holder} took the cluster over: the figures of both runs are "
                "mixed"
            )
            logger.error(self.lost)
        return bool(holder == self._run)

    async def try_acquire(self) -> str | None:
        """Take the Lease and return None, or return its holder."""
        leases = await self._kube.resource(_COORDINATION, "Lease")
        try:
            # After a retry it may be another run's Lease: all runs are one field manager.
            lease = await self._kube.create(self._body(), self._namespace)
        except KubeError as error:
            if error.status == 403 and self._namespace != self._kube.namespace:
                self._namespace = self._kube.namespace
                return await self.try_acquire()
            if error.reason != "AlreadyExists":
                raise
            try:
                lease = await self._kube.get(leases, LEASE, self._namespace)
            except KubeError as gone:
                if gone.status == 404:
                    return "<released>"
                raise
        holder, renewed = lease["spec"].get("holderIdentity"), lease["spec"].get("renewTime")
        if holder == self._run:
            return None
        if self._seen != (holder, renewed):
            self._seen, self._since = (holder, renewed), time.monotonic()
        if time.monotonic() - self._since > LEASE_DURATION_S:
            body = self._body()
            # With the resource version, only one of two takers succeeds.
            body["metadata"]["resourceVersion"] = lease["metadata"]["resourceVersion"]
            with ignore_status(404, 409):
                await self._kube.request("PUT", leases.path(self._namespace, LEASE), json=body)
                return None
        return str(holder)

    async def _renew(self) -> None:
        leases = await self._kube.resource(_COORDINATION, "Lease")
        while True:
            await asyncio.sleep(LEASE_DURATION_S / 3)
            with suppress(KubeError):
                try:
                    lease = await self._kube.get(leases, LEASE, self._namespace)
                except KubeError as error:
                    if error.status != 404:
                        raise
                    lease = await self._kube.create(self._body(), self._namespace)
                if not self._ours(lease):  # it expired, and another run took it
                    return
                lease["spec"]["renewTime"] = self._body()["spec"]["renewTime"]
                # The server refuses it if the holder changed.
                await self._kube.request("PUT", leases.path(self._namespace, LEASE), json=lease)


async def require_ended(kube: Kube, run: str) -> None:
    """Raise KubeError if the run renews the Lease of performance runs. Takes up to 12 seconds."""
    leases = await kube.resource(_COORDINATION, "Lease")

    async def renewed() -> Any:
        """Return when the run renewed the Lease, None if it does not hold it."""
        with ignore_status(403, 404):
            spec = (await kube.get(leases, LEASE, LEASE_NAMESPACE))["spec"]
            if f"{run}-".startswith(f"{spec.get('holderIdentity')}-"):
                return spec.get("renewTime")
        return None

    if first := await renewed():
        await asyncio.sleep(0.4 * LEASE_DURATION_S)
        if await renewed() not in (first, None):
            raise KubeError(
                409, "InProgress", f"run {run} renews its Lease", "end it, or wait for it"
            )


PERFORMANCE_RUN = (
    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "resourceNames": [LEASE],
        "verbs": ["get", "update", "delete"],
    },
)
"""RBAC rules in the namespace `default`: the Lease of performance runs, and the API servers."""
WHOLE_CLUSTER = (
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["list"]},
    {"nonResourceURLs": ["/metrics", "/version"], "verbs": ["get"]},
)
"""RBAC rules in the cluster: nodes, how many API servers there are, and their requests."""
OWN_NAMESPACE = (
    {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["list", "watch"]},
    {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "verbs": ["list", "watch", "create", "patch", "delete"],
    },
)
"""RBAC rules in the namespaces of the objects: that they exist, events, and the watch lag."""


NODE_ANNOTATION = "kwok.x-k8s.io/node"


_HYPERVISOR = "feature.node.kubernetes.io/cpu-cpuid.HYPERVISOR"
"""Label of Node Feature Discovery. KubeVirt's `cpu-feature.node.kubevirt.io/hypervisor` is about
the guests' CPU instead."""


class TooDenseError(ValueError):
    """More VMIs were requested than `per_node` allows."""


def is_simulated(node: Object) -> bool:
    """Tell whether KWOK simulates it."""
    return NODE_ANNOTATION in (node["metadata"].get("annotations") or {})


async def check_nodes(kube: Kube, count: int, per_node: int) -> dict[str, Any]:
    """Return facts about the nodes that can run VMIs; `vmis_before` are existing VMIs by node.

    Raises TooDenseError if all VMIs together exceed `per_node`; KubeError.
    """
    every = await kube.list(await kube.resource("v1", "Node"))
    nodes = [node for node in every if is_schedulable(node)]
    fake = [node for node in nodes if is_simulated(node)]
    marked = [node for node in nodes if _label(node, "kubevirt.io/schedulable") == "true"]
    control_plane = "node-role.kubernetes.io/control-plane"
    workers = [node for node in nodes if _label(node, control_plane) is None]
    usable = marked or fake or workers
    before = await _vmis_by_node(kube)
    if count + before.total() > per_node * len(usable):
        beside = f" beside {before.total()} existing ones" if before else ""
        raise TooDenseError(
            f"{count} VMIs{beside} on {len(usable)} nodes are more than {per_node} a node; use "
            f"{-(-(count + before.total()) // per_node)} nodes, or raise per_node"
        )
    return {
        "nodes": len(usable),
        "simulated_nodes": len(fake),
        "nested_virtualisation": [
            node["metadata"]["name"] for node in usable if _label(node, _HYPERVISOR) == "true"
        ],
        "vmis_before": dict(before),
        "kubevirt_version": await _kubevirt_version(kube),
    }


def _label(node: Object, name: str) -> str | None:
    value: str | None = (node["metadata"].get("labels") or {}).get(name)
    return value


async def _vmis_by_node(kube: Kube) -> Counter[str]:
    """Count the cluster's VMIs that have not ended; none without the right to list."""
    vmis = list[Object]()
    with ignore_status(403, 404):
        vmis = await kube.list(await kube.resource("kubevirt.io/v1", VMI))
    states = [vmi.get("status") or {} for vmi in vmis]
    alive = [state for state in states if state.get("phase") not in ("Succeeded", "Failed")]
    return Counter(str(state.get("nodeName", "")) for state in alive)


async def _kubevirt_version(kube: Kube) -> str | None:
    """Return the version in KubeVirt's status; None if absent, simulated or not readable."""
    with suppress(KubeError):
        for kubevirt in await kube.list(await kube.resource("kubevirt.io/v1", "KubeVirt")):
            version: str | None = (kubevirt.get("status") or {}).get("observedKubeVirtVersion")
            return version
    return None


async def simulated_nodes(kube: Kube) -> tuple[set[str] | None, str]:
    """Return the names of the nodes that KWOK simulates, known by their annotation.

    If they cannot be listed, returns None and the reason, so that a run keeps its figures.
    """
    try:
        nodes = await kube.resource("v1", "Node")
        return {
            node["metadata"]["name"]
            # A real node has 20 KB and more, mostly the names of its images.
            async for page, _ in kube.pages(nodes, size=50)
            for node in page
            if is_simulated(node)
        }, ""
    except KubeError as error:
        why = "no permission to list nodes" if error.status == 403 else str(error)
        return None, f"whether nodes are simulated is unknown: {why}"


SIMULATED_LABEL = "perfdag/simulated"
_PREFIX = "perfdag-sim-"
_GPU = "nvidia.com/gpu"
_GPU_LABELS = {"run.ai/simulated-gpu-node-pool": "default", "nvidia.com/gpu.present": "true"}
"""Labels by which fake-gpu-operator selects its nodes."""
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
    """Create KWOK nodes with `gpus` GPUs each, or give existing ones these GPUs.

    Returns how many nodes are new. A taint keeps other pods away. Raises KubeError, also for a
    foreign node with such a name.
    """
    nodes = await kube.resource("v1", "Node")
    resources = {"cpu": "96", "memory": "1Ti", "pods": "250", "ephemeral-storage": "1Ti"}
    resources |= {_GPU: str(gpus)} if gpus else {}

    async def make(name: str) -> bool:
        labels = {SIMULATED_LABEL: "true", "type": "kwok", "kubernetes.io/hostname": name}
        labels |= {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
        annotations = {NODE_ANNOTATION: "fake", "node.alpha.kubernetes.io/ttl": "0"}
        status = {"capacity": resources, "allocatable": resources, "nodeInfo": _NODE_INFO}
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "labels": labels | (_GPU_LABELS if gpus else {}),
                "annotations": annotations,
            },
            "spec": {"taints": [{"key": NODE_ANNOTATION, "value": "fake", "effect": "NoSchedule"}]},
            "status": status,
        }
        try:
            await kube.create(body)
        except KubeError as error:
            if error.reason != "AlreadyExists":
                raise
            if not _ours(await kube.get(nodes, name)):
                text = f"the node {name} was not created by perfdag"
                raise KubeError(409, "Foreign", text, "rename or delete it") from None
            wanted = {_GPU: None, **resources}  # None deletes a field
            change = {"status": {"capacity": wanted, "allocatable": wanted}}
            await kube.patch(nodes, name, change, subresource="status")
            gpu_labels = _GPU_LABELS if gpus else dict.fromkeys(_GPU_LABELS)
            await kube.patch(nodes, name, {"metadata": {"labels": gpu_labels}})
            return False
        return True

    created = 0
    for start in range(0, count, 100):
        names = [f"{_PREFIX}{index}" for index in range(start, min(count, start + 100))]
        created += sum(await asyncio.gather(*(make(name) for name in names)))
    return created


def _ours(node: Object) -> bool:
    """Return whether `make_nodes` made a node: a real node may have the label by mistake."""
    return _label(node, SIMULATED_LABEL) is not None and is_simulated(node)


async def remove_nodes(kube: Kube) -> int:
    """Delete all nodes of `make_nodes`, and return how many."""
    nodes = await kube.resource("v1", "Node")
    labelled = await kube.list(nodes, labels=f"{SIMULATED_LABEL}=true")
    names = [node["metadata"]["name"] for node in labelled if _ours(node)]
    for start in range(0, len(names), 100):
        await asyncio.gather(*(kube.delete(nodes, name) for name in names[start : start + 100]))
    return len(names)


async def nodes_ready(kube: Kube, count: int, timeout: float = 60.0) -> bool:
    """Wait until `count` simulated nodes are Ready; False after `timeout` s: KWOK does not run."""
    nodes, deadline = await kube.resource("v1", "Node"), time.monotonic() + timeout
    wanted = {f"{_PREFIX}{index}" for index in range(count)}
    while time.monotonic() < deadline:
        simulated = await kube.list(nodes, labels=f"{SIMULATED_LABEL}=true")
        if wanted <= {node["metadata"]["name"] for node in simulated if is_ready(node)}:
            return True
        await asyncio.sleep(0.5)
    return False
