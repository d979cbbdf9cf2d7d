"""Read the stages of an object's life from its state, keep them, and chain them.

An extractor yields (stage, API time in Unix ns or 0, fresh). `fresh` is False if the state only
remembers an older phase, so that the receive time means nothing. Sources: Kubernetes API reference
(PodCondition, JobCondition, deletionTimestamp), KubeVirt api/core/v1 types.go. A record has the
stages of one object, and a chain those of every kind of workload.
"""

import re
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal

from perfdag.kube.client import Object

_WORKS = frozenset(("running", "ready", "succeeded", "bound"))


class Record:
    """One object: identity, owner, node, failure message, and three times per stage.

    `error_at` is the start of the failure (Unix ns). `error_newer` means that it is newer than the
    last warning.
    """

    __slots__ = (
        "error",
        "error_at",
        "error_newer",
        "kind",
        "name",
        "namespace",
        "node",
        "owner",
        "stages",
        "times_ns",
        "uid",
    )

    def __init__(self, kind: str, uid: str, name: str, namespace: str, owner: str) -> None:
        self.kind, self.uid, self.name, self.namespace, self.owner = (
            kind,
            uid,
            name,
            namespace,
            owner,
        )
        self.node, self.error, self.error_at, self.error_newer = "", "", 0, False
        self.stages: tuple[str, ...] = ()
        self.times_ns = array("q")

    def put(self, stage: str, api_ns: int = 0, event_ns: int = 0, received_ns: int = 0) -> bool:
        """Note a stage and return whether it is new. Known times stay, unknown ones are set."""
        new = stage not in self.stages
        if new:
            self.stages = _shared((*self.stages, stage))
            self.times_ns.extend((api_ns, event_ns, received_ns))
        else:
            at = self.stages.index(stage) * 3
            self.times_ns[at] = self.times_ns[at] or api_ns
            self.times_ns[at + 1] = self.times_ns[at + 1] or event_ns
        return new

    def times(self, stage: str) -> tuple[int, int, int] | None:
        """Return API time and Event time (Unix ns) and receive time (monotonic ns), 0 if unknown.

        None means that the stage was not seen.
        """
        if stage not in self.stages:
            return None
        at = self.stages.index(stage) * 3
        return self.times_ns[at], self.times_ns[at + 1], self.times_ns[at + 2]

    @property
    def recovered(self) -> bool:
        """Whether the object works after all, so that its warnings were of retries."""
        return "failed" not in self.stages and not _WORKS.isdisjoint(self.stages)

    def dump(self) -> list[Any]:
        """Return the record for the state file."""
        status = self.node, self.error, self.error_at, self.error_newer
        return [
            self.kind,
            self.uid,
            self.name,
            self.namespace,
            self.owner,
            *status,
            self.stages,
            list(self.times_ns),
        ]

    @classmethod
    def read(cls, raw: list[Any], forget_receive: int = 0) -> "Record":
        """Read a record from the state file and shift its receive times by `forget_receive`."""
        record = cls(*raw[:5])
        record.node, record.error, record.error_at, record.error_newer = raw[5:9]
        record.stages = _shared(tuple(raw[9]))
        times = [t + forget_receive if i % 3 == 2 and t else t for i, t in enumerate(raw[10])]
        record.times_ns = array("q", times)
        return record


_STAGE_TUPLES: dict[tuple[str, ...], tuple[str, ...]] = {}


def _shared(stages: tuple[str, ...]) -> tuple[str, ...]:
    """Return one tuple for equal stages, because objects of a kind share them."""
    return _STAGE_TUPLES.setdefault(stages, stages)


def top_owner(records: Mapping[str, Record], record: Record) -> Record:
    """Return the owner at the top of a record's chain of owners, or the record itself."""
    while record.owner in records:
        record = records[record.owner]
    return record


def remaining(
    records: Mapping[str, Record], names: Collection[tuple[str, str, str]]
) -> Iterator[Record]:
    """Yield existing records whose top owner has one of these kinds, namespaces and names."""
    for record in records.values():
        if "gone" not in record.stages:
            top = top_owner(records, record)
            if (top.kind, top.namespace, top.name) in names:
                yield record


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


@dataclass(frozen=True)
class Step:
    """A step of a chain: `stage` of the first or last object of `kind`, after the step `since`.

    Steps that are not optional are in order. If a later step was seen, an earlier unseen one
    happened unobserved.
    """

    name: str
    since: str
    kind: str
    stage: str
    pick: Literal["first", "last"] = "first"
    optional: bool = False


