"""Kill what a killed perfdag left running.

`python reaper.py TOKEN` waits for the end of its standard input, which comes when the process at
the other end exits. It then kills all processes with the mark in their environment. Without /proc
it kills nothing. `perfdag.hosts.processes.marked` starts it with the first command of a run, so it
imports little.
"""
# ruff: noqa: PTH112, PTH123, PTH208 - pathlib takes as long to import as all the rest

import contextlib
import os
import signal
import sys
import time

NAME = "PERFDAG_RUN_BY"
PATIENCE = 10.0  # seconds; a process that waits for a lost disk never ends


def carriers(token: str) -> set[int]:
    """Return the ids of the processes with the mark, and of their descendants.

    A descendant may have overwritten its environment.
    """
    mark = f"{NAME}={token}".encode()
    marked: set[int] = set()
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else []):
        with contextlib.suppress(OSError, IndexError):  # it ended, or belongs to another user
            children.setdefault(int(_read(name, "stat").rpartition(b")")[2].split()[1]), []).append(
                int(name)
            )
            if mark in _read(name, "environ").split(b"\0"):
                marked.add(int(name))
    queue = list(marked)
    while queue:
        descendants = [pid for pid in children.get(queue.pop(), []) if pid not in marked]
        marked.update(descendants)
        queue += descendants
    return marked


def _read(pid: str, name: str) -> bytes:
    with open(f"/proc/{pid}/{name}", "rb") as file:
        return file.read()


def main(token: str) -> None:
    """Wait for the end of standard input, then kill until no process is left."""
    sys.stdin.buffer.read()
    deadline = time.monotonic() + PATIENCE
    while (left := carriers(token)) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1])
