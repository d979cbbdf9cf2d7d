"""The client: a closed loop of slots that send a request when their last is answered.

The completions of every slot are counted, so that a rate can be taken from one completion to a
later one. No part of an item is then counted or lost at the edges of the measured time.
"""

import asyncio
import math
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from perfdag.stats.robust import needed
from perfdag.steps.queue import protocol

PERCENTILES = (0.5, 0.9, 0.95, 0.99)
RETRY_SECONDS = 0.2
UNREACHABLE = ("cannot connect", "connection lost", "no valid reply")
"""Causes of requests that no frontend answered."""


class Times:
    """Seconds: exact count, sum, least and largest, and percentiles within 0.5 %."""

    def __init__(self) -> None:
        self.rounded: Counter[float] = Counter()
        self.sum, self.least, self.largest = 0.0, math.inf, 0.0

    def add(self, seconds: float) -> None:
        self.rounded[float(f"{seconds:.2e}")] += 1
        self.sum += seconds
        self.least = min(self.least, seconds)
        self.largest = max(self.largest, seconds)

    def summary(self) -> dict[str, float | None]:
        """Return count, min, mean and max in seconds, and percentiles by nearest rank.

        A percentile with fewer samples than needed is None.
        """
        count, values = self.rounded.total(), sorted(self.rounded)
        if not count:
            return {"count": 0, "max": 0.0}
        ranks = list(accumulate(self.rounded[value] for value in values))
        return {
            "count": count,
            "min": self.least,
            "mean": self.sum / count,
            "max": self.largest,
            **{
                f"p{p * 100:g}": values[bisect_left(ranks, math.ceil(p * count))]
                if count >= needed(p)
                else None
                for p in PERCENTILES
            },
        }


@dataclass
class Node:
    """Replies of one node; `run_seconds`: of completed items by device."""

    success: int = 0
    failure: int = 0
    devices: Counter[str] = field(default_factory=Counter)
    run_seconds: Counter[str] = field(default_factory=Counter)
    failed_devices: Counter[str] = field(default_factory=Counter)
    pods: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)


class ClientStats:
    """Statistics since the last reset.

    Requests in flight survive a reset and count when they end. `chains` has the first and last
    completion (monotonic seconds) of each slot, and the number of completions after the first.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.pending = 0
        self.parallel = 0
        self.reset()

    def reset(self) -> None:
        """Clear all but the number of requests in flight."""
        self.start = self.clock()
        self.success = 0
        self.failure = 0
        self.causes: Counter[str] = Counter()
        self.nodes: dict[str, Node] = {}
        self.latency, self.run, self.wait, self.overhead = (Times() for _ in range(4))
        self.chains: dict[int, tuple[float, float, int]] = {}

    def begin(self) -> None:
        if not (self.pending or self.success or self.failure):
            self.start = self.clock()
        self.pending += 1

    def finish(self, reply: protocol.Message, began: float, slot: int) -> None:
        """Count a frontend's reply. `began`: monotonic seconds."""
        now = self.clock()
        self.pending -= 1
        error = reply["Error"] or f"return code {reply['Retcode']}"
        node = self.nodes.setdefault(reply["Node"], Node()) if reply["Node"] else Node()
        if not protocol.succeeded(reply):
            self.failed(error)
            node.failure += 1
            node.failed_devices[reply["Device"]] += 1
            node.errors[error] += 1
            return
        self.success += 1
        first, _, count = self.chains.get(slot, (now, now, -1))
        self.chains[slot] = (first, now, count + 1)
        took, run, waited = now - began, reply["Runtime"], reply["Waittime"]
        self.latency.add(took)
        self.run.add(run)
        self.wait.add(waited)
        self.overhead.add(max(0.0, took - run - waited))
        node.success += 1
        node.devices[reply["Device"]] += 1
        node.run_seconds[reply["Device"]] += run
        node.pods[reply["Pod"]] += 1

    def failed(self, cause: str) -> None:
        """Count a failed request."""
        self.failure += 1
        self.causes[cause] += 1

    @property
    def seconds(self) -> float:
        return self.clock() - self.start

    @property
    def rate(self) -> float:
        """Return successes a second since the start, as the original counts them."""
        return self.success / self.seconds if self.seconds > 0 else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return all statistics; times in seconds, rates a second."""
        names = ("seconds", "parallel", "pending", "success", "failure")
        times = ("latency", "run", "wait", "overhead")
        return {
            **{name: getattr(self, name) for name in names},
            "causes": dict(self.causes),
            "requests_per_second": self.rate,
            "chains": {
                str(slot): [first - self.start, last - self.start, count]
                for slot, (first, last, count) in self.chains.items()
            },
            **{name: getattr(self, name).summary() for name in times},
            "nodes": {
                name: {
                    key: dict(value) if isinstance(value, Counter) else value
                    for key, value in vars(node).items()
                }
                for name, node in self.nodes.items()
            },
        }


@dataclass
class Load:
    """So many slots that send requests, each when its last one is answered.

    `most`: slots, at most. `args` and `limit` (seconds) are those of every request.
    """

    frontend: protocol.Address
    queue: str
    stats: ClientStats
    most: int
    args: list[str] | None = None
    limit: float = 0.0
    wanted: int = 0
    slots: dict[int, asyncio.Task[None]] = field(default_factory=dict)

    async def request(self, slot: int) -> bool:
        """Send a request and count its answer; return False if none came."""
        stats, began, cause = self.stats, time.monotonic(), "cannot connect"
        stats.begin()
        try:
            host = self.frontend.host or "localhost"
            reader, writer = await asyncio.open_connection(host, self.frontend.port)
            cause = "connection lost"
            try:
                message = {
                    "Queue": self.queue,
                    "Args": self.args,
                    "Limit": self.limit,
                }
                writer.write(protocol.encode(message))
                protocol.enable_keepalive(writer.get_extra_info("socket"))
                reply = await protocol.receive(reader, protocol.REPLY)
            finally:
                writer.close()
        except asyncio.CancelledError:
            stats.pending -= 1
            raise
        except (OSError, protocol.MalformedError) as error:
            stats.pending -= 1
            stats.failed(cause if isinstance(error, OSError) else "no valid reply")
            return False
        stats.finish(reply, began, slot)
        return True

    def set_parallel(self, wanted: int) -> int:
        """Run `wanted` slots, clipped to 0 and `most`; further slots end after their request.

        Return the number.
        """
        self.wanted = self.stats.parallel = max(0, min(self.most, wanted))
        for slot in range(self.wanted):
            if slot not in self.slots or self.slots[slot].done():
                self.slots[slot] = asyncio.create_task(self._slot(slot))
        return self.wanted

    async def _slot(self, slot: int) -> None:
        while slot < self.wanted:
            if not await self.request(slot):
                await asyncio.sleep(RETRY_SECONDS)

    async def stop(self) -> None:
        """Send no more requests and drop those in flight."""
        self.wanted = 0
        for task in self.slots.values():
            task.cancel()
        await asyncio.gather(*self.slots.values(), return_exceptions=True)
