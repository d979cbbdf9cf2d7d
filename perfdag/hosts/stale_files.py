"""Folders and files that a killed sample left behind: their marker, and how they are removed.

`python -m perfdag.hosts.stale_files PATH` sweeps a folder on a peer, or a file of a sample.
"""

import glob
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from perfdag.hosts.base import Host
from perfdag.hosts.local import LocalHost

_FOREIGN = (OSError, ValueError, LookupError, TypeError, AttributeError)
"""What reading a file raises that is no marker. Others may write to a shared folder."""
MARKER = "made-by-perfdag"
PREFIX = "perfdag-"


def mark(seconds: float, local: bool) -> bytes:
    """Return the marker of a sample's folder or file.

    It says until when (epoch s) it may be in use, and with `local` which process uses it. A
    process is known by id, start time and pid namespace: ids are reused, and the pods of a node
    count them apart.
    """
    owner = (
        {"namespace": _namespace(), "pid": os.getpid(), "started": _started(os.getpid())}
        if local
        else {}
    )
    return json.dumps({"until": time.time() + seconds, **owner}).encode()


def sweep(folder: Path) -> list[str]:
    """Remove folders of samples that have ended; return their names.

    They lie in `folder`, or in samples' scratch folders within it, which go too once empty.
    """
    removed = []
    for marker in _markers(folder):
        entry = marker.parent
        try:
            if _unused(json.loads(marker.read_bytes())):
                shutil.rmtree(entry)
                removed.append(entry.name)
                if entry.parent != folder:
                    entry.parent.rmdir()
        except _FOREIGN:
            continue  # not perfdag's, or its owner removed it first
    return removed


def _markers(folder: Path) -> list[Path]:
    # Path.glob of Python 3.11 raises FileNotFoundError if another sample ends meanwhile.
    patterns = (f"{PREFIX}*/{MARKER}", f"{PREFIX}*/{PREFIX}*/{MARKER}")
    return [folder / name for pattern in patterns for name in glob.glob(pattern, root_dir=folder)]  # noqa: PTH207


def clear(host: Host, root: str) -> None:
    """Sweep a folder that outlives samples, or a file that a sample may have created."""
    if isinstance(host, LocalHost):
        sweep(Path(root))
        sweep_file(Path(root))
    else:
        host.run(["python3", "-m", "perfdag.hosts.stale_files", root], timeout=60)


def beside(target: str) -> str:
    """Return the path of the marker of a file that a sample creates."""
    return f"{target}.{MARKER}"


def sweep_file(target: Path) -> list[str]:
    """Remove a file that a sample created and no longer uses, and its marker.

    Return its name if it existed. A file that changed after the time in the marker belongs to
    another owner, and stays.
    """
    marker = Path(beside(str(target)))
    try:
        marker_content = json.loads(marker.read_bytes())
        if not _unused(marker_content):
            return []
        is_ours = target.exists() and target.stat().st_ctime <= float(marker_content["until"])
        if is_ours:
            target.unlink()
        marker.unlink()
    except _FOREIGN:
        return []  # no sample created it, or its owner removed it first
    return [target.name] if is_ours else []


def _unused(marker: dict[str, Any]) -> bool:
    if marker.get("namespace") and marker["namespace"] == _namespace():
        return _started(int(marker["pid"])) != str(marker["started"])
    return time.time() > float(marker["until"])


def _namespace() -> str | None:
    """Return this machine's boot and pid namespace; None if /proc has neither."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def _started(pid: int) -> str | None:
    """Return a process's start in clock ticks since boot (proc(5), stat field 22), or None."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


if __name__ == "__main__":
    for name in [*sweep(Path(sys.argv[1])), *sweep_file(Path(sys.argv[1]))]:
        print(name)  # noqa: T201 - a command's own output
