"""scale: thousands of workloads through the scheduler.

Pods or the user's workloads pass through the cluster's scheduler. On simulated nodes only the
scheduler and the API are measured.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from perfdag.benchmark.contract import Duration, Metric, Rights, ShortForm, rbac_rule
from perfdag.kube.client import Kube
from perfdag.steps.scale import figures
from perfdag.steps.scale.cluster import (
    OWN_NAMESPACE,
    PERFORMANCE_RUN,
    WHOLE_CLUSTER,
)
from perfdag.steps.scale.figures import COORDS, METRICS, SHORT_FORMS, Result, parse_gate
from perfdag.steps.scale.generate import Arrival, Schedule
from perfdag.steps.scale.objects import (
    Template,
    chain,
    inlined,
    load,
)
from perfdag.steps.scale.scenario import (
    SLACK_S,
    Context,
    ScenarioBenchmark,
    ScenarioParams,
    Session,
    open_session,
)

RUNAI_API = "run.ai/v2alpha1"
RUNAI_KINDS = {
    "training": "TrainingWorkload",
    "distributed": "DistributedWorkload",
    "interactive": "InteractiveWorkload",
}
"""Template -> kind of the workloads of Run:ai."""
Goal = Literal["scheduled", "ready", "succeeded"]
STAGES: dict[Goal, str] = {
    "scheduled": "submission_to_scheduled",
    "ready": "ready",
    "succeeded": "submission_to_succeeded",
}
"""Goal -> the stage of a workload. A pod that succeeds at once may never be Ready."""


class ScaleParams(ScenarioParams):
    """The workloads, their arrival, and the goal that is waited for."""

    retired: ClassVar[Mapping[str, Any]] = {"scenario": "submit", "seed": 0}
    template: Annotated[str, AfterValidator(inlined)] = Field(
        "job",
        description="training, distributed, interactive, job, pod, pytorchjob, or a YAML file (the "
        "plan keeps its text)",
    )
    count: int = Field(100, ge=1, description="workloads")
    parallel: int = Field(8, ge=1, le=1000, description="submissions in flight")
    arrival: Arrival = Field(
        "closed",
        description="closed (as fast as possible), constant (at `rate`), or batch (`parallel` at "
        "once every `delay`)",
    )
    delay: Duration = Field(
        0.0, description="seconds between batches of `parallel` (arrival batch)"
    )
    workers: int = Field(1, ge=1, description="workers of one workload")
    gpus: int | float = Field(1, ge=0, description="GPUs a pod, also a fraction of Run:ai's kinds")
    pvc: bool = Field(False, description="a claim each pod, of Run:ai's kinds")
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
        if isinstance(self.namespace, list):
            return self.namespace
        of_runai = self.template in RUNAI_KINDS
        return [self.namespace or (f"runai-{self.project}" if of_runai else "perfdag-scale")]

    @property
    def schedule(self) -> Schedule:
        """How the workloads arrive. Raises ValueError without a rate or delay that is needed."""
        return Schedule(self.arrival, self.rate, self.parallel, self.delay)

    def load(self, run: str) -> Template:
        """Load the template for a run. Raises ValueError."""
        values = {"project": self.project, "workers": self.workers, "gpus": self.gpus}
        return load(
            self.template,
            run,
            values | self.variables,
            pvc=self.pvc,
            storage_class=self.storage_class,
        )

    def check(self) -> None:
        """See ScenarioParams."""
        template = self.load("check")
        steps = chain(template.kind)
        if template.kind.startswith("VirtualMachine"):
            raise ValueError(f"use vmi-burst or vmi-steady for a {template.kind}")
        if STAGES[self.goal] not in {step.name for step in steps}:
            raise ValueError(
                f"a {template.kind} does not end by itself: goal succeeded needs a Job, PyTorchJob "
                "or Pod"
            )
        figures.check(
            [parse_gate(text) for text in self.gates],
            "scale",
            steps,
            (),
            paced=self.schedule.open_loop,
            count=self.count,
        )


async def finish(session: Session, params: ScaleParams) -> Result:
    """Delete all objects, and return the result."""
    rows, outcome = await session.finish(
        STAGES[params.goal], params.count, params.parallel, params.timeout
    )
    if {True, False} <= {row.simulated for row in rows}:
        session.notes.append("pods ran on simulated and on real nodes: the figures mix both")
    gates = [parse_gate(text) for text in params.gates]
    return session.result("submit", rows, outcome, gates, {"goal": params.goal})


_ALL = "list watch create delete"


class Scale(ScenarioBenchmark[ScaleParams]):
    """Submit many workloads and see when each is created, scheduled and ready.

    The headline is the time from submission until the last pod of a workload is scheduled.
    Workloads that were never scheduled count as infinitely long, refused ones as failed. On
    simulated nodes only the control plane and the scheduler are measured.

    Clock: this process's. It starts when the workload is due (in a closed loop: sent). It stops
    when the watch shows a node for its last pod. The lag of the watch is measured and is the error
    bar.
    """

    api: ClassVar[Rights] = Rights(
        named=(
            *OWN_NAMESPACE,
            rbac_rule("run.ai kubeflow.org", "*", _ALL),
            rbac_rule("scheduling.run.ai", "podgroups", _ALL),
            rbac_rule("batch", "jobs", _ALL),
            rbac_rule("apps", "replicasets deployments statefulsets", _ALL),
            rbac_rule("", "pods", _ALL),
            rbac_rule("", "persistentvolumeclaims", "list watch"),
        ),
        default=PERFORMANCE_RUN,
        cluster=WHOLE_CLUSTER,
    )
    system = "Run:ai"
    size = "objects"
    coords = COORDS
    short_forms: ClassVar[Mapping[str, ShortForm]] = {**SHORT_FORMS, "count": "{} workloads"}
    metrics = (
        Metric(
            "submission_to_scheduled",
            "s",
            "lower",
            "workload sent to its last pod scheduled (p50, p95, p99)",
            headline=True,
            label="time to scheduled",
        ),
        *METRICS,
    )

    async def scenario(self, kube: Kube, params: ScaleParams, context: Context) -> None:
        """Submit the workloads, wait for the goal, and delete them."""
        template = params.load(context.run)
        async with open_session(
            kube, context, template, params.namespaces, template.members
        ) as session:
            await session.create(params.count, params.schedule, params.parallel)
            if not await session.all_reached(params.timeout, params.goal):
                when = session.wait_end(params.timeout)
                session.notes.append(f"not all workloads {params.goal} {when}")
                if not session.observer.count("Pod", "created"):
                    session.notes.append(f"no pod was seen whose owners lead to a {template.kind}")
            result = await finish(session, params)
        context.seen(result)

    def seconds(self, params: ScaleParams) -> float:
        """Return the schedule, and an estimate of 20 ms per pod."""
        return 20.0 + params.schedule.span(params.count) + 0.02 * params.count * params.workers

    def limit(self, params: ScaleParams) -> float:
        """Return the sum of the lock, the schedule and at most three waits."""
        waits = params.schedule.span(params.count) + 3 * params.timeout
        return params.lock_timeout + waits + SLACK_S
