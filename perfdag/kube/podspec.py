"""A shape as what Argo lays over a pod: a podSpecPatch (strategic merge by container name), its annotations apart.

Argo's own `init` and `wait` containers are named too: without a securityContext PodSecurity `restricted` refuses the pod, and without
limits it can never be Guaranteed. `@BATCH@` stands for the number of the batch and `@ATTEMPT@` for that of the attempt at it: one patch
serves all batches of a shape. `@PORT@` is the port of a rank's sshd on a host network, `@CLAIMED@` the volume of a `claim://` store, which
only a lead has. Where two variants stand side by side `@TWIN@` is the rank of the other variant's pod that this one shares its node with.
"""

from dataclasses import dataclass

from perfdag.kube.labels import LABEL
from perfdag.kube.objects import Object
from perfdag.kube.security import hardened, helper, pod_security
from perfdag.shape import Shape, Volume

BATCH, ATTEMPT, TWIN, PORT, CLAIMED = "@BATCH@", "@ATTEMPT@", "@TWIN@", "@PORT@", "@CLAIMED@"

VOLUME = "/perfdag/volume"

STORE = "/perfdag/store"

MTU = "mtu"
"""Name of the container that sets the MTU before the measuring one starts."""

KEEP_PODS = 60
"""Seconds that a pod is kept at least, for the next attempt's lead reads of it which sample killed it."""

CLEARING = 660
"""Seconds for a benchmark that makes objects on the cluster to delete them and wait for it when its pod is told to end."""

PRIORITY_CLASSES = ("perfdag", "perfdag-preempting")
"""Of measuring pods: of a usual suite, and of one that asks for priority."""

# an sshd of uid 0 separates its privileges and writes an audit record, or ends; one of another uid does neither
_SSHD = ("AUDIT_WRITE", "SETGID", "SETUID", "SYS_CHROOT")

_HOSTNAME = "kubernetes.io/hostname"

_ZONE = "topology.kubernetes.io/zone"

WIDE_GANG = 32  # pods of a gang above which anti-affinity is too slow for the scheduler and topologySpread is used


@dataclass(frozen=True)
class Context:
    """What a patch needs beyond the shape: the run, where the store is, and how images are called."""

    run_id: str
    workflow_uid: str
    """The uid of the run's Workflow, which owns the claims that pods share."""
    images: str
    """`registry/perfdag-{name}:tag`; a shape's image without `/` and `:` is put for {name}."""
    store: str = ""
    pull_policy: str = "IfNotPresent"
    priority_class: str | None = None
    account: str | None = None
    """The ServiceAccount of a benchmark that is allowed rights; None: that of all measuring pods."""
    ranks: range | None = None
    """Ranks of the variant that the pod belongs to, where a batch holds the pods of two; None: the batch's pods are one gang."""


def priority_class(priority: int) -> str:
    """Name of the PriorityClass of the measuring pods of a suite of that priority."""
    return PRIORITY_CLASSES[priority > 0]


def account_of(benchmark: str) -> str:
    """Name of the ServiceAccount that `perfdag install --allow BENCHMARK` makes."""
    return f"perfdag-measure-{benchmark}"


def image(name: str | None, pattern: str) -> str:
    """The image a shape asks for: a full reference as it is, a bare name through the pattern."""
    return (
        pattern.replace("{name}", name or "base") if not name or not set(name) & set("/:") else name
    )


def claim_patch(claim: str) -> Object:
    """What mounts a claim as the store."""
    return {
        "volumes": [{"name": "store", "persistentVolumeClaim": {"claimName": claim}}],
        "containers": [{"name": "main", "volumeMounts": [{"name": "store", "mountPath": STORE}]}],
    }


def patch(shape: Shape, context: Context) -> Object:
    """The podSpecPatch of a measuring pod of this shape, as an object."""
    root = bool(shape.privileges)
    added = (("IPC_LOCK",) if "rdma" in shape.privileges else ()) + (
        _SSHD if root and shape.hosts.count > 1 else ()
    )
    main: Object = {
        "name": "main",
        "image": image(shape.image, context.images),
        "securityContext": hardened(root, added),
        "volumeMounts": [],
    }
    helpers = helper(shape)
    spec: Object = {
        "securityContext": pod_security(root),
        "initContainers": [{"name": "init", "securityContext": hardened(), "resources": helpers}],
        "containers": [{"name": "wait", "securityContext": hardened(), "resources": helpers}, main],
        "volumes": [],
    }
    _resources(shape, main)
    _network(shape, spec, main, context)
    _volumes(shape, spec, main, context)
    _mtu(shape, spec, context)
    _placement(shape, spec, context)
    if context.account:
        spec |= {"serviceAccountName": context.account, "terminationGracePeriodSeconds": CLEARING}
    if context.store.startswith("claim://"):
        spec["volumes"].append(CLAIMED)
        main["volumeMounts"].append({"name": "store", "mountPath": STORE})
    for container in (spec, main):
        for key in ("volumes", "volumeMounts"):
            if container.get(key) == []:
                del container[key]
    return spec


def _resources(shape: Shape, main: Object) -> None:
    asked = {
        name: str(value) for name, value in (dict(shape.resources) | dict(shape.hugepages)).items()
    }
    if asked:
        main["resources"] = {"requests": asked, "limits": asked}


def _network(shape: Shape, spec: Object, main: Object, context: Context) -> None:
    if shape.network.host:
        spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
        # a declared host port keeps two gangs with the same sshd port off one node; each rank has its own, so two of a gang may share one
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


