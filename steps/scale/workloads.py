"""scale: thousands of workloads through the scheduler, and the scheduler alone.

Pods or the user's workloads pass through the cluster's scheduler. On simulated nodes only the
scheduler and the API are measured.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from perfdag.benchmark.contract import Metric, Params, Rights
from perfdag.kube.client import STRATEGIC_PATCH, Kube, KubeError
from perfdag.steps.scale import figures
from perfdag.steps.scale.api_metrics import CREATION
from perfdag.steps.scale.cluster import OWN_NAMESPACE, PERFORMANCE_RUN, WHOLE_CLUSTER, ExclusiveRun
from perfdag.steps.scale.figures import COORDS, METRICS, Result, parse_gate
from perfdag.steps.scale.generate import Arrival, Schedule
from perfdag.steps.scale.objects import (
    HOLD,
    Record,
    Template,
    TemplateError,
    chain,
    inlined,
    load,
)
from perfdag.steps.scale.rows import throughput, with_deletion
from perfdag.steps.scale.scenario import (
    SLACK_S,
    Context,
    ScenarioBenchmark,
    ScenarioParams,
    Session,
    open_session,
    outcome_figures,
)
from perfdag.units import Duration

logger = logging.getLogger(__name__)
RUNAI_KINDS = {
    "training": "TrainingWorkload",
    "distributed": "DistributedWorkload",
    "interactive": "InteractiveWorkload",
}
"""Template -> kind of the workloads of Run:ai."""
RELEASE_BOUND = 0.8
"""Share of the time above which the release, not the scheduler, was the bottleneck."""
FIGURES = ("schedule_rate", "schedule_rate_best_5s", "release_seconds")
"""Figures that the scenario `gated` alone has, by the names of the benchmark's metrics."""
Goal = Literal["scheduled", "ready", "succeeded"]
STAGES: dict[Goal, str] = {
    "scheduled": "submission_to_scheduled",
    "ready": "ready",
    "succeeded": "submission_to_succeeded",
}
"""Goal -> the stage of a workload. A pod that succeeds at once may never be Ready."""


class ScaleParams(ScenarioParams):
    """The workloads, their arrival, and the goal that is waited for."""

    scenario: Literal["submit", "gated"] = Field(
        "submit",
        description="submit: until the goal is reached; gated: the scheduler alone",
    )
    template: Annotated[str, AfterValidator(inlined)] = Field(
        "job",
        description="training, distributed, interactive, job, pod, pytorchjob, or a YAML file (the "
        "plan keeps its text)",
    )
    count: int = Field(100, ge=1, description="workloads")
    parallel: int = Field(8, ge=1, le=1000, description="submissions in flight")
    arrival: Arrival = Field(
        "closed",
        description="closed, constant, poisson, burst, ramp, or batch (`parallel` at once every "
        "`delay`)",
    )
    rate: float = Field(0.0, ge=0, description="submissions a second of an open loop")
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
    goal: Goal = Field("ready", description="what is waited for")

    @property
    def namespaces(self) -> list[str]:
        """The namespaces of the workloads."""
        own = f"runai-{self.project}" if self.template in RUNAI_KINDS else "perfdag-scale"
        return self.namespace if isinstance(self.namespace, list) else [self.namespace or own]

    @property
    def schedule(self) -> Schedule:
        """How the workloads arrive. Raises ValueError without a rate or delay that is needed."""
        return Schedule(self.arrival, self.rate, self.parallel, self.delay, self.seed)

    def load(self, run: str) -> Template:
        """Load the template for a run. Raises TemplateError."""
        values = {"project": self.project, "workers": self.workers, "gpus": self.gpus}
        return load(
            self.template,
            run,
            values | self.variables,
            pvc=self.pvc,
            storage_class=self.storage_class,
            gated=self.scenario == "gated",
        )

    def check(self) -> None:
        """See ScenarioParams."""
        template, gated = self.load("check"), self.scenario == "gated"
        steps = chain(template.kind)
        if template.kind.startswith("VirtualMachine"):
            raise TemplateError(f"use vmi-burst or vmi-steady for a {template.kind}")
        if gated and (not template.has_pods or template.members is None):
            raise TemplateError(
                f"gated holds pods, and a {template.kind} has no pod spec: use template pod or job"
            )
        if self.goal == "succeeded" and (
            gated or STAGES[self.goal] not in {step.name for step in steps}
        ):
            raise TemplateError(
                f"a {template.kind} does not end by itself: goal succeeded needs a Job, PyTorchJob "
                "or Pod, and scenario submit"
            )
        figures.check(
            [parse_gate(text) for text in self.gates],
            self.scenario,
            # Only scenario submit lasts until its pods end.
            [step for step in steps if step.stage != "succeeded" or not gated],
            FIGURES if gated else (),
            paced=self.schedule.open_loop,
            count=self.count,
        )


