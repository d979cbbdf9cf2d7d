"""Scenarios of workloads: a submission, and the scheduler alone.

Pods or the user's workloads pass through the cluster's scheduler. On simulated nodes only the
scheduler and the API are measured.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from perfdag.kube.client import STRATEGIC_PATCH, Kube, KubeError
from perfdag.steps.scale.cluster.lease_lock import ExclusiveRun
from perfdag.steps.scale.figures import gates
from perfdag.steps.scale.figures.api_metrics import CREATION
from perfdag.steps.scale.figures.gates import Gate
from perfdag.steps.scale.figures.rows import throughput, with_deletion
from perfdag.steps.scale.measure.observer import expected_count
from perfdag.steps.scale.model.stages import Record, chain, has_no_pods
from perfdag.steps.scale.model.templates import HOLD, Template, TemplateError, load
from perfdag.steps.scale.scenarios.session import (
    Result,
    RunSpec,
    Session,
    open_session,
    outcome_figures,
    result_of,
)


async def runai_version(kube: Kube) -> str | None:
    """Return the version in Run:ai's ConfigMap; None if absent, simulated or not readable.

    Source: Run:ai documentation, "Install a cluster", verify your installation.
    """
    with suppress(KubeError):
        config_map = await kube.get(await kube.resource("v1", "ConfigMap"), "runai-public", "runai")
        version: str | None = (config_map.get("data") or {}).get("cluster-version")
        return version
    return None


RELEASE_BOUND = 0.8
"""Share of the time above which the release, not the scheduler, was the bottleneck."""
FIGURES = ("schedule_rate", "schedule_rate_best_5s", "release_seconds")
"""Figures that the scenario `gated` alone has, by the names of the benchmark's metrics."""
Scenario = Literal["submit", "gated"]
Goal = Literal["scheduled", "ready", "succeeded"]
STAGES: dict[Goal, str] = {
    "scheduled": "submission_to_scheduled",
    "ready": "ready",
    "succeeded": "submission_to_succeeded",
}
"""Goal -> the stage of a workload. A pod that succeeds at once may never be Ready."""


@dataclass
class Spec(RunSpec):
    """The workloads of a scenario."""

    template: str = "job"
    count: int = 100
    namespaces: list[str] = field(default_factory=lambda: ["perfdag-scale"])
    workers: int = 1
    gpus: int | float = 1
    pvc: bool = False
    storage_class: str | None = None
    goal: Goal = "ready"
    gates: list[Gate] = field(default_factory=list)


def template_of(spec: Spec, run: str, *, gated: bool = False) -> Template:
    """Return the spec's template for a run. Raises TemplateError."""
    return load(
        spec.template,
        run,
        {"workers": spec.workers, "gpus": spec.gpus, **spec.variables},
        pvc=spec.pvc,
        storage_class=spec.storage_class,
        gated=gated,
    )


@asynccontextmanager
async def session_of(kube: Kube, spec: Spec, scenario: Scenario) -> AsyncIterator[Session]:
    """Open a session in the spec's namespaces; missing ones are created and later deleted.

    Logs the run's id before anything is made, by which the objects of a killed process can be
    deleted.
    """
    spec.log(f"run {spec.run}: {scenario}")
    template = template_of(spec, spec.run, gated=scenario == "gated")
    async with open_session(
        kube,
        template,
        spec.namespaces,
        spec.run,
        expected_pods=template.members,
        deadline=spec.deadline,
        log=spec.log,
    ) as session:
        yield session


async def finish(
    scenario: Scenario, spec: Spec, session: Session, extra: dict[str, float | None]
) -> Result:
    """Compute rows, figures and verdicts, and delete all objects."""
    await session.scrape(CREATION)
    rows = await session.rows()
    goal = spec.goal if scenario == "submit" else "scheduled"
    final = [row for row in rows if row.stage == STAGES[goal]]
    left = await session.delete_all(spec.parallel, spec.timeout)
    rows = with_deletion(rows, await session.rows())
    ended = time.time()
    facts: dict[str, Any] = {"goal": goal}
    if {True, False} <= {row.simulated for row in rows}:
        session.notes.append("pods ran on simulated and on real nodes: the figures mix both")
    if session.template.documents[-1].api_version.startswith("run.ai/"):
        facts["runai_version"] = await runai_version(session.kube)
    figures = outcome_figures(final, final, len(session.submissions))
    figures |= extra | {"left_behind": left}
    count = len(session.submissions)
    return result_of(session, scenario, count, rows, figures, spec.gates, facts, ended)


