"""A VMI measurement from the lock to the verdict: one scenario, whichever was asked for."""

import math
import sys
import time
from dataclasses import dataclass, field, replace

from perfdag.kube import Kube
from perfdag.steps.scale import names, sizes, vmi
from perfdag.steps.scale.chains import chain
from perfdag.steps.scale.lock import ExclusiveRun
from perfdag.steps.scale.prometheus import LATEST
from perfdag.steps.scale.vmi import PRIMER

SLACK = 60.0
"""Seconds for what nobody waits for: namespaces, scrapes, the clock."""
MOST = 1000
"""Creations in flight."""


def say(text: str) -> None:
    """Tell whoever reads the log of a benchmark's pod."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


@dataclass
class Ask:
    """Which scenario, and its figures; durations in seconds."""

    scenario: str = "burst"
    counts: list[int] = field(default_factory=lambda: [100])
    step: int = 100
    churn: int = 5
    pause: float = 20.0
    duration: float = 300.0
    cooldown: float = 60.0
    lock_timeout: float = 3600.0

    def limit(self, spec: vmi.Spec) -> float:
        """Seconds it may take where everything that it waits for takes as long as it may."""
        counts = (
            range(self.step, max(self.counts) + 1, self.step)
            if self.scenario == "capacity"
            else self.counts
        )
        each = (
            (PRIMER + spec.timeout if spec.primer else 0.0)
            + 2 * spec.timeout
            + (LATEST if spec.prometheus else 0.0)
        )
        bursts = sum(spec.schedule.span(size) + each for size in counts)
        churn = self.duration + 2 * spec.timeout if self.scenario == "steady" else 0.0
        return self.lock_timeout + bursts + self.cooldown * (len(self.counts) - 1) + churn + SLACK


@dataclass
class Outcome:
    """Results in order; `capacity` for that scenario alone."""

    results: list[vmi.Result]
    capacity: sizes.Capacity | None = None


def check(spec: vmi.Spec, ask: Ask) -> None:
    """Raises ValueError for what cannot be, or cannot be together: whoever asks is told so before anything is waited for."""
    numbers = {
        "counts": min(ask.counts),
        "step": ask.step,
        "churn": ask.churn,
        "replicas": spec.replicas,
        "per_node": spec.per_node,
    }
    for name, least in {**numbers, "parallel": spec.parallel}.items():
        if least < 1:
            raise ValueError(f"{name}: {least} is too few; it is 1 or more")
    if spec.parallel > MOST:
        raise ValueError(f"parallel: {spec.parallel} is too many; it is {MOST} or less")
    for name, seconds in {"timeout": spec.timeout, "duration": ask.duration}.items():
        if not 0 < seconds < math.inf:
            raise ValueError(f"{name}: {seconds:g} s is no time to wait; it is above 0")
    for name, seconds in {
        "pause": ask.pause,
        "cooldown": ask.cooldown,
        "lock_timeout": ask.lock_timeout,
    }.items():
        if not 0 <= seconds < math.inf:
            raise ValueError(f"{name}: {seconds:g} s cannot be waited; it is 0 or more")
    if ask.scenario != "ladder" and len(ask.counts) > 1:
        raise ValueError(f"{ask.scenario} takes one count; several are a ladder (scenario: ladder)")
    if ask.scenario == "capacity" and ask.step > max(ask.counts):
        raise ValueError(
            f"capacity: the first step of {ask.step} is over the limit of {max(ask.counts)}; take a smaller step"
        )
    if ask.scenario == "steady" and ask.churn > ask.counts[0]:
        raise ValueError(f"churn: {ask.churn} is too many of {ask.counts[0]}; it is at most count")
    last = vmi.template_of(spec, "check").documents[-1]
    paced, components = spec.schedule.open_loop, spec.prometheus is not None
    names.check(
        spec.gates,
        ask.scenario,
        chain(last.api_version, last.kind),
        names.VMIS[ask.scenario],
        paced=paced,
        components=components,
    )


async def measure(kube: Kube, spec: vmi.Spec, ask: Ask) -> Outcome:
    """Wait for the cluster to be ours, measure, hold the gates. Raises ValueError for a bad request, KubeError, LockTimeoutError."""
    check(spec, ask)
    if spec.prometheus:
        await spec.prometheus.probe()
    patience = max(0.0, min(ask.lock_timeout, spec.deadline - time.monotonic()))
    lock, done = ExclusiveRun(kube, spec.run, patience, spec.tell), list[vmi.Result]()

    def seen(result: vmi.Result) -> None:
        done.append(result)
        result.disturbed = lock.lost
        spec.seen(result)

    try:
        async with lock:
            spec.tell(
                f"run {spec.run}: {ask.scenario}"
            )  # before anything is made: what a killed process leaves is deleted by this id
            outcome = await _scenario(kube, replace(spec, seen=seen), ask)
            done = outcome.results
    finally:  # also of sizes that were measured before an interruption
        for each in done:
            each.disturbed = lock.lost
    return outcome


async def _scenario(kube: Kube, spec: vmi.Spec, ask: Ask) -> Outcome:
    if ask.scenario == "capacity":
        passed, results = await sizes.capacity(kube, spec, ask.step, max(ask.counts))
        return Outcome(results, passed)
    if ask.scenario == "steady":
        return Outcome(
            [await vmi.steady(kube, spec, ask.counts[0], ask.churn, ask.pause, ask.duration)]
        )
    return Outcome(await sizes.ladder(kube, spec, ask.counts, ask.cooldown))
