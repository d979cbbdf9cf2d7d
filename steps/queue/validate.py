"""Validate that throughput grows with the replicas: measure 1, 2, 4 ... LIMIT of them.

The procedure is that of Intel's validator. It stops requests, checks that LIMIT replicas can run
and ends all. The steps are measured in a seeded order, so that a device that heats up does not look
like a limit of scaling. `judge` has the rule by which a step passes, and returns the fitted laws.

A step is measured in steady state, instead of for a fixed time. A window ends when every slot of
the closed loop has completed a few more items. Its rate is the sum over the slots, from completion
to completion, so a window of whole items has no error at its edges. The rate is steady when the
last windows lie within a tolerance. Earlier windows are warm-up.
"""

import asyncio
import math
import operator
import random
import statistics
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, combinations
from typing import Any

from perfdag.benchmark.contract import VERDICT_VALUES, Measurement, VerdictWord, verdict
from perfdag.redaction import logger
from perfdag.stats.robust import student_t
from perfdag.steps.queue import render
from perfdag.steps.queue.client import UNREACHABLE, Chain
from perfdag.units import plural

Step = dict[str, Any]
"""One number of replicas: `replicas`, `per_second`, `windows` (their rates), `steady`, `problems`
(why it does not count), `failures` and what else `validate.measure` returns."""
Result = dict[str, Any]
"""The judged steps in the order of their replicas, the verdict and the fitted laws, as JSON."""
Stats = Mapping[str, Any]
Chains = dict[str, Chain]
"""The chain of completions of each slot."""
ITEMS = 3
"""Items of each slot in a window."""
WINDOWS = 3
"""Windows that must agree."""
POLL_SECONDS = 0.1
STOP_SECONDS = 10.0
"""Time to put back the replicas, and to stop the requests, when a validation ends early."""
SCALE_TIMEOUT_HINT = (
    "the scale timeout (--scale-timeout, scale_timeout of the benchmark) must be longer than "
    "an item"
)


@dataclass(frozen=True)
class Replicas:
    """The backends of a queue.

    `ready`: at work and not ending. `present`: those that are ending too. `reason`: why some are
    missing, "" if unknown.
    """

    requested: int
    ready: int
    present: int
    reason: str = ""


class Site(ABC):
    """The replicas of one queue's backends, and the client that sends to it."""

    name: str

    @abstractmethod
    async def replicas(self) -> Replicas:
        """Return the replicas."""

    @abstractmethod
    async def scale(self, replicas: int) -> None:
        """Request a number of replicas."""

    @abstractmethod
    async def parallel(self, requests: int) -> int:
        """Keep `requests` in flight; return how many the client allows."""

    @abstractmethod
    async def reset(self) -> None:
        """Reset the client's statistics."""

    @abstractmethod
    async def stats(self) -> Stats:
        """Return the client's statistics."""


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

    def steps(self) -> list[int]:
        """Return 1, 2, 4 ... and LIMIT, in a seeded order."""
        steps = {1 << k for k in range(self.limit.bit_length())} | {self.limit}
        return random.Random(self.seed).sample(sorted(steps), len(steps))


async def validate(sites: Sequence[Site], plan: Plan) -> list[Result]:
    """Validate queues at the same time; all measure the same number of replicas.

    Leave 1 replica and no requests. Raises ValueError if LIMIT replicas cannot run. After an error,
    replicas are restored, or it is logged that they could not be.
    """
    together = asyncio.Barrier(len(sites))
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_validate(site, plan, together)) for site in sites]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def _validate(site: Site, plan: Plan, together: asyncio.Barrier) -> Result:
    before = await site.replicas()
    began = time.monotonic()
    measured: list[Step] = []
    try:
        await _check_limit(site, plan)
        for replicas in plan.steps():
            # Meanwhile the queues of other sites have as many replicas and requests.
            await _prepare(site, plan, replicas)
            await together.wait()
            await site.parallel(replicas)
            step = await measure(site, plan, replicas)
            await together.wait()
            measured.append(step)
            problems = f"  FAIL: {'; '.join(step['problems'])}" if step["problems"] else ""
            logger.info(
                f"{site.name}: {replicas:>4} replicas: {step['per_second']:.4g}/s after "
                f"{step['seconds']:.1f} s{problems}"
            )
        await site.parallel(0)
        await site.scale(1)
    except BaseException:
        await _restore(site, before.requested)
        raise
    return judge(measured, plan.factor) | {"seconds": time.monotonic() - began}


