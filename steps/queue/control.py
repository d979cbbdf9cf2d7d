"""The client's control port: change the load, reset and read the statistics.

Paths and answers are those of Intel's tester. Text from the network is escaped in
HTML and quoted in JSON.
"""

import html
from collections import Counter
from collections.abc import Callable

from aiohttp import web

from perfdag.steps.queue.client import ClientStats, Latencies, Load
from perfdag.units import plural

COLUMNS = 60
KINDS = ("plain", "json", "html")
CHANGES = ("/parallel", "/reset")
"""Paths that change the client, which take POST."""


class Control:
    """Answer requests to the control port."""

    def __init__(self, client_stats: ClientStats, load: Load) -> None:
        self.client_stats = client_stats
        self.load = load
        self.completed = self.rejected = 0
        self.paths: dict[str, Callable[[web.BaseRequest, str], web.Response]] = {
            "/fails": lambda _, kind: _value(kind, str(client_stats.failure), "request failures"),
            "/reqs-per-sec": lambda _, kind: _value(
                kind, f"{client_stats.rate:f}", "requests per second"
            ),
            "/parallel": self._parallel,
            "/reset": self._reset,
            "/stats": lambda _, kind: self._page(
                kind, stats_text(self.client_stats, self.completed, self.rejected), forms=True
            ),
            "/nodes": lambda _, kind: self._page(kind, nodes_text(self.client_stats)),
            "/pods": lambda _, kind: self._page(kind, pods_text(self.client_stats)),
        }

    def __call__(self, request: web.BaseRequest) -> web.Response:
        """Answer one request."""
        page = self.paths.get(request.path)
        kind = request.query.get("type", "html")
        if page is None:
            response = web.Response(status=404)
        elif kind not in KINDS:
            response = web.Response(
                status=400, text=f"type {kind!r} is none of {', '.join(KINDS)}\n"
            )
        else:
            response = page(request, kind)
        if response.status == 200:
            self.completed += 1
        else:
            self.rejected += 1
        return response

    def _parallel(self, request: web.BaseRequest, kind: str) -> web.Response:
        text = request.query.get("value", "")
        try:
            wanted = int(text)
        except ValueError:
            return _value(kind, "ERROR", f"value {text!r} is not a whole number", 400)
        return _value(kind, str(self.load.set_parallel(wanted)), "requests in parallel")

    def _reset(self, request: web.BaseRequest, kind: str) -> web.Response:
        self.client_stats.reset()
        return _value(kind, "Reseted", "")

    def _page(self, kind: str, text: str, forms: bool = False) -> web.Response:
        if kind == "json":
            return web.json_response(self.client_stats.as_json())
        if kind == "plain":
            return web.Response(text=text)
        body = (
            "<!doctype html><title>queue "
            f"client</title>{self._forms() if forms else _BACK}<pre>{html.escape(text)}</pre>\n"
        )
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


_BACK = '<p><a href="stats">Back to stats</a></p>'


def _value(kind: str, result: str, info: str, status: int = 200) -> web.Response:
    if kind == "plain":
        return web.Response(status=status, text=f"{result}\n")
    if kind == "json":
        value: object = result
        if result[:1].isdigit():
            value = float(result) if "." in result else int(result)
        return web.json_response({"result": value, "info": info}, status=status)
    text = html.escape(f"{result} {info}".strip())
    body = f'<p>{text}. <a href="stats">Back to stats</a>.</p>\n'
    return web.Response(status=status, text=body, content_type="text/html")


def stats_text(client_stats: ClientStats, completed: int = 0, rejected: int = 0) -> str:
    """Return the overall statistics as text."""
    lines = [
        _header("Overall request / reply statistics"),
        f"\nSending {plural(client_stats.parallel, 'request')} in parallel.",
        f"\n{client_stats.pending} pending, {client_stats.failure} failed and "
        f"{client_stats.success} successful requests in {client_stats.seconds:.1f} seconds.",
    ]
    if client_stats.success:
        lines.append(f"= {client_stats.rate:.2f} successfully completed requests / second.")
        lines.append("\nMax / average / min timings (in seconds, for successful requests):")
        for latencies, what in (
            (client_stats.run, "backend run time"),
            (client_stats.wait, "queue wait time"),
            (client_stats.overhead, "communication overhead"),
        ):
            lines.append(f"- {_times(latencies)} - {what}")
        lines.append("\nLatency of the whole request, seconds (percentiles need enough samples):")
        lines.append(
            "- "
            + ", ".join(
                f"{k} {v:.6g}" for k, v in client_stats.latency.summary().items() if v is not None
            )
        )
    if client_stats.causes:
        lines.append("\nFailures by cause:")
        lines += [f"- {count}: {cause}" for cause, count in client_stats.causes.most_common()]
    lines.append(f"\nHTTP queries: {completed} completed, {rejected} rejected in total.")
    return "\n".join(lines) + "\n"


def nodes_text(client_stats: ClientStats) -> str:
    """Return replies by node, then devices and errors of every node, as text."""
    if not client_stats.nodes:
        return _header("Backend / worker node statistics") + "\nNo statistics for nodes\n"
    lines = [_header("Backend / worker node statistics")]
    lines += _bars(
        "Node",
        "Success replies",
        client_stats.success,
        {n: node.success for n, node in sorted(client_stats.nodes.items())},
    )
    if client_stats.failure:
        lines += _bars(
            "Node",
            "Failure replies",
            client_stats.failure,
            {n: node.failure for n, node in sorted(client_stats.nodes.items())},
        )
        if not any(node.failure for node in client_stats.nodes.values()):
            lines.append(
                "No such replies => fails happened in communication, not running workloads"
            )
    for name, node in sorted(client_stats.nodes.items()):
        lines.append(_header(f"Node: {name}"))
        lines += _bars(
            "Device", "Completed requests", node.success, dict(sorted(node.devices.items()))
        )
        if node.failed_devices:
            lines += _bars(
                "Device", "Failed requests", node.failure, dict(sorted(node.failed_devices.items()))
            )
        if node.errors:
            lines.append("\nNode errors (count / description):")
            lines += [f"- {count}: {error}" for error, count in node.errors.most_common()]
    return "\n".join(lines) + "\n"


def pods_text(client_stats: ClientStats) -> str:
    """Return replies by pod of every node, as text."""
    lines = [_header("Per-node backend / worker pod statistics")]
    for name, node in sorted(client_stats.nodes.items()):
        lines += [
            _header(f"Node: {name}"),
            *_bars("Pod", "Completed requests", node.success, dict(sorted(node.pods.items()))),
        ]
    return "\n".join(lines if client_stats.nodes else [*lines, "No statistics for nodes"]) + "\n"


def _header(title: str) -> str:
    return f"\n\n{title}\n{'=' * len(title)}"


def _bars(left: str, right: str, total: int, counts: dict[str, int] | Counter[str]) -> list[str]:
    if not counts:
        return []
    width = max(map(len, (*counts, left)))
    lines = [f"\n{left:>{width}} | {right}:", f"{'-' * (width + 1)}+{'-' * (len(right) + 2)}"]
    for name, count in counts.items():
        share = count / total if total else 0.0
        lines.append(
            f"{name:>{width}} | {'#' * round(COLUMNS * share)} {100 * share:.1f}% ({count})"
            if total
            else "None"
        )
    return lines


def _times(latencies: Latencies) -> str:
    return (
        f"{latencies.largest:.6f} / {latencies.sum / latencies.count:.6f} / {latencies.least:.6f}"
    )
