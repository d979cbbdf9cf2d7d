"""The client: a closed loop of slots that send a request when their last is answered.

Throughput is counted for every slot, from one completion to a later one. So no part of an item is
counted or lost at the edges of the measured time.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from perfdag.steps.queue import wire

PERCENTILES = {0.5: 1, 0.9: 44, 0.95: 90, 0.99: 459, 0.999: 4603}
"""Samples that each needs: with fewer, the chance that none lies above it exceeds 1 %."""
STEP = 1.01
ERRORS_KEPT = 1000
RETRY_SECONDS = 0.2
UNREACHABLE = ("cannot connect", "connection lost", "no valid reply")
"""Causes of requests that no frontend answered."""


class Latencies:
    """Seconds in logarithmic buckets 1 % wide; exact count, sum, least and largest."""

    def __init__(self) -> None:
        self.buckets: Counter[int] = Counter()
        self.count = 0
        self.sum = 0.0
        self.least = math.inf
        self.largest = 0.0

    def add(self, seconds: float) -> None:
        seconds = max(seconds, 1e-7)
        self.buckets[int(math.log(seconds * 1e7) / _LOG)] += 1
        self.count += 1
        self.sum += seconds
        if seconds < self.least:
            self.least = seconds
        if seconds > self.largest:
            self.largest = seconds

    def percentile(self, p: float) -> float | None:
        """Return the nearest rank in seconds, within 1 %; None with fewer samples than needed."""
        if self.count < PERCENTILES[p]:
            return None
        rank, seen = math.ceil(p * self.count), 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= rank:
                break
        middle = math.pow(STEP, bucket + 0.5) * 1e-7
        return min(self.largest, max(self.least, middle))

    def summary(self) -> dict[str, float | None]:
        """Return min, mean, max and the percentiles that the count allows, in seconds."""
        if not self.count:
            return {"count": 0}
        points = {f"p{p * 100:g}": self.percentile(p) for p in PERCENTILES}
        return {
            "count": self.count,
            "min": self.least,
            "mean": self.sum / self.count,
            "max": self.largest,
            **points,
        }


_LOG = math.log(STEP)


@dataclass
class Node:
    """Replies of one node; `run_seconds`: of completed items by device."""

    success: int = 0
    failure: int = 0
    run_seconds: dict[str, float] = field(default_factory=dict)
    devices: Counter[str] = field(default_factory=Counter)
    failed_devices: Counter[str] = field(default_factory=Counter)
    pods: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)


@dataclass
class Chain:
    """Completions of one slot: seconds of the first and the last, and the count after the first."""

    first: float
    last: float
    count: int = 0

    @property
    def rate(self) -> float:
        """Return completions a second, 0 before the second one."""
        return self.count / (self.last - self.first) if self.count else 0.0


class ClientStats:
    """Statistics since the last reset.

    Requests in flight survive a reset and count when they end.
    """

    def __init__(self) -> None:
        self.pending = 0
        self.parallel = 0
        self.reset()

    def reset(self) -> None:
        """Clear all but the number of requests in flight."""
        self.start = time.monotonic()
        self.success = 0
        self.failure = 0
        self.causes: Counter[str] = Counter()
        self.nodes: dict[str, Node] = {}
        self.latency, self.run, self.wait, self.overhead = (Latencies() for _ in range(4))
        self.chains: dict[int, Chain] = {}

    def begin(self) -> None:
        if not (self.pending or self.success or self.failure):
            self.start = time.monotonic()
        self.pending += 1

    def finish(self, answer: wire.Message | None, cause: str, began: float, slot: int) -> None:
        """Count an answer, or a failure with its cause. `began`: monotonic seconds."""
        now = time.monotonic()
        self.pending -= 1
        if answer is None:
            self._failed(cause, cause, None)
            return
        if not wire.succeeded(answer):
            self._failed(
                cause_of(answer), answer["Error"] or f"return code {answer['Retcode']}", answer
            )
            return
        self.success += 1
        chain = self.chains.get(slot)
        if chain is None:
            self.chains[slot] = Chain(now, now)
        else:
            chain.count += 1
            chain.last = now
        took = now - began
        self.latency.add(took)
        self.run.add(answer["Runtime"])
        self.wait.add(answer["Waittime"])
        self.overhead.add(max(0.0, took - answer["Runtime"] - answer["Waittime"]))
        node = self._node(answer["Node"])
        node.success += 1
        node.devices[answer["Device"]] += 1
        seconds = node.run_seconds.get(answer["Device"], 0.0)
        node.run_seconds[answer["Device"]] = seconds + answer["Runtime"]
        node.pods[answer["Pod"]] += 1

    def _failed(self, cause: str, error: str, answer: wire.Message | None) -> None:
        self.failure += 1
        self.causes[cause] += 1
        if answer is not None and answer["Node"]:
            node = self._node(answer["Node"])
            node.failure += 1
            node.failed_devices[answer["Device"]] += 1
            if error in node.errors or len(node.errors) < ERRORS_KEPT:
                node.errors[error] += 1

    def _node(self, name: str) -> Node:
        return self.nodes.setdefault(name, Node())

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.start

    @property
    def rate(self) -> float:
        """Return successes a second since the start, as the original counts them."""
        return self.success / self.seconds if self.seconds > 0 else 0.0

    @property
    def steady_rate(self) -> float:
        """Return successes a second, summed over the slots' chains."""
        return sum(chain.rate for chain in self.chains.values())

    def as_json(self) -> dict[str, Any]:
        """Return all statistics; times in seconds, rates a second."""
        return {
            "seconds": self.seconds,
            "parallel": self.parallel,
            "pending": self.pending,
            "success": self.success,
            "failure": self.failure,
            "causes": dict(self.causes),
            "requests_per_second": self.rate,
            "steady_per_second": self.steady_rate,
            "chains": {
                str(slot): [c.first - self.start, c.last - self.start, c.count]
                for slot, c in self.chains.items()
            },
            "latency": self.latency.summary(),
            "run": self.run.summary(),
            "wait": self.wait.summary(),
            "overhead": self.overhead.summary(),
            "nodes": {
                name: {
                    "success": node.success,
                    "failure": node.failure,
                    "devices": dict(node.devices),
                    "run_seconds": dict(node.run_seconds),
                    "failed_devices": dict(node.failed_devices),
                    "pods": dict(node.pods),
                    "errors": dict(node.errors),
                }
                for name, node in self.nodes.items()
            },
            "suspects": suspects(self.nodes.items()),
        }


