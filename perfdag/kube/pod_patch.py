"""The podSpecPatch of a shape: what it adds to the measuring pods of every run.

Argo merges it by container name into the pod, after the patch of the Workflow, which has what Pod
Security `restricted` asks of every container. One patch serves all batches of a shape, so it has
placeholders (`perfdag.kube.placeholders`).
"""

import hashlib
import re
from dataclasses import dataclass

from perfdag.kube.placeholders import PORT
from perfdag.kube.placement import CLEARING, place
from perfdag.kube.pod_security import guaranteed_helper, hardened, helper, pod_security
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


def store_volume(store: str) -> Object:
    """Return the volume of a store: its claim, or an empty one where the store is no claim."""
    claim = store.removeprefix("claim://")
    source = {"persistentVolumeClaim": {"claimName": claim}} if claim != store else {"emptyDir": {}}
    return {"name": "store", **source}


def patch(shape: Shape, context: Context, rank: int = 0) -> Object:
    """Return the podSpecPatch of the measuring pod of a rank of this shape; rank 0 leads.

    All ranks from 1 on have the same one.
    """
    main: Object = {"name": "main", "volumeMounts": []}
    init, credentials, wait = ({"name": name} for name in ("init", CREDENTIALS, "wait"))
    spec: Object = {"volumes": []}
    if shape.privileges:
        rdma = ("IPC_LOCK",) if "rdma" in shape.privileges else ()
        added = rdma + (_SSHD if shape.hosts.count > 1 else ())
        spec["securityContext"] = pod_security(True)
        main["securityContext"] = hardened(True, added)
        # the user of the measuring container, which reads its files
        credentials["securityContext"] = hardened(True)
    if limited := guaranteed_helper(shape):
        for container in (init, credentials, wait):
            container["resources"] = limited
    spec["initContainers"] = [each for each in (init, credentials) if len(each) > 1]
    spec["containers"] = [*([wait] if limited else []), main]
    if shape.secret:
        main["envFrom"] = [{"secretRef": {"name": shape.secret}}]
    _resources(shape, main)
    _network(shape, spec, main)
    add_volumes(shape, spec, main, context.workflow_uid)
    _mtu(shape, spec, context)
    place(shape, spec, context.run_id, rank)
    if context.priority_class:
        spec["priorityClassName"] = context.priority_class
    if context.account:
        spec |= {"serviceAccountName": context.account, "terminationGracePeriodSeconds": CLEARING}
        main["env"] = [{"name": "PERFDAG_ACCOUNT", "value": context.account}]
    if rank == 0 and context.store.startswith("claim://"):
        # only the lead stores samples, and a claim may allow one node at a time
        spec["volumes"].append(store_volume(context.store))
        main["volumeMounts"].append({"name": "store", "mountPath": STORE})
    if not main["volumeMounts"]:
        del main["volumeMounts"]
    return {key: value for key, value in spec.items() if value not in ([], [{"name": "main"}])}


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
            "resources": guaranteed_helper(shape) or helper(),
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
