"""The frontend's connections: sockets on an epoll instance below the event loop.

A connection carries one pair of messages, so the cost of a connection bounds
the throughput.
A transport of asyncio costs several times the socket calls themselves.
Here a connection costs one accept, the reads and writes, and one registration. Timers, HTTP and
signals stay with asyncio.
"""

import asyncio
import errno
import select
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perfdag.steps.queue import wire
from perfdag.steps.queue.frontend.connection import Peer

ACCEPTS_A_TURN = 16
EVENTS_A_TURN = 256
PAUSE_SECONDS = 0.2  # before accepting again after no descriptor was free
LOG_SECONDS = 60.0  # between two log lines about exhausted resources
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
PeerFactory = Callable[[socket.socket], Peer]


@dataclass(slots=True)
class ResourceExhaustion:
    """Failures to accept for lack of descriptors or kernel memory, and the time of the last log."""

    count: int = 0
    logged: float = -LOG_SECONDS

    def record(self, error: OSError) -> None:
        """Count a failure and log it, at most once a minute."""
        self.count += 1
        now = time.monotonic()
        if now - self.logged >= LOG_SECONDS:
            self.logged = now
            text = (
                f"cannot accept connections: {error.strerror}; open ones are served, and "
                "accepting is retried"
            )
            print(text, file=sys.stderr, flush=True)  # noqa: T201


def handle_accept_errors(exhaustion: ResourceExhaustion) -> Callable[[], None]:
    """Record failures of the event loop's own listeners too, and return a function that undoes it.

    asyncio would log a traceback a second for the metrics port.
    """
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if (
            isinstance(error, OSError)
            and error.errno in _EXHAUSTED
            and "accept" in context.get("message", "")
        ):
            exhaustion.record(error)
        elif before is not None:
            before(loop, context)
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)
    return lambda: loop.set_exception_handler(before)


class Reactor:
    """The listeners and peers of one frontend."""

    def __init__(self, exhaustion: ResourceExhaustion) -> None:
        self.epoll = select.epoll()
        self.peers: dict[int, Peer] = {}
        self.listeners: list[socket.socket] = []
        self.exhaustion = exhaustion
        self._factories: dict[int, tuple[socket.socket, PeerFactory]] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self.epoll.fileno(), self._ready)

    def listen(self, address: wire.Address, make_peer: PeerFactory) -> int:
        """Accept connections at an address and return its port. Raises OSError if it is taken."""
        port = address.port
        for family, host in _families(address.host):
            listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            self.listeners.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            wire.enable_keepalive(listener)  # accepted sockets inherit it
            listener.bind((host, port))
            listener.listen(4096)
            port = port or listener.getsockname()[1]
            self._factories[listener.fileno()] = (listener, make_peer)
            self.epoll.register(listener.fileno(), select.EPOLLIN)
        return port

    def _ready(self) -> None:
        for fd, _ in self.epoll.poll(0, EVENTS_A_TURN):
            peer = self.peers.get(fd)
            if peer is not None:
                peer.readable()
            elif fd in self._factories:
                self._accept(*self._factories[fd])

    def _accept(self, listener: socket.socket, make_peer: PeerFactory) -> None:
        for _ in range(ACCEPTS_A_TURN):
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self.exhaustion.record(error)
                    self.epoll.modify(
                        listener.fileno(), 0
                    )  # a retry in every turn would slow the others
                    self._loop.call_later(PAUSE_SECONDS, self._accept_again, listener)
                return  # any other error: the peer has left
            peer = make_peer(sock)
            if peer.open:
                peer.readable()
            if peer.open:
                peer.register(self.epoll, self.peers)

    def _accept_again(self, listener: socket.socket) -> None:
        if listener.fileno() >= 0:
            self.epoll.modify(listener.fileno(), select.EPOLLIN)

    def stop(self) -> None:
        """Close every listener and connection."""
        self._loop.remove_reader(self.epoll.fileno())
        for peer in list(self.peers.values()):
            peer.close(abort=True)
        for listener in self.listeners:
            listener.close()
        self.epoll.close()


def _families(host: str) -> list[tuple[int, str]]:
    if host:
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return list(
            dict.fromkeys((int(family), str(name[0])) for family, _, _, _, name in addresses)
        )
    return [(socket.AF_INET, "0.0.0.0"), *([(socket.AF_INET6, "::")] if socket.has_ipv6 else [])]
