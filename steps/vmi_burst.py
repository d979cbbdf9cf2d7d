"""vmi-burst: creation, running and deletion of many VMIs at once (KubeVirt's density test), also as a ladder or a capacity search."""

import time
from dataclasses import asdict
from typing import Any, ClassVar, Literal

import orjson
from pydantic import Field, field_validator

from perfdag import signals
from perfdag.benchmark import Benchmark, Failed, Gang, Invalid, Measurement, Metric, Output, Params
from perfdag.kube import Kube, KubeError
from perfdag.steps.scale import measured, run_vmi, vmi
from perfdag.steps.scale.gates import parse as parse_gate
from perfdag.steps.scale.gates import with_slo
from perfdag.steps.scale.generator import connections
from perfdag.steps.scale.prometheus import Prometheus
from perfdag.steps.scale.rows import Row
from perfdag.steps.scale.schedule import Schedule
from perfdag.steps.scale.summary import Summary
from perfdag.steps.scale.templates import inlined
from perfdag.units import Duration, PositiveDuration

API_RULES: tuple[dict[str, Any], ...] = (
    {
        "apiGroups": ["kubevirt.io"],
        "resources": ["*"],
        "verbs": ["get", "list", "watch", "create", "delete"],
    },
    {
        "apiGroups": [""],
        "resources": ["pods", "events", "nodes"],
        "verbs": ["get", "list", "watch"],
    },
    {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get", "create", "delete"]},
    {"apiGroups": [""], "resources": ["serviceaccounts"], "verbs": ["get"]},
    {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "verbs": ["get", "list", "watch", "create", "patch", "delete"],
    },
    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list"]},
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "verbs": ["get", "list", "create", "update", "patch", "delete"],
    },
    {"nonResourceURLs": ["/metrics", "/version"], "verbs": ["get"]},
)


class VmiParams(Params):
    """What VMI scenarios share."""

    template: str = Field(
        "vmi", description="vmi, vm, vmirs, or a YAML file (its text is kept in the plan)"
    )
    variables: dict[str, str | int | float] = Field(
        {}, description="placeholders of a template of your own"
    )
    replicas: int = Field(1, ge=1, description="VMIs of one object (template vmirs)")
    namespace: str | list[str] = Field(
        "perfdag-vmi", description="namespace of the VMIs, or several in turn, made where missing"
    )
    parallel: int = Field(20, ge=1, le=run_vmi.MOST, description="creations in flight")
    arrival: Literal["closed", "constant", "poisson", "burst", "ramp"] = Field(
        "closed", description="closed (as fast as it goes), constant, poisson, burst or ramp"
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
    gates: list[str] = Field(
        [],
        description="METRIC < VALUE, or METRIC < RATIO * METRIC; one on a metric of `api_gates` takes its place",
    )
    api_gates: bool = Field(True, description="api_p99 < 1 and api_list_p99 < 30 beside `gates`")
    prometheus: str | None = Field(None, description="URL of a Prometheus that scrapes KubeVirt")
    prometheus_token_file: str | None = Field(None, description="file with a bearer token for it")
    prometheus_ca_file: str | None = Field(
        None, description="file with the certificate authority of its TLS"
    )

    @field_validator("gates")
    @classmethod
    def _readable(cls, gates: list[str]) -> list[str]:
        for text in gates:
            parse_gate(text)
        return gates

    @field_validator("template")
    @classmethod
    def _inline(cls, template: str) -> str:
        return inlined(template)

    def spec(self) -> vmi.Spec:
        """What these params ask for. Raises ValueError for what cannot be, or has no meaning, together."""
        vmi.template(self.template, "check", self.replicas, self.variables)
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

    def problems(self, ask: run_vmi.Ask) -> list[str]:
        """Why they cannot be measured together (empty: they can)."""
        try:
            run_vmi.check(self.spec(), ask)
        except ValueError as error:
            return [str(error)]
        return []


class VmiBurstParams(VmiParams):
    """A burst, several of rising size, or growth until a gate fails."""

    scenario: Literal["burst", "ladder", "capacity"] = "burst"
    counts: list[int] = Field(
        [100], min_length=1, description="VMIs; several for a ladder; the limit for capacity"
    )
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
        Metric(
            "creation_to_running",
            "s",
            "lower",
            "VMI created to Running (p50, p95, p99 where enough)",
            headline=True,
        ),
        Metric("capacity", "1", "higher", "VMIs of the largest burst that passed every gate"),
        *measured.METRICS,
    )

    def check(self, params: VmiBurstParams, shape: Any) -> list[str]:
        """See Benchmark."""
        if (
            params.scenario != "ladder"
            and params.cooldown != VmiBurstParams.model_fields["cooldown"].default
        ):
            return [f"{params.scenario} has no cooldown; it goes with scenario: ladder"]
        if (
            params.scenario != "capacity"
            and params.step != VmiBurstParams.model_fields["step"].default
        ):
            return [f"{params.scenario} has no step; it goes with scenario: capacity"]
        return params.problems(_ask(params))

    def seconds(self, params: VmiBurstParams) -> float:
        """A guess of 10 s and 60 ms a VMI, twice, and the cool-downs."""
        return 20.0 + 0.12 * sum(params.counts) + params.cooldown * (len(params.counts) - 1)

    def limit(self, params: VmiBurstParams) -> float:
        """See Benchmark: the lock, and each burst's primer, schedule and two waits."""
        return _ask(params).limit(params.spec())

    def run(self, gang: Gang, params: VmiBurstParams) -> Output:
        """See Benchmark."""
        return run_scenario(self.name, params, _ask(params), gang.timeout)

    def parse(self, output: Output, params: VmiBurstParams) -> list[Measurement]:
        """See Benchmark."""
        return parse_results(output, "creation_to_running")


