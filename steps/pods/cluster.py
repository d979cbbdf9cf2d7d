"""What a cluster has: the facts of it that rows keep, and whether it can run a shape at all."""

import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from perfdag.kube.client import Kube, KubeError, Object, ignore_status
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
_DEFAULT = "storageclass.kubernetes.io/is-default-class"


async def list_readable(kube: Kube, kind: str, namespace: str | None = None) -> list[Object] | None:
    """Return the objects of a kind; None where there is no such kind, or it may not be read.

    Raises KubeError.
    """
    with ignore_status(403, 404):
        return await kube.list(kind, namespace)
    return None


async def read(kube: Kube, path: str) -> Object | None:
    """Return what is at a path; None where it does not exist or may not be read.

    Raises KubeError.
    """
    with ignore_status(403, 404):
        return await kube.request("GET", path)
    return None


async def has_class(kube: Kube, name: str) -> bool:
    """Return whether this PriorityClass exists; False where it may not be read.

    Raises KubeError.
    """
    return await read(kube, f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}") is not None


# -- facts ----------------------------------------------------------------------------------------


async def cluster_facts(kube: Kube) -> Object:
    """Return versions, node types, CSI drivers and images of the network's and storage's daemons.

    What may not be read is None. Raises KubeError.
    """
    version = await kube.request("GET", "/version")
    nodes = await list_readable(kube, "v1/Node")
    drivers = await list_readable(kube, "storage.k8s.io/v1/CSIDriver")
    daemons = await list_readable(kube, "apps/v1/DaemonSet")
    return {
        "kubernetes": version.get("gitVersion"),
        "nodes": nodes and {node["metadata"]["name"]: _node(node) for node in nodes},
        "csi": drivers and sorted(driver["metadata"]["name"] for driver in drivers),
        "daemons": daemons and driver_images(daemons),
        "cluster": await cluster_name(kube),
    }


async def cluster_name(kube: Kube) -> str | None:
    """Return what identifies the cluster, or None if it may not be read. Raises KubeError.

    A cluster has no name of its own: the uid of its namespace kube-system stands for it.
    """
    namespace = await read(kube, "/api/v1/namespaces/kube-system")
    return str(namespace["metadata"]["uid"]) if namespace else None


def driver_images(daemons: list[Object]) -> Object:
    """Return the images of network and storage daemons, with their tags, by DaemonSet."""
    images = {
        daemon["metadata"]["name"]: sorted(
            container["image"] for container in daemon["spec"]["template"]["spec"]["containers"]
        )
        for daemon in daemons
    }
    return {
        name: own
        for name, own in sorted(images.items())
        if any(_DAEMONS.search(text) for text in (name, *own))
    }


def _node(node: Object) -> Object:
    info, labels = node["status"].get("nodeInfo", {}), node["metadata"].get("labels", {})
    return {
        "kubelet": info.get("kubeletVersion"),
        "runtime": info.get("containerRuntimeVersion"),
        "kernel": info.get("kernelVersion"),
        "type": labels.get("node.kubernetes.io/instance-type"),
        "zone": labels.get("topology.kubernetes.io/zone"),
    }


# -- requirements ---------------------------------------------------------------------------------


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


async def requirements(
    kube: Kube, shapes: Sequence[Shape], namespace: str
) -> list[list[Requirement]]:
    """Return what the pods of each shape require, and whether it is there. Raises KubeError."""
    nodes = await list_readable(kube, "v1/Node")
    if await read(kube, "/apis/karpenter.sh") or await read(
        kube, "/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status"
    ):
        nodes = None  # they are added on demand
    measuring = None if nodes is None else without_simulated(nodes)
    classes = await list_readable(kube, "storage.k8s.io/v1/StorageClass")
    volumes = await list_readable(kube, "v1/PersistentVolume")
    names = {item["spec"].get("storageClassName") or "" for item in volumes or []}
    for item in classes or []:
        default = (item["metadata"].get("annotations") or {}).get(_DEFAULT) == "true"
        names |= {item["metadata"]["name"], *([""] if default else [])}
    all_read = classes is not None and volumes is not None
    return [
        [
            *_class(shape.volume, names, all_read),
            *_resources(shape, measuring),
            *_hosts(shape, measuring),
            *[
                await _attachment(kube, each, shape, namespace)
                for each in shape.network.attachments
            ],
            *([await _volcano(kube)] if shape.scheduler == "volcano" else []),
        ]
        for shape in shapes
    ]


