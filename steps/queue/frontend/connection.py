"""A connection of the frontend: it splits bytes into messages and buffers unsent data."""

import contextlib
import select
import socket

from perfdag.steps.queue import wire

_NOW = socket.MSG_DONTWAIT
_SEND = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_LAST = _SEND | getattr(socket, "MSG_MORE", 0)
_READ = select.EPOLLIN | select.EPOLLRDHUP
# Work for one peer in a turn of the loop: it bounds how long a flooding peer delays the others.
READ_BYTES = 8192
MESSAGES_A_TURN = 16


class Peer:
    """A connection that collects messages of either framing and passes them to `message`.

    `message_bytes`: the longest message. `unsent_bytes`: the most that may wait for a peer that
    does not read.
    `behind`: the peer sent more messages than a turn handles. It is not read from until these are
    done.
    """

    __slots__ = (
        "behind",
        "buffer",
        "epoll",
        "message_bytes",
        "open",
        "persistent",
        "registry",
        "sock",
        "unsent",
        "unsent_bytes",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, message_bytes: int, unsent_bytes: int) -> None:
        self.sock = sock
        self.behind = False
        self.message_bytes = message_bytes
        self.unsent_bytes = unsent_bytes
        self.buffer = b""
        self.unsent = b""
        self.persistent = False
        self.open = True
        self.epoll: select.epoll | None = None
        self.registry: dict[int, Peer] = {}

    def register(self, epoll: select.epoll, registry: "dict[int, Peer]") -> None:
        """Join a reactor: its epoll instance, and its peers by file descriptor."""
        self.epoll, self.registry = epoll, registry
        fd = self.sock.fileno()
        registry[fd] = self
        epoll.register(fd, _READ | (select.EPOLLOUT if self.unsent else 0))

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
            if self.buffer and not self.persistent:
                self.bad("unexpected end of JSON input")
            self.close()

    def _received(self, data: bytes) -> None:
        self.buffer = buffer = self.buffer + data if self.buffer else data
        if not self.persistent:
            if buffer[0] != wire.HELLO[0]:
                if (
                    b"}" in data
                    or len(buffer) == len(data)
                    or len(buffer) > 4 * wire.ORIGINAL_BYTES
                ):
                    # Only such data can complete a message: a peer of tiny pieces is rarely parsed.
                    self._original(buffer)
                return
            if len(buffer) < len(wire.HELLO) and wire.HELLO.startswith(buffer):
                return
            if not buffer.startswith(wire.HELLO):
                self.bad("invalid character 'p' looking for beginning of value")
                return
            self.persistent = True
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
        """Handle complete messages, at most those of a turn; set `behind` if more are left."""
        *lines, rest = self.buffer.split(b"\n", MESSAGES_A_TURN)
        self.buffer, self.behind = rest, b"\n" in rest
        if len(rest) > self.message_bytes and not self.behind:
            self.bad("message too long")
            return
        if lines or rest:  # a greeting alone is no message
            self.complete(bool(lines), bool(rest) and not self.behind)
        for line in lines:
            try:
                message = wire.decode(line)
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
        """Write what fits now, keep up to `unsent_bytes`, and cut a peer off beyond that.

        `last`: `close` follows, so the data and the end of the connection can share a packet.
        Do not set it if the peer may have sent more than was read: the reset would drop that
        packet.
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
        if self.epoll is not None:
            self.epoll.modify(self.sock.fileno(), _READ | select.EPOLLOUT)

    def flush(self) -> None:
        """Write more of what is unsent."""
        data, self.unsent = self.unsent, b""
        if data and self.open:
            self.send(data)
        if not self.unsent and self.open and self.epoll is not None:
            self.epoll.modify(self.sock.fileno(), _READ)

    def close(self, abort: bool = False) -> None:
        """Close the connection; `abort` resets it and drops unsent data."""
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

    def complete(self, done: bool, partial: bool) -> None:
        """Note that data arrived.

        `done`: it completed messages. `partial`: a message is incomplete.
        """
        raise NotImplementedError

    def bad(self, why: str) -> None:
        """Handle data that is no message, and close the connection."""
        raise NotImplementedError

    def closed(self) -> None:
        """Release what the connection held; called once."""
        raise NotImplementedError
