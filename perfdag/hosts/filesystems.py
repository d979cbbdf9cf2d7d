"""File systems of hosts: which one holds a path, and whether hosts may share it."""

import json
from typing import Any

from perfdag.hosts import filesystem_facts
from perfdag.hosts.base import Host
from perfdag.hosts.local import LocalHost

_SHARED = (
    "nfs",
    "cifs",
    "smb",
    "ceph",
    "lustre",
    "gpfs",
    "beegfs",
    "wekafs",
    "pvfs2",
    "gfs2",
    "ocfs2",
    "fuse",
)
_LOCAL = ("fuseblk", "fuse.fuse-overlayfs", "fuse.mergerfs")


def common(kind: str) -> bool:
    """Whether hosts that mount this type may all mount the same file system.

    FUSE counts as shared, except for types that are known to lie on a disk.
    """
    return kind.startswith(_SHARED) and kind not in _LOCAL


def filesystem(host: Host, path: str) -> dict[str, Any]:
    """Return the facts of the file system of a path on that host. Raises Failed."""
    if isinstance(host, LocalHost):
        return filesystem_facts.filesystem(path)
    finished = host.run(["python3", "-m", "perfdag.hosts.facts", "--filesystem", path], timeout=30)
    answer: dict[str, Any] = json.loads(
        finished.check(f"asking {host.name} what holds {path}").stdout
    )
    return answer
