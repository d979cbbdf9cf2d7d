"""scale: thousands of workloads through the scheduler, and scheduling scenarios."""

import time
from dataclasses import asdict
from typing import Any, ClassVar, Literal

import orjson
from pydantic import Field, field_validator

from perfdag import signals
from perfdag.benchmark.contract import Benchmark, Gang, Metric, Output, Params
from perfdag.kube.client import Kube, KubeError
from perfdag.outcome import Failed, Invalid, Measurement, Skip
from perfdag.steps.scale.figures import measurements as measured
from perfdag.steps.scale.figures.percentiles import Summary
from perfdag.steps.scale.figures.rows import Row
from perfdag.steps.scale.measure.generator import connections
from perfdag.steps.scale.model.gates import parse as parse_gate
from perfdag.steps.scale.model.schedule import Arrival, Schedule
from perfdag.steps.scale.model.templates import inlined
from perfdag.steps.scale.runai.settings import WORKLOAD_TYPES
from perfdag.steps.scale.scenarios import submit
from perfdag.steps.scale.scenarios.result import Result
from perfdag.steps.scale.scenarios.run_vmi import SLACK, log
from perfdag.units import Duration, PositiveDuration

API_RULES: tuple[dict[str, Any], ...] = (
    {
        "apiGroups": ["run.ai", "kubeflow.org"],
        "resources": ["*"],
        "verbs": ["get", "list", "watch", "create", "delete"],
    },
    {
        "apiGroups": ["scheduling.run.ai", "scheduling.volcano.sh"],
        "resources": ["*"],
        "verbs": ["get", "list", "watch", "create", "delete"],
    },
    {
        "apiGroups": ["scheduling.x-k8s.io"],
        "resources": ["podgroups"],
        "verbs": ["get", "list", "watch"],
    },
    {"apiGroups": ["bus.volcano.sh"], "resources": ["commands"], "verbs": ["create"]},
    {
        "apiGroups": ["batch", "apps"],
        "resources": ["jobs", "replicasets", "deployments", "statefulsets"],
        "verbs": ["get", "list", "watch", "create", "delete"],
    },
    {
        "apiGroups": [""],
        "resources": ["pods"],
        "verbs": ["get", "list", "watch", "create", "patch", "delete"],
    },
    {
        "apiGroups": [""],
        "resources": ["events", "nodes", "persistentvolumeclaims"],
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
    {
        "apiGroups": ["scheduling.k8s.io"],
        "resources": ["priorityclasses"],
        "verbs": ["create", "delete"],
    },
    {"nonResourceURLs": ["/metrics", "/version"], "verbs": ["get"]},
)


class ScaleParams(Params):
    """What is submitted, how it arrives, and what is waited for."""

    scenario: Literal[
        "submit", "gated", "fill", "fragmentation", "preemption", "gang", "reclaim"
    ] = Field(
        "submit",
        description="gated: the scheduler alone; fill, fragmentation, preemption: GPUs; gang, reclaim: need Volcano or KAI",
    )
    template: str = Field(
        "job",
        description="training, distributed, interactive, job, pod, pytorchjob, or a YAML file (its text is kept in the plan)",
    )
    variables: dict[str, str | int | float] = Field(
        {}, description="placeholders of a template of your own"
    )
    count: int = Field(100, ge=1, description="workloads")
    parallel: int = Field(8, ge=1, le=1000, description="submissions in flight")
    arrival: Arrival = Field(
        "closed",
        description="closed, constant, poisson, burst, ramp, or batch: `parallel` at once each `delay`",
    )
    rate: float = Field(0.0, ge=0, description="submissions a second of an open loop")
    seed: int = Field(0, ge=0, description="seed of Poisson arrivals")
    delay: Duration = Field(
        0.0, description="seconds between batches of `parallel` (arrival batch)"
    )
    workers: int = Field(1, ge=1, description="workers of one workload")
    gpus: int = Field(1, ge=0, description="GPUs a pod")
    pvc: bool = Field(False, description="a claim each workload")
    storage_class: str | None = None
    project: str = Field(
        "project-0", description="Run:ai project; its workloads go to the namespace runai-<project>"
    )
    namespace: str | list[str] | None = Field(
        None,
        description="one, or several in turn; unset: runai-<project> for Run:ai's kinds, else perfdag-scale",
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
    gates: list[str] = Field([], description="METRIC < VALUE, or METRIC < RATIO * METRIC")

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

    The headline is submission to the scheduling of the last pod of a workload. Workloads that were never scheduled count as
    infinitely long; refused ones count as failed. On simulated nodes the figures are of the control plane and the scheduler alone.

    Clock: this process's. It starts when the workload is due (in a closed loop: sent) and stops when the watch tells that its last pod has a node; the lag
    of the watch is measured beside it and is its error bar.
    """

    name = "scale"
    image = "base"
    api = API_RULES
    Params: ClassVar[type[Params]] = ScaleParams
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
        Metric("gpus_free", "1", "none", "fill: GPUs that were free"),
        Metric("gpus_allocated", "1", "higher", "fill: GPUs that pods got"),
        Metric("nodes_overcommitted", "1", "lower", "fill: nodes that hold more than they have"),
        Metric(
            "unschedulable_verdict",
            "s",
            "lower",
            "fill: one pod too many, until the scheduler says so",
        ),
        Metric(
            "packing",
            "1",
            "higher",
            "fragmentation: whole nodes still there of those that would fit",
        ),
        Metric(
            "preemptor_wait",
            "s",
            "lower",
            "preemption: high-priority pod created to scheduled (p50, max)",
        ),
        Metric("gangs_fitting", "1", "none", "gang: gangs that fit into the free GPUs"),
        Metric("gangs_placed", "1", "higher", "gang: gangs placed whole"),
        Metric("gangs_split", "1", "lower", "gang: gangs of which only a part was placed"),
        Metric("reclaimed", "1", "higher", "reclaim: pods that got their queue's share back"),
        Metric("reclaim_wait", "s", "lower", "reclaim: pod created to scheduled (p50, max)"),
        Metric("evicted", "1", "none", "preemption, reclaim: pods that had to go"),
        *measured.METRICS,
    )

    def check(self, params: ScaleParams, shape: Any) -> list[str]:
        """See Benchmark."""
        try:
            params.spec()
        except ValueError as error:
            return [str(error)]
        return []

    def seconds(self, params: ScaleParams) -> float:
        """The schedule, and a guess of 20 ms a pod."""
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

    def run(self, gang: Gang, params: ScaleParams) -> Output:
        """See Benchmark."""
        try:
            spec = params.spec()
            spec.deadline, spec.log = time.monotonic() + gang.timeout, log
            result = signals.run(measure_workloads(spec, params))
        except submit.ScenarioUnavailableError as error:
            raise Skip(str(error)) from None
        except ValueError as error:
            raise Failed(str(error)) from None
        except KubeError as error:
            raise measured.sample_error(error, self.name, API_RULES) from None
        facts = {"simulated": result.facts["simulated"], "runs": [result.facts]}
        version = result.facts.get("runai_version")
        tool = measured.tool(
            f"Run:ai {version}" if version else "perfdag", result.facts["simulated"]
        )
        return Output({"result": orjson.dumps(asdict(result)).decode()}, tool=tool, facts=facts)

    def parse(self, output: Output, params: ScaleParams) -> list[Measurement]:
        """Convert the result to measurements. Raises Invalid if objects failed or were left behind."""
        raw = orjson.loads(output.texts["result"])
        rows = [Row(**row) for row in raw["rows"]]
        stages = [Summary(**stage) for stage in raw["stages"]]
        figures = raw["figures"]
        measurements = measured.stage_measurements(stages, {}) + measured.figure_measurements(
            figures, {}, raw["count"], "objects"
        )
        measurements += measured.call_measurements(raw["calls"], {}) + measured.object_measurements(
            rows, {}
        )
        for summary in stages:
            if summary.stage == "submission_to_scheduled":
                values = {"p50": summary.p50, "p95": summary.p95, "p99": summary.p99}
                n = summary.ok + summary.censored
                measurements += [
                    Measurement("submission_to_scheduled", v, s, {}, n)
                    for s, v in values.items()
                    if v is not None
                ]
        measurements += [
            Measurement(name, figures[name])
            for name in submit.FIGURES
            if figures.get(name) is not None
        ]
        for name in ("preemptor_wait", "reclaim_wait"):
            values_of_wait = {stat: figures.get(f"{name}_{stat}") for stat in ("p50", "max")}
            measurements += [
                Measurement(name, value, stat)
                for stat, value in values_of_wait.items()
                if value is not None
            ]
        measurements += measured.gate_measurements(
            raw["verdicts"], {}
        ) + measured.message_measurements(rows, {})
        failures = measured.failure_text(rows, raw["facts"]["notes"])
        if raw["disturbed"]:
            raise Invalid(
                f"{raw['disturbed']}; {failures}".rstrip("; "), output.texts, measurements
            )
        if not any(measurement.metric == "submission_to_scheduled" for measurement in measurements):
            raise Invalid(f"nothing was scheduled: {failures}", output.texts, measurements)
        if figures["left_behind"]:
            raise Invalid(
                f"{figures['left_behind']:g} objects were left behind; {failures}",
                output.texts,
                measurements,
            )
        if (figures["success_ratio"] or 0) < 1:
            raise Invalid(
                f"{1 - (figures['success_ratio'] or 0):.1%} did not reach the goal: {failures}",
                output.texts,
                measurements,
            )
        if any(batch["held"] is False for batch in raw["facts"]["generator"]):
            reached = figures["schedule_held"]
            what = "was late" if reached is None else f"reached only {reached:.1%} of its rate"
            raise Invalid(f"the open loop {what}", output.texts, measurements)
        return measurements


async def measure_workloads(spec: submit.Spec, params: ScaleParams) -> Result:
    async with Kube(connections=connections(spec.parallel)) as kube:
        return await submit.exclusive(kube, spec, params.scenario, params.lock_timeout)
