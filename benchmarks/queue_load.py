"""The two sides of a queue's frontend in one process: clients that always have one request open,
and backends of a fixed work time.

Sockets on one epoll and nothing else, since clients and backends of Python or Go cost several times
what a frontend costs: with them beside it on few cores, the measurement is of the load.
"""

import json
import select
import socket
import time
from collections import deque
from dataclasses import dataclass, field

REQUEST = b'{"Queue":"sleep","Args":null,"Limit":0}'
ASK = b'{"Queue":"sleep"}'
ANSWER = {
    "Pod": "p",
    "Node": "n",
    "Device": "",
    "Error": "",
    "Timeout": 0,
    "Runtime": 0.001,
    "Retcode": 0,
}
HALVES = (b"", b'{"Queue": "sle')


BACKOFF = 0.001  # seconds until a backend asks an empty queue again
Due = deque[tuple[float, socket.socket | None]]


@dataclass
class Outcome:
    """Requests answered well and badly in so many seconds; ``round_trips`` and ``dispatches`` in
    seconds: from a client's request to its answer, and from a backend's asking to its item (not
    counting answers that the queue is empty).
    """

    done: int = 0
    failed: int = 0
    seconds: float = 0.0
    round_trips: list[float] = field(default_factory=list)
    dispatches: list[float] = field(default_factory=list)


class Load:
    """``clients`` and ``backends`` of a frontend at two ports of the loopback.

    ``work``: seconds a backend holds an item; ``pause``: seconds between an answer and the client's
    next request.
    """

    def __init__(
        self,
        ports: tuple[int, int],
        clients: int = 64,
        backends: int = 16,
        work: float = 0.001,
        pause: float = 0.0,
    ):
        self.addresses = [("127.0.0.1", port) for port in ports]
        self.work, self.pause = work, pause
        self.poll = select.epoll()
        self.clients: dict[int, tuple[socket.socket, float]] = {}
        self.backends: dict[int, tuple[socket.socket, float]] = {}
        self.pauses: Due = deque()
        self.working: Due = deque()
        self.polling: Due = deque()
        self.outcome = Outcome()
        self.reply = json.dumps(ANSWER).encode()
        for _ in range(backends):
            self._backend(None)
        for _ in range(clients):
            self._client(None)

    def run(self, seconds: float) -> Outcome:
        """Keep it up for so many seconds and say what came of them."""
        self.outcome = outcome = Outcome()
        began = now = time.monotonic()
        steps = (
            (self.working, self._reply),
            (self.pauses, self._client),
            (self.polling, self._backend),
        )
        while now - began < seconds:
            wait = min(due[0][0] - now if due else 0.1 for due, _ in steps)
            for fd, _ in self.poll.poll(max(0.0, wait)):
                if fd in self.clients:
                    self._take_answer(fd)
                else:
                    self._take_item(fd)
            now = time.monotonic()
            for due, step in steps:
                while due and due[0][0] <= now:
                    step(due.popleft()[1])
        outcome.seconds = now - began
        return outcome

    def close(self) -> None:
        """Drop every connection."""
        for sock, _ in (*self.clients.values(), *self.backends.values()):
            sock.close()
        for _, waiting in (*self.pauses, *self.working):
            if waiting:
                waiting.close()
        self.poll.close()

    def _open(self, side: int, data: bytes) -> socket.socket:
        sock = socket.socket()
        sock.connect(self.addresses[side])
        sock.send(data)
        self.poll.register(sock.fileno(), select.EPOLLIN)
        return sock

    def _client(self, _: object) -> None:
        """Send a request."""
        sock = self._open(0, REQUEST)
        self.clients[sock.fileno()] = (sock, time.monotonic())

    def _take_answer(self, fd: int) -> None:
        sock, sent_at = self.clients[fd]
        data = sock.recv(4096)
        outcome, now = self.outcome, time.monotonic()
        outcome.round_trips.append(now - sent_at)
        if b'"Retcode":0' in data or b'"Retcode": 0' in data:
            outcome.done += 1
        else:
            outcome.failed += 1
        del self.clients[fd]
        sock.close()
        if self.pause:
            self.pauses.append((now + self.pause, None))
        else:
            self._client(None)

    def _backend(self, _: object) -> None:
        """Ask for an item."""
        sock = self._open(1, ASK)
        self.backends[sock.fileno()] = (sock, time.monotonic())

    def _take_item(self, fd: int) -> None:
        sock, sent_at = self.backends[fd]
        data = sock.recv(4096)
        if b'mpty":true' in data or b'mpty": true' in data:
            sock.close()
            del self.backends[fd]
            self.polling.append((time.monotonic() + BACKOFF, None))
            return
        if not data:
            raise SystemExit("the frontend closed a backend's connection")
        now = time.monotonic()
        self.outcome.dispatches.append(now - sent_at)
        self.working.append((now + self.work, sock))

    def _reply(self, sock: socket.socket | None) -> None:
        assert sock
        sock.send(self.reply, socket.MSG_MORE)  # one packet with the end of the connection
        del self.backends[sock.fileno()]
        sock.close()
        self._backend(None)


def half_open(ports: tuple[int, int], count: int) -> list[socket.socket]:
    """Peers of either side that begin a message and never end it."""
    peers = []
    for number in range(count):
        peers.append(socket.create_connection(("127.0.0.1", ports[number % 2])))
        if half := HALVES[number // 2 % len(HALVES)]:
            peers[-1].send(half)
    return peers
