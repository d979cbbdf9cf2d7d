"""What disturbs a sample: stolen CPU time, throttling, load, and kills for memory."""

import re
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from perfdag.hosts import cgroups
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
    return Moment(stolen, total, cgroups.throttled_us(), cgroups.oom_kills(), time.monotonic())


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
        counters = host.run(["cat", *cgroups.COUNTERS], timeout=10).stdout
    except SampleError:
        return None
    return Moment(0, 0, cgroups.throttled(counters), cgroups.kills(counters), time.monotonic())
