"""The limit of connections of a frontend, and the open files that it needs."""

import contextlib
import resource

RESERVE = 384
"""Descriptors that are no peers: connections of the metrics port, listeners, files."""


def raise_file_limit(peers: int) -> None:
    """Raise the soft limit of open files for `peers` connections, up to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = peers + RESERVE if hard == resource.RLIM_INFINITY else min(peers + RESERVE, hard)
    if soft != resource.RLIM_INFINITY and soft < needed:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def connection_limit(peers: int) -> int:
    """Return `peers`, or fewer if the limit of open files admits only fewer."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return peers
    return max(1, min(peers, soft - min(RESERVE, soft // 2)))
