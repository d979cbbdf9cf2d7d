"""scale: thousands of workloads through the scheduler, and the scheduler alone."""

import time
from typing import Annotated, Any, ClassVar, Literal

import orjson
from pydantic import AfterValidator, Field

from perfdag import signals
from perfdag.benchmark.contract import Benchmark, Gang, Metric, Output, Params, Rights, broken
from perfdag.kube.client import Kube, KubeError
from perfdag.outcome import Failed, Invalid, Measurement
from perfdag.steps.scale.cluster import rights
from perfdag.steps.scale.figures.gates import check_gates, parse_gate
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
from perfdag.steps.scale.measure.generator import Arrival, Schedule, connections
from perfdag.steps.scale.model.templates import inlined
from perfdag.steps.scale.runai.settings import WORKLOAD_TYPES
from perfdag.steps.scale.scenarios import submit
from perfdag.steps.scale.scenarios.session import Result
from perfdag.steps.scale.scenarios.vmi import SLACK, log
from perfdag.units import Duration, PositiveDuration, plural

API_RULES = Rights(
    named=(
        *rights.OWN_NAMESPACE,
        {
            "apiGroups": ["run.ai", "kubeflow.org"],
            "resources": ["*"],
            "verbs": ["list", "watch", "create", "delete"],
        },
        {
            "apiGroups": ["scheduling.run.ai"],
            "resources": ["podgroups"],
            "verbs": ["list", "watch", "create", "delete"],
        },
        {
            "apiGroups": ["batch"],
            "resources": ["jobs"],
            "verbs": ["list", "watch", "create", "delete"],
        },
        {
            "apiGroups": ["apps"],
            "resources": ["replicasets", "deployments", "statefulsets"],
            "verbs": ["list", "watch", "create", "delete"],
        },
        {
            "apiGroups": [""],
            "resources": ["pods"],
            "verbs": ["list", "watch", "create", "patch", "delete"],
        },
        {"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["list", "watch"]},
    ),
    default=rights.PERFORMANCE_RUN,
    cluster=(
        *rights.WHOLE_CLUSTER,
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": ["runai-public"],
            "verbs": ["get"],
        },
    ),
)


class ScaleParams(Params):
    """The workloads, their arrival, and the goal that is waited for."""

    scenario: submit.Scenario = Field(
        "submit",
        description="submit: until the goal is reached; gated: the scheduler alone",
    )
    template: Annotated[str, AfterValidator(inlined)] = Field(
        "job",
        description="training, distributed, interactive, job, pod, pytorchjob, or a YAML file (the "
        "plan keeps its text)",
    )
    variables: dict[str, str | int | float] = Field(
        {}, description="placeholders of a template of your own"
    )
    count: int = Field(100, ge=1, description="workloads")
    parallel: int = Field(8, ge=1, le=1000, description="submissions in flight")
    arrival: Arrival = Field(
        "closed",
        description="closed, constant, poisson, burst, ramp, or batch (`parallel` at once every "
        "`delay`)",
    )
    rate: float = Field(0.0, ge=0, description="submissions a second of an open loop")
    seed: int = Field(0, ge=0, description="seed of Poisson arrivals")
    delay: Duration = Field(
        0.0, description="seconds between batches of `parallel` (arrival batch)"
    )
    workers: int = Field(1, ge=1, description="workers of one workload")
    gpus: int | float = Field(1, ge=0, description="GPUs a pod, also a fraction of Run:ai's kinds")
    pvc: bool = Field(False, description="a claim each workload")
    storage_class: str | None = None
    project: str = Field(
        "project-0", description="Run:ai project; its workloads go to the namespace runai-<project>"
    )
    namespace: str | list[str] | None = Field(
        None,
        description="one, or several in turn (default: runai-<project> for Run:ai's kinds, else "
        "perfdag-scale)",
    )
    goal: Literal["scheduled", "ready", "succeeded"] = Field(
        "ready", description="what is waited for"
    )
    timeout: PositiveDuration = Field(
        900.0, description="seconds for all to reach the goal, and for all to be gone"
    )
    lock_timeout: Duration = Field(
        3600.0, description="seconds to wait for another performance run to end"
    )
    gates: Annotated[list[str], AfterValidator(check_gates)] = Field(
        [], description="METRIC < VALUE, or METRIC < RATIO * METRIC"
    )

    def spec(self) -> submit.Spec:
        """Convert to a spec. Raises ValueError for an invalid combination."""
        runai = self.template in WORKLOAD_TYPES
        own = f"runai-{self.project}" if runai else "perfdag-scale"
        spec = submit.Spec(
            template=self.template,
            count=self.count,
            namespaces=self.namespace
            if isinstance(self.namespace, list)
            else [self.namespace or own],
            schedule=Schedule(self.arrival, self.rate, self.parallel, self.delay, self.seed),
            parallel=self.parallel,
            workers=self.workers,
            gpus=self.gpus,
            pvc=self.pvc,
            storage_class=self.storage_class,
            timeout=self.timeout,
            goal=self.goal,
            variables={"project": self.project, **self.variables},
            gates=[parse_gate(text) for text in self.gates],
        )
        submit.check(spec, self.scenario)
        return spec


