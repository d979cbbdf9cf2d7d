"""The pod specs in workloads of known kinds, and the number of their pods."""

from collections.abc import Mapping
from typing import Any

POD_TEMPLATES: dict[str, list[tuple[str, ...]]] = {
    "Job": [("spec", "template")],
    "Deployment": [("spec", "template")],
    "StatefulSet": [("spec", "template")],
    "ReplicaSet": [("spec", "template")],
    "DaemonSet": [("spec", "template")],
    "VirtualMachine": [("spec", "template")],
    "VirtualMachineInstanceReplicaSet": [("spec", "template")],
    "PyTorchJob": [
        ("spec", "pytorchReplicaSpecs", "Master", "template"),
        ("spec", "pytorchReplicaSpecs", "Worker", "template"),
    ],
}
_ONE = {
    "Pod",
    "TrainingWorkload",
    "InteractiveWorkload",
    "VirtualMachine",
    "VirtualMachineInstance",
}
_REPLICAS = {
    "Deployment",
    "StatefulSet",
    "ReplicaSet",
    "ReplicationController",
    "VirtualMachineInstanceReplicaSet",
}


def members_of(body: Mapping[str, Any]) -> int | None:
    """Return the pods (or VMIs) of an object; None if its kind does not show the number."""
    kind, spec = body["kind"], body.get("spec") or {}
    if kind in _ONE:
        return 1
    try:
        if kind in _REPLICAS:
            return int(spec.get("replicas", 1))
        if kind == "Job" and body["apiVersion"] == "batch/v1":
            return int(spec.get("completions") or spec.get("parallelism") or 1)
        if kind == "PyTorchJob":
            return sum(
                int(replicas.get("replicas", 1))
                for replicas in spec["pytorchReplicaSpecs"].values()
            )
        if kind == "DistributedWorkload":
            return int(spec["workers"]["value"]) + 1
    except (AttributeError, KeyError, TypeError, ValueError):
        return None  # the API server says what is wrong with it
    return None


def at_once(body: Mapping[str, Any]) -> int | None:
    """Return the members that are created before any of them runs; None if unknown."""
    members, spec = members_of(body), body.get("spec") or {}
    if members is None:
        return None
    if body["kind"] == "Job":
        parallelism = spec.get("parallelism")
        return min(members, parallelism if isinstance(parallelism, int) else 1)
    return (
        min(members, 1)
        if body["kind"] == "StatefulSet" and spec.get("podManagementPolicy") != "Parallel"
        else members
    )


def pod_specs(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the pod specs inside a document; VM kinds have none."""
    if body["kind"] == "Pod":
        return [body.setdefault("spec", {})]
    if body["kind"].startswith("VirtualMachine"):
        return []
    specs = []
    for path in POD_TEMPLATES.get(body["kind"], []):
        inner: Any = body
        for key in (*path, "spec"):
            inner = inner.get(key) if isinstance(inner, dict) else None
        if isinstance(inner, dict):
            specs.append(inner)
    return specs
