"""The control groups of this process, versions 1 and 2 (cgroups(7)): which limits hold for it, and what they cost it.

Limits and throttling count from its own cgroup up to the root, since every level may have a quota. Nothing here fails where a file is
absent or unreadable.
"""

import os
from pathlib import Path
from typing import Any

_UNLIMITED = 1 << 60  # version 1 writes a page-rounded 2^63 for "no limit"
_ROOT = Path("/")
# where a container of a peer sees its own cgroup, versions 2 and 1
COUNTERS = tuple(
    f"/sys/fs/cgroup/{name}"
    for name in ("cpu.stat", "memory.events", "cpu/cpu.stat", "memory/memory.oom_control")
)


def limits(root: Path = _ROOT) -> dict[str, Any]:
    """The version, the tightest limits (CPU in cores, memory in bytes; None: none) and how many CPUs may be used."""
    cores: list[float] = []
    for folder in _folders("cpu", root):
        quota = _read(folder / "cpu.max").split() or [
            _read(folder / "cpu.cfs_quota_us"),
            _read(folder / "cpu.cfs_period_us"),
        ]
        if len(quota) == 2 and all(each.isdecimal() for each in quota) and int(quota[1]):
            cores.append(int(quota[0]) / int(quota[1]))
    texts = [
        _read(folder / name)
        for folder in _folders("memory", root)
        for name in ("memory.max", "memory.limit_in_bytes")
    ]
    memory = [int(text) for text in texts if text.isdecimal() and int(text) < _UNLIMITED]
    found = _memberships(root)
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "version": 2 if [controllers for controllers, _ in found] == [""] else 1 if found else None,
        "cpu_limit": min(cores, default=None),
        "memory_limit_bytes": min(memory, default=None),
        "cpus_allowed": allowed,
    }


def cpus() -> int:
    """CPUs that this process may keep busy, at least 1: those it may run on, or the whole ones of its CPU quota where these are fewer."""
    found = limits()
    allowed: int = found["cpus_allowed"] or 1
    return allowed if found["cpu_limit"] is None else min(allowed, max(1, int(found["cpu_limit"])))


def memory(root: Path = _ROOT) -> int:
    """Bytes that this process may use: the tightest limit of its cgroup and those above it, else the machine's memory where that is less."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(whole, limits(root)["memory_limit_bytes"] or whole)


def throttled_us(root: Path = _ROOT) -> int:
    """Microseconds for which a CPU quota held back this process's cgroup or one above it, so far; summed over CPUs and levels."""
    return sum(throttled(_read(folder / "cpu.stat")) for folder in _folders("cpu", root))


def oom_kills(root: Path = _ROOT) -> int:
    """Processes of this process's cgroup that the kernel killed for a memory limit, so far."""
    texts = (
        _read(folder / name)
        for folder in _folders("memory", root)
        for name in ("memory.events", "memory.oom_control")
    )
    return next((kills(text) for text in texts if "oom_kill " in text), 0)


def throttled(text: str) -> int:
    """Throttled microseconds in the text of a cpu.stat."""
    words = _words(text)
    # version 2 counts microseconds, version 1 nanoseconds
    return (
        words["throttled_usec"]
        if "throttled_usec" in words
        else words.get("throttled_time", 0) // 1000
    )


def kills(text: str) -> int:
    """Kills for memory in the text of a memory.events or memory.oom_control."""
    return _words(text).get("oom_kill", 0)


def _words(text: str) -> dict[str, int]:
    pairs = [line.split() for line in text.splitlines()]
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _memberships(root: Path) -> list[tuple[str, str]]:
    """(controllers, path) of each hierarchy this process is in; version 2 has no controllers."""
    lines = [line.split(":", 2) for line in _read(root / "proc/self/cgroup").splitlines()]
    return [(fields[1], fields[2]) for fields in lines if len(fields) == 3]


def _folders(controller: str, root: Path) -> list[Path]:
    """Folders that may say something of a controller for this process: its own cgroup first, then up to the root, for each version."""
    mount = root / "sys/fs/cgroup"
    found = []
    for controllers, path in _memberships(root):
        if controllers == "":
            top = mount if (mount / "cgroup.controllers").exists() else mount / "unified"
        elif controller in controllers.split(","):
            top = mount / controller
        else:
            continue
        # without a cgroup namespace the path is the host's and not there: the mount itself is then the container's
        relative = Path(path.lstrip("/"))
        found += [top / each for each in (relative, *relative.parents)]
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except (OSError, ValueError):
        return ""
