"""What a cluster cannot have at all: why the pods of a shape would wait for ever, asked before any is made.

A cluster that is full is no such reason: there pods wait. What may not be read is taken to be there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perfdag.kube import Kube, KubeError
from perfdag.shape import Shape, Volume

Object = dict[str, Any]
_DEFAULT = "storageclass.kubernetes.io/is-default-class"


@dataclass(frozen=True)
class Room:
    """What the cluster has; None: not known."""

    nodes: Sequence[Object] | None = None
    """Nodes that run pods; not known either where nodes are added on demand."""
    classes: frozenset[str] | None = None
    """Storage classes of objects and of volumes made by hand; an empty name: a claim without a class finds a volume."""


async def lacking(kube: Kube, shapes: Sequence[Shape], namespace: str) -> dict[int, str]:
    """The shapes (by their place) that the cluster cannot have, and why. Raises KubeError."""
    room = Room(await _nodes(kube), await _classes(kube))
    found = {}
    for number, shape in enumerate(shapes):
        why = unable(shape, room) or await _network(kube, shape, namespace)
        if why:
            found[number] = why
    return found


async def has_class(kube: Kube, name: str) -> bool:
    """Whether pods can have this PriorityClass for sure: not where we may not read it. Raises KubeError."""
    try:
        await kube.request("GET", f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}")
        return True
    except KubeError as error:
        if error.status not in (403, 404):
            raise
        return False


def unable(shape: Shape, room: Room) -> str | None:
    """Why no pod of this shape can ever start with that room, or None."""
    return _no_class(shape.volume, room.classes) or (None if room.nodes is None else _no_node(shape, room.nodes))


def real(nodes: Sequence[Object]) -> list[Object]:
    """Nodes that run pods: those simulated by KWOK have any resource and run nothing."""
    return [each for each in nodes if "kwok.x-k8s.io/node" not in (each["metadata"].get("annotations") or {})]


def holders(resource: str, nodes: Sequence[Object]) -> list[Object]:
    """The nodes that have some of a resource."""
    return [each for each in nodes if str((each["status"].get("allocatable") or {}).get(resource, "0")) != "0"]


def _no_node(shape: Shape, nodes: Sequence[Object]) -> str | None:
    devices = [name for name, value in shape.resources.items() if "/" in name and str(value) != "0"]
    for name in [*devices, *shape.hugepages]:
        if not holders(name, nodes):
            return f"no node has {name}"
    if shape.hosts.placement == "spread" and shape.hosts.count > len(nodes):
        return f"{shape.hosts.count} nodes are asked for (placement: spread), the cluster has {len(nodes)}"
    return None


def _no_class(volume: Volume | None, classes: frozenset[str] | None) -> str | None:
    if classes is None or volume is None or volume.kind != "claim" or volume.claim or (volume.storage_class or "") in classes:
        return None
    there = ", ".join(sorted(classes - {""})) or "none"
    return (
        f"there is no storage class {volume.storage_class}; there are: {there}"
        if volume.storage_class
        else "there is no default storage class"
    )


async def _known(kube: Kube, api: str, kind: str) -> list[Object] | None:
    """Objects of a kind, None where they may not be read."""
    try:
        return await kube.list(await kube.resource(api, kind))
    except KubeError as error:
        if error.status == 403:
            return None
        raise


async def _nodes(kube: Kube) -> list[Object] | None:
    nodes = await _known(kube, "v1", "Node")
    return None if nodes is None or await _grows(kube) else real(nodes)


async def _grows(kube: Kube) -> bool:
    """Whether nodes are added on demand, so that what no node has now may come: by Karpenter, or by the cluster autoscaler."""
    for path in ("/apis/karpenter.sh", "/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status"):
        try:
            await kube.request("GET", path)
            return True
        except KubeError as error:
            if error.status not in (403, 404):
                raise
    return False


async def _classes(kube: Kube) -> frozenset[str] | None:
    classes, volumes = await _known(kube, "storage.k8s.io/v1", "StorageClass"), await _known(kube, "v1", "PersistentVolume")
    if classes is None or volumes is None:
        return None
    usual = {""} if any((each["metadata"].get("annotations") or {}).get(_DEFAULT) == "true" for each in classes) else set()
    by_hand = {each["spec"].get("storageClassName") or "" for each in volumes}
    return frozenset({each["metadata"]["name"] for each in classes} | by_hand | usual)


async def _network(kube: Kube, shape: Shape, namespace: str) -> str | None:
    if not shape.network.name:
        return None
    space, _, name = shape.network.name.rpartition("/")
    try:
        kind = await kube.resource("k8s.cni.cncf.io/v1", "NetworkAttachmentDefinition")
        if space or not shape.network.default:  # a default network without a namespace may be Multus' own
            await kube.get(kind, name, space or namespace)
    except KubeError as error:
        if error.reason == "NoKind":
            return f"network {shape.network.name}: the cluster has no Multus (it serves no NetworkAttachmentDefinition)"
        if error.status == 404:
            return f"network {shape.network.name}: there is no such NetworkAttachmentDefinition"
        if error.status != 403:
            raise
    return None
