"""vmi-steady: a steady number of VMIs of which some are replaced all the time."""

from typing import Any, ClassVar

import orjson
from pydantic import Field

from perfdag.benchmark import Benchmark, Gang, Measurement, Metric, Output, Params
from perfdag.steps.scale import measured, run_vmi
from perfdag.steps.vmi_burst import API_RULES, VmiParams, parse_results, run_scenario
from perfdag.units import Duration, PositiveDuration


class VmiSteadyParams(VmiParams):
    """Ramp up, churn, ramp down."""

    count: int = Field(100, ge=1, description="VMIs that are there")
    churn: int = Field(5, ge=1, description="VMIs replaced at a time")
    pause: Duration = Field(20.0, description="seconds between replacements")
    duration: PositiveDuration = Field(300.0, description="seconds of churn")


class VmiSteady(Benchmark[VmiSteadyParams]):
    """Keep a number of VMIs for some time, delete the oldest and create new ones at a steady pace, then delete all.

    Clock: as of vmi-burst: it starts when a creation is received and stops when Running is, for all VMIs, those of the churn included.
    """

    name = "vmi-steady"
    image = "base"
    api = API_RULES
    Params: ClassVar[type[Params]] = VmiSteadyParams
    metrics = (
        Metric(
            "creation_to_running",
            "s",
            "lower",
            "VMI created to Running (p50, p95, p99 where enough)",
            headline=True,
        ),
        Metric("churn_cycles", "1", "none", "replacements made"),
        Metric("running", "1", "none", "VMIs Running at a moment (coords: seconds from the start)"),
        *measured.METRICS,
    )

    def check(self, params: VmiSteadyParams, shape: Any) -> list[str]:
        """See Benchmark."""
        return params.problems(_ask(params))

    def seconds(self, params: VmiSteadyParams) -> float:
        """The churn, and a guess of 60 ms a VMI for the ramps."""
        return 30.0 + params.duration + 0.12 * params.count

    def least_seconds(self, params: VmiSteadyParams) -> float:
        """The churn."""
        return params.duration

    def limit(self, params: VmiSteadyParams) -> float:
        """See Benchmark: the lock, the primer, the ramps, the churn and a wait for its last replacement."""
        return _ask(params).limit(params.spec())

    def run(self, gang: Gang, params: VmiSteadyParams) -> Output:
        """See Benchmark."""
        return run_scenario(self.name, params, _ask(params), gang.timeout)

    def parse(self, output: Output, params: VmiSteadyParams) -> list[Measurement]:
        """See Benchmark."""
        found = parse_results(output, "creation_to_running")
        for each in orjson.loads(output.texts["results"])["results"]:
            found.append(Measurement("churn_cycles", each["figures"]["churn_cycles"]))
            found += [
                Measurement("running", float(running), coords={"seconds": round(at, 3)})
                for at, running in each["trace"]
            ]
        return found


def _ask(params: VmiSteadyParams) -> run_vmi.Ask:
    return run_vmi.Ask(
        "steady",
        [params.count],
        churn=params.churn,
        pause=params.pause,
        duration=params.duration,
        lock_timeout=params.lock_timeout,
    )
