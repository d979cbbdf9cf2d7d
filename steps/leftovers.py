"""Folders and files that a killed sample left behind: what marks them, and how the next sample removes them.

`python -m perfdag.steps.leftovers PATH` sweeps a folder on a peer, or a file that a sample may have made.
"""

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from perfdag.hosts import Host, LocalHost

MARKER = "made-by-perfdag"
PREFIX = "perfdag-"


def mark(seconds: float, here: bool) -> bytes:
    """Content of the marker in a sample's folder, or beside its file: until when (epoch s) it may be in use, and with `here` the process that uses it.

    A process is known by its id, its start time and its pid namespace: ids are used again, and pods of one node count them apart.
    """
    owner = (
        {"namespace": _namespace(), "pid": os.getpid(), "started": _started(os.getpid())}
        if here
        else {}
    )
    return json.dumps({"until": time.time() + seconds, **owner}).encode()


def sweep(folder: Path) -> list[str]:
    """Remove folders of samples that cannot be under way any more; returns their names. One that may be in use stays.

    They lie in `folder`, or in the scratch folders of samples in it; of these one that is then empty goes too.
    """
    removed = []
    for each in [*folder.glob(f"{PREFIX}*"), *folder.glob(f"{PREFIX}*/{PREFIX}*")]:
        try:
            told = json.loads((each / MARKER).read_bytes())
            if _over(told):
                shutil.rmtree(each)
                removed.append(each.name)
                if each.parent != folder:
                    each.parent.rmdir()
        except (OSError, ValueError):
            continue  # not ours, or its owner is faster
    return removed


def clear(host: Host, root: str) -> None:
    """Sweep a folder that outlives samples, or a file that one may have made, on that host."""
    if isinstance(host, LocalHost):
        sweep(Path(root))
        sweep_file(Path(root))
    else:
        host.run(["python3", "-m", "perfdag.steps.leftovers", root], timeout=60)


def beside(target: str) -> str:
    """The marker of a file that a sample made, and not somebody else."""
    return f"{target}.{MARKER}"


def sweep_file(target: Path) -> list[str]:
    """Remove a file that a sample made and can work on no more, and its marker; returns its name if it was there.

    One that changed after the time that the marker gives is somebody else's by now: it stays.
    """
    marker = Path(beside(str(target)))
    try:
        told = json.loads(marker.read_bytes())
        if not _over(told):
            return []
        ours = target.exists() and target.stat().st_ctime <= float(told["until"])
        if ours:
            target.unlink()
        marker.unlink()
    except (OSError, ValueError):
        return []  # none was made, or its owner is faster
    return [target.name] if ours else []


def _over(told: dict[str, Any]) -> bool:
    if told.get("namespace") and told["namespace"] == _namespace():
        return _started(int(told["pid"])) != str(told["started"])
    return time.time() > float(told["until"])


def _namespace() -> str | None:
    """This machine's boot and this process's pid namespace; None where /proc does not tell."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def _started(pid: int) -> str | None:
    """Start time of a process in clock ticks since boot (proc(5), stat field 22); None where it does not run."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


if __name__ == "__main__":
    for name in [*sweep(Path(sys.argv[1])), *sweep_file(Path(sys.argv[1]))]:
        print(name)  # noqa: T201 - a command's own output
