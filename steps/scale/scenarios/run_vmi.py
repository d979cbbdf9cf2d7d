"""Run one VMI scenario, from the lock to the gate verdicts.

A ladder is bursts of several sizes. A later failure keeps results.
"""

import asyncio
import math
import sys
import time
from dataclasses import dataclass, field, replace

from perfdag.kube.client import Kube, KubeError
from perfdag.steps.scale.cluster.kubevirt import TooDenseError, check_nodes
from perfdag.steps.scale.cluster.lease_lock import ExclusiveRun
from perfdag.steps.scale.cluster.namespaces import own_namespaces
from perfdag.steps.scale.figures import names
from perfdag.steps.scale.figures.prometheus import LATEST
from perfdag.steps.scale.model.chains import chain
from perfdag.steps.scale.model.gates import evaluate
from perfdag.steps.scale.scenarios import vmi, vmi_steady
from perfdag.steps.scale.scenarios.base import Result
from perfdag.steps.scale.scenarios.vmi_primer import GONE, PRIMER
from perfdag.steps.scale.scenarios.vmi_spec import Spec, template_of


async def ladder(kube: Kube, spec: Spec, sizes: list[int], cooldown: float) -> list[Result]:
    """Run bursts of rising size with `cooldown` seconds between them.

    Ends early if a burst leaves objects behind, and at the deadline. A later size that fails is the
    last one and has no figures. Raises KubeError, TooDenseError.
    """
    results: list[Result] = []
    await check_nodes(kube, max(sizes) * spec.replicas, spec.per_node)
    async with own_namespaces(kube, spec.namespaces, spec.run):
        for number, size in enumerate(sizes):
            if number:
                spec.log(f"cooling down for {cooldown:g} s")
                await asyncio.sleep(max(0.0, min(cooldown, spec.deadline - time.monotonic())))
            own = spec if len(sizes) == 1 else rung(spec, number)
            try:
                results.append(await vmi.burst(kube, own, size))
            except (KubeError, TooDenseError) as error:
                if not results:
                    raise
                results.append(_unmeasured(own, size, error, results[-1]))
            spec.seen(results[-1])
            if (
                results[-1].error
                or results[-1].figures["left_behind"]
                or time.monotonic() >= spec.deadline
            ):
                break
    return results


def rung(spec: Spec, number: int) -> Spec:
    """Return the spec of one of several sizes, with a run id of its own that belongs to the run."""
    return replace(spec, run=f"{spec.run}-{number + 1}")


def _unmeasured(spec: Spec, count: int, error: Exception, before: Result) -> Result:
    """Return the result of a size that ended in an error, whose gates have no data."""
    facts = {key: before.facts.get(key) for key in ("simulated", "kubevirt_version")}
    facts |= {
        "run": spec.run,
        "generator": [],
        "notes": [f"{count} VMIs were not measured: {error}"],
    }
    figures: dict[str, float | None] = {"left_behind": None, "success_ratio": None}
    return Result(
        "burst",
        count,
        spec.run,
        [],
        [],
        figures,
        facts,
        evaluate(spec.gates, figures),
        error=str(error),
    )


SLACK = 60.0
"""Seconds for namespaces, scrapes and clock checks."""
MOST = 1000
"""Creations in flight."""


def log(text: str) -> None:
    """Print to the log of the benchmark's pod."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


@dataclass
class VmiRequest:
    """A scenario and its parameters; durations in seconds."""

    scenario: str = "burst"
    counts: list[int] = field(default_factory=lambda: [100])
    churn: int = 5
    pause: float = 20.0
    duration: float = 300.0
    cooldown: float = 60.0
    lock_timeout: float = 3600.0

    def fewest(self) -> float:
        """Return the objects of the smallest size; of a steady state, with all replacements."""
        if self.scenario == "steady":
            cycles = self.duration / self.pause if self.pause else math.inf
            return self.counts[0] + self.churn * cycles
        return min(self.counts)

    def limit(self, spec: Spec) -> float:
        """Return the maximum duration in seconds, if every wait takes its full time."""
        burst_limit = 2 * spec.timeout + (LATEST if spec.prometheus else 0.0)
        burst_limit += PRIMER + 2 * GONE if spec.primer else 0.0
        bursts = sum(spec.schedule.span(size) + burst_limit for size in self.counts)
        churn = self.duration + 2 * spec.timeout if self.scenario == "steady" else 0.0
        return self.lock_timeout + bursts + self.cooldown * (len(self.counts) - 1) + churn + SLACK


def check(spec: Spec, request: VmiRequest) -> None:
    """Raise ValueError for invalid values or combinations, before anything is waited for."""
    numbers = {
        "counts": min(request.counts),
        "churn": request.churn,
        "replicas": spec.replicas,
        "per_node": spec.per_node,
    }
    for name, least in {**numbers, "parallel": spec.parallel}.items():
        if least < 1:
            raise ValueError(f"{name}: {least} is too few; it is 1 or more")
    if spec.parallel > MOST:
        raise ValueError(f"parallel: {spec.parallel} is too many; it is {MOST} or less")
    for name, seconds in {"timeout": spec.timeout, "duration": request.duration}.items():
        if not 0 < seconds < math.inf:
            raise ValueError(f"{name}: {seconds:g} s is no time to wait; it is above 0")
    for name, seconds in {
        "pause": request.pause,
        "cooldown": request.cooldown,
        "lock_timeout": request.lock_timeout,
    }.items():
        if not 0 <= seconds < math.inf:
            raise ValueError(f"{name}: {seconds:g} s cannot be waited; it is 0 or more")
    if request.scenario != "ladder" and len(request.counts) > 1:
        raise ValueError(
            f"{request.scenario} takes one count; several are a ladder (scenario: ladder)"
        )
    if request.scenario == "steady" and request.churn > request.counts[0]:
        raise ValueError(
            f"churn: {request.churn} is too many of {request.counts[0]}; it is at most count"
        )
    last = template_of(spec, "check").documents[-1]
    names.check(
        spec.gates,
        request.scenario,
        chain(last.api_version, last.kind),
        names.VMIS[request.scenario],
        paced=spec.schedule.open_loop,
        components=spec.prometheus is not None,
        count=request.fewest() * spec.replicas,
    )


async def measure(kube: Kube, spec: Spec, request: VmiRequest) -> list[Result]:
    """Take the lock, measure and evaluate the gates. Return the results in order.

    Raises ValueError, KubeError, LockTimeoutError.
    """
    check(spec, request)
    if spec.prometheus:
        await spec.prometheus.probe()
    patience = max(0.0, min(request.lock_timeout, spec.deadline - time.monotonic()))
    lock, done = ExclusiveRun(kube, spec.run, patience, spec.log), list[Result]()

    def seen(result: Result) -> None:
        done.append(result)
        result.disturbed = lock.lost
        spec.seen(result)

    try:
        async with lock:
            spec.log(
                f"run {spec.run}: {request.scenario}"
            )  # before anything is made: what a killed process leaves is deleted by this id
            done = await _scenario(kube, replace(spec, seen=seen), request)
    finally:  # also of sizes that were measured before an interruption
        for result in done:
            result.disturbed = lock.lost
    return done


async def _scenario(kube: Kube, spec: Spec, request: VmiRequest) -> list[Result]:
    if request.scenario == "steady":
        churn = (request.churn, request.pause, request.duration)
        return [await vmi_steady.steady(kube, spec, request.counts[0], *churn)]
    return await ladder(kube, spec, request.counts, request.cooldown)
