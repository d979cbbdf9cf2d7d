"""The frontend: takes clients' requests into queues and hands them to backends.

It has three listeners, as in Intel's tester: clients, backends and Prometheus metrics.
One event loop serves every peer and never waits for one, so a slow, silent or malicious peer delays
nobody.
``Limits`` bounds the connections, their messages and their time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from aiohttp import web

from perfdag.steps.queue import wire
from perfdag.steps.queue.frontend.connection_limits import connection_limit
from perfdag.steps.queue.frontend.fifo import Item, Queue, clock
from perfdag.steps.queue.frontend.histograms import CONTENT_TYPE, exposition
from perfdag.steps.queue.frontend.peers import Client, PeerSession, Worker
from perfdag.steps.queue.frontend.reactor import Reactor, ResourceExhaustion, handle_accept_errors
from perfdag.steps.queue.http import serve as serve_http

SWEEP_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Limits:
    """The resources that peers may use. Times are in seconds, sizes in bytes.

    ``queue``: items that wait in a queue (0: no bound). ``peers``: open connections.
    ``message_seconds``: time to complete a message. ``pipelined``: open requests of a connection.
    ``refusals``: requests of a connection that name no queue; an accepted request takes one back.
    ``retries``: times that an item is handed out again after its backend is lost.
    ``reply_grace``: time after its limit until an item fails. ``reply_seconds``: time of an item
    without a limit (0: no bound).
    """

    queue: int = 0
    peers: int = 8192
    message_seconds: float = 5.0
    message_bytes: int = wire.KEPT_BYTES
    unsent_bytes: int = 1 << 20
    pipelined: int = wire.MOST_PARALLEL
    refusals: int = 100
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
        self.incomplete: dict[PeerSession, float] = {}
        self.busy: dict[Worker, float] = {}
        self.max_peers = connection_limit(limits.peers)
        self.exhaustion = ResourceExhaustion()
        self.peers = self.clients = self.workers = self.rejected = self.stuck = 0
        self.ports = (0, 0, 0)
        self._reactor: Reactor | None = None
        self._restore_handler: Callable[[], None] = lambda: None
        self._http: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(
        self, clients: wire.Address, workers: wire.Address, metrics: wire.Address
    ) -> None:
        """Listen on all three addresses; port 0 picks a free one (see ``ports``).

        Raises OSError if one is taken.
        """
        self._reactor = Reactor(self.exhaustion)
        self._restore_handler = handle_accept_errors(self.exhaustion)
        address = clients
        try:
            ports = [self._reactor.listen(clients, lambda sock: Client(self, sock))]
            address = workers
            ports.append(self._reactor.listen(workers, lambda sock: Worker(self, sock)))
            address = metrics
            self._http = await serve_http(metrics, self._serve_metrics)
        except OSError as error:
            await self.stop()
            raise OSError(error.errno, f"cannot listen on {address}: {error.strerror}") from None
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
            self._restore_handler()
        self._reactor = None

    def put(self, queue: Queue, item: Item) -> None:
        """Queue an item, and hand one to a backend that waits."""
        queue.put(item)
        if self.parked[queue.name]:
            self.serve_parked(queue)

    def serve_parked(self, queue: Queue) -> None:
        """Hand waiting items to waiting backends, both first come, first served."""
        parked = self.parked[queue.name]
        while parked and (item := queue.take()) is not None:
            parked.popleft().give(queue, item)

    def metrics(self) -> str:
        """Return the metrics as Prometheus text."""
        idle = sum(map(len, self.parked.values()))
        totals = {
            "hpa_client_connections_total": ("Connections that clients opened.", self.clients),
            "hpa_worker_connections_total": ("Connections that backends opened.", self.workers),
            "hpa_peers": ("Connections open now.", self.peers),
            "hpa_peers_idle_workers": ("Backends waiting for an item on a kept connection.", idle),
            "hpa_peers_rejected_total": (
                "Peers refused for a bad message, or beyond the limit of connections.",
                self.rejected,
            ),
            "hpa_peers_unaccepted_total": (
                "Connections not accepted for lack of a descriptor.",
                self.exhaustion.count,
            ),
            "hpa_peers_stuck_total": (
                "Peers cut off because they did not complete a message.",
                self.stuck,
            ),
        }
        return exposition(self.queues.values(), totals, self.limits.interval)

    def summary(self) -> str:
        """Return one line for every queue, for the log."""
        now = clock()
        return "\n".join(
            f"{q.name}: {q.success} done, {q.failure} failed, {q.running} running, "
            f"{q.waiting} waiting (longest run "
            f"{q.max_run.read(now):.2f} s, wait {q.longest_wait(now):.2f} s), "
            f"{q.disconnected} clients left"
            for q in self.queues.values()
        )

    def _serve_metrics(self, request: web.BaseRequest) -> web.Response:
        if request.path != "/metrics":
            return web.Response(status=404)
        return web.Response(text=self.metrics(), headers={"Content-Type": CONTENT_TYPE})

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = clock()
            for peer, since in list(self.incomplete.items()):
                if since + self.limits.message_seconds > now:
                    break
                self.stuck += 1
                peer.refuse(f"no complete message in {self.limits.message_seconds:g} s")
            for worker, deadline in list(self.busy.items()):
                if deadline <= now:
                    self.stuck += 1
                    worker.close(abort=True)
