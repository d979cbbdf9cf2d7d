"""Processes and ports of this machine: groups that end with perfdag, descendants, used ports."""

import contextlib
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import IO

_LISTEN = "0A"
_KILL_THE_LAST_LINE = """\
while read -r line; do groups=$line; done
for group in $groups; do kill -s KILL -- "-$group"; done
"""
_groups: set[int] = set()
_telling = threading.Lock()


def ends_with_perfdag(group: int) -> None:
    """Have a process group killed once this process ends, even if it ends by SIGKILL.

    A shell in a session of its own waits for that. PR_SET_PDEATHSIG would reach the leader of the
    group alone and not its workers, and Python can set it only by a slow fork (3 to 9 ms instead
    of 0.7 ms), which would be part of each measured time.
    """
    with _telling:
        _groups.add(group)
        _tell_groups()


def has_ended(group: int) -> None:
    """Forget a process group, since its id may be used again."""
    with _telling:
        _groups.discard(group)
        _tell_groups()


def _tell_groups() -> None:
    with contextlib.suppress(OSError):  # the shell was killed
        _waiting_shell().write(f"{' '.join(map(str, _groups))}\n".encode())


@cache
def _waiting_shell() -> IO[bytes]:
    """Start the shell and return its standard input, the pipe that ends with this process."""
    shell = subprocess.Popen(
        ["/bin/sh", "-c", _KILL_THE_LAST_LINE],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={},
        start_new_session=True,
    )
    assert shell.stdin
    return shell.stdin


def descendants(pid: int) -> list[int]:
    """Return the ids of the descendants of a process, also of those that left its process group."""
    children_of = _children if _kernel_lists_children() else scan_children()
    pids, queue = [], [pid]
    while queue:
        children = children_of(queue.pop())
        pids += children
        queue += children
    return pids


@cache
def _kernel_lists_children() -> bool:
    return Path(f"/proc/self/task/{os.getpid()}/children").exists()


def _children(pid: int) -> list[int]:
    """Return the children by the kernel's list (proc(5), CONFIG_PROC_CHILDREN).

    This is faster than a scan of all processes, of which a busy node has thousands.
    """
    children: list[int] = []
    with contextlib.suppress(OSError):  # the process ended
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                children += map(int, (thread / "children").read_text().split())
    return children


def scan_children() -> Callable[[int], list[int]]:
    """Return a function from a process id to its children, by one scan of all processes."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = stat.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    return lambda pid: children.get(pid, [])


def signal_tree(pid: int, number: signal.Signals, descendant_pids: Iterable[int] = ()) -> None:
    """Signal a process group, the descendants of its leader, and `descendant_pids`, former ones."""
    for descendant in {*descendants(pid), *descendant_pids}:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(descendant, number)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def holders(pipe: int) -> list[int]:
    """Return the other processes that have the pipe of a file descriptor open (proc(5))."""
    pids = []
    with contextlib.suppress(OSError):
        target = os.readlink(f"/proc/self/fd/{pipe}")  # noqa: PTH115 - `pipe:[1234]` is no path
        for folder in Path("/proc").glob("[0-9]*/fd"):
            with contextlib.suppress(OSError):
                if int(folder.parent.name) != os.getpid() and any(
                    os.readlink(link) == target  # noqa: PTH115
                    for link in folder.iterdir()
                ):
                    pids.append(int(folder.parent.name))
    return pids


def listening_ports(table: str) -> set[int]:
    """Return the ports that are listened on by the text of /proc/net/tcp or tcp6 (proc(5))."""
    rows = (line.split() for line in table.splitlines())
    return {
        int(row[1].rpartition(":")[2], 16)
        for row in rows
        if len(row) > 3 and row[3] == _LISTEN and ":" in row[1]
    }


def listening(port: int) -> bool:
    """Return whether a TCP port is listened on on this machine."""
    tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    if not tables[0].exists():  # no /proc (macOS)
        return not _bindable(port)
    for table in tables:
        with contextlib.suppress(OSError), table.open() as rows:
            if port in listening_ports("".join(listening_rows(rows))):
                return True
    return False


def listening_rows(rows: Iterable[str]) -> Iterator[str]:
    """Yield the head of a TCP table, with the listening sockets.

    The kernel lists them before all connections (net/ipv4/tcp_ipv4.c).
    """
    for number, row in enumerate(rows):
        if number and row.split()[3] != _LISTEN:
            return
        yield row


def _bindable(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True
