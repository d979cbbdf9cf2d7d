"""Noise guard: what disturbed a sample (stolen time, throttling, load) and a canary that frames each round.

The canary is a fixed small load, at most 0.3 s together: a CPU loop, a memory copy, a loopback TCP round trip and a synced 4 KiB write.
If it moves, the machine changed, not what is measured.
"""

import hashlib
import os
import socket
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

STEAL_LIMIT = 0.02  # of the CPU time of all cores
LOAD_LIMIT = 1.5  # runnable tasks a core when a sample starts
CANARY_METRICS = (
    ("cpu", "1/s", "higher"),
    ("memory", "B/s", "higher"),
    ("loopback", "s", "lower"),
    ("disk", "s", "lower"),
)


@dataclass(frozen=True)
class Moment:
    """Counters at one moment: jiffies (stolen, all), throttled time of our cgroup in microseconds, 1-minute load, kills for memory."""

    stolen: int
    total: int
    throttled_us: int
    load: float
    oom_kills: int = 0


def moment() -> Moment:
    """Counters now; what this system does not have is 0."""
    stolen = total = 0
    try:
        fields = [int(each) for each in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        stolen, total = fields[7], sum(fields)
    except (OSError, ValueError, IndexError):
        pass
    return Moment(stolen, total, _throttled(), os.getloadavg()[0], _oom_kills())


def _counters(*files: str) -> dict[str, str]:
    """The counters of our cgroup, from the first of these files that is there: version 2 of cgroups first."""
    for file in files:
        try:
            return dict(line.split() for line in (Path("/sys/fs/cgroup") / file).read_text().splitlines())
        except (OSError, ValueError):
            continue
    return {}


def _oom_kills() -> int:
    return int(_counters("memory.events", "memory/memory.oom_control").get("oom_kill", 0))


def _throttled() -> int:
    words = _counters("cpu.stat", "cpu/cpu.stat")
    if "throttled_usec" in words:
        return int(words["throttled_usec"])
    return int(words.get("throttled_time", 0)) // 1000


def steal(before: Moment, after: Moment) -> float:
    """Part of all CPU time that the hypervisor gave to others between two moments (0..1)."""
    return (after.stolen - before.stolen) / max(after.total - before.total, 1)


def disturbed(before: Moment, after: Moment, cores: int) -> str | None:
    """Why a sample between two moments may be contaminated, or None."""
    said = []
    stolen = steal(before, after)
    if stolen > STEAL_LIMIT:
        said.append(f"steal {stolen:.1%}")
    if before.load > LOAD_LIMIT * cores:
        said.append(f"load {before.load:.1f} on {cores} cores before it")
    return ", ".join(said) or None


def throttled(before: Moment, after: Moment) -> str | None:
    """Why the sample is invalid because its cgroup's CPU quota held it back, or None."""
    spent = after.throttled_us - before.throttled_us
    return f"the CPU quota of its cgroup throttled it for {spent / 1e6:.2f} s" if spent > 0 else None


def starved(before: Moment, after: Moment) -> str | None:
    """That the kernel killed a process of our cgroup for its memory limit between two moments, or None."""
    kills = after.oom_kills - before.oom_kills
    return "OOMKilled: a process of it passed the memory limit and the kernel killed it" if kills > 0 else None


def canary() -> dict[str, float]:
    """cpu (hashes of 64 KiB a second), memory (B/s copied), loopback (s a TCP round trip), disk (s a synced 4 KiB write); medians."""
    return {"cpu": _cpu(), "memory": _memory(), "loopback": _loopback(), "disk": _disk()}


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
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
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


def canary_rows(values: dict[str, float], steal_part: float) -> list[dict[str, Any]]:
    """Rows of a canary for a part, in the schema's words."""
    rows: list[dict[str, Any]] = [
        {"metric": name, "stat": "value", "value": values[name], "unit": unit, "better": better, "headline": False}
        for name, unit, better in CANARY_METRICS
    ]
    rows.append({"metric": "steal", "stat": "value", "value": steal_part, "unit": "1", "better": "lower", "headline": False})
    return rows