DELETIONS = ("deleting", "vmi_deleting")
"""Steps after which an end is that of a deletion: of the workload, and of its VMI."""


def _vmi_chain(kind: str) -> tuple[Step, ...]:
    own = "VirtualMachineInstance"
    between: tuple[Step, ...] = ()
    inner: tuple[Step, ...] = ()
    if kind != own:
        between = (Step("vmi_created", "created", own, "created"),)
        inner = (
            Step("vmi_creation_to_running", "vmi_created", own, "running", "last"),
            Step("vm_ready", "created", kind, "ready", optional=True),
            Step("vmi_deleting", "deleting", own, "deleting", "last", optional=True),
            Step(
                "vmi_deletion_to_succeeded",
                "vmi_deleting",
                own,
                "succeeded",
                "last",
                optional=True,
            ),
            Step("vmi_deletion_to_failed", "vmi_deleting", own, "failed", "last", optional=True),
        )
    start = "vmi_created" if between else "created"
    return (
        Step("created", "submitted", kind, "created"),
        *between,
        Step("pending", start, own, "pending"),
        Step("scheduling", "pending", own, "scheduling"),
        Step("creation_to_scheduling", "created", own, "scheduling"),
        Step("pod_created", start, "Pod", "created"),
        Step("pod_scheduled", "pod_created", "Pod", "scheduled"),
        Step("pod_initialized", "pod_scheduled", "Pod", "initialized", optional=True),
        Step("pod_containers_ready", "pod_scheduled", "Pod", "containers_ready", optional=True),
        Step("pod_ready", "pod_scheduled", "Pod", "ready"),
        Step("scheduled", "scheduling", own, "scheduled"),
        Step("creation_to_scheduled", "created", own, "scheduled"),
        Step("running", "scheduled", own, "running", "last"),
        Step("creation_to_running", "created", own, "running", "last"),
        Step("submission_to_running", "submitted", own, "running", "last"),
        Step("creation_to_failed", "created", own, "failed", optional=True),
        Step("deletion_to_succeeded", "deleting", own, "succeeded", "last", optional=True),
        Step("deletion_to_failed", "deleting", own, "failed", "last", optional=True),
        Step("deletion", "deleting", kind, "gone", optional=True),
        Step("pod_deletion", "deleting", "Pod", "gone", "last", optional=True),
        *inner,
    )


def _runai(kind: str, job: str) -> tuple[Step, ...]:
    return (
        Step("workload_created", "submitted", kind, "created"),
        Step("job_created", "workload_created", job, "created"),
        Step("first_pod_created", "job_created", "Pod", "created"),
        Step("last_pod_created", "job_created", "Pod", "created", "last"),
        Step("pod_group_created", "first_pod_created", "PodGroup", "created"),
        Step("scheduled", "pod_group_created", "Pod", "scheduled", "last"),
        Step("submission_to_scheduled", "submitted", "Pod", "scheduled", "last"),
        Step("evicted", "pod_group_created", "Pod", "evicted", optional=True),
        Step(
            "pvc_requested",
            "pod_group_created",
            "PersistentVolumeClaim",
            "requested",
            optional=True,
        ),
        Step("first_pvc_bound", "pvc_requested", "PersistentVolumeClaim", "bound", optional=True),
        Step("pvc_bound", "pvc_requested", "PersistentVolumeClaim", "bound", "last", optional=True),
        Step("ready", "scheduled", "Pod", "ready", "last"),
    )


def _pods_of(kind: str) -> tuple[Step, ...]:
    return (
        Step("created", "submitted", kind, "created"),
        Step("first_pod_created", "created", "Pod", "created"),
        Step("last_pod_created", "created", "Pod", "created", "last"),
        Step("scheduled", "last_pod_created", "Pod", "scheduled", "last"),
        Step("submission_to_scheduled", "submitted", "Pod", "scheduled", "last"),
        Step("evicted", "created", "Pod", "evicted", optional=True),
        Step("pvc_bound", "created", "PersistentVolumeClaim", "bound", "last", optional=True),
        Step("ready", "scheduled", "Pod", "ready", "last"),
    )


def _ending(kind: str) -> tuple[Step, ...]:
    return (
        Step("succeeded", "ready", kind, "succeeded", optional=True),
        Step("submission_to_succeeded", "submitted", kind, "succeeded", optional=True),
    )


def _any(kind: str) -> tuple[Step, ...]:
    return (
        *_pods_of(kind),
        *_ending(kind),
        Step("workload_running", "created", kind, "running", optional=True),
        Step("workload_ready", "created", kind, "ready", optional=True),
        Step("deletion", "deleting", kind, "gone", optional=True),
    )


