"""The cluster under VMIs: its nodes and how many VMIs they may take, KubeVirt's version, nested virtualisation."""

from contextlib import suppress
from typing import Any

from perfdag.kube import Kube, KubeError
from perfdag.steps.scale import nodes as of_nodes
from perfdag.steps.scale.rows import VMI


class TooDenseError(ValueError):
    """More VMIs were asked for than `per_node` allows on the nodes there are."""


async def check_nodes(kube: Kube, count: int, per_node: int) -> dict[str, Any]:
    """Facts of the nodes that would run VMIs: those that are Ready and take pods.

    `nested_virtualisation` names those that are virtual machines themselves, `nested_unknown` those of which nothing tells.
    Raises TooDenseError where `count`, with the VMIs already there, is over `per_node` a node; KubeError.
    """
    every = await kube.list(await kube.resource("v1", "Node"))
    nodes = [each for each in every if of_nodes.takes_pods(each)]
    labelled = [
        each
        for each in nodes
        if each["metadata"].get("labels", {}).get("kubevirt.io/schedulable") == "true"
    ]
    fake = [each for each in nodes if of_nodes.simulated(each)]
    usable = labelled or fake or [each for each in nodes if not _control_plane(each)]
    there = await _running(kube)
    if count + there > per_node * len(usable):
        need, beside = (
            -(-(count + there) // per_node),
            f" beside {there} already there" if there else "",
        )
        raise TooDenseError(
            f"{count} VMIs{beside} on {len(usable)} nodes is over {per_node} a node; {need} nodes are needed (or raise per_node)"
        )
    told = {each["metadata"]["name"]: of_nodes.virtual(each) for each in usable}
    played = {each["metadata"]["name"] for each in fake}
    facts: dict[str, Any] = {"nodes": len(usable), "simulated_nodes": len(fake)}
    facts["nested_virtualisation"] = [name for name, virtual in told.items() if virtual]
    facts["nested_unknown"] = [
        name for name, virtual in told.items() if virtual is None and name not in played
    ]
    return facts | {"kubevirt_version": await kubevirt_version(kube)}


def nested_note(facts: dict[str, Any]) -> str | None:
    """A warning where latencies may not be of bare metal, or None."""
    if facts["nested_virtualisation"]:
        return f"nested virtualisation on {len(facts['nested_virtualisation'])} nodes: latencies are not of bare metal"
    if facts["nested_unknown"]:
        return f"nested virtualisation: unknown on {len(facts['nested_unknown'])} nodes (labels of Node Feature Discovery would tell)"
    return None


async def kubevirt_version(kube: Kube) -> str | None:
    """What KubeVirt says of its version; None where it is not there, or simulated, or may not be asked."""
    with suppress(KubeError):
        for each in await kube.list(await kube.resource("kubevirt.io/v1", "KubeVirt")):
            version: str | None = (each.get("status") or {}).get("observedKubeVirtVersion")
            return version
    return None


async def _running(kube: Kube) -> int:
    """VMIs of the whole cluster that have not ended; 0 where we may not ask."""
    try:
        found = await kube.list(await kube.resource("kubevirt.io/v1", VMI))
    except KubeError as error:
        if error.status not in (403, 404):
            raise
        return 0
    return sum(
        (each.get("status") or {}).get("phase") not in ("Succeeded", "Failed") for each in found
    )


def _control_plane(node: dict[str, Any]) -> bool:
    return any(
        label.startswith("node-role.kubernetes.io/control-plane")
        for label in node["metadata"].get("labels", {})
    )
