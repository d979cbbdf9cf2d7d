"""Scheduling scenarios: submission, and the scheduler alone.

Pods or the user's workloads pass through the cluster's scheduler. On simulated nodes only the
scheduler and the API are measured. Scenarios of GPUs and gangs have modules of their own.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from perfdag.kube.client import STRATEGIC_PATCH, Kube, KubeError
from perfdag.steps.scale.cluster.lease_lock import ExclusiveRun
from perfdag.steps.scale.figures import names
from perfdag.steps.scale.figures.percentiles import throughput
from perfdag.steps.scale.measure.completion import expected_count
from perfdag.steps.scale.model.chains import chain, has_no_pods
from perfdag.steps.scale.model.records import Record
from perfdag.steps.scale.model.templates import HOLD, TemplateError
from perfdag.steps.scale.scenarios.base import (
    STAGES,
    Result,
    ScenarioUnavailableError,
    Spec,
    finish,
    session_of,
    start_run,
    template_of,
)
from perfdag.steps.scale.scenarios.gangs import gang, reclaim
from perfdag.steps.scale.scenarios.gpus import fill, fragmentation, preemption
from perfdag.steps.scale.scenarios.kai import consolidation, failed_reclaim, topology

__all__ = [
    "ScenarioUnavailableError",
    "Spec",
    "fill",
    "fragmentation",
    "gang",
    "gated",
    "measure",
    "preemption",
    "reclaim",
    "submit",
]

RELEASE_BOUND = 0.8
"""Share of the time above which the release, not the scheduler, was the bottleneck."""
_PODS = ("fill", "fragmentation", "preemption")
"""Scenarios that make bare pods."""
_OWN_PODS = dict.fromkeys(_PODS, ("job", "pod"))
Scenario = Literal[
    "submit",
    "gated",
    "fill",
    "fragmentation",
    "preemption",
    "gang",
    "reclaim",
    "failed-reclaim",
    "consolidation",
    "topology",
]


async def submit(kube: Kube, spec: Spec) -> Result:
    """Create the workloads, wait until all reach the goal, and delete them.

    Raises TemplateError, KubeError.
    """
    run = start_run(spec, "submit")
    async with session_of(kube, spec, run, template_of(spec, run)) as session:
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
    run = start_run(spec, "gated")
    check(spec, "gated")
    template = template_of(spec, run, gated=True)
    async with session_of(kube, spec, run, template) as session:
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


_FIGURES: dict[Scenario, tuple[str, ...]] = {
    "submit": (),
    "gated": ("schedule_rate", "schedule_rate_best_5s", "release_seconds"),
    "fill": ("gpus_free", "gpus_allocated", "nodes_overcommitted", "unschedulable_verdict"),
    "fragmentation": ("packing",),
    "preemption": ("evicted", "preemptors"),
    "gang": ("gangs_fitting", "gangs_placed", "gangs_split"),
    "reclaim": ("reclaimed", "evicted"),
    "failed-reclaim": ("gangs_refused", "evicted"),
    "consolidation": ("consolidated", "evicted"),
    "topology": ("gangs_fitting", "gangs_placed", "gangs_in_one_rack"),
}
FIGURES = tuple(dict.fromkeys(name for own in _FIGURES.values() for name in own))
"""Figures that one scenario alone has, by the names of the benchmark's metrics."""
WAITS: dict[Scenario, str] = {
    "preemption": "preemptor_wait",
    "reclaim": "reclaim_wait",
    "failed-reclaim": "refusal_wait",
    "consolidation": "consolidation_wait",
    "topology": "topology_wait",
}
"""The main answer of a scenario: a wait, with its median and maximum."""
_EXTRA_FIGURES: dict[Scenario, tuple[str, ...]] = {
    "fragmentation": ("whole_nodes_ideal", "whole_nodes_placed"),
    **{scenario: (f"{wait}_p50", f"{wait}_max") for scenario, wait in WAITS.items()},
}
"""Figures that have other names as metrics, or are none."""


def own_figures(scenario: Scenario) -> tuple[str, ...]:
    """Return the figures that a scenario alone has, its main answer first."""
    return (*_EXTRA_FIGURES.get(scenario, ()), *_FIGURES[scenario])


_PACED = ("submit", "gated", "gang")
"""Scenarios that follow the schedule. The others create all objects at once."""
SCENARIOS: dict[Scenario, Callable[[Kube, Spec], Awaitable[Result]]] = {
    "submit": submit,
    "gated": gated,
    "fill": fill,
    "fragmentation": fragmentation,
    "preemption": preemption,
    "gang": gang,
    "reclaim": reclaim,
    "failed-reclaim": failed_reclaim,
    "consolidation": consolidation,
    "topology": topology,
}


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
    if has_no_pods(template.documents[-1].api_version, template.kind):
        raise TemplateError(
            f"a {template.kind} creates no pods; put it before a workload in the same file"
        )
    if scenario not in ("submit", "gated") and spec.template not in _OWN_PODS.get(
        scenario, ("job",)
    ):
        raise TemplateError(
            f"{scenario} creates its own pods; omit template, or set it to "
            f"{' or '.join(_OWN_PODS.get(scenario, ('job',)))}"
        )
    if spec.gpus != int(spec.gpus) and scenario not in ("submit", "gated"):
        raise TemplateError(f"{scenario} counts whole GPUs: gpus {spec.gpus:g} is no whole number")
    if (spec.scheduler or spec.queue) and scenario not in _PODS:
        raise TemplateError(
            f"{scenario} takes neither scheduler nor queue, which {', '.join(_PODS)} take"
        )
    last = template.documents[-1]
    if spec.goal == "succeeded" and scenario != "submit":
        raise TemplateError(
            f"{scenario} ends when its pods are scheduled; goal succeeded needs scenario submit"
        )
    if spec.goal == "succeeded" and STAGES[spec.goal] not in {
        step.name for step in chain(last.api_version, last.kind)
    }:
        raise TemplateError(
            f"a {template.kind} does not end by itself: goal succeeded needs a Job, PyTorchJob or "
            "Pod"
        )
    if template.kind.startswith("VirtualMachine"):
        raise TemplateError(f"use vmi-burst or vmi-steady for a {template.kind}")
    steps = chain("v1", "Pod") if scenario in _PODS else chain(last.api_version, last.kind)
    # Only scenario submit lasts until its pods end.
    lasting = [step for step in steps if step.stage != "succeeded" or scenario == "submit"]
    names.check(
        spec.gates,
        scenario,
        lasting,
        own_figures(scenario),
        paced=spec.schedule.open_loop and scenario in _PACED,
        count=spec.count if scenario in ("submit", "gated") else math.inf,
    )


async def exclusive(kube: Kube, spec: Spec, scenario: Scenario, lock_timeout: float) -> Result:
    """Run one scenario under the performance lock.

    Raises ScenarioUnavailableError, TemplateError, LockTimeoutError, KubeError.
    """
    check(spec, scenario)
    patience = max(0.0, min(lock_timeout, spec.deadline - time.monotonic()))
    async with ExclusiveRun(kube, spec.run, patience, spec.log) as lock:
        result = await measure(kube, spec, scenario)
    result.disturbed = lock.lost or result.disturbed
    return result


async def measure(kube: Kube, spec: Spec, scenario: Scenario) -> Result:
    """Run one scenario. Raises ScenarioUnavailableError, TemplateError, KubeError."""
    return await SCENARIOS[scenario](kube, spec)
