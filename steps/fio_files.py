"""Where fio works on each host: a folder of its own or a device, refused where data would be lost or room lacks, removed afterwards."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from perfdag.benchmark import Failed, Gang, Skip
from perfdag.hosts import Host, LocalHost
from perfdag.steps.filesystems import common, filesystem
from perfdag.steps.leftovers import MARKER, PREFIX, beside, clear, mark

if TYPE_CHECKING:
    from perfdag.steps.fio import FioParams

_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
_DOUBTFUL = {
    "overlay": "goes to the file system below, which this one does not name",
    "zfs": "OpenZFS before 2.3 takes it and answers from its own cache",
    "btrfs": "may fall back to the page cache where data have checksums or are compressed",
    "fuse": "is what the program behind the mount makes of it",
}
"""What direct I/O may not be on a file system that accepts it (their own documentation)."""
_SPARE = 1.02  # file system metadata beside the data
_DISK_SCRATCH = "/var/tmp"  # by the FHS on a disk, where /tmp may be memory
STEPS = 4
"""Of a sample that each may take its timeout: laying out, filling, dropping caches, measuring."""


class Place:
    """Where one host's job works: its folder, the target lines of the job, what it stands on."""

    def __init__(
        self, host: Host, folder: str, target: str | None, described: dict[str, Any]
    ) -> None:
        self.host, self.folder, self.target, self.described = host, folder, target, described


def home(gang: Gang, params: "FioParams", host: Host) -> str:
    """The folder (or the block device of the volume) under which a host's files are made."""
    if params.directory or gang.volume:
        return params.directory or str(gang.volume)
    if params.direct and filesystem(host, gang.scratch).get("type") in _MEMORY:
        return _DISK_SCRATCH
    return gang.scratch


@contextmanager
def files(gang: Gang, params: "FioParams") -> Iterator[list[Place]]:
    """A place on each host, checked for room and for direct I/O; all that was made is gone afterwards, also after a failure."""
    token = secrets.token_hex(4)
    made: list[tuple[Host, str]] = []
    try:
        places = []
        for index, host in enumerate(gang.hosts):
            root = home(gang, params, host)
            if params.directory and not _exists(host, params.directory):
                raise Failed(
                    f"directory {params.directory} is not there on {host.name}; make it, or name another"
                )
            clear(host, str(PurePosixPath(gang.scratch).parent))
            if root != gang.scratch or params.file:
                clear(host, params.file or root)
            described = filesystem(host, params.file or root)
            if params.direct and (said := doubt(str(described.get("type")))):
                described["direct_io"] = said
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
                        f"folder {parent} of file {device} is not there on {host.name}; make it, or name another file"
                    )
                made += [(host, device), (host, beside(device))]
                host.put(beside(device), marker)
            made.append((host, folder))
            # the folder comes with a file in it: fio's client wants the working folder to be there
            host.put(f"{folder}/{MARKER}", marker)
            places.append(Place(host, folder, device, described))
        yield places
    finally:
        for host, path in made:
            host.remove(path)


def doubt(kind: str) -> str | None:
    """What direct I/O is on a file system of that type where it may be less than it says; None where it is what it says."""
    return _DOUBTFUL.get("fuse" if kind.startswith("fuse") else kind)


def _refuse(
    host: Host,
    params: "FioParams",
    device: str | None,
    described: dict[str, Any],
    sharing: int,
    ours: bool,
) -> None:
    """Raise Skip or Failed where the target cannot give what is asked, or has data that would be lost."""
    kind, where = described.get("type"), device or described.get("mount")
    if params.direct and kind in _MEMORY:
        raise Skip(
            f"direct I/O: {where} on {host.name} is {kind}, memory; set direct: false, or directory to a folder on a disk"
        )
    if device and kind == "block":
        _allowed(host, device, params.writes)
    if device and not ours and params.writes and not params.overwrite and _exists(host, device):
        by = params.rw if params.directions != ("read",) else "prefill"
        raise Failed(
            f"{device} on {host.name} exists and {by} would destroy its data; name another, or set overwrite: true"
        )
    holds = _holds(host, device, described) if device else None
    if holds is not None and holds < params.size:
        # fio would make a file longer, and go round a device that is too short
        raise Failed(
            f"{device} on {host.name} holds {holds} B, size is {params.size} B; make size smaller"
        )
    free = described.get("free_bytes")
    needed = round(params.size * (1 if device else params.numjobs * sharing) * _SPARE)
    if (
        kind != "block"
        and free is not None
        and not (device and _exists(host, device))
        and free < needed
    ):
        said = "size" if device else product(sharing)
        raise Failed(
            f"{where} on {host.name} has {free} B free, fio needs {needed} B ({said}); free some or make size smaller"
        )


def product(sharing: int) -> str:
    """What is multiplied to know the room that so many hosts need together."""
    return "size x numjobs" + (f" x {sharing} hosts" if sharing > 1 else "")


def _sharing(gang: Gang, host: Host, root: str, described: dict[str, Any]) -> int:
    """Hosts of the gang whose files take their room from the same file system as those of this host."""
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
        # a tmpfs of the pod; this machine's own is one, however often it is a host
        return (
            sum(isinstance(each, LocalHost) for each in gang.hosts)
            if isinstance(host, LocalHost)
            else 1
        )
    return sum(each.name == host.name for each in gang.hosts)  # the node's disk


def _allowed(host: Host, device: str, writes: bool) -> None:
    """Raise Skip where a device may not be opened: the kubelet gives that of a claim to nobody, and it stays root's on most nodes."""
    for may, word in (("-r", "read"), ("-w", "written"))[: 1 + writes]:
        if host.run(["test", may, device], timeout=10).code != 0:
            raise Skip(
                f"{device} on {host.name} may not be {word} by this user; in pods add privileges: [block], or set"
                " device_ownership_from_security_context in the node's containerd; elsewhere run as root"
            )


def drop_caches(gang: Gang) -> None:
    for host in gang.hosts:
        dropped = host.run(
            ["sh", "-c", "sync; echo 3 > /proc/sys/vm/drop_caches"], timeout=gang.timeout
        )
        if dropped.code != 0:
            raise Skip(
                f"drop_caches: {host.name} does not allow it (needs root outside a container); set drop_caches: false"
            )


def _holds(host: Host, device: str, described: dict[str, Any]) -> int | None:
    """Bytes of a block device or of a file that is there; None: not there, or not known."""
    if described.get("type") == "block":
        total = described.get("total_bytes")
        return int(total) if total is not None else None
    asked = host.run(["stat", "-L", "-c", "%s", device], timeout=10)
    return int(asked.stdout) if asked.code == 0 else None


def _exists(host: Host, path: str) -> bool:
    return host.run(["test", "-e", path], timeout=10).code == 0
