"""Does throughput grow with the replicas? Scale a backend 1, 2, 4 ... LIMIT, measure each, and say PASS or FAIL.

As Intel's validator does it: requests are stopped, LIMIT replicas are proven to run, all are ended, then each step
wants no failed request and at least ``factor`` times the throughput for each doubling of the replicas.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from perfdag.steps.queue import law
from perfdag.steps.queue.nodes import blame, failed, pods, spread
from perfdag.steps.queue.steady import Patience, Rate, Stats, longest, measure, ratio

STOP_SECONDS = 5.0
"""A client is given so long to stop its requests when a validation ends early."""


class BadInput(ValueError):
    """Something that the caller has to change: a name, a limit; the text says what."""


class Target(Protocol):
    """The replicas of a backend."""

    async def replicas(self) -> int:
        """Replicas asked for now."""

    async def scale(self, replicas: int) -> None:
        """Ask for so many."""

    async def ready(self) -> int:
        """Replicas that work now, and none that leave."""

    async def gone(self) -> bool:
        """Whether all that were told to leave have left."""

    async def why(self) -> str:
        """Why replicas are missing, as far as one can tell."""


class Load(Protocol):
    """A closed-loop client."""

    async def parallel(self, requests: int) -> int:
        """Keep so many requests in flight; returns how many the client allows."""

    async def reset(self) -> None:
        """Forget the statistics."""

    async def stats(self) -> Stats:
        """The statistics as the client's JSON has them."""


@dataclass(frozen=True)
class Plan:
    """What to prove. ``factor``: throughput gained by each doubling; ``scale_seconds``: for replicas to come or go."""

    limit: int
    factor: float = 1.8
    scale_seconds: float = 120.0
    patience: Patience = field(default_factory=Patience)
    stop: bool = False

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise BadInput(f"LIMIT {self.limit} is below 1 replica")
        if not 1 <= self.factor <= 2:
            raise BadInput(f"factor {self.factor:g} is not between 1 (any growth at all) and 2 (linear); usual are 1.8 and 1.4")
        if not 0 < self.scale_seconds < math.inf:
            raise BadInput(f"scale timeout {self.scale_seconds:g} s is no time above 0")

    def steps(self) -> list[int]:
        """1, 2, 4 ... and LIMIT itself."""
        return [*(1 << k for k in range(self.limit.bit_length()) if 1 << k < self.limit), self.limit]


@dataclass(frozen=True)
class Step:
    """One number of replicas, measured. ``ratio``: to the step before, with its 95 % interval; ``needed``: at least."""

    replicas: int
    rate: Rate
    efficiency: float
    ratio: tuple[float, float, float] | None
    needed: float
    failures: int
    problems: list[str]

    @property
    def passed(self) -> bool:
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        """Rates in items a second, times in seconds."""
        return {
            "replicas": self.replicas,
            "per_second": self.rate.per_second,
            "standard_error": self.rate.error if math.isfinite(self.rate.error) else None,
            "windows": list(self.rate.windows),
            "steady": self.rate.steady,
            "seconds": self.rate.seconds,
            "efficiency": self.efficiency,
            "ratio": [value if math.isfinite(value) else None for value in self.ratio] if self.ratio else None,
            "needed": self.needed,
            "latency": self.rate.stats["latency"],
            "failures": self.failures,
            "failed": failed(self.rate.stats["nodes"]),
            "problems": self.problems,
        }


@dataclass
class Verdict:
    """All steps, the laws fitted to them, and who did the work at the last step."""

    steps: list[Step] = field(default_factory=list)
    spread: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return bool(self.steps) and all(step.passed for step in self.steps)

    def points(self) -> list[tuple[int, float]]:
        return [(step.replicas, step.rate.per_second) for step in self.steps]

    def as_json(self) -> dict[str, Any]:
        amdahl, usl = law.fit(self.points(), coherence=False), law.fit(self.points())
        return {
            "verdict": "PASS" if self.passed else "FAIL",
            "seconds": self.seconds,
            "steps": [step.as_json() for step in self.steps],
            "amdahl": amdahl.as_json() if amdahl else None,
            "usl": usl.as_json() if usl else None,
            "nodes": self.spread,
        }


async def validate(target: Target, load: Load, plan: Plan, say: Callable[[str], None]) -> Verdict:
    """Run the whole validation; leaves 1 replica and no requests.

    Raises BadInput where LIMIT replicas cannot be had. On any error the replicas are put back as they were, or `say` tells that
    they could not be.
    """
    before = await target.replicas()
    began = time.monotonic()
    verdict = Verdict()
    try:
        await _prove(target, load, plan, say)
        for replicas in plan.steps():
            step = await _step(target, load, plan, replicas, verdict.steps)
            verdict.steps.append(step)
            say(sentence(step))
            verdict.spread = spread(step.rate.stats)
            if plan.stop and not step.passed:
                break
        await load.parallel(0)
        await target.scale(1)
    except BaseException:
        say(f"putting {before} replica(s) back")
        try:
            await target.scale(before)  # first: a client that is gone, or hangs, holds nothing up
        except Exception as error:  # what ended the validation is what the user is told, not this
            say(f"{before} replica(s) could not be put back: {str(error) or type(error).__name__}")
        try:
            await asyncio.wait_for(load.parallel(0), STOP_SECONDS)
        except Exception as error:
            say(f"the client may go on sending: {str(error) or f'no answer in {STOP_SECONDS:g} s'}")
        raise
    verdict.seconds = time.monotonic() - began
    return verdict


