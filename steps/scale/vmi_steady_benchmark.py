"""vmi-steady: a constant number of VMIs with continuous replacement."""

from typing import ClassVar

import orjson
from pydantic import Field

from perfdag.benchmark.contract import Metric, Output, Params
from perfdag.outcome import Measurement
from perfdag.steps.scale.figures.measurements import COORDS, METRICS
from perfdag.steps.scale.figures.names import VMIS
from perfdag.steps.scale.scenarios import run_vmi
from perfdag.steps.scale.scenarios.vmi_params import API_RULES, VmiParams
from perfdag.steps.scale.vmi_benchmark import HEADLINE, VmiBenchmark
from perfdag.units import Duration, PositiveDuration


class VmiSteadyParams(VmiParams):
    """Ramp up, churn, ramp down."""

    count: int = Field(100, ge=1, description="VMIs that are there")
    churn: int = Field(5, ge=1, description="VMIs replaced at a time")
    pause: Duration = Field(20.0, description="seconds between replacements")
    duration: PositiveDuration = Field(300.0, description="seconds of churn")

    def request(self) -> run_vmi.VmiRequest:
        """See VmiParams."""
        return run_vmi.VmiRequest(
            "steady",
            [self.count],
            churn=self.churn,
            pause=self.pause,
            duration=self.duration,
            lock_timeout=self.lock_timeout,
        )


class VmiSteady(VmiBenchmark[VmiSteadyParams]):
    """Keep a number of VMIs, replace the oldest at a steady pace, then delete all.

    Clock: as in vmi-burst, for all VMIs including replacements. It starts when the creation is
    received and stops when the phase Running is.
    """

    name = "vmi-steady"
    api = API_RULES
    Params: ClassVar[type[Params]] = VmiSteadyParams
    coords = ("count", "seconds", *COORDS)
    metrics = (
        HEADLINE,
        Metric("churn_cycles", "1", "none", "replacements made"),
        Metric("churn_throughput", "1/s", "higher", "VMs replaced a second, without the pauses"),
        Metric("stuck", "1", "lower", "VMs that did not run within a minute of the churn"),
        Metric("running", "1", "none", "VMIs Running at a moment (coords: seconds from the start)"),
        *METRICS,
    )

    def seconds(self, params: VmiSteadyParams) -> float:
        """Return the churn, and an estimate of 60 ms per VMI for the ramps."""
        return 30.0 + params.duration + 0.12 * params.count

    def least_seconds(self, params: VmiSteadyParams) -> float:
        """Return the seconds of churn."""
        return params.duration

    def parse(self, output: Output, params: VmiSteadyParams) -> list[Measurement]:
        """See Benchmark."""
        measurements = super().parse(output, params)
        for run in orjson.loads(output.texts["results"])["results"]:
            own = {name: run["figures"].get(name) for name in VMIS["steady"]}
            measurements += [
                Measurement(name, value) for name, value in own.items() if value is not None
            ]
            measurements += [
                Measurement("running", float(running), coords={"seconds": round(at, 3)})
                for at, running in run["trace"]
            ]
        return measurements
