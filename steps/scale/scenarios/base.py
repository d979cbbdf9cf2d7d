"""The parts that scenarios share: the spec, the session, and the result with its figures."""

import math
import time
from collections.abc import AsyncIterator, Callable, Container, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from perfdag.kube.client import Kube
from perfdag.steps.scale.cluster.namespaces import own_namespaces
from perfdag.steps.scale.cluster.runai_version import runai_version
from perfdag.steps.scale.figures import api_metrics
from perfdag.steps.scale.figures.api_metrics import CREATION
from perfdag.steps.scale.figures.percentiles import Summary, summaries, throughput
from perfdag.steps.scale.figures.rows import Row, on_simulated, with_deletion
from perfdag.steps.scale.model.gates import Gate, Verdict, breaches, evaluate
from perfdag.steps.scale.model.nodes import RACK_LABEL
from perfdag.steps.scale.model.records import Record
from perfdag.steps.scale.model.run_id import new_run
from perfdag.steps.scale.model.schedule import Schedule
from perfdag.steps.scale.model.stages import VM_PHASES
from perfdag.steps.scale.model.templates import Template, load
from perfdag.steps.scale.scenarios.clock_facts import clock_facts
from perfdag.steps.scale.scenarios.open_session import open_session
from perfdag.steps.scale.scenarios.session import Session


@dataclass
class Result:
    """One scenario at one size.

    `figures` are in SI units (None: no data), `trace` is (seconds, VMIs Running), `started` and
    `ended` are Unix seconds.
    """

    scenario: str
    count: int
    run: str
    rows: list[Row]
    stages: list[Summary]
    figures: dict[str, float | None]
    facts: dict[str, Any]
    verdicts: list[Verdict] = field(default_factory=list)
    trace: list[tuple[float, int]] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    started: float = 0.0
    ended: float = 0.0
    error: str = ""
    """The reason why this size was not measured, or empty."""
    disturbed: str = ""
    """Why the figures are void: another run measured too, or another scheduler answered."""

    @property
    def breached(self) -> list[Verdict]:
        """Gates that failed or had no data."""
        return breaches(self.verdicts)

    @property
    def failed(self) -> bool:
        """Whether the run failed.

        A gate, a VMI or an operation failed, an object was left, or another run disturbed it.
        """
        return (
            bool(self.breached or self.disturbed or self.figures["left_behind"])
            or self.figures["success_ratio"] != 1.0
            or self.figures.get("operation_ratio", 1.0) != 1.0
        )

    @property
    def undecided(self) -> list[Verdict]:
        """Gates without data if nothing else failed, else empty."""
        known = [verdict for verdict in self.verdicts if verdict.passed is not None]
        return (
            []
            if replace(self, verdicts=known).failed
            else [verdict for verdict in self.verdicts if verdict.passed is None]
        )


def phase_counts(vmis: Iterable[Record]) -> dict[str, float]:
    """`<phase>-phase-count` -> VMIs in it now, as KubeVirt's audit names them."""
    counts = dict.fromkeys((f"{phase}-phase-count" for phase in VM_PHASES), 0.0)
    for vmi in vmis:
        reached = [stage for stage in vmi.stages if stage in VM_PHASES]
        if reached and "gone" not in vmi.stages:
            counts[f"{max(reached, key=VM_PHASES.index)}-phase-count"] += 1
    return counts


def figures_of(session: Session, rows: list[Row], stages: list[Summary]) -> dict[str, float | None]:
    """Return stage percentiles (s), throughput, success, API latency and counts, watch lag."""
    figures: dict[str, float | None] = {}
    for summary in stages:
        figures |= {
            f"{summary.stage}_p50": summary.p50,
            f"{summary.stage}_p95": summary.p95,
            f"{summary.stage}_p99": summary.p99,
        }
    final = [row for row in rows if row.stage == "creation_to_running"]
    every = len(session.submissions)
    first = session.batches[0][0].submissions if session.batches else []
    end = first[-1].index + 1 if first else 0
    # Without the churn after the ramp, which has its own pace.
    ramp = [row for row in final if row.index * every < end * len(final)]
    figures |= outcome_figures(final, ramp, len(final) or len(session.submissions))
    created = sum(1 for item in session.submissions if item.answered_ns and not item.error)
    figures |= {
        "create_ratio": created / len(session.submissions) if session.submissions else None,
        "watch_lag_p99": session.heartbeats.p99,
    }
    calls = session.phases.get(CREATION, [])
    if calls and api_metrics.worst(calls) is None:
        count = sum(call.count for call in calls if call.single)
        session.notes.append(
            f"no api_p99: it needs {api_metrics.NEEDED} requests of single objects, and there were "
            f"{count}"
        )
    figures |= api_metrics.named_figures(calls)
    rates = [batch.summary(schedule) for batch, schedule in session.batches]
    if rates:
        figures |= {
            "create_rate": rates[0]["create_rate_per_s"],
            "schedule_held": rates[0]["rate_share"],
            "submit_lag": rates[0]["lag_p99_s"],
        }
    return figures


def outcome_figures(
    final: Sequence[Row], paced: Sequence[Row], planned: int
) -> dict[str, float | None]:
    """Return the throughput of the `paced` rows, and what became of the `final` ones.

    `final` has the last stage of each workload, of `planned` in all.
    """
    mean, best = throughput([row.reached for row in paced if row.reached and row.status == "ok"])
    return {
        "throughput_mean": mean,
        "throughput_best_5s": best,
        "success_ratio": sum(row.status == "ok" for row in final) / planned if planned else None,
        "censored": float(sum(row.status == "censored" for row in final)),
    }