async def submit(kube: Kube, spec: Spec) -> Result:
    """Create the workloads, wait until all reach the goal, and delete them.

    Raises TemplateError, KubeError.
    """
    async with session_of(kube, spec, "submit") as session:
        await session.create(spec.count, spec.schedule, spec.parallel)
        kind = session.template.kind
        if spec.goal == "succeeded":
            done = await session.wait(
                kind, expected_count(session.submissions, 1), spec.timeout, "succeeded", "failed"
            )
        else:
            done = await session.all_reached(spec.timeout, spec.goal)
        if not done:
            session.notes.append(f"not all pods {spec.goal} {session.wait_end(spec.timeout)}")
            if not session.observer.counts["Pod", "created"]:
                session.notes.append(f"no pod was seen whose owners lead to a {kind}")
        return await finish("submit", spec, session, {})


async def gated(kube: Kube, spec: Spec) -> Result:
    """Measure the scheduler alone: create gated pods, release them together, count pods per second.

    Raises TemplateError, KubeError.
    """
    check(spec, "gated")
    async with session_of(kube, spec, "gated") as session:
        await session.create(spec.count, spec.schedule, spec.parallel)
        if not await session.all_reached(spec.timeout, "gated"):
            gated, expected = session.progress("gated")
            session.notes.append(
                f"{gated} of {expected} pods were gated {session.wait_end(spec.timeout)}: later "
                "ones were not released"
            )
        # A slow submission has opened few connections: the release must not wait for handshakes.
        await kube.connect(spec.parallel)
        start = time.monotonic_ns()
        await release(kube, list(session.observer.of("Pod")), spec.parallel)
        released = time.monotonic_ns()
        if not await session.all_reached(spec.timeout, "scheduled"):
            session.notes.append(f"not all pods scheduled {session.wait_end(spec.timeout)}")
        times = [pod.times("scheduled") for pod in session.observer.of("Pod")]
        at = [moments[2] / 1e9 for moments in times if moments and moments[2]]
        mean = len(at) / (max(at) - start / 1e9) if at else None
        extra = {"schedule_rate": mean, "release_seconds": (released - start) / 1e9}
        if at and released / 1e9 - start / 1e9 > RELEASE_BOUND * (max(at) - start / 1e9):
            session.notes.append(
                f"the release took {(released - start) / 1e9:.1f} s and the scheduler kept up: its "
                "rate is a lower bound"
            )
        extra["schedule_rate_best_5s"] = throughput(at)[1]
        return await finish("gated", spec, session, extra)


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


def check(spec: Spec, scenario: Scenario) -> None:
    """Raise ValueError if the template does not fit the scenario."""
    template = template_of(spec, "check")
    if scenario == "gated" and (not template.has_pods or template.members is None):
        raise TemplateError(
            f"scheduler-only mode gates pods, and a {template.kind} has no pod spec: use template "
            "pod or job"
        )
    if scenario == "gated" and template.at_once != template.members:
        remedy = (
            "podManagementPolicy: Parallel"
            if template.kind == "StatefulSet"
            else f"parallelism: {template.members}"
        )
        raise TemplateError(
            f"scheduler-only mode waits for all {template.members} pods of a {template.kind}, "
            f"which creates only {template.at_once} until one of them runs: set {remedy}"
        )
    last = template.documents[-1]
    if has_no_pods(last.api_version, last.kind):
        raise TemplateError(
            f"a {template.kind} creates no pods; put it before a workload in the same file"
        )
    if spec.goal == "succeeded" and scenario != "submit":
        raise TemplateError(
            f"{scenario} ends when its pods are scheduled; goal succeeded needs scenario submit"
        )
    steps = chain(last.api_version, last.kind)
    if spec.goal == "succeeded" and STAGES[spec.goal] not in {step.name for step in steps}:
        raise TemplateError(
            f"a {template.kind} does not end by itself: goal succeeded needs a Job, PyTorchJob or "
            "Pod"
        )
    if template.kind.startswith("VirtualMachine"):
        raise TemplateError(f"use vmi-burst or vmi-steady for a {template.kind}")
    gates.check(
        spec.gates,
        scenario,
        # Only scenario submit lasts until its pods end.
        [step for step in steps if step.stage != "succeeded" or scenario == "submit"],
        FIGURES if scenario == "gated" else (),
        paced=spec.schedule.open_loop,
        count=spec.count,
    )


async def exclusive(kube: Kube, spec: Spec, scenario: Scenario, lock_timeout: float) -> Result:
    """Run one scenario under the performance lock.

    Raises TemplateError, LockTimeoutError, KubeError.
    """
    check(spec, scenario)
    patience = max(0.0, min(lock_timeout, spec.deadline - time.monotonic()))
    async with ExclusiveRun(kube, spec.run, patience, spec.log) as lock:
        result = await (gated if scenario == "gated" else submit)(kube, spec)
    result.disturbed = lock.lost
    return result
