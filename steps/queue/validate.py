"""Validate that throughput grows with the replicas: measure 1, 2, 4 ... LIMIT of them.

The procedure is that of Intel's validator. It stops requests, checks that LIMIT replicas can run
and ends all. The steps are measured in a seeded order, so that a device that heats up does not look
like a limit of scaling.
A step passes without failed requests, and with `factor` times the throughput for a doubling of
the replicas, by the interval of its throughput.
"""

import asyncio
import math
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from perfdag.hosts.gpu_use import DeviceUse
from perfdag.steps.queue.client import UNREACHABLE
from perfdag.steps.queue.steady_state import (
    Rate,
    Stats,
    SteadyCriteria,
    longest,
    measure,
)
from perfdag.steps.queue.verdict import (
    ReplicaMeasurement,
    Verdict,
    count_pods,
    failure_hint,
    measured_line,
)
from perfdag.units import plural

STOP_SECONDS = 5.0
"""Time of a client to stop its requests when a validation ends early."""
SCALE_TIMEOUT_HINT = (
    "the scale timeout (--scale-timeout, scale_timeout of the benchmark) must be longer than "
    "an item"
)


class BadInput(ValueError):
    """An input that the user must change; the text says which."""


class Target(Protocol):
    """The replicas of a backend."""

    async def replicas(self) -> int:
        """Return the requested replicas."""

    async def scale(self, replicas: int) -> None:
        """Request a number of replicas."""

    async def ready(self) -> int:
        """Return the replicas that work and are not ending."""

    async def lost(self) -> str:
        """Describe replicas that ended by themselves, "" for none.

        Replaced replicas are not lost.
        """

    async def gone(self) -> bool:
        """Tell whether all replicas that were scaled in have ended."""

    async def why(self) -> str:
        """Return why replicas are missing, "" if unknown."""

    def watch_devices(self) -> AbstractContextManager[dict[str, DeviceUse]]:
        """Return a context that fills a dictionary with the use of the devices, if known."""


class Load(Protocol):
    """A closed-loop client."""

    async def parallel(self, requests: int) -> int:
        """Keep `requests` in flight; return how many the client allows."""

    async def reset(self) -> None:
        """Reset the statistics."""

    async def stats(self) -> Stats:
        """Return the statistics as in the client's JSON."""


@dataclass(frozen=True)
class Plan:
    """A validation.

    `factor`: throughput of a doubling; `scale_seconds`: time for replicas to start or end.
    """

    limit: int
    factor: float = 1.8
    scale_seconds: float = 120.0
    criteria: SteadyCriteria = field(default_factory=SteadyCriteria)
    seed: int = 1

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise BadInput(f"LIMIT {self.limit} is below 1 replica")
        if not 1 <= self.factor <= 2:
            raise BadInput(
                f"factor {self.factor:g} is not between 1 (any growth) and 2 (linear); "
                "usual values are 1.8 and 1.4"
            )
        if not 0 < self.scale_seconds < math.inf:
            raise BadInput(f"scale timeout {self.scale_seconds:g} s is not above 0 and finite")

    def steps(self) -> list[int]:
        """Return 1, 2, 4 ... and LIMIT."""
        return [
            *(1 << k for k in range(self.limit.bit_length()) if 1 << k < self.limit),
            self.limit,
        ]

    def order(self) -> list[int]:
        """Return the steps in a seeded order."""
        steps = self.steps()
        return random.Random(self.seed).sample(steps, len(steps))


async def validate(
    target: Target, load: Load, plan: Plan, report: Callable[[str], None]
) -> Verdict:
    """Run the whole validation; leave 1 replica and no requests.

    Raises BadInput if LIMIT replicas cannot run. After an error it restores the replicas, or
    reports that it could not.
    """
    before = await target.replicas()
    began = time.monotonic()
    verdict = Verdict(plan.factor)
    try:
        await _check_limit(target, load, plan, report)
        for replicas in plan.order():
            one = await _measure(target, load, plan, replicas)
            verdict.measured.append(one)
            report(measured_line(one))
        await load.parallel(0)
        await target.scale(1)
    except BaseException:
        report(f"restoring {plural(before, 'replica')}")
        try:
            await target.scale(before)  # first: a client that hangs must not delay it
        except Exception as error:  # the user sees the first error
            reason = str(error) or type(error).__name__
            report(f"{plural(before, 'replica')} could not be restored: {reason}")
        try:
            await asyncio.wait_for(load.parallel(0), STOP_SECONDS)
        except Exception as error:
            report(
                "the client may continue to send: "
                f"{str(error) or f'no answer in {STOP_SECONDS:g} s'}"
            )
        raise
    verdict.seconds = time.monotonic() - began
    return verdict


