"""The frontend: takes clients' requests into named queues and hands them to backends as these ask.

Three listeners, as in Intel's tester: clients, backends and Prometheus metrics. One event loop serves every peer
without ever waiting for it, so that a peer that is slow, silent or malicious costs a slot and a little memory and
delays nobody; what it may hold is bounded by ``Limits``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from perfdag.steps.queue import wire
from perfdag.steps.queue.connection import Memory
from perfdag.steps.queue.fifo import Item, Queue, clock
from perfdag.steps.queue.metrics import CONTENT_TYPE, exposition
from perfdag.steps.queue.peers import Client, Talker, Worker
from perfdag.steps.queue.reactor import Reactor, Toll, quiet_accept
from perfdag.steps.queue.slots import Slots, admitted
from perfdag.steps.queue.web import Request, Response
from perfdag.steps.queue.web import serve as serve_http

SWEEP_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Limits:
    """What a peer may cost. Times in seconds, sizes in bytes; 0 switches ``queue`` and ``reply_seconds`` off.

    ``message_seconds``: a connected peer must complete a message; ``queue``: waiting items a queue; ``share``: of all
    connections that one address may hold where they are scarce; ``pipelined``, ``request_bytes``: requests of a connection
    at once; ``refusals``: requests of a connection that name no queue, an accepted one takes one back; ``held_bytes``: of
    all connections, in messages that are not complete, in requests not answered and in what is not sent yet; ``retries``:
    times an item is handed out again after losing its backend; ``reply_grace``: an item with a limit is given up this
    long after it; ``reply_seconds``: the same for items without a limit.
    """

    queue: int = 0
    peers: int = 8192
    share: float = 0.5
    message_seconds: float = 5.0
    message_bytes: int = wire.KEPT_BYTES
    unsent_bytes: int = 1 << 20
    pipelined: int = wire.MOST_PARALLEL
    request_bytes: int = 16 << 20
    refusals: int = 100
    held_bytes: int = 256 << 20
    retries: int = 0
    reply_grace: float = 30.0
    reply_seconds: float = 0.0
    window: float = 30.0
    interval: float = 0.0


class Frontend:
    """Queues by name and the peers around them."""

    def __init__(self, names: Iterable[str], limits: Limits | None = None) -> None:
        self.limits = limits = limits or Limits()
        self.queues = {
            name: Queue(name, limits.queue, limits.interval or limits.window) for name in names
        }
        if not self.queues or "" in self.queues:
            raise ValueError("a frontend needs queue names, none of them empty")
        self.parked: dict[str, deque[Worker]] = {name: deque() for name in self.queues}
        self.talking: dict[Talker, float] = {}
        self.busy: dict[Worker, float] = {}
        self.slots = Slots(admitted(limits.peers), limits.share)
        self.memory = Memory(limits.held_bytes)
        self.toll = Toll()
        self.clients = self.workers = self.rejected = self.stuck = 0
        self.ports = (0, 0, 0)
        self._reactor: Reactor | None = None
        self._quiet: Callable[[], None] = lambda: None
        self._http: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(
        self, clients: wire.Address, workers: wire.Address, metrics: wire.Address
    ) -> None:
        """Listen on all three addresses; port 0 picks a free one (see ``ports``). Raises OSError where one is taken."""
        self._reactor = Reactor(self.memory, self.toll)
        self._quiet = quiet_accept(self.toll)
        try:
            where = clients
            ports = [self._reactor.listen(clients, lambda sock, host: Client(self, sock, host))]
            where = workers
            ports.append(self._reactor.listen(workers, lambda sock, host: Worker(self, sock, host)))
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
            self._quiet()
        self._reactor = None

    @property
    def peers(self) -> int:
        """Connections open now."""
        return self.slots.taken

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
            "hpa_peers_rejected_total": (
                "Peers refused for a bad message, or as one too many.",
                self.rejected,
            ),
            "hpa_peers_heavy_total": (
                "Peers cut off because they held most when too much was held for all.",
                self.toll.heavy,
            ),
            "hpa_peers_unaccepted_total": (
                "Times that no connection could be accepted for want of a descriptor.",
                self.toll.exhausted,
            ),
            "hpa_peers_held_bytes": ("Bytes held for all peers.", self.memory.held),
            "hpa_peers_stuck_total": (
                "Peers cut off because they did not complete a message.",
                self.stuck,
            ),
        }
        return exposition(self.queues.values(), totals, self.limits.interval)

    def summary(self) -> str:
        """One line a queue for the log."""
        now = clock()
        return "\n".join(
            f"{q.name}: {q.success} done, {q.failure} failed, {q.running} running, {q.waiting} waiting (longest run "
            f"{q.max_run.read(now):.2f} s, wait {q.longest_wait(now):.2f} s), {q.disconnected} clients left"
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
