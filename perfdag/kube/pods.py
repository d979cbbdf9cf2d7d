"""The pods of a run as the Kubernetes API tells of them: where they are, and what keeps them from running."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from perfdag.kube.client import Kube, KubeError
from perfdag.kube.objects import Object
from perfdag.kube.podspec import MTU

RUN, BATCH, ATTEMPT, RANK, MEASURING = (
    "perfdag/run",
    "perfdag/batch",
    "perfdag/attempt",
    "perfdag/rank",
    "perfdag/measuring",
)
WORKFLOW = "workflows.argoproj.io/workflow"
_NEVER = {
    "ErrImageNeverPull",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
}
_PULLING = {"ImagePullBackOff", "ErrImagePull", "ImageInspectError", "RegistryUnavailable"}
_CALM = {"PodInitializing", "ContainerCreating"}
_SLOW = ("context deadline exceeded", "DeadlineExceeded", "is reserved for")
"""What a kubelet says of a container whose image the node still unpacks: it asks again, and meets its own earlier request."""
QUIET_SECONDS = 10.0
"""How long a pod may be Pending without a trouble before its events are read."""


@dataclass(frozen=True)
class Pod:
    """One pod. `trouble` is why it does not run (None: no trouble), `unrecoverable` whether waiting cannot mend it."""

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
    addresses: tuple[str, ...] = ()
    """Those of every family; `address` is the one of the family asked for, None where the pod has none of it."""


def read_pod(pod: Object, family: str = "ipv4") -> Pod:
    """A Pod from the API's object; its address is of `family`."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    labels = metadata.get("labels") or {}
    trouble, unrecoverable = pod_trouble(pod)
    addresses = [each["ip"] for each in status.get("podIPs") or []] or (
        [status["podIP"]] if status.get("podIP") else []
    )
    wanted = [each for each in addresses if (":" in each) == (family == "ipv6")]
    main: Object = next(
        (each for each in status.get("containerStatuses") or [] if each["name"] == "main"), {}
    )
    return Pod(
        metadata["name"],
        _int(labels.get(BATCH)),
        _int(labels.get(ATTEMPT)) or 0,
        _int(labels.get(RANK)),
        status.get("phase") or "Pending",
        (pod.get("spec") or {}).get("nodeName"),
        next(iter(wanted), None),
        trouble,
        unrecoverable,
        main.get("imageID") or None,
        metadata.get("uid", ""),
        _moment(metadata.get("creationTimestamp")),
        tuple(addresses),
    )


async def with_events(kube: Kube, namespace: str, pods: Iterable[Pod]) -> list[Pod]:
    """The pods, with the last warning of its events for one that is Pending for some time while its status says nothing: a volume that is
    not mounted, a network that is not there. As they are where events may not be read. Raises KubeError.
    """
    pods = list(pods)
    if not any(_quiet(pod) for pod in pods):
        return pods
    try:
        events = await kube.list(
            await kube.resource("v1", "Event"),
            namespace,
            fields="involvedObject.kind=Pod,type=Warning",
        )
    except KubeError as error:
        if error.status == 403:
            return pods
        raise
    placed = {pod.uid for pod in pods if pod.node}
    last = {
        uid: each
        for each in sorted(events, key=_seen)
        if not (
            (uid := each["involvedObject"].get("uid")) in placed
            and each.get("reason") == "FailedScheduling"
        )
    }
    return [
        replace(pod, trouble=_words(last[pod.uid])) if _quiet(pod) and pod.uid in last else pod
        for pod in pods
    ]


def _quiet(pod: Pod) -> bool:
    return (
        pod.phase == "Pending" and pod.trouble is None and time.time() - pod.created > QUIET_SECONDS
    )


def _seen(event: Object) -> str:
    return str(
        (event.get("series") or {}).get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or ""
    )


def _words(event: Object) -> str:
    return f"{event.get('reason')}: {' '.join((event.get('message') or '').split())}"


def _moment(text: str | None) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() if text else 0.0


def pod_trouble(pod: Object) -> tuple[str | None, bool]:
    """What is wrong with a pod, and whether it is unrecoverable: the scheduler's words, the image, the memory limit, an eviction, what
    ended before the measuring container could start.
    """
    status = pod.get("status") or {}
    if status.get("reason"):  # Evicted, NodeLost, OutOfcpu ...
        return f"{status['reason']}: {status.get('message', '')}".strip(": "), False
    for container in status.get("initContainerStatuses") or []:
        if found := _container(container, pod) or _unprepared(container):
            return found
    for container in status.get("containerStatuses") or []:
        if found := _container(container, pod):
            return found
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return (
                f"{condition.get('reason', 'Unschedulable')}: {condition.get('message', '')}".strip(
                    ": "
                ),
                False,
            )
    return None, False


def _container(container: Object, pod: Object) -> tuple[str, bool] | None:
    state = container.get("state") or {}
    waiting, ended = state.get("waiting"), state.get("terminated")
    if waiting and waiting.get("reason") in _NEVER | _PULLING:
        reason = waiting["reason"]
        said = waiting.get("message") or f"image {container.get('image')}"
        text = f"{reason}: {said} (container {container['name']}, image {container.get('image')})"
        return text, reason in _NEVER and not is_unpacking(text)
    if waiting and waiting.get("reason") not in _CALM | {None}:
        return f"{waiting['reason']}: {waiting.get('message', '')}".strip(": "), False
    if ended and ended.get("reason") == "OOMKilled":
        limits: Object = next(
            (
                each.get("resources", {}).get("limits", {})
                for each in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
                if each["name"] == container["name"]
            ),
            {},
        )
        return (
            f"OOMKilled: container {container['name']} passed its memory limit of {limits.get('memory', 'the node')}",
            False,
        )
    if ended and container["name"] == "main" and ended.get("exitCode"):
        return f"main ended with exit code {ended['exitCode']}", False
    return None


def _unprepared(container: Object) -> tuple[str, bool] | None:
    """How an init container failed. What the kernel says to an MTU it says to each attempt; a code of 128 or more is no word of `ip`."""
    ended = (container.get("state") or {}).get("terminated") or {}
    if not ended.get("exitCode"):
        return None
    name, code, said = (
        container["name"],
        ended["exitCode"],
        " ".join((ended.get("message") or "").split()),
    )
    text = f"{name} ended with exit code {code}" + (f": {said}" if said else "")
    return (f"network.mtu: {text}", code < 128) if name == MTU else (text, False)


def is_pulling(trouble: str) -> bool:
    """Whether the trouble is an image that could not be pulled yet: given up sooner than a full cluster."""
    return trouble.partition(":")[0] in _PULLING


def is_unpacking(trouble: str) -> bool:
    """Whether the trouble is an image that the node still unpacks: another attempt finds it there."""
    return trouble.partition(":")[0] in _NEVER and any(words in trouble for words in _SLOW)


def selector(
    run_id: str, workflow: str, batch: int | None = None, attempt: int | None = None
) -> str:
    """The label selector of a run's measuring pods, of one batch, of one attempt. `workflow`: a run that was resumed has several, and
    pods of the earlier ones are kept for a while.
    """
    wanted = {MEASURING: "true", RUN: run_id, WORKFLOW: workflow, BATCH: batch, ATTEMPT: attempt}
    return ",".join(f"{name}={value}" for name, value in wanted.items() if value is not None)


def troubles(pods: Iterable[Pod]) -> list[str]:
    """One line a pod that has trouble."""
    return [
        f"{pod.name}: {pod.trouble}" for pod in pods if pod.trouble and pod.phase != "Succeeded"
    ]


def _int(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None
