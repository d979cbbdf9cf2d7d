"""The frontend: takes clients' requests into queues and hands them to backends.

It has three listeners, as in Intel's tester: clients, backends and Prometheus metrics. One event
loop serves every peer. `Limits` bounds the connections, their messages and their time.
"""

import asyncio
import contextlib
import resource
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

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
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


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

    `answer` is None when its client has left.
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

    @property
    def open(self) -> int:
        return self.waiting + self.running

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
        item.answer = None
        if not item.dispatched:
            self.items.remove(item)
            self.disconnected += 1

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


def failure(error: str) -> Message:
    """Return the frontend's reply to a request that no backend answered."""
    return {**protocol.REPLY, "Error": error, "Retcode": 1}


class Peer(asyncio.Protocol):
    """The connection of a client or backend: one message in each direction."""

    kind = ""
    fields: Mapping[str, Any] = protocol.REQUEST
    transport: asyncio.Transport

    def __init__(self, frontend: "Frontend") -> None:
        self.frontend = frontend
        self.buffer = b""
        self.item: Item | None = None
        self.queue: Queue | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        frontend = self.frontend
        frontend.connections[self.kind] += 1
        frontend.peers.add(self)
        self.timer: asyncio.TimerHandle | None = None
        if len(frontend.peers) > frontend.most_peers:
            self.reject(f"too many connections ({frontend.most_peers})")
        else:
            self.timer = frontend.loop.call_later(frontend.limits.message_seconds, self._late)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        try:
            message = protocol.decode(self.buffer, self.fields)
        except protocol.IncompleteError as error:
            if len(self.buffer) > MESSAGE_BYTES:
                self.malformed(str(error))
            return
        except protocol.MalformedError as error:
            self.malformed(str(error))
            return
        self.buffer = b""
        self.stop_timer()
        self.message(message)

    def eof_received(self) -> None:
        if self.buffer:
            self.malformed("unexpected end of JSON input")

    def connection_lost(self, error: Exception | None) -> None:
        self.stop_timer()
        self.frontend.peers.discard(self)
        if self.item is not None:
            self.release(self.item)

    def stop_timer(self) -> None:
        if self.timer:
            self.timer.cancel()
            self.timer = None

    def _late(self) -> None:
        self.frontend.stuck += 1
        self.refuse(f"no complete message in {self.frontend.limits.message_seconds:g} s")

    def reply(self, data: bytes) -> None:
        """Send the last message of the connection."""
        self.transport.write(data)
        self.transport.close()

    def find(self, message: Message) -> Queue | None:
        """Return the queue that a message names. Reject the peer and return None without one."""
        name = message["Queue"]
        queue = self.frontend.queues.get(name)
        if queue is None:
            self.reject(f"Unknown '{name}' queue" if name else "invalid queue name ''")
        return queue

    def reject(self, why: str) -> None:
        """Count a peer that broke the protocol, and refuse it."""
        self.frontend.rejected += 1
        self.refuse(why)

    def malformed(self, why: str) -> None:
        """Reject data that is no message."""
        self.buffer = b""
        self.reject(f"Unmarshaling {self.kind}Req JSON failed: {why}")

    def message(self, message: Message) -> None:
        """Handle one complete message."""
        raise NotImplementedError

    def refuse(self, why: str) -> None:
        """Send the reason and close."""
        raise NotImplementedError

    def release(self, item: Item) -> None:
        """Give up the item of a connection that ended."""
        raise NotImplementedError


class ClientPeer(Peer):
    """A client with one request."""

    kind = "client"

    def message(self, message: Message) -> None:
        if self.item is not None:
            self.reject("more than one request on a connection")
            return
        queue = self.find(message)
        if queue is None:
            return
        if 0 < queue.bound <= queue.waiting:
            queue.refused += 1
            self.refuse(f"'{queue.name}' queue already at full capacity ({queue.bound})")
            return
        retries = self.frontend.limits.retries
        self.item = Item(self._answer, message["Args"], message["Limit"], retries, clock())
        self.queue = queue
        queue.put(self.item)

    def _answer(self, reply: Message) -> None:
        self.item = None
        self.reply(protocol.encode_reply(reply))

    def refuse(self, why: str) -> None:
        self.reply(protocol.encode_reply(failure(why)))

    def release(self, item: Item) -> None:
        assert self.queue
        self.queue.leave(item)


