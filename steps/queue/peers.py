"""The two kinds of peers of a frontend, clients and backends: what each may say, in either framing, and what it leaves behind."""

from __future__ import annotations

import contextlib
import socket
import sys
from typing import TYPE_CHECKING

from perfdag.steps.queue import wire
from perfdag.steps.queue.connection import Peer
from perfdag.steps.queue.fifo import Item, Queue, clock

if TYPE_CHECKING:
    from perfdag.steps.queue.frontend import Frontend


REQUEST_BYTES = 1024
"""What a request takes besides its arguments, rounded up."""


class Talker(Peer):
    """What clients and backends have in common."""

    __slots__ = ("frontend", "refusals")

    def __init__(self, frontend: Frontend, sock: socket.socket, host: str) -> None:
        super().__init__(
            sock, host, frontend.memory, frontend.limits.message_bytes, frontend.limits.unsent_bytes
        )
        self.frontend = frontend
        self.refusals = 0
        why = frontend.slots.take(host)
        if why:
            frontend.rejected += 1
            self.refuse(why)
        else:
            frontend.talking[self] = clock()

    def complete(self, done: bool, partial: bool) -> None:
        talking = self.frontend.talking
        if done:
            talking.pop(
                self, None
            )  # the time of the next message counts anew; its place is at the end, as the sweep wants it
        if partial:
            talking.setdefault(self, clock())

    def closed(self) -> None:
        self.frontend.slots.leave(self.host)
        self.frontend.talking.pop(self, None)
        self.lost()

    def bad(self, why: str) -> None:
        self.frontend.rejected += 1
        self.refuse(f"Unmarshaling {self.kind} JSON failed: {why}")

    def queue(self, message: wire.Message) -> Queue | None:
        """The queue that a message names; denies and returns None for an unknown one."""
        name = wire.text(message, "Queue")
        queue = self.frontend.queues.get(name)
        if queue is None:
            why = f"Unknown '{name}' queue" if name else "invalid queue name ''"
            self.frontend.rejected += 1
            self.refusals += 1
            if self.refusals > self.frontend.limits.refusals:
                self.refuse(f"{why}, and {self.refusals} refused requests on one connection")
            else:
                self.deny(message, why)
        return queue

    kind = ""

    def refuse(self, why: str) -> None:
        """Say why and close."""
        raise NotImplementedError

    def deny(self, message: wire.Message, why: str) -> None:
        """Answer one message with an error; a kept connection of a client goes on."""
        self.refuse(why)

    def lost(self) -> None:
        """The connection is gone: let go of what it held."""
        raise NotImplementedError


class Client(Talker):
    """A client: one request in original framing, any number with ids in kept framing."""

    __slots__ = ("items",)
    kind = "clientReq"

    def __init__(self, frontend: Frontend, sock: socket.socket, host: str) -> None:
        self.items: dict[Item, Queue] = {}
        frontend.clients += 1
        super().__init__(frontend, sock, host)

    def message(self, message: wire.Message) -> None:
        queue = self.queue(message)
        if queue is None:
            return
        limits = self.frontend.limits
        if queue.full:
            queue.refused += 1
            self.deny(message, f"'{queue.name}' queue already at full capacity ({queue.bound})")
            return
        if len(self.items) >= (limits.pipelined if self.kept else 1):
            self.frontend.rejected += 1
            self.refuse(f"more than {len(self.items)} requests at once on one connection")
            return
        retries = limits.retries
        if self.kept and "Retries" in message:
            retries = min(100, max(0, int(wire.number(message, "Retries"))))
        identity = message.get("Id")
        if isinstance(identity, list | dict):
            raise wire.MalformedError("Id is neither a number nor a string")
        args = wire.words(message, "Args")
        size = REQUEST_BYTES + sum(map(sys.getsizeof, args or ())) + sys.getsizeof(identity)
        if self.requests + size > limits.request_bytes:
            self.frontend.rejected += 1
            self.refuse(
                f"more than {limits.request_bytes} bytes of requests at once on one connection"
            )
            return
        self.refusals = max(0, self.refusals - 1)
        self.requests += size

        def answer(reply: wire.Message) -> None:
            self.items.pop(item, None)
            self.requests -= size
            self.settle()
            if self.kept:
                reply["Id"] = identity
                self.send(wire.line(reply))
            else:
                self.send(wire.fit_original(reply), last=True)
                self.close()

        item = Item(answer, args, wire.number(message, "Limit"), retries, clock())
        self.items[item] = queue
        self.frontend.put(queue, item)

    def deny(self, message: wire.Message, why: str) -> None:
        if self.kept:
            self.send(wire.line({**wire.failure(why), "Id": message.get("Id")}))
        else:
            self.refuse(why)

    def refuse(self, why: str) -> None:
        self.send(
            wire.line(wire.failure(why)) if self.kept else wire.fit_original(wire.failure(why))
        )
        self.close()

    def lost(self) -> None:
        for item, queue in self.items.items():
            queue.leave(item)
        self.items.clear()


