"""Security contexts and resources of the containers of a run, as PodSecurity `restricted` requires them."""

from collections.abc import Mapping
from typing import Any

from perfdag.kube.objects import Object
from perfdag.shape import Shape

USER = 1000

HELPER_RESOURCES = {"cpu": "100m", "memory": "128Mi"}


def hardened(root: bool = False, added: tuple[str, ...] = ()) -> Object:
    """A container's securityContext as PodSecurity `restricted` wants it; `root` and `added` only where the suite says privileges."""
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
    """The pod's securityContext; fsGroup so that a claim is writable and the key pair readable."""
    user = 0 if root else USER
    return {
        "runAsNonRoot": not root,
        "runAsUser": user,
        "runAsGroup": user,
        "fsGroup": user,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def helper(shape: Shape | None = None) -> Object:
    """Resources of a container beside the measuring one. A limit of so little costs each start 2 s: only where a pod is to be Guaranteed."""
    asked: Object = {"requests": dict(HELPER_RESOURCES)}
    guaranteed = shape is not None and {"cpu", "memory"} <= shape.resources.keys()
    return asked | {"limits": dict(HELPER_RESOURCES)} if guaranteed else asked


def restricted(resources: Mapping[str, Any] | None = None) -> Object:
    """The patch of a pod that measures nothing (plan, watchdog, finish)."""
    main: Object = {"name": "main", "securityContext": hardened()}
    if resources:
        main["resources"] = {"requests": dict(resources)}
    return {
        "securityContext": pod_security(),
        "initContainers": [{"name": "init", "securityContext": hardened(), "resources": helper()}],
        "containers": [
            {"name": "wait", "securityContext": hardened(), "resources": helper()},
            main,
        ],
    }
