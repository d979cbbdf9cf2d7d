"""A connection of the frontend: one message in each direction."""

import contextlib
import select
import socket

from perfdag.steps.queue import wire

_NOW = socket.MSG_DONTWAIT
_SEND = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_LAST = _SEND | getattr(socket, "MSG_MORE", 0)
_READ = select.EPOLLIN | select.EPOLLRDHUP
# The most that is read of one peer in a turn of the loop: a flooding peer delays nobody.
READ_BYTES = 8192
MESSAGE_BYTES = 4 * wire.ORIGINAL_BYTES


class Peer:
    """A connection that collects a message and passes it to `message`."""

    __slots__ = ("buffer", "open", "registry", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.buffer = b""
        self.open = True
        self.registry: dict[int, Peer] = {}

    def register(self, epoll: select.epoll, registry: "dict[int, Peer]") -> None:
        """Join a reactor: its epoll instance, and its peers by file descriptor."""
        self.registry = registry
        fd = self.sock.fileno()
        registry[fd] = self
        epoll.register(fd, _READ)

    def readable(self) -> None:
        """Read once and handle the message if it is complete."""
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
            if self.buffer:
                self.bad("unexpected end of JSON input")
            self.close()

    def _received(self, data: bytes) -> None:
        self.buffer = buffer = self.buffer + data if self.buffer else data
        too_long = len(buffer) > MESSAGE_BYTES
        # Only such data can complete a message: a peer of tiny pieces is rarely parsed.
        if not (b"}" in data or len(buffer) == len(data) or too_long):
            return
        try:
            message = wire.decode(buffer)
        except wire.IncompleteError as error:
            if too_long:
                self.bad(str(error))
            return
        except wire.MalformedError as error:
            self.bad(str(error))
            return
        self.buffer = b""
        self.complete()
        try:
            self.message(message)
        except wire.MalformedError as error:
            self.bad(str(error))

    def send(self, data: bytes, last: bool = False) -> None:
        """Write a message, which the socket's buffer holds; cut off a peer whose buffer is full.

        `last`: `close` follows, so the data and the end of the connection can share a packet.
        Do not set it if the peer may have sent more than was read: the reset would drop that
        packet.
        """
        if not self.open:
            return
        try:
            sent = self.sock.send(data, _LAST if last else _SEND)
        except OSError:
            sent = 0
        if sent < len(data):
            self.close(abort=True)

    def close(self, abort: bool = False) -> None:
        """Close the connection; `abort` resets it."""
        if not self.open:
            return
        self.open = False
        self.registry.pop(self.sock.fileno(), None)
        if abort:
            with contextlib.suppress(OSError):
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.sock.close()
        self.closed()

    def message(self, message: wire.Message) -> None:
        """Handle one complete message."""
        raise NotImplementedError

    def complete(self) -> None:
        """Note that a message is complete."""
        raise NotImplementedError

    def bad(self, why: str) -> None:
        """Handle data that is no message, and close the connection."""
        raise NotImplementedError

    def closed(self) -> None:
        """Release what the connection held; called once."""
        raise NotImplementedError
