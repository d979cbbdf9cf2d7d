"""What disturbs a measurement: the load of other programs, and a machine that changed.

guard = Guard(counters)  # before a sample
guard.include(gang.hosts)
...
guard.end(cores).noise  # what disturbed it, or None
"""

import contextlib
import hashlib
import os
import re
import socket
import statistics
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from perfdag.hosts import facts
from perfdag.hosts.base import Host, SampleError
from perfdag.hosts.local import LocalHost

STAT = Path("/proc/stat")
STEAL_LIMIT = 0.02  # of the CPU time of all cores
THROTTLED_LIMIT = 0.01  # of the sample's wall time; less is noise
LOAD_LIMIT = 1.5  # runnable tasks a core when a sample starts
READINGS, READING_INTERVAL = 5, 0.002
"""Readings of the runnable tasks, and seconds between them. Most of them miss a short task.

Readings over 20 ms instead of 8 ms give the same numbers on a loaded machine, and every sample
waits for them.
"""


@dataclass(frozen=True)
class Moment:
    """Counters at one moment.

    CPU times are in jiffies, throttling of the cgroups in microseconds, `at` in seconds. `unseen`
    names what the cgroup of a peer does not show.
    """

    stolen: int
    total: int
    throttled_us: int
    oom_kills: int = 0
    at: float = 0.0
    unseen: tuple[str, ...] = ()

    def steal_since(self, before: "Moment") -> float:
        """Return the fraction of CPU time that the hypervisor took since an earlier moment."""
        return (self.stolen - before.stolen) / max(self.total - before.total, 1)


def moment() -> Moment:
    """Return the counters now. A counter that this system lacks is 0."""
    jiffies = [int(text) for text in (facts.read_text(STAT) or "").split()[1:9]]
    # The last one is stolen time (proc(5)).
    return Moment(sum(jiffies[7:]), sum(jiffies), *facts.pressure(), time.monotonic())


def runnable() -> int:
    """Return the tasks that run or wait for a CPU, without this one; 0 if unknown.

    It is the median of a few readings. The load average would contain the previous sample for a
    minute.
    """
    readings = []
    for reading in range(READINGS):
        time.sleep(READING_INTERVAL if reading else 0)
        running = re.search(r"^procs_running (\d+)", facts.read_text(STAT) or "", re.M)
        readings.append(max(int(running[1]) - 1, 0) if running else 0)
    return int(statistics.median(readings))


class Effects(NamedTuple):
    """What disturbed a sample, in words: each is None where nothing did."""

    throttled: str | None = None
    """Why the sample is invalid: the CPU quota of its cgroup."""
    starved: str | None = None
    """That the kernel killed a process of it for the memory limit of its cgroup."""
    noise: str | None = None
    """Why the sample may be contaminated; its values stay."""


def effects(before: Moment, after: Moment, load: int = 0, cores: int = 1) -> Effects:
    """Return what disturbed a sample between two moments, with `load` runnable tasks before it."""
    noise = []
    if (stolen := after.steal_since(before)) > STEAL_LIMIT:
        noise.append(f"steal {stolen:.1%}")
    if load > LOAD_LIMIT * cores:
        noise.append(f"load {load} on {cores} cores before it")
    if seconds := (after.throttled_us - before.throttled_us) / 1e6:
        noise.append(f"throttled for {1e3 * seconds:.3g} ms by the CPU quota of its cgroup")
    return Effects(
        f"the CPU quota of its cgroup throttled it for {seconds:.2f} s"
        if seconds > THROTTLED_LIMIT * (after.at - before.at)
        else None,
        "OOMKilled: the kernel killed a process of it that passed the memory limit"
        if after.oom_kills > before.oom_kills
        else None,
        ", ".join(noise) or None,
    )


class Guard:
    """Detects disturbances of a sample, on this machine and on the hosts of `include`.

    `counters` has those of other hosts at the end of their sample before. Nothing runs on them
    between samples, and to ask again would cost each sample a command over ssh.
    """

    def __init__(self, counters: dict[Host, Moment]) -> None:
        self._load = runnable()
        self._before, self._counters = moment(), counters
        self._peers: dict[Host, Moment] = {}

    def include(self, hosts: Sequence[Host]) -> None:
        """Watch the cgroups of these hosts too. Hosts that do not answer are left out."""
        peers = [host for host in hosts if not isinstance(host, LocalHost)]
        self._read([host for host in peers if host not in self._counters])
        counters = {host: self._counters[host] for host in peers if host in self._counters}
        start = time.monotonic()
        self._peers = {host: replace(before, at=start) for host, before in counters.items()}

    def _read(self, hosts: Iterable[Host]) -> None:
        def read(host: Host) -> None:
            self._counters.pop(host, None)
            with contextlib.suppress(SampleError):
                # Half of the files belong to the other version of cgroups, and do not exist.
                text = host.run(["cat", *facts.COUNTERS], timeout=10).stdout
                throttled, kills = facts.pressure_in(text)
                figures = {facts.THROTTLING: throttled, facts.KILLS: kills}
                unseen = tuple(name for name, figure in figures.items() if figure is None)
                self._counters[host] = Moment(
                    0, 0, throttled or 0, kills or 0, time.monotonic(), unseen
                )

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(read, hosts))

    def unseen(self) -> list[str]:
        """Return what the cgroups of this machine and of its peers do not show."""
        return facts.unseen() + [
            f"{counter} on {host.name}"
            for host, before in self._peers.items()
            for counter in before.unseen
        ]

    def end(self, cores: int) -> Effects:
        """Return what disturbed the sample. Noise is that of this machine."""
        disturbed = effects(self._before, moment(), self._load, cores)
        self._read(self._peers)
        for host, before in self._peers.items():
            on_peer = effects(before, self._counters.get(host, before))
            if on_peer.throttled and not disturbed.throttled:
                disturbed = disturbed._replace(throttled=f"on {host.name}: {on_peer.throttled}")
            if on_peer.starved and not disturbed.starved:
                disturbed = disturbed._replace(starved=f"on {host.name}: {on_peer.starved}")
        return disturbed


CANARY_METRICS: Mapping[str, tuple[str, Literal["higher", "lower"]]] = {
    "cpu": ("1/s", "higher"),
    "memory": ("B/s", "higher"),
    "loopback": ("s", "lower"),
    "disk": ("s", "lower"),
    "steal": ("1", "lower"),
}
"""Unit and better direction of the figures of a canary."""


def canary() -> dict[str, float | None]:
    """Return the figures of the canary, a short fixed load.

    `cpu` is in hashes of 64 KiB per second, `memory` in copied B/s. `loopback` is the median of TCP
    round trips in s, `disk` that of synced 4 KiB writes in s. A figure is None if the system
    refuses it, as with a full disk.
    """
    loads = {"cpu": _cpu, "memory": _memory, "loopback": _loopback, "disk": _disk}
    figures: dict[str, float | None] = dict.fromkeys(loads)
    for name, measure in loads.items():
        with contextlib.suppress(OSError):
            figures[name] = measure()
    return figures


def _cpu(budget: float = 0.05) -> float:
    block, count, start = bytes(65536), 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < budget:
        hashlib.sha256(block).digest()
        count += 1
    return count / spent


def _memory() -> float:
    # pages that were never written are one page of zeros, which stays in the cache
    source, target = bytearray(b"\x01") * (1 << 23), bytearray(1 << 23)
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
