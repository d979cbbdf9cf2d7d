"""Throughput in steady state: watch a client until windows agree, instead of for a fixed time.

A window ends when every slot of the closed loop has completed a few more items. Its rate is the sum
over the
slots, from completion to completion, so a window of whole items has no error at its edges.
The rate is steady when the last windows lie within a tolerance. Earlier windows are warm-up.
"""

import asyncio
import math
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfdag.stats.robust import student_t

Chains = dict[int, tuple[float, float, int]]
Stats = Mapping[str, Any]


@dataclass(frozen=True)
class SteadyCriteria:
    """When a rate is steady: `windows` of `items` a slot lie within `tolerance`.

    `tolerance` is relative. `seconds`: the longest wait, unless 16 of the longest items take
    more
    (three windows take 13 items a slot). `poll`: seconds between polls.
    """

    items: int = 3
    windows: int = 3
    tolerance: float = 0.05
    seconds: float = 120.0
    poll: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.seconds < math.inf:
            raise ValueError(f"timeout {self.seconds:g} s is not above 0 and finite")
        if not 0 < self.tolerance < 1:
            raise ValueError(f"tolerance {self.tolerance:g} is not between 0 and 1 (0.05 is 5 %)")

    def limit(self, item: float) -> float:
        """Return the seconds to wait when the longest item took `item` seconds."""
        return max(self.seconds, 16 * item)


@dataclass(frozen=True)
class Rate:
    """Items a second, their standard error and steadiness, and the client's statistics."""

    per_second: float
    error: float
    windows: tuple[float, ...]
    steady: bool
    seconds: float
    stats: Stats

    @property
    def relative_error(self) -> float:
        return self.error / self.per_second if self.per_second else math.inf


def chains(stats: Stats) -> Chains:
    """Return the first and last completion (seconds) and the count of every slot."""
    return {
        int(slot): (first, last, int(count))
        for slot, (first, last, count) in stats["chains"].items()
    }


def window(before: Chains, after: Chains) -> float:
    """Return items a second between two polls, summed over the slots."""
    total = 0.0
    for slot, (_, last, count) in after.items():
        if slot in before and count > before[slot][2]:
            total += (count - before[slot][2]) / (last - before[slot][1])
    return total


async def measure(
    read_stats: Callable[[], Awaitable[Stats]],
    slots: int,
    criteria: SteadyCriteria,
    ready: Callable[[Stats], bool],
    lost: Callable[[], Awaitable[str]],
) -> Rate:
    """Poll until the rate is steady, the time ends, all requests fail, or a replica is lost.

    `ready`: returns False while it is too early to begin a window.
    `lost`: returns which replicas are lost, "" for none.
    """
    began = time.monotonic()
    rates: list[float] = []
    start: Chains | None = None
    while True:
        stats = await read_stats()
        now = chains(stats)
        if len(now) >= slots and start is None and ready(stats):
            start = now
        elif start is not None and _complete(start, now, slots, criteria.items):
            rates.append(window(start, now))
            start = now
        last = rates[-criteria.windows :]
        steady = len(last) == criteria.windows and _agree(last, criteria.tolerance)
        all_failed = not stats["success"] and stats["failure"] >= max(3, slots)
        if (
            steady
            or all_failed
            or await lost()
            or time.monotonic() - began > criteria.limit(longest(stats))
        ):
            return summarize(
                last if steady else rates[1:] or rates, steady, time.monotonic() - began, stats
            )
        await asyncio.sleep(criteria.poll)


def longest(stats: Stats) -> float:
    """Return the seconds of the longest item, 0 before the first."""
    return float(stats["run"].get("max") or 0.0)


def _complete(before: Chains, after: Chains, slots: int, items: int) -> bool:
    return len(after) >= slots and all(
        slot in before and after[slot][2] - before[slot][2] >= items for slot in after
    )


def _agree(rates: Sequence[float], tolerance: float) -> bool:
    mean = statistics.fmean(rates)
    return mean > 0 and max(abs(rate - mean) for rate in rates) <= tolerance * mean


def summarize(rates: Sequence[float], steady: bool, seconds: float, stats: Stats) -> Rate:
    """Return the mean rate of windows, with its standard error."""
    mean = statistics.fmean(rates) if rates else 0.0
    error = statistics.stdev(rates) / math.sqrt(len(rates)) if len(rates) > 1 else math.inf
    return Rate(mean, error, tuple(rates), steady, seconds, stats)


def ratio(later: Rate, earlier: Rate) -> tuple[float, float, float]:
    """Return the ratio of two rates with its 95 % interval.

    The interval comes from the windows' spread, by the delta method on the logarithm.
    """
    if not earlier.per_second:
        return math.nan, 0.0, math.inf
    value = later.per_second / earlier.per_second
    freedom = min(len(later.windows), len(earlier.windows)) - 1
    width = student_t(0.975, freedom) * math.hypot(later.relative_error, earlier.relative_error)
    if not math.isfinite(width) or width > 50:
        return value, 0.0, math.inf
    return value, value * math.exp(-width), value * math.exp(width)
