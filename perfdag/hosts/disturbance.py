"""What disturbs a measurement: the load of other programs, and a machine that changed."""

import hashlib
import os
import re
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfdag.hosts import facts
from perfdag.hosts.base import Host
from perfdag.hosts.local import LocalHost
from perfdag.outcome import SampleError

STEAL_LIMIT = 0.02  # of the CPU time of all cores
THROTTLED_LIMIT = 0.01  # of the sample's wall time; less is noise
LOAD_LIMIT = 1.5  # runnable tasks a core when a sample starts
READINGS, READING_INTERVAL = 5, 0.005
"""Readings of the runnable tasks, and seconds between them. Most of them miss a short task."""


@dataclass(frozen=True)
class Moment:
    """Counters at one moment.

    CPU times are in jiffies, throttling of the cgroups in microseconds, `at` in seconds.
    """

    stolen: int
    total: int
    throttled_us: int
    oom_kills: int = 0
    at: float = 0.0


def moment() -> Moment:
    """Return the counters now. A counter that this system lacks is 0."""
    stolen = total = 0
    try:
        fields = [int(word) for word in Path("/proc/stat").read_text().split()[1:9]]
        stolen, total = fields[7], sum(fields)
    except (OSError, ValueError, IndexError):
        pass
    return Moment(stolen, total, facts.throttled_us(), facts.oom_kills(), time.monotonic())


def runnable() -> int:
    """Return the tasks that run or wait for a CPU, without this one; 0 if unknown.

    It is the median of a few readings within 20 ms. The load average would contain the previous
    sample for a minute.
    """
    readings = []
    for reading in range(READINGS):
        time.sleep(READING_INTERVAL if reading else 0)
        try:
            running = re.search(r"^procs_running (\d+)", Path("/proc/stat").read_text(), re.M)
        except OSError:
            running = None
        readings.append(max(int(running[1]) - 1, 0) if running else 0)
    return int(statistics.median(readings))


def steal(before: Moment, after: Moment) -> float:
    """Return the fraction of CPU time that the hypervisor took between two moments."""
    return (after.stolen - before.stolen) / max(after.total - before.total, 1)


def disturbed(before: Moment, after: Moment, load: int, cores: int) -> str | None:
    """Return why a sample between two moments may be contaminated, or None.

    `load` is the number of runnable tasks before it.
    """
    reasons = []
    stolen = steal(before, after)
    if stolen > STEAL_LIMIT:
        reasons.append(f"steal {stolen:.1%}")
    if load > LOAD_LIMIT * cores:
        reasons.append(f"load {load} on {cores} cores before it")
    if seconds := _throttled_seconds(before, after):
        reasons.append(f"throttled for {1e3 * seconds:.3g} ms by the CPU quota of its cgroup")
    return ", ".join(reasons) or None


def throttled(before: Moment, after: Moment) -> str | None:
    """Return why the sample is invalid because of the CPU quota of its cgroup, or None."""
    seconds = _throttled_seconds(before, after)
    return (
        f"the CPU quota of its cgroup throttled it for {seconds:.2f} s"
        if seconds > THROTTLED_LIMIT * (after.at - before.at)
        else None
    )


def _throttled_seconds(before: Moment, after: Moment) -> float:
    """Return the seconds between two moments in which a CPU quota throttled the cgroups."""
    return (after.throttled_us - before.throttled_us) / 1e6


def starved(before: Moment, after: Moment) -> str | None:
    """Return that the kernel killed a process for the memory limit of its cgroup, or None."""
    kills = after.oom_kills - before.oom_kills
    return (
        "OOMKilled: the kernel killed a process of it that passed the memory limit"
        if kills > 0
        else None
    )


class Guard:
    """Detects disturbances of a sample, on this machine and on the hosts of `include`."""

    def __init__(self) -> None:
        self._load = runnable()
        self._before = moment()
        self._others: list[tuple[Host, Moment]] = []

    def include(self, hosts: Sequence[Host]) -> None:
        """Watch the cgroups of these hosts too. Hosts that do not answer are left out."""
        others = [host for host in hosts if not isinstance(host, LocalHost)]
        before = zip(others, _moments(others), strict=True)
        self._others = [(host, counters) for host, counters in before if counters is not None]

    def throttled(self) -> str | None:
        """Return why the sample is invalid because of a CPU quota on one of its hosts, or None."""
        return throttled(self._before, moment()) or self._elsewhere(throttled)

    def starved(self) -> str | None:
        """Return that the kernel killed a process for a memory limit on a host, or None."""
        return starved(self._before, moment()) or self._elsewhere(starved)

    def disturbed(self, cores: int) -> str | None:
        """Return why the sample may be contaminated, or None."""
        return disturbed(self._before, moment(), self._load, cores)

    def _elsewhere(self, judge: Callable[[Moment, Moment], str | None]) -> str | None:
        now = _moments([host for host, _ in self._others])
        for (host, before), after in zip(self._others, now, strict=True):
            if after is not None and (reason := judge(before, after)):
                return f"on {host.name}: {reason}"
        return None


def _moments(hosts: Sequence[Host]) -> list[Moment | None]:
    """Return the counters of the cgroups of other hosts, or None for a host without answer."""
    if not hosts:
        return []
    with ThreadPoolExecutor(min(len(hosts), 16)) as pool:
        return list(pool.map(_moment_of, hosts))


def _moment_of(host: Host) -> Moment | None:
    try:
        # Half of the files belong to the other version of cgroups, and do not exist.
        counters = host.run(["cat", *facts.COUNTERS], timeout=10).stdout
    except SampleError:
        return None
    return Moment(0, 0, facts.throttled(counters), facts.kills(counters), time.monotonic())


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
    source, target = bytearray(b"\x01") * (1 << 24), bytearray(1 << 24)
    target[:] = source
    rates = []
    for _ in range(8):
        start = time.perf_counter()
        target[:] = source
        rates.append(len(source) / (time.perf_counter() - start))
    return statistics.median(rates)


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
    return statistics.median(times)


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
    return statistics.median(times)


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
