"""The nodes under a run: their capacity, KubeVirt's version, and nodes that KWOK simulates."""

import asyncio
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from perfdag.kube.client import Kube, KubeError, Object
from perfdag.kube.config import ignore_status
from perfdag.kube.pods import is_ready, is_schedulable
from perfdag.steps.scale.model.stages import VMI, Record
from perfdag.units import plural

NODE_ANNOTATION = "kwok.x-k8s.io/node"
TOLERATED = (NODE_ANNOTATION, "nvidia.com/gpu")
"""Keys of the taints that our pods tolerate: of simulated nodes and of nodes with GPUs."""
_NFD = "feature.node.kubernetes.io/cpu-cpuid."
"""Label prefix of Node Feature Discovery, one label per CPU feature that the node has."""


def is_simulated(node: dict[str, Any]) -> bool:
    """Tell whether KWOK simulates it."""
    return NODE_ANNOTATION in (node["metadata"].get("annotations") or {})


def is_virtual(node: dict[str, Any], cpuinfo: Path = Path("/proc/cpuinfo")) -> bool | None:
    """Return whether a node is a virtual machine; None if unknown.

    Sources are the labels of Node Feature Discovery (amd64), and /proc/cpuinfo for this process's
    own node. KubeVirt's label `cpu-feature.node.kubevirt.io/hypervisor` describes the guests' CPU
    instead.
    """
    labels = node["metadata"].get("labels") or {}
    if f"{_NFD}HYPERVISOR" in labels:
        return bool(labels[f"{_NFD}HYPERVISOR"] == "true")
    if labels.get("kubernetes.io/arch") == "amd64" and any(
        label.startswith(_NFD) for label in labels
    ):
        return False
    if node["metadata"]["name"] == os.environ.get("PERFDAG_NODE"):
        flags = [line for line in cpuinfo.read_text().splitlines() if line.startswith("flags")]
        return "hypervisor" in flags[0].split() if flags else None
    return None


class TooDenseError(ValueError):
    """More VMIs were requested than `per_node` allows."""


