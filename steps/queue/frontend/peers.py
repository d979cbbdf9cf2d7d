"""The peers of a frontend: clients and backends, their messages and their departure."""

import contextlib
import socket

from perfdag.steps.queue import wire
from perfdag.steps.queue.frontend.connection import Peer
from perfdag.steps.queue.frontend.dispatcher import Dispatcher, Item, Queue, clock


class PeerSession(Peer):
    """The common part of clients and backends."""

    __slots__ = ("dispatcher", "refusals")

    def __init__(self, dispatcher: Dispatcher, sock: socket.socket) -> None:
        super().__init__(sock, dispatcher.limits.message_bytes, dispatcher.limits.unsent_bytes)
        self.dispatcher = dispatcher
        self.refusals = 0
        dispatcher.peers += 1
        if dispatcher.peers > dispatcher.max_peers:
            dispatcher.rejected += 1
            self.refuse(f"too many connections ({dispatcher.max_peers})")
        else:
            dispatcher.incomplete[self] = clock()

    def complete(self, done: bool, partial: bool) -> None:
        incomplete = self.dispatcher.incomplete
        if done:
            # The next message goes to the end: the sweep needs them in order of time.
            incomplete.pop(self, None)
        if partial:
            incomplete.setdefault(self, clock())

    def closed(self) -> None:
        self.dispatcher.peers -= 1
        self.dispatcher.incomplete.pop(self, None)
        self.release()

    def bad(self, why: str) -> None:
        self.dispatcher.rejected += 1
        self.refuse(f"Unmarshaling {self.kind} JSON failed: {why}")

    def queue(self, message: wire.Message) -> Queue | None:
        """Return the queue that a message names.

        Deny the message and return None if there is none.
        """
        name = wire.text(message, "Queue")
        queue = self.dispatcher.queues.get(name)
        if queue is None:
            why = f"Unknown '{name}' queue" if name else "invalid queue name ''"
            self.dispatcher.rejected += 1
            self.refusals += 1
            if self.refusals > self.dispatcher.limits.refusals:
                self.refuse(f"{why}, and {self.refusals} refused requests on one connection")
            else:
                self.deny(message, why)
        return queue

    kind = ""

    def refuse(self, why: str) -> None:
        """Send the reason and close."""
        raise NotImplementedError

    def deny(self, message: wire.Message, why: str) -> None:
        """Answer one message with an error; a kept connection of a client goes on."""
        self.refuse(why)

    def release(self) -> None:
        """Release what the closed connection held."""
        raise NotImplementedError


class ClientPeer(PeerSession):
    """A client: one request in original framing, many requests with ids in kept framing."""

    __slots__ = ("items",)
    kind = "clientReq"

    def __init__(self, dispatcher: Dispatcher, sock: socket.socket) -> None:
        self.items: dict[Item, Queue] = {}
        dispatcher.clients += 1
        super().__init__(dispatcher, sock)

    def message(self, message: wire.Message) -> None:
        queue = self.queue(message)
        if queue is None:
            return
        limits = self.dispatcher.limits
        if queue.full:
            queue.refused += 1
            self.deny(message, f"'{queue.name}' queue already at full capacity ({queue.bound})")
            return
        if len(self.items) >= (limits.pipelined if self.persistent else 1):
            self.dispatcher.rejected += 1
            self.refuse(f"more than {len(self.items)} requests at once on one connection")
            return
        retries = limits.retries
        if self.persistent and "Retries" in message:
            retries = min(100, max(0, int(wire.number(message, "Retries"))))
        identity = message.get("Id")
        if isinstance(identity, list | dict):
            raise wire.MalformedError("Id is neither a number nor a string")
        args = wire.string_list(message, "Args")
        self.refusals = max(0, self.refusals - 1)

        def answer(reply: wire.Message) -> None:
            self.items.pop(item, None)
            if self.persistent:
                reply["Id"] = identity
                self.send(wire.encode_line(reply))
            else:
                self.send(wire.fit_original(reply), last=True)
                self.close()

        item = Item(answer, args, wire.number(message, "Limit"), retries, clock())
        self.items[item] = queue
        self.dispatcher.put(queue, item)

    def deny(self, message: wire.Message, why: str) -> None:
        if self.persistent:
            self.send(wire.encode_line({**wire.failure(why), "Id": message.get("Id")}))
        else:
            self.refuse(why)

    def refuse(self, why: str) -> None:
        self.send(
            wire.encode_line(wire.failure(why))
            if self.persistent
            else wire.fit_original(wire.failure(why))
        )
        self.close()

    def release(self) -> None:
        for item, queue in self.items.items():
            queue.leave(item)
        self.items.clear()


