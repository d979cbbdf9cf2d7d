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
from typing import Any, NamedTuple

from perfdag.stats.robust import needed
from perfdag.steps.queue import protocol

PERCENTILES = (0.5, 0.9, 0.95, 0.99)
RETRY_SECONDS = 0.2
UNREACHABLE = ("cannot connect", "connection lost", "no valid reply")
"""Causes of requests that no frontend answered."""


@dataclass
class Times:
    """Seconds: exact count, sum, least and largest, and percentiles within 0.5 %."""

    rounded: Counter[float] = field(default_factory=Counter)
    sum: float = 0.0
    least: float = math.inf
    largest: float = 0.0

    def add(self, seconds: float) -> None:
        self.rounded[float(f"{seconds:.2e}")] += 1
        self.sum += seconds
        self.least = min(self.least, seconds)
        self.largest = max(self.largest, seconds)

    def summary(self) -> dict[str, float | None]:
        """Return count, min, mean and max in seconds, and percentiles by nearest rank.

        A percentile with fewer samples than needed is None.
        """
        count = self.rounded.total()
        if not count:
            return {"count": 0, "max": 0.0}
        values = sorted(self.rounded)
        ranks = list(accumulate(self.rounded[value] for value in values))
        summary: dict[str, float | None] = {
            "count": count,
            "min": self.least,
            "mean": self.sum / count,
            "max": self.largest,
        }
        for p in PERCENTILES:
            at_rank = values[bisect_left(ranks, math.ceil(p * count))]
            summary[f"p{p * 100:g}"] = at_rank if count >= needed(p) else None
        return summary


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

    def as_json(self) -> dict[str, Any]:
        """Return all counts by field."""
        counts = {
            name: dict(value) for name, value in vars(self).items() if isinstance(value, Counter)
        }
        return {"success": self.success, "failure": self.failure, **counts}


class Chain(NamedTuple):
    """The first and last completion of a slot in seconds, and the completions after the first."""

    first: float
    last: float
    completions: int


class ClientStats:
    """Statistics since the last reset.

    Requests in flight survive a reset and count when they end. `chains` has the Chain of each slot.
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
        self.chains: dict[int, Chain] = {}

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
        # The first completion begins a chain and counts as none: its item began before.
        chain = self.chains.get(slot, Chain(now, now, -1))
        self.chains[slot] = Chain(chain.first, now, chain.completions + 1)
        self.latency.add(now - began)
        self.run.add(reply["Runtime"])
        self.wait.add(reply["Waittime"])
        self.overhead.add(max(0.0, now - began - reply["Runtime"] - reply["Waittime"]))
        node.success += 1
        node.devices[reply["Device"]] += 1
        node.run_seconds[reply["Device"]] += reply["Runtime"]
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

    def counts_by_node(self, name: str) -> dict[str, int]:
        """Return a count of each node."""
        return {node: getattr(counts, name) for node, counts in self.nodes.items()}

    def as_json(self) -> dict[str, Any]:
        """Return all statistics: times in seconds (of chains since `start`), rates a second."""
        return {
            "seconds": self.seconds,
            "parallel": self.parallel,
            "pending": self.pending,
            "success": self.success,
            "failure": self.failure,
            "causes": dict(self.causes),
            "requests_per_second": self.rate,
            "chains": {
                str(slot): Chain(
                    chain.first - self.start, chain.last - self.start, chain.completions
                )
                for slot, chain in self.chains.items()
            },
            "latency": self.latency.summary(),
            "run": self.run.summary(),
            "wait": self.wait.summary(),
            "overhead": self.overhead.summary(),
            "nodes": {name: node.as_json() for name, node in self.nodes.items()},
        }


@dataclass
class Load:
    """So many slots that send requests, each when its last one is answered.

    `most_slots`: slots, at most. `args` and `limit` (seconds) are those of every request.
    """

    frontend: protocol.Address
    queue: str
    stats: ClientStats
    most_slots: int
    args: list[str] | None = None
    limit: float = 0.0
    parallel: int = 0
    slots: dict[int, asyncio.Task[None]] = field(default_factory=dict)

    async def request(self, slot: int) -> bool:
        """Send a request and count its answer; return False if none came."""
        stats = self.stats
        began = time.monotonic()
        cause = "cannot connect"
        stats.begin()
        try:
            host = self.frontend.host or "localhost"
            reader, writer = await asyncio.open_connection(host, self.frontend.port)
            cause = "connection lost"
            try:
                message = {"Queue": self.queue, "Args": self.args, "Limit": self.limit}
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

    def set_parallel(self, requests: int) -> int:
        """Run as many slots as `requests`, clipped to 0 and `most_slots`; return the number.

        Further slots end after their request.
        """
        self.parallel = self.stats.parallel = max(0, min(self.most_slots, requests))
        for slot in range(self.parallel):
            if slot not in self.slots or self.slots[slot].done():
                self.slots[slot] = asyncio.create_task(self._slot(slot))
        return self.parallel

    async def _slot(self, slot: int) -> None:
        while slot < self.parallel:
            if not await self.request(slot):
                await asyncio.sleep(RETRY_SECONDS)

    async def stop(self) -> None:
        """Send no more requests and drop those in flight."""
        self.parallel = 0
        for task in self.slots.values():
            task.cancel()
        await asyncio.gather(*self.slots.values(), return_exceptions=True)
