"""The load of a client: a closed loop of slots that send a request when their last is answered."""

import asyncio
import time
from dataclasses import dataclass, field

from perfdag.steps.queue import wire
from perfdag.steps.queue.client.stats import ClientStats

RETRY_SECONDS = 0.2


UNREACHABLE = ("cannot connect", "connection lost", "no valid reply")
"""Causes of requests that no frontend answered."""


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
