"""Validate that throughput grows with the replicas: measure 1, 2, 4 ... LIMIT of them.

The procedure is that of Intel's validator. It stops requests, checks that LIMIT replicas can run
and ends all. The steps are measured in a seeded order, so that a device that heats up does not look
like a limit of scaling. `judge` has the rule by which a step passes.

A step is measured in steady state, instead of for a fixed time. A window ends when every slot of
the closed loop has completed a few more items. Its rate is the sum over the slots, from completion
to completion, so a window of whole items has no error at its edges. The rate is steady when the
last windows lie within a tolerance. Earlier windows are warm-up.
"""

import asyncio
import math
import random
import statistics
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from perfdag.benchmark.contract import refuse
from perfdag.hosts.gpu_use import DeviceUse
from perfdag.steps.queue.client import UNREACHABLE
from perfdag.steps.queue.judge import Result, Step, device_name, judge
from perfdag.units import plural

Stats = Mapping[str, Any]
Chains = dict[str, tuple[float, float, int]]
Report = Callable[[str], None]
ITEMS, WINDOWS, POLL_SECONDS = 3, 3, 0.1
"""Items of each slot in a window, and the windows that must agree."""
STOP_SECONDS = 5.0
"""Time of a client to stop its requests when a validation ends early."""
SCALE_TIMEOUT_HINT = (
    "the scale timeout (--scale-timeout, scale_timeout of the benchmark) must be longer than "
    "an item"
)


class BadInput(ValueError):
    """An input that the user must change; the text says which."""


class Site(ABC):
    """The replicas of one queue's backends, and the client that sends to it."""

    name: str

    @abstractmethod
    async def replicas(self) -> int:
        """Return the requested replicas."""

    @abstractmethod
    async def scale(self, replicas: int) -> None:
        """Request a number of replicas."""

    @abstractmethod
    async def ready(self) -> int:
        """Return the replicas that work and are not ending."""

    @abstractmethod
    async def gone(self) -> bool:
        """Tell whether all replicas that were scaled in have ended."""

    @abstractmethod
    async def parallel(self, requests: int) -> int:
        """Keep `requests` in flight; return how many the client allows."""

    @abstractmethod
    async def reset(self) -> None:
        """Reset the client's statistics."""

    @abstractmethod
    async def stats(self) -> Stats:
        """Return the client's statistics."""

    async def lost(self) -> str:
        """Describe replicas that ended by themselves and are not replaced, "" for none."""
        return ""

    async def why(self) -> str:
        """Return why replicas are missing, "" if unknown."""
        return ""

    def watch_devices(self) -> AbstractContextManager[dict[str, DeviceUse]]:
        """Return a context that fills a dictionary with the use of the devices, if known."""
        return nullcontext({})


@dataclass(frozen=True)
class Plan:
    """A validation. Times are in seconds.

    `factor`: throughput of a doubling. `scale_seconds`: for replicas to start or end. `seconds`:
    the longest wait for a steady rate, unless 16 of the longest items take more (three windows take
    13 items a slot). `tolerance`: relative, of the windows.
    """

    limit: int
    factor: float = 1.8
    scale_seconds: float = 120.0
    seconds: float = 120.0
    tolerance: float = 0.05
    seed: int = 1

    def __post_init__(self) -> None:
        refuse(
            (self.limit < 1, f"LIMIT {self.limit} is below 1 replica"),
            (
                not 1 <= self.factor <= 2,
                f"factor {self.factor:g} is not between 1 (any growth) and 2 (linear); "
                "usual values are 1.8 and 1.4",
            ),
            (
                not 0 < self.scale_seconds < math.inf,
                f"scale timeout {self.scale_seconds:g} s is not above 0 and finite",
            ),
            (
                not 0 < self.seconds < math.inf,
                f"timeout {self.seconds:g} s is not above 0 and finite",
            ),
            (
                not 0 < self.tolerance < 1,
                f"tolerance {self.tolerance:g} is not between 0 and 1 (0.05 is 5 %)",
            ),
        )

    def steps(self) -> list[int]:
        """Return 1, 2, 4 ... and LIMIT, in a seeded order."""
        steps = {1 << k for k in range(self.limit.bit_length())} | {self.limit}
        return random.Random(self.seed).sample(sorted(steps), len(steps))


