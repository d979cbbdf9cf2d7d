"""Scheduling scenarios: submission and the scheduler alone; those of GPUs and of gangs are in modules of their own.

All run pods (or the user's workloads) through the cluster's own scheduler; on simulated nodes nothing but the scheduler and the API
is exercised.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from perfdag.kube import STRATEGIC_PATCH, Kube, KubeError
from perfdag.steps.scale import names
from perfdag.steps.scale.chains import chain, without_pods
from perfdag.steps.scale.completion import wanted
from perfdag.steps.scale.gangs import gang, reclaim
from perfdag.steps.scale.gpus import fill, fragmentation, preemption
from perfdag.steps.scale.lock import ExclusiveRun
from perfdag.steps.scale.records import Record
from perfdag.steps.scale.scenario import (
    STAGES,
    NotHereError,
    Spec,
    begin,
    finish,
    session_of,
    template_of,
)
from perfdag.steps.scale.summary import throughput
from perfdag.steps.scale.templates import HOLD, TemplateError
from perfdag.steps.scale.vmi import Result

__all__ = [
    "NotHereError",
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

KEPT_UP = 0.8
"""Where releasing the pods took more than this share of the time, the scheduler was not what was waited for."""
_PODS = ("fill", "fragmentation", "preemption")
"""Scenarios that make bare pods."""
_OWN_PODS = dict.fromkeys(_PODS, ("job", "pod")) | dict.fromkeys(("gang", "reclaim"), ("job",))
Scenario = Literal["submit", "gated", "fill", "fragmentation", "preemption", "gang", "reclaim"]


async def submit(kube: Kube, spec: Spec) -> Result:
    """Create the workloads on their schedule, wait until all reached the goal, delete them. Raises TemplateError, KubeError."""
    run = begin(spec, "submit")
    async with session_of(kube, spec, run, template_of(spec, run)) as session:
        await session.create(spec.count, spec.schedule, spec.parallel)
        kind = session.template.kind
        if spec.goal == "succeeded":
            done = await session.wait(
                kind, wanted(session.submissions, 1), spec.timeout, "succeeded", "failed"
            )
        else:
            done = await session.all_there(spec.timeout, spec.goal)
        if not done:
            session.notes.append(f"not all pods {spec.goal} {session.ended(spec.timeout)}")
            if not session.observer.counts["Pod", "created"]:
                session.notes.append(f"no pod was seen whose owners lead to a {kind}")
        return await finish("submit", spec, session, {})


async def gated(kube: Kube, spec: Spec) -> Result:
    """The scheduler alone: pods are created with a scheduling gate, then all released; pods a second from the first release.

    How fast they were created does not matter. Raises TemplateError (also for a kind without pods of its own), KubeError.
    """
    run = begin(spec, "gated")
    check(spec, "gated")
    template = template_of(spec, run, gated=True)
    async with session_of(kube, spec, run, template) as session:
        await session.create(spec.count, spec.schedule, spec.parallel)
        if not await session.all_there(spec.timeout, "gated"):
            held, pods_made = session.there("gated")
            session.notes.append(
                f"{held} of {pods_made} pods were gated {session.ended(spec.timeout)}: any that came later were not released"
            )
        await kube.connect(
            spec.parallel
        )  # a slow submission had opened few, and then the release waited for handshakes
        start = time.monotonic_ns()
        await release(kube, list(session.observer.of("Pod")), spec.parallel)
        released = time.monotonic_ns()
        if not await session.all_there(spec.timeout, "scheduled"):
            session.notes.append(f"not all pods scheduled {session.ended(spec.timeout)}")
        times = [each.times("scheduled") for each in session.observer.of("Pod")]
        at = [found[2] / 1e9 for found in times if found and found[2]]
        mean = len(at) / (max(at) - start / 1e9) if at else None
        extra = {"schedule_rate": mean, "release_seconds": (released - start) / 1e9}
        if at and released / 1e9 - start / 1e9 > KEPT_UP * (max(at) - start / 1e9):
            session.notes.append(
                f"the release took {(released - start) / 1e9:.1f} s and the scheduler kept up: its rate is at least this"
            )
        extra["schedule_rate_best_5s"] = throughput(at)[1]
        return await finish("gated", spec, session, extra)


async def release(kube: Kube, held: Sequence[Record], parallel: int) -> None:
    """Remove our gate from pods (others may have theirs), `parallel` at a time. Raises KubeError.

    A pod that is gone is no error, and neither is one that was released: an answer was lost, and the request sent again.
    """
    pods, queue = await kube.resource("v1", "Pod"), iter(held)
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


_OWN: dict[Scenario, tuple[str, ...]] = {
    "submit": (),
    "gated": ("schedule_rate", "schedule_rate_best_5s", "release_seconds"),
    "fill": ("gpus_free", "gpus_allocated", "nodes_overcommitted", "unschedulable_verdict"),
    "fragmentation": ("packing",),
    "preemption": ("evicted",),
    "gang": ("gangs_fitting", "gangs_placed", "gangs_split"),
    "reclaim": ("reclaimed", "evicted"),
}
FIGURES = tuple(dict.fromkeys(name for own in _OWN.values() for name in own))
"""Figures that one scenario alone has, by the names of the benchmark's metrics."""
_BESIDES: dict[Scenario, tuple[str, ...]] = {
    "fragmentation": ("whole_nodes_ideal", "whole_nodes_placed"),
    "preemption": ("preemptor_wait_p50", "preemptor_wait_max"),
    "reclaim": ("reclaim_wait_p50", "reclaim_wait_max"),
}
"""Figures that have other names as metrics, or are none."""
_AT_ONCE = ("fill", "fragmentation", "preemption", "reclaim")
"""Scenarios that create all at once, whatever schedule is asked for."""
SCENARIOS: dict[Scenario, Callable[[Kube, Spec], Awaitable[Result]]] = {
    "submit": submit,
    "gated": gated,
    "fill": fill,
    "fragmentation": fragmentation,
    "preemption": preemption,
    "gang": gang,
    "reclaim": reclaim,
}


