"""What a shape lays over its pods: security, placement, resources, ports."""

from dataclasses import replace
from typing import Any

import pytest

from perfdag.kube.placeholders import ATTEMPT, BATCH, PORT
from perfdag.kube.placement import LOST_NODE_SECONDS
from perfdag.kube.pod_patch import host_port, patch
from perfdag.kube.pod_security import step_pod_patch
from perfdag.shape import Shape

from .test_manifests import CONTEXT, SHAPES, documents


@pytest.mark.parametrize("shape", SHAPES)
def test_patches_are_restricted_unless_privileges_are_asked(shape: str) -> None:
    made = patch(Shape.model_validate(SHAPES[shape]), CONTEXT)
    privileged = bool(SHAPES[shape].get("privileges"))
    assert made["securityContext"]["runAsNonRoot"] is not privileged
    for container in [*made["containers"], *made["initContainers"]]:
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"]["drop"] == ["ALL"]
        assert "add" not in security["capabilities"] or privileged
    assert {each["name"] for each in [*made["containers"], *made["initContainers"]]} >= {
        "main",
        "wait",
        "init",
    }


@pytest.mark.parametrize("shape", [*SHAPES, None])
def test_kubernetes_gives_up_the_pods_of_a_lost_node(shape: str | None) -> None:
    made = patch(Shape.model_validate(SHAPES[shape]), CONTEXT) if shape else step_pod_patch()
    assert made["terminationGracePeriodSeconds"] == 0, "else only its kubelet could end the pod"
    limits = {
        toleration["key"]: toleration["tolerationSeconds"]
        for toleration in made["tolerations"]
        if "tolerationSeconds" in toleration
    }
    assert limits == {
        "node.kubernetes.io/not-ready": LOST_NODE_SECONDS,
        "node.kubernetes.io/unreachable": LOST_NODE_SECONDS,
    }


def test_net_admin_is_in_the_mtu_container_alone() -> None:
    made = patch(Shape.model_validate(SHAPES["mtu"]), replace(CONTEXT, pull_policy="Never"))
    mtu = next(each for each in made["initContainers"] if each["name"] == "mtu")
    assert (mtu["imagePullPolicy"], mtu["terminationMessagePolicy"]) == (
        "Never",
        "FallbackToLogsOnError",
    ), "its last words are its pod's"
    holders = [
        each["name"]
        for each in [*made["containers"], *made["initContainers"]]
        if "NET_ADMIN" in each["securityContext"]["capabilities"].get("add", [])
    ]
    assert holders == ["mtu"]


def test_pods_are_drawn_to_those_of_their_attempt_and_kept_from_those_of_any() -> None:
    """Those of an earlier one that are on a node that died are there until somebody deletes it."""
    rules = {
        placement: patch(
            Shape.model_validate({"hosts": {"count": 2, "placement": placement}}), CONTEXT
        )["affinity"]
        for placement in ("packed", "spread")
    }
    [near] = rules["packed"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    [away] = rules["spread"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    batch = {"perfdag/run": CONTEXT.run_id, "perfdag/batch": BATCH}
    assert near["labelSelector"]["matchLabels"] == {**batch, "perfdag/attempt": ATTEMPT}
    assert away["labelSelector"]["matchLabels"] == batch
    [made] = [
        each
        for each in documents()["base"]
        if each["kind"] == "WorkflowTemplate" and each["metadata"]["name"] == "perfdag"
    ]
    rank = next(each for each in made["spec"]["templates"] if each["name"] == "rank")
    assert f"'{ATTEMPT}', inputs.parameters.attempt" in rank["podSpecPatch"]
    assert rank["metadata"]["labels"]["perfdag/attempt"] == "{{inputs.parameters.attempt}}"


def test_a_pod_with_resources_can_be_guaranteed() -> None:
    made = patch(Shape.model_validate(SHAPES["guaranteed"]), CONTEXT)
    for container in [*made["containers"], *made["initContainers"]]:
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert {"cpu", "memory"} <= container["resources"]["limits"].keys()


@pytest.mark.parametrize(
    "shape",
    [{}, {"resources": {"memory": "1Gi"}}, {"network": {"mtu": 9000}, "privileges": ["mtu"]}],
)
def test_elsewhere_argos_helpers_start_without_a_limit(shape: dict[str, Any]) -> None:
    made = patch(Shape.model_validate(shape), CONTEXT)
    helpers = [
        each for each in [*made["containers"], *made["initContainers"]] if each["name"] != "main"
    ]
    assert len(helpers) >= 2
    assert all(each["resources"].keys() == {"requests"} for each in helpers)


def test_host_ports_are_in_their_range_and_differ_by_run_and_rank() -> None:
    ports = {host_port(f"run-{number}") for number in range(200)}
    assert all(port >= 20000 and port + 2 * 4096 <= 30000 for port in ports)
    assert len(ports) > 150
    main = next(
        each
        for each in patch(Shape.model_validate({"network": {"host": True}}), CONTEXT)["containers"]
        if each["name"] == "main"
    )
    assert {main["ports"][0][name] for name in ("hostPort", "containerPort")} == {PORT}
