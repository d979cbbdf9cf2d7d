"""What a killed perfdag left running, ended by a process beside it that outlives it (`perfdag.hosts.processes.marked` starts it).

`python survivors.py TOKEN` waits until its standard input ends, which it does with the process that holds the other end, however that ended.
Then it kills all that carries the mark in its environment. Needs /proc; elsewhere nothing is killed. It is run by its path and imports
little: it starts beside a run's first command.
"""
# ruff: noqa: PTH112, PTH123, PTH208 - pathlib takes as long to import as all the rest

import contextlib
import os
import signal
import sys
import time

NAME = "PERFDAG_RUN_BY"
PATIENCE = 10.0  # s; a process that does not end by then waits for a disk that is gone


def carriers(token: str) -> set[int]:
    """Ids of the processes that carry the mark, and of all below them: a program may have written over its environment."""
    mark = f"{NAME}={token}".encode()
    found: set[int] = set()
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else []):
        with contextlib.suppress(OSError, IndexError):  # it ended, or is another user's
            children.setdefault(int(_read(name, "stat").rpartition(b")")[2].split()[1]), []).append(
                int(name)
            )
            if mark in _read(name, "environ").split(b"\0"):
                found.add(int(name))
    queue = list(found)
    while queue:
        below = [pid for pid in children.get(queue.pop(), []) if pid not in found]
        found.update(below)
        queue += below
    return found


def _read(pid: str, name: str) -> bytes:
    with open(f"/proc/{pid}/{name}", "rb") as file:
        return file.read()


def main(token: str) -> None:
    """Wait for the end of standard input, then kill until nothing is left."""
    sys.stdin.buffer.read()
    deadline = time.monotonic() + PATIENCE
    while (left := carriers(token)) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1])