async def _prove(target: Target, load: Load, plan: Plan, say: Callable[[str], None]) -> None:
    await load.parallel(0)
    say(f"proving that {plan.limit} replicas run")
    await _scaled(target, plan.limit, plan.scale_seconds)
    await _idle(load, plan.scale_seconds)
    allowed = await load.parallel(plan.limit)
    await load.parallel(0)
    if allowed < plan.limit:
        raise BadInput(f"the client sends at most {allowed} requests in parallel: start it with --req-max {plan.limit}")
    await _idle(load, plan.scale_seconds)
    await _scaled(target, 0, plan.scale_seconds)


async def _scaled(target: Target, replicas: int, seconds: float) -> None:
    await target.scale(replicas)
    end = time.monotonic() + seconds
    while not (await target.ready() == replicas and await target.gone()):
        if time.monotonic() > end:
            have, why = await target.ready(), await target.why()
            raise BadInput(f"{have} of {replicas} replicas run after {seconds:g} s{': ' + why if why else ''}")
        await asyncio.sleep(0.2)


async def _idle(load: Load, seconds: float) -> None:
    """Wait until nothing is in flight, so that no step measures the requests of another."""
    end = time.monotonic() + seconds
    while pending := (await load.stats())["pending"]:
        if time.monotonic() > end:
            raise BadInput(f"{pending} requests are still in flight after {seconds:g} s: --scale-timeout, longer than an item takes")
        await asyncio.sleep(0.1)


async def _step(target: Target, load: Load, plan: Plan, replicas: int, done: list[Step]) -> Step:
    await load.parallel(0)
    await _scaled(target, replicas, plan.scale_seconds)
    await _idle(load, plan.scale_seconds)
    await load.reset()
    await load.parallel(replicas)
    rate = await measure(load.stats, replicas, plan.patience, lambda stats: pods(stats) >= replicas)
    have, failures = await target.ready(), int(rate.stats["failure"])
    against = ratio(rate, done[-1].rate) if done and done[-1].rate.per_second else None
    needed = plan.factor ** math.log2(replicas / done[-1].replicas) if done else 0.0
    problems = []
    if failures:
        causes = ", ".join(f"{count} {cause}" for cause, count in rate.stats["causes"].items())
        problems.append(f"{failures} failed requests ({causes}){blame(rate.stats)}")
    if not rate.per_second:
        problems.append(_nothing(rate, plan.patience))
    elif pods(rate.stats) < replicas:
        problems.append(f"only {pods(rate.stats)} of {replicas} replicas did any work")
    if have != replicas:
        problems.append(f"{have} replicas run at its end, {replicas} were asked: something else scales or ends them")
    if not rate.steady and rate.per_second:
        problems.append(f"not steady in {rate.seconds:.0f} s")
    if against and not against[0] >= needed:
        problems.append(f"{against[0]:.3f} times the throughput of {done[-1].replicas}, {needed:.3f} needed")
    base = done[0].rate.per_second if done else rate.per_second
    efficiency = rate.per_second / (replicas * base) if base else 0.0
    return Step(replicas, rate, efficiency, against, needed, failures, problems)


def _nothing(rate: Rate, patience: Patience) -> str:
    """Why there is no rate at all."""
    if rate.stats["failure"] and not rate.stats["success"]:
        return "throughput was zero"
    item = longest(rate.stats)
    if not item:
        return f"no item ended in {rate.seconds:.0f} s: longer ones want --timeout, 16 times what one takes"
    return f"no window of {patience.items} items a replica ended in {rate.seconds:.0f} s; items take {item:.3g} s: --timeout {2 * rate.seconds:.0f}"


def sentence(step: Step) -> str:
    """One line a step."""
    text = f"{step.replicas:>4} replicas: {step.rate.per_second:.4g}/s"
    if math.isfinite(step.rate.error):
        text += f" +- {step.rate.error:.2g}"
    text += f" after {step.rate.seconds:.1f} s, efficiency {100 * step.efficiency:.1f} %"
    if step.ratio:
        value, low, high = step.ratio
        text += f", {value:.3f} times the step before (95 % {low:.3f} to {high:.3f}; {step.needed:.3f} needed)"
        if step.passed and low < step.needed:
            text += " [interval reaches below]"
    return text + (f"  FAIL: {'; '.join(step.problems)}" if step.problems else "")


def closing(verdict: Verdict) -> str:
    """Laws, spread and verdict as text."""
    lines = []
    for name, fitted in (("Amdahl", law.fit(verdict.points(), coherence=False)), ("USL", law.fit(verdict.points()))):
        if fitted is None:
            lines.append(f"{name}: too few steps to fit")
            continue
        knee = f"knee at {fitted.knee:.0f} replicas" if fitted.knee else "no knee"
        most = f"at most {fitted.ceiling:.4g}/s" if fitted.ceiling else "no ceiling"
        lines.append(
            f"{name}: serial share {fitted.sigma:.4f}, coherence {fitted.kappa:.6f}, {knee}, {most} (residual {100 * fitted.error:.2f} %)"
        )
    for name, node in verdict.spread.items():
        done, failed = Counter(node["devices"]), Counter(node["failed_devices"])
        shares = ", ".join(
            f"{device or '-'} {done[device]}" + (f" ({failed[device]} failed)" if failed[device] else "")
            for device in sorted({*done, *failed})
        )
        lines.append(f"node {name}: {node['success']} done, {node['failure']} failed, {node['pods']} pods; devices: {shares}")
    fails = sum(not step.passed for step in verdict.steps)
    lines.append("PASS" if verdict.passed else f"FAIL ({fails} of {len(verdict.steps)} steps)")
    return "\n".join(lines)
