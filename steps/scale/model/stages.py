"""Read the stages of an object's life from its state.

An extractor yields (stage, API time in Unix ns or 0, fresh). `fresh` is False if the state only
remembers an older phase, so that the receive time means nothing. Sources: Kubernetes API reference
(PodCondition, JobCondition, deletionTimestamp), KubeVirt api/core/v1 types.go.
"""

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import lru_cache

from perfdag.kube.resources import Object

StageSeen = tuple[str, int, bool]
Extractor = Callable[[Object], Iterator[StageSeen]]

SET, VMI = "VirtualMachineInstanceReplicaSet", "VirtualMachineInstance"
VM_PHASES = ("pending", "scheduling", "scheduled", "running", "succeeded", "failed")
EVENT_STAGES = {
    "Scheduled": "scheduled",
    "Preempted": "evicted",
    "Evict": "evicted",
    "Evicted": "evicted",
    "ExternalProvisioning": "requested",
    "Provisioning": "requested",
    "ProvisioningSucceeded": "provisioned",
}
"""Stages of the object of an Event, by the Event's reason."""
_EVICTED_POD = re.compile(r"\bPod ([\w.-]+)/([\w.-]+) was ")


def evicted_pod(event: Object) -> tuple[str, str] | None:
    """Return namespace and name of the pod that KAI evicted, else None.

    KAI records the Event on a PodGroup and names the pod in the message (pkg/scheduler/api).
    """
    about = (event.get("involvedObject") or {}).get("kind")
    if about != "PodGroup" or event.get("reason") != "Evict":
        return None
    match = _EVICTED_POD.search(event.get("message") or "")
    return (match[1], match[2]) if match else None


@lru_cache(maxsize=4096)
def _second(text: str) -> int:
    return int(datetime.fromisoformat(text + "+00:00").timestamp())


def unix_ns(text: str | None) -> int:
    """Convert an RFC 3339 text to Unix time in ns, 0 for none. Raises ValueError."""
    if not text:
        return 0
    second, rest = text[:19], text[19:]
    if rest == "Z":
        return _second(second) * 1_000_000_000
    if rest.endswith("Z") and rest[0] == ".":
        return _second(second) * 1_000_000_000 + int(rest[1:-1][:9].ljust(9, "0"))
    return round(datetime.fromisoformat(text).timestamp() * 1e6) * 1000


def whole_second(api_ns: int) -> bool:
    """Return whether an API time was truncated to the second, as nearly all are."""
    return api_ns % 1_000_000_000 == 0


def _life(body: Object) -> Iterator[StageSeen]:
    metadata = body["metadata"]
    yield "created", unix_ns(metadata.get("creationTimestamp")), True
    if deleting := metadata.get(
        "deletionTimestamp"
    ):  # the API sets it to the moment of the request plus the grace period
        grace = metadata.get("deletionGracePeriodSeconds") or 0
        yield "deleting", unix_ns(deleting) - grace * 1_000_000_000, True


def _conditions(body: Object) -> dict[str, Object]:
    """Conditions by type; what has none is not of the form that Kubernetes gives conditions."""
    conditions = (body.get("status") or {}).get("conditions") or []
    return {
        condition["type"]: condition
        for condition in conditions
        if isinstance(condition, dict) and isinstance(condition.get("type"), str)
    }


_POD_CONDITIONS = {
    "Initialized": "initialized",
    "PodReadyToStartContainers": "sandbox",
    "ContainersReady": "containers_ready",
    "Ready": "ready",
}


def _pod(body: Object) -> Iterator[StageSeen]:
    yield from _life(body)
    status = body.get("status") or {}
    conditions = _conditions(body)
    scheduled = conditions.get("PodScheduled")
    if scheduled:
        at = unix_ns(scheduled.get("lastTransitionTime"))
        if scheduled["status"] == "True":
            yield "scheduled", at, True
        elif scheduled.get("reason") == "SchedulingGated":
            yield "gated", at, True
        elif scheduled.get("reason") == "Unschedulable":
            yield "unschedulable", at, True
    elif body.get("spec", {}).get("nodeName"):
        yield "scheduled", 0, True
    for name, stage in _POD_CONDITIONS.items():
        if name in conditions and conditions[name]["status"] == "True":
            yield stage, unix_ns(conditions[name].get("lastTransitionTime")), True
    phase = status.get("phase")
    if phase == "Running":
        yield "running", unix_ns(status.get("startTime")), True
    elif phase in ("Succeeded", "Failed"):
        end_times = [
            (container.get("state") or {}).get("terminated") or {}
            for container in status.get("containerStatuses") or []
        ]
        yield (
            phase.lower(),
            max((unix_ns(terminated.get("finishedAt")) for terminated in end_times), default=0),
            True,
        )


def _vmi(body: Object) -> Iterator[StageSeen]:
    yield from _life(body)
    status = body.get("status") or {}
    phase = status.get("phase")
    for transition in status.get("phaseTransitionTimestamps") or []:
        yield (
            transition["phase"].lower(),
            unix_ns(transition.get("phaseTransitionTimestamp")),
            transition["phase"] == phase,
        )
    if phase:
        yield phase.lower(), 0, True
    for name in ("Ready", "Paused"):
        condition = _conditions(body).get(name)
        if condition and condition["status"] == "True":
            yield name.lower(), unix_ns(condition.get("lastTransitionTime")), True