async def _check_limit(
    target: Target, load: Load, plan: Plan, report: Callable[[str], None]
) -> None:
    await load.parallel(0)
    report(f"checking that {plan.limit} replicas can run")
    await _scale(target, plan.limit, plan.scale_seconds)
    await idle(target, load, plan.scale_seconds)
    await load.reset()
    allowed = await load.parallel(plan.limit)
    if allowed < plan.limit:
        raise BadInput(
            f"the client sends at most {allowed} requests in parallel: start it with "
            f"--req-max {plan.limit}"
        )
    await _first_answer(target, load, plan.scale_seconds)
    await load.parallel(0)
    await idle(target, load, plan.scale_seconds)
    await _scale(target, 0, plan.scale_seconds)


async def _scale(target: Target, replicas: int, seconds: float) -> None:
    await target.scale(replicas)
    end = time.monotonic() + seconds
    while not (await target.ready() == replicas and await target.gone()):
        await _raise_if_lost(target)
        if time.monotonic() > end:
            have, why = await target.ready(), await target.why()
            if have == replicas:
                raise BadInput(
                    f"replicas that were scaled in still run after {seconds:g} s: "
                    f"{SCALE_TIMEOUT_HINT}"
                )
            raise BadInput(
                f"{have} of {replicas} replicas run after {seconds:g} s{': ' + why if why else ''}"
            )
        await asyncio.sleep(0.2)


async def _raise_if_lost(target: Target) -> None:
    if lost := await target.lost():
        raise BadInput(lost)


async def idle(target: Target, load: Load, seconds: float) -> None:
    """Wait until no request is in flight: steps must not share requests.

    Raises BadInput after `seconds`.
    """
    end = time.monotonic() + seconds
    while pending := (await load.stats())["pending"]:
        await _raise_if_lost(target)
        if time.monotonic() > end:
            raise BadInput(
                f"{pending} requests are still in flight after {seconds:g} s: {SCALE_TIMEOUT_HINT}"
            )
        await asyncio.sleep(0.1)


async def _first_answer(target: Target, load: Load, seconds: float) -> None:
    """Wait until a request is answered: a new Service takes seconds to lead to its pods.

    Until then requests fail, which says nothing about the replicas. Raises BadInput after
    `seconds`.
    """
    end = time.monotonic() + seconds
    while True:
        stats = await load.stats()
        unanswered = sum(stats["causes"].get(cause, 0) for cause in UNREACHABLE)
        if stats["success"] + stats["failure"] > unanswered:
            return
        await _raise_if_lost(target)
        if time.monotonic() > end:
            why = "; ".join(failures(stats)) or SCALE_TIMEOUT_HINT
            raise BadInput(f"no request was answered in {seconds:g} s: {why}")
        await asyncio.sleep(0.1)


async def _measure(target: Target, load: Load, plan: Plan, replicas: int) -> ReplicaMeasurement:
    await load.parallel(0)
    await _scale(target, replicas, plan.scale_seconds)
    await idle(target, load, plan.scale_seconds)
    await load.reset()
    await load.parallel(replicas)
    with target.watch_devices() as devices:
        rate = await measure(
            load.stats,
            replicas,
            plan.criteria,
            lambda stats: count_pods(stats) >= replicas,
            target.lost,
        )
    have, lost = await target.ready(), await target.lost()
    problems = [lost] if lost else []
    problems += failures(rate.stats)
    if not lost:
        problems += _shortfalls(rate, plan.criteria, replicas, have)
    return ReplicaMeasurement(replicas, rate, lost, problems, devices)


def failures(stats: Stats) -> list[str]:
    """Describe the failed requests and their causes."""
    if not stats["failure"]:
        return []
    causes = ", ".join(f"{count} {cause}" for cause, count in stats["causes"].items())
    return [f"{stats['failure']} failed requests ({causes}){failure_hint(stats)}"]


def _shortfalls(rate: Rate, criteria: SteadyCriteria, replicas: int, have: int) -> list[str]:
    """Return why a rate is not that of `replicas`."""
    problems = []
    if not rate.per_second:
        problems.append(_reason_for_no_rate(rate, criteria))
    elif count_pods(rate.stats) < replicas:
        problems.append(f"only {count_pods(rate.stats)} of {replicas} replicas did any work")
    if have != replicas:
        problems.append(
            f"{have} replicas run at its end, {replicas} were requested: something else "
            "scales or ends them"
        )
    if not rate.steady and rate.per_second:
        problems.append(f"not steady in {rate.seconds:.0f} s")
    return problems


def _reason_for_no_rate(rate: Rate, criteria: SteadyCriteria) -> str:
    """Return why there is no rate."""
    if rate.stats["failure"] and not rate.stats["success"]:
        return "throughput was zero"
    item = longest(rate.stats)
    if not item:
        return (
            f"no item ended in {rate.seconds:.0f} s: set the timeout (--timeout) to 16 times "
            "the time of an item"
        )
    more = f"set the timeout (--timeout) to {2 * rate.seconds:.0f} s"
    return (
        f"no window of {criteria.items} items a replica ended in {rate.seconds:.0f} s; items "
        f"take {item:.3g} s: {more}"
    )
