"""The frontend: takes clients' requests into queues and hands them to backends.

It has three listeners, as in Intel's tester: clients, backends and Prometheus metrics. One event
loop serves every peer. `Limits` bounds the connections, their messages and their time.
"""

import asyncio
import math
import resource
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from perfdag.steps.queue import protocol
from perfdag.steps.queue.control import serve as serve_http
from perfdag.steps.queue.protocol import Message

clock = time.monotonic
# Seconds: 250 us of dispatch up to an hour of transcoding, about three steps a decade.
BOUNDS = (
    0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 3600.0,
)  # fmt: skip
RESERVE = 384
"""Descriptors that are no peers: connections of the metrics port, listeners, files."""
MESSAGE_BYTES = 4 * protocol.MOST_BYTES
Kind = Literal["client", "work"]
"""A client with a request, or a backend that asks for work."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The resources that peers may use. Times are in seconds.

    `queue`: items that wait in a queue (0: no bound). `peers`: open connections.
    `message_seconds`: time to complete a message.
    `retries`: times that an item is handed out again after its backend is lost.
    `reply_grace`: time after its limit until an item fails. `reply_seconds`: time of an item
    without a limit (0: no bound). `interval`: what maxima cover (0: 30 s).
    """

    queue: int = 0
    peers: int = 8192
    message_seconds: float = 5.0
    retries: int = 0
    reply_grace: float = 30.0
    reply_seconds: float = 0.0
    interval: float = 0.0


class Times:
    """Seconds of a queue's items: a histogram, their sum, and the largest of a sliding window."""

    def __init__(self, window: float) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0
        self.slice = window / 10
        self.slices: deque[tuple[int, float]] = deque(maxlen=10)

    def add(self, seconds: float) -> None:
        """Count one time in the histogram."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum += seconds

    def note(self, seconds: float, now: float) -> None:
        """Let the maximum know of a value at `now` (monotonic seconds)."""
        key, slices = int(now / self.slice), self.slices
        if not slices or slices[-1][0] != key:
            slices.append((key, seconds))
        elif seconds > slices[-1][1]:
            slices[-1] = (key, seconds)

    def largest(self, now: float) -> float:
        """Return the maximum of the window before `now` (monotonic seconds), 0 without a value."""
        oldest = int(now / self.slice) - 9
        return max((value for key, value in self.slices if key >= oldest), default=0.0)


@dataclass(slots=True, eq=False)
class Item:
    """An open request; `added` and `dispatched` are seconds of the monotonic clock.

    `answer` is None when its client has it, or has left.
    """

    answer: Callable[[Message], None] | None
    args: list[str] | None
    limit: float
    retries: int
    added: float
    dispatched: float = 0.0


@dataclass(eq=False)
class Queue:
    """Items of one name, first in, first out. `bound`: the most that may wait (0: any).

    At any moment `accepted == success + failure + disconnected + waiting + running`.
    """

    name: str
    bound: int
    window: float
    items: deque[Item] = field(default_factory=deque)
    running: int = 0
    accepted: int = 0
    success: int = 0
    failure: int = 0
    disconnected: int = 0
    retried: int = 0
    refused: int = 0
    devices: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.run, self.wait, self.total, self.overhead = (Times(self.window) for _ in range(4))

    @property
    def waiting(self) -> int:
        return len(self.items)

    def put(self, item: Item) -> None:
        """Append an item."""
        self.items.append(item)
        self.accepted += 1

    def take(self) -> Item | None:
        """Return the oldest item and mark it running; None if none waits."""
        if not self.items:
            return None
        item = self.items.popleft()
        self.running += 1
        item.dispatched = now = clock()
        # Noted at dispatch, not at the end: a scaler must see it while a long item runs.
        self.wait.note(now - item.added, now)
        return item

    def longest_wait(self, now: float) -> float:
        """Return the longest wait of the window in seconds, including items that still wait."""
        oldest = now - self.items[0].added if self.items else 0.0
        return max(self.wait.largest(now), oldest)

    def leave(self, item: Item) -> None:
        """Drop a waiting item whose client has left; of a running one, drop the answer later."""
        if item.answer and not item.dispatched:
            self.items.remove(item)
            self.disconnected += 1
        item.answer = None

    def lost(self, item: Item) -> None:
        """Put a running item without backend back at the front, or fail it without retries."""
        if item.retries > 0 and item.answer:
            item.retries -= 1
            item.dispatched = 0.0
            self.items.appendleft(item)
            self.running -= 1
            self.retried += 1
        else:
            self.fail(item, "No bytes (0) / error (EOF) from worker reply read")

    def finish(self, item: Item, reply: Message) -> None:
        """Count a backend's reply and pass it on."""
        now, run = clock(), reply["Runtime"]
        self.run.add(run)
        self.run.note(run, now)
        self.overhead.add(max(0.0, now - item.dispatched - run))
        self._end(item, reply, now)

    def fail(self, item: Item, why: str) -> None:
        """End a running item without a run time; it enters no statistics of run times."""
        self._end(item, failure(why), clock())

    def _end(self, item: Item, reply: Message, now: float) -> None:
        reply["Waittime"] = waited = item.dispatched - item.added
        total = now - item.added
        self.running -= 1
        if protocol.succeeded(reply):
            self.success += 1
            self.devices[reply["Node"], reply["Device"]] += 1
        else:
            self.failure += 1
        self.wait.add(waited)
        self.total.add(total)
        self.total.note(total, now)
        if item.answer:
            item.answer(reply)
            item.answer = None


