"""The place where fio works on each host: a folder of its own, or a device.

A place is refused if data would be lost or space is short. It is removed after the sample.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any

from perfdag.benchmark.contract import Gang
from perfdag.hosts.base import Host
from perfdag.hosts.filesystems import common, filesystem
from perfdag.hosts.local import LocalHost
from perfdag.hosts.stale_files import MARKER, PREFIX, beside, clear, mark
from perfdag.outcome import Failed, Skip
from perfdag.steps.fio.params import FioParams

_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
_DOUBTFUL = {
    "overlay": "goes to the file system below, which this one does not name",
    "zfs": "OpenZFS before 2.3 takes it and answers from its own cache",
    "btrfs": "may fall back to the page cache where data have checksums or are compressed",
    "fuse": "is what the program behind the mount makes of it",
}
"""Limits of direct I/O by file system type. Source: the documentation of each file system."""
_SPARE = 1.02
"""Factor for file system metadata beside the data."""
_DISK_SCRATCH = "/var/tmp"
"""On a disk by the FHS, where /tmp may be in memory."""
STEPS = 4
"""Steps of a sample with a timeout each: lay out, fill, drop caches, measure."""


class Place:
    """The place where one host's job works: folder, target and facts of its file system."""

    def __init__(
        self, host: Host, folder: str, target: str | None, described: dict[str, Any]
    ) -> None:
        self.host, self.folder, self.target, self.described = host, folder, target, described


def home(gang: Gang, params: FioParams, host: Host) -> str:
    """Return the folder, or the volume's block device, that holds a host's files."""
    if params.directory or gang.volume:
        return params.directory or str(gang.volume)
    if params.direct and filesystem(host, gang.scratch).get("type") in _MEMORY:
        return _DISK_SCRATCH
    return gang.scratch


@contextmanager
def files(gang: Gang, params: FioParams) -> Iterator[list[Place]]:
    """Prepare a place on each host, with enough space and with direct I/O if requested.

    Everything created is removed at the end, also after a failure.
    """
    token = secrets.token_hex(4)
    created: list[tuple[Host, str]] = []
    try:
        places = []
        for index, host in enumerate(gang.hosts):
            root = home(gang, params, host)
            if params.directory and not _exists(host, params.directory):
                raise Failed(
                    f"directory {params.directory} does not exist on {host.name};"
                    " make it, or name another"
                )
            clear(host, str(PurePosixPath(gang.scratch).parent))
            if root != gang.scratch or params.file:
                clear(host, params.file or root)
            described = filesystem(host, params.file or root)
            if params.direct and (reason := doubt(str(described.get("type")))):
                described["direct_io"] = reason
            device = params.file or (root if described.get("type") == "block" else None)
            folder = str(
                PurePosixPath(gang.scratch if device else root) / f"{PREFIX}fio-{token}-{index}"
            )
            _refuse(
                host,
                params,
                device,
                described,
                sharing=_sharing(gang, host, root, described),
                ours=device is not None
                and device == gang.volume
                and not (gang.shape.volume and gang.shape.volume.claim),
            )
            marker = mark(STEPS * gang.timeout, isinstance(host, LocalHost))
            if device and described.get("type") != "block" and not _exists(host, device):
                if not _exists(host, parent := str(PurePosixPath(device).parent)):
                    raise Failed(
                        f"folder {parent} of file {device} does not exist on {host.name};"
                        " make it, or name another file"
                    )
                created += [(host, device), (host, beside(device))]
                host.put(beside(device), marker)
            created.append((host, folder))
            # The marker also creates the folder: fio's client needs its working folder.
            host.put(f"{folder}/{MARKER}", marker)
            places.append(Place(host, folder, device, described))
        yield places
    finally:
        for host, path in created:
            host.remove(path)


def doubt(kind: str) -> str | None:
    """Return why direct I/O may be less than its name says on this type, or None."""
    return _DOUBTFUL.get("fuse" if kind.startswith("fuse") else kind)


