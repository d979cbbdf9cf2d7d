"""What a measuring pod is made of: labels, placement, security, volumes, ports, its podSpecPatch.

The patch has what a shape adds to the measuring pods of every run. Argo merges it into the pod by
container name, after the patch of the Workflow, which has what Pod Security `restricted` asks of
every container. One patch serves all batches of a shape, so it has placeholders. Services
forward to the ports of pods that may be servers.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from perfdag.kube.client import Kube, Object, ignore_status
from perfdag.shape import ACROSS, Shape, Volume

LABEL = "perfdag"
RUN, SUITE = f"{LABEL}/run", f"{LABEL}/suite"
"""Labels: the run that an object belongs to, and its suite."""
VERDICT = f"{LABEL}/verdict"
"""Label of a Workflow that has ended: the verdict on its run, or `first` without a past."""
WATCHDOG = f"{LABEL}/watchdog"
"""Annotation of a Workflow: the owner of its annotations (`perfdag.steps.pods.watchdog.owner`), and
how its watchdog ended, or STOPPED and why. Argo creates no other watchdog until `argo retry`, and
no other batch of a run that was stopped."""
STOPPED = "was stopped"
DESCRIPTION = "workflows.argoproj.io/description"
"""Annotation that Argo's UI shows below the name of a Workflow or of a template."""
STORE_ADDRESS = f"{LABEL}/store"
"""Annotation of a WorkflowTemplate: the address of the store of its installation."""
BATCH, ATTEMPT, RANK = f"{LABEL}/batch", f"{LABEL}/attempt", f"{LABEL}/rank"
"""Labels of a measuring pod: numbers from 0."""
ROLE = f"{LABEL}/role"
"""Label of a pod: its step. It is "measure" in a batch."""
MEASURING = f"{LABEL}/measuring"
"""Label of every measuring pod, with the value "true"."""
STEP, STEP_BEGAN, STEP_ENDED, STEP_REFUSED = f"{LABEL}/step", "began", "ended", "refused"
"""Annotation of a Workflow: its uid, the step that began last, and the state of the step.

The state is STEP_BEGAN while the step runs, and STEP_ENDED once it failed by itself. It is
STEP_REFUSED if the step refused the run: then Argo creates no other pod."""
HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
LEVEL = "pod-security.kubernetes.io/enforce"
"""The label of a namespace that names its level."""

BATCH_NUMBER = "@BATCH@"
"""The number of the batch."""
ATTEMPT_NUMBER = "@ATTEMPT@"
"""The number of the attempt."""
PORT = "@PORT@"
"""The port of a rank's sshd on a host network."""
WIDE_GANG = 32
"""Pods of a gang above which anti-affinity is too slow, so topologySpread is used."""
CLEARING = 660
"""Grace period in seconds of a benchmark that has to delete objects on the cluster."""
LOST_NODE_SECONDS = 60
"""Seconds after which Kubernetes deletes a pod whose node does not answer."""
SSH_PORT = 2222
FORWARDED = {"service": "ClusterIP", "nodeport": "NodePort"}
"""Types of Services, by `network.path`."""
PORTS_EACH = 2
"""Ports that a Service forwards, for TCP and for UDP. A port has one number on its whole path."""
_FIRST, _PORTS = 30000, 2768
"""The range of node ports, if the API server has its default."""


def node_loss_tolerations(seconds: int = LOST_NODE_SECONDS) -> list[Object]:
    """Return what lets Kubernetes give up a pod `seconds` after its node is NotReady.

    So no pod needs the right to delete pods, if its grace period is 0 as well. With any other, the
    pod stays until a kubelet that is gone confirms its end, and Argo waits for it. A kubelet that
    lives sends SIGTERM and gives 2 s.
    """
    return [
        {
            "key": f"node.kubernetes.io/{state}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": seconds,
        }
        for state in ("not-ready", "unreachable")
    ]