def failure(error: str) -> Message:
    """Return the frontend's reply to a request that no backend answered."""
    return {**protocol.REPLY, "Error": error, "Retcode": 1}


class RefusedError(Exception):
    """A peer is answered with this text; `rejected` if it broke the protocol or a limit."""

    def __init__(self, why: str, rejected: bool = True, empty: bool = False) -> None:
        super().__init__(why)
        self.rejected, self.empty = rejected, empty


async def receive(reader: asyncio.StreamReader, fields: Mapping[str, Any]) -> Message:
    """Return the next message of a peer. Raises MalformedError, and OSError if it left."""
    buffer = b""
    while data := await reader.read(MESSAGE_BYTES):
        buffer += data
        try:
            return protocol.decode(buffer, fields)
        except protocol.IncompleteError:
            if len(buffer) > MESSAGE_BYTES:
                raise
    if buffer:
        raise protocol.MalformedError("unexpected end of JSON input")
    raise ConnectionResetError


class Frontend:
    """Queues by name, their listeners, and the counters of their peers."""

    def __init__(self, names: Iterable[str], limits: Limits | None = None) -> None:
        self.limits = limits = limits or Limits()
        self.queues = {name: Queue(name, limits.queue, limits.interval or 30.0) for name in names}
        if not self.queues or "" in self.queues:
            raise ValueError("a frontend needs queue names, none of them empty")
        self.most_peers = raise_file_limit(limits.peers)
        self.peers: set[asyncio.StreamWriter] = set()
        self.connections: Counter[Kind] = Counter()
        self.rejected = self.stuck = 0
        self.ports: list[int] = []
        self.servers: list[asyncio.Server] = []
        self.registry = CollectorRegistry()
        self.registry.register(self)

    async def start(self, *addresses: protocol.Address) -> None:
        """Listen for clients, backends and metrics; port 0 picks a free one, and `ports` has all.

        Raises OSError if one is taken.
        """
        kinds: tuple[Kind | None, ...] = ("client", "work", None)
        for address, kind in zip(addresses, kinds, strict=True):
            try:
                if kind:
                    server = await self._listen(address, kind)
                else:
                    server = await serve_http(address, self._serve_metrics)
            except OSError as error:
                await self.stop()
                raise OSError(
                    error.errno, f"cannot listen on {address}: {error.strerror}"
                ) from None
            self.servers.append(server)
            self.ports.append(server.sockets[0].getsockname()[1])

    async def _listen(self, address: protocol.Address, kind: Kind) -> asyncio.Server:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(kind, reader, writer)

        server = await asyncio.start_server(
            serve, address.host or None, address.port, limit=MESSAGE_BYTES, backlog=4096
        )
        for listener in server.sockets:
            protocol.enable_keepalive(listener)  # accepted sockets inherit it
        return server

    async def stop(self) -> None:
        """Close every listener and connection."""
        for server in self.servers:
            server.close()
        for writer in self.peers:
            writer.transport.abort()
        while self.peers:
            await asyncio.sleep(0)

    async def _serve(
        self, kind: Kind, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve a connection: one message in each direction."""
        self.connections[kind] += 1
        self.peers.add(writer)
        try:
            if len(self.peers) > self.most_peers:
                raise RefusedError(f"too many connections ({self.most_peers})")
            queue, message = await self._first(kind, reader)
            if kind == "client":
                await self._request(queue, message, reader, writer)
            else:
                await self._work(queue, reader, writer)
        except RefusedError as error:
            self.rejected += error.rejected
            why = str(error)
            writer.write(
                protocol.encode_reply(failure(why))
                if kind == "client"
                else protocol.encode({**protocol.ITEM, "Error": why, "Empty": error.empty})
            )
        except ConnectionError:  # it left
            pass
        finally:
            self.peers.discard(writer)
            writer.close()

    async def _first(self, kind: Kind, reader: asyncio.StreamReader) -> tuple[Queue, Message]:
        """Return the first message of a peer, and the queue that it names. Raises RefusedError."""
        seconds = self.limits.message_seconds
        try:
            async with asyncio.timeout(seconds):
                message = await receive(reader, protocol.REQUEST)
        except TimeoutError:
            self.stuck += 1
            raise RefusedError(f"no complete message in {seconds:g} s", rejected=False) from None
        except protocol.MalformedError as error:
            raise RefusedError(f"Unmarshaling {kind}Req JSON failed: {error}") from None
        name = message["Queue"]
        if name not in self.queues:
            raise RefusedError(f"Unknown '{name}' queue" if name else "invalid queue name ''")
        return self.queues[name], message

    async def _request(
        self,
        queue: Queue,
        message: Message,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Queue a client's request until it is answered, or the client leaves."""
        if 0 < queue.bound <= queue.waiting:
            queue.refused += 1
            why = f"'{queue.name}' queue already at full capacity ({queue.bound})"
            raise RefusedError(why, rejected=False)

        def answer(reply: Message) -> None:
            writer.write(protocol.encode_reply(reply))
            writer.close()

        item = Item(answer, message["Args"], message["Limit"], self.limits.retries, clock())
        queue.put(item)
        try:
            if await reader.read(1):  # nothing: it left, or its answer closed the connection
                raise RefusedError("more than one request on a connection")
        finally:
            queue.leave(item)

    async def _work(
        self, queue: Queue, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Hand a backend an item, and its client the reply."""
        item = queue.take()
        if item is None:
            raise RefusedError(f"Queue '{queue.name}' is empty", rejected=False, empty=True)
        limits = self.limits
        seconds = item.limit + limits.reply_grace if item.limit else limits.reply_seconds
        work = {"Args": item.args, "Limit": item.limit, "Running": queue.running}
        writer.write(protocol.encode({**protocol.ITEM, **work}))
        try:
            async with asyncio.timeout(seconds or None):
                reply = await receive(reader, protocol.REPLY)
        except protocol.MalformedError as error:
            # As with the original, the client learns that the reply was no JSON.
            self.rejected += 1
            queue.fail(item, f"Unmarshaling worker reply JSON failed: {error}")
        except OSError as error:
            self.stuck += isinstance(error, TimeoutError)
            queue.lost(item)
        else:
            queue.finish(item, reply)

    def summary(self) -> str:
        """Return one line for every queue, for the log."""
        now = clock()
        return "\n".join(
            f"{q.name}: {q.success} done, {q.failure} failed, {q.running} running, "
            f"{q.waiting} waiting (longest run {q.run.largest(now):.2f} s, wait "
            f"{q.longest_wait(now):.2f} s), {q.disconnected} clients left"
            for q in self.queues.values()
        )

    def _serve_metrics(self, request: web.BaseRequest) -> web.Response:
        if request.path != "/metrics":
            return web.Response(status=404)
        body = generate_latest(self.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    def collect(self) -> Iterator[Metric]:
        """Return all metrics, for the registry."""
        now, queues = clock(), self.queues.values()
        for name, text, value in (
            ("client_connections_total", "Connections of clients.", self.connections["client"]),
            ("worker_connections_total", "Connections of backends.", self.connections["work"]),
            ("peers", "Connections open now.", len(self.peers)),
            ("peers_rejected_total", "Peers that broke the protocol or a limit.", self.rejected),
            ("peers_stuck_total", "Peers that did not end a message in time.", self.stuck),
        ):
            yield _family(name, text, {(): value})
        for name, text, read in _BY_QUEUE:
            yield _family(f"queue_{name}", text, {(q.name,): read(q) for q in queues}, "name")
        devices: dict[tuple[str, ...], int] = {
            (q.name, *at): count for q in queues for at, count in q.devices.items()
        }
        text = "Items done by node and device."
        yield _family("queue_device_success_total", text, devices, "name", "node", "device")
        interval = self.limits.interval
        labels, tag = (("name", "interval"), (f"{interval:g}s",)) if interval else (("name",), ())
        for what, largest in _MAXIMA.items():
            text = f"Largest {what} time in a sliding window."
            maxima = {(q.name, *tag): largest(q, now) for q in queues}
            yield _family(f"queue_max{what}_seconds", text, maxima, *labels)
        for what, text in _HISTOGRAMS.items():
            times = HistogramMetricFamily(f"hpa_queue_{what}_seconds", text, labels=["name"])
            for q in queues:
                of: Times = getattr(q, what)
                counts = zip((*map(str, BOUNDS), "+Inf"), accumulate(of.counts), strict=True)
                times.add_metric([q.name], list(counts), of.sum)
            yield times


def _family(
    name: str, text: str, values: Mapping[tuple[str, ...], float], *labels: str
) -> CounterMetricFamily | GaugeMetricFamily:
    """Return a counter if its name ends so, else a gauge: values by those of its labels."""
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    family = kind(f"hpa_{name}", text, labels=labels)
    for at, value in values.items():
        family.add_metric(at, value)
    return family


_BY_QUEUE: tuple[tuple[str, str, Callable[[Queue], int]], ...] = (
    ("all", "Items waiting or running.", lambda q: q.waiting + q.running),
    ("waiting", "Items waiting for a backend.", lambda q: q.waiting),
    ("running", "Items that a backend runs.", lambda q: q.running),
    ("accepted_total", "Requests accepted into the queue.", lambda q: q.accepted),
    ("success_total", "Items done.", lambda q: q.success),
    ("failure_total", "Items that failed, or lost their backend.", lambda q: q.failure),
    ("disconnect_total", "Items whose client left before they ran.", lambda q: q.disconnected),
    ("retry_total", "Items put back after losing their backend.", lambda q: q.retried),
    ("refused_total", "Requests refused because the queue was full.", lambda q: q.refused),
)
"""Metrics of a queue: their name, help and value."""
_MAXIMA: dict[str, Callable[[Queue, float], float]] = {
    "run": lambda q, now: q.run.largest(now),
    "wait": Queue.longest_wait,
    "total": lambda q, now: q.total.largest(now),
}
_HISTOGRAMS = {
    "run": "Run time that the backend reports.",
    "wait": "Time from acceptance to dispatch.",
    "total": "Time from acceptance to answer.",
    "overhead": "Total time less waiting and run time.",
}


def raise_file_limit(peers: int) -> int:
    """Raise the soft limit of open files for `peers` connections; return how many it admits."""
    unlimited = resource.RLIM_INFINITY
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (math.inf if limit == unlimited else limit for limit in limits)
    wanted = min(peers + RESERVE, hard)
    if soft < wanted:
        soft = wanted
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(wanted), limits[1]))
    return max(1, int(min(peers, soft - RESERVE)))
