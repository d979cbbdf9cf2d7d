"""What a node object says of itself."""

import os
from pathlib import Path
from typing import Any

NODE_ANNOTATION = "kwok.x-k8s.io/node"
TOLERATED = (NODE_ANNOTATION, "nvidia.com/gpu")
"""Keys of the taints that the pods of our templates tolerate: of simulated nodes, and the usual one of nodes with GPUs."""
_NFD = "feature.node.kubernetes.io/cpu-cpuid."
"""Labels of Node Feature Discovery: one a CPU feature that the node has; absent for one that it has not (its documentation, "Feature labels")."""


def ready(node: dict[str, Any]) -> bool:
    """Whether it is Ready."""
    return any(
        each["type"] == "Ready" and each["status"] == "True"
        for each in (node.get("status") or {}).get("conditions") or []
    )


def takes_pods(node: dict[str, Any]) -> bool:
    """Whether it is Ready and not cordoned."""
    return ready(node) and not node["spec"].get("unschedulable")


def untolerated(node: dict[str, Any]) -> list[str]:
    """Keys of its taints that keep the pods of our templates away."""
    taints = node["spec"].get("taints") or []
    return [
        each["key"]
        for each in taints
        if each["effect"] != "PreferNoSchedule" and each["key"] not in TOLERATED
    ]


def simulated(node: dict[str, Any]) -> bool:
    """Whether KWOK plays it."""
    return NODE_ANNOTATION in (node["metadata"].get("annotations") or {})


def virtual(node: dict[str, Any], cpuinfo: Path = Path("/proc/cpuinfo")) -> bool | None:
    """Whether a node is a virtual machine itself; None where nothing tells.

    Node Feature Discovery tells of amd64 nodes, and the CPU's own flag of the node that this process runs on. KubeVirt's label
    `cpu-feature.node.kubevirt.io/hypervisor` does not: it is of the CPU that guests get, and is there on bare metal too.
    """
    labels = node["metadata"].get("labels") or {}
    if f"{_NFD}HYPERVISOR" in labels:
        return bool(labels[f"{_NFD}HYPERVISOR"] == "true")
    if labels.get("kubernetes.io/arch") == "amd64" and any(
        each.startswith(_NFD) for each in labels
    ):
        return False
    if node["metadata"]["name"] == os.environ.get("PERFDAG_NODE"):
        flags = [line for line in cpuinfo.read_text().splitlines() if line.startswith("flags")]
        return "hypervisor" in flags[0].split() if flags else None
    return None
