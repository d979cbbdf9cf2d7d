"""The frontend: takes clients' requests into queues and hands them to backends.

It has three listeners, as in Intel's tester: clients, backends and Prometheus metrics.
One event loop serves every peer and never waits for one, so a slow, silent or malicious peer delays
nobody.
`Limits` bounds the connections, their messages and their time.
"""

import asyncio
import contextlib
import errno
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from aiohttp import web

from perfdag.steps.queue import wire
from perfdag.steps.queue.dispatcher import (
    BOUNDS,
    Histogram,
    Item,
    Limits,
    Queue,
    clock,
    connection_limit,
)
from perfdag.steps.queue.http import serve as serve_http

SWEEP_SECONDS = 0.5
ACCEPTS_A_TURN = 16
READ_BYTES = 8192
"""The most that is read of a peer in a turn of the loop: a flooding peer delays nobody."""
PAUSE_SECONDS = 0.2
"""Seconds before accepting again after no descriptor was free."""
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
MESSAGE_BYTES = 4 * wire.ORIGINAL_BYTES
LOG_SECONDS = 60.0
"""Seconds between two log lines about exhausted resources."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Peer:
    """The connection of a client or backend: one message in each direction.

    It reads its socket itself when the event loop finds it readable. A transport of asyncio costs
    several times the socket calls, and the cost of a connection bounds the throughput.
    """

    kind = ""

    def __init__(self, frontend: "Frontend", sock: socket.socket) -> None:
        self.frontend, self.sock = frontend, sock
        self.buffer = b""
        self.open = True
        self.item: Item | None = None
        self.item_queue: Queue | None = None
        frontend.peers.add(self)
        if len(frontend.peers) > frontend.max_peers:
            frontend.rejected += 1
            self.refuse(f"too many connections ({frontend.max_peers})")
        else:
            frontend.incomplete[self] = clock()

    def readable(self) -> None:
        """Read once, and handle the message if it is complete."""
        try:
            data = self.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self.close(abort=True)
            return
        if data:
            self._received(data)
        elif self.buffer:
            self.bad("unexpected end of JSON input")
        else:
            self.close()

    def _received(self, data: bytes) -> None:
        self.buffer = buffer = self.buffer + data if self.buffer else data
        too_long = len(buffer) > MESSAGE_BYTES
        # Only such data can complete a message: a peer of tiny pieces is rarely parsed.
        if not (b"}" in data or len(buffer) == len(data) or too_long):
            return
        try:
            message = wire.decode(buffer)
            self.buffer = b""
            self.frontend.incomplete.pop(self, None)
            self.message(message)
        except wire.IncompleteError as error:
            if too_long:
                self.bad(str(error))
        except wire.MalformedError as error:
            self.bad(str(error))

    def send(self, data: bytes) -> None:
        """Write a message, which the socket's buffer holds; cut off a peer whose buffer is full."""
        try:
            sent = self.sock.send(data) if self.open else len(data)
        except OSError:
            sent = 0
        if sent < len(data):
            self.close(abort=True)

    def close(self, abort: bool = False) -> None:
        """Close the connection and release what it held; `abort` resets it."""
        if not self.open:
            return
        self.open = False
        self.frontend.loop.remove_reader(self.sock)
        if abort:
            with contextlib.suppress(OSError):
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.sock.close()
        self.frontend.peers.discard(self)
        self.frontend.incomplete.pop(self, None)
        self.release()

    def queue(self, message: wire.Message) -> Queue | None:
        """Return the queue that a message names. Refuse the peer and return None without one."""
        name = wire.text(message, "Queue")
        queue = self.frontend.queues.get(name)
        if queue is None:
            self.frontend.rejected += 1
            self.refuse(f"Unknown '{name}' queue" if name else "invalid queue name ''")
        return queue

    def bad(self, why: str) -> None:
        """Refuse data that is no message."""
        self.frontend.rejected += 1
        self.refuse(f"Unmarshaling {self.kind} JSON failed: {why}")

    def message(self, message: wire.Message) -> None:
        """Handle one complete message."""
        raise NotImplementedError

    def refuse(self, why: str) -> None:
        """Send the reason and close."""
        raise NotImplementedError

    def release(self) -> None:
        """Release what the closed connection held."""
        raise NotImplementedError


