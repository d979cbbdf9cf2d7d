"""The frontend: takes clients' requests into named queues and hands them to backends as these ask.

Three listeners, as in Intel's tester: clients, backends and Prometheus metrics. One event loop serves every peer
without ever waiting for it, so that a peer that is slow, silent or malicious costs a slot and a little memory and
delays nobody; what it may hold is bounded by ``Limits``.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from perfdag.steps.queue import wire
from perfdag.steps.queue.fifo import Item, Queue, clock
from perfdag.steps.queue.metrics import CONTENT_TYPE, exposition
from perfdag.steps.queue.reactor import Peer, Reactor
from perfdag.steps.queue.web import Request, Response
from perfdag.steps.queue.web import serve as serve_http

SWEEP_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Limits:
    """What a peer may cost. Times in seconds, sizes in bytes; 0 switches ``queue`` and ``reply_seconds`` off.

    ``message_seconds``: a connected peer must complete a message; ``queue``: waiting items a queue; ``retries``: times
    an item is handed out again after losing its backend; ``reply_grace``: an item with a limit is given up this long
    after it; ``reply_seconds``: the same for items without a limit.
    """

    queue: int = 0
    peers: int = 8192
    message_seconds: float = 5.0
    message_bytes: int = wire.KEPT_BYTES
    unsent_bytes: int = 1 << 20
    pipelined: int = 1024
    retries: int = 0
    reply_grace: float = 30.0
    reply_seconds: float = 0.0
    window: float = 30.0
    interval: float = 0.0


class Frontend:
    """Queues by name and the peers around them."""

    def __init__(self, names: Iterable[str], limits: Limits | None = None) -> None:
        self.limits = limits = limits or Limits()
        self.queues = {name: Queue(name, limits.queue, limits.interval or limits.window) for name in names}
        if not self.queues or "" in self.queues:
            raise ValueError("a frontend needs queue names, none of them empty")
        self.parked: dict[str, deque[Worker]] = {name: deque() for name in self.queues}
        self.talking: dict[Talker, float] = {}
        self.busy: dict[Worker, float] = {}
        self.peers = self.clients = self.workers = self.rejected = self.stuck = 0
        self.ports = (0, 0, 0)
        self._reactor: Reactor | None = None
        self._http: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self, clients: wire.Address, workers: wire.Address, metrics: wire.Address) -> None:
        """Listen on all three addresses; port 0 picks a free one (see ``ports``). Raises OSError where one is taken."""
        self._reactor = Reactor()
        try:
            where = clients
            ports = [self._reactor.listen(clients, lambda sock: Client(self, sock))]
            where = workers
            ports.append(self._reactor.listen(workers, lambda sock: Worker(self, sock)))
            where = metrics
            self._http = await serve_http(metrics, self._answer)
        except OSError as error:
            await self.stop()
            raise OSError(error.errno, f"cannot listen on {where}: {error.strerror}") from None
        self.ports = (*ports, self._http.sockets[0].getsockname()[1])
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep())

    async def stop(self) -> None:
        """Close every listener and connection."""
        if self._sweeper:
            self._sweeper.cancel()
        if self._http:
            self._http.close()
        if self._reactor:
            self._reactor.stop()
        self._reactor = None

    def put(self, queue: Queue, item: Item) -> None:
        """Queue an item and hand it to a backend that already waits."""
        queue.put(item)
        if self.parked[queue.name]:
            self.serve_parked(queue)

    def serve_parked(self, queue: Queue) -> None:
        """Give waiting items to waiting backends, both first come, first served."""
        parked = self.parked[queue.name]
        while parked and (item := queue.take()) is not None:
            parked.popleft().give(queue, item)

    def metrics(self) -> str:
        """The Prometheus text."""
        idle = sum(map(len, self.parked.values()))
        totals = {
            "hpa_client_connections_total": ("Connections that clients opened.", self.clients),
            "hpa_worker_connections_total": ("Connections that backends opened.", self.workers),
            "hpa_peers": ("Connections open now.", self.peers),
            "hpa_peers_idle_workers": ("Backends waiting for an item on a kept connection.", idle),
            "hpa_peers_rejected_total": ("Peers refused for a bad message, or as one too many.", self.rejected),
            "hpa_peers_stuck_total": ("Peers cut off because they did not complete a message.", self.stuck),
        }
        return exposition(self.queues.values(), totals, self.limits.interval)

    def summary(self) -> str:
        """One line a queue for the log."""
        now = clock()
        return "\n".join(
            f"{q.name}: {q.success} done, {q.failure} failed, {q.running} running, {q.waiting} waiting (longest run "
            f"{q.max_run.read(now):.2f} s, wait {q.max_wait.read(now):.2f} s), {q.disconnected} clients left"
            for q in self.queues.values()
        )

    def _answer(self, request: Request) -> Response:
        if request.path != "/metrics":
            return Response(404)
        return Response(200, self.metrics(), CONTENT_TYPE)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = clock()
            for peer, since in list(self.talking.items()):
                if since + self.limits.message_seconds > now:
                    break
                self.stuck += 1
                peer.refuse(f"no complete message in {self.limits.message_seconds:g} s")
            for worker, deadline in list(self.busy.items()):
                if deadline <= now:
                    self.stuck += 1
                    worker.close(abort=True)


class Talker(Peer):
    """What clients and backends have in common."""

    __slots__ = ("frontend",)

    def __init__(self, frontend: Frontend, sock: socket.socket) -> None:
        super().__init__(sock, frontend.limits.message_bytes, frontend.limits.unsent_bytes)
        self.frontend = frontend
        frontend.peers += 1
        if frontend.peers > frontend.limits.peers:
            frontend.rejected += 1
            self.refuse(f"too many connections ({frontend.limits.peers})")
        else:
            frontend.talking[self] = clock()

    def complete(self, partial: bool) -> None:
        if partial:
            self.frontend.talking.setdefault(self, clock())
        else:
            self.frontend.talking.pop(self, None)

    def closed(self) -> None:
        self.frontend.peers -= 1
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
            self.frontend.rejected += 1
            self.deny(message, f"Unknown '{name}' queue" if name else "invalid queue name ''")
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

    def __init__(self, frontend: Frontend, sock: socket.socket) -> None:
        self.items: dict[Item, Queue] = {}
        frontend.clients += 1
        super().__init__(frontend, sock)

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

        def answer(reply: wire.Message) -> None:
            self.items.pop(item, None)
            if self.kept:
                reply["Id"] = identity
                self.send(wire.line(reply))
            else:
                self.send(wire.fit_original(reply), last=True)
                self.close()

        item = Item(answer, wire.words(message, "Args"), wire.number(message, "Limit"), retries, clock())
        self.items[item] = queue
        self.frontend.put(queue, item)

    def deny(self, message: wire.Message, why: str) -> None:
        if self.kept:
            self.send(wire.line({**wire.failure(why), "Id": message.get("Id")}))
        else:
            self.refuse(why)

    def refuse(self, why: str) -> None:
        self.send(wire.line(wire.failure(why)) if self.kept else wire.fit_original(wire.failure(why)))
        self.close()

    def lost(self) -> None:
        for item, queue in self.items.items():
            queue.leave(item)
        self.items.clear()


class Worker(Talker):
    """A backend: asks for an item, is given one, replies."""

    __slots__ = ("item", "of", "waits")
    kind = "workReq"

    def __init__(self, frontend: Frontend, sock: socket.socket) -> None:
        self.item: Item | None = None
        self.of: Queue | None = None
        self.waits: Queue | None = None
        frontend.workers += 1
        super().__init__(frontend, sock)

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
            reply = wire.failure(f"Unmarshaling worker reply JSON failed: {error}")
        self._finish(reply)
        if not self.kept:
            self.close()

    def _finish(self, reply: wire.Message) -> None:
        item, queue = self.item, self.of
        assert item is not None
        assert queue is not None
        self.item = None
        self.frontend.busy.pop(self, None)
        queue.finish(item, reply)

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
        self.frontend.rejected += 1  # a reply that is no JSON: the client is told, as by the original
        self._finish(wire.failure(f"Unmarshaling worker reply JSON failed: {why}"))
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