class Scale(Benchmark[ScaleParams]):
    """Submit many workloads and see when each is created, scheduled and ready.

    The headline is the time from submission until the last pod of a workload is scheduled.
    Workloads that were never scheduled count as infinitely long, refused ones as failed. On
    simulated nodes only the control plane and the scheduler are measured.

    Clock: this process's. It starts when the workload is due (in a closed loop: sent). It stops
    when the watch shows a node for its last pod. The lag of the watch is measured and is the error
    bar.
    """

    name = "scale"
    image = "base"
    api = API_RULES
    verdict = "every gate holds; missing data fails a gate"
    Params: ClassVar[type[Params]] = ScaleParams
    coords = COORDS
    metrics = (
        Metric(
            "submission_to_scheduled",
            "s",
            "lower",
            "workload sent to its last pod scheduled (p50, p95, p99)",
            headline=True,
        ),
        Metric(
            "schedule_rate",
            "1/s",
            "higher",
            "scheduler alone: pods scheduled a second since the release",
        ),
        Metric(
            "schedule_rate_best_5s",
            "1/s",
            "higher",
            "scheduler alone: pods scheduled a second in the best 5 s",
        ),
        Metric("release_seconds", "s", "none", "scheduler alone: how long removing the gates took"),
        *METRICS,
    )

    def check(self, params: ScaleParams, shape: Any) -> list[str]:
        """See Benchmark."""
        try:
            params.spec()
        except ValueError as error:
            return [str(error)]
        return []

    def seconds(self, params: ScaleParams) -> float:
        """Return the schedule, and an estimate of 20 ms per pod."""
        return (
            20.0 + params.spec().schedule.span(params.count) + 0.02 * params.count * params.workers
        )

    def limit(self, params: ScaleParams) -> float:
        """Return the sum of the lock, the schedule and at most three waits."""
        return (
            params.lock_timeout
            + params.spec().schedule.span(params.count)
            + 3 * params.timeout
            + SLACK
        )

    def measure(self, gang: Gang, params: ScaleParams) -> Output:
        """See Benchmark."""
        try:
            spec = params.spec()
            spec.deadline, spec.log = time.monotonic() + gang.timeout, log
            result = signals.run(measure_workloads(spec, params))
        except ValueError as error:
            raise Failed(str(error)) from None
        except KubeError as error:
            raise sample_error(error, self.name, API_RULES) from None
        facts = {"simulated": result.facts["simulated"], "runs": [result.facts]}
        version = result.facts.get("runai_version")
        tool_name = tool(f"Run:ai {version}" if version else "perfdag", result.facts["simulated"])
        return Output({"result": orjson.dumps(result).decode()}, tool=tool_name, facts=facts)

    def run(self, gang: Gang, params: ScaleParams) -> list[Measurement]:
        gang.output = self.measure(gang, params)
        return self.parse(gang.output, params)

    def parse(self, output: Output, params: ScaleParams) -> list[Measurement]:
        """Convert the result to measurements. Raises Invalid if objects failed or remain."""
        raw = orjson.loads(output.texts["result"])
        rows = [Row(**row) for row in raw.pop("rows")]
        stages = [Summary(**stage) for stage in raw["stages"]]
        figures = raw["figures"]
        measurements = stage_measurements(stages, {}) + figure_measurements(
            figures, {}, raw["count"], "objects"
        )
        measurements += call_measurements(raw["calls"], {}) + object_measurements(rows, {})
        measurements += percentile_measurements(stages, "submission_to_scheduled", {})
        measurements += [
            Measurement(name, figures[name])
            for name in submit.FIGURES
            if figures.get(name) is not None
        ]
        measurements += gate_measurements(raw["verdicts"], {}) + message_measurements(rows, {})
        failures = failure_text(rows, raw["facts"]["notes"])
        share, rate = figures["success_ratio"] or 0, figures.get("schedule_held")
        lag = "was late" if rate is None else f"reached only {rate:.1%} of its rate"
        reasons = broken(
            (raw["disturbed"], f"{raw['disturbed']}; {failures}".rstrip("; ")),
            (
                not any(item.metric == "submission_to_scheduled" for item in measurements),
                f"nothing was scheduled: {failures}",
            ),
            (
                figures["left_behind"],
                f"left behind: {plural(int(figures['left_behind'] or 0), 'object')}; {failures}",
            ),
            (share < 1, f"{1 - share:.1%} did not reach the goal: {failures}"),
            (
                any(batch["held"] is False for batch in raw["facts"]["generator"]),
                f"the open loop {lag}",
            ),
        )
        if reasons:
            raise Invalid(reasons[0], output.texts, measurements)
        return measurements


async def measure_workloads(spec: submit.Spec, params: ScaleParams) -> Result:
    """Measure with connections enough for all creations in flight."""
    async with Kube(connections=connections(spec.parallel)) as kube:
        return await submit.exclusive(kube, spec, params.scenario, params.lock_timeout)
