"""Security contexts for PodSecurity `restricted`, and the patch of a pod that measures nothing."""

from collections.abc import Mapping
from typing import Any

from perfdag.kube.client import Kube
from perfdag.kube.errors import ignore_status
from perfdag.kube.placement import node_loss_tolerance
from perfdag.kube.resources import Object
from perfdag.shape import Shape

USER = 1000
LEVELS = ("restricted", "baseline", "privileged")
"""The levels of Pod Security: each admits what the one before it does."""
LEVEL = "pod-security.kubernetes.io/enforce"
"""The label of a namespace that names its level."""
HELPER_LIMITS = {"cpu": "100m", "memory": "128Mi"}
HELPER_REQUESTS = {"cpu": "50m", "memory": "128Mi"}


def hardened(root: bool = False, added: tuple[str, ...] = ()) -> Object:
    """Return the securityContext of a container.

    Only suites with `privileges` use `root` and capabilities that are `added`.
    """
    context: Object = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": not root,
        "runAsUser": 0 if root else USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if added:
        context["capabilities"]["add"] = list(added)
    return context


def pod_security(root: bool = False) -> Object:
    """Return the securityContext of a pod.

    fsGroup makes a claim writable and the key pair readable. The pods of root have the group of
    the others, who read the results that root writes into a claim.
    """
    return {
        "runAsNonRoot": not root,
        "runAsUser": 0 if root else USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


async def enforced_level(client: Kube, namespace: str) -> str | None:
    """Return the level that a namespace enforces, or empty; None if it may not be read.

    Raises KubeError.
    """
    with ignore_status(403, 404):
        body = await client.get(await client.resource("v1", "Namespace"), namespace)
        return str(body["metadata"].get("labels", {}).get(LEVEL, ""))
    return None


def label_command(namespace: str, level: str) -> str:
    """Return the command that gives a namespace a Pod Security level."""
    return f"kubectl label --overwrite namespace {namespace} {LEVEL}={level}"


def level_needs(shape: Shape) -> dict[str, str]:
    """Return what of a shape `restricted` refuses, with the Pod Security level that admits it."""
    needs = {}
    if shape.network.host:
        needs["host network"] = "privileged"
    if shape.volume and shape.volume.kind == "hostPath":
        needs["volume of kind hostPath"] = "privileged"
    for name in shape.privileges:  # `mtu` adds NET_ADMIN, `rdma` IPC_LOCK, `block` root alone
        needs[f"privileges: [{name}]"] = "baseline" if name == "block" else "privileged"
    return needs


def helper(shape: Shape | None = None) -> Object:
    """Return the resources of a container beside the measuring one.

    Its small limits delay the start of a pod by 2 s, so only a Guaranteed pod has them.
    """
    if shape is not None and {"cpu", "memory"} <= shape.resources.both.keys():
        return {"requests": dict(HELPER_LIMITS), "limits": dict(HELPER_LIMITS)}
    return {"requests": dict(HELPER_REQUESTS)}


def step_pod_patch(requests: Mapping[str, Any] | None = None, memory: str | None = None) -> Object:
    """Return the patch of a pod that measures nothing; `memory` is the limit of its container."""
    main: Object = {"name": "main", "securityContext": hardened()}
    if requests:
        main["resources"] = {"requests": dict(requests)}
    if memory:
        main["resources"]["limits"] = {"memory": memory}
    return {
        **node_loss_tolerance(),
        "securityContext": pod_security(),
        "initContainers": [{"name": "init", "securityContext": hardened(), "resources": helper()}],
        "containers": [
            {"name": "wait", "securityContext": hardened(), "resources": helper()},
            main,
        ],
    }
