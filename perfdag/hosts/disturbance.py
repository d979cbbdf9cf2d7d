"""Noise guard: what disturbed a sample (stolen time, throttling, load) and a canary that frames each round.

The canary is a fixed small load, at most 0.3 s together: a CPU loop, a memory copy, a loopback TCP round trip and a synced 4 KiB write.
If it moves, the machine changed, not what is measured.
"""

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

THROTTLED_LIMIT = 0.01  # of the sample's wall time; below it is noise, from it on the quota was measured and not the sample

LOAD_LIMIT = 1.5  # runnable tasks a core when a sample starts

LOOKS, BETWEEN_LOOKS = (
    5,
    0.005,
)  # seconds; a task that only wakes for a moment is not seen in most of them


@dataclass(frozen=True)
class Moment:
    """Counters at one moment: jiffies (stolen, all), microseconds throttled in our cgroups, kills for memory; `at` in seconds."""

    stolen: int
    total: int
    throttled_us: int
    oom_kills: int = 0
    at: float = 0.0


def moment() -> Moment:
    """Counters now; what this system does not have is 0."""
    stolen = total = 0
    try:
        fields = [
            int(each) for each in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        ]
        stolen, total = fields[7], sum(fields)
    except (OSError, ValueError, IndexError):
        pass
    return Moment(stolen, total, cgroups.throttled_us(), cgroups.oom_kills(), time.monotonic())


def runnable() -> int:
    """Tasks of the machine that run or wait for a CPU, this one left out: the median of a few looks within 20 ms; 0 where nothing says.

    Not the load average: for a minute it holds what the sample before did itself.
    """
    looks = []
    for look in range(LOOKS):
        time.sleep(BETWEEN_LOOKS if look else 0)
        try:
            found = re.search(r"^procs_running (\d+)", Path("/proc/stat").read_text(), re.M)
        except OSError:
            found = None
        looks.append(max(int(found[1]) - 1, 0) if found else 0)
    return int(statistics.median(looks))


def steal(before: Moment, after: Moment) -> float:
    """Part of all CPU time that the hypervisor gave to others between two moments (0..1)."""
    return (after.stolen - before.stolen) / max(after.total - before.total, 1)


def disturbed(before: Moment, after: Moment, load: int, cores: int) -> str | None:
    """Why a sample between two moments, with `load` tasks runnable when it began, may be contaminated, or None."""
    said = []
    stolen = steal(before, after)
    if stolen > STEAL_LIMIT:
        said.append(f"steal {stolen:.1%}")
    if load > LOAD_LIMIT * cores:
        said.append(f"load {load} on {cores} cores before it")
    if held := _held(before, after):
        said.append(f"throttled for {1e3 * held:.3g} ms by the CPU quota of its cgroup")
    return ", ".join(said) or None


def throttled(before: Moment, after: Moment) -> str | None:
    """Why the sample is invalid because its cgroup's CPU quota held it back, or None."""
    held = _held(before, after)
    return (
        f"the CPU quota of its cgroup throttled it for {held:.2f} s"
        if held > THROTTLED_LIMIT * (after.at - before.at)
        else None
    )


def _held(before: Moment, after: Moment) -> float:
    """Seconds between two moments in which a CPU quota held a processor of our cgroups back."""
    return (after.throttled_us - before.throttled_us) / 1e6


def starved(before: Moment, after: Moment) -> str | None:
    """That the kernel killed a process of our cgroup for its memory limit between two moments, or None."""
    kills = after.oom_kills - before.oom_kills
    return (
        "OOMKilled: a process of it passed the memory limit and the kernel killed it"
        if kills > 0
        else None
    )


class Guard:
    """Watches what disturbs a sample, from when it is made: this machine, and the other hosts that `include` names."""

    def __init__(self) -> None:
        self._load = runnable()
        self._before = moment()
        self._others: list[tuple[Host, Moment]] = []

    def include(self, hosts: Sequence[Host]) -> None:
        """Watch the cgroups of these hosts too, but those that are this machine; one that cannot be asked is left out."""
        others = [host for host in hosts if not isinstance(host, LocalHost)]
        found = zip(others, _asked(others), strict=True)
        self._others = [(host, counters) for host, counters in found if counters is not None]

    def throttled(self) -> str | None:
        """Why the sample is invalid because a CPU quota held back one of its hosts, or None."""
        return throttled(self._before, moment()) or self._there(throttled)

    def starved(self) -> str | None:
        """That the kernel killed a process for a memory limit on one of its hosts, or None."""
        return starved(self._before, moment()) or self._there(starved)

    def disturbed(self, cores: int) -> str | None:
        """Why the sample may be contaminated, or None."""
        return disturbed(self._before, moment(), self._load, cores)

    def _there(self, judge: Callable[[Moment, Moment], str | None]) -> str | None:
        now = _asked([host for host, _ in self._others])
        for (host, before), after in zip(self._others, now, strict=True):
            if after is not None and (why := judge(before, after)):
                return f"on {host.name}: {why}"
        return None


def _asked(hosts: Sequence[Host]) -> list[Moment | None]:
    """The counters of other hosts' cgroups now, None for one that does not answer."""
    if not hosts:
        return []
    with ThreadPoolExecutor(min(len(hosts), 16)) as pool:
        return list(pool.map(_ask, hosts))


def _ask(host: Host) -> Moment | None:
    try:
        said = host.run(
            ["cat", *cgroups.COUNTERS], timeout=10
        ).stdout  # what of them is there; the rest is of the other version
    except SampleError:
        return None
    return Moment(0, 0, cgroups.throttled(said), cgroups.kills(said), time.monotonic())
