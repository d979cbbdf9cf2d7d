"""The chains of stages by kind of workload: which stage of which object follows which."""

from dataclasses import dataclass
from typing import Literal

from perfdag.steps.scale.stages import foreign


@dataclass(frozen=True)
class Step:
    """A stage of a chain: it is `stage` of the first or last object of `kind` below the workload, and follows `since`.

    Steps that are not optional stand in the order in which their stages come: one that was not seen, and a later one was, happened unseen.
    """

    name: str
    since: str
    kind: str
    stage: str
    pick: Literal["first", "last"] = "first"
    optional: bool = False


def _vmi(kind: str) -> tuple[Step, ...]:
    own = "VirtualMachineInstance"
    between = (Step("vmi_created", "created", own, "created"),) if kind != own else ()
    start = "vmi_created" if between else "created"
    return (
        Step("created", "submitted", kind, "created"),
        *between,
        Step("pending", start, own, "pending"),
        Step("scheduling", "pending", own, "scheduling"),
        Step("creation_to_scheduling", "created", own, "scheduling"),
        Step("pod_created", start, "Pod", "created"),
        Step("pod_scheduled", "pod_created", "Pod", "scheduled"),
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
"""Kinds of Kubernetes that bring up no pods; a group of somebody else may have a kind of the same name that does."""
_BETWEEN = {"Deployment": (("apps/v1", "ReplicaSet"),)}
_ANY = (
    ("apps/v1", "Deployment"),
    ("apps/v1", "StatefulSet"),
    ("apps/v1", "ReplicaSet"),
    ("batch/v1", "Job"),
)
"""What may stand between a kind that is unknown here and its pods."""
_GROUPS = (
    "scheduling.run.ai/v2alpha2",
    "scheduling.run.ai/v1",
    "scheduling.volcano.sh/v1beta1",
    "scheduling.x-k8s.io/v1alpha1",
)
_JOBS = {"RunaiJob": "run.ai/v1", "PyTorchJob": "kubeflow.org/v1"}


def without_pods(api_version: str, kind: str) -> bool:
    """Whether it is of a kind of Kubernetes' own that brings up no pods: such a one is there once it is created."""
    group = api_version.rpartition("/")[0]
    return kind in NO_PODS and ("." not in group or group.endswith(".k8s.io"))


def chain(api_version: str, kind: str) -> tuple[Step, ...]:
    """The steps of a workload kind; a kind unknown here is taken for one that brings up pods."""
    known = None if foreign(api_version, kind) else CHAINS.get(kind)
    return known or (_alone(kind) if without_pods(api_version, kind) else _any(kind))


def kinds_of(api_version: str, kind: str) -> list[tuple[str, str]]:
    """(apiVersion, kind) of all that the chain of a workload looks at, the workload first."""
    known = kind in CHAINS and not foreign(api_version, kind)
    between = _BETWEEN.get(kind, () if known or without_pods(api_version, kind) else _ANY)
    found = [
        (api_version, kind),
        *(each for each in between if each[1] != kind),
    ]  # kinds are told apart by name alone
    for step in chain(api_version, kind):
        if step.kind == "PodGroup":
            found += [(group, "PodGroup") for group in _GROUPS]
        elif step.kind in ("Pod", "PersistentVolumeClaim"):
            found.append(("v1", step.kind))
        elif step.kind != kind:
            found.append((_JOBS.get(step.kind, api_version), step.kind))
    return list(dict.fromkeys(found))