def place(shape: Shape, spec: Object, run_id: str, rank: int) -> None:
    """Add the affinity, node selection and scheduler of a rank of a shape to a pod spec."""
    batch: Object = {"matchLabels": {RUN: run_id, BATCH: BATCH_NUMBER}}
    placement = shape.hosts.placement if shape.hosts.count > 1 else None
    across = shape.hosts.pairs == ACROSS
    away: list[Object] = []
    if shape.hosts.exclusive:
        away += [_alone(RUN, run_id), _alone(BATCH, BATCH_NUMBER)]
    if placement == "spread" and shape.hosts.count <= WIDE_GANG:
        away.append({"labelSelector": batch, "topologyKey": HOSTNAME})
    elif placement == "spread":
        spec["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "minDomains": shape.hosts.count,  # so no node gets a second one
                "topologyKey": HOSTNAME,
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": batch,
            }
        ]
    if across:
        away.append({"labelSelector": batch, "topologyKey": ZONE})
    expressions: list[Object] = [
        {"key": key, "operator": "DoesNotExist"} for key in shape.avoid_nodes
    ]
    if shape.zones:
        expressions.append({"key": ZONE, "operator": "In", "values": list(shape.zones)})
    elif across:
        expressions.append({"key": ZONE, "operator": "Exists"})
    terms: dict[str, Any] = {"podAntiAffinity": away}
    if placement == "packed":
        # Pods of an earlier attempt remain on a dead node, and must not attract these pods.
        attempt = {"matchLabels": {**batch["matchLabels"], ATTEMPT: ATTEMPT_NUMBER}}
        terms["podAffinity"] = [{"labelSelector": attempt, "topologyKey": HOSTNAME}]
    if expressions:
        terms["nodeAffinity"] = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    role = of_roles(shape).get("client" if rank == 0 else "server", shape)
    tolerations = [item.model_dump(exclude_none=True) for item in shape.tolerations]
    if tolerations:  # they replace those of the Workflow
        tolerations += node_loss_tolerations()
    optional = {
        "affinity": {kind: {required: term} for kind, term in terms.items() if term},
        "nodeSelector": dict(role.node_selector),
        "tolerations": tolerations,
        "schedulerName": "volcano" if shape.scheduler == "volcano" else None,
        "runtimeClassName": shape.runtime_class,
    }
    spec |= {key: value for key, value in optional.items() if value}


def of_roles(shape: Shape) -> dict[str, Shape]:
    """Return the shapes of the client and of the server, each with its own node selector."""
    roles = shape.hosts.roles
    selectors = {} if roles is None else {"client": roles.client, "server": roles.server}
    return {
        name: shape.model_copy(
            update={"node_selector": {**shape.node_selector, **role.node_selector}}
        )
        for name, role in selectors.items()
    }


def _alone(label: str, value: str) -> Object:
    """Keep away from measuring pods with another value of a label.

    Those of all namespaces, as measuring pods of other teams disturb as well.
    """
    measuring = [
        {"key": MEASURING, "operator": "Exists"},
        {"key": label, "operator": "NotIn", "values": [value]},
    ]
    return {
        "labelSelector": {"matchExpressions": measuring},
        "namespaceSelector": {},
        "topologyKey": HOSTNAME,
    }


USER = 1000
LEVELS = ("restricted", "baseline", "privileged")
"""The levels of Pod Security: each admits what the one before it does."""
HELPER: Object = {"requests": {"cpu": "50m", "memory": "128Mi"}}
"""The resources of a container beside the measuring one."""
_LIMITED = {"cpu": "100m", "memory": "128Mi"}
"""Its requests and limits in a pod that is Guaranteed. Such small limits delay the start of a pod
by 2 s, so others have none."""


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
        body = await client.get("v1/Namespace", namespace)
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


VOLUME = "/perfdag/volume"


def add_volumes(shape: Shape, spec: Object, main: Object, workflow_uid: str) -> None:
    """Add the volumes of a shape to a pod spec and to its measuring container."""
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
    spec["volumes"].append({"name": "measured", **_source(shape.volume, workflow_uid)})
    if shape.volume.mode == "Block":
        main["volumeDevices"] = [{"name": "measured", "devicePath": VOLUME}]
    else:
        main["volumeMounts"].append({"name": "measured", "mountPath": VOLUME})


