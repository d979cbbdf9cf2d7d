"""What a cluster can run, and the objects that it gets for the batches of a run."""

import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import orjson

from perfdag.kube.client import Kube, KubeError, Object, ignore_status, run_with_client
from perfdag.kube.patch import LABEL, claim_spec, of_roles, service_ports, services, shared_claim
from perfdag.kube.pods import (
    nodes_with,
    takes,
    without_simulated,
    zones_of,
)
from perfdag.plan.plan import Plan
from perfdag.results.runs import run_folder
from perfdag.shape import ACROSS, Shape, Volume
from perfdag.steps.pods.context import PodContext
from perfdag.steps.pods.credentials import make_keys
from perfdag.store.base import Store
from perfdag.units import parse_quantity, plural

ARGO, LEASES = "argoproj.io/v1alpha1", "coordination.k8s.io/v1"
PORT_ATTEMPTS = 20
"""Attempts to find node ports that no other Service has."""
OTHER_PATH = "let it have one, or measure network.path: pod or host"
Refusals = dict[int, tuple[str, str]]
"""Batches that cannot be measured: the status of their samples, and why."""


def lease_name(workflow_uid: str) -> str:
    """Return the name of the Lease that owns the objects of a Workflow.

    The Workflow owns it. Kubernetes deletes the objects with the Lease, so the last step needs no
    right to delete Secrets or claims.
    """
    return f"perfdag-{workflow_uid}"


def secret(context: PodContext) -> Object:
    """Return a Secret with a new key pair. Raises PeerError."""
    with tempfile.TemporaryDirectory() as folder:
        keys = make_keys(Path(folder))
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"perfdag-ssh-{context.workflow_uid}"},
        "type": "Opaque",
        "stringData": keys,
    }


def batch_objects(shape: Shape, context: PodContext, number: int) -> list[Object]:
    """Return the shared claim, the Services and the PodGroup of a batch.

    Most shapes need none.
    """
    workflow = (context.workflow, context.workflow_uid)
    objects = [*services(shape, context.run_id, workflow, number)]
    if shape.volume and shape.volume.batch_claim:
        name = shared_claim(context.workflow_uid, str(number))
        objects.append(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name},
                "spec": claim_spec(shape.volume),
            }
        )
    if shape.scheduler == "volcano":
        objects.append(
            {
                "apiVersion": "scheduling.volcano.sh/v1beta1",
                "kind": "PodGroup",
                "spec": {"minMember": shape.hosts.count},
                "metadata": {"name": f"perfdag-{context.workflow_uid}-b{number}"},
            }
        )
    return objects


def services_key(context: PodContext, number: int) -> str:
    """Return the key of the addresses and ports of the Services of a batch, by rank.

    Measuring pods have no right to read Services, and read the store.
    """
    return f"{run_folder(context.run_id)}/services/{context.workflow_uid}-b{number}.json"


async def create_for_batches(
    kube: Kube, context: PodContext, store: Store, objects: Mapping[int, list[Object]]
) -> Refusals:
    """Create the objects of batches; return the batches whose objects the API server refuses.

    Raises KubeError if another attempt may succeed, and StoreError.
    """
    refusals: Refusals = {}
    for number, bodies in objects.items():
        try:
            created = await create(kube, context, bodies)
        except NoService as error:
            refusals[number] = ("skipped", str(error))
        except KubeError as error:
            if error.transient or error.status == 401:
                raise
            refusals[number] = ("skipped" if error.reason == "NoKind" else "failed", str(error))
        else:
            if created:
                store.put(services_key(context, number), orjson.dumps(created))
    return refusals


async def create(kube: Kube, context: PodContext, bodies: list[Object]) -> dict[str, Object]:
    """Create objects of the run, owned by its Lease; return the Services by rank.

    Raises KubeError, NoService.
    """
    if not bodies:
        return {}
    name = lease_name(context.workflow_uid)
    lease: Object = {
        "apiVersion": LEASES,
        "kind": "Lease",
        "metadata": {"name": name},
        "spec": {"holderIdentity": context.run_id},
    }
    workflow = _owner(ARGO, "Workflow", context.workflow, context.workflow_uid)
    created = await _create(kube, context, lease, workflow)
    owner = _owner(LEASES, "Lease", name, str(created["metadata"]["uid"]))
    forwarded = {}
    for body in bodies:
        if body["kind"] == "Service":
            service = await _create_service(kube, context, body, owner)
            rank = body["spec"]["selector"][f"{LABEL}/rank"]
            ports = sorted({port["port"] for port in service["spec"]["ports"]})
            forwarded[rank] = {"address": service["spec"]["clusterIP"], "ports": ports}
        else:
            await _create(kube, context, body, owner)
    return forwarded


class NoService(Exception):
    """The cluster cannot have a Service of this kind. The message says why."""


async def _create_service(kube: Kube, context: PodContext, body: Object, owner: Object) -> Object:
    """Create a Service with other ports until the API server has them free; return it.

    Raises KubeError, NoService.
    """
    spec = body["spec"]
    for attempt in range(PORT_ATTEMPTS):
        try:
            return await _create(kube, context, body, owner)
        except KubeError as error:
            if "already allocated" not in error.message or attempt == PORT_ATTEMPTS - 1:
                if error.status == 422 or "allocate a serviceIP" in error.message:
                    text = f"the cluster has no Service of type {spec['type']} for network.path"
                    raise NoService(f"{text}: {error.message}; {OTHER_PATH}") from None
                raise
        seed = f"{body['metadata']['name']} {attempt}"
        spec["ports"] = service_ports(seed, spec["type"] == "NodePort")
    raise AssertionError("not reached")


def _owner(api: str, kind: str, name: str, uid: str) -> Object:
    return {"apiVersion": api, "kind": kind, "name": name, "uid": uid}


async def _create(kube: Kube, context: PodContext, body: Object, owner: Object) -> Object:
    """Create an object, unless an earlier attempt of this step did; return a Lease or Service."""
    body["metadata"] |= {"ownerReferences": [owner], "labels": {"perfdag/run": context.run_id}}
    try:
        return await kube.create(body, context.namespace)
    except KubeError as error:
        if error.reason != "AlreadyExists":
            raise
        if body["kind"] not in ("Lease", "Service"):  # no step may read Secrets
            return body
        kind = await kube.resource(body["apiVersion"], body["kind"])
        return await kube.get(kind, body["metadata"]["name"], context.namespace)


def release(context: PodContext, plan: Plan) -> None:
    """Delete what a run that succeeded no longer needs, of all of its Workflows.

    `argo retry` of another one needs its claims and its key pair, and creates no object: they go
    with the Workflow. So does what the API server refuses to delete; print that.
    """

    async def work(kube: Kube) -> None:
        leases = await kube.resource(LEASES, "Lease")
        for uid in (context.workflow_uid, *plan.where.get("before", {})):
            await kube.delete(leases, lease_name(uid), context.namespace)

    try:
        run_with_client(work)
    except KubeError as error:
        text = "claims, PodGroups and the key pair of this run stay until its workflow is deleted"
        print(f"{text}: {error}", file=sys.stderr)  # noqa: T201


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
    return {
        "kubelet": info.get("kubeletVersion"),
        "runtime": info.get("containerRuntimeVersion"),
        "kernel": info.get("kernelVersion"),
        "type": labels.get("node.kubernetes.io/instance-type"),
        "zone": labels.get("topology.kubernetes.io/zone"),
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
        why = f"{count} {what} needed ({key}), {has} {'fits' if has == 1 else 'fit'}"
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
