"""Connections of the frontend: sockets on an epoll of their own that the event loop polls as one descriptor.

The original framing opens a connection for every message pair, so what a connection costs is what the frontend can
do. A transport of asyncio costs several times the socket calls themselves; here a connection is one accept, the reads
and writes, and one registration. Timers, HTTP and signals stay with asyncio.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections.abc import Callable

from perfdag.steps.queue import wire

_NOW = socket.MSG_DONTWAIT
_SEND = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_LAST = _SEND | getattr(socket, "MSG_MORE", 0)
_READ = select.EPOLLIN | select.EPOLLRDHUP
ACCEPTS_A_TURN = 64
EVENTS_A_TURN = 256
READ_BYTES = 8192  # a turn: what a peer that floods can make the others wait for


class Reactor:
    """The listeners and peers of one frontend."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.peers: dict[int, Peer] = {}
        self.listeners: list[socket.socket] = []
        self._makers: dict[int, tuple[socket.socket, Callable[[socket.socket], Peer]]] = {}
        asyncio.get_running_loop().add_reader(self.epoll.fileno(), self._ready)

    def listen(self, where: wire.Address, make: Callable[[socket.socket], Peer]) -> int:
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
                if event & ~select.EPOLLOUT and peer.open:
                    peer.readable()
            elif fd in self._makers:
                self._accept(*self._makers[fd])

    def _accept(self, listener: socket.socket, make: Callable[[socket.socket], Peer]) -> None:
        for _ in range(ACCEPTS_A_TURN):
            try:
                sock, _address = listener.accept()
            except BlockingIOError:
                return
            except OSError:  # the peer left again, or no descriptor is free: the next turn tries again
                return
            peer = make(sock)
            if peer.open:
                peer.readable()
            if peer.open:
                peer.register(self)

    def stop(self) -> None:
        """Close every listener and connection."""
        asyncio.get_running_loop().remove_reader(self.epoll.fileno())
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


class Peer:
    """A connection that collects messages of either framing and passes each to ``message``.

    ``message_bytes``: the longest message; ``unsent_bytes``: what may wait for a peer that does not read.
    """

    __slots__ = ("buffer", "kept", "message_bytes", "open", "reactor", "sock", "unsent", "unsent_bytes")

    def __init__(self, sock: socket.socket, message_bytes: int, unsent_bytes: int) -> None:
        self.sock = sock
        self.message_bytes = message_bytes
        self.unsent_bytes = unsent_bytes
        self.buffer = b""
        self.unsent = b""
        self.kept = False
        self.open = True
        self.reactor: Reactor | None = None

    def register(self, reactor: Reactor) -> None:
        """Have the reactor call from now on."""
        self.reactor = reactor
        fd = self.sock.fileno()
        reactor.peers[fd] = self
        reactor.epoll.register(fd, _READ | (select.EPOLLOUT if self.unsent else 0))

    def readable(self) -> None:
        """Read once and handle the messages that are complete."""
        try:
            data = self.sock.recv(READ_BYTES, _NOW)
        except BlockingIOError:
            return
        except OSError:
            self.close(abort=True)
            return
        if data:
            self._received(data)
        else:
            if self.buffer and not self.kept:
                self.bad("unexpected end of JSON input")
            self.close()

    def _received(self, data: bytes) -> None:
        self.buffer = buffer = self.buffer + data if self.buffer else data
        if not self.kept:
            if buffer[0] != wire.HELLO[0]:
                self._original(buffer)
                return
            if len(buffer) < len(wire.HELLO) and wire.HELLO.startswith(buffer):
                return
            if not buffer.startswith(wire.HELLO):
                self.bad("invalid character 'p' looking for beginning of value")
                return
            self.kept = True
            self.buffer = buffer = buffer[len(wire.HELLO) :]
        self._lines(buffer)

    def _original(self, buffer: bytes) -> None:
        try:
            message = wire.decode(buffer)
        except wire.IncompleteError as error:
            if len(buffer) > 4 * wire.ORIGINAL_BYTES:
                self.bad(str(error))
            return
        except wire.MalformedError as error:
            self.bad(str(error))
            return
        self.buffer = b""
        self.complete(False)
        self._deliver(message)

    def _lines(self, buffer: bytes) -> None:
        *lines, rest = buffer.split(b"\n")
        self.buffer = rest
        if len(rest) > self.message_bytes:
            self.bad("message too long")
            return
        if lines or rest:  # a greeting alone is no message
            self.complete(bool(rest))
        for one in lines:
            try:
                message = wire.decode(one)
            except wire.MalformedError as error:
                self.bad(str(error))
                return
            self._deliver(message)
            if not self.open:
                return

    def _deliver(self, message: wire.Message) -> None:
        try:
            self.message(message)
        except wire.MalformedError as error:
            self.bad(str(error))

    def send(self, data: bytes, last: bool = False) -> None:
        """Write now what fits, keep the rest up to ``unsent_bytes``, and cut a peer off beyond that.

        ``last``: ``close`` follows, so that the data and the end of the connection can be one packet; not where the peer may
        have sent what was not read, since the connection is then reset and the packet dropped.
        """
        if not self.open:
            return
        if not self.unsent:
            try:
                sent = self.sock.send(data, _LAST if last else _SEND)
            except BlockingIOError:
                sent = 0
            except OSError:
                self.close(abort=True)
                return
            if sent == len(data):
                return
            data = data[sent:]
        self.unsent += data
        if len(self.unsent) > self.unsent_bytes:
            self.close(abort=True)
        elif self.reactor is not None:
            self.reactor.epoll.modify(self.sock.fileno(), _READ | select.EPOLLOUT)

    def flush(self) -> None:
        """Write more of what is unsent."""
        data, self.unsent = self.unsent, b""
        if data and self.open:
            self.send(data)
        if not self.unsent and self.open and self.reactor is not None:
            self.reactor.epoll.modify(self.sock.fileno(), _READ)

    def close(self, abort: bool = False) -> None:
        """End the connection; ``abort`` drops it at once with what is unsent."""
        if not self.open:
            return
        self.open = False
        if self.reactor is not None:
            self.reactor.peers.pop(self.sock.fileno(), None)
        if abort:
            with contextlib.suppress(OSError):
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.sock.close()
        self.closed()

    def message(self, message: wire.Message) -> None:
        """One complete message."""
        raise NotImplementedError

    def complete(self, partial: bool) -> None:
        """Messages were completed; ``partial`` where one more has begun."""
        raise NotImplementedError

    def bad(self, why: str) -> None:
        """Something came that is no message; the peer has to be closed."""
        raise NotImplementedError

    def closed(self) -> None:
        """The connection is gone; called once."""
        raise NotImplementedError
