"""Does throughput grow with the replicas? Scale a backend 1, 2, 4 ... LIMIT, measure each, and say PASS or FAIL.

As Intel's validator does it: requests are stopped, LIMIT replicas are proven to run, all are ended, then each step
wants no failed request and at least ``factor`` times the throughput for each doubling of the replicas.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from perfdag.steps.queue.nodes import blame, pods, spread
from perfdag.steps.queue.steady import Patience, Rate, Stats, longest, measure, ratio
from perfdag.steps.queue.verdict import Step, Verdict, sentence

STOP_SECONDS = 5.0
"""A client is given so long to stop its requests when a validation ends early."""
LONGER = "items want a scale timeout (--scale-timeout, scale_timeout of the benchmark) longer than one takes"


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

    async def lost(self) -> str:
        """Which replicas ended by themselves and how, "" for none; where something else starts others instead, none is lost."""

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
            raise BadInput(
                f"factor {self.factor:g} is not between 1 (any growth at all) and 2 (linear); usual are 1.8 and 1.4"
            )
        if not 0 < self.scale_seconds < math.inf:
            raise BadInput(f"scale timeout {self.scale_seconds:g} s is no time above 0")

    def steps(self) -> list[int]:
        """1, 2, 4 ... and LIMIT itself."""
        return [
            *(1 << k for k in range(self.limit.bit_length()) if 1 << k < self.limit),
            self.limit,
        ]


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
    await idle(target, load, plan.scale_seconds)
    allowed = await load.parallel(plan.limit)
    await load.parallel(0)
    if allowed < plan.limit:
        raise BadInput(
            f"the client sends at most {allowed} requests in parallel: start it with --req-max {plan.limit}"
        )
    await idle(target, load, plan.scale_seconds)
    await _scaled(target, 0, plan.scale_seconds)


async def _scaled(target: Target, replicas: int, seconds: float) -> None:
    await target.scale(replicas)
    end = time.monotonic() + seconds
    while not (await target.ready() == replicas and await target.gone()):
        await _none_lost(target)
        if time.monotonic() > end:
            have, why = await target.ready(), await target.why()
            if have == replicas:
                raise BadInput(
                    f"replicas that were told to end are still there after {seconds:g} s: {LONGER}"
                )
            raise BadInput(
                f"{have} of {replicas} replicas run after {seconds:g} s{': ' + why if why else ''}"
            )
        await asyncio.sleep(0.2)


async def _none_lost(target: Target) -> None:
    if lost := await target.lost():
        raise BadInput(lost)


async def idle(target: Target, load: Load, seconds: float) -> None:
    """Wait until nothing is in flight, so that no step measures the requests of another. Raises BadInput where that takes too long."""
    end = time.monotonic() + seconds
    while pending := (await load.stats())["pending"]:
        await _none_lost(target)
        if time.monotonic() > end:
            raise BadInput(f"{pending} requests are still in flight after {seconds:g} s: {LONGER}")
        await asyncio.sleep(0.1)


async def _step(target: Target, load: Load, plan: Plan, replicas: int, done: list[Step]) -> Step:
    await load.parallel(0)
    await _scaled(target, replicas, plan.scale_seconds)
    await idle(target, load, plan.scale_seconds)
    await load.reset()
    await load.parallel(replicas)
    rate = await measure(
        load.stats, replicas, plan.patience, lambda stats: pods(stats) >= replicas, target.lost
    )
    have, lost = await target.ready(), await target.lost()
    against = ratio(rate, done[-1].rate) if done and done[-1].rate.per_second else None
    needed = plan.factor ** math.log2(replicas / done[-1].replicas) if done else 0.0
    problems = [lost] if lost else []
    problems += _failures(rate.stats)
    if not lost:
        problems += _short(rate, plan.patience, replicas, have)
        if against and not against[0] >= needed:
            problems.append(
                f"{against[0]:.3f} times the throughput of {done[-1].replicas}, {needed:.3f} needed"
            )
    base = done[0].rate.per_second if done else rate.per_second
    efficiency = rate.per_second / (replicas * base) if base else 0.0
    return Step(
        replicas, rate, efficiency, against, needed, int(rate.stats["failure"]), lost, problems
    )


def _failures(stats: Stats) -> list[str]:
    """How many requests failed, and of what."""
    if not stats["failure"]:
        return []
    causes = ", ".join(f"{count} {cause}" for cause, count in stats["causes"].items())
    return [f"{stats['failure']} failed requests ({causes}){blame(stats)}"]


def _short(rate: Rate, patience: Patience, replicas: int, have: int) -> list[str]:
    """Why a rate is not that of so many replicas."""
    problems = []
    if not rate.per_second:
        problems.append(_nothing(rate, patience))
    elif pods(rate.stats) < replicas:
        problems.append(f"only {pods(rate.stats)} of {replicas} replicas did any work")
    if have != replicas:
        problems.append(
            f"{have} replicas run at its end, {replicas} were asked: something else scales or ends them"
        )
    if not rate.steady and rate.per_second:
        problems.append(f"not steady in {rate.seconds:.0f} s")
    return problems


def _nothing(rate: Rate, patience: Patience) -> str:
    """Why there is no rate at all."""
    if rate.stats["failure"] and not rate.stats["success"]:
        return "throughput was zero"
    item = longest(rate.stats)
    if not item:
        return f"no item ended in {rate.seconds:.0f} s: longer ones want a timeout (--timeout) of 16 times what one takes"
    more = f"a timeout (--timeout) of {2 * rate.seconds:.0f} s"
    return f"no window of {patience.items} items a replica ended in {rate.seconds:.0f} s; items take {item:.3g} s: {more}"
