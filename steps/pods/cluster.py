"""What a cluster has: the facts of it that rows keep, and whether it can run a shape at all."""

import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from perfdag.kube.client import Kube, KubeError, Object, annotations_of, ignore_status
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
    nodes = await kube.list_readable("v1/Node")
    drivers = await kube.list_readable("storage.k8s.io/v1/CSIDriver")
    daemons = await kube.list_readable("apps/v1/DaemonSet")
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
    images = {}
    for daemon in sorted(daemons, key=lambda daemon: str(daemon["metadata"]["name"])):
        containers = daemon["spec"]["template"]["spec"]["containers"]
        of_daemon = sorted(container["image"] for container in containers)
        if any(_DAEMONS.search(text) for text in (daemon["metadata"]["name"], *of_daemon)):
            images[daemon["metadata"]["name"]] = of_daemon
    return images


def _node(node: Object) -> Object:
    info = node["status"].get("nodeInfo", {})
    labels = node["metadata"].get("labels", {})
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

    `met` tells whether the cluster has it (None: unknown), `problem` what is wrong if not.
    """

    kind: Literal[
        "class", "resource", "amount", "spread", "zones", "role", "network", "attachment", "volcano"
    ]
    text: str
    met: bool | None
    problem: str = ""


async def requirements(
    kube: Kube, shapes: Sequence[Shape], namespace: str
) -> list[list[Requirement]]:
    """Return what the pods of each shape require, and whether it is there. Raises KubeError."""
    nodes = await kube.list_readable("v1/Node")
    on_demand = await read(kube, "/apis/karpenter.sh") or await read(
        kube, "/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status"
    )
    if on_demand:
        nodes = None  # more are added when pods wait
    measuring = None if nodes is None else without_simulated(nodes)
    classes = await kube.list_readable("storage.k8s.io/v1/StorageClass")
    volumes = await kube.list_readable("v1/PersistentVolume")
    names = {item["spec"].get("storageClassName") or "" for item in volumes or []}
    for item in classes or []:
        names.add(item["metadata"]["name"])
        if annotations_of(item).get(_DEFAULT) == "true":
            names.add("")
    all_read = classes is not None and volumes is not None
    required = []
    for shape in shapes:
        of_shape = [
            *_class(shape.volume, names, all_read),
            *_resources(shape, measuring),
            *_hosts(shape, measuring),
        ]
        of_shape += [
            await _attachment(kube, name, shape, namespace) for name in shape.network.attachments
        ]
        if shape.scheduler == "volcano":
            met = await read(kube, "/apis/scheduling.volcano.sh/v1beta1") is not None
            problem = "the cluster has no Volcano (it serves no PodGroup of scheduling.volcano.sh)"
            of_shape.append(Requirement("volcano", "Volcano", met, problem))
        required.append(of_shape)
    return required


async def unmet(kube: Kube, shapes: Sequence[Shape], namespace: str) -> dict[int, str]:
    """Return the shapes, by index, that the cluster can never run, and why. Raises KubeError."""
    required = await requirements(kube, shapes, namespace)
    problems = [
        (number, requirement.problem)
        for number, of_shape in enumerate(required)
        for requirement in of_shape
        if requirement.met is False
    ]
    return dict(reversed(problems))  # of several problems of a shape, the first one


def _resources(shape: Shape, nodes: Sequence[Object] | None) -> Iterator[Requirement]:
    # the capacity: an unhealthy device, not allocatable, may recover
    states = [node["status"] for node in nodes or []]
    capacities = [state.get("capacity") or state.get("allocatable") or {} for state in states]
    for name, value in {**shape.hugepages, **shape.resources.both}.items():
        is_device = "/" in name or name.startswith("hugepages-")
        if not is_device or not parse_quantity(value):
            continue
        count = None if nodes is None else len(nodes_with(name, nodes))
        text = name if count is None else f"{name} on {plural(count, 'node')}"
        amounts = [capacity.get(name, "0") for capacity in capacities]
        largest = max(amounts, key=parse_quantity, default="0")
        if count and parse_quantity(value) > parse_quantity(largest):
            problem = f"a pod asks for {name}: {value}, the most that a node has is {largest}"
            yield Requirement("amount", text, False, problem)
        else:
            met = None if count is None else count > 0
            yield Requirement("resource", text, met, f"no node has {name}")


def _hosts(shape: Shape, nodes: Sequence[Object] | None) -> Iterator[Requirement]:
    """Yield what the placement of several hosts requires: nodes, zones, nodes of a role."""
    roles = of_roles(shape)
    for role, of_role in roles.items():
        labels = ", ".join(f"{key}={value}" for key, value in of_role.node_selector.items())
        met = None if nodes is None else any(takes(node, of_role) for node in nodes)
        problem = f"no node takes the {role} (hosts.roles.{role}: {labels or 'any node'})"
        yield Requirement("role", f"a node for the {role} ({labels})", met, problem)
    takers = [*roles.values()] or [shape]
    fits = [node for node in nodes or [] if any(takes(node, taker) for taker in takers)]
    places: list[tuple[Literal["spread", "zones"], str, str, int]] = []
    if shape.hosts.placement == "spread" and shape.hosts.count > 1:
        places.append(("spread", "nodes", "placement: spread", len(fits)))
    if shape.hosts.pairs == ACROSS:
        places.append(("zones", "zones", "pairs: across-zones", len(zones_of(fits))))
    count = shape.hosts.count
    for kind, name, key, has in places:
        met = None if nodes is None else count <= has
        problem = f"{count} {name} needed ({key}), {has} {'fits' if has == 1 else 'fit'}"
        yield Requirement(kind, f"{count} {name} to spread over", met, problem)


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
    problem = "there is no default storage class"
    if name:
        problem = f"there is no storage class {name}; there are: {listed}"
    # classes that could not be read may have it
    met = True if name in classes else False if all_read else None
    yield Requirement("class", f"storage class {name or '(default)'}", met, problem)


async def _attachment(kube: Kube, network: str, shape: Shape, namespace: str) -> Requirement:
    space, _, name = network.rpartition("/")
    met: bool | None = True
    problem = f"there is no such NetworkAttachmentDefinition in namespace {space or namespace}"
    missing: Literal["network", "attachment"] = "attachment"
    try:
        kind = "k8s.cni.cncf.io/v1/NetworkAttachmentDefinition"
        if space or not shape.network.default:  # without a namespace it may be Multus' own
            await kube.get(kind, name, space or namespace)
    except KubeError as error:
        if error.status not in (403, 404):
            raise
        met = None if error.status == 403 else False
        if error.reason == "NoKind":
            problem = "the cluster has no Multus (it serves no NetworkAttachmentDefinition)"
            missing = "network"
    return Requirement(missing, f"Multus network {network}", met, f"network {network}: {problem}")