def _vm(body: Object) -> Iterator[StageSeen]:
    yield from _life(body)
    if (body.get("status") or {}).get("printableStatus") == "Running":
        yield "running", 0, True
    ready = _conditions(body).get("Ready")
    if ready and ready["status"] == "True":
        yield "ready", unix_ns(ready.get("lastTransitionTime")), True


def _replica_set(body: Object) -> Iterator[StageSeen]:
    yield from _life(body)
    wanted = (body.get("spec") or {}).get("replicas", 1)
    if wanted and (body.get("status") or {}).get("readyReplicas", 0) >= wanted:
        yield "ready", 0, True


def _job(body: Object) -> Iterator[StageSeen]:
    yield from _life(body)
    status = body.get("status") or {}
    if status.get("startTime"):
        yield "started", unix_ns(status["startTime"]), True
    for name, stage in (
        ("Complete", "succeeded"),
        ("Succeeded", "succeeded"),
        ("Failed", "failed"),
        ("Running", "running"),
    ):
        condition = _conditions(body).get(name)
        if condition and condition["status"] == "True":
            yield stage, unix_ns(condition.get("lastTransitionTime")), True


def _status_since(body: Object) -> int:
    """Return when the status was last written (metadata.managedFields), or 0 if unknown."""
    writes = [
        field
        for field in body["metadata"].get("managedFields") or []
        if "f:phase" in ((field.get("fieldsV1") or {}).get("f:status") or {})
    ]
    return max((unix_ns(write.get("time")) for write in writes), default=0)


def _claim(body: Object) -> Iterator[StageSeen]:
    yield from _life(body)
    if (body.get("status") or {}).get("phase") == "Bound":
        yield "bound", _status_since(body), True


def _other(body: Object) -> Iterator[StageSeen]:
    """Any custom resource: its life, its phase and its true conditions, in lower case."""
    yield from _life(body)
    status = body.get("status") or {}
    if isinstance(phase := status.get("phase"), str) and phase:
        yield phase.lower(), 0, True
    for name, condition in _conditions(body).items():
        if condition.get("status") == "True":
            yield name.lower(), unix_ns(condition.get("lastTransitionTime")), True


_BY_KIND: dict[str, Extractor] = {
    "Pod": _pod,
    "VirtualMachineInstance": _vmi,
    "VirtualMachine": _vm,
    "VirtualMachineInstanceReplicaSet": _replica_set,
    "ReplicaSet": _replica_set,
    "Job": _job,
    "PyTorchJob": _job,
    "PersistentVolumeClaim": _claim,
}


def is_foreign(api_version: str, kind: str) -> bool:
    """Return whether another API group defines a kind with a name known here, such as Job."""
    return kind == "Job" and "." in api_version.rpartition("/")[0]


def extractor(api_version: str, kind: str) -> Extractor:
    """Return the extractor of a kind. An unknown kind gets its life, phase and conditions."""
    if is_foreign(api_version, kind):
        return _other
    return _BY_KIND.get(kind, _other)


def failure(body: Object) -> tuple[str, int]:
    """Return an object's failure message in one line, and its start (Unix ns, 0 if unknown)."""
    status, conditions = body.get("status") or {}, _conditions(body)
    messages, since = [], 0
    for name, condition in conditions.items():
        bad = condition.get("status") == "False" and name in (
            "PodScheduled",
            "Synchronized",
            "Provisioning",
        )
        if (bad and condition.get("reason") != "SchedulingGated") or (
            condition.get("status") == "True" and name.endswith("Failed")
        ):
            messages.append(f"{condition.get('reason', name)}: {condition.get('message', '')}")
            since = max(since, unix_ns(condition.get("lastTransitionTime")))
    if status.get("phase") == "Failed":  # a phase has no time, but conditions change with it
        messages.append(f"{status.get('reason', 'Failed')}: {status.get('message', '')}")
        since = max(
            (unix_ns(condition.get("lastTransitionTime")) for condition in conditions.values()),
            default=0,
        )
    return " ".join("; ".join(messages).split())[:500], since


def last_observed(body: Object) -> int:
    """Return when the Event was last observed (Unix ns, 0 if unknown)."""
    times = (
        (body.get("series") or {}).get("lastObservedTime"),
        body.get("lastTimestamp"),
        body.get("eventTime"),
        body.get("firstTimestamp"),
    )
    return max(map(unix_ns, times)) or unix_ns(
        (body.get("metadata") or {}).get("creationTimestamp")
    )


def owner_of(metadata: Object) -> str:
    """Return the UID of the object's controller or first owner; empty without owners."""
    owners = metadata.get("ownerReferences") or []
    first = next(
        (owner for owner in owners if owner.get("controller")), owners[0] if owners else None
    )
    return first["uid"] if first else ""
