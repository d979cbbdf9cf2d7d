"""The frontend: takes clients' requests into queues and hands them to backends.

It has three listeners, as in Intel's tester: clients, backends and Prometheus metrics.
One event loop serves every peer and never waits for one, so a slow, silent or malicious peer delays
nobody.
`Limits` bounds the connections, their messages and their time.
"""

import asyncio
from collections.abc import Callable, Iterable

from aiohttp import web

from perfdag.steps.queue import wire
from perfdag.steps.queue.frontend.dispatcher import Dispatcher, Limits, clock
from perfdag.steps.queue.frontend.exposition import CONTENT_TYPE, exposition
from perfdag.steps.queue.frontend.peers import BackendPeer, ClientPeer
from perfdag.steps.queue.frontend.reactor import Reactor, ResourceExhaustion, handle_accept_errors
from perfdag.steps.queue.http import serve as serve_http

SWEEP_SECONDS = 0.5


class Frontend(Dispatcher):
    """A dispatcher that listens."""

    def __init__(self, names: Iterable[str], limits: Limits | None = None) -> None:
        super().__init__(names, limits)
        self.exhaustion = ResourceExhaustion()
        self.ports = (0, 0, 0)
        self._reactor: Reactor | None = None
        self._restore_handler: Callable[[], None] = lambda: None
        self._http: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(
        self, clients: wire.Address, workers: wire.Address, metrics: wire.Address
    ) -> None:
        """Listen on all three addresses; port 0 picks a free one (see `ports`).

        Raises OSError if one is taken.
        """
        self._reactor = Reactor(self.exhaustion)
        self._restore_handler = handle_accept_errors(self.exhaustion)
        address = clients
        try:
            ports = [self._reactor.listen(clients, lambda sock: ClientPeer(self, sock))]
            address = workers
            ports.append(self._reactor.listen(workers, lambda sock: BackendPeer(self, sock)))
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

    def metrics(self) -> str:
        """Return the metrics as Prometheus text."""
        totals = {
            "hpa_client_connections_total": ("Connections that clients opened.", self.clients),
            "hpa_worker_connections_total": ("Connections that backends opened.", self.workers),
            "hpa_peers": ("Connections open now.", self.peers),
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
