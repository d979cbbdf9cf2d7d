"""The podSpecPatch of a shape, which Argo merges into a measuring pod by container name.

It also patches Argo's own `init` and `wait` containers. Without a securityContext PodSecurity
`restricted` rejects the pod, and without limits the pod cannot be Guaranteed. One patch serves all
batches of a shape, so it has placeholders (`perfdag.kube.placeholders`).
"""

import hashlib
import re
from dataclasses import dataclass

from perfdag.kube.placeholders import CLAIMED, PORT
from perfdag.kube.placement import CLEARING, place
from perfdag.kube.pod_security import hardened, helper, pod_security
from perfdag.kube.resources import Object
from perfdag.kube.volumes import add_volumes
from perfdag.shape import Shape

SSH_PORT = 2222
STORE = "/perfdag/store"
SUMMARY = "/tmp/perfdag-summary"
"""File of a lead with what its batch measured, in a line: an output of its node in Argo."""
MTU = "mtu"
"""Name of the init container that sets the MTU."""
CREDENTIALS = "credentials"
"""Name of the init container that copies credentials to the measuring container."""
KEEP_PODS = 60
"""Least seconds that an ended pod is kept, so that the watchdog sees how it ended."""
PRIORITY_CLASSES = ("perfdag", "perfdag-preempting")
"""PriorityClasses of measuring pods: of a usual suite, and of one with a priority."""
_IMAGE = "[a-z0-9-]+"
# As uid 0, sshd separates its privileges and writes an audit record, or ends.
_SSHD = ("AUDIT_WRITE", "SETGID", "SETUID", "SYS_CHROOT")


@dataclass(frozen=True)
class Context:
    """What a patch depends on besides the shape."""

    run_id: str
    workflow_uid: str
    """The uid of the run's Workflow, which owns the claims that pods share."""
    images: str
    """Pattern `registry/perfdag-{name}:tag`, for images of shapes without `/` and `:`."""
    store: str = ""
    pull_policy: str = "IfNotPresent"
    priority_class: str | None = None
    account: str | None = None
    """The ServiceAccount of a benchmark with rights of its own, or None."""


def priority_class(priority: int) -> str:
    """Return the PriorityClass of the measuring pods of a suite of that priority."""
    return PRIORITY_CLASSES[priority > 0]


def account_of(benchmark: str) -> str:
    """Return the ServiceAccount that `perfdag install --allow BENCHMARK` creates."""
    return f"perfdag-measure-{benchmark}"


def own_image(name: str | None, pattern: str) -> bool:
    """Return whether an image of a shape is one of the installation's."""
    own = re.escape(pattern).replace(re.escape("{name}"), _IMAGE)
    return not name or re.fullmatch(rf"{_IMAGE}|{own}", name) is not None


def image(name: str | None, pattern: str) -> str:
    """Return the image reference of a shape. A bare name is inserted into the pattern."""
    if name and set(name) & set("/:"):
        return name
    return pattern.replace("{name}", name or "base")


def claim_patch(claim: str) -> Object:
    """Return the patch that mounts a claim as the store."""
    return {
        "volumes": [{"name": "store", "persistentVolumeClaim": {"claimName": claim}}],
        "containers": [{"name": "main", "volumeMounts": [{"name": "store", "mountPath": STORE}]}],
    }


def patch(shape: Shape, context: Context) -> Object:
    """Return the podSpecPatch of a measuring pod of this shape."""
    root = bool(shape.privileges)
    added = (("IPC_LOCK",) if "rdma" in shape.privileges else ()) + (
        _SSHD if root and shape.hosts.count > 1 else ()
    )
    main: Object = {
        "name": "main",
        "securityContext": hardened(root, added),
        "volumeMounts": [],
    }
    if shape.secret:
        main["envFrom"] = [{"secretRef": {"name": shape.secret}}]
    helpers = helper(shape)
    spec: Object = {
        "securityContext": pod_security(root),
        "initContainers": [
            {"name": "init", "securityContext": hardened(), "resources": helpers},
            # the user of the measuring container, which reads its files
            {"name": CREDENTIALS, "securityContext": hardened(root), "resources": helpers},
        ],
        "containers": [{"name": "wait", "securityContext": hardened(), "resources": helpers}, main],
        "volumes": [],
    }
    _resources(shape, main)
    _network(shape, spec, main)
    add_volumes(shape, spec, main, context.workflow_uid)
    _mtu(shape, spec, context)
    place(shape, spec, context.run_id)
    if context.priority_class:
        spec["priorityClassName"] = context.priority_class
    if context.account:
        spec |= {"serviceAccountName": context.account, "terminationGracePeriodSeconds": CLEARING}
        main["env"] = [{"name": "PERFDAG_ACCOUNT", "value": context.account}]
    if context.store.startswith("claim://"):
        spec["volumes"].append(CLAIMED)
        main["volumeMounts"].append({"name": "store", "mountPath": STORE})
    for container in (spec, main):
        for key in ("volumes", "volumeMounts"):
            if container.get(key) == []:
                del container[key]
    return spec


def _resources(shape: Shape, main: Object) -> None:
    for key, amounts in (
        ("requests", shape.resources.all_requests()),
        ("limits", shape.resources.all_limits()),
    ):
        if amounts := {**amounts, **shape.hugepages}:
            named = {name: str(value) for name, value in amounts.items()}
            main.setdefault("resources", {})[key] = named


def _network(shape: Shape, spec: Object, main: Object) -> None:
    if shape.network.host:
        spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
        # The host port keeps gangs with the same sshd port off one node.
        # Each rank has a port of its own, so ranks of a gang may share a node.
        main["ports"] = [
            {"name": "ssh", "containerPort": PORT, "hostPort": PORT, "protocol": "TCP"}
        ]


def _mtu(shape: Shape, spec: Object, context: Context) -> None:
    if shape.network.mtu is None:
        return
    interface = shape.network.interface or (
        "net1" if shape.network.name and not shape.network.default else "eth0"
    )
    spec["initContainers"].append(
        {
            "name": MTU,
            "image": image(None, context.images),
            "imagePullPolicy": context.pull_policy,
            "command": ["ip", "link", "set", "dev", interface, "mtu", str(shape.network.mtu)],
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "securityContext": hardened(True, ("NET_ADMIN",)),
            "resources": helper(shape),
        }
    )


def host_port(run_id: str) -> int:
    """Return the port of the sshd of rank 0 on a host network; rank n uses the n-th port after it.

    It is derived from the run id, so that the ports of any gang are in 20000 to 29999.
    """
    number = int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:4], "big")
    return 20000 + number % (10000 - 2 * 4096)


def ssh_port(shape: Shape, run_id: str, rank: int) -> int:
    """Return the port where the peer of a rank listens for the lead."""
    return host_port(run_id) + rank if shape.network.host else SSH_PORT
