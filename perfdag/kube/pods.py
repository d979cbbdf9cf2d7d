"""Nodes and pods: which nodes take the pods of a run, where they are, and why they do not run.

takes(node, shape)  # whether pods of this shape may run there
read_pod(body).trouble  # None, or `ImagePullBackOff on node-1: image ...`
"""

import base64
import gzip
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import orjson

from perfdag.kube.client import Kube, Object
from perfdag.kube.patch import ATTEMPT, BATCH, MEASURING, MTU, RANK, RUN, ZONE
from perfdag.shape import Shape, Toleration
from perfdag.units import parse_quantity


def without_simulated(nodes: Sequence[Object]) -> list[Object]:
    """Return nodes that run pods: nodes simulated by KWOK have any resource and run nothing."""
    return [
        item
        for item in nodes
        if "kwok.x-k8s.io/node" not in (item["metadata"].get("annotations") or {})
    ]


def nodes_with(resource: str, nodes: Sequence[Object]) -> list[Object]:
    """Return nodes with at least 1 of a resource: no pod can ask for a part (`500m`)."""
    return [
        item
        for item in nodes
        if parse_quantity((item["status"].get("allocatable") or {}).get(resource, "0")) >= 1
    ]


def zones_of(nodes: Sequence[Object]) -> set[str]:
    """Return the zones of nodes; a node without the label is in none."""
    labels = [(node["metadata"].get("labels") or {}).get(ZONE) for node in nodes]
    return {zone for zone in labels if zone}


def takes(node: Object, shape: Shape) -> bool:
    """Return whether a node takes pods of this shape, now or when it is back.

    Kubernetes' own taints (cordoned, not ready) pass, others stay.
    """
    labels = node["metadata"].get("labels") or {}
    if not shape.node_selector.items() <= labels.items():
        return False
    if labels.keys() & set(shape.avoid_nodes):
        return False
    if shape.zones and labels.get(ZONE) not in shape.zones:
        return False
    taints = (node.get("spec") or {}).get("taints") or []
    return all(_passes(shape, taint) for taint in taints)


def _passes(shape: Shape, taint: Object) -> bool:
    """Return whether a taint of a node lets pods of this shape pass."""
    if taint["effect"] == "PreferNoSchedule" or taint["key"].startswith("node.kubernetes.io/"):
        return True
    return any(_tolerates(toleration, taint) for toleration in shape.tolerations)


def _tolerates(toleration: Toleration, taint: Object) -> bool:
    if toleration.key not in (None, taint["key"]):
        return False
    if toleration.effect not in (None, taint["effect"]):
        return False
    return toleration.operator == "Exists" or (toleration.value or "") == taint.get("value", "")


def is_ready(body: Object) -> bool:
    """Return whether a node or pod is Ready."""
    conditions = (body.get("status") or {}).get("conditions") or []
    return any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions
    )


def is_schedulable(node: Object) -> bool:
    """Return whether a node is Ready and not cordoned."""
    return is_ready(node) and not (node.get("spec") or {}).get("unschedulable")


def nodes_of(workflow: Object) -> dict[str, Object]:
    """Return the nodes of a Workflow's status, which Argo may have compressed."""
    status = workflow.get("status") or {}
    nodes: dict[str, Object] = status.get("nodes") or {}
    if packed := status.get("compressedNodes"):
        nodes = orjson.loads(gzip.decompress(base64.b64decode(packed)))
    return nodes


def parameters_of(node: Object, kind: str = "inputs") -> Object:
    """Return the input or output parameters of a node, by name."""
    parameters = (node.get(kind) or {}).get("parameters") or []
    return {parameter["name"]: parameter.get("value") for parameter in parameters}


def template_of(node: Object) -> str | None:
    """Return the template of a node: the workflow's own, or one that a task refers to."""
    return node.get("templateName") or (node.get("templateRef") or {}).get("template")


WORKFLOW = "workflows.argoproj.io/workflow"
ARGO = "argoproj.io/v1alpha1"
WORKFLOWS = f"{ARGO}/Workflow"
_NEVER = {
    "ErrImageNeverPull",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
}
_PULLING = {"ImagePullBackOff", "ErrImagePull", "ImageInspectError", "RegistryUnavailable"}
_PULL = re.compile(
    r'(Back-off pulling image "[^"]*"(: ErrImagePull)?|failed to pull and unpack image "[^"]*"'
    r'|failed to resolve reference "[^"]*"): '
)
"""What the kubelet says before the cause, and only in some of the states of a pull."""
_SLOW = ("context deadline exceeded", "DeadlineExceeded", "is reserved for")
"""Parts of the kubelet's message while a node still unpacks an image.

The kubelet requests the image again, and conflicts with its own earlier request."""
QUIET_SECONDS = 10.0
"""Seconds that a pod may be Pending without a known trouble before its events are read."""


