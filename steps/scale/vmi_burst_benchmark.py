"""vmi-burst: creation, start and deletion of many VMIs, also as a ladder of sizes."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from perfdag.benchmark.contract import Params
from perfdag.steps.scale.figures import measurements
from perfdag.steps.scale.scenarios import run_vmi
from perfdag.steps.scale.scenarios.vmi_params import API_RULES, VmiParams
from perfdag.steps.scale.vmi_benchmark import HEADLINE, VmiBenchmark
from perfdag.units import Duration


class VmiBurstParams(VmiParams):
    """A burst, or several of rising size."""

    retired: ClassVar[Mapping[str, Any]] = {"operation": None, "step": 100}
    scenario: Literal["burst", "ladder"] = "burst"
    counts: list[int] = Field([100], min_length=1, description="VMIs; several for a ladder")
    cooldown: Duration = Field(60.0, description="seconds between the bursts of a ladder")

    def request(self) -> run_vmi.VmiRequest:
        """See VmiParams."""
        return run_vmi.VmiRequest(
            self.scenario,
            self.counts,
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
    api = API_RULES
    Params: ClassVar[type[Params]] = VmiBurstParams
    coords = ("count", *measurements.COORDS)
    metrics = (
        HEADLINE,
        *measurements.METRICS,
    )

    def check(self, params: VmiBurstParams, shape: Any) -> list[str]:
        """See Benchmark."""
        default = VmiBurstParams.model_fields["cooldown"].default
        if params.scenario != "ladder" and params.cooldown != default:
            return [f"{params.scenario} has no cooldown; it goes with scenario: ladder"]
        return super().check(params, shape)

    def seconds(self, params: VmiBurstParams) -> float:
        """Return an estimate: twice 10 s and 60 ms per VMI, and the cool-downs."""
        return 20.0 + 0.12 * sum(params.counts) + params.cooldown * (len(params.counts) - 1)
