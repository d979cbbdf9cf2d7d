"""Facts of a file system and its disk, read from /proc and /sys. What is unknown is None."""

import os
import re
import shutil
import stat
from pathlib import Path
from typing import Any

ROOT = Path("/")


def filesystem(path: str | Path, root: Path = ROOT) -> dict[str, Any]:
    """Return type, device, mount point and options of the file system of `path`.

    Also whether the disk turns, its scheduler and model, and the size and free space in bytes
    (free: for this user). For a block device the type is `block`. What cannot be known is None.
    """
    target = Path(path).absolute()
    while not target.exists() and target != target.parent:
        target = target.parent
    target = target.resolve()
    mount = _mount_of(target, root)
    facts: dict[str, Any] = {
        "path": str(path),
        "type": mount.get("type"),
        "device": mount.get("device"),
        "mount": mount.get("mount"),
    }
    facts["options"] = mount.get("options")
    numbers = mount.get("numbers")
    status = target.stat()
    if stat.S_ISBLK(status.st_mode):
        numbers = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        facts |= {"type": "block", "device": str(target), "mount": None, "options": None}
    facts |= _queue(numbers, root)
    usage = shutil.disk_usage(target) if target.is_dir() or target.is_file() else None
    sectors = (
        read_number(read_text(root / "sys/dev/block" / (numbers or "none") / "size"))
        if facts["type"] == "block"
        else None
    )
    # sysfs counts sectors of 512 bytes whatever the device's own are
    facts |= {
        "total_bytes": usage.total if usage else sectors and sectors * 512,
        "free_bytes": usage.free if usage else None,
    }
    return facts


def _mount_of(target: Path, root: Path) -> dict[str, Any]:
    """Return the mount in /proc/self/mountinfo with the longest mount point above `target`.

    Format: proc_pid_mountinfo(5).
    """
    best: dict[str, Any] = {}
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 6 or len(kind) < 2:
            continue
        mount = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        if target.is_relative_to(mount) and len(mount) >= len(best.get("mount", "")):
            options = ",".join(
                dict.fromkeys(
                    f"{fields[5]},{kind[2] if len(kind) > 2 else ''}".strip(",").split(",")
                )
            )
            best = {
                "mount": mount,
                "type": kind[0],
                "device": kind[1],
                "options": options,
                "numbers": fields[2],
            }
    return best


def _queue(numbers: str | None, root: Path) -> dict[str, Any]:
    """Return rotational, scheduler and model of the disk with a device number.

    The queue of a partition is that of its parent.
    """
    device = root / "sys/dev/block" / (numbers or "none")
    facts: dict[str, Any] = {"rotational": None, "scheduler": None, "disk": None}
    try:
        device = device.resolve()
        for folder in (device, device.parent):
            rotational = read_text(folder / "queue/rotational")
            if rotational is not None:
                scheduler = re.search(r"\[(\S+)\]", read_text(folder / "queue/scheduler") or "")
                model = read_text(folder / "device/model")
                return {
                    "rotational": rotational == "1",
                    "scheduler": scheduler[1] if scheduler else None,
                    "disk": model or folder.name,
                }
    except OSError:
        return facts
    return facts


def read_text(path: Path) -> str | None:
    """Return the stripped text of a file, or None if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except (OSError, ValueError):
        return None


def read_number(text: str | None) -> int | None:
    """Return the integer in a text, or None if it is no integer."""
    try:
        return int(text or "")
    except ValueError:
        return None
