"""The cluster under VMIs: its nodes and how many VMIs they may take, KubeVirt's version, nested virtualisation."""

from contextlib import suppress
from typing import Any

from perfdag.kube import Kube, KubeError
from perfdag.steps.scale.rows import VMI
from perfdag.steps.scale.simulate import NODE_ANNOTATION


class TooDenseError(ValueError):
    """More VMIs were asked for than `per_node` allows on the nodes there are."""


async def check_nodes(kube: Kube, count: int, per_node: int) -> dict[str, Any]:
    """Facts of the nodes that would run VMIs: those that are Ready and take pods.

    Raises TooDenseError where `count`, with the VMIs already there, is over `per_node` a node; KubeError.
    """
    every = await kube.list(await kube.resource("v1", "Node"))
    nodes = [each for each in every if not each["spec"].get("unschedulable") and _ready(each)]
    labelled = [each for each in nodes if each["metadata"].get("labels", {}).get("kubevirt.io/schedulable") == "true"]
    fake = [each for each in nodes if NODE_ANNOTATION in (each["metadata"].get("annotations") or {})]
    usable = labelled or fake or [each for each in nodes if not _control_plane(each)]
    there = await _running(kube)
    if count + there > per_node * len(usable):
        need, beside = -(-(count + there) // per_node), f" beside {there} already there" if there else ""
        raise TooDenseError(
            f"{count} VMIs{beside} on {len(usable)} nodes is over {per_node} a node; {need} nodes are needed (or raise per_node)"
        )
    nested = [
        each["metadata"]["name"] for each in usable if each["metadata"]["labels"].get("cpu-feature.node.kubevirt.io/hypervisor") == "true"
    ]
    version = await kubevirt_version(kube)
    return {"nodes": len(usable), "simulated_nodes": len(fake), "nested_virtualisation": nested, "kubevirt_version": version}


async def kubevirt_version(kube: Kube) -> str | None:
    """What KubeVirt says of its version; None where it is not there, or simulated, or may not be asked."""
    with suppress(KubeError):
        for each in await kube.list(await kube.resource("kubevirt.io/v1", "KubeVirt")):
            version: str | None = (each.get("status") or {}).get("observedKubeVirtVersion")
            return version
    return None


def _ready(node: dict[str, Any]) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in (node.get("status") or {}).get("conditions") or [])


async def _running(kube: Kube) -> int:
    """VMIs of the whole cluster that have not ended; 0 where we may not ask."""
    try:
        found = await kube.list(await kube.resource("kubevirt.io/v1", VMI))
    except KubeError as error:
        if error.status not in (403, 404):
            raise
        return 0
    return sum((each.get("status") or {}).get("phase") not in ("Succeeded", "Failed") for each in found)


def _control_plane(node: dict[str, Any]) -> bool:
    return any(label.startswith("node-role.kubernetes.io/control-plane") for label in node["metadata"].get("labels", {}))
