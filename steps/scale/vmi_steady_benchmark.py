"""vmi-steady: a constant number of VMIs with continuous replacement."""

from typing import Any, ClassVar

import orjson
from pydantic import Field

from perfdag.benchmark.contract import Benchmark, Gang, Metric, Output, Params
from perfdag.outcome import Measurement
from perfdag.steps.scale.figures.measurements import COORDS, METRICS
from perfdag.steps.scale.figures.names import VMIS
from perfdag.steps.scale.runai.kept_journal import kept_journal
from perfdag.steps.scale.scenarios import run_vmi
from perfdag.steps.scale.scenarios.vmi_benchmark import (
    API_RULES,
    VmiParams,
    parse_results,
    run_scenario,
)
from perfdag.units import Duration, PositiveDuration


class VmiSteadyParams(VmiParams):
    """Ramp up, churn, ramp down."""

    count: int = Field(100, ge=1, description="VMIs that are there")
    churn: int = Field(5, ge=1, description="VMIs replaced at a time")
    pause: Duration = Field(20.0, description="seconds between replacements")
    duration: PositiveDuration = Field(300.0, description="seconds of churn")


class VmiSteady(Benchmark[VmiSteadyParams]):
    """Keep a number of VMIs, replace the oldest at a steady pace, then delete all.

    Clock: as in vmi-burst, for all VMIs including replacements. It starts when the creation is
    received and stops when the phase Running is.
    """

    name = "vmi-steady"
    image = "base"
    api = API_RULES
    verdict = "every gate holds; missing data fails a gate"
    Params: ClassVar[type[Params]] = VmiSteadyParams
    coords = ("count", "seconds", *COORDS)
    metrics = (
        Metric(
            "creation_to_running",
            "s",
            "lower",
            "VMI created to Running (p50, p95, p99 where enough)",
            headline=True,
        ),
        Metric("churn_cycles", "1", "none", "replacements made"),
        Metric("churn_throughput", "1/s", "higher", "VMs replaced a second, without the pauses"),
        Metric("stuck", "1", "lower", "VMs that did not run within a minute of the churn"),
        Metric("running", "1", "none", "VMIs Running at a moment (coords: seconds from the start)"),
        *METRICS,
    )

    def check(self, params: VmiSteadyParams, shape: Any) -> list[str]:
        """See Benchmark."""
        return params.problems(_request(params))

    def seconds(self, params: VmiSteadyParams) -> float:
        """Return the churn, and an estimate of 60 ms per VMI for the ramps."""
        return 30.0 + params.duration + 0.12 * params.count

    def least_seconds(self, params: VmiSteadyParams) -> float:
        """Return the seconds of churn."""
        return params.duration

    def limit(self, params: VmiSteadyParams) -> float:
        """Return the sum of the lock, the primer, the ramps, the churn and the last replacement."""
        return _request(params).limit(params.spec())

    def run(self, gang: Gang, params: VmiSteadyParams) -> Output:
        """See Benchmark."""
        return run_scenario(self.name, params, _request(params), gang, kept_journal)

    def parse(self, output: Output, params: VmiSteadyParams) -> list[Measurement]:
        """See Benchmark."""
        measurements = parse_results(output, "creation_to_running")
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


def _request(params: VmiSteadyParams) -> run_vmi.VmiRequest:
    return run_vmi.VmiRequest(
        "steady",
        [params.count],
        churn=params.churn,
        pause=params.pause,
        duration=params.duration,
        lock_timeout=params.lock_timeout,
    )