class BackendPeer(PeerSession):
    """A backend: it asks for an item, receives one and replies."""

    __slots__ = ("item", "item_queue", "parked_queue")
    kind = "workReq"

    def __init__(self, dispatcher: Dispatcher, sock: socket.socket) -> None:
        self.item: Item | None = None
        self.item_queue: Queue | None = None
        self.parked_queue: Queue | None = None
        dispatcher.workers += 1
        super().__init__(dispatcher, sock)

    def message(self, message: wire.Message) -> None:
        if self.persistent and message.get("Leave"):
            if self.item is None:  # otherwise its item is on the way, and it answers that first
                self._unpark()
                self.send(wire.encode_line({"Bye": True}))
                self.close()
            return
        if self.item is not None:
            self._handle_reply(message)
            if not (self.open and "Queue" in message):
                return
        queue = self.queue(message)
        if queue is not None:
            self._dispatch(queue)

    def _dispatch(self, queue: Queue) -> None:
        if self.parked_queue is not None:
            self.dispatcher.rejected += 1
            self.refuse("requested an item twice")
            return
        item = queue.take()
        if item is not None:
            self.give(queue, item)
        elif self.persistent:
            self.parked_queue = queue
            self.dispatcher.parked[queue.name].append(self)
        else:
            self._send_error(f"Queue '{queue.name}' is empty", empty=True)

    def give(self, queue: Queue, item: Item) -> None:
        """Hand over an item; the backend then owes a reply."""
        self.parked_queue, self.item, self.item_queue = None, item, queue
        work: wire.Message = {"Error": "", "Args": item.args, "Limit": item.limit, "Empty": False}
        limits = self.dispatcher.limits
        if item.limit > 0:
            self.dispatcher.busy[self] = item.dispatched + item.limit + limits.reply_grace
        elif limits.reply_seconds:
            self.dispatcher.busy[self] = item.dispatched + limits.reply_seconds
        if self.persistent:
            work["Running"] = queue.running
            self.send(wire.encode_line(work))
        else:
            self.send(wire.encode(work))

    def _handle_reply(self, message: wire.Message) -> None:
        try:
            reply = wire.reply(message)
        except wire.MalformedError as error:
            item, queue = self._take_item()
            queue.fail(item, f"Unmarshaling worker reply JSON failed: {error}")
        else:
            item, queue = self._take_item()
            queue.finish(item, reply)
        if not self.persistent:
            self.close()

    def _take_item(self) -> tuple[Item, Queue]:
        """Return the item that the backend owes a reply, with its queue, and forget it."""
        item, queue = self.item, self.item_queue
        assert item is not None
        assert queue is not None
        self.item = None
        self.dispatcher.busy.pop(self, None)
        return item, queue

    def _unpark(self) -> None:
        if self.parked_queue is not None:
            with contextlib.suppress(ValueError):
                self.dispatcher.parked[self.parked_queue.name].remove(self)
            self.parked_queue = None

    def _send_error(self, why: str, empty: bool = False) -> None:
        message: wire.Message = {"Error": why, "Args": None, "Limit": 0, "Empty": empty}
        self.send(wire.encode_line(message) if self.persistent else wire.encode(message))
        self.close()

    def bad(self, why: str) -> None:
        if self.item is None:
            super().bad(why)
            return
        self.dispatcher.rejected += 1
        # As with the original, the client learns that the reply was no JSON.
        item, queue = self._take_item()
        queue.fail(item, f"Unmarshaling worker reply JSON failed: {why}")
        self.close()

    def refuse(self, why: str) -> None:
        self._send_error(why)

    def release(self) -> None:
        self._unpark()
        item, queue = self.item, self.item_queue
        if item is not None and queue is not None:
            self.item = None
            self.dispatcher.busy.pop(self, None)
            if queue.lost(item, "No bytes (0) / error (EOF) from worker reply read"):
                self.dispatcher.serve_parked(queue)
