"""HTTP of the programs: metrics, and the client's control port with its pages.

Paths and answers of the control port are those of Intel's tester. Text from the network is escaped
in HTML and quoted in JSON.
"""

import asyncio
import contextlib
import hmac
import html
from collections.abc import Callable

from aiohttp import BasicAuth, web

from perfdag.steps.queue import render
from perfdag.steps.queue.client import ClientStats, Load
from perfdag.steps.queue.protocol import Address
from perfdag.units import plural

COLUMNS = 60
"""Characters of the longest bar of a table."""
PAGES = ("/stats", "/nodes", "/pods")
KINDS = ("plain", "json", "html")
CHANGES = ("/parallel", "/reset")
"""Paths that change the client, which take POST."""
UNAUTHORIZED = (
    "a token is needed: Authorization: Bearer TOKEN, X-Perfdag-Token: TOKEN, or TOKEN as the "
    "password\n"
)
Handler = Callable[[web.BaseRequest], web.Response]


async def serve(address: Address, handler: Handler, token: str = "") -> asyncio.Server:
    """Serve requests, one for a connection, and `/healthz` without a token.

    With a token, each request needs it: as `Bearer`, as the password of `Basic`, or in the header
    X-Perfdag-Token, the only one that the API server's proxy passes on. Requests that change
    something then take POST, and all others GET. Raises OSError if the address is taken.
    """

    async def respond(request: web.BaseRequest) -> web.Response:
        method = "POST" if request.path in CHANGES else "GET"
        if request.path == "/healthz":
            response = web.Response(text="ok\n")
        elif token and request.method != method:
            text = f"{request.path} takes {method}, not {request.method}: curl -X {method} ...\n"
            response = web.Response(status=405, text=text, headers={"Allow": method})
        elif token and not hmac.compare_digest(_secret(request), token.encode()):
            response = web.Response(
                status=401,
                text=UNAUTHORIZED,
                headers={"WWW-Authenticate": 'Basic realm="perfdag queue"'},
            )
        else:
            response = handler(request)
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.force_close()
        return response

    server = web.Server(respond, access_log=None)
    return await asyncio.get_running_loop().create_server(
        server, address.host or None, address.port
    )


def _secret(request: web.BaseRequest) -> bytes:
    """Return the token of a request, empty without one."""
    header = request.headers.get("Authorization", "")
    secret = header.removeprefix("Bearer ") or request.headers.get("X-Perfdag-Token", "")
    with contextlib.suppress(ValueError):  # not Basic
        secret = BasicAuth.decode(header).password
    return secret.encode(errors="surrogateescape")


def answer(load: Load, request: web.BaseRequest) -> web.Response:
    """Answer a request to the control port of a client."""
    stats = load.stats
    kind = request.query.get("type", "html")
    if kind not in KINDS:
        return web.Response(status=400, text=f"type {kind!r} is none of {', '.join(KINDS)}\n")
    if request.path in PAGES and kind == "json":
        return web.json_response(stats.as_json())
    if request.path in PAGES:
        text = page_text(request.path, stats)
        return _answer(kind, None, text, f"<pre>{html.escape(text)}</pre>")
    match request.path:
        case "/fails":
            return _value(kind, stats.failure, "request failures")
        case "/reqs-per-sec":
            return _value(kind, stats.rate, "requests per second")
        case "/reset":
            stats.reset()
            return _value(kind, "Reseted")
        case "/parallel":
            value = request.query.get("value", "")
            try:
                return _value(kind, load.set_parallel(int(value)), "requests in parallel")
            except ValueError:
                return _value(kind, "ERROR", f"value {value!r} is not a whole number", 400)
    return web.Response(status=404)


def _value(kind: str, value: float | str, info: str = "", status: int = 200) -> web.Response:
    """Return an answer of one value."""
    text = f"{value:f}" if isinstance(value, float) else str(value)
    page = f"<p>{html.escape(f'{text} {info}'.strip())}.</p>"
    return _answer(kind, {"result": value, "info": info}, text, page, status)


def _answer(kind: str, data: object, text: str, page: str, status: int = 200) -> web.Response:
    """Return one of the forms of an answer; the page gets links to all pages."""
    if kind == "json":
        return web.json_response(data, status=status)
    if kind == "plain":
        return web.Response(text=f"{text}\n", status=status)
    links = '<a href="stats">Stats</a> <a href="pods">Pods</a> <a href="nodes">Nodes, devices</a>'
    body = f"<!doctype html><title>queue client</title><p>{links}</p>{page}\n"
    return web.Response(status=status, text=body, content_type="text/html")


def page_text(path: str, stats: ClientStats) -> str:
    """Return a page of statistics as text."""
    return render("pages.txt.j2", page=path, columns=COLUMNS, stats=stats, plural=plural).rstrip(
        "\n"
    )