class ClientPeer(Peer):
    """A client with one request."""

    kind = "clientReq"

    def __init__(self, frontend: "Frontend", sock: socket.socket) -> None:
        frontend.clients += 1
        super().__init__(frontend, sock)

    def message(self, message: wire.Message) -> None:
        if self.item is not None:
            self.frontend.rejected += 1
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
        self.item = Item(self._answer, args, limit, self.frontend.limits.retries, clock())
        self.item_queue = queue
        queue.put(self.item)

    def _answer(self, reply: wire.Message) -> None:
        self.item = None
        self.send(wire.fit_original(reply))
        self.close()

    def refuse(self, why: str) -> None:
        self.send(wire.fit_original(wire.failure(why)))
        self.close()

    def release(self) -> None:
        if self.item is not None and self.item_queue is not None:
            self.item_queue.leave(self.item)
            self.item = None


class BackendPeer(Peer):
    """A backend: it asks for an item, receives one and replies."""

    kind = "workReq"

    def __init__(self, frontend: "Frontend", sock: socket.socket) -> None:
        frontend.workers += 1
        super().__init__(frontend, sock)

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
        limits = self.frontend.limits
        if item.limit > 0:
            self.frontend.busy[self] = item.dispatched + item.limit + limits.reply_grace
        elif limits.reply_seconds:
            self.frontend.busy[self] = item.dispatched + limits.reply_seconds
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
        self.frontend.busy.pop(self, None)
        return item, queue

    def _send_error(self, why: str, empty: bool = False) -> None:
        self.send(wire.encode({"Error": why, "Args": None, "Limit": 0, "Empty": empty}))
        self.close()

    def bad(self, why: str) -> None:
        if self.item is None:
            super().bad(why)
            return
        self.frontend.rejected += 1
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


