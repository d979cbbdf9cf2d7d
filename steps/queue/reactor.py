"""Connections of the frontend: sockets on an epoll of their own that the event loop polls as one descriptor.

The original framing opens a connection for every message pair, so what a connection costs is what the frontend can
do. A transport of asyncio costs several times the socket calls themselves; here a connection is one accept, the reads
and writes, and one registration. Timers, HTTP and signals stay with asyncio.
"""

from __future__ import annotations

import asyncio
import errno
import select
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perfdag.steps.queue import wire
from perfdag.steps.queue.connection import Memory, Peer

ACCEPTS_A_TURN = 16
EVENTS_A_TURN = 256
CATCH_UP_SECONDS = (
    0.001  # a turn: for all peers together that sent more messages than a turn gives each
)
PAUSE_SECONDS = 0.2  # until connections are accepted again after no descriptor was free
SAY_SECONDS = 60.0  # between two lines of the log on that
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
Maker = Callable[[socket.socket, str], Peer]


@dataclass(slots=True)
class Toll:
    """What want of resources has cost. ``exhausted``: times that no connection could be accepted for want of a descriptor
    or of memory of the kernel's; ``heavy``: peers cut off because too much was held for all."""

    exhausted: int = 0
    heavy: int = 0
    said: float = -SAY_SECONDS

    def starve(self, error: OSError) -> None:
        """Count that a connection could not be accepted, and say it, once a minute."""
        self.exhausted += 1
        now = time.monotonic()
        if now - self.said >= SAY_SECONDS:
            self.said = now
            text = f"no connection can be accepted: {error.strerror}; those open are served, and it is tried again"
            print(text, file=sys.stderr, flush=True)  # noqa: T201


def quiet_accept(toll: Toll) -> Callable[[], None]:
    """Have the event loop's own listeners, that of the metrics, say and count want of descriptors like the reactor's instead
    of logging a traceback a second; returns what undoes it."""
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if (
            isinstance(error, OSError)
            and error.errno in _EXHAUSTED
            and "accept" in context.get("message", "")
        ):
            toll.starve(error)
        elif before is not None:
            before(loop, context)
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)
    return lambda: loop.set_exception_handler(before)


class Reactor:
    """The listeners and peers of one frontend."""

    def __init__(self, memory: Memory, toll: Toll) -> None:
        self.epoll = select.epoll()
        self.peers: dict[int, Peer] = {}
        self.listeners: list[socket.socket] = []
        self.memory = memory
        self.toll = toll
        self._makers: dict[int, tuple[socket.socket, Maker]] = {}
        self._behind: deque[Peer] = deque()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self.epoll.fileno(), self._ready)

    def listen(self, where: wire.Address, make: Maker) -> int:
        """Accept connections at an address and return its port. Raises OSError where it is taken."""
        port = where.port
        for family, host in _families(where.host):
            listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            self.listeners.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            wire.watch(listener)  # accepted sockets inherit it
            listener.bind((host, port))
            listener.listen(4096)
            port = port or listener.getsockname()[1]
            self._makers[listener.fileno()] = (listener, make)
            self.epoll.register(listener.fileno(), select.EPOLLIN)
        return port

    def _ready(self) -> None:
        for fd, event in self.epoll.poll(0, EVENTS_A_TURN):
            peer = self.peers.get(fd)
            if peer is not None:
                if event & select.EPOLLOUT:
                    peer.flush()
                if event & ~select.EPOLLOUT and peer.open and not peer.behind:
                    peer.readable()
                    if peer.behind:
                        self._later(peer)
            elif fd in self._makers:
                self._accept(*self._makers[fd])
        self._relieve()

    def _later(self, peer: Peer) -> None:
        if not self._behind:
            self._loop.call_soon(self._catch_up)
        self._behind.append(peer)

    def _catch_up(self) -> None:
        """Handle messages of peers that are behind, in turn, for so long that the others hardly wait for it."""
        end = time.perf_counter() + CATCH_UP_SECONDS
        waiting, self._behind = self._behind, deque()
        while waiting and time.perf_counter() < end:
            peer = waiting.popleft()
            if peer.open:
                peer.handle()
                peer.settle()
                if peer.open and peer.behind:
                    self._behind.append(peer)
        self._behind.extendleft(reversed(waiting))
        if self._behind:
            self._loop.call_soon(self._catch_up)
        self._relieve()

    def _relieve(self) -> None:
        """Where too much is held for all peers, cut off those who hold most, by address and then by connection, until an
        eighth is free again."""
        if self.memory.held <= self.memory.most:
            return
        hosts: Counter[str] = Counter()
        for peer in self.peers.values():
            hosts[peer.host] += peer.held
        for peer in sorted(
            self.peers.values(), key=lambda one: (hosts[one.host], one.held), reverse=True
        ):
            if self.memory.held <= self.memory.most * 7 // 8:
                break
            self.toll.heavy += 1
            peer.close(abort=True)

    def _accept(self, listener: socket.socket, make: Maker) -> None:
        for _ in range(ACCEPTS_A_TURN):
            try:
                sock, where = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self.toll.starve(error)
                    self.epoll.modify(
                        listener.fileno(), 0
                    )  # else every turn would try in vain, for all it costs the others
                    self._loop.call_later(PAUSE_SECONDS, self._accept_again, listener)
                return  # else the peer left again
            peer = make(sock, where[0])
            if peer.open:
                peer.readable()
            if peer.open:
                peer.register(self)
                if peer.behind:
                    self._later(peer)

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
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return list(dict.fromkeys((int(family), str(where[0])) for family, _, _, _, where in found))
    return [(socket.AF_INET, "0.0.0.0"), *([(socket.AF_INET6, "::")] if socket.has_ipv6 else [])]