class BackendPeer(Peer):
    """A backend: it asks for an item, receives one and replies."""

    kind = "work"

    def message(self, message: Message) -> None:
        if self.item is not None and self.queue is not None:
            item, self.item = self.item, None
            self.queue.finish(item, message)
            self.transport.close()
            return
        queue = self.find(message)
        if queue is None:
            return
        taken = queue.take()
        if taken is None:
            self.refuse(f"Queue '{queue.name}' is empty", empty=True)
            return
        self.item, self.queue, self.fields = taken, queue, protocol.REPLY
        limits = self.frontend.limits
        seconds = taken.limit + limits.reply_grace if taken.limit else limits.reply_seconds
        if seconds:
            self.timer = self.frontend.loop.call_later(seconds, self._give_up)
        work = {"Args": taken.args, "Limit": taken.limit, "Running": queue.running}
        self.transport.write(protocol.encode({**protocol.ITEM, **work}))

    def _give_up(self) -> None:
        self.frontend.stuck += 1
        self.transport.abort()

    def malformed(self, why: str) -> None:
        if self.item is None or self.queue is None:
            super().malformed(why)
            return
        # As with the original, the client learns that the reply was no JSON.
        self.frontend.rejected += 1
        item, self.item = self.item, None
        self.queue.fail(item, f"Unmarshaling worker reply JSON failed: {why}")
        self.transport.close()

    def refuse(self, why: str, empty: bool = False) -> None:
        self.reply(protocol.encode({**protocol.ITEM, "Error": why, "Empty": empty}))

    def release(self, item: Item) -> None:
        assert self.queue
        self.queue.lost(item)


