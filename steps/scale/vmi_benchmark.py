"""The base of the benchmarks of VMIs: the run, and its measurements."""

import time
from contextlib import nullcontext
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

import orjson

from perfdag import signals
from perfdag.benchmark.contract import Benchmark, Gang, Metric, Output
from perfdag.benchmark.rules import broken
from perfdag.kube.client import Kube, KubeError
from perfdag.outcome import Failed, Invalid, Measurement
from perfdag.shape import Shape
from perfdag.steps.scale.figures.measurements import (
    call_measurements,
    failure_text,
    figure_measurements,
    gate_measurements,
    message_measurements,
    object_measurements,
    percentile_measurements,
    sample_error,
    stage_measurements,
    tool,
)
from perfdag.steps.scale.figures.percentiles import Summary
from perfdag.steps.scale.figures.rows import Row
from perfdag.steps.scale.measure.generator import connections
from perfdag.steps.scale.runai.kept_journal import kept_journal
from perfdag.steps.scale.scenarios import run_vmi, vmi_spec
from perfdag.steps.scale.scenarios.base import Result
from perfdag.steps.scale.scenarios.vmi_params import API_RULES, VmiParams
from perfdag.units import plural

V = TypeVar("V", bound=VmiParams)
HEADLINE = Metric(
    "creation_to_running",
    "s",
    "lower",
    "VMI created to Running (p50, p95, p99 where enough)",
    headline=True,
)


class VmiBenchmark(Benchmark[V], Generic[V]):
    """The base of both benchmarks of VMIs: checks, the run and the measurements."""

    image: ClassVar[str] = "base"
    verdict: ClassVar[str] = "every gate holds; missing data fails a gate"

    def check(self, params: V, shape: Shape) -> list[str]:
        """See Benchmark."""
        try:
            run_vmi.check(params.spec(), params.request())
        except ValueError as error:
            return [str(error)]
        return []

    def limit(self, params: V) -> float:
        """Return the sum of the lock, the primers, the schedules and all waits."""
        return params.request().limit(params.spec())

    def run(self, gang: Gang, params: V) -> Output:
        """Measure the scenario. Later stages than the gang's timeout are censored.

        Raises Skip (no cluster, no KubeVirt), Failed (invalid parameters), Infrastructure.
        """
        try:
            spec = params.spec()
            spec.deadline, spec.log = time.monotonic() + gang.timeout, run_vmi.log
            folder = Path(gang.scratch) / "journal"
            with kept_journal(spec, folder, gang.journal) if gang.journal else nullcontext():
                results = signals.run(measure_vmis(spec, params.request()))
        except ValueError as error:
            raise Failed(str(error)) from None
        except KubeError as error:
            raise sample_error(error, self.name, API_RULES) from None
        simulated = any(result.facts["simulated"] for result in results)
        facts = {"simulated": simulated, "runs": [result.facts for result in results]}
        texts = {"results": orjson.dumps({"results": results}).decode()}
        version = results[-1].facts["kubevirt_version"]
        return Output(
            texts,
            tool=tool(f"KubeVirt {version}" if version else "perfdag", simulated),
            facts=facts,
        )

    def parse(self, output: Output, params: V) -> list[Measurement]:
        """See Benchmark and parse_results."""
        return parse_results(output)


async def measure_vmis(spec: vmi_spec.Spec, request: run_vmi.VmiRequest) -> list[Result]:
    """Measure with connections enough for all creations in flight."""
    async with Kube(connections=connections(spec.parallel)) as kube:
        return await run_vmi.measure(kube, spec, request)


def parse_results(output: Output) -> list[Measurement]:
    """Convert all results to measurements.

    Raises Invalid, with the measurements, if VMIs failed or were left behind, or a size was not
    measured. It does so too if the schedule was not held, or another run disturbed this one.
    """
    raw = orjson.loads(output.texts["results"])
    measurements: list[Measurement] = []
    notes: list[str] = []
    rows: list[Row] = []
    late: list[str] = []
    for run in raw["results"]:
        run_rows = [Row(**row) for row in run.pop("rows")]
        stages = [Summary(**stage) for stage in run["stages"]]
        coords, figures = {"count": run["count"]}, run["figures"]
        measurements += percentile_measurements(stages, HEADLINE.name, coords)
        vms = run["count"] * (run["facts"].get("members") or 1)
        measurements += stage_measurements(stages, coords) + figure_measurements(
            figures, coords, vms
        )
        measurements += call_measurements(run["calls"], coords)
        measurements += object_measurements(run_rows, coords)
        measurements += gate_measurements(run["verdicts"], coords)
        measurements += message_measurements(run_rows, coords)
        notes += run["facts"]["notes"]
        rows += run_rows
        if figures["left_behind"]:
            notes.append(f"left behind: {plural(int(figures['left_behind']), 'object')}")
        if not run["error"] and (figures["success_ratio"] or 0) < 1:
            notes.append(f"{1 - (figures['success_ratio'] or 0):.1%} of {run['count']} never ran")
        if any(batch["held"] is False for batch in run["facts"]["generator"]):
            late.append(str(run["count"]))
    failures = failure_text(rows, notes)
    disturbed = next((run["disturbed"] for run in raw["results"] if run["disturbed"]), "")
    incomplete = any(
        (run["figures"]["success_ratio"] or 0) < 1 or run["figures"]["left_behind"]
        for run in raw["results"]
    )
    reasons = broken(
        (disturbed, f"{disturbed}; {failures}".rstrip("; ")),
        (
            not any(item.metric == HEADLINE.name for item in measurements),
            f"no VMI ran: {failures}",
        ),
        # kept, but not comparable with a run where all ran
        (incomplete, failures),
        (
            late,
            f"the open loop did not hold its rate of {', '.join(late)} VMIs; {failures}".rstrip(
                "; "
            ),
        ),
    )
    if reasons:
        raise Invalid(reasons[0], output.texts, measurements)
    output.facts["notes"] = failures
    return measurements