def _source(volume: Volume, workflow_uid: str) -> Object:
    if volume.kind == "hostPath":
        return {"hostPath": {"path": volume.path, "type": "DirectoryOrCreate"}}
    if volume.kind == "emptyDir":
        return {"emptyDir": {"medium": volume.medium, "sizeLimit": str(volume.size)}}
    if volume.claim:
        return {"persistentVolumeClaim": {"claimName": volume.claim}}
    if volume.batch_claim:
        return {"persistentVolumeClaim": {"claimName": shared_claim(workflow_uid, BATCH_NUMBER)}}
    return {"ephemeral": {"volumeClaimTemplate": {"spec": claim_spec(volume)}}}


def shared_claim(workflow_uid: str, batch: str) -> str:
    """Return the name of the claim that the pods of a batch share.

    The Workflow owns the claim, so a resumed run gets another one.
    """
    return f"perfdag-{workflow_uid}-b{batch}"


def claim_spec(volume: Volume) -> Object:
    """Return the spec of the claim of a volume."""
    spec: Object = {
        "accessModes": [volume.access],
        "volumeMode": volume.mode,
        "resources": {"requests": {"storage": str(volume.size)}},
    }
    if volume.storage_class:
        spec["storageClassName"] = volume.storage_class
    template = volume.claim_template
    return spec | (template.model_dump(mode="json", exclude_none=True) if template else {})


STORE = "/perfdag/store"
SUMMARY = "/tmp/perfdag-summary"
"""File of a lead with what its batch measured, in a line: an output of its node in Argo."""
REPORT = "/tmp/perfdag-report.html"
"""File of the finish step with the report, where Argo has a repository for artifacts."""
MESSAGE = "/dev/termination-log"
"""What a container writes there is the message of its node in Argo: of the finish step the sentence
about the run."""
MTU = "mtu"
"""Name of the init container that sets the MTU."""
SSH = "/perfdag/ssh"
"""Where a measuring pod has the keys of its run."""
STORE_VARIABLES = "PERFDAG_STORE_"
"""Prefix of the variables of the store's Secret in a measuring pod."""
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
    store_secret: str = "perfdag-store"


def priority_class(priority: int) -> str:
    """Return the PriorityClass of the measuring pods of a suite of that priority."""
    return PRIORITY_CLASSES[priority > 0]


def account_of(benchmark: str) -> str:
    """Return the ServiceAccount that `perfdag install --allow BENCHMARK` creates."""
    return f"perfdag-measure-{benchmark}"


def own_image(name: str | None, pattern: str) -> bool:
    """Return whether an image of a shape is one of the installation's."""
    reference = re.escape(pattern).replace(re.escape("{name}"), _IMAGE)
    return not name or re.fullmatch(rf"{_IMAGE}|{reference}", name) is not None


def image_of(name: str | None, pattern: str) -> str:
    """Return the image reference of a shape. A bare name is inserted into the pattern."""
    if name and set(name) & set("/:"):
        return name
    return pattern.replace("{name}", name or "base")


def store_root(store: str) -> str:
    """Return where a pod reaches a store: where its claim is mounted, or its address."""
    return STORE if store.startswith("claim://") else store


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
    spec: Object = {"volumes": [], "initContainers": [], "containers": [main]}
    if shape.privileges:
        rdma = ("IPC_LOCK",) if "rdma" in shape.privileges else ()
        added = rdma + (_SSHD if shape.hosts.count > 1 else ())
        spec["securityContext"] = pod_security(True)
        main["securityContext"] = hardened(True, added)
    guaranteed = {"cpu", "memory"} <= shape.resources.both.keys()
    beside = {"requests": _LIMITED, "limits": _LIMITED} if guaranteed else HELPER
    if guaranteed:
        spec["initContainers"] = [{"name": "init", "resources": beside}]
        spec["containers"] = [{"name": "wait", "resources": beside}, main]
    if shape.secret:  # a patch replaces the whole list
        main["envFrom"] = store_variables(context.store_secret)
        main["envFrom"].append({"secretRef": {"name": shape.secret}})
    _resources(shape, main)
    _network(shape, spec, main)
    add_volumes(shape, spec, main, context.workflow_uid)
    _mtu(shape, spec, context, beside)
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


