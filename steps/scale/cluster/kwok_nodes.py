"""Simulated nodes, which KWOK keeps Ready."""

import asyncio
from collections.abc import Mapping

from perfdag.kube.client import Kube, KubeError, Object
from perfdag.kube.node_fit import is_ready
from perfdag.steps.scale.model.nodes import NODE_ANNOTATION, is_simulated

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
