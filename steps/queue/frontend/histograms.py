"""The frontend's metrics as Prometheus text (exposition format 0.0.4).

Names, types and labels are those of Intel's tester where it has them (``hpa_*``).
Histograms and the counters of refusals, retries and peers are added.
Maxima cover a sliding window. Reading does not change them, so several scrapers read the same
value.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfdag.steps.queue.frontend.fifo import Queue

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Seconds: 250 us of dispatch up to an hour of transcoding, about three steps a decade.
BOUNDS = (
    0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 3600.0,
)  # fmt: skip


class Histogram:
    """Counts of seconds in fixed buckets, with their sum."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum += seconds


class WindowMax:
    """The largest value of the last ``window`` seconds, in slices of a tenth of it."""

    __slots__ = ("slice", "slices")

    def __init__(self, window: float) -> None:
        self.slice = window / 10
        self.slices: deque[tuple[int, float]] = deque(maxlen=10)

    def add(self, value: float, now: float) -> None:
        key = int(now / self.slice)
        slices = self.slices
        if slices and slices[-1][0] == key:
            if value > slices[-1][1]:
                slices[-1] = (key, value)
        else:
            slices.append((key, value))

    def read(self, now: float) -> float:
        """Return the maximum at ``now`` (monotonic seconds), 0 if there is no value."""
        oldest = int(now / self.slice) - 9
        return max((value for key, value in self.slices if key >= oldest), default=0.0)


def escape(label: str) -> str:
    """A label value as the text format wants it."""
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

    ``totals``: name to (help, count) of counters without a queue. ``interval``: seconds (0: none).
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
