"""Which images are pulled on which nodes before the batches of a run."""

from typing import Any

import pytest

from perfdag.kube.node_images import MAX_PULLS, missing_images
from perfdag.shape import Shape

IMAGES = "registry.example/perfdag-{name}:1"
BASE, IPERF = (IMAGES.replace("{name}", name) for name in ("base", "iperf"))


def node(
    name: str,
    *images: str,
    ready: str = "True",
    labels: dict[str, str] | None = None,
    spec: dict[str, Any] | None = None,
    system: str = "linux",
    **allocatable: str,
) -> dict[str, Any]:
    status = {
        "conditions": [{"type": "Ready", "status": ready}],
        "images": [{"names": ["registry.example/other@sha256:1", each]} for each in images],
        "nodeInfo": {"operatingSystem": system},
        "allocatable": allocatable,
    }
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": spec or {},
        "status": status,
    }


def pulls(
    nodes: list[dict[str, Any]], *shapes: dict[str, Any], policy: str = "IfNotPresent"
) -> list[tuple[str, str, str]]:
    numbered = {number: Shape.model_validate(shape) for number, shape in enumerate(shapes)}
    items = missing_images(nodes, numbered, IMAGES, policy)
    return [(item["image"], item["node"], item["shape"]) for item in items]


def test_an_image_is_pulled_where_a_node_does_not_list_it() -> None:
    """Each pod needs the base image too, for its credentials; no pair stands there twice."""
    nodes = [node("a", BASE, IPERF), node("b", BASE), node("c")]
    shapes = ({"image": "iperf"}, {"image": "iperf", "hosts": {"count": 2}})
    assert pulls(nodes, *shapes) == [(IPERF, "b", "0"), (BASE, "c", "0"), (IPERF, "c", "0")]
    assert pulls(nodes[:1], *shapes) == []
    assert pulls(nodes[:1], *shapes, policy="Always") == [(BASE, "a", "0"), (IPERF, "a", "0")]
    assert pulls(nodes, *shapes, policy="Never") == []


@pytest.mark.parametrize(
    ("unfit", "shape"),
    [
        (node("n", ready="Unknown"), {}),
        (node("n", spec={"unschedulable": True}), {}),
        (node("n", system="windows"), {}),
        (node("n"), {"node_selector": {"pool": "bench"}}),
        (node("n", spec={"taints": [{"key": "gpu", "effect": "NoSchedule"}]}), {}),
        (node("n"), {"resources": {"nvidia.com/gpu": 1}}),
        (node("n"), {"hosts": {"count": 2, "roles": {"client": {"node_selector": {"a": "b"}},
                                                     "server": {"node_selector": {"c": "d"}}}}}),
        (node("n") | {"metadata": {"name": "n", "annotations": {"kwok.x-k8s.io/node": "f"}}}, {}),
    ],
)  # fmt: skip
def test_a_node_that_takes_no_pod_of_a_shape_pulls_nothing(
    unfit: dict[str, Any], shape: dict[str, Any]
) -> None:
    assert pulls([unfit], shape) == []
    fit = {"nvidia.com/gpu": "8"}
    tainted = {"taints": [{"key": "gpu", "effect": "NoSchedule"}]}
    other = node("n", labels={"pool": "bench", "a": "b"}, spec=tainted, **fit)
    assert pulls([other], {"tolerations": [{"key": "gpu", "operator": "Exists"}], **shape})


@pytest.mark.parametrize(
    ("reference", "listed"),
    [
        ("debian", "docker.io/library/debian:latest"),
        ("bench/tool:2", "docker.io/bench/tool:2"),
        ("localhost/tool:1", "localhost/tool:1"),
        ("registry:5000/tool", "registry:5000/tool:latest"),
        ("registry.example/tool:2@sha256:ab", "registry.example/tool@sha256:ab"),
    ],
)
def test_a_node_lists_images_by_their_full_names(reference: str, listed: str) -> None:
    if set(reference) & set("/:"):  # else it is one of the installation's
        assert pulls([node("a", BASE, listed)], {"image": reference}) == []
    assert missing_images([node("a", listed)], {0: Shape()}, reference, "IfNotPresent") == []


def test_a_cluster_of_hundreds_of_nodes_stays_an_object_that_argo_stores() -> None:
    nodes = [node(f"n{number}") for number in range(2 * MAX_PULLS)]
    assert len(pulls(nodes, {"image": "iperf"})) == MAX_PULLS