@dataclass(frozen=True)
class Pod:
    """A pod.

    `trouble` is why it does not run, or None. `unrecoverable` tells that waiting cannot help.
    """

    name: str
    batch: int | None
    attempt: int
    rank: int | None
    phase: str
    node: str | None
    address: str | None
    trouble: str | None = None
    unrecoverable: bool = False
    image_digest: str | None = None
    uid: str = ""
    created: float = 0.0
    """Seconds since the epoch, by the API server's clock."""
    ended_at: str = ""
    """When the container `main` ended, in ISO 8601; empty where the kubelet did not tell."""
    addresses: tuple[str, ...] = ()
    """Its addresses of every family. `address` is that of the requested family, or None."""
    abandoned: bool = False
    """Whether Kubernetes deleted it on a lost node, and only its grace period keeps it."""
    node_address: str | None = None
    """The address of its node, of the requested family."""


def read_pod(pod: Object, family: str = "ipv4") -> Pod:
    """Return a Pod from the object of the API, with its address of `family`."""
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    status = pod.get("status") or {}
    trouble, unrecoverable = pod_trouble(pod)
    addresses = [entry["ip"] for entry in status.get("podIPs") or []]
    node_addresses = [entry["ip"] for entry in status.get("hostIPs") or []]
    containers = {item["name"]: item for item in status.get("containerStatuses") or []}
    main: Object = containers.get("main", {})
    terminated = (main.get("state") or {}).get("terminated") or {}
    return Pod(
        name=metadata["name"],
        batch=_int(labels.get(BATCH)),
        attempt=_int(labels.get(ATTEMPT)) or 0,
        rank=_int(labels.get(RANK)),
        phase=status.get("phase") or "Pending",
        node=(pod.get("spec") or {}).get("nodeName"),
        address=_of_family(addresses, family),
        trouble=trouble,
        unrecoverable=unrecoverable,
        image_digest=main.get("imageID") or None,
        uid=metadata.get("uid", ""),
        created=_moment(metadata.get("creationTimestamp")),
        ended_at=terminated.get("finishedAt") or "",
        addresses=tuple(addresses),
        abandoned=bool(metadata.get("deletionTimestamp")) and _is_lost(status),
        node_address=_of_family(node_addresses, family),
    )


def _of_family(addresses: Iterable[str], family: str) -> str | None:
    """Return the first address of a family: those of IPv6 have colons."""
    return next((text for text in addresses if (":" in text) == (family == "ipv6")), None)


async def with_events(kube: Kube, namespace: str, pods: Iterable[Pod]) -> list[Pod]:
    """Return the pods, with the last warning event of those whose status does not explain a delay.

    Examples are a volume that cannot be mounted, or a missing network. Pods are returned unchanged
    if the user may not read events. Raises KubeError.
    """
    pods = list(pods)
    if not any(_quiet(pod) for pod in pods):
        return pods
    of_pods = "involvedObject.kind=Pod,type=Warning"
    events = await kube.list_readable("v1/Event", namespace, fields=of_pods) or []
    placed = {pod.uid for pod in pods if pod.node}
    last: dict[str, str] = {}
    for event in sorted(events, key=_event_time):
        uid = event["involvedObject"].get("uid")
        outdated = uid in placed and event.get("reason") == "FailedScheduling"
        message = " ".join((event.get("message") or "").split())
        # `Error: ErrImagePull` follows an event that names the image
        if not outdated and not message.startswith("Error: "):
            last[uid] = f"{event.get('reason')}: {message}"
    return [
        replace(pod, trouble=last[pod.uid]) if _quiet(pod) and pod.uid in last else pod
        for pod in pods
    ]


def _quiet(pod: Pod) -> bool:
    unexplained = pod.phase == "Pending" and pod.trouble is None
    return unexplained and time.time() - pod.created > QUIET_SECONDS


def _event_time(event: Object) -> str:
    """Return when an event happened last, which depends on who wrote it."""
    repeated = (event.get("series") or {}).get("lastObservedTime")
    return repeated or event.get("lastTimestamp") or event.get("eventTime") or ""


