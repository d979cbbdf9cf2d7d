"""The facts of the cluster that a run was measured on: provenance of its rows."""

import re

from perfdag.kube.client import Kube, Object
from perfdag.kube.errors import ignore_status

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
