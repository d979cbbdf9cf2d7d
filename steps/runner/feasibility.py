"""Feasibility: find shapes whose pods would wait for ever, before any pod is created.

A full cluster is feasible: its pods wait. What may not be read counts as present.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from perfdag.kube.client import Kube, KubeError, Object
from perfdag.kube.config import ignore_status
from perfdag.kube.patch import of_roles
from perfdag.kube.pods import nodes_with, takes, without_simulated, zones_of
from perfdag.shape import ACROSS, Shape, Volume
from perfdag.units import parse_quantity, plural

_DAEMONS = re.compile(
    r"(?<![a-z0-9])(calico|canal|cilium|flannel|ovn|antrea|kindnet|weave|kube-router|aws-node|multus|sriov|longhorn"
    r"|(netd|cni|csi)(?![a-z0-9]))"
)
"""Words in the name of a DaemonSet of a network or of storage, or in the names of its images.

Canal is Calico with Flannel.
"""


async def cluster_facts(kube: Kube) -> Object:
    """Return versions, node types, CSI drivers and images of the network's and storage's daemons.

    What may not be read is None. Raises KubeError.
    """
    version = await kube.request("GET", "/version")
    nodes = await list_readable(kube, "v1", "Node")
    drivers = await list_readable(kube, "storage.k8s.io/v1", "CSIDriver")
    daemons = await list_readable(kube, "apps/v1", "DaemonSet")
    return {
        "kubernetes": version.get("gitVersion"),
        "nodes": nodes and {node["metadata"]["name"]: _node(node) for node in nodes},
        "csi": drivers
        if drivers is None
        else sorted(driver["metadata"]["name"] for driver in drivers),
        "daemons": daemons if daemons is None else driver_images(daemons),
        "cluster": await cluster_name(kube),
    }


async def cluster_name(kube: Kube) -> str | None:
    """Return what identifies the cluster, or None if it may not be read. Raises KubeError.

    A cluster has no name of its own: the uid of its namespace kube-system stands for it.
    """
    with ignore_status(403):
        namespace = await kube.request("GET", "/api/v1/namespaces/kube-system")
        return str(namespace["metadata"]["uid"])
    return None


async def list_readable(kube: Kube, api: str, kind: str) -> list[Object] | None:
    """Return the objects of a kind, None where they may not be read. Raises KubeError."""
    with ignore_status(403):
        return await kube.list(await kube.resource(api, kind))
    return None


def driver_images(daemons: list[Object]) -> Object:
    """Return the images of network and storage daemons, with their tags, by DaemonSet."""
    drivers = {}
    for daemon in daemons:
        name, images = (
            daemon["metadata"]["name"],
            sorted(
                container["image"] for container in daemon["spec"]["template"]["spec"]["containers"]
            ),
        )
        if any(_DAEMONS.search(text) for text in (name, *images)):
            drivers[name] = images
    return dict(sorted(drivers.items()))


def _node(node: Object) -> Object:
    info, labels = node["status"].get("nodeInfo", {}), node["metadata"].get("labels", {})
    cni = sorted(
        name
        for name in node["metadata"].get("annotations", {})
        if any(word in name for word in ("calico", "cilium", "flannel", "ovn"))
    )
    return {
        "kubelet": info.get("kubeletVersion"),
        "runtime": info.get("containerRuntimeVersion"),
        "kernel": info.get("kernelVersion"),
        "type": labels.get("node.kubernetes.io/instance-type"),
        "zone": labels.get("topology.kubernetes.io/zone"),
        "cni": cni[0].partition("/")[0] if cni else None,
    }


_DEFAULT = "storageclass.kubernetes.io/is-default-class"


@dataclass(frozen=True)
class ClusterInventory:
    """The nodes and storage classes of the cluster; None where they are not known."""

    nodes: Sequence[Object] | None = None
    """Nodes that run pods; None also where nodes are added on demand."""
    classes: frozenset[str] | None = None
    """Storage classes of objects and of volumes; an empty name: a claim needs no class."""
    more_classes: bool = False
    """Whether there may be others, since one of the two may not be read."""


@dataclass(frozen=True)
class Requirement:
    """Something that a shape requires of the cluster.

    `there` tells whether the cluster has it (None: unknown), `why` what is wrong.
    """

    kind: Literal[
        "class", "resource", "amount", "spread", "zones", "role", "network", "attachment", "volcano"
    ]
    what: str
    there: bool | None
    why: str = ""


async def read_inventory(kube: Kube) -> ClusterInventory:
    """Return what the cluster has, as far as it may be read. Raises KubeError."""
    return ClusterInventory(await _nodes(kube), *await _classes(kube))


async def requirements_of(
    kube: Kube, shape: Shape, inventory: ClusterInventory, namespace: str
) -> list[Requirement]:
    """Return what pods of this shape require, and whether the cluster has it. Raises KubeError."""
    return [
        *requirements_of_nodes(shape, inventory),
        *await _network(kube, shape, namespace),
        *await _volcano(kube, shape),
    ]


async def unmet(kube: Kube, shapes: Sequence[Shape], namespace: str) -> dict[int, str]:
    """Return the shapes, by index, that the cluster can never run, and why. Raises KubeError."""
    inventory = await read_inventory(kube)
    infeasible = {}
    for number, shape in enumerate(shapes):
        why = next(
            (
                requirement.why
                for requirement in await requirements_of(kube, shape, inventory, namespace)
                if requirement.there is False
            ),
            None,
        )
        if why:
            infeasible[number] = why
    return infeasible


async def has_class(kube: Kube, name: str) -> bool:
    """Return whether this PriorityClass exists; False where it may not be read.

    Raises KubeError.
    """
    with ignore_status(403, 404):
        await kube.request("GET", f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}")
        return True
    return False


def requirements_of_nodes(shape: Shape, inventory: ClusterInventory) -> list[Requirement]:
    """Return what pods of this shape require of storage and nodes, and whether it is there."""
    return [*_class(shape.volume, inventory), *_on_nodes(shape, inventory.nodes)]


def _most(resource: str, nodes: Sequence[Object]) -> str:
    """Return the largest capacity of a node: an unhealthy device, not allocatable, may recover."""
    states = [item["status"] for item in nodes]
    return max(
        (
            (item.get("capacity") or item.get("allocatable") or {}).get(resource, "0")
            for item in states
        ),
        key=parse_quantity,
        default="0",
    )


def _on_nodes(shape: Shape, nodes: Sequence[Object] | None) -> Iterator[Requirement]:
    requested = {
        name: value
        for name, value in shape.resources.both.items()
        if "/" in name or name.startswith("hugepages-")
    } | shape.hugepages
    for name in (name for name, value in requested.items() if parse_quantity(value)):
        having = None if nodes is None else len(nodes_with(name, nodes))
        text = name if having is None else f"{name} on {plural(having, 'node')}"
        most = _most(name, nodes or [])
        if having and parse_quantity(requested[name]) > parse_quantity(most):
            yield Requirement(
                "amount",
                text,
                False,
                f"a pod asks for {name}: {requested[name]}, the most that a node has is {most}",
            )
        else:
            yield Requirement(
                "resource", text, None if having is None else having > 0, f"no node has {name}"
            )
    yield from _hosts(shape, nodes)


def _hosts(shape: Shape, nodes: Sequence[Object] | None) -> Iterator[Requirement]:
    """Yield what the placement of several hosts requires: nodes, zones, nodes of a role."""
    roles, count = of_roles(shape), shape.hosts.count
    for role, own in roles.items():
        labels = ", ".join(f"{key}={value}" for key, value in own.node_selector.items())
        there = None if nodes is None else any(takes(node, own) for node in nodes)
        why = f"no node takes the {role} (hosts.roles.{role}: {labels or 'any node'})"
        yield Requirement("role", f"a node for the {role} ({labels})", there, why)
    fits = [
        node for node in nodes or [] if any(takes(node, own) for own in roles.values() or [shape])
    ]
    wanted: list[tuple[Literal["spread", "zones"], str, str, int]] = []
    if shape.hosts.placement == "spread" and count > 1:
        wanted.append(("spread", "nodes", "placement: spread", len(fits)))
    if shape.hosts.pairs == ACROSS:
        wanted.append(("zones", "zones", "pairs: across-zones", len(zones_of(fits))))
    for kind, what, key, has in wanted:
        why = f"{count} {what} are asked for ({key}), the cluster has {has} for these pods"
        there = None if nodes is None else count <= has
        yield Requirement(kind, f"{count} {what} to spread over", there, why)


def _class(volume: Volume | None, inventory: ClusterInventory) -> Iterator[Requirement]:
    if volume is None or volume.kind != "claim" or volume.claim:
        return
    template = volume.claim_template
    if template and template.storageClassName == "":
        return  # an existing volume without a class
    name, classes = volume.storage_class or "", inventory.classes or frozenset()
    listed = ", ".join(sorted(classes - {""})) or "none"
    why = (
        f"there is no storage class {name}; there are: {listed}"
        if name
        else "there is no default storage class"
    )
    there = (
        True
        if name in classes
        else None
        if inventory.classes is None or inventory.more_classes
        else False
    )
    yield Requirement("class", f"storage class {name or '(default)'}", there, why)


async def _nodes(kube: Kube) -> list[Object] | None:
    nodes = await list_readable(kube, "v1", "Node")
    return None if nodes is None or await _grows(kube) else without_simulated(nodes)


async def _grows(kube: Kube) -> bool:
    """Return whether Karpenter or the cluster autoscaler adds nodes on demand."""
    for path in (
        "/apis/karpenter.sh",
        "/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status",
    ):
        with ignore_status(403, 404):
            await kube.request("GET", path)
            return True
    return False


async def _classes(kube: Kube) -> tuple[frozenset[str] | None, bool]:
    classes, volumes = (
        await list_readable(kube, "storage.k8s.io/v1", "StorageClass"),
        await list_readable(kube, "v1", "PersistentVolume"),
    )
    if classes is None:
        return None, True
    usual = (
        {""}
        if any(
            (item["metadata"].get("annotations") or {}).get(_DEFAULT) == "true" for item in classes
        )
        else set()
    )
    by_hand = {item["spec"].get("storageClassName") or "" for item in volumes or []}
    return frozenset(
        {item["metadata"]["name"] for item in classes} | by_hand | usual
    ), volumes is None


async def _network(kube: Kube, shape: Shape, namespace: str) -> list[Requirement]:
    networks = shape.network.attachments
    return [
        await _attachment(kube, network, shape.network.default, namespace) for network in networks
    ]


async def _attachment(kube: Kube, network: str, default: bool, namespace: str) -> Requirement:
    space, _, name = network.rpartition("/")
    what = f"Multus network {network}"
    try:
        kind = await kube.resource("k8s.cni.cncf.io/v1", "NetworkAttachmentDefinition")
        if space or not default:  # a default network without a namespace may be Multus' own
            await kube.get(kind, name, space or namespace)
    except KubeError as error:
        if error.status == 403:
            return Requirement("network", what, None)
        if error.status != 404:
            raise
        if error.reason == "NoKind":
            why = "the cluster has no Multus (it serves no NetworkAttachmentDefinition)"
            return Requirement("network", what, False, f"network {network}: {why}")
        why = f"there is no such NetworkAttachmentDefinition in namespace {space or namespace}"
        return Requirement("attachment", what, False, f"network {network}: {why}")
    return Requirement("network", what, True)


async def _volcano(kube: Kube, shape: Shape) -> list[Requirement]:
    if shape.scheduler != "volcano":
        return []
    try:
        await kube.resource("scheduling.volcano.sh/v1beta1", "PodGroup")
    except KubeError as error:
        if error.reason != "NoKind":
            raise
        return [
            Requirement(
                "volcano",
                "Volcano",
                False,
                "the cluster has no Volcano (it serves no PodGroup of scheduling.volcano.sh)",
            )
        ]
    return [Requirement("volcano", "Volcano", True)]
