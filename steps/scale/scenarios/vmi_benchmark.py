"""What the VMI benchmarks share: parameters, cluster rights, the run, and its measurements."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import orjson
from pydantic import AfterValidator, Field

from perfdag import signals
from perfdag.benchmark.contract import Gang, Output, Params, Rights
from perfdag.kube.client import Kube, KubeError
from perfdag.kube.prometheus import Prometheus
from perfdag.outcome import Failed, Invalid, Measurement
from perfdag.steps.scale.cluster import rights
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
from perfdag.steps.scale.model.gates import check_gates, parse_gate, with_slo
from perfdag.steps.scale.model.schedule import Schedule
from perfdag.steps.scale.model.templates import inlined
from perfdag.steps.scale.scenarios import run_vmi, vmi_spec
from perfdag.steps.scale.scenarios.vmi_capacity import Capacity
from perfdag.units import Duration, PositiveDuration, plural

API_RULES = Rights(
    named=(
        *rights.OWN_NAMESPACE,
        {
            "apiGroups": ["kubevirt.io", "instancetype.kubevirt.io"],
            "resources": ["*"],
            "verbs": ["list", "watch", "create", "delete"],
        },
        {
            "apiGroups": ["kubevirt.io"],
            "resources": ["virtualmachineinstances"],
            "verbs": ["patch"],
        },
        {"apiGroups": ["apps"], "resources": ["daemonsets"], "verbs": ["create", "delete"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    ),
    default=rights.PERFORMANCE_RUN,
    cluster=(
        *rights.WHOLE_CLUSTER,
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
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
    parallel: int = Field(20, ge=1, le=run_vmi.MOST, description="creations in flight")
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

    def spec(self) -> vmi_spec.Spec:
        """Convert to a spec. Raises ValueError for an invalid combination."""
        vmi_spec.load_template(self.template, "check", self.replicas, self.variables)
        own = [parse_gate(text) for text in self.gates]
        return vmi_spec.Spec(
            template=self.template,
            namespaces=[self.namespace] if isinstance(self.namespace, str) else self.namespace,
            schedule=Schedule(self.arrival, self.rate, self.parallel, seed=self.seed),
            parallel=self.parallel,
            replicas=self.replicas,
            per_node=self.per_node,
            primer=self.primer,
            operation=getattr(self, "operation", None),
            timeout=self.timeout,
            variables=dict(self.variables),
            gates=with_slo(own) if self.api_gates else own,
            prometheus=Prometheus(
                self.prometheus, self.prometheus_token_file, self.prometheus_ca_file
            )
            if self.prometheus
            else None,
        )

    def problems(self, request: run_vmi.VmiRequest) -> list[str]:
        """Return why the parameters do not fit together, or an empty list."""
        try:
            run_vmi.check(self.spec(), request)
        except ValueError as error:
            return [str(error)]
        return []


KeptJournal = Callable[
    [vmi_spec.Spec, Path, Callable[[str, bytes], None]], AbstractContextManager[None]
]
"""Keeps the state of a scenario in the store while it measures: runai/kept_journal.py."""


def run_scenario(
    name: str, params: VmiParams, request: run_vmi.VmiRequest, gang: Gang, journal: KeptJournal
) -> Output:
    """Measure a scenario for benchmark `name`. Later stages than the gang's timeout are censored.

    Raises Skip (no cluster, no KubeVirt), Failed (invalid parameters), Infrastructure.
    """
    try:
        spec = params.spec()
        spec.deadline, spec.log = time.monotonic() + gang.timeout, run_vmi.log
        folder = Path(gang.scratch) / "journal"
        with journal(spec, folder, gang.journal) if gang.journal else nullcontext():
            outcome = signals.run(measure_vmis(spec, request))
    except ValueError as error:
        raise Failed(str(error)) from None
    except KubeError as error:
        raise sample_error(error, name, API_RULES) from None
    results = [asdict(result) for result in outcome.results]
    simulated = any(result.facts["simulated"] for result in outcome.results)
    facts = {"simulated": simulated, "runs": [result.facts for result in outcome.results]}
    passed = asdict(outcome.capacity) if outcome.capacity else None
    texts = {"results": orjson.dumps({"capacity": passed, "results": results}).decode()}
    version = outcome.results[-1].facts["kubevirt_version"]
    return Output(
        texts,
        tool=tool(f"KubeVirt {version}" if version else "perfdag", simulated),
        facts=facts,
    )


async def measure_vmis(spec: vmi_spec.Spec, request: run_vmi.VmiRequest) -> run_vmi.Outcome:
    """Measure with connections enough for all creations in flight."""
    async with Kube(connections=connections(spec.parallel)) as kube:
        return await run_vmi.measure(kube, spec, request)


def parse_results(output: Output, headline: str) -> list[Measurement]:
    """Convert all results to measurements.

    The size that ended a search for capacity is no failure if a smaller one passed. Raises Invalid,
    with the measurements, if VMIs failed or were left behind, a size was not measured, the schedule
    was not held, or another run disturbed this one.
    """
    raw = orjson.loads(output.texts["results"])
    search = raw["capacity"]
    passed = search["passed"] if search else 0
    measurements: list[Measurement] = []
    notes: list[str] = []
    rows: list[Row] = []
    late: list[str] = []
    for run in raw["results"]:
        run_rows = [Row(**row) for row in run["rows"]]
        stages = [Summary(**stage) for stage in run["stages"]]
        coords, figures = {"count": run["count"]}, run["figures"]
        measurements += percentile_measurements(stages, headline, coords)
        added = run["facts"].get("added") or run["count"]
        vms = added * (run["facts"].get("members") or 1)
        measurements += stage_measurements(stages, coords) + figure_measurements(
            figures, coords, vms
        )
        measurements += call_measurements(run["calls"], coords)
        if not search:
            measurements += object_measurements(run_rows, coords)
        ended_it = passed and not search["no_data"] and run["count"] > passed
        verdicts = [verdict for verdict in run["verdicts"] if verdict["passed"] or not ended_it]
        measurements += gate_measurements(verdicts, coords) + message_measurements(run_rows, coords)
        notes += run["facts"]["notes"]
        rows += run_rows
        if figures["left_behind"]:
            notes.append(f"left behind: {plural(int(figures['left_behind']), 'object')}")
        if not run["error"] and (figures["success_ratio"] or 0) < 1:
            notes.append(f"{1 - (figures['success_ratio'] or 0):.1%} of {run['count']} never ran")
        if not ended_it and any(batch["held"] is False for batch in run["facts"]["generator"]):
            late.append(str(run["count"]))
    if search:
        interval = Capacity(**search)
        measurements.append(Measurement("capacity", float(passed), note=interval.bracket))
        measurements += object_measurements(rows, {})  # one set of VMIs, which grows
        notes += [f"capacity is a lower bound: {search['stopped']}"] if search["stopped"] else []
    failures = failure_text(rows, notes)
    if disturbed := next((run["disturbed"] for run in raw["results"] if run["disturbed"]), ""):
        raise Invalid(f"{disturbed}; {failures}".rstrip("; "), output.texts, measurements)
    if not any(measurement.metric == headline for measurement in measurements) and not search:
        raise Invalid(f"no VMI ran: {failures}", output.texts, measurements)
    bad = [
        run
        for run in raw["results"]
        if (run["figures"]["success_ratio"] or 0) < 1 or run["figures"]["left_behind"]
    ]
    if bad and not passed:  # kept, but not comparable with a run where all ran
        raise Invalid(failures, output.texts, measurements)
    if late:
        raise Invalid(
            f"the open loop did not hold its rate of {', '.join(late)} VMIs; {failures}".rstrip(
                "; "
            ),
            output.texts,
            measurements,
        )
    output.facts["notes"] = failures
    return measurements
