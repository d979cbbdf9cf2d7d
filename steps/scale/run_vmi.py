"""A VMI measurement from the lock to the verdict: one scenario, whichever was asked for."""

from dataclasses import dataclass, field

from perfdag.kube import Kube
from perfdag.steps.scale import vmi
from perfdag.steps.scale.gates import hold
from perfdag.steps.scale.lock import ExclusiveRun
from perfdag.steps.scale.prometheus import component_figures
from perfdag.steps.scale.session import new_run

SCENARIOS = ("burst", "ladder", "steady", "capacity")


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
    prometheus: str | None = None


@dataclass
class Outcome:
    """Results in order; `capacity` for that scenario alone."""

    results: list[vmi.Result]
    capacity: int | None = None


async def measure(kube: Kube, spec: vmi.Spec, ask: Ask) -> Outcome:
    """Wait for the cluster to be ours, measure, hold the gates. Raises ValueError for a bad request, KubeError, LockTimeoutError."""
    if min(ask.counts) < 1 or ask.step < 1:
        raise ValueError("counts and step are 1 or more")
    vmi.template_of(spec, "check")  # a bad template is told before waiting for the lock
    async with ExclusiveRun(kube, new_run(), ask.lock_timeout, spec.tell):
        if ask.scenario == "capacity":
            passed, results = await vmi.capacity(kube, spec, ask.step, max(ask.counts))
            outcome = Outcome(results, passed)
        elif ask.scenario == "steady":
            outcome = Outcome([await vmi.steady(kube, spec, ask.counts[0], ask.churn, ask.pause, ask.duration)])
        else:
            outcome = Outcome(await vmi.ladder(kube, spec, ask.counts, ask.cooldown))
        if ask.prometheus:
            for result in outcome.results:
                result.figures |= await component_figures(ask.prometheus, result.started, result.ended)
                result.verdicts = hold(spec.gates, result.figures)
    return outcome
