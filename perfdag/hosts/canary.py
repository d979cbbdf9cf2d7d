"""The canary: a fixed small load that frames each round.

It takes at most 0.3 s: a CPU loop, a memory copy, a loopback TCP round trip and a synced 4 KiB write.
If its figures move, the machine changed and not what is measured.
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
    """Cpu (hashes of 64 KiB a second), memory (B/s copied), loopback (s a TCP round trip), disk (s a synced 4 KiB write); medians.

    None where the system refuses: a full disk, no loopback interface.
    """
    found: dict[str, float | None] = {}
    for name, measure in (
        ("cpu", _cpu),
        ("memory", _memory),
        ("loopback", _loopback),
        ("disk", _disk),
    ):
        try:
            found[name] = measure()
        except OSError:
            found[name] = None
    return found


def _cpu(budget: float = 0.05) -> float:
    block, count, start = bytes(65536), 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < budget:
        hashlib.sha256(block).digest()
        count += 1
    return count / spent


def _memory() -> float:
    source = np.zeros(1 << 22, dtype=np.uint8)
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
            for each in (near, far):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(trips):
                start = time.perf_counter()
                near.send(b"x")
                far.recv(1)
                far.send(b"x")
                near.recv(1)
                times.append(time.perf_counter() - start)
    return float(np.median(times))


def _disk(writes: int = 5) -> float:
    """Median seconds of a 4 KiB write with fsync. A single fsync cannot be cut short: on a disk that takes 0.3 s for one so does this."""
    times, block = [], os.urandom(4096)
    with tempfile.TemporaryFile() as file:
        for _ in range(writes):
            start = time.perf_counter()
            file.write(block)
            file.flush()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - start)
            if sum(times) > 0.1:  # a slow disk must not make the canary slow
                break
    return float(np.median(times))


def canary_rows(values: Mapping[str, float | None], steal_part: float) -> list[dict[str, Any]]:
    """Rows of a canary for a part, in the schema's words; what was refused has none."""
    rows: list[dict[str, Any]] = [
        {
            "metric": name,
            "stat": "value",
            "value": values[name],
            "unit": unit,
            "better": better,
            "headline": False,
        }
        for name, unit, better in CANARY_METRICS
        if values[name] is not None
    ]
    rows.append(
        {
            "metric": "steal",
            "stat": "value",
            "value": steal_part,
            "unit": "1",
            "better": "lower",
            "headline": False,
        }
    )
    return rows
