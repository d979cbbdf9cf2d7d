"""vmi-burst: creation, start and deletion of many VMIs; vmi-steady: a constant number of them."""

import time
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

import orjson
from pydantic import AfterValidator, Field

from perfdag import signals
from perfdag.benchmark.contract import Benchmark, Gang, Metric, Output, Params, Rights, broken
from perfdag.kube.client import Kube, KubeError, Prometheus
from perfdag.outcome import Failed, Invalid, Measurement
from perfdag.shape import Shape
from perfdag.steps.scale.cluster import rights
from perfdag.steps.scale.figures import measurements
from perfdag.steps.scale.figures.gates import VMIS, check_gates, parse_gate, with_slo
from perfdag.steps.scale.figures.measurements import (
    COORDS,
    METRICS,
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
from perfdag.steps.scale.figures.rows import Row, Summary
from perfdag.steps.scale.measure.generator import Schedule, connections
from perfdag.steps.scale.model.templates import inlined
from perfdag.steps.scale.runai.run_file import kept_journal
from perfdag.steps.scale.scenarios import vmi
from perfdag.steps.scale.scenarios.session import Result
from perfdag.units import Duration, PositiveDuration, plural

API_RULES = Rights(
    named=(
        *rights.OWN_NAMESPACE,
        {
            "apiGroups": ["kubevirt.io", "instancetype.kubevirt.io"],
            "resources": ["*"],
            "verbs": ["list", "watch", "create", "delete"],
        },
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    ),
    default=rights.PERFORMANCE_RUN,
    cluster=(
        *rights.WHOLE_CLUSTER,
        {
            "apiGroups": ["kubevirt.io"],
            "resources": ["virtualmachineinstances", "kubevirts"],
            "verbs": ["list"],
        },
    ),
)


class VmiParams(Params):
    """The parameters that VMI scenarios share."""

    template: Annotated[str, AfterValidator(inlined)] = Field(
        "vmi", description="vmi, vm, vmirs, or a YAML file (its text is kept in the plan)"
    )
    variables: dict[str, str | int | float] = Field(
        {}, description="placeholders of a template of your own"
    )
    replicas: int = Field(1, ge=1, description="VMIs of one object (template vmirs)")
    namespace: str | list[str] = Field(
        "perfdag-vmi",
        description="namespace of the VMIs, or several in turn; missing ones are created",
    )
    parallel: int = Field(20, ge=1, le=vmi.MOST, description="creations in flight")
    arrival: Literal["closed", "constant", "poisson", "burst", "ramp"] = Field(
        "closed", description="closed (as fast as possible), constant, poisson, burst or ramp"
    )
    rate: float = Field(0.0, ge=0, description="creations a second of an open loop")
    seed: int = Field(0, ge=0, description="seed of Poisson arrivals")
    per_node: int = Field(200, ge=1, description="VMIs a node at most, checked before starting")
    primer: bool = Field(True, description="one VMI before the clock starts")
    timeout: PositiveDuration = Field(
        900.0, description="seconds for all to run, and for all to be gone"
    )
    lock_timeout: Duration = Field(
        3600.0, description="seconds to wait for another performance run to end"
    )
    gates: Annotated[list[str], AfterValidator(check_gates)] = Field(
        [],
        description="METRIC < VALUE, or METRIC < RATIO * METRIC; replaces an equal metric of "
        "`api_gates`",
    )
    api_gates: bool = Field(True, description="api_p99 < 1 and api_list_p99 < 30 beside `gates`")
    prometheus: str | None = Field(None, description="URL of a Prometheus that scrapes KubeVirt")
    prometheus_token_file: str | None = Field(None, description="file with a bearer token for it")
    prometheus_ca_file: str | None = Field(
        None, description="file with the certificate authority of its TLS"
    )

    def spec(self) -> vmi.Spec:
        """Convert to a spec. Raises ValueError for an invalid combination."""
        vmi.load_template(self.template, "check", self.replicas, self.variables)
        own = [parse_gate(text) for text in self.gates]
        return vmi.Spec(
            template=self.template,
            namespaces=[self.namespace] if isinstance(self.namespace, str) else self.namespace,
            schedule=Schedule(self.arrival, self.rate, self.parallel, seed=self.seed),
            parallel=self.parallel,
            replicas=self.replicas,
            per_node=self.per_node,
            primer=self.primer,
            timeout=self.timeout,
            variables=dict(self.variables),
            gates=with_slo(own) if self.api_gates else own,
            prometheus=Prometheus(
                self.prometheus, self.prometheus_token_file, self.prometheus_ca_file
            )
            if self.prometheus
            else None,
        )

    @abstractmethod
    def request(self) -> vmi.VmiRequest:
        """Return the scenario, and its figures."""


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
            vmi.check(params.spec(), params.request())
        except ValueError as error:
            return [str(error)]
        return []

    def limit(self, params: V) -> float:
        """Return the sum of the lock, the primers, the schedules and all waits."""
        return params.request().limit(params.spec())

    def measure(self, gang: Gang, params: V) -> Output:
        """Measure the scenario. Later stages than the gang's timeout are censored.

        Raises Skip (no cluster, no KubeVirt), Failed (invalid parameters), Infrastructure.
        """
        try:
            spec = params.spec()
            spec.deadline, spec.log = time.monotonic() + gang.timeout, vmi.log
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

    def run(self, gang: Gang, params: V) -> list[Measurement]:
        gang.output = self.measure(gang, params)
        return self.parse(gang.output, params)

    def parse(self, output: Output, params: V) -> list[Measurement]:
        """See Benchmark and parse_results."""
        return parse_results(output)


async def measure_vmis(spec: vmi.Spec, request: vmi.VmiRequest) -> list[Result]:
    """Measure with connections enough for all creations in flight."""
    async with Kube(connections=connections(spec.parallel)) as kube:
        return await vmi.measure(kube, spec, request)


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


class VmiBurstParams(VmiParams):
    """A burst, or several of rising size."""

    retired: ClassVar[Mapping[str, Any]] = {"operation": None, "step": 100}
    scenario: Literal["burst", "ladder"] = "burst"
    counts: list[int] = Field([100], min_length=1, description="VMIs; several for a ladder")
    cooldown: Duration = Field(60.0, description="seconds between the bursts of a ladder")

    def request(self) -> vmi.VmiRequest:
        """See VmiParams."""
        return vmi.VmiRequest(
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


class VmiSteadyParams(VmiParams):
    """Ramp up, churn, ramp down."""

    count: int = Field(100, ge=1, description="VMIs that are there")
    churn: int = Field(5, ge=1, description="VMIs replaced at a time")
    pause: Duration = Field(20.0, description="seconds between replacements")
    duration: PositiveDuration = Field(300.0, description="seconds of churn")

    def request(self) -> vmi.VmiRequest:
        """See VmiParams."""
        return vmi.VmiRequest(
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