async def usable_nodes(kube: Kube) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the nodes that can run VMIs, and the simulated ones of all. Raises KubeError."""
    every = await kube.list(await kube.resource("v1", "Node"))
    nodes = [node for node in every if is_schedulable(node)]
    labelled = [
        node
        for node in nodes
        if node["metadata"].get("labels", {}).get("kubevirt.io/schedulable") == "true"
    ]
    fake = [node for node in nodes if is_simulated(node)]
    return labelled or fake or [node for node in nodes if not _control_plane(node)], fake


async def check_nodes(kube: Kube, count: int, per_node: int) -> dict[str, Any]:
    """Return facts about the nodes that can run VMIs.

    `nested_virtualisation` lists nodes that are virtual machines, `nested_unknown` nodes without
    that information, `vmis_before` the existing VMIs by node. Raises TooDenseError if all VMIs
    together exceed `per_node`; KubeError.
    """
    usable, fake = await usable_nodes(kube)
    before = await _running(kube)
    existing = before.total()
    if count + existing > per_node * len(usable):
        beside = f" beside {existing} existing ones" if existing else ""
        raise TooDenseError(
            f"{count} VMIs{beside} on {len(usable)} nodes are more than {per_node} a node; use "
            f"{-(-(count + existing) // per_node)} nodes, or raise per_node"
        )
    virtual_by_name = {node["metadata"]["name"]: is_virtual(node) for node in usable}
    simulated = {node["metadata"]["name"] for node in fake}
    facts: dict[str, Any] = {"nodes": len(usable), "simulated_nodes": len(fake)}
    facts["nested_virtualisation"] = [name for name, virtual in virtual_by_name.items() if virtual]
    facts["nested_unknown"] = [
        name
        for name, virtual in virtual_by_name.items()
        if virtual is None and name not in simulated
    ]
    facts["vmis_before"] = dict(before)
    return facts | {"kubevirt_version": await kubevirt_version(kube)}


def check_density(vmis: Iterable[Record], facts: dict[str, Any], per_node: int) -> str:
    """Return a note if a node had more than `per_node` VMIs at once, those before included.

    `facts` are those of `check_nodes`, and get `vmis_per_node_max`.
    """
    here, most = Counter[str](facts["vmis_before"]), Counter[str]()
    moments = sorted(_moves(vmis))
    for _, change, node in moments:
        here[node] += change
        most[node] = max(most[node], here[node])
    (node, peak), *_ = most.most_common(1) or [("", 0)]
    facts["vmis_per_node_max"] = peak
    dense = sum(count > per_node for count in most.values())
    if not dense:
        return ""
    return (
        f"{dense} nodes had more than {per_node} VMIs, {node} had {peak}: the scheduler did not "
        "spread them evenly"
    )


def _moves(vmis: Iterable[Record]) -> Iterator[tuple[int, int, str]]:
    """Yield (monotonic ns, +1 or -1, node) for the scheduling and the end of each VMI."""
    for vmi in vmis:
        placed = vmi.times("scheduled") or vmi.times("running")
        if vmi.node and placed:
            yield placed[2], 1, vmi.node
            if gone := vmi.times("gone"):
                yield gone[2], -1, vmi.node


def nested_note(facts: dict[str, Any]) -> str | None:
    """Return a warning if latencies may not be those of bare metal."""
    if facts["nested_virtualisation"]:
        count = len(facts["nested_virtualisation"])
        return f"nested virtualisation on {plural(count, 'node')}: latencies are not of bare metal"
    if facts["nested_unknown"]:
        count = len(facts["nested_unknown"])
        return (
            f"nested virtualisation: unknown on {plural(count, 'node')}; install Node "
            "Feature Discovery to label them"
        )
    return None


async def kubevirt_version(kube: Kube) -> str | None:
    """Return the version in KubeVirt's status; None if absent, simulated or not readable."""
    with suppress(KubeError):
        for kubevirt in await kube.list(await kube.resource("kubevirt.io/v1", "KubeVirt")):
            version: str | None = (kubevirt.get("status") or {}).get("observedKubeVirtVersion")
            return version
    return None


async def _running(kube: Kube) -> Counter[str]:
    """Count the cluster's VMIs that have not ended, by node; none without the right to list."""
    vmis = list[Object]()
    with ignore_status(403, 404):
        vmis = await kube.list(await kube.resource("kubevirt.io/v1", VMI))
    states = [vmi.get("status") or {} for vmi in vmis]
    return Counter(
        str(state.get("nodeName", ""))
        for state in states
        if state.get("phase") not in ("Succeeded", "Failed")
    )


def _control_plane(node: dict[str, Any]) -> bool:
    return any(
        label.startswith("node-role.kubernetes.io/control-plane")
        for label in node["metadata"].get("labels", {})
    )


LABEL = "perfdag/simulated"
PREFIX = "perfdag-sim-"
NODES_AT_ONCE = 50
"""Nodes in a page of a list: a real node has 20 KB and more, mostly the names of its images."""
_GPU = "nvidia.com/gpu"
_GPU_LABELS = {"run.ai/simulated-gpu-node-pool": "default", "nvidia.com/gpu.present": "true"}
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


