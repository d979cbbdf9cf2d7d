"""The control groups of this process, versions 1 and 2 (cgroups(7)): its limits, and their effects.

Every level may have a quota, so limits and throttling count from its own cgroup up to the root. No
function fails if a file is absent or unreadable.
"""

import os
from pathlib import Path
from typing import Any

_UNLIMITED = 1 << 60  # version 1 writes a page-rounded 2^63 for "no limit"
_ROOT = Path("/")
# the files where a container sees its own cgroup, versions 2 and 1
COUNTERS = tuple(
    f"/sys/fs/cgroup/{name}"
    for name in ("cpu.stat", "memory.events", "cpu/cpu.stat", "memory/memory.oom_control")
)


def limits(root: Path = _ROOT) -> dict[str, Any]:
    """Return the version, the tightest limits, and the number of CPUs that may be used.

    CPU limits are in cores, memory limits in bytes. None is no limit.
    """
    cores: list[float] = []
    for folder in _folders("cpu", root):
        quota = _read(folder / "cpu.max").split() or [
            _read(folder / "cpu.cfs_quota_us"),
            _read(folder / "cpu.cfs_period_us"),
        ]
        if len(quota) == 2 and all(number.isdecimal() for number in quota) and int(quota[1]):
            cores.append(int(quota[0]) / int(quota[1]))
    texts = [
        _read(folder / name)
        for folder in _folders("memory", root)
        for name in ("memory.max", "memory.limit_in_bytes")
    ]
    memory = [int(text) for text in texts if text.isdecimal() and int(text) < _UNLIMITED]
    memberships = _memberships(root)
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "version": 2
        if [controllers for controllers, _ in memberships] == [""]
        else 1
        if memberships
        else None,
        "cpu_limit": min(cores, default=None),
        "memory_limit_bytes": min(memory, default=None),
        "cpus_allowed": allowed,
    }


def cpus() -> int:
    """Return the CPUs that this process may use, which its CPU quota may reduce; at least 1."""
    current = limits()
    allowed: int = current["cpus_allowed"] or 1
    quota = current["cpu_limit"]
    return allowed if quota is None else min(allowed, max(1, int(quota)))


def memory(root: Path = _ROOT) -> int:
    """Return the bytes that this process may use, of its cgroups and of the machine."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(whole, limits(root)["memory_limit_bytes"] or whole)


def throttled_us(root: Path = _ROOT) -> int:
    """Return the throttled microseconds of the cgroups, summed over CPUs and levels."""
    return sum(throttled(_read(folder / "cpu.stat")) for folder in _folders("cpu", root))


def oom_kills(root: Path = _ROOT) -> int:
    """Return the number of processes of the cgroup that the kernel killed for a memory limit."""
    texts = (
        _read(folder / name)
        for folder in _folders("memory", root)
        for name in ("memory.events", "memory.oom_control")
    )
    return next((kills(text) for text in texts if "oom_kill " in text), 0)


def throttled(text: str) -> int:
    """Return the throttled microseconds in the text of a cpu.stat."""
    counters = _counters(text)
    # Version 2 counts microseconds, version 1 nanoseconds.
    return (
        counters["throttled_usec"]
        if "throttled_usec" in counters
        else counters.get("throttled_time", 0) // 1000
    )


def kills(text: str) -> int:
    """Return the kills for memory in the text of a memory.events or memory.oom_control."""
    return _counters(text).get("oom_kill", 0)


def _counters(text: str) -> dict[str, int]:
    pairs = [line.split() for line in text.splitlines()]
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _memberships(root: Path) -> list[tuple[str, str]]:
    """Return (controllers, path) of each hierarchy. Version 2 has no controllers."""
    lines = [line.split(":", 2) for line in _read(root / "proc/self/cgroup").splitlines()]
    return [(fields[1], fields[2]) for fields in lines if len(fields) == 3]


def _folders(controller: str, root: Path) -> list[Path]:
    """Return the folders of a controller for this process, from its own cgroup up to the root."""
    mount = root / "sys/fs/cgroup"
    folders = []
    for controllers, path in _memberships(root):
        if controllers == "":
            top = mount if (mount / "cgroup.controllers").exists() else mount / "unified"
        elif controller in controllers.split(","):
            top = mount / controller
        else:
            continue
        # Without a cgroup namespace the path is that of the host and does not exist here.
        # The mount itself is then the cgroup of the container.
        relative = Path(path.lstrip("/"))
        folders += [top / parent for parent in (relative, *relative.parents)]
    return folders


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except (OSError, ValueError):
        return ""
