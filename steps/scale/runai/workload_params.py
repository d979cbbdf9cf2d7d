"""Parameters and cluster rights of the benchmark scale."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from perfdag.benchmark.contract import Params, Rights
from perfdag.steps.scale.cluster import rights
from perfdag.steps.scale.model.gates import check_gates, parse_gate
from perfdag.steps.scale.model.schedule import Arrival, Schedule
from perfdag.steps.scale.model.templates import inlined
from perfdag.steps.scale.runai.settings import WORKLOAD_TYPES
from perfdag.steps.scale.scenarios import submit
from perfdag.units import Duration, PositiveDuration

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
            "apiGroups": ["scheduling.x-k8s.io"],
            "resources": ["podgroups"],
            "verbs": ["list", "watch"],
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
