"""Properties of a node object."""

import os
from pathlib import Path
from typing import Any

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
