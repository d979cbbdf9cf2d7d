"""The chain of stages of every kind of workload."""

from dataclasses import dataclass
from typing import Literal

from perfdag.steps.scale.model.stages import is_foreign


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


def _vmi(kind: str) -> tuple[Step, ...]:
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
    "VirtualMachineInstance": _vmi("VirtualMachineInstance"),
    "VirtualMachine": _vmi("VirtualMachine"),
    "VirtualMachineInstanceReplicaSet": _vmi("VirtualMachineInstanceReplicaSet"),
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
    "scheduling.x-k8s.io/v1alpha1",
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
