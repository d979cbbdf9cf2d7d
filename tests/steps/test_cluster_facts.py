"""Which DaemonSets of a cluster are a network's or storage's: their images are in the provenance
of rows.
"""

from typing import Any

import pytest

from perfdag.steps.pods.cluster import cluster_facts, driver_images
from tests.fakes.api_server import ApiServer


def daemon(name: str, *images: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {"template": {"spec": {"containers": [{"image": each} for each in images]}}},
    }


@pytest.mark.parametrize(
    ("name", "image"),
    [
        ("calico-node", "calico/node:v3.28.0"),
        ("canal", "flannel/flannel:v0.25.1"),
        ("rke2-net", "rancher/mirrored-calico-node:v3.28.0"),
        ("node-router", "cloudnativelabs/kube-router:v2.1.0"),
        ("netd", "gke/netd:v0.8.9"),
        ("longhorn-manager", "longhornio/longhorn-manager:v1.7.0"),
        ("ebs-csi-node", "aws-ebs-csi-driver:v1.30.0"),
        ("storage-node", "provisioner/csi-node-driver-registrar:v2.10"),
        ("kube-flannel-ds", "flannel/flannel:v0.25.1"),
        ("ovnkube-node", "ovn-kubernetes:1.0"),
        ("net", "amazon-k8s-cni:v1.19.2"),
    ],
)
def test_a_network_or_storage_is_known_by_its_name_or_its_image(name: str, image: str) -> None:
    others = [
        daemon("node-exporter", "prom/node-exporter:v1.8.0"),
        daemon("netdata", "netdata/netdata:v1.45"),
        daemon("fluent-bit", "fluent/fluent-bit:3.0"),
    ]
    assert driver_images([*others, daemon(name, image)]) == {name: [image]}


def test_all_images_of_a_daemon_are_told_in_order() -> None:
    assert driver_images(
        [daemon("canal", "flannel:1", "calico/node:2"), daemon("a-csi", "x:1")]
    ) == {
        "a-csi": ["x:1"],
        "canal": ["calico/node:2", "flannel:1"],
    }


async def test_of_each_node_of_a_large_cluster_its_kind_is_known() -> None:
    info = {"nodeInfo": {"kubeletVersion": "v1.34.4"}}
    server = ApiServer(
        *(
            {"kind": "Node", "metadata": {"name": f"node-{number:04}"}, "status": info}
            for number in range(500)
        )
    )
    server.fail("csidrivers|daemonsets|kube-system", 403)
    nodes = (await cluster_facts(server.client()))["nodes"]
    assert (len(nodes), nodes["node-0300"]["kubelet"]) == (500, "v1.34.4")
