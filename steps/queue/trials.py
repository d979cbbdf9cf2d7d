"""Trials of a queue at a rate: the latency of an open loop, and the highest rate within a bound."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Protocol

from perfdag.outcome import Failed
from perfdag.stats.peak import NoPeak, find_peak
from perfdag.steps.queue.client.arrivals import Arrival, Arrivals
from perfdag.steps.queue.client.stats import NEEDED
from perfdag.steps.queue.validate.steady_state import Rate, Stats, SteadyCriteria, measure
from perfdag.steps.queue.validate.validate import Load, Target, failures, idle
from perfdag.steps.queue.validate.verdict import count_pods

FIRST_RATE, MOST_RATE, LEAST_RATE = 0.7, 1.5, 0.05
"""The first rate of a search and its limits, as shares of a closed loop's rate."""
SHORT = 0.5
"""Seconds of a trial that narrows the search, as a share of a full one."""
SURPLUS = 1.3
"""Requests of a trial, as a multiple of those that its percentile needs."""
OVERLOAD = {"queue full", "too many in flight"}
"""Causes of failed requests that a lower rate avoids."""
STATISTICS = (
    "scheduled",
    "success",
    "failure",
    "causes",
    "latency",
    "schedule_lag",
    "run",
    "nodes",
)
POLL_SECONDS = 0.1


class RateLoad(Load, Protocol):
    """A client that sends in a closed loop, or in an open one."""

    async def rate(self, arrivals: Arrivals | None, seconds: float = 1.0) -> None:
        """Send by a schedule for so many seconds; nothing for None."""


@dataclass(frozen=True)
class Setting:
    """How trials run: seconds of a full one, arrivals, and the bound (s) of a percentile.

    `precision`: relative width of the last bracket of a search. `seed`: of the arrivals.
    """

    seconds: float
    arrival: Arrival
    percentile: str
    bound: float
    precision: float
    seed: int = 1

    def seconds_at(self, rate: float, full: bool = True) -> float:
        """Return the seconds of a trial, enough for the requests that its percentile needs."""
        least = SURPLUS * NEEDED[float(self.percentile[1:]) / 100] / rate
        return max(least, self.seconds * (1.0 if full else SHORT))


@dataclass(frozen=True)
class Trial:
    """A trial at `rate` requests a second, with the client's statistics.

    `full`: it had its whole duration. `held`: every request was answered, and the percentile
    kept the bound.
    """

    rate: float
    full: bool
    held: bool
    stats: Stats

    def as_json(self) -> dict[str, Any]:
        """Return the trial with the statistics that measurements need."""
        return {
            "rate": self.rate,
            "full": self.full,
            "held": self.held,
            **{key: self.stats[key] for key in STATISTICS},
        }


async def run_trial(
    load: RateLoad, setting: Setting, rate: float, full: bool, number: int = 0
) -> Trial:
    """Send at a rate, and wait for the answers, at most as long again.

    `number` counts the trials of a sample: each draws its own arrivals.

    Raises Failed if requests failed for another reason than overload.
    """
    seconds = setting.seconds_at(rate, full)
    await load.reset()
    await load.rate(Arrivals(rate, setting.arrival, seed=setting.seed + number), seconds)
    start = time.monotonic()
    while (stats := await load.stats())["pending"] or time.monotonic() - start < seconds:
        if time.monotonic() - start > 2 * seconds + setting.bound:
            break
        await asyncio.sleep(POLL_SECONDS)
    await load.rate(None)
    if stats["causes"].keys() - OVERLOAD:
        raise Failed(f"at {rate:.4g}/s: {'; '.join(failures(stats))}")
    latency = stats["latency"].get(setting.percentile)
    complete = stats["success"] == stats["scheduled"] and latency is not None
    return Trial(rate, full, complete and latency <= setting.bound, stats)


async def run_trials(
    target: Target, load: RateLoad, setting: Setting, rate: float | None
) -> dict[str, Any]:
    """Run a full trial at `rate`, or for None a search of the highest rate within the bound.

    The result has `replicas` and `trials`, in order. A search adds `capacity` (a closed
    loop's rate, None if unsteady), `peak` (the highest rate that a full trial held) and `above`
    (a rate that one did not hold). Without a search these are None.

    Raises BadInput, and Failed if no rate holds the bound.
    """
    replicas = await target.ready()
    await load.parallel(0)  # the client may have a load of its own
    await idle(target, load, 60 + 4 * setting.seconds)
    trials: list[Trial] = []
    result: dict[str, Any] = {"replicas": replicas, "capacity": None, "peak": None, "above": None}

    async def trial(rate: float, full: bool) -> bool:
        await idle(target, load, 60 + 4 * setting.seconds)
        trials.append(await run_trial(load, setting, rate, full, len(trials)))
        return trials[-1].held

    if rate is not None:
        await trial(rate, True)
    else:
        closed = await closed_loop_rate(target, load, replicas)
        capacity = closed.per_second
        if closed.steady and not closed.stats["failure"]:
            result["capacity"] = capacity
        if (item := closed.stats["run"]["min"]) >= setting.bound:
            raise Failed(f"no rate holds {setting.bound:g} s: an item takes {item:.3g} s or more")
        loop = asyncio.get_running_loop()

        def sustains(rate: float, full: bool) -> bool:
            return asyncio.run_coroutine_threadsafe(trial(rate, full), loop).result()

        try:
            peak = await asyncio.to_thread(
                find_peak,
                lambda rate: sustains(rate, False),
                lambda rate: sustains(rate, True),
                FIRST_RATE * capacity,
                precision=setting.precision,
                lowest=LEAST_RATE * capacity,
                highest=MOST_RATE * capacity,
            )
        except NoPeak as error:
            bound = f"{setting.percentile} within {setting.bound:g} s"
            raise Failed(f"{bound}: {error}") from None
        result |= {"peak": peak.rate, "above": peak.above}
    if (now := await target.ready()) != replicas:
        raise Failed(f"{replicas} backends ran at the start and {now} at the end")
    return {**result, "seed": setting.seed, "trials": [one.as_json() for one in trials]}


async def closed_loop_rate(target: Target, load: Load, replicas: int) -> Rate:
    """Return the rate with as many requests in parallel as replicas; it warms them up.

    Raises Failed if they do no work, and BadInput if their last items do not end.
    """
    await load.reset()
    await load.parallel(replicas)
    criteria = SteadyCriteria()
    rate = await measure(
        load.stats, replicas, criteria, lambda stats: count_pods(stats) >= replicas, target.lost
    )
    await load.parallel(0)
    if not rate.per_second:
        why = "; ".join(failures(rate.stats)) or await target.lost() or await target.why()
        raise Failed(f"{replicas} backends did no work in a closed loop: {why or 'no answer'}")
    await idle(target, load, criteria.seconds)
    return rate