async def validate(sites: Sequence[Site], plan: Plan, report: Report) -> list[Result]:
    """Validate queues at the same time; all measure the same number of replicas.

    Leave 1 replica and no requests. Raises BadInput if LIMIT replicas cannot run. After an error,
    replicas are restored, or it is reported that they could not be.
    """
    together = asyncio.Barrier(len(sites))
    tasks = [asyncio.create_task(_validate(site, plan, together, report)) for site in sites]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()):
            raise error
    return [task.result() for task in tasks]


async def _validate(site: Site, plan: Plan, together: asyncio.Barrier, report: Report) -> Result:
    before, began, measured = await site.replicas(), time.monotonic(), list[Step]()
    try:
        await _check_limit(site, plan, report)
        for replicas in plan.steps():
            step = await _measure(site, plan, replicas, together)
            measured.append(step)
            problems = f"  FAIL: {'; '.join(step['problems'])}" if step["problems"] else ""
            report(
                f"{site.name}: {replicas:>4} replicas: {step['per_second']:.4g}/s after "
                f"{step['seconds']:.1f} s{problems}"
            )
        await site.parallel(0)
        await site.scale(1)
    except BaseException:
        await _restore(site, before, report)
        raise
    return judge(measured, plan.factor) | {"seconds": time.monotonic() - began}


async def _restore(site: Site, before: int, report: Report) -> None:
    """Put back the replicas and stop the requests. The user sees the first error, so raise none."""
    report(f"{site.name}: restoring {plural(before, 'replica')}")
    try:
        await site.scale(before)  # first: a client that hangs must not delay it
    except Exception as error:
        reason = str(error) or type(error).__name__
        report(f"{site.name}: {plural(before, 'replica')} could not be restored: {reason}")
    try:
        await asyncio.wait_for(site.parallel(0), STOP_SECONDS)
    except Exception as error:
        reason = str(error) or f"no answer in {STOP_SECONDS:g} s"
        report(f"{site.name}: the client may continue to send: {reason}")


async def _check_limit(site: Site, plan: Plan, report: Report) -> None:
    report(f"{site.name}: checking that {plan.limit} replicas can run")
    await _prepare(site, plan, plan.limit)
    allowed = await site.parallel(plan.limit)
    if allowed < plan.limit:
        raise BadInput(
            f"the client sends at most {allowed} requests in parallel: start it with "
            f"--req-max {plan.limit}"
        )

    # A new Service takes seconds to lead to its pods. Requests that fail until then say nothing
    # about the replicas.
    async def answered() -> str:
        stats = await site.stats()
        unanswered = sum(stats["causes"].get(cause, 0) for cause in UNREACHABLE)
        if stats["success"] + stats["failure"] > unanswered:
            return ""
        return f"no request was answered: {'; '.join(failures(stats)) or SCALE_TIMEOUT_HINT}"

    await _wait(site, answered, plan.scale_seconds)
    await _prepare(site, plan, 0)


async def _prepare(site: Site, plan: Plan, replicas: int) -> None:
    """Stop requests, scale, and wait until no request is in flight: steps must not share any."""

    async def scaled() -> str:
        have = await site.ready()
        if have != replicas:
            why = await site.why()
            return f"{have} of {replicas} replicas run{': ' + why if why else ''}"
        gone = await site.gone()
        return "" if gone else f"replicas that were scaled in still run: {SCALE_TIMEOUT_HINT}"

    async def idle() -> str:
        pending = (await site.stats())["pending"]
        return f"{pending} requests are still in flight: {SCALE_TIMEOUT_HINT}" if pending else ""

    await site.parallel(0)
    if not replicas:  # backends must be there to end what is in flight
        await _wait(site, idle, plan.scale_seconds)
    await site.scale(replicas)
    await _wait(site, scaled, plan.scale_seconds)
    await _wait(site, idle, plan.scale_seconds)
    await site.reset()


async def _wait(site: Site, obstacle: Callable[[], Any], seconds: float) -> None:
    """Wait until `obstacle` returns "". Raises BadInput with it after `seconds`."""
    end = time.monotonic() + seconds
    while text := await obstacle():
        if lost := await site.lost():
            raise BadInput(lost)
        if time.monotonic() > end:
            raise BadInput(f"after {seconds:g} s {text}")
        await asyncio.sleep(POLL_SECONDS)


async def _measure(site: Site, plan: Plan, replicas: int, together: asyncio.Barrier) -> Step:
    """Measure one step; the queues of other sites have as many replicas and requests meanwhile."""
    await _prepare(site, plan, replicas)
    await together.wait()
    await site.parallel(replicas)
    with site.watch_devices() as devices:
        step = await measure(site, plan, replicas)
    await together.wait()
    step["devices"] = {name: asdict(use) for name, use in devices.items()}
    return step


