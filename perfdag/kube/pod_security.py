"""Security contexts for PodSecurity `restricted`, and what a shape asks for beyond it."""

from perfdag.kube.client import Kube
from perfdag.kube.errors import ignore_status
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


def helper() -> Object:
    """Return the resources of a container beside the measuring one."""
    return {"requests": dict(HELPER_REQUESTS)}


def guaranteed_helper(shape: Shape) -> Object:
    """Return its resources in a pod that is Guaranteed; empty for a shape whose pods are not.

    Such small limits delay the start of a pod by 2 s, so only a Guaranteed pod has them.
    """
    if {"cpu", "memory"} <= shape.resources.both.keys():
        return {"requests": dict(HELPER_LIMITS), "limits": dict(HELPER_LIMITS)}
    return {}
