"""File systems of hosts: what holds a path there, and whether other machines may have the same."""

import json
from typing import Any

from perfdag import facts
from perfdag.hosts import Host, LocalHost

_OF_MANY = (
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
_OF_ONE = ("fuseblk", "fuse.fuse-overlayfs", "fuse.mergerfs")


def common(kind: str) -> bool:
    """Whether machines that mount a file system of that type may all mount the same one; of FUSE all but those known to stand on a disk."""
    return kind.startswith(_OF_MANY) and kind not in _OF_ONE


def filesystem(host: Host, path: str) -> dict[str, Any]:
    """As facts.filesystem, of a path on that host. Raises Failed."""
    if isinstance(host, LocalHost):
        return facts.filesystem(path)
    asked = host.run(["python3", "-m", "perfdag.facts", "--filesystem", path], timeout=30)
    found: dict[str, Any] = json.loads(asked.check(f"asking {host.name} what holds {path}").stdout)
    return found