async def measure(kube: Kube, params: ScaleParams, context: Context) -> Result:
    """Run the scenario under the performance lock, and delete its objects.

    Missing namespaces are created and later deleted. Raises TemplateError, LockTimeoutError,
    KubeError.
    """
    params.check()
    patience = max(0.0, min(params.lock_timeout, context.deadline - time.monotonic()))
    async with ExclusiveRun(kube, context.run, patience) as lock:
        # Before anything is made: what a killed process leaves is deleted by this id.
        logger.info(f"run {context.run}: {params.scenario}")
        template = params.load(context.run)
        members = template.members
        async with open_session(kube, context, template, params.namespaces, members) as session:
            await session.create(params.count, params.schedule, params.parallel)
            goal, own = params.goal, dict[str, float | None]()
            if params.scenario == "gated":
                goal, own = "scheduled", await _schedule_all(kube, params, session)
            elif not await _reached(session, params):
                text = f"not all workloads {goal} {session.wait_end(params.timeout)}"
                session.notes.append(text)
                if not session.observer.counts["Pod", "created"]:
                    text = f"no pod was seen whose owners lead to a {template.kind}"
                    session.notes.append(text)
            result = await finish(session, params, goal, own)
    result.disturbed = lock.lost
    return result


async def _reached(session: Session, params: ScaleParams) -> bool:
    """Wait until all reached the goal, or failed."""
    if params.goal != "succeeded":
        return await session.all_reached(params.timeout, params.goal)
    kind, count = session.template.kind, len(session.alive())
    ends = {"succeeded", "failed"}
    return await session.until(
        lambda: sum(not ends.isdisjoint(own.stages) for own in session.observer.of(kind)) >= count,
        params.timeout,
    )


async def _schedule_all(
    kube: Kube, params: ScaleParams, session: Session
) -> dict[str, float | None]:
    """Release pods that were held, together, and count pods per second until all are scheduled."""
    if not await session.all_reached(params.timeout, "gated"):
        gated = sum(session.settled("gated").values())
        session.notes.append(f"only {gated} pods were gated: later ones were not released")
    # A slow submission has opened few connections: the release must not wait for handshakes.
    await kube.connect(params.parallel)
    start = time.monotonic_ns()
    await release(kube, list(session.observer.of("Pod")), params.parallel)
    released = (time.monotonic_ns() - start) / 1e9
    if not await session.all_reached(params.timeout, "scheduled"):
        session.notes.append(f"not all pods scheduled {session.wait_end(params.timeout)}")
    times = [pod.times("scheduled") for pod in session.observer.of("Pod")]
    at = [(moments[2] - start) / 1e9 for moments in times if moments and moments[2]]
    if at and released > RELEASE_BOUND * max(at):
        session.notes.append(
            f"the release took {released:.1f} s and the scheduler kept up: its rate is a lower "
            "bound"
        )
    mean, best = len(at) / max(at) if at else None, throughput(at)[1]
    return {"schedule_rate": mean, "schedule_rate_best_5s": best, "release_seconds": released}


async def release(kube: Kube, records: Sequence[Record], parallel: int) -> None:
    """Remove our scheduling gate from pods, `parallel` at a time. Raises KubeError.

    Deleted pods are ignored, and so are pods that an unanswered request had already released.
    """
    pods, queue = await kube.resource("v1", "Pod"), iter(records)
    patch = {"spec": {"schedulingGates": [{"$patch": "delete", "name": HOLD}]}}

    async def worker() -> None:
        for record in queue:
            record.put("released", received_ns=time.monotonic_ns())
            try:
                await kube.patch(
                    pods, record.name, patch, record.namespace, content_type=STRATEGIC_PATCH
                )
            except KubeError as error:
                if error.status not in (404, 422):
                    raise

    await asyncio.gather(*(worker() for _ in range(parallel)))