async def _restore(site: Site, before: int) -> None:
    """Put back the replicas and stop the requests. The user sees the first error, so raise none."""
    logger.info(f"{site.name}: restoring {plural(before, 'replica')}")
    for work, trouble in (
        (lambda: site.scale(before), f"{plural(before, 'replica')} could not be restored"),
        (lambda: site.parallel(0), "the client may continue to send"),
    ):
        try:
            await asyncio.wait_for(work(), STOP_SECONDS)
        except Exception as error:
            logger.error(
                f"{site.name}: {trouble}: {str(error) or f'no answer in {STOP_SECONDS:g} s'}"
            )


async def _check_limit(site: Site, plan: Plan) -> None:
    logger.info(f"{site.name}: checking that {plural(plan.limit, 'replica')} can run")
    await _prepare(site, plan, plan.limit)
    allowed = await site.parallel(plan.limit)
    if allowed < plan.limit:
        raise ValueError(
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
        have = await site.replicas()
        if have.ready != replicas:
            reason = f": {have.reason}" if have.reason else ""
            return f"{have.ready} of {replicas} replicas run{reason}"
        if have.present > replicas:
            return f"replicas that were scaled in still run: {SCALE_TIMEOUT_HINT}"
        return ""

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


async def _wait(site: Site, obstacle: Callable[[], Awaitable[str]], seconds: float) -> None:
    """Wait until `obstacle` returns "". Raises ValueError with it after `seconds`."""
    end = time.monotonic() + seconds
    while text := await obstacle():
        if time.monotonic() > end:
            raise ValueError(f"after {seconds:g} s {text}")
        await asyncio.sleep(POLL_SECONDS)


async def measure(site: Site, plan: Plan, replicas: int) -> Step:
    """Poll until the rate is steady, the time ends, or all requests fail."""
    began = time.monotonic()
    rates: list[float] = []
    start: Chains = {}
    while True:
        stats = await site.stats()
        chains = {slot: Chain(*figures) for slot, figures in stats["chains"].items()}
        if not start:
            # A replica that starts late would look like a limit of scaling.
            if len(chains) >= replicas and count_pods(stats) >= replicas:
                start = chains
        elif all(
            slot in start and end.completions - start[slot].completions >= ITEMS
            for slot, end in chains.items()
        ):
            rates.append(_rate(start, chains))
            start = chains
        seconds = time.monotonic() - began
        steady = _agree(rates[-WINDOWS:], plan.tolerance)
        all_failed = not stats["success"] and stats["failure"] >= max(3, replicas)
        if steady or all_failed or seconds > max(plan.seconds, 16 * stats["run"]["max"]):
            break
        await asyncio.sleep(POLL_SECONDS)
    windows = rates[-WINDOWS:] if steady else rates[1:] or rates
    have = (await site.replicas()).ready
    nodes = stats["nodes"]
    done = _by_device(nodes, "devices")
    run_seconds = _by_device(dict(sorted(nodes.items())), "run_seconds")
    return {
        "replicas": replicas,
        "per_second": statistics.fmean(windows) if windows else 0.0,
        "windows": windows,
        "steady": steady,
        "seconds": seconds,
        "latency": stats["latency"],
        "failures": stats["failure"],
        # Requests that reached no backend belong to no device.
        "failed": _by_device(nodes, "failed_devices"),
        "problems": failures(stats) + _shortfalls(stats, windows, steady, seconds, replicas, have),
        "item_seconds": {name: total / done[name] for name, total in run_seconds.items()},
        "nodes": nodes,
    }


def _rate(start: Chains, end: Chains) -> float:
    """Return the items a second of all slots, each from its completion at `start` to its last."""
    return sum(
        (chain.completions - start[slot].completions) / (chain.last - start[slot].last)
        for slot, chain in end.items()
    )


def _agree(windows: Sequence[float], tolerance: float) -> bool:
    """Return whether WINDOWS rates lie within a relative tolerance of their mean."""
    if len(windows) < WINDOWS:
        return False
    mean = statistics.fmean(windows)
    return mean > 0 and max(abs(rate - mean) for rate in windows) <= tolerance * mean


def _by_device(nodes: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a figure of the nodes by the subject of its row: a node, or one of its devices."""
    return {
        f"{node}/{device}" if device else node: value
        for node, of_node in nodes.items()
        for device, value in of_node[name].items()
    }


def count_pods(stats: Stats) -> int:
    """Return the number of backends that completed an item."""
    return sum(len(node["pods"]) for node in stats["nodes"].values())


def failures(stats: Stats) -> list[str]:
    """Describe the failed requests, with their most frequent causes."""
    causes = Counter[str](stats["causes"]).most_common(3)
    text = "; ".join(f"{cause} ({count})" for cause, count in causes)
    return [f"{stats['failure']} failed requests: {text}"] if stats["failure"] else []


def _shortfalls(
    stats: Stats, windows: Sequence[float], steady: bool, seconds: float, replicas: int, have: int
) -> list[str]:
    """Return why a rate is not that of `replicas`."""
    problems = []
    worked = count_pods(stats)
    if not windows and not stats["failure"]:
        took = f"the longest item took {stats['run']['max']:.3g} s" if worked else "no item ended"
        problems.append(
            f"no window of {ITEMS} items a replica in {seconds:.0f} s, {took}: set the timeout "
            "(--timeout) to 16 times the time of an item"
        )
    if windows and not steady:
        problems.append(f"not steady in {seconds:.0f} s")
    if worked != replicas and stats["success"]:
        problems.append(f"{worked} backends completed an item, {replicas} replicas were requested")
    if have != replicas:
        problems.append(
            f"{have} replicas run at its end, {replicas} were requested: something else "
            "scales or ends them"
        )
    return problems


def judge(measured: Iterable[Step], factor: float) -> Result:
    """Return the verdict on steps: a step needs `factor` times the rate for each doubling.

    A step fails with a problem, or if the whole 95 % interval of its rate over the step before lies
    below what is needed. It is inconclusive if a part does. The first step, and one whose lower
    neighbour did no work, have no ratio and pass. The worst step decides.
    """
    steps: list[Step] = []
    nodes: dict[str, Any] = {}
    for measured_step in sorted(measured, key=lambda step: step["replicas"]):
        step = {**measured_step}
        nodes = step.pop("nodes", {})
        first = steps[0] if steps else step
        linear = step["replicas"] * first["per_second"]
        step["efficiency"] = step["per_second"] / linear if linear else 0.0
        _compare(step, steps[-1] if steps else None, factor)
        steps.append(step)
    verdicts: list[VerdictWord] = [step["verdict"] for step in steps]
    points = [(step["replicas"], step["per_second"]) for step in steps]
    return {
        "verdict": min(verdicts, key=VERDICT_VALUES.__getitem__, default="failed"),
        "steps": steps,
        "amdahl": fit(points, coherence=False),
        "usl": fit(points),
        "nodes": nodes,
    }


def _compare(step: Step, below: Step | None, factor: float) -> None:
    """Add what a step needs of the step below it, its ratio to that, and its verdict."""
    step["needed"] = 0.0
    step["ratio"] = None
    low = high = math.inf
    if below:
        step["needed"] = factor ** math.log2(step["replicas"] / below["replicas"])
    if below and below["per_second"]:
        value, low, high = ratio(step["windows"], below["windows"])
        step["ratio"] = [value, low, high if math.isfinite(high) else None]
    step["verdict"] = "passed"
    if step["problems"] or high < step["needed"]:
        step["verdict"] = "failed"
    elif low < step["needed"]:
        step["verdict"] = "inconclusive"


def ratio(later: Sequence[float], earlier: Sequence[float]) -> tuple[float, float, float]:
    """Return the ratio of the mean rates of windows with its 95 % interval.

    The interval comes from the windows' spread, by the delta method on the logarithm.
    """
    value = statistics.fmean(later) / statistics.fmean(earlier) if later else 0.0
    freedom = min(len(later), len(earlier)) - 1
    if freedom < 1:
        return value, 0.0, math.inf
    errors = [
        statistics.stdev(rates) / math.sqrt(len(rates)) / statistics.fmean(rates)
        for rates in (later, earlier)
    ]
    width = min(50.0, student_t(freedom) * math.hypot(*errors))
    return value, value * math.exp(-width), value * math.exp(width)


def fit(points: Sequence[tuple[int, float]], coherence: bool = True) -> dict[str, float] | None:
    """Fit the Universal Scalability Law to (replicas, items a second); else Amdahl's.

    Return the rate of one replica, sigma, kappa, and the rms of the relative residuals; None with
    fewer distinct numbers of replicas than parameters.
    """
    points = [(n, x) for n, x in points if x > 0]
    count = 3 if coherence else 2
    if len({n for n, _ in points}) < count:
        return None
    # n/x is linear in 1, n - 1 and n (n - 1). The best fit without a negative parameter is that of
    # the parameters that are not zero.
    rows = [[x / n, (n - 1) * x / n, (n - 1) * x] for n, x in points]
    columns = list(zip(*rows, strict=True))
    fits = []
    for chosen in chain.from_iterable(combinations(range(1, count), k) for k in range(count)):
        free = (0, *chosen)
        law = [0.0, 0.0, 0.0]
        for index, value in zip(free, least_squares([columns[i] for i in free]), strict=True):
            law[index] = value
        if min(law) >= 0:
            squares = sum((1 - sum(map(operator.mul, row, law))) ** 2 for row in rows)
            fits.append((squares, law))
    squares, (a, b, c) = min(fits)
    error = math.sqrt(squares / len(points))
    return {"rate_per_second": 1 / a, "sigma": b / a, "kappa": c / a, "relative_error": error}


def least_squares(columns: Sequence[Sequence[float]]) -> list[float]:
    """Return the factors of independent columns with which their sum is nearest to 1.

    The normal equations are solved exactly.
    """
    exact = [[*map(Fraction, column)] for column in columns]
    table = []
    for column in exact:
        products = [sum(map(operator.mul, column, other_column)) for other_column in exact]
        table.append([*products, sum(column)])
    for i, pivot in enumerate(table):
        for j, row in enumerate(table):
            if j != i:
                factor = row[i] / pivot[i]
                table[j] = [a - factor * b for a, b in zip(row, pivot, strict=True)]
    return [float(row[-1] / row[i]) for i, row in enumerate(table)]


def measurements_of(result: Result) -> Iterator[Measurement]:
    """Return the measurements of all steps, and those of the fitted laws."""
    for step in result["steps"]:
        at = {"replicas": step["replicas"]}
        latency = step["latency"]
        yield Measurement("throughput", step["per_second"], coords=at, n=len(step["windows"]))
        if step["replicas"] > 1:  # that of one replica is 1 by definition
            yield Measurement("efficiency", step["efficiency"], coords=at)
        for p in ("p50", "p95", "p99"):
            if latency.get(p) is not None:
                yield Measurement("latency", latency[p], p, at, latency["count"])
        for stat, value in zip(("value", "lower", "upper"), step["ratio"] or (), strict=False):
            if value is not None:
                yield Measurement("gain", value, stat, at)
        for metric, values in (("item_time", "item_seconds"), ("failures", "failed")):
            for subject, value in step.get(values, {}).items():
                yield Measurement(metric, float(value), coords=at, subject=subject)
    for subject, count in _by_device(result["nodes"], "devices").items():
        yield Measurement("items", float(count), subject=subject)
    for metric, law, parameter in (
        ("amdahl_share", "amdahl", "sigma"),
        ("single_rate", "usl", "rate_per_second"),
        ("serial_share", "usl", "sigma"),
        ("coherence", "usl", "kappa"),
    ):
        if result[law]:
            yield Measurement(metric, result[law][parameter])


def scaling_verdict(result: Result, factor: float) -> Measurement:
    """Return the verdict as a row, with the step whose interval leaves the least room."""
    rule = f"throughput grows {factor:g} times with each doubling"
    steps = result["steps"]
    if failed := [step for step in steps if step["problems"]]:
        note = f"at {failed[0]['replicas']} replicas {'; '.join(failed[0]['problems'])}"
        return verdict("failed", rule, f"{note} ({len(failed)} of {len(steps)} steps)")
    grown = [step for step in steps if step["ratio"]]
    if not grown:
        return verdict("inconclusive", rule, "one step has nothing to compare with: raise limit")
    step = min(grown, key=lambda step: step["ratio"][1] / step["needed"])
    return verdict(result["verdict"], rule, _gain(step, f"times at {step['replicas']} replicas"))


def summary(result: Result) -> str:
    """Return steps, laws, work by node and verdict as text."""
    return render("result.txt.j2", **result, gain=_gain)


def _gain(step: Step, text: str) -> str:
    value, low, high = step["ratio"]
    interval = f"95 % {low:.3f} to {high or math.inf:.3f}"
    return f"{value:.3f} {text} ({interval}), {step['needed']:.3f} needed"
