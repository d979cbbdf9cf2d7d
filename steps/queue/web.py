"""A small HTTP/1.1 server for metrics and control: GET only, bounded in size and time, nothing else.

The images of this room hold no web framework, and a control port wants the least that can be attacked.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from perfdag.steps.queue import wire
from perfdag.steps.queue.slots import Slots

HEAD_BYTES = 4096
READ_SECONDS = 1.0
PEERS = 256
SHARE = 0.5
"""Of these, what one address may hold once three quarters are taken."""


@dataclass(frozen=True, slots=True)
class Response:
    """Status, body and content type of an answer."""

    status: int
    body: str = ""
    kind: str = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Request:
    """A GET: path, query and where it came from."""

    path: str
    query: dict[str, str]
    peer: str


Handler = Callable[[Request], Response | Awaitable[Response]]
_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed",
            408: "Request Timeout", 409: "Conflict", 431: "Request Header Fields Too Large", 500: "Internal Server Error",
            503: "Service Unavailable"}  # fmt: skip


async def serve(where: wire.Address, handler: Handler, token: str = "") -> asyncio.Server:
    """Listen and answer; with a token every request needs it: as ``Bearer``, as the password of ``Basic``, or in the
    header X-Perfdag-Token, which the API server's proxy passes on.

    One address never takes every connection: a probe or a scraper from elsewhere is answered. Raises OSError where the address is taken.
    """
    slots = Slots(PEERS, SHARE)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host = (writer.get_extra_info("peername") or [""])[0]
        refused = slots.take(host)
        if refused:
            slots.leave(host)  # else a flood of those would keep the others out while they are told
        try:
            response = (
                Response(503, f"{refused}\n")
                if refused
                else await _hear(reader, handler, token, host)
            )
            writer.transport.set_write_buffer_limits(0)
            writer.write(_render(response))
            await asyncio.wait_for(writer.drain(), READ_SECONDS)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            writer.transport.abort()  # closed, it would wait for ever for a peer that does not read
        finally:
            if not refused:
                slots.leave(host)
            writer.close()

    return await asyncio.start_server(accept, where.host or None, where.port, limit=HEAD_BYTES)


async def _hear(reader: asyncio.StreamReader, handler: Handler, token: str, host: str) -> Response:
    try:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), READ_SECONDS)
    except asyncio.LimitOverrunError:
        return Response(431)
    except TimeoutError:
        return Response(408)
    return await _answer(head, handler, token, host)


async def _answer(head: bytes, handler: Handler, token: str, peer: str) -> Response:
    first, *rest = head.decode("latin-1").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        return Response(400)
    headers = {
        key.strip().lower(): value.strip() for key, _, value in (one.partition(":") for one in rest)
    }
    if parts[0] != "GET":
        return Response(405)
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        return Response(400)
    try:
        url = urlsplit(parts[1])
    except ValueError:
        return Response(400)
    if url.path != "/healthz" and token and not _authorized(headers, token):
        return Response(
            401,
            "a token is needed: Authorization: Bearer TOKEN, X-Perfdag-Token: TOKEN, or TOKEN as the password\n",
        )
    if url.path == "/healthz":
        return Response(200, "ok\n")
    answer = handler(Request(url.path, dict(parse_qsl(url.query, keep_blank_values=True)), peer))
    return answer if isinstance(answer, Response) else await answer


def _authorized(headers: dict[str, str], token: str) -> bool:
    scheme, _, value = headers.get(
        "authorization", f"Bearer {headers.get('x-perfdag-token', '')}"
    ).partition(" ")
    if scheme.lower() == "basic":
        try:
            value = base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return False
    return hmac.compare_digest(value.encode(), token.encode())


def _render(response: Response) -> bytes:
    body = response.body.encode()
    head = [
        f"HTTP/1.1 {response.status} {_REASONS.get(response.status, '')}",
        f"Content-Type: {response.kind}",
    ]
    head += [f"Content-Length: {len(body)}", "Connection: close", "X-Content-Type-Options: nosniff"]
    if response.status == 401:
        head.append('WWW-Authenticate: Basic realm="perfdag queue"')
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body
