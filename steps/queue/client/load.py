"""The load of a client: a closed loop of slots, or an open loop with a schedule.

Open-loop latency runs from the scheduled time, so it shows a stalled server (no coordinated
omission).
"""

import asyncio
import math
import time

from perfdag.steps.queue import wire
from perfdag.steps.queue.client.arrivals import Arrivals
from perfdag.steps.queue.client.stats import ClientStats
from perfdag.steps.queue.client.wires import NoAnswerError, Wire

RETRY_SECONDS = 0.2
DRAIN_SECONDS = 30.0
"""Seconds that an open loop waits for its last answers."""
UNANSWERED = "no answer in time"


def most_late(rate: float) -> float:
    """Return the seconds that an open loop may be late at p99 of its requests."""
    return max(0.01, 2 / rate)


class ClosedLoop:
    """Slots that send a request when their last one is answered."""

    def __init__(self, wire_: Wire, client_stats: ClientStats, most: int) -> None:
        if not 1 <= most <= wire.MOST_PARALLEL:
            raise ValueError(
                f"at most {most} parallel requests: must be between 1 and {wire.MOST_PARALLEL}"
            )
        self.wire = wire_
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
            if not await request(self.wire, self.client_stats, slot):
                await asyncio.sleep(RETRY_SECONDS)

    async def stop(self) -> None:
        """Send no more requests and drop those in flight."""
        self.wanted = 0
        for slot in self.slots:
            slot.cancel()
        await asyncio.gather(*self.slots, return_exceptions=True)


async def request(
    wire_: Wire, client_stats: ClientStats, slot: int, scheduled: float | None = None
) -> bool:
    """Send a request and count it; return False if no answer came.

    `scheduled`: monotonic seconds.
    """
    began = time.monotonic()
    client_stats.begin()
    answer, cause = None, "cancelled"
    try:
        answer = await wire_.ask()
    except NoAnswerError as error:
        cause = str(error)
    finally:
        if answer is None and cause == "cancelled":
            client_stats.pending -= 1
        else:
            client_stats.finish(
                answer, cause, began, scheduled if scheduled is not None else began, slot
            )
    return answer is not None


class OpenLoop:
    """Requests at scheduled times, independent of answers; at most `most` are in flight.

    `drain`: seconds to wait for the last answers.
    """

    def __init__(
        self,
        wire_: Wire,
        client_stats: ClientStats,
        most: int = wire.MOST_PARALLEL,
        drain: float = DRAIN_SECONDS,
    ) -> None:
        self.wire, self.client_stats, self.most, self.drain = wire_, client_stats, most, drain
        self.rate = 0.0
        self.flying: set[asyncio.Task[bool]] = set()

    async def send(self, arrivals: Arrivals, seconds: float = math.inf) -> None:
        """Send for `seconds`."""
        self.rate = arrivals.rate
        start = time.monotonic()
        for due in arrivals.times():
            if due >= seconds:
                return
            wait = start + due - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
            elif self.client_stats.scheduled % 64 == 0:
                await asyncio.sleep(0)
            self._send(start + due)

    async def finish(self) -> None:
        """Wait for answers. A request without one in time counts as a failure."""
        start = time.monotonic()
        if self.flying:
            await asyncio.wait(self.flying, timeout=self.drain)
        for task in await self.cancel():
            if task.cancelled():
                self.client_stats.pending += 1  # began() could restart the clock
                self.client_stats.finish(None, UNANSWERED, start, start, -1)

    async def cancel(self) -> list[asyncio.Task[bool]]:
        """Drop the requests in flight and return them."""
        left = list(self.flying)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        return left

    def _send(self, scheduled: float) -> None:
        self.client_stats.scheduled += 1
        self.client_stats.lag.add(max(0.0, time.monotonic() - scheduled))
        if len(self.flying) >= self.most:
            self.client_stats.begin()
            self.client_stats.finish(None, "too many in flight", scheduled, scheduled, -1)
            return
        task = asyncio.create_task(request(self.wire, self.client_stats, -1, scheduled))
        self.flying.add(task)
        task.add_done_callback(self.flying.discard)

    def validity(self) -> str:
        """Return "" if 98 % of the requests were sent in time, else why the run is invalid."""
        late = self.client_stats.lag.at(0.99)
        if late > most_late(self.rate):
            return f"invalid: the generator ran {late * 1000:.1f} ms late at p99 of its requests"
        dropped = self.client_stats.causes["too many in flight"]
        if dropped > 0.02 * max(1, self.client_stats.scheduled):
            return (
                f"invalid: {dropped} of {self.client_stats.scheduled} requests came with "
                f"{self.most} in flight"
            )
        if missing := self.client_stats.causes[UNANSWERED]:
            return (
                f"invalid: {missing} of {self.client_stats.scheduled} requests were not answered "
                f"{self.drain:g} s after the last was sent (--drain)"
            )
        return ""


class Load:
    """The load of a client: requests in parallel or at a rate, never both."""

    def __init__(
        self, wire_: Wire, client_stats: ClientStats, most: int, drain: float = DRAIN_SECONDS
    ) -> None:
        self.client_stats = client_stats
        self.closed = ClosedLoop(wire_, client_stats, most)
        self.open = OpenLoop(wire_, client_stats, drain=drain)
        self.sending: asyncio.Task[None] | None = None

    def set_parallel(self, wanted: int) -> int:
        """Keep so many requests in flight; return the number, at most that of the closed loop."""
        self.set_rate(None)
        return self.closed.set_parallel(wanted)

    def set_rate(self, arrivals: Arrivals | None, seconds: float = math.inf) -> None:
        """Send by a schedule for `seconds`, nothing for None. Those in flight go on."""
        self.closed.set_parallel(0)
        if self.sending:
            self.sending.cancel()
        self.client_stats.arrivals = arrivals
        self.sending = asyncio.create_task(self.open.send(arrivals, seconds)) if arrivals else None

    async def finish(self) -> None:
        """Send what is due, and wait for the answers of the open loop."""
        if self.sending:
            await asyncio.wait([self.sending], timeout=1.0)
        self.set_rate(None)
        await self.open.finish()

    async def stop(self) -> None:
        """Send no more requests and drop those in flight."""
        self.set_rate(None)
        await asyncio.gather(self.closed.stop(), self.open.cancel())
