"""The frontend: takes clients' requests into queues and hands them to backends.

It has three listeners, as in Intel's tester: clients, backends and Prometheus metrics. One event
loop serves every peer.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from aiohttp import web
from prometheus_client import (
    CollectorRegistry,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from perfdag.steps.queue import protocol
from perfdag.steps.queue.control import serve as serve_http

clock = time.monotonic
# Seconds: 250 us of dispatch up to an hour of transcoding, about three steps a decade.
BOUNDS = (
    0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 3600.0,
)  # fmt: skip
HISTOGRAMS = {
    "run": "Run time that the backend reports.",
    "wait": "Time from acceptance to dispatch.",
    "total": "Time from acceptance to answer.",
    "overhead": "Total time less waiting and run time.",
}
MESSAGE_SECONDS = 5.0
"""Time of a peer to complete its first message."""
REPLY_GRACE = 30.0
"""Seconds after its limit until an item without a reply fails."""
WINDOW = 30.0
"""Seconds that maxima cover, unless `interval` says otherwise."""
Kind = Literal["client", "work"]
"""A client with a request, or a backend that asks for work."""

disable_created_metrics()  # type: ignore[no-untyped-call]


class Largest:
    """The largest value of a sliding window of `window` seconds."""

    def __init__(self, window: float) -> None:
        self.slice = window / 10
        self.slices: deque[tuple[int, float]] = deque(maxlen=10)

    def note(self, value: float, now: float) -> None:
        """Take a value at `now` (monotonic seconds)."""
        key = int(now / self.slice)
        if self.slices and self.slices[-1][0] == key:
            value = max(value, self.slices.pop()[1])
        self.slices.append((key, value))

    def at(self, now: float) -> float:
        """Return the maximum of the window before `now` (monotonic seconds), 0 without a value."""
        oldest = int(now / self.slice) - 9
        return max((value for key, value in self.slices if key >= oldest), default=0.0)


@dataclass(slots=True, eq=False)
class Item:
    """An open request; `added` and `dispatched` are seconds of the monotonic clock.

    `answer` is None when its client has it, or has left.
    """

    answer: Callable[[protocol.Message], None] | None
    args: list[str] | None
    limit: float
    added: float
    dispatched: float = 0.0


class Queue:
    """Items of one name, first in, first out. `bound`: the most that may wait (0: any).

    At any moment `accepted == success + failure + disconnected + waiting + running`. `seconds` has
    the histograms of its times, `window` is what their maxima cover.
    """

    def __init__(
        self, name: str, bound: int, window: float, seconds: Mapping[str, Histogram]
    ) -> None:
        self.name = name
        self.bound = bound
        self.seconds = seconds
        self.items: deque[Item] = deque()
        self.running = self.accepted = self.refused = 0
        self.success = self.failure = self.disconnected = 0
        self.devices: Counter[tuple[str, str]] = Counter()
        self.run, self.wait, self.total = (Largest(window) for _ in range(3))

    @property
    def waiting(self) -> int:
        return len(self.items)

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
        return max(self.wait.at(now), oldest)

    def leave(self, item: Item) -> None:
        """Drop a waiting item whose client has left; of a running one, drop the answer later."""
        if item.answer and not item.dispatched:
            self.items.remove(item)
            self.disconnected += 1
        item.answer = None

    def finish(self, item: Item, reply: protocol.Message) -> None:
        """Count a backend's reply and pass it on."""
        now = clock()
        run = reply["Runtime"]
        self.run.note(run, now)
        self.seconds["run"].observe(run)
        self.seconds["overhead"].observe(max(0.0, now - item.dispatched - run))
        self._end(item, reply, now)

    def fail(self, item: Item, error: str) -> None:
        """End a running item without a run time; it enters no statistics of run times."""
        self._end(item, failure(error), clock())

    def _end(self, item: Item, reply: protocol.Message, now: float) -> None:
        reply["Waittime"] = waited = item.dispatched - item.added
        total = now - item.added
        self.running -= 1
        if protocol.succeeded(reply):
            self.success += 1
            self.devices[reply["Node"], reply["Device"]] += 1
        else:
            self.failure += 1
        self.seconds["wait"].observe(waited)
        self.seconds["total"].observe(total)
        self.total.note(total, now)
        if item.answer:
            item.answer(reply)
            item.answer = None


def failure(error: str) -> protocol.Message:
    """Return the frontend's reply to a request that no backend answered."""
    return {**protocol.REPLY, "Error": error, "Retcode": 1}


class RefusedError(Exception):
    """A peer is answered with this text."""


