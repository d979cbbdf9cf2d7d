"""vmi-burst: creation, start and deletion of many VMIs, also as a ladder or capacity search."""

from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import Field

from perfdag.benchmark.contract import Metric, Params
from perfdag.steps.scale.figures import measurements
from perfdag.steps.scale.model.operations import OPERATIONS, Name
from perfdag.steps.scale.scenarios import run_vmi
from perfdag.steps.scale.scenarios.vmi_params import API_RULES, VmiParams
from perfdag.steps.scale.vmi_benchmark import HEADLINE, VmiBenchmark
from perfdag.units import Duration

OPERATION_RULES = (
    {
        "apiGroups": ["snapshot.kubevirt.io"],
        "resources": ["virtualmachinesnapshots"],
        "verbs": ["list", "watch", "create", "delete"],
    },
    {
        "apiGroups": ["subresources.kubevirt.io"],
        "resources": sorted(
            f"{operation.subresource}/{operation.name}"
            for operation in OPERATIONS.values()
            if operation.subresource
        ),
        "verbs": ["update"],
    },
)


class VmiBurstParams(VmiParams):
    """A burst, several of rising size, or growth in place until a gate fails."""

    scenario: Literal["burst", "ladder", "capacity"] = "burst"
    counts: list[int] = Field(
        [100], min_length=1, description="VMIs; several for a ladder; the limit for capacity"
    )
    cooldown: Duration = Field(60.0, description="seconds between the bursts of a ladder")
    operation: Name | None = Field(
        None, description="what is then done with all VMs at once (template vm), stage by stage"
    )
    step: int = Field(100, ge=1, description="capacity: objects that each size adds")

    def request(self) -> run_vmi.VmiRequest:
        """See VmiParams."""
        return run_vmi.VmiRequest(
            self.scenario,
            self.counts,
            step=self.step,
            cooldown=self.cooldown,
            lock_timeout=self.lock_timeout,
        )


class VmiBurst(VmiBenchmark[VmiBurstParams]):
    """Create many VMIs, wait until all run, delete them, wait until all are gone.

    The headline is `creation_to_running`: the time from the creation of a VMI until it runs, with
    the percentiles that have enough samples. VMIs that never run count as infinitely long. On
    simulated nodes only the control plane is measured.

    Clock: the watch of this process. It starts when the creation of the object is received and
    stops when its phase Running is. The lag of the watch is measured and is the error bar.
    """

    name = "vmi-burst"
    api = replace(API_RULES, named=(*API_RULES.named, *OPERATION_RULES))
    Params: ClassVar[type[Params]] = VmiBurstParams
    coords = ("count", *measurements.COORDS)
    metrics = (
        HEADLINE,
        Metric("operation_ratio", "1", "higher", "VMs that completed the operation"),
        Metric("capacity", "1", "higher", "VMIs that may exist while a burst passes every gate"),
        *measurements.METRICS,
    )

    def check(self, params: VmiBurstParams, shape: Any) -> list[str]:
        """See Benchmark."""
        for name, scenario in (("cooldown", "ladder"), ("step", "capacity")):
            default = VmiBurstParams.model_fields[name].default
            if params.scenario != scenario and getattr(params, name) != default:
                return [f"{params.scenario} has no {name}; it goes with scenario: {scenario}"]
        return super().check(params, shape)

    def seconds(self, params: VmiBurstParams) -> float:
        """Return an estimate: twice 10 s and 60 ms per VMI, and the cool-downs."""
        return 20.0 + 0.12 * sum(params.counts) + params.cooldown * (len(params.counts) - 1)