class Worker(Talker):
    """A backend: asks for an item, is given one, replies."""

    __slots__ = ("item", "of", "waits")
    kind = "workReq"

    def __init__(self, frontend: Frontend, sock: socket.socket, host: str) -> None:
        self.item: Item | None = None
        self.of: Queue | None = None
        self.waits: Queue | None = None
        frontend.workers += 1
        super().__init__(frontend, sock, host)

    def message(self, message: wire.Message) -> None:
        if self.kept and message.get("Leave"):
            if self.item is None:  # else it has not seen the item yet, and will answer it
                self._unpark()
                self.send(wire.line({"Bye": True}))
                self.close()
            return
        if self.item is not None:
            self._replied(message)
            if not (self.open and "Queue" in message):
                return
        queue = self.queue(message)
        if queue is not None:
            self._next(queue)

    def _next(self, queue: Queue) -> None:
        if self.waits is not None:
            self.frontend.rejected += 1
            self.refuse("asked for an item twice")
            return
        item = queue.take()
        if item is not None:
            self.give(queue, item)
        elif self.kept:
            self.waits = queue
            self.frontend.parked[queue.name].append(self)
        else:
            self._error(f"Queue '{queue.name}' is empty", empty=True)

    def give(self, queue: Queue, item: Item) -> None:
        """Hand over an item; the connection then owes a reply."""
        self.waits, self.item, self.of = None, item, queue
        work: wire.Message = {"Error": "", "Args": item.args, "Limit": item.limit, "Empty": False}
        limits = self.frontend.limits
        if item.limit > 0:
            self.frontend.busy[self] = item.dispatched + item.limit + limits.reply_grace
        elif limits.reply_seconds:
            self.frontend.busy[self] = item.dispatched + limits.reply_seconds
        if self.kept:
            work["Running"] = queue.running
            self.send(wire.line(work))
        else:
            self.send(wire.encode(work))

    def _replied(self, message: wire.Message) -> None:
        try:
            reply = wire.reply(message)
        except wire.MalformedError as error:
            item, queue = self._done()
            queue.fail(item, f"Unmarshaling worker reply JSON failed: {error}")
        else:
            item, queue = self._done()
            queue.finish(item, reply)
        if not self.kept:
            self.close()

    def _done(self) -> tuple[Item, Queue]:
        """The item that is given back, and its queue."""
        item, queue = self.item, self.of
        assert item is not None
        assert queue is not None
        self.item = None
        self.frontend.busy.pop(self, None)
        return item, queue

    def _unpark(self) -> None:
        if self.waits is not None:
            with contextlib.suppress(ValueError):
                self.frontend.parked[self.waits.name].remove(self)
            self.waits = None

    def _error(self, why: str, empty: bool = False) -> None:
        message: wire.Message = {"Error": why, "Args": None, "Limit": 0, "Empty": empty}
        self.send(wire.line(message) if self.kept else wire.encode(message))
        self.close()

    def bad(self, why: str) -> None:
        if self.item is None:
            super().bad(why)
            return
        self.frontend.rejected += (
            1  # a reply that is no JSON: the client is told, as by the original
        )
        item, queue = self._done()
        queue.fail(item, f"Unmarshaling worker reply JSON failed: {why}")
        self.close()

    def refuse(self, why: str) -> None:
        self._error(why)

    def lost(self) -> None:
        self._unpark()
        item, queue = self.item, self.of
        if item is not None and queue is not None:
            self.item = None
            self.frontend.busy.pop(self, None)
            if queue.lost(item, "No bytes (0) / error (EOF) from worker reply read"):
                self.frontend.serve_parked(queue)
