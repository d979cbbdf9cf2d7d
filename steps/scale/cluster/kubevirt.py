"""The cluster under VMIs: node capacity, KubeVirt's version, nested virtualisation."""

from contextlib import suppress
from typing import Any

from perfdag.kube.client import Kube, KubeError
from perfdag.steps.scale.model import nodes as of_nodes
from perfdag.steps.scale.model.stages import VMI


class TooDenseError(ValueError):
    """More VMIs were requested than `per_node` allows."""


async def check_nodes(kube: Kube, count: int, per_node: int) -> dict[str, Any]:
    """Return facts about the nodes that can run VMIs.

    `nested_virtualisation` lists nodes that are virtual machines, `nested_unknown` nodes without
    that information. Raises TooDenseError if all VMIs together exceed `per_node`; KubeError.
    """
    every = await kube.list(await kube.resource("v1", "Node"))
    nodes = [node for node in every if of_nodes.takes_pods(node)]
    labelled = [
        node
        for node in nodes
        if node["metadata"].get("labels", {}).get("kubevirt.io/schedulable") == "true"
    ]
    fake = [node for node in nodes if of_nodes.simulated(node)]
    usable = labelled or fake or [node for node in nodes if not _control_plane(node)]
    existing = await _running(kube)
    if count + existing > per_node * len(usable):
        need, beside = (
            -(-(count + existing) // per_node),
            f" beside {existing} already there" if existing else "",
        )
        raise TooDenseError(
            f"{count} VMIs{beside} on {len(usable)} nodes is over {per_node} a node; {need} nodes are needed (or raise per_node)"
        )
    virtual = {node["metadata"]["name"]: of_nodes.virtual(node) for node in usable}
    played = {node["metadata"]["name"] for node in fake}
    facts: dict[str, Any] = {"nodes": len(usable), "simulated_nodes": len(fake)}
    facts["nested_virtualisation"] = [name for name, virtual in virtual.items() if virtual]
    facts["nested_unknown"] = [
        name for name, virtual in virtual.items() if virtual is None and name not in played
    ]
    return facts | {"kubevirt_version": await kubevirt_version(kube)}


def nested_note(facts: dict[str, Any]) -> str | None:
    """Return a warning if latencies may not be those of bare metal."""
    if facts["nested_virtualisation"]:
        return f"nested virtualisation on {len(facts['nested_virtualisation'])} nodes: latencies are not of bare metal"
    if facts["nested_unknown"]:
        return f"nested virtualisation: unknown on {len(facts['nested_unknown'])} nodes (labels of Node Feature Discovery would tell)"
    return None


async def kubevirt_version(kube: Kube) -> str | None:
    """What KubeVirt says of its version; None where it is not there, or simulated, or may not be asked."""
    with suppress(KubeError):
        for kubevirt in await kube.list(await kube.resource("kubevirt.io/v1", "KubeVirt")):
            version: str | None = (kubevirt.get("status") or {}).get("observedKubeVirtVersion")
            return version
    return None


async def _running(kube: Kube) -> int:
    """Count the cluster's VMIs that have not ended; 0 without the right to list them."""
    try:
        vmis = await kube.list(await kube.resource("kubevirt.io/v1", VMI))
    except KubeError as error:
        if error.status not in (403, 404):
            raise
        return 0
    return sum(
        (vmi.get("status") or {}).get("phase") not in ("Succeeded", "Failed") for vmi in vmis
    )


def _control_plane(node: dict[str, Any]) -> bool:
    return any(
        label.startswith("node-role.kubernetes.io/control-plane")
        for label in node["metadata"].get("labels", {})
    )