async def measure(site: Site, plan: Plan, replicas: int) -> Step:
    """Poll until the rate is steady, the time ends, all requests fail, or a replica is lost."""
    began, rates, start = time.monotonic(), list[float](), None
    while True:
        stats = await site.stats()
        chains: Chains = stats["chains"]
        if start is None:
            if len(chains) >= replicas and count_pods(stats) >= replicas:
                start = chains
        elif all(
            slot in start and chain[2] - start[slot][2] >= ITEMS for slot, chain in chains.items()
        ):
            rates.append(window(start, chains))
            start = chains
        last, seconds = rates[-WINDOWS:], time.monotonic() - began
        steady = len(last) == WINDOWS and _agree(last, plan.tolerance)
        lost = await site.lost()
        all_failed = not stats["success"] and stats["failure"] >= max(3, replicas)
        if steady or all_failed or lost or seconds > max(plan.seconds, 16 * _longest(stats)):
            break
        await asyncio.sleep(POLL_SECONDS)
    windows = last if steady else rates[1:] or rates
    problems = [lost] if lost else []
    problems += failures(stats)
    if not lost:
        problems += _shortfalls(stats, windows, steady, seconds, replicas, await site.ready())
    nodes = stats["nodes"]
    return {
        "replicas": replicas,
        "per_second": statistics.fmean(windows) if windows else 0.0,
        "windows": windows,
        "steady": steady,
        "seconds": seconds,
        "latency": stats["latency"],
        "failures": stats["failure"],
        "failed": by_device(nodes, "failed_devices"),
        "lost": lost,
        "problems": problems,
        "item_seconds": {
            device_name(node, device): seconds / of["devices"][device]
            for node, of in sorted(nodes.items())
            for device, seconds in of["run_seconds"].items()
        },
        "nodes": nodes,
    }


def window(before: Chains, after: Chains) -> float:
    """Return items a second between two polls, summed over the slots."""
    return sum(
        (count - before[slot][2]) / (last - before[slot][1])
        for slot, (_, last, count) in after.items()
        if slot in before and count > before[slot][2]
    )


def by_device(nodes: Mapping[str, Any], what: str) -> dict[str, int]:
    """Return counts by node or device, most first.

    Requests that reached no backend belong to none.
    """
    counts = {
        device_name(node, device): count
        for node, of in nodes.items()
        for device, count in of[what].items()
    }
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))


def count_pods(stats: Stats) -> int:
    """Return the number of backends that completed an item."""
    return sum(len(node["pods"]) for node in stats["nodes"].values())


def failures(stats: Stats) -> list[str]:
    """Describe the failed requests, their causes, and the most frequent error of backends."""
    if not stats["failure"]:
        return []
    causes = ", ".join(f"{count} {cause}" for cause, count in stats["causes"].items())
    errors: Counter[str] = Counter()
    for node in stats["nodes"].values():
        errors.update(node["errors"])
    hint = f": {errors.most_common(1)[0][0]}" if errors else ""
    return [f"{stats['failure']} failed requests ({causes}){hint}"]


def _longest(stats: Stats) -> float:
    """Return the seconds of the longest item, 0 before the first."""
    return float(stats["run"].get("max") or 0.0)


def _agree(rates: Sequence[float], tolerance: float) -> bool:
    mean = statistics.fmean(rates)
    return mean > 0 and max(abs(rate - mean) for rate in rates) <= tolerance * mean


def _shortfalls(
    stats: Stats, windows: Sequence[float], steady: bool, seconds: float, replicas: int, have: int
) -> list[str]:
    """Return why a rate is not that of `replicas`."""
    problems, worked = [], count_pods(stats)
    if not windows:
        took = f"the longest item took {_longest(stats):.3g} s" if worked else "no item ended"
        problems.append(
            f"no window of {ITEMS} items a replica in {seconds:.0f} s, {took}: set the timeout "
            "(--timeout) to 16 times the time of an item"
        )
    elif not steady:
        problems.append(f"not steady in {seconds:.0f} s")
    if worked < replicas and stats["success"]:
        problems.append(f"{worked} of {replicas} replicas completed an item")
    if have != replicas:
        problems.append(
            f"{have} replicas run at its end, {replicas} were requested: something else "
            "scales or ends them"
        )
    return problems
