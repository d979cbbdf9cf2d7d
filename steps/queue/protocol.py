"""The messages between clients, the frontend and backends.

They are those of Intel's Device Scalability Tester v0.1. A TCP connection carries one JSON object
in each direction, at most 1024 bytes, without a delimiter.

- client to frontend: `{Queue, Args, Limit}`, answered by a reply
- backend to frontend: `{Queue}`, answered by a work item
- work item: `{Error, Args, Limit, Empty, Running}`; Limit in seconds, 0 is none. Running, the items
  that run now, is perfdag's own: the built-in `usl` needs it
- reply: `{Pod, Node, Device, Error, Timeout, Runtime, Waittime, Retcode}`, times in seconds
"""

import asyncio
import json
import logging
import resource
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic_core import from_json

MOST_BYTES = 1024
"""Bytes that a program of the original reads."""
MESSAGE_BYTES = 4 * MOST_BYTES
"""Bytes of a message above which it is refused."""
TOKEN_VARIABLE = "PERFDAG_QUEUE_TOKEN"
"""Environment variable with the token of a client's control port."""
MOST_PARALLEL = 4096
"""The most requests that one client may have in flight."""
REQUEST = {"Queue": "", "Args": None, "Limit": 0.0}
ITEM = {"Error": "", "Args": None, "Limit": 0.0, "Empty": False, "Running": 1}
REPLY = {
    "Pod": "",
    "Node": "",
    "Device": "",
    "Error": "",
    "Timeout": 0.0,
    "Runtime": 0.0,
    "Waittime": 0.0,
    "Retcode": 0,
}

messages = logging.getLogger("perfdag.queue.messages")
_compact = json.JSONEncoder(separators=(",", ":")).encode
"""Logs every message sent or received at the level DEBUG."""

Message = dict[str, Any]


class MalformedError(Exception):
    """A message that cannot become valid; the text is the reason."""


class IncompleteError(MalformedError):
    """A message whose remainder may still arrive."""


class Address(NamedTuple):
    """An address to listen on or connect to; an empty host is every interface, as in `:9997`."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address(text: str) -> Address:
    """Parse `host:port`, `:port` or `[v6]:port`. Raises ValueError with the reason."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise ValueError(
            f"address {text!r} is not HOST:PORT (for example localhost:9997, or :9997 for "
            "every interface)"
        )
    return Address(host.strip("[]"), int(port))


def encode(message: Mapping[str, Any]) -> bytes:
    """Return a message as one compact JSON object, without a newline."""
    data = _compact(message).encode()
    messages.debug("sent %s", data)
    return data


def encode_reply(reply: Message) -> bytes:
    """Encode a reply; cut its error text until it fits what the original reads."""
    while len(data := encode(reply)) > MOST_BYTES and reply["Error"]:
        excess = max(1, (len(data) - MOST_BYTES) // 6)
        reply = {**reply, "Error": reply["Error"][:-excess]}
    return data


def decode(data: bytes, kinds: Mapping[str, Any]) -> Message:
    """Parse a message, and return the fields of `kinds` alone, each of the type of its default.

    A field that is absent or null has its default, which stands for a list of texts where it is
    None. Case is ignored, as by the original's JSON library. Raises IncompleteError while the
    object is still open, and MalformedError for other errors.
    """
    try:
        message = from_json(data.decode(errors="replace"))
    except ValueError as error:
        incomplete = str(error).startswith("EOF while parsing")
        raise (IncompleteError if incomplete else MalformedError)(str(error)) from None
    messages.debug("received %s", data)
    if not isinstance(message, dict):
        raise MalformedError("not a JSON object")
    fields = {str(key).lower(): value for key, value in message.items() if value is not None}
    return {
        name: _checked(name, fields.get(name.lower(), default), default)
        for name, default in kinds.items()
    }


async def receive(reader: asyncio.StreamReader, kinds: Mapping[str, Any]) -> Message:
    """Return the next message of a peer, see `decode`.

    Raises MalformedError, and ConnectionResetError if the peer left before it.
    """
    buffer = b""
    while data := await reader.read(MESSAGE_BYTES):
        buffer += data
        try:
            return decode(buffer, kinds)
        except IncompleteError:
            if len(buffer) > MESSAGE_BYTES:
                raise
    if buffer:
        raise MalformedError("unexpected end of JSON input")
    raise ConnectionResetError("connection closed before an answer")


def _checked(name: str, value: Any, default: Any) -> Any:
    """Return a value of the type of its default. Raises MalformedError."""
    if default is None:
        right = value is None or (
            isinstance(value, list) and all(isinstance(text, str) for text in value)
        )
    elif isinstance(default, int | float) and not isinstance(default, bool):
        least = -1e15 if name == "Retcode" else 0
        right = type(value) in (int, float) and least <= value < 1e15
    else:
        right = type(value) is type(default)
    if not right:
        raise MalformedError(f"{name} {value!r} is not valid"[:200])
    return value


def succeeded(reply: Message) -> bool:
    """Tell whether a reply is a success for both sides: return code 0, no error and no timeout."""
    return reply["Retcode"] == 0 and not reply["Error"] and not reply["Timeout"]


def enable_keepalive(sock: socket.socket) -> None:
    """Enable TCP keep-alive, to detect a vanished host within about 20 s."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {"TCP_KEEPIDLE": 8, "TCP_KEEPINTVL": 4, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 20_000}
    for name, value in options.items():
        sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def raise_file_limit() -> None:
    """Let this process open as many files, and so connections, as the hard limit admits."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
