"""A VMI measurement from the lock to the verdict: one scenario, whichever was asked for."""

import sys
import time
from dataclasses import dataclass, field

from perfdag.kube import Kube
from perfdag.steps.scale import sizes, vmi
from perfdag.steps.scale.lock import ExclusiveRun
from perfdag.steps.scale.vmi import PRIMER

SLACK = 60.0
"""Seconds for what nobody waits for: namespaces, scrapes, the clock."""
SCENARIOS = ("burst", "ladder", "steady", "capacity")


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
        counts = range(self.step, max(self.counts) + 1, self.step) if self.scenario == "capacity" else self.counts
        bursts = sum(spec.schedule.span(size) + (PRIMER + spec.timeout if spec.primer else 0.0) + 2 * spec.timeout for size in counts)
        churn = self.duration + 2 * spec.timeout if self.scenario == "steady" else 0.0
        return self.lock_timeout + bursts + self.cooldown * (len(self.counts) - 1) + churn + SLACK


@dataclass
class Outcome:
    """Results in order; `capacity` for that scenario alone."""

    results: list[vmi.Result]
    capacity: sizes.Capacity | None = None


async def measure(kube: Kube, spec: vmi.Spec, ask: Ask) -> Outcome:
    """Wait for the cluster to be ours, measure, hold the gates. Raises ValueError for a bad request, KubeError, LockTimeoutError."""
    if min(ask.counts) < 1 or ask.step < 1:
        raise ValueError("counts and step are 1 or more")
    if ask.scenario != "ladder" and len(ask.counts) > 1:
        raise ValueError(f"{ask.scenario} takes one count; several are a ladder")
    if ask.scenario == "capacity" and ask.step > max(ask.counts):
        raise ValueError(f"capacity: the first step of {ask.step} is over the limit of {max(ask.counts)}; take a smaller step")
    vmi.template_of(spec, "check")  # a bad template is told before waiting for the lock
    if spec.prometheus:
        await spec.prometheus.probe()
    patience = max(0.0, min(ask.lock_timeout, spec.deadline - time.monotonic()))
    async with ExclusiveRun(kube, spec.run, patience, spec.tell) as lock:
        spec.tell(f"run {spec.run}: {ask.scenario}")  # before anything is made: what a killed process leaves is deleted by this id
        if ask.scenario == "capacity":
            passed, results = await sizes.capacity(kube, spec, ask.step, max(ask.counts))
            outcome = Outcome(results, passed)
        elif ask.scenario == "steady":
            outcome = Outcome([await vmi.steady(kube, spec, ask.counts[0], ask.churn, ask.pause, ask.duration)])
        else:
            outcome = Outcome(await sizes.ladder(kube, spec, ask.counts, ask.cooldown))
    for each in outcome.results:
        each.disturbed = lock.lost
    return outcome
