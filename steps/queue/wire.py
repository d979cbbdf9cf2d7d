"""The messages between clients, the frontend and backends.

They are those of Intel's Device Scalability Tester v0.1. A TCP connection carries one JSON object
in each direction, at most 1024 bytes, without a delimiter.

- client to frontend: `{Queue, Args, Limit}`, answered by a reply
- backend to frontend: `{Queue}`, answered by a work item
- work item: `{Error, Args, Limit, Empty, Running}`; Limit in seconds, 0 is none. Running, the items
  that run now, is perfdag's own: the built-in `usl` needs it
- reply: `{Pod, Node, Device, Error, Timeout, Runtime, Waittime, Retcode}`, times in seconds
"""

import json
import logging
import re
import socket
from dataclasses import dataclass
from typing import Any

import orjson

ORIGINAL_BYTES = 1024
TOKEN_VARIABLE = "PERFDAG_QUEUE_TOKEN"
"""Environment variable with the token of a client's control port."""
MOST_PARALLEL = 4096
"""The most requests that one client may have in flight."""

messages = logging.getLogger("perfdag.queue.messages")
"""Logs every message sent or received at the level DEBUG."""

Message = dict[str, Any]

_REPLY_KEYS = ("Pod", "Node", "Device", "Error", "Timeout", "Runtime", "Waittime", "Retcode")
# The end of data whose last value is cut in the middle.
_PARTIAL = re.compile(r"t(ru?)?|f(a(ls?)?)?|n(ul?)?|-|\.|[eE][+-]?|\\?u[0-9a-fA-F]{0,4}|\\")
_compact = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class MalformedError(Exception):
    """A message that cannot become valid; the text is the reason."""


class IncompleteError(MalformedError):
    """A message whose remainder may still arrive."""


@dataclass(frozen=True, slots=True)
class Address:
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


def encode(message: Message) -> bytes:
    """Return a message as one compact JSON object, without a newline."""
    try:
        data = orjson.dumps(message)
    except TypeError:  # a lone surrogate, or an integer of more than 64 bits
        data = _compact(message).encode("utf-8", "replace")
    messages.debug("sent %s", data)
    return data


def decode(data: bytes | bytearray) -> Message:
    """Parse a message.

    Raises IncompleteError while the object is still open, and MalformedError for other errors.
    """
    try:
        message = orjson.loads(data)
    except orjson.JSONDecodeError:
        message = _lenient(data)
    if type(message) is not dict:
        raise MalformedError("not a JSON object")
    messages.debug("received %s", bytes(data))
    return message


def _lenient(data: bytes | bytearray) -> Any:
    """Parse what the fast parser refuses, and distinguish cut messages from malformed ones."""
    try:
        return json.loads(data)
    except json.JSONDecodeError as error:
        doc, rest = error.doc.strip(), error.doc[error.pos :].strip()
        cut = not rest or error.msg.startswith("Unterminated string") or _PARTIAL.fullmatch(rest)
        if doc[:1] in ("", "{") and cut and not error.msg.startswith("Extra data"):
            raise IncompleteError("unexpected end of JSON input") from None
        raise MalformedError(
            f"invalid character {error.doc[error.pos : error.pos + 1]!r}: {error.msg}"
        ) from None
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data":
            raise IncompleteError("unexpected end of JSON input") from None
        raise MalformedError(str(error)) from None
    except RecursionError as error:
        raise MalformedError(str(error)) from None


def field(message: Message, name: str) -> Any:
    """Return the value of a key, None if absent.

    Case is ignored, as by the original's JSON library.
    """
    value = message.get(name)
    if value is None and name not in message:
        lower = name.lower()
        return next((v for k, v in message.items() if k.lower() == lower), None)
    return value


def text(message: Message, name: str) -> str:
    """Return a string field, empty if absent. Raises MalformedError for any other type."""
    value = field(message, name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise MalformedError(f"{name} is not a string")
    return value


def number(message: Message, name: str) -> float:
    """Return a finite number, 0 if absent. Raises MalformedError for any other type."""
    value = field(message, name)
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e15:
        raise MalformedError(f"{name} is not a number")
    return float(value)


def string_list(message: Message, name: str) -> list[str] | None:
    """Return a list of strings, None if absent. Raises MalformedError for any other type."""
    value = field(message, name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise MalformedError(f"{name} is not a list of strings")
    return value


def reply(message: Message) -> Message:
    """Return the checked reply of a backend, with all keys. Raises MalformedError."""
    runtime = number(message, "Runtime")
    if runtime < 0:
        raise MalformedError(f"Runtime {runtime:g} is below 0")
    return {
        "Pod": text(message, "Pod"),
        "Node": text(message, "Node"),
        "Device": text(message, "Device"),
        "Error": text(message, "Error"),
        "Timeout": number(message, "Timeout"),
        "Runtime": runtime,
        "Waittime": 0.0,
        "Retcode": int(number(message, "Retcode")),
    }


def failure(error: str, waited: float = 0.0) -> Message:
    """Return the frontend's reply to a request that no backend answered; `waited` in seconds."""
    return dict(zip(_REPLY_KEYS, ("", "", "", error, 0, 0, waited, 1), strict=True))


def succeeded(message: Message) -> bool:
    """Tell whether a reply is a success for both sides: return code 0, no error and no timeout."""
    return message["Retcode"] == 0 and not message["Error"] and not message["Timeout"]


def fit_original(message: Message) -> bytes:
    """Encode a reply for a peer that reads at most 1024 bytes: cut its error text if needed."""
    data = encode(message)
    while len(data) > ORIGINAL_BYTES and message["Error"]:
        message = {
            **message,
            "Error": message["Error"][: -max(1, (len(data) - ORIGINAL_BYTES + 3) // 4)],
        }
        data = encode(message)
    return data


def enable_keepalive(sock: socket.socket) -> None:
    """Enable TCP keep-alive, to detect a vanished host within about 20 s, and disable Nagle."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = (
        ("TCP_NODELAY", 1),
        ("TCP_KEEPIDLE", 8),
        ("TCP_KEEPINTVL", 4),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 20_000),
    )
    for name, value in options:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