async def unmet(kube: Kube, shapes: Sequence[Shape], namespace: str) -> dict[int, str]:
    """Return the shapes, by index, that the cluster can never run, and why. Raises KubeError."""
    required = await requirements(kube, shapes, namespace)
    reasons = [[each.why for each in of_shape if each.there is False] for of_shape in required]
    return {number: whys[0] for number, whys in enumerate(reasons) if whys}


def _resources(shape: Shape, nodes: Sequence[Object] | None) -> Iterator[Requirement]:
    requested = shape.hugepages | {
        name: value
        for name, value in shape.resources.both.items()
        if "/" in name or name.startswith("hugepages-")
    }
    # the capacity: an unhealthy device, not allocatable, may recover
    states = [node["status"] for node in nodes or []]
    states = [state.get("capacity") or state.get("allocatable") or {} for state in states]
    for name in (name for name, value in requested.items() if parse_quantity(value)):
        having = None if nodes is None else len(nodes_with(name, nodes))
        what = name if having is None else f"{name} on {plural(having, 'node')}"
        most = max((state.get(name, "0") for state in states), key=parse_quantity, default="0")
        if having and parse_quantity(requested[name]) > parse_quantity(most):
            why = f"a pod asks for {name}: {requested[name]}, the most that a node has is {most}"
            yield Requirement("amount", what, False, why)
        else:
            there = None if having is None else having > 0
            yield Requirement("resource", what, there, f"no node has {name}")


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
        why = f"{count} {what} needed ({key}), {has} {'fits' if has == 1 else 'fit'}"
        there = None if nodes is None else count <= has
        yield Requirement(kind, f"{count} {what} to spread over", there, why)


def _class(volume: Volume | None, classes: Set[str], all_read: bool) -> Iterator[Requirement]:
    """Yield the storage class that a claim requires of those of objects and of volumes.

    The empty one means that a claim needs none. There are more unless `all_read`.
    """
    if volume is None or volume.kind != "claim" or volume.claim:
        return
    template = volume.claim_template
    if template and template.storageClassName == "":
        return  # an existing volume without a class
    name = volume.storage_class or ""
    listed = ", ".join(sorted(classes - {""})) or "none"
    why = "there is no default storage class"
    if name:
        why = f"there is no storage class {name}; there are: {listed}"
    there = True if name in classes else False if all_read else None
    yield Requirement("class", f"storage class {name or '(default)'}", there, why)


async def _attachment(kube: Kube, network: str, shape: Shape, namespace: str) -> Requirement:
    space, _, name = network.rpartition("/")
    there: bool | None = True
    why = f"there is no such NetworkAttachmentDefinition in namespace {space or namespace}"
    missing: Literal["network", "attachment"] = "attachment"
    try:
        kind = "k8s.cni.cncf.io/v1/NetworkAttachmentDefinition"
        if space or not shape.network.default:  # without a namespace it may be Multus' own
            await kube.get(kind, name, space or namespace)
    except KubeError as error:
        if error.status not in (403, 404):
            raise
        there = None if error.status == 403 else False
        if error.reason == "NoKind":
            why = "the cluster has no Multus (it serves no NetworkAttachmentDefinition)"
            missing = "network"
    what = f"Multus network {network}"
    return Requirement(missing, what, there, f"network {network}: {why}")


async def _volcano(kube: Kube) -> Requirement:
    why = "the cluster has no Volcano (it serves no PodGroup of scheduling.volcano.sh)"
    there = await read(kube, "/apis/scheduling.volcano.sh/v1beta1") is not None
    return Requirement("volcano", "Volcano", there, why)