async def make_nodes(kube: Kube, count: int, gpus: int, *, prefix: str = PREFIX) -> tuple[int, int]:
    """Create KWOK nodes `<prefix>0` ... with `gpus` GPUs each, or give existing ones these GPUs.

    Returns how many nodes are new, and how many changed. A taint keeps other pods away. The labels
    also select the nodes for fake-gpu-operator. Raises KubeError, also for a foreign node with such
    a name.
    """
    resources = {"cpu": "96", "memory": "1Ti", "pods": "250", "ephemeral-storage": "1Ti"}
    if gpus:
        resources[_GPU] = str(gpus)
    created = changed = 0

    async def make(index: int) -> None:
        nonlocal created, changed
        name = f"{prefix}{index}"
        labels = {
            LABEL: "true",
            "type": "kwok",
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
        }
        annotations = {NODE_ANNOTATION: "fake", "node.alpha.kubernetes.io/ttl": "0"}
        taint = {"key": NODE_ANNOTATION, "value": "fake", "effect": "NoSchedule"}
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "labels": labels | (_GPU_LABELS if gpus else {}),
                "annotations": annotations,
            },
            "spec": {"taints": [taint]},
            "status": {"capacity": resources, "allocatable": resources, "nodeInfo": _NODE_INFO},
        }
        try:
            await kube.create(body)
            created += 1
        except KubeError as error:
            if error.reason != "AlreadyExists":
                raise
            updated = await _update(kube, name, resources)  # other tasks count in the meantime
            changed += updated

    for start in range(0, count, 100):
        await asyncio.gather(*(make(index) for index in range(start, min(count, start + 100))))
    return created, changed


async def _update(kube: Kube, name: str, resources: Mapping[str, str]) -> bool:
    """Set the resources of a simulated node. Return False if it has them already.

    Raises KubeError for a node that we did not make.
    """
    nodes = await kube.resource("v1", "Node")
    node = await kube.get(nodes, name)
    if not _ours(node):
        raise KubeError(
            409, "Foreign", f"the node {name} was not created by perfdag", "rename or delete it"
        )
    status = node.get("status") or {}
    if status.get("allocatable") == resources == status.get("capacity"):
        return False
    wanted = {_GPU: None, **resources}  # None deletes a field
    await kube.patch(
        nodes, name, {"status": {"capacity": wanted, "allocatable": wanted}}, subresource="status"
    )
    labels = _GPU_LABELS if _GPU in resources else dict.fromkeys(_GPU_LABELS)
    await kube.patch(nodes, name, {"metadata": {"labels": labels}})
    return True


def _ours(node: Object) -> bool:
    """Return whether `make_nodes` made a node: a real node may have the label by mistake."""
    return LABEL in (node["metadata"].get("labels") or {}) and is_simulated(node)


async def remove_nodes(kube: Kube) -> int:
    """Delete all nodes of `make_nodes`, and return how many."""
    nodes = await kube.resource("v1", "Node")
    labelled = await kube.list(nodes, labels=f"{LABEL}=true")
    names = [node["metadata"]["name"] for node in labelled if _ours(node)]
    for start in range(0, len(names), 100):
        await asyncio.gather(*(kube.delete(nodes, name) for name in names[start : start + 100]))
    return len(names)


async def nodes_ready(
    kube: Kube, count: int, timeout: float = 60.0, *, prefix: str = PREFIX
) -> bool:
    """Wait until `count` simulated nodes `<prefix>0` ... are Ready.

    Returns False after `timeout` seconds, because KWOK does not run then.
    """
    nodes = await kube.resource("v1", "Node")
    wanted = {f"{prefix}{index}" for index in range(count)}
    for _ in range(max(1, int(timeout / 0.5))):
        simulated = await kube.list(nodes, labels=f"{LABEL}=true")
        if wanted <= {node["metadata"]["name"] for node in simulated if is_ready(node)}:
            return True
        await asyncio.sleep(0.5)
    return False


async def simulated_nodes(kube: Kube) -> tuple[set[str] | None, str]:
    """Return the names of the nodes that KWOK simulates, known by their annotation.

    If they cannot be listed, returns None and the reason, so that a run keeps its figures.
    """
    try:
        return {
            node["metadata"]["name"]
            async for nodes, _ in kube.pages(await kube.resource("v1", "Node"), size=NODES_AT_ONCE)
            for node in nodes
            if is_simulated(node)
        }, ""
    except KubeError as error:
        why = "no permission to list nodes" if error.status == 403 else str(error)
        return None, f"whether nodes are simulated is unknown: {why}"
