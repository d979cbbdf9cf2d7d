"""Which nodes take the pods of a shape."""

from collections.abc import Sequence

from perfdag.kube.placement import ZONE
from perfdag.kube.resources import Object
from perfdag.quantities import parse_quantity
from perfdag.shape import Shape, Toleration


def without_simulated(nodes: Sequence[Object]) -> list[Object]:
    """Return nodes that run pods: nodes simulated by KWOK have any resource and run nothing."""
    return [
        item
        for item in nodes
        if "kwok.x-k8s.io/node" not in (item["metadata"].get("annotations") or {})
    ]


def nodes_with(resource: str, nodes: Sequence[Object]) -> list[Object]:
    """Return nodes with at least 1 of a resource: no pod can ask for a part (`500m`)."""
    return [
        item
        for item in nodes
        if parse_quantity((item["status"].get("allocatable") or {}).get(resource, "0")) >= 1
    ]


def zones_of(nodes: Sequence[Object]) -> set[str]:
    """Return the zones of nodes; a node without the label is in none."""
    labels = [(node["metadata"].get("labels") or {}).get(ZONE) for node in nodes]
    return {zone for zone in labels if zone}


def takes(node: Object, shape: Shape) -> bool:
    """Return whether a node takes pods of this shape, now or when it is back.

    Kubernetes' own taints (cordoned, not ready) pass, others stay.
    """
    labels = node["metadata"].get("labels") or {}
    return (
        all(labels.get(key) == value for key, value in shape.node_selector.items())
        and (not shape.zones or labels.get(ZONE) in shape.zones)
        and all(
            taint["effect"] == "PreferNoSchedule"
            or taint["key"].startswith("node.kubernetes.io/")
            or any(_tolerates(item, taint) for item in shape.tolerations)
            for taint in (node.get("spec") or {}).get("taints") or []
        )
    )


def is_ready(node: Object) -> bool:
    """Return whether a node is Ready."""
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions
    )


def is_schedulable(node: Object) -> bool:
    """Return whether a node is Ready and not cordoned."""
    return is_ready(node) and not (node.get("spec") or {}).get("unschedulable")


def _tolerates(toleration: Toleration, taint: Object) -> bool:
    return (
        toleration.key in (None, taint["key"])
        and toleration.effect in (None, taint["effect"])
        and (toleration.operator == "Exists" or (toleration.value or "") == taint.get("value", ""))
    )
