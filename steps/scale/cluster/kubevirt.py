"""The cluster under VMIs: node capacity, KubeVirt's version, nested virtualisation."""

from contextlib import suppress
from typing import Any

from perfdag.kube.client import Kube, KubeError
from perfdag.steps.scale.model.nodes import is_simulated, is_virtual, takes_pods
from perfdag.steps.scale.model.stages import VMI


class TooDenseError(ValueError):
    """More VMIs were requested than `per_node` allows."""


async def check_nodes(kube: Kube, count: int, per_node: int) -> dict[str, Any]:
    """Return facts about the nodes that can run VMIs.

    `nested_virtualisation` lists nodes that are virtual machines, `nested_unknown` nodes without
    that information. Raises TooDenseError if all VMIs together exceed `per_node`; KubeError.
    """
    every = await kube.list(await kube.resource("v1", "Node"))
    nodes = [node for node in every if takes_pods(node)]
    labelled = [
        node
        for node in nodes
        if node["metadata"].get("labels", {}).get("kubevirt.io/schedulable") == "true"
    ]
    fake = [node for node in nodes if is_simulated(node)]
    usable = labelled or fake or [node for node in nodes if not _control_plane(node)]
    existing = await _running(kube)
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
    return facts | {"kubevirt_version": await kubevirt_version(kube)}


def nested_note(facts: dict[str, Any]) -> str | None:
    """Return a warning if latencies may not be those of bare metal."""
    if facts["nested_virtualisation"]:
        count = len(facts["nested_virtualisation"])
        return f"nested virtualisation on {count} nodes: latencies are not of bare metal"
    if facts["nested_unknown"]:
        count = len(facts["nested_unknown"])
        return (
            f"nested virtualisation: unknown on {count} nodes; install Node Feature Discovery to "
            "label them"
        )
    return None


async def kubevirt_version(kube: Kube) -> str | None:
    """Return the version in KubeVirt's status; None if absent, simulated or not readable."""
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