def store_variables(secret: str) -> list[Object]:
    """Return the sources of a measuring pod's variables: the Secret of the store, and its own.

    Its own Secret has a credential with fewer rights, which replaces that of the other steps.
    """
    return [
        {"prefix": STORE_VARIABLES, "secretRef": {"name": name, "optional": True}}
        for name in (secret, f"{secret}-measure")
    ]


def _resources(shape: Shape, main: Object) -> None:
    parts: tuple[Literal["requests", "limits"], ...] = ("requests", "limits")
    for part in parts:
        amounts = {**shape.resources.amounts(part), **shape.hugepages}
        if amounts:
            main.setdefault("resources", {})[part] = {
                name: str(value) for name, value in amounts.items()
            }


def _network(shape: Shape, spec: Object, main: Object) -> None:
    if shape.network.host:
        spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
        # The host port keeps gangs with the same sshd port off one node.
        # Each rank has a port of its own, so ranks of a gang may share a node.
        main["ports"] = [
            {"name": "ssh", "containerPort": PORT, "hostPort": PORT, "protocol": "TCP"}
        ]


def _mtu(shape: Shape, spec: Object, context: Context, resources: Object) -> None:
    network = shape.network
    if network.mtu is None:
        return
    # Multus names its interfaces net1, net2 ..., unless one replaces the default network.
    usual = "net1" if network.name and not network.default else "eth0"
    interface = network.interface or usual
    spec["initContainers"].append(
        {
            "name": MTU,
            "image": image_of(None, context.images),
            "imagePullPolicy": context.pull_policy,
            "command": ["ip", "link", "set", "dev", interface, "mtu", str(network.mtu)],
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "securityContext": hardened(True, ("NET_ADMIN",)),
            "resources": resources,
        }
    )


def ssh_port(shape: Shape, run_id: str, rank: int) -> int:
    """Return the port where the peer of a rank listens for the lead.

    On a host network the run id decides, so that the ports of any gang are in 20000 to 29999.
    """
    if shape.network.host:
        return 20000 + _hash(run_id) % (10000 - 2 * 4096) + rank
    return SSH_PORT


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def services(shape: Shape, run_id: str, workflow: tuple[str, str], batch: int) -> Iterator[Object]:
    """Yield the Services of the ranks of a batch that may be servers.

    `workflow` is the name and the uid.
    """
    kind = FORWARDED.get(shape.network.path or "")
    if kind is None:
        return
    name, uid = workflow
    first_server = 1 if shape.hosts.pairs is None else 0
    for rank in range(first_server, shape.hosts.count):
        yield {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": f"perfdag-{uid}-b{batch}-r{rank}"},
            "spec": {
                "type": kind,
                "selector": {
                    "workflows.argoproj.io/workflow": name,
                    RUN: run_id,
                    BATCH: str(batch),
                    RANK: str(rank),
                },
                "ipFamilies": ["IPv6" if shape.network.family == "ipv6" else "IPv4"],
                "ports": service_ports(f"{uid} {batch} {rank}", kind == "NodePort"),
            },
        }


def service_ports(seed: str, on_nodes: bool) -> list[Object]:
    """Return the ports of a Service; another `seed` gives others."""
    first = _FIRST + PORTS_EACH * (_hash(seed) % (_PORTS // PORTS_EACH))
    return [
        {
            "name": f"{protocol.lower()}-{port - first}",
            "protocol": protocol,
            "port": port,
            "targetPort": port,
            **({"nodePort": port} if on_nodes else {}),
        }
        for port in range(first, first + PORTS_EACH)
        for protocol in ("TCP", "UDP")
    ]