def check(spec: Spec, scenario: Scenario) -> None:
    """Raises ValueError where the template cannot be read, or is not of a kind that the scenario can do something with."""
    found = template_of(spec, "check")
    if scenario == "gated" and (not found.has_pods or found.members is None):
        raise TemplateError(
            f"scheduler-only mode gates pods, and a {found.kind} does not say which: use template pod or job"
        )
    if scenario == "gated" and found.at_once != found.members:
        remedy = (
            "podManagementPolicy: Parallel"
            if found.kind == "StatefulSet"
            else f"parallelism: {found.members}"
        )
        raise TemplateError(
            f"scheduler-only mode waits for all {found.members} pods of a {found.kind}, which has {found.at_once} until one of them runs: "
            f"set {remedy}"
        )
    if without_pods(found.documents[-1].api_version, found.kind):
        raise TemplateError(
            f"a {found.kind} brings up no pods to be scheduled; it may stand before a workload in the same file"
        )
    if scenario not in ("submit", "gated") and spec.template not in _OWN_PODS[scenario]:
        raise TemplateError(
            f"{scenario} makes its own pods; leave template out, or say {' or '.join(_OWN_PODS[scenario])}"
        )
    last = found.documents[-1]
    if spec.goal == "succeeded" and scenario != "submit":
        raise TemplateError(
            f"{scenario} is over when its pods are scheduled; goal succeeded goes with scenario submit"
        )
    if spec.goal == "succeeded" and STAGES[spec.goal] not in {
        each.name for each in chain(last.api_version, last.kind)
    }:
        raise TemplateError(
            f"a {found.kind} does not end by itself: goal succeeded goes with Job, PyTorchJob and Pod"
        )
    if found.kind.startswith("VirtualMachine"):
        raise TemplateError(f"{found.kind} is measured by vmi-burst and vmi-steady, not here")
    steps = chain("v1", "Pod") if scenario in _PODS else chain(last.api_version, last.kind)
    lasting = [
        each for each in steps if each.stage != "succeeded" or scenario == "submit"
    ]  # the others end before their pods do
    own = (*_OWN[scenario], *_BESIDES.get(scenario, ()))
    names.check(
        spec.gates,
        scenario,
        lasting,
        own,
        paced=spec.schedule.open_loop and scenario not in _AT_ONCE,
    )


async def exclusive(kube: Kube, spec: Spec, scenario: Scenario, lock_timeout: float) -> Result:
    """Run one scenario while no other performance run does. Raises NotHereError, TemplateError, LockTimeoutError, KubeError."""
    check(spec, scenario)
    patience = max(0.0, min(lock_timeout, spec.deadline - time.monotonic()))
    async with ExclusiveRun(kube, spec.run, patience, spec.tell) as lock:
        result = await measure(kube, spec, scenario)
    result.disturbed = lock.lost
    return result


async def measure(kube: Kube, spec: Spec, scenario: Scenario) -> Result:
    """Run one scenario. Raises NotHereError, TemplateError, KubeError."""
    return await SCENARIOS[scenario](kube, spec)
