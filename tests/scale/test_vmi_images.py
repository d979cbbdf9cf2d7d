"""The images of VMIs on every node: what is pulled, where it is missing, and the digests."""

from typing import Any

import pytest

from perfdag.kube.client import Kube, Object
from perfdag.kube.node_fit import is_schedulable
from perfdag.steps.scale.cluster import vmi_images
from perfdag.steps.scale.model.nodes import is_simulated
from tests.fakes.api_server import ApiServer, Request, client

DISK, LAUNCHER = "quay.io/kubevirt/cirros:1", "quay.io/kubevirt/virt-launcher:v1.9.0"


def node(name: str) -> Object:
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    metadata = {"name": name, "labels": {"kubevirt.io/schedulable": "true"}}
    return {"kind": "Node", "metadata": metadata, "spec": {}, "status": status}


def launcher(**images: str) -> Object:
    """A pod of a VMI, with an image by the name of each container."""
    containers = [{"name": name, "image": image} for name, image in images.items()]
    return {"metadata": {"name": "virt-launcher", "uid": "u"}, "spec": {"containers": containers}}


def pulling(server: ApiServer, digests: dict[str, list[str]]) -> None:
    """Play the controller and the kubelets: a pod for each node, with these digests."""

    def start(request: Request) -> None:
        template = (request.body or {})["spec"]["template"]
        for name, own in digests.items():
            statuses = [
                {"name": container["name"], "imageID": f"quay.io/x@{digest}"}
                if digest
                else {
                    "name": container["name"],
                    "imageID": "",
                    "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such tag"}},
                }
                for container, digest in zip(template["spec"]["containers"], own, strict=True)
            ]
            server.add(
                {
                    "kind": "Pod",
                    "metadata": {"name": name, "namespace": "ns", **template["metadata"]},
                    "spec": template["spec"] | {"nodeName": name},
                    "status": {"containerStatuses": statuses},
                }
            )

    server.on(r"POST .*/daemonsets", start)


@pytest.mark.parametrize(
    ("digests", "note"),
    [
        ({"a": ["sha256:1", "sha256:2"], "b": ["sha256:1", "sha256:2"]}, ""),
        (
            {"a": ["sha256:1", "sha256:2"], "b": ["sha256:3", "sha256:2"]},
            f"nodes have different images of {DISK}: name it by its digest",
        ),
        (
            {"a": ["sha256:1", "sha256:2"], "b": ["", "sha256:2"]},
            f"1 of 2 nodes lack images of the VMIs: b: {DISK}: no such tag",
        ),
        (
            {"a": ["sha256:1", "sha256:2"]},
            "1 of 2 nodes lack images of the VMIs: b: no pod was started there",
        ),
    ],
    ids=["on all nodes", "two digests", "not pulled", "no pod"],
)
async def test_every_node_pulls_each_image_and_shows_its_digest(
    digests: dict[str, list[str]], note: str
) -> None:
    server = ApiServer(node("a"), node("b"))
    pulling(server, digests)
    pod = launcher(compute=LAUNCHER, volumedisk0=DISK)
    async with client(server) as kube:
        images, notes = await vmi_images.pull_images(kube, "r", "ns", pod, 0.0)
    assert notes == ([note] if note else [])
    assert images[LAUNCHER] == ["sha256:2"]
    assert images[DISK] == sorted({own[0] for own in digests.values()} - {""})
    (created,) = [item.body for item in server.requests if item.method == "POST"]
    assert created["spec"]["template"]["spec"]["nodeSelector"] == {
        "kubevirt.io/schedulable": "true"
    }
    assert server.of("DaemonSet") == [], "it leaves nothing"


async def test_a_daemon_set_that_is_refused_is_a_note_and_the_primer_shows_the_digests() -> None:
    server = ApiServer(node("a"))
    server.fail("POST .*/daemonsets", 403, "you may not")
    pod = launcher(compute=LAUNCHER)
    pod["status"] = {"containerStatuses": [{"name": "compute", "imageID": "x@sha256:1"}]}
    async with client(server) as kube:
        images, notes = await vmi_images.pull_images(kube, "r", "ns", pod, 0.0)
    assert images == {LAUNCHER: ["sha256:1"]}
    assert notes[0].startswith("whether all nodes have the images of the VMIs is unknown: ")
    assert "you may not" in notes[0]


@pytest.mark.cluster
async def test_real_nodes_show_the_digest_of_an_image_without_a_program(
    kube: Kube, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = await kube.list(await kube.resource("v1", "Node"))
    real = [item for item in every if is_schedulable(item) and not is_simulated(item)]
    names = [
        {name for image in item["status"].get("images", []) for name in image["names"] or []}
        for item in real
    ]
    shared = sorted(name for name in set.intersection(*names) if "@" not in name) if names else []
    if not shared:
        pytest.skip("no real nodes that share an image on this cluster")
    for item in real:
        item["metadata"]["labels"].pop("kubevirt.io/schedulable", None)

    async def usable(_: Kube) -> tuple[list[Any], list[Any]]:
        return real, []

    monkeypatch.setattr(vmi_images, "usable_nodes", usable)
    pod = launcher(compute=shared[0])
    images, notes = await vmi_images.pull_images(kube, "r1", namespace, pod, 60.0)
    assert notes == []
    assert [digest.partition(":")[0] for digest in images[shared[0]]] == ["sha256"]
    daemon_sets = await kube.resource("apps/v1", "DaemonSet")
    assert await kube.list(daemon_sets, namespace) == []
