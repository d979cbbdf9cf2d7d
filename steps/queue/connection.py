"""A connection of the frontend: what arrives is cut into messages, what is sent waits where the peer does not read, both bounded."""

from __future__ import annotations

import contextlib
import select
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfdag.steps.queue import wire

if TYPE_CHECKING:
    from perfdag.steps.queue.reactor import Reactor

_NOW = socket.MSG_DONTWAIT
_SEND = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_LAST = _SEND | getattr(socket, "MSG_MORE", 0)
_READ = select.EPOLLIN | select.EPOLLRDHUP
# A turn of the loop gives a peer one read and so many messages: what a peer that floods can make the others wait for.
READ_BYTES = 8192
MESSAGES_A_TURN = 16


@dataclass(slots=True)
class Memory:
    """Bytes that are held for all peers together, and how many may be."""

    most: int
    held: int = 0


class Peer:
    """A connection that collects messages of either framing and passes each to ``message``.

    ``host``: the peer's address; ``memory``: where its bytes are counted; ``message_bytes``: the longest message;
    ``unsent_bytes``: what may wait for a peer that does not read. ``behind``: it sent more messages than a turn handles, and
    is not read from until these are done. ``held``: bytes counted, with the ``requests`` of a client.
    """

    __slots__ = (
        "behind", "buffer", "held", "host", "kept", "memory", "message_bytes",
        "open", "reactor", "requests", "sock", "unsent", "unsent_bytes",
    )  # fmt: skip

    def __init__(
        self, sock: socket.socket, host: str, memory: Memory, message_bytes: int, unsent_bytes: int
    ) -> None:
        self.sock = sock
        self.host = host
        self.memory = memory
        self.held = self.requests = 0
        self.behind = False
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
        self.settle()

    def settle(self) -> None:
        """Count what is held for this peer now."""
        held = len(self.buffer) + len(self.unsent) + self.requests if self.open else 0
        if held != self.held:
            self.memory.held += held - self.held
            self.held = held

    def _received(self, data: bytes) -> None:
        self.buffer = buffer = self.buffer + data if self.buffer else data
        if not self.kept:
            if buffer[0] != wire.HELLO[0]:
                if (
                    b"}" in data
                    or len(buffer) == len(data)
                    or len(buffer) > 4 * wire.ORIGINAL_BYTES
                ):
                    self._original(
                        buffer
                    )  # what else is added completes no message: a peer of tiny pieces is not parsed for each
                return
            if len(buffer) < len(wire.HELLO) and wire.HELLO.startswith(buffer):
                return
            if not buffer.startswith(wire.HELLO):
                self.bad("invalid character 'p' looking for beginning of value")
                return
            self.kept = True
            self.buffer = buffer[len(wire.HELLO) :]
        self.handle()

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
        self.complete(True, False)
        self._deliver(message)

    def handle(self) -> None:
        """Handle the messages that are complete, as many as a turn gives; ``behind`` says whether there are more."""
        *lines, rest = self.buffer.split(b"\n", MESSAGES_A_TURN)
        self.buffer, self.behind = rest, b"\n" in rest
        if len(rest) > self.message_bytes and not self.behind:
            self.bad("message too long")
            return
        if lines or rest:  # a greeting alone is no message
            self.complete(bool(lines), bool(rest) and not self.behind)
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
            return
        self.settle()
        if self.reactor is not None:
            self.reactor.epoll.modify(self.sock.fileno(), _READ | select.EPOLLOUT)

    def flush(self) -> None:
        """Write more of what is unsent."""
        data, self.unsent = self.unsent, b""
        if data and self.open:
            self.send(data)
        if not self.unsent and self.open and self.reactor is not None:
            self.reactor.epoll.modify(self.sock.fileno(), _READ)
        self.settle()

    def close(self, abort: bool = False) -> None:
        """End the connection; ``abort`` drops it at once with what is unsent."""
        if not self.open:
            return
        self.open = False
        self.settle()
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

    def complete(self, done: bool, partial: bool) -> None:
        """Something came; ``done``: messages were completed, ``partial``: one has begun, or goes on."""
        raise NotImplementedError

    def bad(self, why: str) -> None:
        """Something came that is no message; the peer has to be closed."""
        raise NotImplementedError

    def closed(self) -> None:
        """The connection is gone; called once."""
        raise NotImplementedError
