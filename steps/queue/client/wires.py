"""The connections of a client to the frontend, in the original and in the kept framing."""

import asyncio
from dataclasses import dataclass, field
from typing import cast

from perfdag.steps.queue import wire


class NoAnswerError(Exception):
    """A request without an answer; the text is the cause that is counted."""


@dataclass(frozen=True)
class Work:
    """The content of every request.

    `limit` in seconds; `retries` after a lost backend (None: the frontend's).
    """

    queue: str
    args: list[str] = field(default_factory=list)
    limit: float = 0.0
    retries: int | None = None

    def message(self) -> wire.Message:
        return {"Queue": self.queue, "Args": self.args or None, "Limit": self.limit}


class OriginalWire:
    """The original framing: one connection for every request."""

    def __init__(self, frontend: wire.Address, work: Work) -> None:
        self.where = frontend
        self.request = wire.encode(work.message())

    async def ask(self) -> wire.Message:
        """Send the request and return the reply. Raises NoAnswerError."""
        try:
            reader, writer = await asyncio.open_connection(
                self.where.host or "localhost", self.where.port
            )
        except OSError:
            raise NoAnswerError("cannot connect") from None
        try:
            writer.write(self.request)
            wire.enable_keepalive(writer.get_extra_info("socket"))
            message = wire.decode(await reader.read())
            return wire.reply(message) | {"Waittime": wire.number(message, "Waittime")}
        except OSError:
            raise NoAnswerError("connection lost") from None
        except wire.MalformedError:
            raise NoAnswerError("no valid reply") from None
        finally:
            writer.close()

    async def close(self) -> None:
        """Do nothing: no connection stays open."""


class KeptWire(asyncio.Protocol):
    """The kept framing: all requests on one connection, matched by number.

    It reconnects when needed.
    """

    def __init__(self, frontend: wire.Address, work: Work) -> None:
        self.where = frontend
        self.work = work.message()
        if work.retries is not None:
            self.work["Retries"] = work.retries
        self.transport: asyncio.Transport | None = None
        self.replies: dict[int, asyncio.Future[wire.Message]] = {}
        self.number = 0
        self.buffer = b""
        self.refused = ""
        self.connecting = asyncio.Lock()

    async def ask(self) -> wire.Message:
        """Send the request and return the reply. Raises NoAnswerError."""
        if self.transport is None:
            await self._connect()
        assert self.transport is not None
        self.number = number = self.number + 1
        future: asyncio.Future[wire.Message] = asyncio.get_running_loop().create_future()
        self.replies[number] = future
        self.work["Id"] = number
        self.transport.write(wire.encode_line(self.work))
        try:
            return await future
        finally:
            self.replies.pop(number, None)

    async def _connect(self) -> None:
        async with self.connecting:
            if self.transport is not None:
                return
            try:
                await asyncio.get_running_loop().create_connection(
                    lambda: self, self.where.host or "localhost", self.where.port
                )
            except OSError:
                raise NoAnswerError("cannot connect") from None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport, self.buffer, self.refused = cast(asyncio.Transport, transport), b"", ""
        wire.enable_keepalive(self.transport.get_extra_info("socket"))
        self.transport.write(wire.HELLO)

    def data_received(self, data: bytes) -> None:
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        for line in lines:
            try:
                message = wire.decode(line)
            except wire.MalformedError:
                continue
            if message.get("Id") is None:  # of no request: the reason why the frontend closes
                self.refused = str(message.get("Error") or "")[:200]
                continue
            future = self.replies.get(message["Id"])
            if future is not None and not future.done():
                future.set_result(message)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        for future in self.replies.values():
            if not future.done():
                future.set_exception(NoAnswerError(self.refused or "connection lost"))

    async def close(self) -> None:
        if self.transport is not None:
            self.transport.close()


Wire = OriginalWire | KeptWire
