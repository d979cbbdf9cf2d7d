"""The client's HTTP port: change the load, reset and read the statistics, as plain text, JSON or HTML.

Paths and answers are those of Intel's tester; text from the network is escaped in HTML and quoted in JSON.
"""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Callable

from perfdag.steps.queue.load import ClosedLoop
from perfdag.steps.queue.tally import Latencies, Tally
from perfdag.steps.queue.web import Request, Response

COLUMNS = 60
KINDS = ("plain", "json", "html")


class Control:
    """Handles requests to the control port."""

    def __init__(self, tally: Tally, loop: ClosedLoop | None) -> None:
        self.tally = tally
        self.loop = loop
        self.completed = self.rejected = 0
        self.paths: dict[str, Callable[[Request, str], Response]] = {
            "/fails": lambda _, kind: _value(kind, str(tally.failure), "request failures"),
            "/reqs-per-sec": lambda _, kind: _value(kind, f"{tally.rate:f}", "requests per second"),
            "/parallel": self._parallel,
            "/reset": self._reset,
            "/stats": lambda _, kind: self._page(
                kind, stats(self.tally, self.completed, self.rejected), forms=True
            ),
            "/nodes": lambda _, kind: self._page(kind, nodes(self.tally)),
            "/pods": lambda _, kind: self._page(kind, pods(self.tally)),
        }

    def __call__(self, request: Request) -> Response:
        """Answer one request."""
        page = self.paths.get(request.path)
        kind = request.query.get("type", "html")
        if page is None:
            response = Response(404)
        elif kind not in KINDS:
            response = Response(400, f"type {kind!r} is none of {', '.join(KINDS)}\n")
        else:
            response = page(request, kind)
        if response.status == 200:
            self.completed += 1
        else:
            self.rejected += 1
        return response

    def _parallel(self, request: Request, kind: str) -> Response:
        text = request.query.get("value", "")
        if self.loop is None:
            return _value(
                kind, "ERROR", "an open loop has a rate, not a number of requests in parallel", 409
            )
        try:
            wanted = int(text)
        except ValueError:
            return _value(kind, "ERROR", f"value {text!r} is not a whole number", 400)
        return _value(kind, str(self.loop.set_parallel(wanted)), "requests in parallel")

    def _reset(self, request: Request, kind: str) -> Response:
        self.tally.reset()
        return _value(kind, "Reseted", "")

    def _page(self, kind: str, text: str, forms: bool = False) -> Response:
        if kind == "json":
            return Response(200, json.dumps(self.tally.as_json()), "application/json")
        if kind == "plain":
            return Response(200, text)
        body = f"<!doctype html><title>queue client</title>{_FORMS if forms else _BACK}<pre>{html.escape(text)}</pre>\n"
        return Response(200, body, "text/html; charset=utf-8")


_BACK = '<p><a href="stats">Back to stats</a></p>'
_FORMS = (
    '<h1>Queue client</h1><form action="parallel"><label>Requests in parallel: <input name="value"></label>'
    '<button>Change</button></form><form action="reset"><button>Reset statistics</button></form>'
    '<p><a href="pods">Pods</a> <a href="nodes">Nodes and devices</a> <a href="stats">Refresh</a></p>'
)


def _value(kind: str, result: str, info: str, status: int = 200) -> Response:
    if kind == "plain":
        return Response(status, f"{result}\n")
    if kind == "json":
        value: object = result
        if result[:1].isdigit():
            value = float(result) if "." in result else int(result)
        return Response(status, json.dumps({"result": value, "info": info}), "application/json")
    text = html.escape(f"{result} {info}".strip())
    return Response(
        status, f'<p>{text}. <a href="stats">Back to stats</a>.</p>\n', "text/html; charset=utf-8"
    )


def stats(tally: Tally, completed: int = 0, rejected: int = 0) -> str:
    """The overall statistics as text."""
    lines = [
        _header("Overall request / reply statistics"),
        f"\nSending {tally.parallel} requests in parallel.",
        f"\n{tally.pending} pending, {tally.failure} failed and {tally.success} successful requests in {tally.seconds:.1f} seconds.",
    ]
    if tally.success:
        lines.append(f"= {tally.rate:.2f} successfully completed requests / second.")
        lines.append("\nMax / average / min timings (in seconds, for successful requests):")
        for latencies, what in (
            (tally.run, "backend run time"),
            (tally.wait, "queue wait time"),
            (tally.overhead, "communication overhead"),
        ):
            lines.append(f"- {_times(latencies)} - {what}")
        lines.append("\nLatency of the whole request, seconds (percentiles need enough samples):")
        lines.append(
            "- "
            + ", ".join(f"{k} {v:.6g}" for k, v in tally.latency.summary().items() if v is not None)
        )
    if tally.causes:
        lines.append("\nFailures by cause:")
        lines += [f"- {count}: {cause}" for cause, count in tally.causes.most_common()]
    lines.append(f"\nHTTP queries: {completed} completed, {rejected} rejected in total.")
    return "\n".join(lines) + "\n"


def nodes(tally: Tally) -> str:
    """Replies a node, then devices and errors of each node, as text."""
    if not tally.nodes:
        return _header("Backend / worker node statistics") + "\nNo statistics for nodes\n"
    lines = [_header("Backend / worker node statistics")]
    lines += _bars(
        "Node",
        "Success replies",
        tally.success,
        {n: node.success for n, node in sorted(tally.nodes.items())},
    )
    if tally.failure:
        lines += _bars(
            "Node",
            "Failure replies",
            tally.failure,
            {n: node.failure for n, node in sorted(tally.nodes.items())},
        )
        if not any(node.failure for node in tally.nodes.values()):
            lines.append(
                "No such replies => fails happened in communication, not running workloads"
            )
    for name, node in sorted(tally.nodes.items()):
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


def pods(tally: Tally) -> str:
    """Replies a pod of each node, as text."""
    lines = [_header("Per-node backend / worker pod statistics")]
    for name, node in sorted(tally.nodes.items()):
        lines += [
            _header(f"Node: {name}"),
            *_bars("Pod", "Completed requests", node.success, dict(sorted(node.pods.items()))),
        ]
    return "\n".join(lines if tally.nodes else [*lines, "No statistics for nodes"]) + "\n"


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