Goal = Literal["scheduled", "ready", "succeeded"]
STAGES: dict[Goal, str] = {
    "scheduled": "submission_to_scheduled",
    "ready": "ready",
    "succeeded": "submission_to_succeeded",
}
"""Goal -> the stage of a workload. A pod that succeeds at once may never be Ready."""


class ScenarioUnavailableError(Exception):
    """The scenario cannot run on this cluster, with the reason."""


@dataclass
class RunSpec:
    """The parameters of all scenarios. `timeout` bounds every wait in seconds."""

    schedule: Schedule = field(default_factory=Schedule)
    parallel: int = 20
    timeout: float = 900.0
    variables: dict[str, Any] = field(default_factory=dict)
    deadline: float = math.inf
    """time.monotonic() after which only deletion is waited for. Later stages are censored."""
    log: Callable[[str], None] = lambda text: None
    run: str = field(default_factory=new_run)
    """The id that labels all objects; parts of the run append to it (removal.belongs)."""


@dataclass
class Spec(RunSpec):
    """The workloads of a scheduling scenario. An empty `scheduler` is that of the template."""

    template: str = "job"
    count: int = 100
    namespaces: list[str] = field(default_factory=lambda: ["perfdag-scale"])
    workers: int = 1
    gpus: int | float = 1
    pvc: bool = False
    storage_class: str | None = None
    goal: Goal = "ready"
    gates: list[Gate] = field(default_factory=list)
    scheduler: str = ""
    queue: str = ""
    rack_label: str = RACK_LABEL

    @property
    def whole_gpus(self) -> int:
        """The GPUs of a pod in a scenario of whole GPUs."""
        return max(1, int(self.gpus))


def template_of(
    spec: Spec, run: str, *, gated: bool = False, name: str | None = None, **variables: Any
) -> Template:
    """Return the spec's template for a run. Raises TemplateError."""
    values = {"workers": spec.workers, "gpus": spec.gpus, **spec.variables, **variables}
    return load(
        name or spec.template,
        run,
        values,
        pvc=spec.pvc,
        storage_class=spec.storage_class,
        gated=gated,
    )


def start_run(spec: Spec, scenario: str) -> str:
    """Log and return the run's id, by which the objects of a killed process can be deleted."""
    spec.log(f"run {spec.run}: {scenario}")
    return spec.run


@asynccontextmanager
async def session_of(
    kube: Kube, spec: Spec, run: str, template: Template
) -> AsyncIterator[Session]:
    """Open a session in the spec's namespaces; missing ones are created and later deleted."""
    async with (
        own_namespaces(kube, spec.namespaces, run),
        open_session(
            kube,
            template,
            spec.namespaces,
            run,
            expected_pods=template.members,
            deadline=spec.deadline,
            log=spec.log,
        ) as session,
    ):
        yield session


async def finish(
    scenario: str,
    spec: Spec,
    session: Session,
    extra: dict[str, float | None],
    planned_misses: int = 0,
    among: Container[str] | None = None,
) -> Result:
    """Compute rows, figures and verdicts, and delete all objects.

    `planned_misses` workloads cannot reach the goal; with `among` (UIDs), at most as many of those.
    """
    await session.scrape(CREATION)
    rows = await session.rows()
    goal = spec.goal if scenario == "submit" else "scheduled"
    final = [row for row in rows if row.stage == STAGES[goal]]
    if among is not None:
        planned_misses = min(
            planned_misses, sum(row.status != "ok" and row.uid in among for row in final)
        )
    left = await session.delete_all(spec.parallel, spec.timeout)
    rows = with_deletion(rows, await session.rows())
    stages: list[Summary] = summaries(rows)
    planned = len(session.submissions) - planned_misses
    figures = figures_of(session, rows, stages) | outcome_figures(final, final, planned)
    figures |= extra | api_metrics.deletion_figures(session.phases) | {"left_behind": left}
    started, end = session.batches[0][0].started_wall, time.time()
    await session.check_clocks()
    if {True, False} <= {row.simulated for row in rows}:
        session.notes.append("pods ran on simulated and on real nodes: the figures mix both")
    facts = session.facts() | clock_facts(session, rows)
    facts["generator"] = [batch.summary(schedule) for batch, schedule in session.batches]
    facts |= {"simulated": on_simulated(rows), "goal": goal}
    if session.template.documents[-1].api_version.startswith("run.ai/"):
        facts["runai_version"] = await runai_version(session.kube)
    others = {
        name: count for name, count in session.observer.schedulers.items() if name != spec.scheduler
    }
    scheduled = [f"{name} scheduled {n} pods, not {spec.scheduler}" for name, n in others.items()]
    disturbed = ", ".join(scheduled) if spec.scheduler else ""
    verdicts = evaluate(spec.gates, figures | session.gate_latencies())
    calls = api_metrics.call_records(session.phases)
    return Result(
        scenario,
        len(session.submissions),
        session.run,
        rows,
        stages,
        figures,
        facts,
        verdicts,
        calls=calls,
        started=started,
        ended=end,
        disturbed=disturbed,
    )
