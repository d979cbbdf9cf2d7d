"""Processes and ports of this machine: what runs below a process, and who listens. From /proc where there is one."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Literal

from perfdag.hosts import reaper

Proto = Literal["tcp", "udp"]
_LISTEN, _UDP_OPEN = "0A", "07"
_token = os.urandom(16).hex()
_starting = threading.Lock()
watcher: "subprocess.Popen[bytes] | None" = None


def marked() -> dict[str, str]:
    """What to add to a command's environment, so that it and all below it end with this process, kill -9 included (perfdag.hosts.reaper).

    A signal at the parent's death (PR_SET_PDEATHSIG) would reach the command alone, not the workers that it forked.
    """
    global watcher
    with _starting:
        if watcher is None or watcher.poll() is not None:
            # a session of its own: Ctrl-C is not for it. It keeps nothing of ours open but the pipe whose end it waits for
            watcher = subprocess.Popen(
                [sys.executable, "-I", "-S", reaper.__file__, _token],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={},
                start_new_session=True,
            )
    return {reaper.NAME: _token}


def descendants(pid: int) -> list[int]:
    """Process ids below `pid` now, found by parent id, so those that left its process group are in it too."""
    of = (
        _children
        if Path("/proc/self/task").exists() and _kernel_lists_children()
        else scan_children()
    )
    found, queue = [], [pid]
    while queue:
        below = of(queue.pop())
        found += below
        queue += below
    return found


@cache
def _kernel_lists_children() -> bool:
    return Path(f"/proc/self/task/{os.getpid()}/children").exists()


def _children(pid: int) -> list[int]:
    """By the kernel's own list (proc(5), CONFIG_PROC_CHILDREN): no scan of all processes, of which a busy node has thousands."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # the process ended: glob would raise half-way as well
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (thread / "children").read_text().split())
    return found


def scan_children() -> Callable[[int], list[int]]:
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = stat.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    return lambda pid: children.get(pid, [])


def signal_tree(pid: int, number: signal.Signals, known: Iterable[int] = ()) -> None:
    """Signal a process group, the processes below its leader, and those `known` to have been below it while it lived."""
    for each in {*descendants(pid), *known}:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(each, number)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def holders(pipe: int) -> list[int]:
    """Other processes that have the pipe of a file descriptor of ours open, as far as we may see them (proc(5))."""
    found = []
    with contextlib.suppress(OSError):
        wanted = os.readlink(f"/proc/self/fd/{pipe}")  # noqa: PTH115 - `pipe:[1234]` is no path
        for folder in Path("/proc").glob("[0-9]*/fd"):
            with contextlib.suppress(OSError):
                if int(folder.parent.name) != os.getpid() and any(
                    os.readlink(each) == wanted for each in folder.iterdir()
                ):
                    found.append(int(folder.parent.name))
    return found


def listening_ports(table: str, proto: Proto) -> set[int]:
    """Ports that somebody listens on (tcp) or has open (udp), from the text of /proc/net/tcp, tcp6, udp or udp6 (proc(5))."""
    wanted = _LISTEN if proto == "tcp" else _UDP_OPEN
    rows = (line.split() for line in table.splitlines())
    return {
        int(row[1].rpartition(":")[2], 16)
        for row in rows
        if len(row) > 3 and row[3] == wanted and ":" in row[1]
    }


def listening(port: int, proto: Proto) -> bool:
    """Whether somebody listens on a port (tcp) or has it open (udp) on this machine."""
    tables = [Path(f"/proc/net/{proto}"), Path(f"/proc/net/{proto}6")]
    if not tables[0].exists():  # no /proc (macOS): a port that cannot be bound is taken
        return not _bindable(port, proto)
    for table in tables:
        with contextlib.suppress(OSError), table.open() as rows:
            if port in listening_ports(
                "".join(listening_rows(rows) if proto == "tcp" else rows), proto
            ):
                return True
    return False


def listening_rows(rows: Iterable[str]) -> Iterator[str]:
    """The head of a TCP table: the kernel lists those that listen before all connections (net/ipv4/tcp_ipv4.c), of which there may be many."""
    for number, row in enumerate(rows):
        if number and row.split()[3] != _LISTEN:
            return
        yield row


def _bindable(port: int, proto: Proto) -> bool:
    with socket.socket(
        socket.AF_INET, socket.SOCK_STREAM if proto == "tcp" else socket.SOCK_DGRAM
    ) as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True