def _moment(text: str | None) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0


def pod_trouble(pod: Object) -> tuple[str | None, bool]:
    """Return what keeps a pod from running, or None, and whether waiting cannot help.

    Causes are the scheduler, the image, the memory limit, an eviction, or a failed init container.
    """
    status = pod.get("status") or {}
    if status.get("reason"):  # Evicted, NodeLost, OutOfcpu ...
        return _with_message(status), False
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(kind) or []:
            if trouble := _container(container, pod):
                return trouble
    if _is_lost(status):
        return f"node {pod['spec'].get('nodeName')} was lost", False
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return _with_message({"reason": "Unschedulable", **condition}), False
    return None, False


def _with_message(state: Object) -> str:
    """Return the reason of a state of Kubernetes, with its message where it has one."""
    return f"{state['reason']}: {state.get('message', '')}".strip(": ")


def _is_lost(status: Object) -> bool:
    """Return whether the node of a running pod does not answer.

    Kubernetes then marks the pod as not ready. Its containers stay ready, as the kubelet left them:
    a kubelet that ends a pod marks both.
    """
    containers = status.get("containerStatuses") or []
    conditions = {item["type"]: item["status"] for item in status.get("conditions") or []}
    if status.get("phase") != "Running" or not containers:
        return False
    if conditions.get("Ready") != "False" or conditions.get("ContainersReady") == "False":
        return False
    return all(container.get("ready") for container in containers)


def _container(container: Object, pod: Object) -> tuple[str, bool] | None:
    """Return what keeps a container from running, and whether waiting cannot help, or None."""
    name = container["name"]
    state = container.get("state") or {}
    waiting = state.get("waiting") or {}
    if waiting.get("reason") in _NEVER | _PULLING:
        reason = "ImagePullBackOff" if waiting["reason"] in _PULLING else waiting["reason"]
        cause = _PULL.sub("", waiting.get("message") or "")
        node = pod["spec"].get("nodeName")
        text = f"{reason} on {node}: image {container.get('image')} of {name}: {cause}"
        return text, reason in _NEVER and not is_unpacking(text)
    if waiting.get("reason") not in (None, "PodInitializing", "ContainerCreating"):
        return _with_message(waiting), False
    terminated = state.get("terminated") or {}
    if terminated.get("reason") == "OOMKilled":
        limit = _memory_limit(pod["spec"], name)
        return f"OOMKilled: container {name} passed its memory limit of {limit}", False
    code = terminated.get("exitCode")
    if not code or name == "wait":  # Argo's own container
        return None
    message = " ".join((terminated.get("message") or "").split())
    text = f"{name} ended with exit code {code}: {message}".rstrip(": ")
    if name == MTU:
        # The kernel answers every attempt to set an MTU alike, unless a signal ended `ip`.
        return f"network.mtu: {text}", code < 128
    # A lead that refused its batch would refuse it again.
    return text, name == "main" and code == 2


def _memory_limit(spec: Object, name: str) -> str:
    """Return the memory limit of a container of a pod, which is the node where it has none."""
    containers = [*spec.get("initContainers", []), *spec["containers"]]
    limits = {item["name"]: item.get("resources", {}).get("limits", {}) for item in containers}
    return str(limits.get(name, {}).get("memory", "the node"))


def refusal(message: str) -> str:
    """Return Argo's message of a pod that was not created, without the names of task and pod."""
    return re.sub(r"^(task '.*' errored: )?(pods \"[^\"]*\" is forbidden: )?", "", message)


def is_pulling(trouble: str) -> bool:
    """Return whether an image could not be pulled yet."""
    return trouble.startswith("ImagePullBackOff")


def is_unpacking(trouble: str) -> bool:
    """Return whether the node still unpacks an image, so that another attempt will succeed."""
    return trouble.startswith(tuple(_NEVER)) and any(phrase in trouble for phrase in _SLOW)


def selector(
    run_id: str, workflow: str, batch: int | None = None, attempt: int | None = None
) -> str:
    """Return the label selector of the measuring pods of a run, of one batch, or of one attempt.

    `workflow` is necessary, because pods of earlier Workflows of a resumed run still exist.
    """
    labels = {MEASURING: "true", RUN: run_id, WORKFLOW: workflow, BATCH: batch, ATTEMPT: attempt}
    return ",".join(f"{name}={value}" for name, value in labels.items() if value is not None)


def _int(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None
