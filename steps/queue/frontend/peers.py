"""The peers of a frontend: clients and backends, their messages and their departure."""

import socket

from perfdag.steps.queue import wire
from perfdag.steps.queue.frontend.connection import Peer
from perfdag.steps.queue.frontend.dispatcher import Dispatcher, Item, Queue, clock


class PeerSession(Peer):
    """The common part of clients and backends."""

    __slots__ = ("dispatcher",)

    def __init__(self, dispatcher: Dispatcher, sock: socket.socket) -> None:
        super().__init__(sock)
        self.dispatcher = dispatcher
        dispatcher.peers += 1
        if dispatcher.peers > dispatcher.max_peers:
            dispatcher.rejected += 1
            self.refuse(f"too many connections ({dispatcher.max_peers})")
        else:
            dispatcher.incomplete[self] = clock()

    def complete(self) -> None:
        self.dispatcher.incomplete.pop(self, None)

    def closed(self) -> None:
        self.dispatcher.peers -= 1
        self.dispatcher.incomplete.pop(self, None)
        self.release()

    def bad(self, why: str) -> None:
        self.dispatcher.rejected += 1
        self.refuse(f"Unmarshaling {self.kind} JSON failed: {why}")

    def queue(self, message: wire.Message) -> Queue | None:
        """Return the queue that a message names. Refuse the peer and return None without one."""
        name = wire.text(message, "Queue")
        queue = self.dispatcher.queues.get(name)
        if queue is None:
            self.dispatcher.rejected += 1
            self.refuse(f"Unknown '{name}' queue" if name else "invalid queue name ''")
        return queue

    kind = ""

    def refuse(self, why: str) -> None:
        """Send the reason and close."""
        raise NotImplementedError

    def release(self) -> None:
        """Release what the closed connection held."""
        raise NotImplementedError


class ClientPeer(PeerSession):
    """A client with one request."""

    __slots__ = ("item", "item_queue")
    kind = "clientReq"

    def __init__(self, dispatcher: Dispatcher, sock: socket.socket) -> None:
        self.item: Item | None = None
        self.item_queue: Queue | None = None
        dispatcher.clients += 1
        super().__init__(dispatcher, sock)

    def message(self, message: wire.Message) -> None:
        if self.item is not None:
            self.dispatcher.rejected += 1
            self.refuse("more than one request on a connection")
            return
        queue = self.queue(message)
        if queue is None:
            return
        if queue.full:
            queue.refused += 1
            self.refuse(f"'{queue.name}' queue already at full capacity ({queue.bound})")
            return
        args, limit = wire.string_list(message, "Args"), wire.number(message, "Limit")
        self.item = Item(self._answer, args, limit, self.dispatcher.limits.retries, clock())
        self.item_queue = queue
        queue.put(self.item)

    def _answer(self, reply: wire.Message) -> None:
        self.item = None
        self.send(wire.fit_original(reply), last=True)
        self.close()

    def refuse(self, why: str) -> None:
        self.send(wire.fit_original(wire.failure(why)))
        self.close()

    def release(self) -> None:
        if self.item is not None and self.item_queue is not None:
            self.item_queue.leave(self.item)
            self.item = None


class BackendPeer(PeerSession):
    """A backend: it asks for an item, receives one and replies."""

    __slots__ = ("item", "item_queue")
    kind = "workReq"

    def __init__(self, dispatcher: Dispatcher, sock: socket.socket) -> None:
        self.item: Item | None = None
        self.item_queue: Queue | None = None
        dispatcher.workers += 1
        super().__init__(dispatcher, sock)

    def message(self, message: wire.Message) -> None:
        if self.item is not None:
            self._handle_reply(message)
            return
        queue = self.queue(message)
        if queue is None:
            return
        item = queue.take()
        if item is None:
            self._send_error(f"Queue '{queue.name}' is empty", empty=True)
            return
        self.item, self.item_queue = item, queue
        limits = self.dispatcher.limits
        if item.limit > 0:
            self.dispatcher.busy[self] = item.dispatched + item.limit + limits.reply_grace
        elif limits.reply_seconds:
            self.dispatcher.busy[self] = item.dispatched + limits.reply_seconds
        work = {"Error": "", "Args": item.args, "Limit": item.limit, "Empty": False}
        self.send(wire.encode({**work, "Running": queue.running}))

    def _handle_reply(self, message: wire.Message) -> None:
        try:
            reply = wire.reply(message)
        except wire.MalformedError as error:
            item, queue = self._take_item()
            queue.fail(item, f"Unmarshaling worker reply JSON failed: {error}")
        else:
            item, queue = self._take_item()
            queue.finish(item, reply)
        self.close()

    def _take_item(self) -> tuple[Item, Queue]:
        """Return the item that the backend owes a reply, with its queue, and forget it."""
        item, queue = self.item, self.item_queue
        assert item is not None
        assert queue is not None
        self.item = None
        self.dispatcher.busy.pop(self, None)
        return item, queue

    def _send_error(self, why: str, empty: bool = False) -> None:
        self.send(wire.encode({"Error": why, "Args": None, "Limit": 0, "Empty": empty}))
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
        if self.item is not None:
            item, queue = self._take_item()
            queue.lost(item, "No bytes (0) / error (EOF) from worker reply read")
