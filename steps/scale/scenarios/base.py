"""The parts that all scheduling scenarios share: the spec, the session and the result."""

import math
import time
from collections.abc import AsyncIterator, Callable, Container
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from perfdag.kube.client import Kube
from perfdag.steps.scale.cluster.namespaces import own_namespaces
from perfdag.steps.scale.cluster.runai_version import runai_version
from perfdag.steps.scale.figures import api_metrics
from perfdag.steps.scale.figures.api_metrics import CREATION
from perfdag.steps.scale.figures.percentiles import Summary, summaries, throughput
from perfdag.steps.scale.figures.rows import on_simulated, with_deletion
from perfdag.steps.scale.model.gates import Gate, evaluate
from perfdag.steps.scale.model.run_id import new_run
from perfdag.steps.scale.model.schedule import Schedule
from perfdag.steps.scale.model.templates import Template, load
from perfdag.steps.scale.scenarios.open_session import open_session
from perfdag.steps.scale.scenarios.result import Result, figures_of
from perfdag.steps.scale.scenarios.session import Session

ONLY_SCHEDULED = ("gated", "fill", "fragmentation", "preemption", "gang", "reclaim")
"""Scenarios whose pods need not become ready."""
Goal = Literal["scheduled", "ready", "succeeded"]
STAGES: dict[Goal, str] = {
    "scheduled": "submission_to_scheduled",
    "ready": "ready",
    "succeeded": "submission_to_succeeded",
}
"""What a workload must reach for a goal: one that succeeds too fast for Ready has succeeded."""


class ScenarioUnavailableError(Exception):
    """The scenario cannot run on this cluster, with the reason."""


@dataclass
class Spec:
    """What to submit. `timeout` bounds every wait in seconds."""

    template: str = "job"
    count: int = 100
    namespaces: list[str] = field(default_factory=lambda: ["perfdag-scale"])
    schedule: Schedule = field(default_factory=Schedule)
    parallel: int = 20
    workers: int = 1
    gpus: int = 1
    pvc: bool = False
    storage_class: str | None = None
    timeout: float = 900.0
    goal: Goal = "ready"
    variables: dict[str, Any] = field(default_factory=dict)
    gates: list[Gate] = field(default_factory=list)
    deadline: float = math.inf
    """time.monotonic() after which only deletion is waited for. Later stages are censored."""
    log: Callable[[str], None] = lambda text: None
    run: str = field(default_factory=new_run)
    """The id that labels all objects of the run, the lock included."""


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
    goal = "scheduled" if scenario in ONLY_SCHEDULED else spec.goal
    final = [row for row in rows if row.stage == STAGES[goal]]
    mean, best = throughput([row.reached for row in final if row.reached and row.status == "ok"])
    if among is not None:
        planned_misses = min(
            planned_misses, sum(row.status != "ok" and row.uid in among for row in final)
        )
    left = await session.delete_all(spec.parallel, spec.timeout)
    rows = with_deletion(rows, await session.rows())
    stages: list[Summary] = summaries(rows)
    planned = len(session.submissions) - planned_misses
    figures = figures_of(session, rows, stages) | {
        "throughput_mean": mean,
        "throughput_best_5s": best,
    }
    figures["success_ratio"] = (
        sum(row.status == "ok" for row in final) / planned if planned else None
    )
    figures["censored"] = float(sum(row.status == "censored" for row in final))
    figures |= extra
    figures |= api_metrics.deletion_figures(session.phases) | {"left_behind": left}
    generator = [batch.summary(schedule) for batch, schedule in session.batches]
    started, ended = session.batches[0][0].started_wall, time.time()
    await session.check_clocks()
    if {True, False} <= {row.simulated for row in rows}:
        session.notes.append("pods ran on simulated and on real nodes: the figures mix both")
    facts = session.facts() | {
        "generator": generator,
        "simulated": on_simulated(rows),
        "goal": goal,
    }
    if session.template.documents[-1].api_version.startswith("run.ai/"):
        facts["runai_version"] = await runai_version(session.kube)
    verdicts = evaluate(spec.gates, figures | session.gate_latencies())
    calls = api_metrics.call_records(session.phases)
    count = len(session.submissions)
    return Result(
        scenario,
        count,
        session.run,
        rows,
        stages,
        figures,
        facts,
        verdicts,
        calls=calls,
        started=started,
        ended=ended,
    )