class Frontend:
    """Queues by name, their listeners, and the counters of their peers."""

    def __init__(self, names: Iterable[str], limits: Limits | None = None) -> None:
        self.limits = limits = limits or Limits()
        self.queues = {name: Queue(name, limits.queue, limits.interval or 30.0) for name in names}
        if not self.queues or "" in self.queues:
            raise ValueError("a frontend needs queue names, none of them empty")
        self.most_peers = raise_file_limit(limits.peers)
        self.peers: set[Peer] = set()
        self.connections: Counter[str] = Counter()
        self.rejected = self.stuck = 0
        self.ports: list[int] = []
        self.servers: list[asyncio.Server] = []

    async def start(self, *addresses: protocol.Address) -> None:
        """Listen for clients, backends and metrics; port 0 picks a free one, and `ports` has all.

        Raises OSError if one is taken.
        """
        self.loop = asyncio.get_running_loop()
        for address, kind in zip(addresses, (ClientPeer, BackendPeer, None), strict=True):
            try:
                server = await (
                    self._listen(address, kind)
                    if kind
                    else serve_http(address, self._serve_metrics)
                )
            except OSError as error:
                await self.stop()
                raise OSError(
                    error.errno, f"cannot listen on {address}: {error.strerror}"
                ) from None
            self.servers.append(server)
            self.ports.append(server.sockets[0].getsockname()[1])

    async def _listen(self, address: protocol.Address, kind: type[Peer]) -> asyncio.Server:
        host = address.host or None
        server = await self.loop.create_server(lambda: kind(self), host, address.port, backlog=4096)
        for listener in server.sockets:
            protocol.enable_keepalive(listener)  # accepted sockets inherit it
        return server

    async def stop(self) -> None:
        """Close every listener and connection."""
        for server in self.servers:
            server.close()
        for peer in [*self.peers]:
            peer.transport.abort()
        while self.peers:
            await asyncio.sleep(0)

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
        return web.Response(text=self.metrics(), headers={"Content-Type": CONTENT_TYPE})

    def metrics(self) -> str:
        """Return all metrics as Prometheus text."""
        now, queues, lines = clock(), list(self.queues.values()), list[str]()

        def family(name: str, text: str, samples: Iterable[Sample], kind: str = "gauge") -> None:
            kind = "counter" if name.endswith("_total") else kind
            lines.extend([f"# HELP {name} {text}", f"# TYPE {name} {kind}"])
            lines.extend(f"{name}{end}{_labels(labels)} {value}" for end, labels, value in samples)

        for name, text, value in (
            ("client_connections_total", "Connections of clients.", self.connections["client"]),
            ("worker_connections_total", "Connections of backends.", self.connections["work"]),
            ("peers", "Connections open now.", len(self.peers)),
            ("peers_rejected_total", "Peers that broke the protocol or a limit.", self.rejected),
            ("peers_stuck_total", "Peers that did not end a message in time.", self.stuck),
        ):
            family(f"hpa_{name}", text, [("", {}, value)])
        for name, text, attribute in _BY_QUEUE:
            family(name, text, [("", {"name": q.name}, getattr(q, attribute)) for q in queues])
        devices = [
            ("", {"name": q.name, "node": node, "device": device}, count)
            for q in queues
            for (node, device), count in sorted(q.devices.items())
        ]
        family("hpa_queue_device_success_total", "Items done by node and device.", devices)
        interval = self.limits.interval
        tag = {"interval": f"{interval:g}s"} if interval else {}
        for what, read in _MAXIMA.items():
            text = f"Largest {what} time in a sliding window."
            maxima = [("", {"name": q.name, **tag}, read(q, now)) for q in queues]
            family(f"hpa_queue_max{what}_seconds", text, maxima)
        for what, text in _HISTOGRAMS.items():
            buckets = [one for q in queues for one in _histogram(q.name, getattr(q, what))]
            family(f"hpa_queue_{what}_seconds", text, buckets, "histogram")
        return "\n".join(lines) + "\n"


Sample = tuple[str, dict[str, str], float]
"""The end of a name, labels, and a value."""
_BY_QUEUE = (
    ("hpa_queue_all", "Items waiting or running.", "open"),
    ("hpa_queue_waiting", "Items waiting for a backend.", "waiting"),
    ("hpa_queue_running", "Items that a backend runs.", "running"),
    ("hpa_queue_accepted_total", "Requests accepted into the queue.", "accepted"),
    ("hpa_queue_success_total", "Items done.", "success"),
    ("hpa_queue_failure_total", "Items that failed, or lost their backend.", "failure"),
    ("hpa_queue_disconnect_total", "Items whose client left before they ran.", "disconnected"),
    ("hpa_queue_retry_total", "Items put back after losing their backend.", "retried"),
    ("hpa_queue_refused_total", "Requests refused because the queue was full.", "refused"),
)
"""Metrics of a queue: their name, help and attribute."""
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


def _labels(labels: dict[str, str]) -> str:
    escapes = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
    pairs = [f'{key}="{value.translate(escapes)}"' for key, value in labels.items()]
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _histogram(queue: str, times: Times) -> Iterator[Sample]:
    seen = 0
    for bound, count in zip((*map(str, BOUNDS), "+Inf"), times.counts, strict=True):
        seen += count
        yield "_bucket", {"name": queue, "le": bound}, seen
    yield "_sum", {"name": queue}, times.sum
    yield "_count", {"name": queue}, seen


def raise_file_limit(peers: int) -> int:
    """Raise the soft limit of open files for `peers` connections; return how many it admits."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = peers + RESERVE
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    with contextlib.suppress(OSError, ValueError):
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return peers if soft == resource.RLIM_INFINITY else max(1, min(peers, soft - RESERVE))
