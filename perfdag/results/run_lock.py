"""Say that a process of this machine measures a run, until the process ends in any way."""

import contextlib
import errno
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def run_lock(run_id: str) -> Iterator[bool]:
    """Lock a run and yield True, or yield False if another process of this machine has the lock.

    The lock is an address that Linux frees with the process. Other systems have none and lock
    nothing.
    """
    with socket.socket(socket.AF_UNIX) as holder:
        try:
            holder.bind(f"\0perfdag-{run_id}")
            alone = True
        except OSError as error:
            alone = error.errno != errno.EADDRINUSE
        yield alone