def _volumes(shape: Shape, spec: Object, main: Object, context: Context) -> None:
    if shape.shm is not None:
        spec["volumes"].append(
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(shape.shm)}}
        )
        main["volumeMounts"].append({"name": "shm", "mountPath": "/dev/shm"})
    for name in shape.hugepages:
        size = name.removeprefix("hugepages-")
        volume = f"huge-{size.lower()}"
        spec["volumes"].append({"name": volume, "emptyDir": {"medium": f"HugePages-{size}"}})
        main["volumeMounts"].append({"name": volume, "mountPath": f"/dev/hugepages-{size}"})
    if shape.volume is None:
        return
    spec["volumes"].append({"name": "measured", **_source(shape.volume, context)})
    if shape.volume.mode == "Block":
        main["volumeDevices"] = [{"name": "measured", "devicePath": VOLUME}]
    else:
        main["volumeMounts"].append({"name": "measured", "mountPath": VOLUME})


def _source(volume: Volume, context: Context) -> Object:
    if volume.kind == "hostPath":
        return {"hostPath": {"path": volume.path, "type": "DirectoryOrCreate"}}
    if volume.kind == "emptyDir":
        return {"emptyDir": {"medium": volume.medium, "sizeLimit": str(volume.size)}}
    if volume.claim:
        return {"persistentVolumeClaim": {"claimName": volume.claim}}
    if shares(volume):
        return {"persistentVolumeClaim": {"claimName": shared_claim(context.workflow_uid, BATCH)}}
    return {"ephemeral": {"volumeClaimTemplate": {"spec": claim_spec(volume)}}}


def shares(volume: Volume | None) -> bool:
    """Whether the pods of a batch share a claim that is made for them."""
    return (
        volume is not None
        and volume.kind == "claim"
        and volume.access == "ReadWriteMany"
        and not volume.claim
    )


def shared_claim(workflow_uid: str, batch: str) -> str:
    """Name of the claim that all pods of a batch share. A run that is resumed gets another: the old one goes with the Workflow that owns it."""
    return f"perfdag-{workflow_uid}-b{batch}"


def claim_spec(volume: Volume) -> Object:
    """The spec of the claim a volume asks for."""
    spec: Object = {
        "accessModes": [volume.access],
        "volumeMode": volume.mode,
        "resources": {"requests": {"storage": str(volume.size)}},
    }
    if volume.storage_class:
        spec["storageClassName"] = volume.storage_class
    return spec


def _placement(shape: Shape, spec: Object, context: Context) -> None:
    own: Object = {"matchLabels": {f"{LABEL}/run": context.run_id, f"{LABEL}/batch": BATCH}}
    # pods of an earlier attempt on a node that died are there until somebody deletes it, and would draw these to it
    gang: Object = {"matchLabels": {**own["matchLabels"], f"{LABEL}/attempt": ATTEMPT}}
    twin: Object = {"matchLabels": {**gang["matchLabels"], f"{LABEL}/rank": TWIN}}
    if context.ranks:
        side = [
            {
                "key": f"{LABEL}/rank",
                "operator": "In",
                "values": [str(rank) for rank in context.ranks],
            }
        ]
        own["matchExpressions"] = gang["matchExpressions"] = side
    anti: list[Object] = []
    if shape.hosts.exclusive:
        anti += [_away(_others("run", context.run_id)), _away(_others("batch", BATCH))]
    if shape.hosts.placement == "spread" and shape.hosts.count > 1:
        if shape.hosts.count > WIDE_GANG:
            spec["topologySpreadConstraints"] = [
                {
                    "maxSkew": 1,
                    "topologyKey": _HOSTNAME,
                    "whenUnsatisfiable": "DoNotSchedule",
                    "labelSelector": own,
                }
            ]
        else:
            anti.append({"labelSelector": own, "topologyKey": _HOSTNAME})
    affinity: Object = {}
    if anti:
        affinity["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": anti}
    near = [gang] if shape.hosts.placement == "packed" and shape.hosts.count > 1 else []
    if context.ranks and context.ranks.start:
        near = [twin]  # where the first variant's pods are is decided by their own rules
    if near:
        terms = [{"labelSelector": each, "topologyKey": _HOSTNAME} for each in near]
        affinity["podAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    if shape.zones:
        zone = {"matchExpressions": [{"key": _ZONE, "operator": "In", "values": list(shape.zones)}]}
        affinity["nodeAffinity"] = {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [zone]}
        }
    if affinity:
        spec["affinity"] = affinity
    if shape.node_selector:
        spec["nodeSelector"] = dict(shape.node_selector)
    if shape.tolerations:
        spec["tolerations"] = [each.model_dump(exclude_none=True) for each in shape.tolerations]
    if shape.scheduler == "volcano":
        spec["schedulerName"] = "volcano"
    if shape.runtime_class:
        spec["runtimeClassName"] = shape.runtime_class
    if context.priority_class:
        spec["priorityClassName"] = context.priority_class


def _others(label: str, own: str) -> list[Object]:
    return [
        {"key": f"{LABEL}/measuring", "operator": "Exists"},
        {"key": f"{LABEL}/{label}", "operator": "NotIn", "values": [own]},
    ]


def _away(expressions: list[Object]) -> Object:
    # all namespaces: another team's measuring pod disturbs as much as one of ours
    return {
        "labelSelector": {"matchExpressions": expressions},
        "namespaceSelector": {},
        "topologyKey": _HOSTNAME,
    }


def host_port(run_id: str) -> int:
    """Sshd's port of rank 0 of a run on a host network, from the run id; rank n has the n-th after it, 20000 to 29999 for any gang."""
    import hashlib

    return 20000 + int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:4], "big") % (
        10000 - 2 * 4096
    )


SSH_PORT = 2222


def ssh_port(shape: Shape, run_id: str, rank: int) -> int:
    """Where the peer of that rank listens for the lead; peers of one node share its ports on a host network."""
    return host_port(run_id) + rank if shape.network.host else SSH_PORT
