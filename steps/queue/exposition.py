"""The frontend's metrics as Prometheus text (exposition format 0.0.4).

Names, types and labels are those of Intel's tester where it has them (`hpa_*`).
Histograms and the counters of refusals, retries and peers are added.
Maxima cover a sliding window. Reading does not change them, so several scrapers read the same
value.
"""

import time
from collections.abc import Callable, Iterable, Mapping

from perfdag.steps.queue.dispatcher import BOUNDS, Histogram, Queue

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def escape(label: str) -> str:
    """Return a label value with the escapes of the text format."""
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


_SIMPLE: tuple[tuple[str, str, str, Callable[[Queue], int]], ...] = (
    ("hpa_queue_all", "gauge", "Items waiting or running.", lambda q: q.waiting + q.running),
    ("hpa_queue_waiting", "gauge", "Items waiting for a backend.", lambda q: q.waiting),
    ("hpa_queue_running", "gauge", "Items that a backend is working on.", lambda q: q.running),
    ("hpa_queue_accepted_total", "counter", "Requests taken into the queue.", lambda q: q.accepted),
    (
        "hpa_queue_success_total",
        "counter",
        "Items done with return code 0, no error and no timeout.",
        lambda q: q.success,
    ),
    (
        "hpa_queue_failure_total",
        "counter",
        "Items that failed, timed out or lost their backend.",
        lambda q: q.failure,
    ),
    (
        "hpa_queue_disconnect_total",
        "counter",
        "Items dropped because their client left.",
        lambda q: q.disconnected,
    ),
    (
        "hpa_queue_undelivered_total",
        "counter",
        "Items whose client left while they ran.",
        lambda q: q.undelivered,
    ),
    (
        "hpa_queue_retry_total",
        "counter",
        "Items put back after losing their backend.",
        lambda q: q.retried,
    ),
    (
        "hpa_queue_refused_total",
        "counter",
        "Requests refused because the queue was full.",
        lambda q: q.refused,
    ),
)
_MAXIMA: tuple[tuple[str, str, Callable[[Queue, float], float]], ...] = (
    (
        "hpa_queue_maxrun_seconds",
        "run time in a sliding window",
        lambda q, now: q.max_run.read(now),
    ),
    (
        "hpa_queue_maxwait_seconds",
        "waiting time in a sliding window, including items that wait now",
        lambda q, now: q.longest_wait(now),
    ),
    (
        "hpa_queue_maxtotal_seconds",
        "total time in a sliding window",
        lambda q, now: q.max_total.read(now),
    ),
)
_HISTOGRAMS = (
    ("hpa_queue_run_seconds", "Run time that the backend reports.", "run"),
    ("hpa_queue_wait_seconds", "Time from acceptance to dispatch.", "wait"),
    ("hpa_queue_total_seconds", "Time from acceptance to answer.", "total"),
    ("hpa_queue_overhead_seconds", "Total time less waiting and run time.", "overhead"),
)


def exposition(
    queues: Iterable[Queue], totals: Mapping[str, tuple[str, int]], interval: float = 0
) -> str:
    """Return all metrics as text.

    `totals`: name to (help, count) of counters without a queue. `interval`: seconds (0: none).
    """
    queues = list(queues)
    now = time.monotonic()
    out: list[str] = []
    for name, (explanation, count) in totals.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        out += [f"# HELP {name} {explanation}", f"# TYPE {name} {kind}", f"{name} {count}"]
    for name, kind, explanation, read in _SIMPLE:
        out += [f"# HELP {name} {explanation}", f"# TYPE {name} {kind}"]
        out += [f'{name}{{name="{escape(q.name)}"}} {read(q)}' for q in queues]
    name = "hpa_queue_device_success_total"
    out += [
        f"# HELP {name} Items done, by the node and device of their backend.",
        f"# TYPE {name} counter",
    ]
    for q in queues:
        for (node, device), count in sorted(q.devices.items()):
            out.append(
                f'{name}{{name="{escape(q.name)}",'
                f'node="{escape(node)}",device="{escape(device)}"}} {count}'
            )
    tag = f',interval="{interval:g}s"' if interval else ""
    name = "hpa_queue_oldest_seconds"
    out += [f"# HELP {name} Age of the oldest waiting item.", f"# TYPE {name} gauge"]
    out += [f'{name}{{name="{escape(q.name)}"}} {q.oldest_wait(now):.9g}' for q in queues]
    for name, what, largest in _MAXIMA:
        out += [f"# HELP {name} Largest {what}.", f"# TYPE {name} gauge"]
        out += [f'{name}{{name="{escape(q.name)}"{tag}}} {largest(q, now):.9g}' for q in queues]
    for name, explanation, attribute in _HISTOGRAMS:
        out += [f"# HELP {name} {explanation}", f"# TYPE {name} histogram"]
        for queue in queues:
            out += _buckets(name, escape(queue.name), getattr(queue, attribute))
    return "\n".join(out) + "\n"


def _buckets(name: str, label: str, histogram: Histogram) -> list[str]:
    out, running = [], 0
    for bound, count in zip((*map(str, BOUNDS), "+Inf"), histogram.counts, strict=True):
        running += count
        out.append(f'{name}_bucket{{name="{label}",le="{bound}"}} {running}')
    out += [
        f'{name}_sum{{name="{label}"}} {histogram.sum:.9g}',
        f'{name}_count{{name="{label}"}} {running}',
    ]
    return out