def cause_of(answer: wire.Message) -> str:
    """Return the cause of a failed reply, for example `timeout` or `backend lost`."""
    error = answer["Error"]
    if answer["Timeout"]:
        return "timeout"
    if "at full capacity" in error:
        return "queue full"
    if error.startswith(("Unknown '", "invalid queue name")):
        return "unknown queue"
    if "worker reply read" in error or error.startswith("Worker write"):
        return "backend lost"
    if answer["Node"] and answer["Retcode"]:
        return f"exit code {answer['Retcode']}"
    return "error"


def suspects(nodes: Iterable[tuple[str, Node]]) -> list[str]:
    """Return devices with 3 failures or more, and over 3 times the failure rate of the others."""
    done: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    for name, node in nodes:
        for device, count in node.devices.items():
            done[f"{name}/{device}"] += count
        for device, count in node.failed_devices.items():
            failed[f"{name}/{device}"] += count
    suspicious = []
    for device, count in failed.items():
        others = sum(failed.values()) - count
        total = sum(done.values()) + sum(failed.values())
        rest = total - done[device] - count
        if count >= 3 and rest and count / (done[device] + count) > 3 * others / rest:
            suspicious.append(device)
    return sorted(suspicious)


class NoAnswerError(Exception):
    """A request without an answer; the text is the cause that is counted."""


@dataclass(frozen=True)
class Work:
    """Where requests go, and the content of every one; `limit` in seconds."""

    frontend: wire.Address
    queue: str
    args: list[str] = field(default_factory=list)
    limit: float = 0.0

    async def ask(self) -> wire.Message:
        """Send the request on a connection of its own and return the reply.

        Raises NoAnswerError.
        """
        request = {"Queue": self.queue, "Args": self.args or None, "Limit": self.limit}
        try:
            reader, writer = await asyncio.open_connection(
                self.frontend.host or "localhost", self.frontend.port
            )
        except OSError:
            raise NoAnswerError("cannot connect") from None
        try:
            writer.write(wire.encode(request))
            wire.enable_keepalive(writer.get_extra_info("socket"))
            message = wire.decode(await reader.read())
            return wire.reply(message) | {"Waittime": wire.number(message, "Waittime")}
        except OSError:
            raise NoAnswerError("connection lost") from None
        except wire.MalformedError:
            raise NoAnswerError("no valid reply") from None
        finally:
            writer.close()


class Load:
    """So many slots that send requests, each when its last one is answered."""

    def __init__(self, work: Work, client_stats: ClientStats, most: int) -> None:
        if not 1 <= most <= wire.MOST_PARALLEL:
            raise ValueError(
                f"at most {most} parallel requests: must be between 1 and {wire.MOST_PARALLEL}"
            )
        self.work = work
        self.client_stats = client_stats
        self.most = most
        self.slots: list[asyncio.Task[None]] = []
        self.wanted = 0

    def set_parallel(self, wanted: int) -> int:
        """Run `wanted` slots, clipped to 0 and `most`; further slots end after their request.

        Return the number.
        """
        self.wanted = self.client_stats.parallel = max(0, min(self.most, wanted))
        for slot in range(self.wanted):
            if slot >= len(self.slots):
                self.slots.append(asyncio.create_task(self._slot(slot)))
            elif self.slots[slot].done():
                self.slots[slot] = asyncio.create_task(self._slot(slot))
        return self.wanted

    async def _slot(self, slot: int) -> None:
        while slot < self.wanted:
            if not await request(self.work, self.client_stats, slot):
                await asyncio.sleep(RETRY_SECONDS)

    async def stop(self) -> None:
        """Send no more requests and drop those in flight."""
        self.wanted = 0
        for slot in self.slots:
            slot.cancel()
        await asyncio.gather(*self.slots, return_exceptions=True)


async def request(work: Work, client_stats: ClientStats, slot: int) -> bool:
    """Send a request and count it; return False if no answer came."""
    began = time.monotonic()
    client_stats.begin()
    answer, cause = None, "cancelled"
    try:
        answer = await work.ask()
    except NoAnswerError as error:
        cause = str(error)
    finally:
        if answer is None and cause == "cancelled":
            client_stats.pending -= 1
        else:
            client_stats.finish(answer, cause, began, slot)
    return answer is not None