def _ask(params: VmiBurstParams) -> run_vmi.Ask:
    return run_vmi.Ask(
        params.scenario,
        params.counts,
        step=params.step,
        cooldown=params.cooldown,
        lock_timeout=params.lock_timeout,
    )


def run_scenario(name: str, params: VmiParams, ask: run_vmi.Ask, timeout: float) -> Output:
    """Measure for benchmark `name` on the cluster we reach. After `timeout` seconds nothing is waited for any more but deletion: what
    has not come by then is censored.

    Raises Skip (no cluster, no KubeVirt), Failed (a bad request), Infrastructure."""
    try:
        spec = params.spec()
        spec.deadline, spec.tell = time.monotonic() + timeout, run_vmi.say
        outcome = signals.run(_measure(spec, ask))
    except ValueError as error:
        raise Failed(str(error)) from None
    except KubeError as error:
        raise measured.explained(error, name, API_RULES) from None
    results = [asdict(each) for each in outcome.results]
    simulated = any(each.facts["simulated"] for each in outcome.results)
    facts = {"simulated": simulated, "runs": [each.facts for each in outcome.results]}
    passed = asdict(outcome.capacity) if outcome.capacity else None
    texts = {"results": orjson.dumps({"capacity": passed, "results": results}).decode()}
    version = outcome.results[-1].facts["kubevirt_version"]
    return Output(
        texts,
        tool=measured.tool(f"KubeVirt {version}" if version else "perfdag", simulated),
        facts=facts,
    )


async def _measure(spec: vmi.Spec, ask: run_vmi.Ask) -> run_vmi.Outcome:
    async with Kube(connections=connections(spec.parallel)) as kube:
        return await run_vmi.measure(kube, spec, ask)


def parse_results(output: Output, headline: str) -> list[Measurement]:
    """Measurements of all results. Of a search for capacity what ended it is its answer, and no fault, unless nothing passed or a gate
    had no data.

    Raises Invalid where VMIs never ran, objects were left behind, a size was not measured, an open loop was not held or another run was
    beside this one; what was seen of every size is kept.
    """
    raw = orjson.loads(output.texts["results"])
    search = raw["capacity"]
    passed = search["passed"] if search else 0
    found: list[Measurement] = []
    notes: list[str] = []
    rows: list[Row] = []
    late: list[str] = []
    for each in raw["results"]:
        each_rows = [Row(**row) for row in each["rows"]]
        stages = [Summary(**stage) for stage in each["stages"]]
        coords, figures = {"count": each["count"]}, each["figures"]
        found += _headline(stages, headline, coords)
        vms = each["count"] * (each["facts"].get("members") or 1)
        found += measured.of_stages(stages, coords) + measured.of_figures(figures, coords, vms)
        found += measured.of_calls(each["calls"], coords) + measured.of_objects(each_rows, coords)
        ended_it = passed and not search["no_data"] and each["count"] > passed
        held = [verdict for verdict in each["verdicts"] if verdict["passed"] or not ended_it]
        found += measured.of_gates(held, coords) + measured.of_messages(each_rows, coords)
        notes += each["facts"]["notes"]
        rows += each_rows
        if figures["left_behind"]:
            notes.append(f"{figures['left_behind']:g} objects were left behind")
        if not each["error"] and (figures["success_ratio"] or 0) < 1:
            notes.append(f"{1 - (figures['success_ratio'] or 0):.1%} of {each['count']} never ran")
        if not ended_it and any(made["held"] is False for made in each["facts"]["generator"]):
            late.append(str(each["count"]))
    if search:
        found.append(Measurement("capacity", float(passed)))
        notes += [f"capacity is a lower bound: {search['stopped']}"] if search["stopped"] else []
    said = measured.failure_text(rows, notes)
    if disturbed := next((each["disturbed"] for each in raw["results"] if each["disturbed"]), ""):
        raise Invalid(f"{disturbed}; {said}".rstrip("; "), output.texts, found)
    if not any(each.metric == headline for each in found) and not search:
        raise Invalid(f"no VMI ran: {said}", output.texts, found)
    bad = [
        each
        for each in raw["results"]
        if (each["figures"]["success_ratio"] or 0) < 1 or each["figures"]["left_behind"]
    ]
    if bad and not passed:  # kept, but not comparable with a run where all ran
        raise Invalid(said, output.texts, found)
    if late:
        raise Invalid(
            f"the open loop did not hold its rate of {', '.join(late)} VMIs; {said}".rstrip("; "),
            output.texts,
            found,
        )
    output.facts["notes"] = said
    return found


def _headline(stages: list[Summary], headline: str, coords: dict[str, Any]) -> list[Measurement]:
    wanted = next((each for each in stages if each.stage == headline), None)
    if wanted is None:
        return []
    values = {"p50": wanted.p50, "p95": wanted.p95, "p99": wanted.p99}
    n = wanted.ok + wanted.censored
    return [
        Measurement(headline, value, stat, coords, n)
        for stat, value in values.items()
        if value is not None
    ]