def _alone(kind: str) -> tuple[Step, ...]:
    return (
        Step("created", "submitted", kind, "created"),
        Step("deletion", "deleting", kind, "gone", optional=True),
    )


CHAINS: dict[str, tuple[Step, ...]] = {
    "VirtualMachineInstance": _vmi_chain("VirtualMachineInstance"),
    "VirtualMachine": _vmi_chain("VirtualMachine"),
    "VirtualMachineInstanceReplicaSet": _vmi_chain("VirtualMachineInstanceReplicaSet"),
    "TrainingWorkload": _runai("TrainingWorkload", "RunaiJob"),
    "InteractiveWorkload": _runai("InteractiveWorkload", "RunaiJob"),
    "DistributedWorkload": _runai("DistributedWorkload", "PyTorchJob"),
    "Job": (*_pods_of("Job"), *_ending("Job")),
    "PyTorchJob": (*_pods_of("PyTorchJob"), *_ending("PyTorchJob")),
    "ReplicaSet": _pods_of("ReplicaSet"),
    "Pod": (
        Step("created", "submitted", "Pod", "created"),
        Step("released", "created", "Pod", "released", optional=True),
        Step("scheduled", "created", "Pod", "scheduled"),
        Step("submission_to_scheduled", "submitted", "Pod", "scheduled"),
        Step("release_to_scheduled", "released", "Pod", "scheduled", optional=True),
        Step("sandbox", "scheduled", "Pod", "sandbox", optional=True),
        Step("ready", "scheduled", "Pod", "ready"),
        Step("evicted", "created", "Pod", "evicted", optional=True),
        Step("pvc_bound", "created", "PersistentVolumeClaim", "bound", "last", optional=True),
        Step("submission_to_ready", "submitted", "Pod", "ready"),
        *_ending("Pod"),
        Step("deletion", "deleting", "Pod", "gone", optional=True),
    ),
}
for _kind in ("Deployment", "StatefulSet", "DaemonSet", "ReplicationController"):
    CHAINS[_kind] = _pods_of(_kind)
NO_PODS = {
    "ConfigMap",
    "Secret",
    "Service",
    "ServiceAccount",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "EndpointSlice",
}
NO_PODS |= {
    "Ingress",
    "NetworkPolicy",
    "Lease",
    "LimitRange",
    "ResourceQuota",
    "PodDisruptionBudget",
    "Role",
    "RoleBinding",
}
"""Built-in kinds of Kubernetes without pods. Another API group may have a kind of the same name."""
_BETWEEN = {"Deployment": (("apps/v1", "ReplicaSet"),)}
_ANY = (
    ("apps/v1", "Deployment"),
    ("apps/v1", "StatefulSet"),
    ("apps/v1", "ReplicaSet"),
    ("batch/v1", "Job"),
)
"""Kinds that may stand between an unknown kind and its pods."""
_GROUPS = (
    "scheduling.run.ai/v2alpha2",
    "scheduling.run.ai/v1",
)
_JOBS = {"RunaiJob": "run.ai/v1", "PyTorchJob": "kubeflow.org/v1"}


def has_no_pods(api_version: str, kind: str) -> bool:
    """Return whether this is a built-in kind without pods, which is complete once it is created."""
    group = api_version.rpartition("/")[0]
    return kind in NO_PODS and ("." not in group or group.endswith(".k8s.io"))


def chain(api_version: str, kind: str) -> tuple[Step, ...]:
    """Return the steps of a workload kind. An unknown kind is assumed to have pods."""
    known = None if is_foreign(api_version, kind) else CHAINS.get(kind)
    return known or (_alone(kind) if has_no_pods(api_version, kind) else _any(kind))


def kinds_of(api_version: str, kind: str) -> list[tuple[str, str]]:
    """(apiVersion, kind) of all that the chain of a workload looks at, the workload first."""
    known = kind in CHAINS and not is_foreign(api_version, kind)
    between = _BETWEEN.get(kind, () if known or has_no_pods(api_version, kind) else _ANY)
    kinds = [
        (api_version, kind),
        *(pair for pair in between if pair[1] != kind),
    ]  # kinds are distinguished by name
    for step in chain(api_version, kind):
        if step.kind == "PodGroup":
            kinds += [(group, "PodGroup") for group in _GROUPS]
        elif step.kind in ("Pod", "PersistentVolumeClaim"):
            kinds.append(("v1", step.kind))
        elif step.kind != kind:
            kinds.append((_JOBS.get(step.kind, api_version), step.kind))
    return list(dict.fromkeys(kinds))
