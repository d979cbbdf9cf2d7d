"""HTTP for metrics and control: an optional token, POST for changes, and limited connections."""

import asyncio
import base64
import hmac
import logging
from collections.abc import Callable, Collection

from aiohttp import http_exceptions, web

from perfdag.steps.queue import wire

MAX_CONNECTIONS = 256
CONNECTION_SECONDS = 5.0
"""Lifetime of a connection: a peer that is slow to send or to read is then cut off."""
UNAUTHORIZED = (
    "a token is needed: Authorization: Bearer TOKEN, X-Perfdag-Token: TOKEN, or TOKEN as the "
    "password\n"
)
Handler = Callable[[web.BaseRequest], web.Response]


_logger = logging.getLogger("perfdag.queue.http")
_logger.addFilter(lambda record: not _is_bad_request(record))


def _is_bad_request(record: logging.LogRecord) -> bool:
    """Tell whether aiohttp logs a malformed request: no peer may fill the log with tracebacks."""
    return bool(
        record.exc_info and isinstance(record.exc_info[1], http_exceptions.HttpProcessingError)
    )


class _Refusal(asyncio.Protocol):
    """Close a connection beyond the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


async def serve(
    address: wire.Address,
    handler: Handler,
    token: str = "",
    changes: Collection[str] = (),
) -> asyncio.Server:
    """Serve requests, one for a connection, and `/healthz` without a token.

    The paths of `changes` change a state and take POST; all others take GET. With a token, other
    requests need it: as `Bearer`, as the password of `Basic`, or in the header X-Perfdag-Token.
    The API server's proxy passes only that header on. Raises OSError if the address is taken.
    """

    async def respond(request: web.BaseRequest) -> web.Response:
        response = _response(request, handler, token, changes)
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.force_close()
        return response

    def abort(connection: web.RequestHandler) -> None:
        if connection.transport is not None:
            connection.transport.abort()

    def accept() -> asyncio.BaseProtocol:
        if len(server.connections) >= MAX_CONNECTIONS:
            return _Refusal()
        connection = server()
        loop.call_later(CONNECTION_SECONDS, abort, connection)
        return connection

    loop = asyncio.get_running_loop()
    server = web.Server(respond, access_log=None, logger=_logger)
    return await loop.create_server(accept, address.host or None, address.port)


def _response(
    request: web.BaseRequest, handler: Handler, token: str, changes: Collection[str]
) -> web.Response:
    method = "POST" if request.path in changes else "GET"
    if request.method != method:
        text = f"{request.path} takes {method}, not {request.method}: curl -X {method} ...\n"
        return web.Response(status=405, text=text, headers={"Allow": method})
    if request.path == "/healthz":
        return web.Response(text="ok\n")
    if token and not _authorized(request, token):
        headers = {"WWW-Authenticate": 'Basic realm="perfdag queue"'}
        return web.Response(status=401, text=UNAUTHORIZED, headers=headers)
    return handler(request)


def _authorized(request: web.BaseRequest, token: str) -> bool:
    header = request.headers.get("Authorization", "")
    scheme, _, secret = header.partition(" ")
    if not header:
        secret = request.headers.get("X-Perfdag-Token", "")
    elif scheme.lower() == "basic":
        try:
            secret = base64.b64decode(secret, validate=True).decode().partition(":")[2]
        except ValueError:
            return False
    return hmac.compare_digest(secret.encode(errors="surrogateescape"), token.encode())
