"""The canary: a fixed small load that frames each round.

It takes at most 0.3 s: a CPU loop, a memory copy, TCP round trips on the loopback interface, and
synced 4 KiB writes. If its figures change, the machine changed and not what is measured.
"""

import hashlib
import os
import socket
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

CANARY_METRICS = (
    ("cpu", "1/s", "higher"),
    ("memory", "B/s", "higher"),
    ("loopback", "s", "lower"),
    ("disk", "s", "lower"),
)


def canary() -> dict[str, float | None]:
    """Return the figures of the canary.

    `cpu` is in hashes of 64 KiB per second, `memory` in copied B/s. `loopback` is the median of TCP
    round trips in s, `disk` that of synced 4 KiB writes in s. A figure is None if the system
    refuses it, as with a full disk.
    """
    figures: dict[str, float | None] = {}
    for name, measure in (
        ("cpu", _cpu),
        ("memory", _memory),
        ("loopback", _loopback),
        ("disk", _disk),
    ):
        try:
            figures[name] = measure()
        except OSError:
            figures[name] = None
    return figures


def _cpu(budget: float = 0.05) -> float:
    block, count, start = bytes(65536), 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < budget:
        hashlib.sha256(block).digest()
        count += 1
    return count / spent


def _memory() -> float:
    # pages that were never written are one page of zeros, which stays in the cache
    source = np.ones(1 << 24, dtype=np.uint8)
    target = np.empty_like(source)
    np.copyto(target, source)
    rates = []
    for _ in range(8):
        start = time.perf_counter()
        np.copyto(target, source)
        rates.append(source.nbytes / (time.perf_counter() - start))
    return float(np.median(rates))


def _loopback(trips: int = 200) -> float:
    times = []
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as near,
    ):
        far, _ = server.accept()
        with far:
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(trips):
                start = time.perf_counter()
                near.send(b"x")
                far.recv(1)
                far.send(b"x")
                near.recv(1)
                times.append(time.perf_counter() - start)
    return float(np.median(times))


def _disk(writes: int = 5) -> float:
    """Return the median seconds of a 4 KiB write with fsync.

    A single fsync cannot be interrupted, so on a slow disk this takes longer than 0.1 s.
    """
    times, block = [], os.urandom(4096)
    with tempfile.TemporaryFile() as file:
        for _ in range(writes):
            start = time.perf_counter()
            file.write(block)
            file.flush()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - start)
            if sum(times) > 0.1:
                break
    return float(np.median(times))


def canary_rows(values: Mapping[str, float | None], steal: float) -> list[dict[str, Any]]:
    """Return the rows of a canary in the columns of the schema, without refused figures."""
    figures = [(name, values[name], unit, better) for name, unit, better in CANARY_METRICS]
    return [
        {
            "metric": name,
            "stat": "value",
            "value": value,
            "unit": unit,
            "better": better,
            "headline": False,
        }
        for name, value, unit, better in [*figures, ("steal", steal, "1", "lower")]
        if value is not None
    ]