def _refuse(
    host: Host,
    params: FioParams,
    device: str | None,
    described: dict[str, Any],
    sharing: int,
    ours: bool,
) -> None:
    """Raise Skip or Failed if the target cannot serve the job or holds data that would be lost."""
    kind, where = described.get("type"), device or described.get("mount")
    if params.direct and kind in _MEMORY:
        raise Skip(
            f"direct I/O: {where} on {host.name} is {kind}, memory;"
            " set direct: false, or directory to a folder on a disk"
        )
    if device and kind == "block":
        check_access(host, device, params.writes)
    if device and not ours and params.writes and not params.overwrite and _exists(host, device):
        by = params.rw if params.directions != ("read",) else "prefill"
        raise Failed(
            f"{device} on {host.name} exists and {by} would destroy its data;"
            " name another, or set overwrite: true"
        )
    holds = _holds(host, device, described) if device else None
    if holds is not None and holds < params.size:
        # fio would extend a file, and wrap around on a short device.
        raise Failed(
            f"{device} on {host.name} holds {holds} B, size is {params.size} B; make size smaller"
        )
    free = described.get("free_bytes")
    needed = round(params.size * (1 if device else params.files * sharing) * _SPARE)
    if (
        kind != "block"
        and free is not None
        and not (device and _exists(host, device))
        and free < needed
    ):
        label = "size" if device else product(params, sharing)
        raise Failed(
            f"{where} on {host.name} has {free} B free, fio needs {needed} B ({label});"
            " free some or make size smaller"
        )


def product(params: FioParams, sharing: int) -> str:
    """Return the formula of the space that so many hosts need together."""
    sections = f" x {len(params.jobs())} sections" if params.job_file else ""
    return f"size x numjobs{sections}" + (f" x {sharing} hosts" if sharing > 1 else "")


def _sharing(gang: Gang, host: Host, root: str, described: dict[str, Any]) -> int:
    """Count the gang's hosts whose files take space from the same file system as this host's."""
    volume = gang.shape.volume
    within = (
        gang.volume is not None
        and volume is not None
        and PurePosixPath(root).is_relative_to(gang.volume)
    )
    if within and volume is not None and volume.kind == "claim":
        return len(gang.hosts) if volume.common else 1
    kind = str(described.get("type"))
    if common(kind):
        return len(gang.hosts)
    if kind in _MEMORY and not (within and volume is not None and volume.kind == "hostPath"):
        # A pod has its own tmpfs. Local hosts share the one of this machine.
        local = sum(isinstance(peer, LocalHost) for peer in gang.hosts)
        return local if isinstance(host, LocalHost) else 1
    # The remaining case is the node's own disk.
    return sum(peer.name == host.name for peer in gang.hosts)


def check_access(host: Host, device: str, writes: bool) -> None:
    """Raise Skip if this user may not open the device.

    The kubelet grants a claim's device to nobody, so it stays root's on most nodes.
    """
    for flag, verb in (("-r", "read"), ("-w", "written"))[: 1 + writes]:
        if host.run(["test", flag, device], timeout=10).code != 0:
            raise Skip(
                f"{device} on {host.name} may not be {verb} by this user;"
                " in pods add privileges: [block], or set device_ownership_from_security_context"
                " in the node's containerd; elsewhere run as root"
            )


def drop_caches(gang: Gang) -> None:
    """Drop the page cache of every host. Raises Skip if a host does not allow it."""
    for host in gang.hosts:
        finished = host.run(
            ["sh", "-c", "sync; echo 3 > /proc/sys/vm/drop_caches"], timeout=gang.timeout
        )
        if finished.code != 0:
            raise Skip(
                f"drop_caches: {host.name} does not allow it (needs root outside a container);"
                " set drop_caches: false"
            )


def _holds(host: Host, device: str, described: dict[str, Any]) -> int | None:
    """Return the bytes of a block device or file; None if it does not exist or is unknown."""
    if described.get("type") == "block":
        total = described.get("total_bytes")
        return int(total) if total is not None else None
    status = host.run(["stat", "-L", "-c", "%s", device], timeout=10)
    return int(status.stdout) if status.code == 0 else None


def _exists(host: Host, path: str) -> bool:
    return host.run(["test", "-e", path], timeout=10).code == 0