class Frontend:
    """Queues by name, their listeners, and the counters of their peers.

    `bound`: the most items that may wait in a queue (0: any). `interval`: seconds that maxima
    cover (0: 30 s).
    """

    def __init__(self, names: Iterable[str], bound: int = 0, interval: int = 0) -> None:
        self.registry = CollectorRegistry()
        self.interval = interval
        self.registry.register(self)
        histograms = {
            part: Histogram(
                f"hpa_queue_{part}_seconds", text, ["name"], buckets=BOUNDS, registry=self.registry
            )
            for part, text in HISTOGRAMS.items()
        }
        self.queues: dict[str, Queue] = {}
        for name in names:
            seconds = {part: histogram.labels(name) for part, histogram in histograms.items()}
            self.queues[name] = Queue(name, bound, interval or WINDOW, seconds)
        if not self.queues or "" in self.queues:
            raise ValueError("a frontend needs queue names, none of them empty")
        self.peers: set[asyncio.StreamWriter] = set()
        self.connections: Counter[Kind] = Counter()
        self.ports: list[int] = []
        self.servers: list[asyncio.Server] = []

    async def start(
        self, clients: protocol.Address, backends: protocol.Address, metrics: protocol.Address
    ) -> None:
        """Listen for each kind of peer; port 0 picks a free one, and `ports` has all.

        Raises OSError if one is taken.
        """
        protocol.raise_file_limit()
        kinds: tuple[tuple[Kind, protocol.Address], ...] = (("client", clients), ("work", backends))
        for kind, address in kinds:
            server = await asyncio.start_server(
                partial(self._serve, kind),
                address.host or None,
                address.port,
                limit=protocol.MESSAGE_BYTES,
                backlog=4096,
            )
            for listener in server.sockets:
                protocol.enable_keepalive(listener)  # accepted sockets inherit it
            self.servers.append(server)
        self.servers.append(await serve_http(metrics, self._serve_metrics))
        self.ports = [server.sockets[0].getsockname()[1] for server in self.servers]

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
            queue, message = await self._first(kind, reader)
            if kind == "client":
                await self._request(queue, message, reader, writer)
            else:
                await self._work(queue, reader, writer)
        except RefusedError as error:
            writer.write(
                protocol.encode_reply(failure(str(error)))
                if kind == "client"
                else protocol.encode({**protocol.ITEM, "Error": str(error)})
            )
        except ConnectionError:  # it left
            pass
        finally:
            self.peers.discard(writer)
            writer.close()

    async def _first(
        self, kind: Kind, reader: asyncio.StreamReader
    ) -> tuple[Queue, protocol.Message]:
        """Return the first message of a peer, and the queue that it names. Raises RefusedError."""
        try:
            async with asyncio.timeout(MESSAGE_SECONDS):
                message = await protocol.receive(reader, protocol.REQUEST)
        except TimeoutError:
            raise RefusedError(f"no complete message in {MESSAGE_SECONDS:g} s") from None
        except protocol.MalformedError as error:
            raise RefusedError(f"Unmarshaling {kind}Req JSON failed: {error}") from None
        name = message["Queue"]
        if name not in self.queues:
            raise RefusedError(f"Unknown '{name}' queue" if name else "invalid queue name ''")
        return self.queues[name], message

    async def _request(
        self,
        queue: Queue,
        message: protocol.Message,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Queue a client's request until it is answered, or the client leaves."""
        if 0 < queue.bound <= queue.waiting:
            queue.refused += 1
            raise RefusedError(f"'{queue.name}' queue already at full capacity ({queue.bound})")

        def answer(reply: protocol.Message) -> None:
            writer.write(protocol.encode_reply(reply))
            writer.close()

        item = Item(answer, message["Args"], message["Limit"], clock())
        queue.items.append(item)
        queue.accepted += 1
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
            text = f"Queue '{queue.name}' is empty"
            writer.write(protocol.encode({**protocol.ITEM, "Error": text, "Empty": True}))
            return
        work = {"Args": item.args, "Limit": item.limit, "Running": queue.running}
        writer.write(protocol.encode({**protocol.ITEM, **work}))
        try:
            async with asyncio.timeout(item.limit + REPLY_GRACE if item.limit else None):
                reply = await protocol.receive(reader, protocol.REPLY)
        except protocol.MalformedError as error:
            # As with the original, the client learns that the reply was no JSON.
            queue.fail(item, f"Unmarshaling worker reply JSON failed: {error}")
        except OSError:
            queue.fail(item, "No bytes (0) / error (EOF) from worker reply read")
        else:
            queue.finish(item, reply)

    def summary(self) -> str:
        """Return one line for every queue, for the log."""
        now = clock()
        return "\n".join(
            f"{q.name}: {q.success} done, {q.failure} failed, {q.running} running, "
            f"{q.waiting} waiting (longest run {q.run.at(now):.2f} s, wait "
            f"{q.longest_wait(now):.2f} s), {q.disconnected} clients left"
            for q in self.queues.values()
        )

    def _serve_metrics(self, request: web.BaseRequest) -> web.Response:
        return web.Response(
            body=generate_latest(self.registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    def collect(self) -> Iterator[Metric]:
        """Return counters, gauges and maxima, for the registry."""
        now = clock()
        queues = self.queues.values()
        for name, text, value in (
            ("client_connections_total", "Connections of clients.", self.connections["client"]),
            ("worker_connections_total", "Connections of backends.", self.connections["work"]),
            ("peers", "Connections open now.", len(self.peers)),
        ):
            yield _family(name, text, {(): value})
        for name, text, read in _BY_QUEUE:
            yield _family(f"queue_{name}", text, {(q.name,): read(q) for q in queues}, "name")
        devices: dict[tuple[str, ...], int] = {
            (q.name, *place): count for q in queues for place, count in q.devices.items()
        }
        text = "Items done by node and device."
        yield _family("queue_device_success_total", text, devices, "name", "node", "device")
        tag = (f"{self.interval}s",) if self.interval else ()
        labels = ("name", "interval")[: 1 + len(tag)]
        for part, largest in _MAXIMA.items():
            text = f"Largest {part} time in a sliding window."
            maxima = {(q.name, *tag): largest(q, now) for q in queues}
            yield _family(f"queue_max{part}_seconds", text, maxima, *labels)


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
    ("refused_total", "Requests refused because the queue was full.", lambda q: q.refused),
)
"""Metrics of a queue: their name, help and value."""
_MAXIMA: dict[str, Callable[[Queue, float], float]] = {
    "run": lambda q, now: q.run.at(now),
    "wait": Queue.longest_wait,
    "total": lambda q, now: q.total.at(now),
}
