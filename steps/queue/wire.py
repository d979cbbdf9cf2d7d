"""The messages between clients, the frontend and backends, and their two framings.

*Original* framing is that of Intel's Device Scalability Tester v0.1: one JSON object a TCP connection in each
direction, at most 1024 bytes, no delimiter. *Kept* framing is perfdag's: the peer first sends the line
``perfdag/1``, then both sides send one compact JSON object a line on a connection that stays open.

Messages (keys as in the original; kept framing adds those in brackets):

- client to frontend: ``{Queue, Args, Limit [, Id, Retries]}``, answered by a reply ``[+ Id]``
- backend to frontend: ``{Queue}``, answered by a work item; kept framing waits until there is one
- work item: ``{Error, Args, Limit, Empty [, Running]}``; Limit in seconds, 0 is none
- reply: ``{Pod, Node, Device, Error, Timeout, Runtime, Waittime, Retcode}``, times in seconds; kept framing: with
  ``Queue`` it also asks for the next item, and ``{"Leave": true}`` is answered by ``{"Bye": true}`` or by one last item
"""

from __future__ import annotations

import json
import re
import socket
from dataclasses import dataclass
from typing import Any

import orjson

ORIGINAL_BYTES = 1024
KEPT_BYTES = 65536
MOST_PARALLEL = 4096
"""Requests in flight that one client may have."""
HELLO = b"perfdag/1\n"
CLIENT_PORT, METRICS_PORT, WORKER_PORT, CONTROL_PORT = 9997, 9998, 9999, 9996

Message = dict[str, Any]

_REPLY_KEYS = ("Pod", "Node", "Device", "Error", "Timeout", "Runtime", "Waittime", "Retcode")
# What may stand at the end of the data where the parser gives up on a value that is cut in the middle.
_PARTIAL = re.compile(r"t(ru?)?|f(a(ls?)?)?|n(ul?)?|-|\.|[eE][+-]?|\\?u[0-9a-fA-F]{0,4}|\\")
_compact = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class MalformedError(Exception):
    """A message that can never become valid, with the reason as its text."""


class IncompleteError(MalformedError):
    """A message whose rest may still arrive."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen or connect; an empty host is every interface, as in ``:9997``."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address(text: str) -> Address:
    """``host:port``, ``:port`` or ``[v6]:port``. Raises ValueError saying what is wrong."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise ValueError(
            f"address {text!r} is not HOST:PORT (for example localhost:9997, or :9997 for every interface)"
        )
    return Address(host.strip("[]"), int(port))


def encode(message: Message) -> bytes:
    """One compact JSON object, without a newline inside."""
    try:
        return orjson.dumps(message)
    except TypeError:  # half of a surrogate pair, or an integer of more than 64 bits, that a peer put into its message
        return _compact(message).encode("utf-8", "replace")


def line(message: Message) -> bytes:
    """A message in kept framing."""
    return encode(message) + b"\n"


def decode(data: bytes | bytearray) -> Message:
    """A message from its bytes.

    Raises IncompleteError while the object is still open and MalformedError otherwise. Keys match without regard to case, as
    the original's JSON library has it.
    """
    try:
        message = orjson.loads(data)
    except orjson.JSONDecodeError:
        message = _lenient(data)
    if type(message) is not dict:
        raise MalformedError("not a JSON object")
    return message


def _lenient(data: bytes | bytearray) -> Any:
    """What the fast parser refuses: cut messages, told from wrong ones, and the few things that only this one takes."""
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
    """The value of a key, exact first, then without regard to case; None where it is absent."""
    value = message.get(name)
    if value is None and name not in message:
        lower = name.lower()
        return next((v for k, v in message.items() if k.lower() == lower), None)
    return value


def text(message: Message, name: str) -> str:
    """A string field, empty where absent. Raises MalformedError for any other type."""
    value = field(message, name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise MalformedError(f"{name} is not a string")
    return value


def number(message: Message, name: str) -> float:
    """A finite number, 0 where absent. Raises MalformedError for any other type."""
    value = field(message, name)
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e15:
        raise MalformedError(f"{name} is not a number")
    return float(value)


def words(message: Message, name: str) -> list[str] | None:
    """A list of strings, None where absent. Raises MalformedError for any other type."""
    value = field(message, name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise MalformedError(f"{name} is not a list of strings")
    return value


def reply(message: Message) -> Message:
    """The checked reply of a backend, with every key of the wire present. Raises MalformedError."""
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
    """The frontend's own reply for a request that no backend answered; waited in seconds."""
    return dict(zip(_REPLY_KEYS, ("", "", "", error, 0, 0, waited, 1), strict=True))


def succeeded(message: Message) -> bool:
    """The one verdict of both sides: return code 0, no error and no timeout."""
    return message["Retcode"] == 0 and not message["Error"] and not message["Timeout"]


def fit_original(message: Message) -> bytes:
    """A reply that a peer reading at most 1024 bytes once can parse: its error text is cut where needed."""
    data = encode(message)
    while len(data) > ORIGINAL_BYTES and message["Error"]:
        message = {
            **message,
            "Error": message["Error"][: -max(1, (len(data) - ORIGINAL_BYTES + 3) // 4)],
        }
        data = encode(message)
    return data


def watch(sock: socket.socket) -> None:
    """TCP keep-alive, so that a host that vanished without a word is noticed within about 20 s, and no Nagle delay."""
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
