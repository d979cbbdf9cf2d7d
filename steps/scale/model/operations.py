"""Operations on running VMs: what each asks of KubeVirt, and its chain of stages.

Source: KubeVirt api/core/v1 types.go (VirtualMachineInstanceMigrationPhase) and the subresources
of virt-api.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from perfdag.steps.scale.model.chains import DELETIONS, Step, chain
from perfdag.steps.scale.model.stages import VMI

Name = Literal["start", "stop", "restart", "migrate", "pause", "snapshot"]
MIGRATION, SNAPSHOT = "VirtualMachineInstanceMigration", "VirtualMachineSnapshot"
VM = "VirtualMachine"
OLD = "Old"
"""Prefix of the kinds of objects that were there before the operation."""
SUBRESOURCES = "/apis/subresources.kubevirt.io/v1"


@dataclass(frozen=True)
class Operation:
    """An operation: its steps, and the stage of a kind at which a VM has completed it.

    `subresource` is the resource of virt-api that takes it; otherwise an object asks for it.
    """

    name: Name
    steps: tuple[Step, ...]
    kind: str
    stage: str
    subresource: str = ""

    @property
    def request_kind(self) -> tuple[str, str] | None:
        """ApiVersion and kind of the object that asks for the operation, if one does."""
        versions = {MIGRATION: "kubevirt.io/v1", SNAPSHOT: "snapshot.kubevirt.io/v1beta1"}
        return (versions[self.kind], self.kind) if self.kind in versions else None

    def object(self, name: str, labels: dict[str, str]) -> dict[str, Any]:
        """Return the object that asks for the operation on the VM `name`."""
        source = {"apiGroup": "kubevirt.io", "kind": VM, "name": name}
        spec = {"vmiName": name} if self.kind == MIGRATION else {"source": source}
        version, kind = self.request_kind or ("", "")
        metadata = {"name": f"{name}-{self.name}", "labels": labels}
        return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def _prefixed(name: str, steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Give the steps the operation's name; those that start at the request keep their start."""
    return tuple(
        replace(
            step,
            name=f"{name}_{step.name}",
            since=step.since if step.since == "submitted" else f"{name}_{step.since}",
        )
        for step in steps
    )


_START = tuple(step for step in chain("kubevirt.io/v1", VMI) if step.since not in DELETIONS)
_STOP = (
    Step("deleting", "submitted", OLD + VMI, "deleting"),
    Step("succeeded", "deleting", OLD + VMI, "succeeded", optional=True),
    Step("failed", "deleting", OLD + VMI, "failed", optional=True),
    Step("pods_gone", "deleting", OLD + "Pod", "gone", "last"),
    Step("gone", "deleting", OLD + VMI, "gone"),
    Step("submission_to_gone", "submitted", OLD + VMI, "gone"),
)
_PHASES = ("pending", "scheduling", "scheduled", "preparingtarget", "targetready", "running")
_MIGRATE = (
    Step("created", "submitted", MIGRATION, "created"),
    Step("pod_created", "created", "Pod", "created"),
    Step("pod_scheduled", "pod_created", "Pod", "scheduled"),
    Step("pod_ready", "pod_scheduled", "Pod", "ready"),
    *(Step(phase, "created", MIGRATION, phase) for phase in _PHASES),
    Step("failed", "created", MIGRATION, "failed", optional=True),
    Step("submission_to_succeeded", "submitted", MIGRATION, "succeeded"),
)
_SNAPSHOT = (
    Step("created", "submitted", SNAPSHOT, "created"),
    Step("inprogress", "created", SNAPSHOT, "inprogress"),
    Step("failed", "created", SNAPSHOT, "failed", optional=True),
    Step("submission_to_ready", "submitted", SNAPSHOT, "ready"),
)
_PAUSE = (Step("submission_to_paused", "submitted", OLD + VMI, "paused"),)
_OF: dict[Name, tuple[tuple[Step, ...], str, str, str]] = {
    "start": (_START, VMI, "running", "virtualmachines"),
    "stop": (_STOP, OLD + VMI, "gone", "virtualmachines"),
    "restart": (_STOP + _START, VMI, "running", "virtualmachines"),
    "migrate": (_MIGRATE, MIGRATION, "succeeded", ""),
    "pause": (_PAUSE, OLD + VMI, "paused", "virtualmachineinstances"),
    "snapshot": (_SNAPSHOT, SNAPSHOT, "ready", ""),
}
OPERATIONS = {
    name: Operation(name, _prefixed(name, steps), kind, stage, resource)
    for name, (steps, kind, stage, resource) in _OF.items()
}