class Frontend:
    """Queues by name, their listeners, and the counters of their peers."""

    def __init__(self, names: Iterable[str], limits: Limits | None = None) -> None:
        self.limits = limits = limits or Limits()
        self.queues = {name: Queue(name, limits.queue, limits.interval or 30.0) for name in names}
        if not self.queues or "" in self.queues:
            raise ValueError("a frontend needs queue names, none of them empty")
        self.max_peers = connection_limit(limits.peers)
        self.peers: set[Peer] = set()
        self.incomplete: dict[Peer, float] = {}
        self.busy: dict[BackendPeer, float] = {}
        self.clients = self.workers = self.rejected = self.stuck = self.unaccepted = 0
        self.ports: tuple[int, ...] = ()
        self._logged = -LOG_SECONDS
        self._listeners: list[socket.socket] = []
        self._http: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(
        self, clients: wire.Address, workers: wire.Address, metrics: wire.Address
    ) -> None:
        """Listen on all three addresses; port 0 picks a free one (see `ports`).

        Raises OSError if one is taken.
        """
        self.loop = asyncio.get_running_loop()
        self.loop.set_exception_handler(self._handle)
        address = clients
        try:
            ports = [self._listen(clients, ClientPeer)]
            address = workers
            ports.append(self._listen(workers, BackendPeer))
            address = metrics
            self._http = await serve_http(metrics, self._serve_metrics)
        except OSError as error:
            await self.stop()
            raise OSError(error.errno, f"cannot listen on {address}: {error.strerror}") from None
        self.ports = (*ports, self._http.sockets[0].getsockname()[1])
        self._sweeper = self.loop.create_task(self._sweep())

    async def stop(self) -> None:
        """Close every listener and connection."""
        if self._sweeper:
            self._sweeper.cancel()
        if self._http:
            self._http.close()
        while self._listeners:
            listener = self._listeners.pop()
            self.loop.remove_reader(listener)
            listener.close()
        for peer in [*self.peers]:
            peer.close(abort=True)
        self.loop.set_exception_handler(None)

    def _listen(self, address: wire.Address, kind: type[Peer]) -> int:
        """Accept connections at an address and return its port. Raises OSError if it is taken."""
        both = not address.host and socket.has_dualstack_ipv6()
        listener = socket.create_server(
            (address.host, address.port),
            family=socket.AF_INET6 if both or ":" in address.host else socket.AF_INET,
            backlog=4096,
            dualstack_ipv6=both,
        )
        listener.setblocking(False)
        wire.enable_keepalive(listener)  # accepted sockets inherit it
        self._listeners.append(listener)
        self.loop.add_reader(listener, self._accept, listener, kind)
        return int(listener.getsockname()[1])

    def _accept(self, listener: socket.socket, kind: type[Peer]) -> None:
        for _ in range(ACCEPTS_A_TURN):
            try:
                sock, _ = listener.accept()
            except OSError as error:
                if error.errno in EXHAUSTED:  # a retry in every turn would slow the others
                    self._exhausted(error)
                    self.loop.remove_reader(listener)
                    self.loop.call_later(PAUSE_SECONDS, self._accept_again, listener, kind)
                return  # any other error: nothing is left to accept, or the peer has left
            sock.setblocking(False)
            peer = kind(self, sock)
            if peer.open:
                peer.readable()
            if peer.open:
                self.loop.add_reader(sock, peer.readable)

    def _accept_again(self, listener: socket.socket, kind: type[Peer]) -> None:
        if listener.fileno() >= 0:
            self.loop.add_reader(listener, self._accept, listener, kind)

    def _handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Count what the metrics port could not accept: asyncio would log each in ten lines."""
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in EXHAUSTED:
            self._exhausted(error)
        else:
            loop.default_exception_handler(context)

    def _exhausted(self, error: OSError) -> None:
        """Count a connection that could not be accepted, and say so once a minute."""
        self.unaccepted += 1
        now = clock()
        if now - self._logged >= LOG_SECONDS:
            self._logged = now
            text = (
                f"cannot accept connections: {error.strerror}; open ones are served, and "
                "accepting is retried"
            )
            print(text, file=sys.stderr, flush=True)  # noqa: T201

    def metrics(self) -> str:
        """Return the metrics as Prometheus text."""
        totals = {
            "hpa_client_connections_total": ("Connections that clients opened.", self.clients),
            "hpa_worker_connections_total": ("Connections that backends opened.", self.workers),
            "hpa_peers": ("Connections open now.", len(self.peers)),
            "hpa_peers_rejected_total": (
                "Peers refused for a bad message, or beyond the limit of connections.",
                self.rejected,
            ),
            "hpa_peers_unaccepted_total": (
                "Failed attempts to accept a connection, for lack of a descriptor.",
                self.unaccepted,
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


def escape(label: str) -> str:
    """Return a label value with the escapes of the text format."""
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


_SIMPLE: tuple[tuple[str, str, str, Callable[[Queue], int]], ...] = (
    ("hpa_queue_all", "gauge", "Items waiting or running.", lambda q: q.waiting + q.running),
    ("hpa_queue_waiting", "gauge", "Items waiting for a backend.", lambda q: q.waiting),
    ("hpa_queue_running", "gauge", "Items that a backend is working on.", lambda q: q.running),
    ("hpa_queue_accepted_total", "counter", "Requests taken into the queue.", lambda q: q.accepted),
    (
        "hpa_queue_success_total",
        "counter",
        "Items done with return code 0, no error and no timeout.",
        lambda q: q.success,
    ),
    (
        "hpa_queue_failure_total",
        "counter",
        "Items that failed, timed out or lost their backend.",
        lambda q: q.failure,
    ),
    (
        "hpa_queue_disconnect_total",
        "counter",
        "Items dropped because their client left.",
        lambda q: q.disconnected,
    ),
    (
        "hpa_queue_undelivered_total",
        "counter",
        "Items whose client left while they ran.",
        lambda q: q.undelivered,
    ),
    (
        "hpa_queue_retry_total",
        "counter",
        "Items put back after losing their backend.",
        lambda q: q.retried,
    ),
    (
        "hpa_queue_refused_total",
        "counter",
        "Requests refused because the queue was full.",
        lambda q: q.refused,
    ),
)
_MAXIMA: tuple[tuple[str, str, Callable[[Queue, float], float]], ...] = (
    (
        "hpa_queue_maxrun_seconds",
        "run time in a sliding window",
        lambda q, now: q.max_run.read(now),
    ),
    (
        "hpa_queue_maxwait_seconds",
        "waiting time in a sliding window, including items that wait now",
        lambda q, now: q.longest_wait(now),
    ),
    (
        "hpa_queue_maxtotal_seconds",
        "total time in a sliding window",
        lambda q, now: q.max_total.read(now),
    ),
)
_HISTOGRAMS = (
    ("hpa_queue_run_seconds", "Run time that the backend reports.", "run"),
    ("hpa_queue_wait_seconds", "Time from acceptance to dispatch.", "wait"),
    ("hpa_queue_total_seconds", "Time from acceptance to answer.", "total"),
    ("hpa_queue_overhead_seconds", "Total time less waiting and run time.", "overhead"),
)


def exposition(
    queues: Iterable[Queue], totals: Mapping[str, tuple[str, int]], interval: float = 0
) -> str:
    """Return all metrics as text.

    `totals`: name to (help, count) of counters without a queue. `interval`: seconds (0: none).
    """
    queues = list(queues)
    now = time.monotonic()
    out: list[str] = []
    for name, (explanation, count) in totals.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        out += [f"# HELP {name} {explanation}", f"# TYPE {name} {kind}", f"{name} {count}"]
    for name, kind, explanation, read in _SIMPLE:
        out += [f"# HELP {name} {explanation}", f"# TYPE {name} {kind}"]
        out += [f'{name}{{name="{escape(q.name)}"}} {read(q)}' for q in queues]
    name = "hpa_queue_device_success_total"
    out += [
        f"# HELP {name} Items done, by the node and device of their backend.",
        f"# TYPE {name} counter",
    ]
    for q in queues:
        for (node, device), count in sorted(q.devices.items()):
            out.append(
                f'{name}{{name="{escape(q.name)}",'
                f'node="{escape(node)}",device="{escape(device)}"}} {count}'
            )
    tag = f',interval="{interval:g}s"' if interval else ""
    name = "hpa_queue_oldest_seconds"
    out += [f"# HELP {name} Age of the oldest waiting item.", f"# TYPE {name} gauge"]
    out += [f'{name}{{name="{escape(q.name)}"}} {q.oldest_wait(now):.9g}' for q in queues]
    for name, what, largest in _MAXIMA:
        out += [f"# HELP {name} Largest {what}.", f"# TYPE {name} gauge"]
        out += [f'{name}{{name="{escape(q.name)}"{tag}}} {largest(q, now):.9g}' for q in queues]
    for name, explanation, attribute in _HISTOGRAMS:
        out += [f"# HELP {name} {explanation}", f"# TYPE {name} histogram"]
        for queue in queues:
            out += _buckets(name, escape(queue.name), getattr(queue, attribute))
    return "\n".join(out) + "\n"


def _buckets(name: str, label: str, histogram: Histogram) -> list[str]:
    out, running = [], 0
    for bound, count in zip((*map(str, BOUNDS), "+Inf"), histogram.counts, strict=True):
        running += count
        out.append(f'{name}_bucket{{name="{label}",le="{bound}"}} {running}')
    out += [
        f'{name}_sum{{name="{label}"}} {histogram.sum:.9g}',
        f'{name}_count{{name="{label}"}} {running}',
    ]
    return out
