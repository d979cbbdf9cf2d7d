"""HTTP of the programs: metrics, and the client's control port with its pages.

Paths and answers of the control port are those of Intel's tester. Text from the network is escaped
in HTML and quoted in JSON.
"""

import asyncio
import base64
import hmac
import html
from collections.abc import Callable, Mapping

from aiohttp import web

from perfdag.steps.queue.client import ClientStats, Latencies, Load
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
BACK = '<p><a href="stats">Back to stats</a></p>'
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
    scheme, _, secret = header.partition(" ")
    if not header:
        secret = request.headers.get("X-Perfdag-Token", "")
    elif scheme.lower() == "basic":
        try:
            return base64.b64decode(secret, validate=True).partition(b":")[2]
        except ValueError:
            return b""
    return secret.encode(errors="surrogateescape")


class Control:
    """Answer requests to the control port."""

    def __init__(self, load: Load) -> None:
        self.load, self.stats = load, load.stats
        self.completed = self.rejected = 0

    def __call__(self, request: web.BaseRequest) -> web.Response:
        """Answer one request."""
        kind = request.query.get("type", "html")
        if kind not in KINDS:
            text = f"type {kind!r} is none of {', '.join(KINDS)}\n"
            response = web.Response(status=400, text=text)
        else:
            response = self._answer(request.path, kind, request.query.get("value", ""))
        if response.status == 200:
            self.completed += 1
        else:
            self.rejected += 1
        return response

    def _answer(self, path: str, kind: str, value: str) -> web.Response:
        stats = self.stats
        match path:
            case "/stats":
                return self._page(kind, stats_text(stats, self.completed, self.rejected), True)
            case "/nodes":
                return self._page(kind, nodes_text(stats))
            case "/pods":
                return self._page(kind, pods_text(stats))
            case "/fails":
                return _value(kind, stats.failure, "request failures")
            case "/reqs-per-sec":
                return _value(kind, stats.rate, "requests per second")
            case "/reset":
                stats.reset()
                return _value(kind, "Reseted", "")
            case "/parallel":
                try:
                    wanted = int(value)
                except ValueError:
                    return _value(kind, "ERROR", f"value {value!r} is not a whole number", 400)
                return _value(kind, self.load.set_parallel(wanted), "requests in parallel")
        return web.Response(status=404)

    def _page(self, kind: str, text: str, forms: bool = False) -> web.Response:
        if kind == "json":
            return web.json_response(self.stats.as_json())
        if kind == "plain":
            return web.Response(text=text)
        head = self._forms() if forms else BACK
        body = f"<!doctype html><title>queue client</title>{head}<pre>{html.escape(text)}</pre>\n"
        return web.Response(text=body, content_type="text/html")

    def _forms(self) -> str:
        """Return buttons that change the client, and links to the pages."""
        counts = [0, *(1 << power for power in range(self.load.most.bit_length()))]
        buttons = "".join(
            f'<button formaction="parallel?value={count}">{count}</button> ' for count in counts
        )
        return (
            f'<h1>Queue client</h1><form method="post"><p>Requests in parallel: {buttons}</p>'
            '<p><button formaction="reset">Reset statistics</button></p></form>'
            '<p><a href="pods">Pods</a> <a href="nodes">Nodes and devices</a> <a '
            'href="stats">Refresh</a></p>'
        )


def _value(kind: str, result: float | str, info: str, status: int = 200) -> web.Response:
    if kind == "json":
        return web.json_response({"result": result, "info": info}, status=status)
    text = f"{result:f}" if isinstance(result, float) else str(result)
    if kind == "plain":
        return web.Response(status=status, text=f"{text}\n")
    body = f"<p>{html.escape(f'{text} {info}'.strip())}.</p>{BACK}\n"
    return web.Response(status=status, text=body, content_type="text/html")


def stats_text(stats: ClientStats, completed: int = 0, rejected: int = 0) -> str:
    """Return the overall statistics as text."""
    lines = [
        _header("Overall request / reply statistics"),
        f"\nSending {plural(stats.parallel, 'request')} in parallel.",
        f"\n{stats.pending} pending, {stats.failure} failed and {stats.success} successful "
        f"requests in {stats.seconds:.1f} seconds.",
    ]
    if stats.success:
        lines.append(f"= {stats.rate:.2f} successfully completed requests / second.")
        lines.append("\nMax / average / min timings (in seconds, for successful requests):")
        lines += [
            f"- {_times(stats.run)} - backend run time",
            f"- {_times(stats.wait)} - queue wait time",
            f"- {_times(stats.overhead)} - communication overhead",
        ]
        lines.append("\nLatency of the whole request, seconds (percentiles need enough samples):")
        known = [f"{k} {v:.6g}" for k, v in stats.latency.summary().items() if v is not None]
        lines.append(f"- {', '.join(known)}")
    if stats.causes:
        lines.append("\nFailures by cause:")
        lines += [f"- {count}: {cause}" for cause, count in stats.causes.most_common()]
    lines.append(f"\nHTTP queries: {completed} completed, {rejected} rejected in total.")
    return "\n".join(lines) + "\n"


def nodes_text(stats: ClientStats) -> str:
    """Return replies by node, then devices and errors of every node, as text."""
    lines = [_header("Backend / worker node statistics")]
    nodes = sorted(stats.nodes.items())
    done, failed = (
        {n: getattr(node, what) for n, node in nodes} for what in ("success", "failure")
    )
    lines += _bars("Node", "Success replies", done, stats.success)
    lines += _bars("Node", "Failure replies", failed, stats.failure)
    if stats.failure and not any(failed.values()):
        lines.append("No such replies => fails happened in communication, not running workloads")
    for name, node in nodes:
        lines.append(_header(f"Node: {name}"))
        lines += _bars("Device", "Completed requests", node.devices, node.success)
        lines += _bars("Device", "Failed requests", node.failed_devices, node.failure)
        if node.errors:
            lines.append("\nNode errors (count / description):")
            lines += [f"- {count}: {error}" for error, count in node.errors.most_common()]
    return "\n".join(lines if nodes else [*lines, "\nNo statistics for nodes"]) + "\n"


def pods_text(stats: ClientStats) -> str:
    """Return replies by pod of every node, as text."""
    lines = [_header("Per-node backend / worker pod statistics")]
    for name, node in sorted(stats.nodes.items()):
        lines.append(_header(f"Node: {name}"))
        lines += _bars("Pod", "Completed requests", node.pods, node.success)
    return "\n".join(lines if stats.nodes else [*lines, "No statistics for nodes"]) + "\n"


def _header(title: str) -> str:
    return f"\n\n{title}\n{'=' * len(title)}"


def _bars(left: str, right: str, counts: Mapping[str, int], total: int) -> list[str]:
    """Return a table of shares of a total as text, nothing if the total is 0."""
    if not total or not counts:
        return []
    width = max(map(len, (*counts, left)))
    lines = [f"\n{left:>{width}} | {right}:", f"{'-' * (width + 1)}+{'-' * (len(right) + 2)}"]
    for name, count in sorted(counts.items()):
        share = count / total
        bar = "#" * round(COLUMNS * share)
        lines.append(f"{name:>{width}} | {bar} {100 * share:.1f}% ({count})")
    return lines


def _times(times: Latencies) -> str:
    return f"{times.largest:.6f} / {times.sum / times.count:.6f} / {times.least:.6f}"
