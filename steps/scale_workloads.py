"""scale: workloads by the thousand through the scheduler (what Run:ai's scale test tool measures, and scheduling scenarios)."""

import asyncio
from dataclasses import asdict
from typing import Any, ClassVar, Literal

import orjson
from pydantic import Field, field_validator

from perfdag.benchmark import Benchmark, Failed, Gang, Invalid, Measurement, Metric, Output, Params, Skip
from perfdag.kube import Kube, KubeError
from perfdag.steps.scale import measured, workloads
from perfdag.steps.scale.gates import parse as parse_gate
from perfdag.steps.scale.lock import ExclusiveRun
from perfdag.steps.scale.rows import Row
from perfdag.steps.scale.schedule import Arrival, Schedule
from perfdag.steps.scale.session import new_run
from perfdag.steps.scale.summary import Summary
from perfdag.steps.scale.vmi import Result
from perfdag.units import Duration, PositiveDuration

API_RULES: tuple[dict[str, Any], ...] = (
    {"apiGroups": ["run.ai", "kubeflow.org"], "resources": ["*"], "verbs": ["get", "list", "watch", "create", "delete"]},
    {
        "apiGroups": ["scheduling.run.ai", "scheduling.volcano.sh"],
        "resources": ["*"],
        "verbs": ["get", "list", "watch", "create", "delete"],
    },
    {"apiGroups": ["bus.volcano.sh"], "resources": ["commands"], "verbs": ["create"]},
    {"apiGroups": ["batch", "apps"], "resources": ["jobs", "replicasets"], "verbs": ["get", "list", "watch", "create", "delete"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "create", "patch", "delete"]},
    {"apiGroups": [""], "resources": ["events", "nodes", "persistentvolumeclaims"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get", "create", "delete"]},
    {"apiGroups": [""], "resources": ["serviceaccounts"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch", "create", "patch", "delete"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update", "patch", "delete"]},
    {"apiGroups": ["scheduling.k8s.io"], "resources": ["priorityclasses"], "verbs": ["create", "delete"]},
    {"nonResourceURLs": ["/metrics", "/version"], "verbs": ["get"]},
)


_PLAIN = (
    "schedule_rate",
    "gpus_free",
    "gpus_allocated",
    "nodes_overcommitted",
    "unschedulable_verdict",
    "packing",
    "gangs_fitting",
    "gangs_placed",
    "gangs_split",
    "reclaimed",
    "evicted",
)


class ScaleParams(Params):
    """What is submitted, how it arrives, and what is waited for."""

    scenario: Literal["submit", "gated", "fill", "fragmentation", "preemption", "gang", "reclaim"] = Field(
        "submit", description="gated: the scheduler alone; fill, fragmentation, preemption: GPUs; gang, reclaim: need Volcano or KAI"
    )
    template: str = Field("job", description="training, distributed, interactive, job, pod, pytorchjob, or a YAML file")
    count: int = Field(100, ge=1, description="workloads")
    parallel: int = Field(8, ge=1, le=1000, description="submissions in flight")
    arrival: Arrival = Field("closed", description="closed, constant, poisson, burst, ramp, or batch: `parallel` at once each `delay`")
    rate: float = Field(0.0, ge=0, description="submissions a second of an open loop")
    delay: Duration = Field(0.0, description="seconds between batches of `parallel` (arrival batch)")
    workers: int = Field(1, ge=1, description="workers of one workload")
    gpus: int = Field(1, ge=0, description="GPUs a pod")
    pvc: bool = Field(False, description="a claim each workload")
    storage_class: str | None = None
    project: str = Field("project-0", description="Run:ai project; its workloads go to the namespace runai-<project>")
    namespace: str | None = Field(None, description="unset: runai-<project> for Run:ai's kinds, else perfdag-scale")
    goal: Literal["scheduled", "ready", "succeeded"] = Field("ready", description="what is waited for")
    timeout: PositiveDuration = Field(900.0, description="seconds for all to reach the goal, and for all to be gone")
    lock_timeout: Duration = Field(3600.0, description="seconds to wait for another performance run to end")
    gates: list[str] = Field([], description="METRIC < VALUE, or METRIC < RATIO * METRIC")

    @field_validator("gates")
    @classmethod
    def _readable(cls, gates: list[str]) -> list[str]:
        for text in gates:
            parse_gate(text)
        return gates


class Scale(Benchmark[ScaleParams]):
    """Submit many workloads and see when each is created, scheduled and ready.

    The headline is submission to the scheduling of the last pod of a workload. Workloads that were never scheduled count as
    infinitely long; refused ones count as failed. On simulated nodes the figures are of the control plane and the scheduler alone.

    Clock: this process's. It starts when the workload is sent and stops when the watch tells that its last pod has a node; the lag
    of the watch is measured beside it and is its error bar.
    """

    name = "scale"
    image = "base"
    api = API_RULES
    Params: ClassVar[type[Params]] = ScaleParams
    metrics = (
        Metric("submission_to_scheduled", "s", "lower", "workload sent to its last pod scheduled (p50, p95, p99)", headline=True),
        Metric("schedule_rate", "1/s", "higher", "scheduler alone: pods scheduled a second since the release"),
        Metric("gpus_free", "1", "none", "fill: GPUs that were free"),
        Metric("gpus_allocated", "1", "higher", "fill: GPUs that pods got"),
        Metric("nodes_overcommitted", "1", "lower", "fill: nodes that hold more than they have"),
        Metric("unschedulable_verdict", "s", "lower", "fill: one pod too many, until the scheduler says so"),
        Metric("packing", "1", "higher", "fragmentation: whole nodes still there of those that would fit"),
        Metric("preemptor_wait", "s", "lower", "preemption: high-priority pod created to scheduled (p50, max)"),
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
        if params.arrival == "batch" and not params.delay > 0:
            return ["arrival batch needs a delay above 0 s"]
        if params.arrival in ("constant", "poisson", "burst", "ramp") and not params.rate > 0:
            return [f"arrival {params.arrival} needs a rate above 0 objects/s"]
        return []

    def seconds(self, params: ScaleParams) -> float:
        """The schedule, and a guess of 20 ms a pod."""
        planned = params.count / params.parallel * params.delay if params.arrival == "batch" else 0.0
        planned = params.count / params.rate if params.rate > 0 else planned
        return 20.0 + planned + 0.02 * params.count * params.workers

    def run(self, gang: Gang, params: ScaleParams) -> Output:
        """See Benchmark."""
        runai = params.template in ("training", "distributed", "interactive")
        spec = workloads.Spec(
            template=params.template,
            count=params.count,
            namespaces=[params.namespace or (f"runai-{params.project}" if runai else "perfdag-scale")],
            schedule=Schedule(params.arrival, params.rate, params.parallel, params.delay),
            parallel=params.parallel,
            workers=params.workers,
            gpus=params.gpus,
            pvc=params.pvc,
            storage_class=params.storage_class,
            timeout=params.timeout,
            goal=params.goal,
            variables={"project": params.project},
            gates=[parse_gate(text) for text in params.gates],
        )
        try:
            result = asyncio.run(asyncio.wait_for(_measure(spec, params), gang.timeout))
        except workloads.NotHereError as error:
            raise Skip(str(error)) from None
        except TimeoutError:
            raise Failed(f"did not end in {gang.timeout:g} s; what it made was deleted") from None
        except ValueError as error:
            raise Failed(str(error)) from None
        except KubeError as error:
            raise measured.explained(error, self.name) from None
        facts = {"simulated": result.facts["simulated"], "runs": [result.facts]}
        return Output({"result": orjson.dumps(asdict(result)).decode()}, tool="perfdag", facts=facts)

    def parse(self, output: Output, params: ScaleParams) -> list[Measurement]:
        """See Benchmark. Invalid where the open loop was not held, or objects were left behind."""
        raw = orjson.loads(output.texts["result"])
        rows = [Row(**row) for row in raw["rows"]]
        stages = [Summary(**stage) for stage in raw["stages"]]
        figures = raw["figures"]
        found = measured.of_stages(stages, {}) + measured.of_figures(figures, {}, raw["count"])
        found += measured.of_calls(raw["calls"], {}) + measured.of_objects(rows, {})
        for each in stages:
            if each.stage == "submission_to_scheduled":
                values = {"p50": each.p50, "p95": each.p95, "p99": each.p99}
                n = each.ok + each.censored
                found += [Measurement("submission_to_scheduled", v, s, {}, n) for s, v in values.items() if v is not None]
        found += [Measurement(name, figures[name]) for name in _PLAIN if figures.get(name) is not None]
        for name in ("preemptor_wait", "reclaim_wait"):
            told = {stat: figures.get(f"{name}_{stat}") for stat in ("p50", "max")}
            found += [Measurement(name, value, stat) for stat, value in told.items() if value is not None]
        found += measured.of_gates(raw["verdicts"], {})
        said = measured.failure_text(rows, raw["facts"]["notes"])
        if not any(each.metric == "submission_to_scheduled" for each in found):
            raise Failed(f"nothing was scheduled: {said}", output.texts)
        if figures["left_behind"]:
            raise Invalid(f"{figures['left_behind']:g} objects were left behind; {said}", output.texts, found)
        if (figures["success_ratio"] or 0) < 1:
            raise Invalid(f"{1 - (figures['success_ratio'] or 0):.1%} did not reach the goal: {said}", output.texts, found)
        if any(made["held"] is False for made in raw["facts"]["generator"]):
            raise Invalid(f"the open loop reached only {figures['schedule_held']:.1%} of its rate", output.texts, found)
        return found


async def _measure(spec: workloads.Spec, params: ScaleParams) -> Result:
    async with Kube(connections=max(100, spec.parallel)) as kube, ExclusiveRun(kube, new_run(), params.lock_timeout):
        return await workloads.measure(kube, spec, params.scenario)
