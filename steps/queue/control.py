"""HTTP of the programs: metrics, and the client's control port with its pages.

Paths and answers of the control port are those of Intel's tester. Text from the network is escaped
in HTML and quoted in JSON.
"""

import asyncio
import contextlib
import hmac
import html
from collections.abc import Callable, Iterator, Mapping

from aiohttp import BasicAuth, web

from perfdag.steps.queue.client import ClientStats, Load
from perfdag.steps.queue.protocol import Address
from perfdag.units import plural

COLUMNS = 60
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
            headers = {"WWW-Authenticate": 'Basic realm="perfdag queue"'}
            response = web.Response(status=401, text=UNAUTHORIZED, headers=headers)
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


class Control:
    """Answer requests to the control port."""

    def __init__(self, load: Load) -> None:
        self.load, self.stats = load, load.stats

    def __call__(self, request: web.BaseRequest) -> web.Response:
        """Answer one request."""
        stats, path, kind = self.stats, request.path, request.query.get("type", "html")
        if kind not in KINDS:
            text = f"type {kind!r} is none of {', '.join(KINDS)}\n"
            return web.Response(status=400, text=text)
        if path in PAGES:
            text = "\n".join(PAGES[path](stats))
            forms = self._forms() if path == "/stats" else ""
            page = f"{forms}<pre>{html.escape(text)}</pre>"
            return _answer(kind, stats.as_json(), text, page)
        value: float | str
        value, info, status = "ERROR", "", 200
        match path:
            case "/fails":
                value, info = stats.failure, "request failures"
            case "/reqs-per-sec":
                value, info = stats.rate, "requests per second"
            case "/reset":
                stats.reset()
                value = "Reseted"
            case "/parallel":
                text = request.query.get("value", "")
                try:
                    value, info = self.load.set_parallel(int(text)), "requests in parallel"
                except ValueError:
                    info, status = f"value {text!r} is not a whole number", 400
            case _:
                return web.Response(status=404)
        text = f"{value:f}" if isinstance(value, float) else str(value)
        page = f"<p>{html.escape(f'{text} {info}'.strip())}.</p>"
        return _answer(kind, {"result": value, "info": info}, text, page, status)

    def _forms(self) -> str:
        """Return buttons that change the client."""
        counts = [0, *(1 << power for power in range(self.load.most.bit_length()))]
        buttons = "".join(
            f'<button formaction="parallel?value={count}">{count}</button> ' for count in counts
        )
        return (
            f'<form method="post"><p>Requests in parallel: {buttons}</p>'
            '<p><button formaction="reset">Reset statistics</button></p></form>'
        )


def _answer(kind: str, data: object, text: str, page: str, status: int = 200) -> web.Response:
    """Return one of the forms of an answer; the page gets links to all pages."""
    if kind == "json":
        return web.json_response(data, status=status)
    if kind == "plain":
        return web.Response(text=f"{text}\n", status=status)
    links = '<a href="stats">Stats</a> <a href="pods">Pods</a> <a href="nodes">Nodes, devices</a>'
    body = f"<!doctype html><title>queue client</title><p>{links}</p>{page}\n"
    return web.Response(status=status, text=body, content_type="text/html")


def stats_lines(stats: ClientStats) -> Iterator[str]:
    """Return the overall statistics as text."""
    yield _header("Overall request / reply statistics")
    yield f"\nSending {plural(stats.parallel, 'request')} in parallel."
    yield (
        f"\n{stats.pending} pending, {stats.failure} failed and {stats.success} successful "
        f"requests in {stats.seconds:.1f} seconds."
    )
    if stats.success:
        yield f"= {stats.rate:.2f} successfully completed requests / second."
        yield "\nMax / average / min timings (in seconds, for successful requests):"
        for times, what in (
            (stats.run, "backend run time"),
            (stats.wait, "queue wait time"),
            (stats.overhead, "communication overhead"),
        ):
            mean = times.sum / stats.success
            yield f"- {times.largest:.6f} / {mean:.6f} / {times.least:.6f} - {what}"
        yield "\nLatency of the whole request, seconds (percentiles need enough samples):"
        known = [f"{k} {v:.6g}" for k, v in stats.latency.summary().items() if v is not None]
        yield f"- {', '.join(known)}"
    if stats.causes:
        yield "\nFailures by cause:"
        yield from (f"- {count}: {cause}" for cause, count in stats.causes.most_common())


def nodes_lines(stats: ClientStats) -> Iterator[str]:
    """Return replies by node, then devices and errors of every node, as text."""
    yield _header("Backend / worker node statistics")
    nodes = sorted(stats.nodes.items())
    yield from _bars("Node", "Success replies", {name: node.success for name, node in nodes})
    yield from _bars("Node", "Failure replies", {name: node.failure for name, node in nodes})
    for name, node in nodes:
        yield _header(f"Node: {name}")
        yield from _bars("Device", "Completed requests", node.devices)
        yield from _bars("Device", "Failed requests", node.failed_devices)
        if node.errors:
            yield "\nNode errors (count / description):"
            yield from (f"- {count}: {error}" for error, count in node.errors.most_common())


def pods_lines(stats: ClientStats) -> Iterator[str]:
    """Return replies by pod of every node, as text."""
    yield _header("Per-node backend / worker pod statistics")
    for name, node in sorted(stats.nodes.items()):
        yield _header(f"Node: {name}")
        yield from _bars("Pod", "Completed requests", node.pods)


def _header(title: str) -> str:
    return f"\n\n{title}\n{'=' * len(title)}"


def _bars(left: str, right: str, counts: Mapping[str, int]) -> Iterator[str]:
    """Return a table of shares of the total as text, nothing if the total is 0."""
    if total := sum(counts.values()):
        width = max(map(len, (*counts, left)))
        yield f"\n{left:>{width}} | {right}:"
        yield f"{'-' * (width + 1)}+{'-' * (len(right) + 2)}"
        for name, count in sorted(counts.items()):
            bar = "#" * round(COLUMNS * count / total)
            yield f"{name:>{width}} | {bar} {100 * count / total:.1f}% ({count})"


PAGES = {"/stats": stats_lines, "/nodes": nodes_lines, "/pods": pods_lines}
