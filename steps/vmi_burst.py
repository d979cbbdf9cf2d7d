"""vmi-burst: creation, running and deletion of many VMIs at once (KubeVirt's density test), also as a ladder or a capacity search."""

import asyncio
from dataclasses import asdict
from typing import Any, ClassVar, Literal

import orjson
from pydantic import Field, field_validator

from perfdag.benchmark import Benchmark, Failed, Gang, Invalid, Measurement, Metric, Output, Params
from perfdag.kube import Kube, KubeError
from perfdag.steps.scale import measured, run_vmi, vmi
from perfdag.steps.scale.gates import parse as parse_gate
from perfdag.steps.scale.rows import Row
from perfdag.steps.scale.schedule import Arrival, Schedule
from perfdag.steps.scale.summary import Summary
from perfdag.steps.scale.templates import TemplateError
from perfdag.units import Duration, PositiveDuration

API_RULES: tuple[dict[str, Any], ...] = (
    {"apiGroups": ["kubevirt.io"], "resources": ["*"], "verbs": ["get", "list", "watch", "create", "delete"]},
    {"apiGroups": [""], "resources": ["pods", "events", "nodes"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get", "create", "delete"]},
    {"apiGroups": [""], "resources": ["serviceaccounts"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch", "create", "patch", "delete"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update", "patch", "delete"]},
    {"nonResourceURLs": ["/metrics", "/version"], "verbs": ["get"]},
)


class VmiParams(Params):
    """What VMI scenarios share."""

    template: str = Field("vmi", description="vmi, vm, vmirs, or a YAML file")
    replicas: int = Field(1, ge=1, description="VMIs of one object (template vmirs)")
    namespace: str = Field("perfdag-vmi", description="namespace of the VMIs, made where it is missing")
    parallel: int = Field(20, ge=1, le=1000, description="creations in flight")
    arrival: Arrival = Field("closed", description="closed (as fast as it goes), constant, poisson, burst or ramp")
    rate: float = Field(0.0, ge=0, description="creations a second of an open loop")
    per_node: int = Field(200, ge=1, description="VMIs a node at most, checked before starting")
    primer: bool = Field(True, description="one VMI before the clock starts")
    timeout: PositiveDuration = Field(900.0, description="seconds for all to run, and for all to be gone")
    lock_timeout: Duration = Field(3600.0, description="seconds to wait for another performance run to end")
    gates: list[str] = Field(["api_p99 < 1"], description="METRIC < VALUE, or METRIC < RATIO * METRIC")
    prometheus: str | None = Field(None, description="URL of a Prometheus that scrapes KubeVirt")

    @field_validator("gates")
    @classmethod
    def _readable(cls, gates: list[str]) -> list[str]:
        for text in gates:
            parse_gate(text)
        return gates


class VmiBurstParams(VmiParams):
    """A burst, several of rising size, or growth until a gate fails."""

    scenario: Literal["burst", "ladder", "capacity"] = "burst"
    counts: list[int] = Field([100], min_length=1, description="VMIs; several for a ladder; the limit for capacity")
    cooldown: Duration = Field(60.0, description="seconds between the bursts of a ladder")
    step: int = Field(100, ge=1, description="capacity: VMIs more each time")


class VmiBurst(Benchmark[VmiBurstParams]):
    """Create many VMIs, wait until all run, delete them, wait until all are gone.

    `creation_to_running` is the headline: how long a VMI takes from being there to running, with percentiles where there are enough.
    VMIs that never run count as infinitely long. On simulated nodes the figures are of the control plane alone.

    Clock: the watch of this process. It starts when the object's creation is received and stops when its phase Running is; the lag
    of the watch is measured beside it and is its error bar.
    """

    name = "vmi-burst"
    image = "base"
    api = API_RULES
    Params: ClassVar[type[Params]] = VmiBurstParams
    metrics = (
        Metric("creation_to_running", "s", "lower", "VMI created to Running (p50, p95, p99 where enough)", headline=True),
        Metric("capacity", "1", "higher", "VMIs of the largest burst that passed every gate"),
        *measured.METRICS,
    )

    def check(self, params: VmiBurstParams, shape: Any) -> list[str]:
        """See Benchmark."""
        if params.scenario == "burst" and len(params.counts) > 1:
            return ["several counts are a ladder; set scenario: ladder"]
        if params.arrival in ("constant", "poisson", "burst", "ramp") and not params.rate > 0:
            return [f"arrival {params.arrival} needs a rate above 0 objects/s"]
        return []

    def seconds(self, params: VmiBurstParams) -> float:
        """A guess of 10 s and 60 ms a VMI, twice, and the cool-downs."""
        return 20.0 + 0.12 * sum(params.counts) + params.cooldown * (len(params.counts) - 1)

    def run(self, gang: Gang, params: VmiBurstParams) -> Output:
        """See Benchmark."""
        ask = run_vmi.Ask(params.scenario, params.counts, step=params.step, cooldown=params.cooldown)
        return run_scenario(self.name, params, ask, gang.timeout)

    def parse(self, output: Output, params: VmiBurstParams) -> list[Measurement]:
        """See Benchmark."""
        return parse_results(output, "creation_to_running")


def run_scenario(name: str, params: VmiParams, ask: run_vmi.Ask, timeout: float) -> Output:
    """Measure for benchmark `name` on the cluster we reach, for at most `timeout` seconds.

    Raises Skip (no cluster, no KubeVirt), Failed (a bad request), Infrastructure."""
    ask.lock_timeout, ask.prometheus = params.lock_timeout, params.prometheus
    try:
        spec = vmi.Spec(
            template=params.template,
            namespaces=[params.namespace],
            schedule=Schedule(params.arrival, params.rate, params.parallel),
            parallel=params.parallel,
            replicas=params.replicas,
            per_node=params.per_node,
            primer=params.primer,
            timeout=params.timeout,
            gates=[parse_gate(text) for text in params.gates],
        )
        outcome = asyncio.run(asyncio.wait_for(_measure(spec, ask), timeout))
    except TimeoutError:
        raise Failed(f"did not end in {timeout:g} s; what it made was deleted") from None
    except (TemplateError, ValueError) as error:
        raise Failed(str(error)) from None
    except KubeError as error:
        raise measured.explained(error, name) from None
    results = [asdict(each) for each in outcome.results]
    simulated = any(each.facts["simulated"] for each in outcome.results)
    facts = {"simulated": simulated, "runs": [each.facts for each in outcome.results]}
    texts = {"results": orjson.dumps({"capacity": outcome.capacity, "results": results}).decode()}
    return Output(texts, tool="perfdag", facts=facts)


async def _measure(spec: vmi.Spec, ask: run_vmi.Ask) -> run_vmi.Outcome:
    async with Kube() as kube:
        return await run_vmi.measure(kube, spec, ask)


def parse_results(output: Output, headline: str) -> list[Measurement]:
    """Measurements of all results.

    Raises Invalid where VMIs never ran, objects were left behind or an open loop was not held; Failed where none ran.
    """
    raw = orjson.loads(output.texts["results"])
    found: list[Measurement] = []
    notes: list[str] = []
    rows: list[Row] = []
    for each in raw["results"]:
        each_rows = [Row(**row) for row in each["rows"]]
        stages = [Summary(**stage) for stage in each["stages"]]
        coords = {"count": each["count"]}
        found += _headline(stages, headline, coords)
        found += measured.of_stages(stages, coords) + measured.of_figures(each["figures"], coords, each["count"])
        found += measured.of_calls(each["calls"], coords) + measured.of_objects(each_rows, coords)
        found += measured.of_gates(each["verdicts"], coords)
        notes += each["facts"]["notes"]
        rows += each_rows
        if each["figures"]["left_behind"]:
            notes.append(f"{each['figures']['left_behind']:g} objects were left behind")
        if (each["figures"]["success_ratio"] or 0) < 1:
            notes.append(f"{1 - (each['figures']['success_ratio'] or 0):.1%} of {each['count']} never ran")
        if any(made["held"] is False for made in each["facts"]["generator"]):
            raise Invalid("the open loop did not hold its rate", output.texts, found)
    if raw["capacity"] is not None:
        found.append(Measurement("capacity", float(raw["capacity"])))
    if not any(each.metric == headline for each in found) and raw["capacity"] is None:
        raise Failed(f"no VMI ran: {measured.failure_text(rows, notes)}", output.texts)
    bad = [each for each in raw["results"] if (each["figures"]["success_ratio"] or 0) < 1 or each["figures"]["left_behind"]]
    if bad and raw["capacity"] is None:  # kept, but not comparable with a run where all ran
        raise Invalid(measured.failure_text(rows, notes), output.texts, found)
    output.facts["notes"] = measured.failure_text(rows, notes)
    return found


def _headline(stages: list[Summary], headline: str, coords: dict[str, Any]) -> list[Measurement]:
    wanted = next((each for each in stages if each.stage == headline), None)
    if wanted is None:
        return []
    values = {"p50": wanted.p50, "p95": wanted.p95, "p99": wanted.p99}
    n = wanted.ok + wanted.censored
    return [Measurement(headline, value, stat, coords, n) for stat, value in values.items() if value is not None]