async def finish(
    session: Session, params: ScaleParams, goal: Goal, own: dict[str, float | None]
) -> Result:
    """Compute rows, figures and verdicts, and delete all objects."""
    await session.scrape(CREATION)
    rows = await session.rows()
    final = [row for row in rows if row.stage == STAGES[goal]]
    left = await session.delete_all(params.parallel, params.timeout)
    rows = with_deletion(rows, await session.rows())
    facts: dict[str, Any] = {"goal": goal}
    if {True, False} <= {row.simulated for row in rows}:
        session.notes.append("pods ran on simulated and on real nodes: the figures mix both")
    if session.template.documents[-1].api_version.startswith("run.ai/"):
        facts["version"] = await _runai_version(session.kube)
    outcome = outcome_figures(final, final, len(session.submissions))
    gates = [parse_gate(text) for text in params.gates]
    return session.result(
        params.scenario, rows, {**outcome, **own, "left_behind": left}, gates, facts
    )


async def _runai_version(kube: Kube) -> str | None:
    """Return the version in Run:ai's ConfigMap; None if absent, simulated or not readable.

    Source: Run:ai documentation, "Install a cluster", verify your installation.
    """
    with suppress(KubeError):
        config_map = await kube.get(await kube.resource("v1", "ConfigMap"), "runai-public", "runai")
        version: str | None = (config_map.get("data") or {}).get("cluster-version")
        return version
    return None


_ALL = ["list", "watch", "create", "delete"]


class Scale(ScenarioBenchmark[ScaleParams]):
    """Submit many workloads and see when each is created, scheduled and ready.

    The headline is the time from submission until the last pod of a workload is scheduled.
    Workloads that were never scheduled count as infinitely long, refused ones as failed. On
    simulated nodes only the control plane and the scheduler are measured.

    Clock: this process's. It starts when the workload is due (in a closed loop: sent). It stops
    when the watch shows a node for its last pod. The lag of the watch is measured and is the error
    bar.
    """

    name = "scale"
    api: ClassVar[Rights] = Rights(
        named=(
            *OWN_NAMESPACE,
            {"apiGroups": ["run.ai", "kubeflow.org"], "resources": ["*"], "verbs": _ALL},
            {"apiGroups": ["scheduling.run.ai"], "resources": ["podgroups"], "verbs": _ALL},
            {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": _ALL},
            {
                "apiGroups": ["apps"],
                "resources": ["replicasets", "deployments", "statefulsets"],
                "verbs": _ALL,
            },
            {
                "apiGroups": [""],
                "resources": ["pods"],
                "verbs": ["list", "watch", "create", "patch", "delete"],
            },
            {
                "apiGroups": [""],
                "resources": ["persistentvolumeclaims"],
                "verbs": ["list", "watch"],
            },
        ),
        default=PERFORMANCE_RUN,
        cluster=(
            *WHOLE_CLUSTER,
            {
                "apiGroups": [""],
                "resources": ["configmaps"],
                "resourceNames": ["runai-public"],
                "verbs": ["get"],
            },
        ),
    )
    Params: ClassVar[type[Params]] = ScaleParams
    system = "Run:ai"
    headline = "submission_to_scheduled"
    size = "objects"
    coords = COORDS
    own_figures = FIGURES
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

    async def measure(self, kube: Kube, params: ScaleParams, context: Context) -> list[Result]:
        """See ScenarioBenchmark."""
        return [await measure(kube, params, context)]

    def seconds(self, params: ScaleParams) -> float:
        """Return the schedule, and an estimate of 20 ms per pod."""
        return 20.0 + params.schedule.span(params.count) + 0.02 * params.count * params.workers

    def limit(self, params: ScaleParams) -> float:
        """Return the sum of the lock, the schedule and at most three waits."""
        waits = params.schedule.span(params.count) + 3 * params.timeout
        return params.lock_timeout + waits + SLACK_S
