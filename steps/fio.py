"""fio: I/O of a file system or block device, on one host or several."""

import json
import math
import posixpath
import re
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from perfdag.benchmark.contract import (
    AtMost,
    Benchmark,
    CommandResult,
    Duration,
    Equal,
    Failed,
    Form,
    Gang,
    Host,
    Identity,
    Invalid,
    Measurement,
    Metric,
    Output,
    Params,
    PositiveDuration,
    Problem,
    Remark,
    Shape,
    ShortForm,
    Size,
    Skip,
    Tool,
    needed,
    read_report,
)
from perfdag.hosts import gpu_use
from perfdag.hosts.local import filesystem
from perfdag.shape import Volume

JOB = "worker"
"""The name of fio's job."""
# fio would replace or cut off text with one of these characters, and use another file.
FilePath = Annotated[
    str,
    StringConstraints(max_length=4096),
    Form(
        "an absolute path without $ ; # \\ or a space at its end",
        r"^/([^\x00-\x1f\x7f$;#\\]*[^\x00- \x7f$;#\\])?$",
    ),
]


def _binary(value: Any) -> Any:
    """Return `4k` as fio reads it, as `4KiB`. Other values pass unchanged."""
    if isinstance(value, str) and re.fullmatch(r"\d+[kmgtKMGT]", value):
        return f"{value.upper()}iB"
    return value


FioSize = Annotated[Size, BeforeValidator(_binary)]


class FioParams(Params):
    """fio's options by their own names; sizes in bytes, times in seconds."""

    retired: ClassVar[Mapping[str, Any]] = {"drop_caches": False}
    rw: Annotated[
        Literal[
            "read",
            "write",
            "randread",
            "randwrite",
            "rw",
            "randrw",
            "trim",
            "randtrim",
            "trimwrite",
            "randtrimwrite",
        ],
        BeforeValidator(lambda value: "rw" if value == "readwrite" else value),
    ] = Field("read", description="pattern; readwrite is rw; trim needs a block device")
    rwmixread: int = Field(50, ge=0, le=100, description="percent of reads in rw and randrw")
    percentage_random: int = Field(
        100, ge=0, le=100, description="percent of a random pattern that is random"
    )
    bs: FioSize = Field(4096, ge=512, le=1 << 30, description="bytes of one I/O; 4k is 4KiB")
    size: FioSize = Field(1 << 30, ge=512, description="bytes that each job works on")
    iodepth: int = Field(
        1,
        ge=1,
        le=65536,
        description="I/Os in flight for each job; above 1 needs an asynchronous ioengine",
    )
    ioengine: Literal[
        "libaio",
        "io_uring",
        "posixaio",
        "sync",
        "psync",
        "vsync",
        "pvsync",
        "pvsync2",
        "mmap",
        "splice",
    ] = "libaio"
    direct: bool = Field(True, description="bypass the page cache (O_DIRECT)")
    numjobs: int = Field(
        1, ge=1, le=1024, description="jobs (processes or threads) at once, on each host"
    )
    nrfiles: int = Field(1, ge=1, le=65536, description="files of each job; they share its size")
    thread: bool = Field(False, description="jobs are threads, not processes")
    runtime: PositiveDuration | None = Field(
        10.0, description="seconds to measure, going round the size; null: once through the size"
    )
    ramp: Duration = Field(0.0, description="seconds of the same load before measuring starts")
    fsync: int = Field(0, ge=0, description="fsync after so many writes; 0: never")
    prefill: bool = Field(
        False,
        description="write all data before measuring, so that writes meet no unallocated block"
        " and reads of a block device meet no hole",
    )
    directory: FilePath | None = Field(
        None,
        description="folder to make files in; unset: the volume, else a scratch folder on a disk",
    )
    file: FilePath | None = Field(
        None, description="one file or block device instead of files in a folder"
    )
    overwrite: bool = Field(
        False,
        description="allow writing over a `file` that exists, or over a block volume of an"
        " existing `claim`: its data is lost",
    )

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the directions of the jobs: some of read, write and trim."""
        kind = self.rw.removeprefix("rand")
        if kind == "rw":
            if self.rwmixread in (0, 100):
                return ("read",) if self.rwmixread else ("write",)
            return ("read", "write")
        return ("trim", "write") if kind == "trimwrite" else (kind,)

    @property
    def writes(self) -> bool:
        """Whether the run overwrites existing data."""
        return self.prefill or self.kinds != ("read",)

    def problems(self) -> Iterator[Problem]:
        """Yield what fio would not do, or not do as these parameters say."""
        if self.directory is not None and self.file is not None:
            yield Problem(
                "directory-and-file", "directory and file exclude each other; set one of them"
            )
        if self.file is not None and self.nrfiles > 1:
            yield Problem(
                "one-file", "nrfiles: file names one file; leave it at 1, or use directory"
            )
        share = self.size // self.nrfiles
        if share < self.bs:
            yield Problem(
                "small-share", f"size / nrfiles is {share} B, less than one I/O of bs {self.bs} B"
            )
        if self.iodepth > 1 and self.ioengine not in ("libaio", "io_uring", "posixaio"):
            yield Problem(
                "one-in-flight",
                f"iodepth {self.iodepth}: {self.ioengine} has one I/O in flight;"
                " use libaio, io_uring or posixaio, or numjobs",
            )
        if self.iodepth > 1 and self.ioengine == "libaio" and not self.direct:
            yield Problem(
                "buffered-libaio",
                f"iodepth {self.iodepth}: through the page cache libaio has one I/O in flight;"
                " use direct: true, io_uring or posixaio, or numjobs",
            )
        if self.ioengine == "mmap" and self.direct:
            yield Problem(
                "direct-mmap", "ioengine mmap works through the page cache; set direct: false"
            )
        if self.direct and self.bs % 512 != 0:
            yield Problem(
                "unaligned",
                f"bs {self.bs} B: direct I/O needs a multiple of 512 B;"
                " change bs or set direct: false",
            )
        if self.percentage_random != 100 and not self.rw.startswith("rand"):
            yield Problem(
                "not-random",
                f"percentage_random: rw is {self.rw}, not random;"
                " use one of randread, randwrite, randrw",
            )
        only_reads = self.kinds == ("read",)
        if self.prefill and only_reads and self.file is not None and not self.overwrite:
            yield Problem(
                "prefill-overwrites",
                f"prefill writes over {self.file}; set overwrite: true, or prefill: false",
            )


_ALL = "All clients"
_PERCENTILES = (50, 90, 95, 99, 99.9, 99.99)
_LATENCIES = (
    ("latency", "lat_ns"),
    ("completion_latency", "clat_ns"),
    ("submission_latency", "slat_ns"),
)
_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
RAMPS = 0.05
"""Share by which I/Os in flight may exceed the depth: those under way at both ends count whole."""
_SKEW = 0.1
"""Share of the measured time by which the hosts may start apart.

Beyond it, the sum is not a rate that all hosts reached together."""
_SKIPS = (
    (r"engine \S+ not loadable|failed to load engine", "this fio lacks the ioengine"),
    (
        r"file system does not support direct=1",
        "the file system refuses direct I/O; set direct: false",
    ),
    (
        r"io_uring.*(Operation not permitted|Function not implemented)"
        r"|Operation not permitted.*io_uring",
        "io_uring is off here",
    ),
    (
        r"(?s:opening blockdev.{,200}Permission denied)|/dev/.*Permission denied",
        "this user may not open the device; in pods add privileges: [block], or set"
        " device_ownership_from_security_context in the node's containerd; elsewhere run as root",
    ),
)
"""What fio says where the kernel, the file system or this user cannot do the job."""


@dataclass
class Target:
    """Where one host's job works: in `folder`, or on a `device` or file beside it."""

    host: Host
    folder: str
    device: str | None
    filesystem: dict[str, Any]


class Fio(Benchmark[FioParams]):
    """I/O operations, bandwidth and latency of a file system or block device, with fio.

    On several hosts, each host runs fio's server with its own files. The files lie in the shared
    volume, or in a volume of the host. The first host runs the client, which starts all jobs at
    once. Rows with a subject belong to one host and carry the name of its node. Rows without a
    subject are the total. The sample is invalid if the hosts start further apart than a tenth of
    the measured time. Files are removed after each sample.

    `direct` on a file system in memory is skipped: the kernel accepts the flag, but there is no
    disk.

    Clock: fio's own. A job's clock starts after its files are laid out and `ramp` is over. It
    stops at `runtime` or at the end of the size. An I/O's latency runs from its creation to its
    completion; submission and completion latency are its two parts.
    """

    canaries = ("disk",)
    tools = (Tool("fio", dict.fromkeys(("apt", "dnf", "zypper", "pacman", "brew"), "fio")),)
    remarks = (
        # A worker that died is missing in the sums, and fio ends with exit code 0.
        Remark(r"fio: pid=\d+, (got signal|err)=", "failed"),
        Remark(r"fio: terminating on signal", "failed"),
        Remark(r"(?i)^fio: .*warning|^fio: unable to", "note"),
    )
    pins = ("client", "server")
    coords = ("direction",)
    short_forms: ClassVar[Mapping[str, ShortForm]] = {
        "rw": {
            "read": "sequential read",
            "write": "sequential write",
            "randread": "random read",
            "randwrite": "random write",
            "rw": "sequential read and write",
            "randrw": "random read and write",
            "trim": "sequential trim",
            "randtrim": "random trim",
            "trimwrite": "sequential trim and write",
            "randtrimwrite": "random trim and write",
        },
        "direction": "{}",
        "rwmixread": "{} % reads",
        "percentage_random": "{} % random",
        "bs": "{}",
        "iodepth": "depth {}",
        "numjobs": "{} jobs",
        "ioengine": "{}",
        "direct": {"true": "direct", "false": "buffered"},
        "size": "size {}",
        "nrfiles": "{} files",
        "thread": {"true": "threads", "false": "processes"},
        "runtime": "for {}",
        "ramp": "ramp {}",
        "fsync": {"0": "no fsync"},
        "directory": "in {}",
        "file": "{}",
    }
    metrics = (
        Metric(
            "iops",
            "1/s",
            "higher",
            "I/Os completed in a second, by direction",
            headline=True,
            counts="I/Os",
            label="{direction} IOPS",
        ),
        Metric(
            "bandwidth",
            "B/s",
            "higher",
            "data moved in a second, by direction",
            headline=True,
            label="{direction} bandwidth",
        ),
        Metric(
            "latency",
            "s",
            "lower",
            "from creating an I/O to its completion",
            label="{direction} latency",
        ),
        Metric(
            "completion_latency",
            "s",
            "lower",
            "from submission to completion (fio's clat)",
            label="{direction} completion latency",
            in_table="p99",
        ),
        Metric(
            "submission_latency",
            "s",
            "lower",
            "time to submit (fio's slat); asynchronous engines only",
            label="{direction} submission latency",
        ),
        Metric("sync_latency", "s", "lower", "time of an fsync", label="fsync latency"),
        Metric(
            "user_cpu",
            "1",
            "lower",
            "share of a job's time in user code",
            counts="share",
            label="CPU in user code",
        ),
        Metric(
            "system_cpu",
            "1",
            "lower",
            "share of a job's time in the kernel",
            counts="share",
            label="CPU in the kernel",
        ),
        Metric(
            "start_skew",
            "s",
            "lower",
            "first to last host that started, by the hosts' own clocks",
            elapsed=False,
        ),
    )

    def shape(self, params: FioParams) -> dict[str, Any]:
        return {"image": "fio"}

    def check(self, params: FioParams, shape: Shape) -> Iterator[Problem]:
        volume = shape.volume
        block = volume is not None and volume.mode == "Block"
        on_device = block or (params.file or "").startswith("/dev/")
        if "trim" in params.kinds and not on_device:
            yield Problem(
                "no-block-device",
                f"rw {params.rw} needs a block device: volume.mode Block, or file /dev/...",
            )
        if block and (params.directory or params.file or params.nrfiles > 1):
            yield Problem(
                "block-volume",
                "volume.mode is Block; leave out directory, file and nrfiles,"
                " or use mode Filesystem",
            )
        if volume and block and volume.claim and params.writes and not params.overwrite:
            yield Problem(
                "claim-overwritten",
                f"the claim {volume.claim} exists, and the data of its device would be lost;"
                " use another, or set overwrite: true",
            )
        if volume and not params.directory and not params.file:
            yield from self._too_large(params, volume, shape.hosts.count)
        hosts = shape.hosts
        if hosts.count > 1 and hosts.cpus.client:
            yield Problem(
                "unused-pin",
                "hosts.cpus.client: the servers do the I/O of several hosts; pin server",
            )
        if hosts.count == 1 and hosts.cpus.server:
            yield Problem(
                "unused-pin", "hosts.cpus.server: the client does the I/O of one host; pin client"
            )
        if params.file and hosts.count > 1:
            yield Problem(
                "shared-file",
                "file with several hosts would have all of them write one file;"
                " use directory or a volume",
            )

    def _too_large(self, params: FioParams, volume: Volume, hosts: int) -> Iterator[Problem]:
        """Yield that the files of all jobs, or the part of a device, exceed a volume."""
        needed = params.size
        label = "size"
        if volume.mode != "Block":
            needed *= params.numjobs
            label += " x numjobs"
            if volume.common and hosts > 1:
                needed *= hosts
                label += f" x {hosts} hosts"
        if volume.known_size is not None and needed > volume.known_size:
            yield Problem(
                "small-volume",
                f"{label} is {needed} B, volume.size {volume.known_size} B;"
                " make the volume larger or size smaller",
            )

    def identities(self, params: FioParams) -> Iterable[Identity]:
        yield Equal(("iops", params.bs), ("bandwidth",))
        in_flight = params.iodepth * params.numjobs
        yield AtMost(("iops", "latency"), (in_flight,), tolerance=RAMPS)

    def seconds(self, params: FioParams) -> float:
        # Assume 1 GB/s for laying out the files, and for one pass through the size.
        moved = params.size * params.numjobs / 1e9
        return (params.runtime if params.runtime is not None else moved) + params.ramp + moved + 0.2

    def run(self, gang: Gang, params: FioParams) -> list[Measurement]:
        with prepared_targets(gang, params) as targets, ExitStack() as stack:
            filesystems = [target.filesystem for target in targets]
            if argvs := _layout(params, targets):
                _at_once(gang, targets, argvs)
            servers = _servers(gang, targets, stack) if len(targets) > 1 else {}
            if servers:
                commands = [*servers.values(), _client(gang, params, targets, servers)]
                finished = gang.lead.run(commands[-1], timeout=gang.timeout)
            else:
                commands = [command(params, targets[0])]
                finished = gang.lead.run(
                    commands[0],
                    timeout=gang.timeout,
                    cwd=targets[0].folder,
                    cpus=gang.shape.hosts.cpus.client,
                )
            version = re.search(r'"fio version"\s*:\s*"fio-([^"]+)"', finished.stdout)
            gang.output = Output(
                {"client": finished.stdout, "stderr": finished.stderr},
                commands,
                f"fio {version[1]}" if version else "fio",
                {"filesystem": filesystems if servers else filesystems[0]},
            )
            _check_exit(finished)
            gang.output.notes += cached_direct(params, filesystems)
            if servers:
                gang.output.texts["job"] = job_file(params, targets[0])
                gang.output.texts["hosts"] = json.dumps(starts_of(targets, servers))
        measurements = parse(gang.output.texts, params)
        gang.output.notes += too_few(measurements)
        return measurements


def too_few(measurements: Iterable[Measurement]) -> Iterator[str]:
    """Yield a note for each direction whose I/Os are too few for a p99 of their latency."""
    least = needed(0.99)
    for mean in measurements:
        of_all = (mean.metric, mean.stat, mean.subject) == ("latency", "mean", None)
        if of_all and (mean.n or 0) < least:
            direction = mean.coords["direction"]
            yield f"{direction}: too few I/Os for p99, which needs {least} in a sample"


def cached_direct(params: FioParams, filesystems: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a note for each kind of file system that takes direct I/O and may cache it anyway."""
    kinds = {str(facts.get("type")) for facts in filesystems if params.direct and _caches(facts)}
    return [
        f"direct I/O: {kind} may serve it from a cache, so that these are not the disk's figures"
        for kind in sorted(kinds)
    ]


def _caches(facts: Mapping[str, Any]) -> bool:
    """Return whether a file system may serve direct I/O from memory.

    ZFS does so before 2.3 (zfsprops(7)). 9p and FUSE leave it to the server, which may have a page
    cache.
    """
    kind = str(facts.get("type"))
    if kind == "zfs":
        version = re.match(r"(\d+)\.(\d+)", facts.get("zfs_version") or "")
        return version is None or (int(version[1]), int(version[2])) < (2, 3)
    return kind in ("9p", "virtiofs") or kind.startswith("fuse")


@contextmanager
def prepared_targets(gang: Gang, params: FioParams) -> Iterator[list[Target]]:
    """Prepare a place on each host, with enough space and with direct I/O if requested.

    Everything created is removed at the end, also after a failure.
    """
    token = secrets.token_hex(4)
    created: list[tuple[Host, str]] = []
    targets = []
    try:
        for index, host in enumerate(gang.hosts):
            root = params.directory or gang.volume or gang.scratch
            facts = filesystem(host, params.file or root)
            if root == gang.scratch and params.direct and facts.get("type") in _MEMORY:
                root = "/var/tmp"  # on a disk by the FHS, where /tmp may be in memory
                facts = filesystem(host, params.file or root)
            device = params.file or (root if facts.get("type") == "block" else None)
            _refuse(gang, host, params, device, facts)
            folder = f"{gang.scratch if device else root}/perfdag-fio-{token}-{index}"
            if device and host.run(["test", "-e", device], timeout=10).code != 0:
                created.append((host, device))
            created.append((host, folder))
            # fio's client needs its working folder. The scratch folder is not on every host.
            parents = ["-p"] if folder.startswith(gang.scratch) else []
            host.run(["mkdir", *parents, folder], timeout=10).check("mkdir")
            targets.append(Target(host, folder, device, facts))
        yield targets
    finally:
        for host, path in created:
            host.remove(path)


def _refuse(
    gang: Gang, host: Host, params: FioParams, device: str | None, facts: dict[str, Any]
) -> None:
    """Raise Skip or Failed if the target cannot serve the job or holds data that would be lost."""
    kind = facts.get("type")
    where = device or facts.get("mount")
    if params.direct and kind in _MEMORY:
        raise Skip(
            f"direct I/O: {where} on {host.name} is {kind}, memory;"
            " set direct: false, or directory to a folder on a disk"
        )
    status = host.run(["stat", "-L", "-c", "%s", device], timeout=10) if device else None
    if status is None or status.code != 0:
        # fio would make the folders of a file, and leave them.
        if device and host.run(["test", "-d", posixpath.dirname(device)], timeout=10).code != 0:
            raise Failed(f"{device} on {host.name} is in no folder; make it, or name another file")
        free = facts.get("free_bytes")
        needed = params.size * (1 if device else params.numjobs)
        if free is not None and free < needed:
            raise Failed(
                f"{where} on {host.name} has {free} B free, fio needs {needed} B"
                " (size x numjobs); free some or make size smaller"
            )
        return
    ours = device == gang.volume and not (gang.shape.volume and gang.shape.volume.claim)
    if params.writes and not params.overwrite and not ours:
        by = params.rw if params.kinds != ("read",) else "prefill"
        raise Failed(
            f"{device} on {host.name} exists and {by} would destroy its data;"
            " name another, or set overwrite: true"
        )
    holds = facts.get("total_bytes") if kind == "block" else int(status.stdout)
    if holds is not None and holds < params.size:
        # fio would extend a file, and wrap around on a short device.
        raise Failed(
            f"{device} on {host.name} holds {holds} B, size is {params.size} B; make size smaller"
        )


def _layout(params: FioParams, targets: Sequence[Target]) -> list[list[str]]:
    """Return the commands that lay out the files apart from measuring, one for each host.

    There are none where fio may lay out the files itself, which it does before its clock starts.
    """
    blocks = any(target.filesystem.get("type") == "block" for target in targets)
    # fio itself writes files that it only reads, but not the blocks of a device.
    if params.prefill and (params.kinds != ("read",) or blocks):
        bs = min(params.size // params.nrfiles, 1 << 20) // 512 * 512
        fill = {"rw": "write", "bs": bs, "runtime": None, "ramp": 0.0}
        return [command(params.model_copy(update=fill), target) for target in targets]
    if len(targets) > 1:
        # Hosts that lay out files inside the measured run start at different times.
        return [command(params, target, create_only=1) for target in targets]
    return []


def _at_once(gang: Gang, targets: Sequence[Target], argvs: Sequence[list[str]]) -> None:
    """Run a command on each host, all at once. Raises Failed."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(target.host.serve(argv, cwd=target.folder))
            for target, argv in zip(targets, argvs, strict=True)
        ]
        for target, server in zip(targets, servers, strict=True):
            finished = server.wait(gang.timeout)
            # wait() stops a late command without reporting a timeout.
            late = replace(finished, timed_out=finished.seconds >= gang.timeout)
            late.check(f"fio, laying out files on {target.host.name},")


def _servers(gang: Gang, targets: Sequence[Target], stack: ExitStack) -> dict[str, list[str]]:
    """Start a fio server on each host. Return each server's argv by its address and port here.

    A server runs the jobs of whoever connects. So it listens at 127.0.0.1, and the lead reaches it
    through its connection to the host.
    """
    servers = {}
    for target in targets:
        port = target.host.free_port()
        argv = ["fio", f"--server=ip:127.0.0.1,{port}"]
        cpus = gang.shape.hosts.cpus.server
        stack.enter_context(target.host.serve(argv, port=port, cwd=target.folder, cpus=cpus))
        here = stack.enter_context(target.host.forwarded(port))
        servers[f"127.0.0.1:{here}"] = argv
    return servers


def _client(
    gang: Gang, params: FioParams, targets: Sequence[Target], servers: Iterable[str]
) -> list[str]:
    """Write the job of each server, and return the command of the client that starts them all."""
    # json+ adds the histograms, from which the percentiles of all hosts are computed.
    client = ["fio", "--output-format=json+"]
    for index, (target, server) in enumerate(zip(targets, servers, strict=True)):
        path = f"{gang.scratch}/job-{index}.fio"
        gang.hosts[0].put(path, job_file(params, target).encode())
        client += [f"--client=ip:{server.replace(':', ',')}", path]
    return client


def starts_of(targets: Sequence[Target], servers: Iterable[str]) -> list[dict[str, Any]]:
    """Return the server, the name and the start (s, its own clock) of each host.

    A `date` without nanoseconds, as of BusyBox, prints %N or N for them: whole seconds are enough
    for runs of 10 s and more.
    """
    names = gpu_use.by_name([target.host for target in targets])
    started = []
    for target, server, name in zip(targets, servers, names, strict=True):
        # fio's name for the output of exec_prerun
        read = target.host.run(["cat", f"{target.folder}/{JOB}.prerun.txt"], timeout=10)
        text = read.check("reading when a job began").stdout
        began = re.findall(r"^\s*\d+(?:\.\d+)?", text)
        started.append({"server": server, "name": name, "started": float(began[0])})
    return started


def _check_exit(finished: CommandResult) -> None:
    """Raise Skip if the kernel or the file system lacks a capability, Failed with fio's message."""
    log = f"{finished.stderr}\n{finished.stdout[:2000]}"
    for pattern, reason in () if finished.timed_out else _SKIPS:
        if re.search(pattern, log):
            raise Skip(f"fio: {reason}: {finished.tail(200)}")
    finished.check("fio")


def options(params: FioParams, target: Target) -> dict[str, object]:
    """Return the job's options in the order of fio(1).

    fio separates file names by `:`, so a colon in a name is escaped.
    """
    path = target.device or target.folder
    same = ("rw", "bs", "size", "iodepth", "ioengine", "numjobs", "nrfiles")
    job: dict[str, object] = {
        "filename" if target.device else "directory": path.replace(":", r"\:"),
        **{name: getattr(params, name) for name in same},
        "direct": int(params.direct),
        "thread": int(params.thread),
        "group_reporting": 1,
        # Each host has its own folder, so names need not depend on who starts the job.
        "unique_filename": 0,
        "lat_percentiles": 1,
        "clat_percentiles": 1,
        "slat_percentiles": 1,
        "percentile_list": ":".join(f"{p:g}" for p in _PERCENTILES),
    }
    optional: dict[str, object] = {
        "rwmixread": params.rwmixread if "rw" in params.rw else None,
        "percentage_random": params.percentage_random if params.percentage_random != 100 else None,
        "time_based": None if params.runtime is None else 1,
        "runtime": None if params.runtime is None else f"{round(params.runtime * 1e6)}us",
        "ramp_time": f"{round(params.ramp * 1e6)}us" if params.ramp else None,
        "fsync": params.fsync or None,
    }
    return job | {name: value for name, value in optional.items() if value is not None}


def job_file(params: FioParams, target: Target) -> str:
    """Return the job file for fio's client. exec_prerun records the start time beside the data."""
    job = {**options(params, target), "exec_prerun": "date +%s.%N"}
    return "\n".join([f"[{JOB}]", *(f"{name}={value}" for name, value in job.items()), ""])


def command(params: FioParams, target: Target, **more: int) -> list[str]:
    """Return the command line of fio that runs the job, with the options of `more`."""
    job = {"name": JOB, **options(params, target), **more}
    return ["fio", "--output-format=json", *(f"--{name}={value}" for name, value in job.items())]


def parse(texts: Mapping[str, str], params: FioParams) -> list[Measurement]:
    """Return values by direction: iops in 1/s, bandwidth in B/s, latencies in s.

    `hosts`, of several, is JSON: the `server`, `name` and `started` of each. Rows of one host have
    its name as subject, rows without one are of all. The percentiles of all hosts are computed from
    their histograms, as fio merges none. Raises Failed if a direction or a host is missing, Invalid
    if the hosts started too far apart.
    """
    # Warnings and the servers' log lines precede the report on the same stream.
    report = read_report("fio", texts.get("client", ""))
    try:
        hosts = json.loads(texts["hosts"]) if "hosts" in texts else []
        if not hosts:
            return _rows(_jobs(report["jobs"], 1)[0], params)
        clients = _jobs(report["client_stats"], len(hosts))
        by_server = {f"{job['hostname']}:{job['port']}": job for job in clients}
        [total] = [job for job in report["client_stats"] if job["jobname"] == _ALL]
        rows = _rows(_with_percentiles(total, clients, params), params)
        for host in hosts:
            rows += _rows(by_server[host["server"]], params, host["name"])
        starts = [float(host["started"]) for host in hosts]
        skew = max(starts) - min(starts)
        runtimes = [min(job[kind]["runtime"] for kind in params.kinds) for job in clients]
        measured = min(runtimes) / 1000
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise Failed(f"fio's report lacks {error}: not the JSON of a whole run") from error
    rows.append(Measurement("start_skew", skew, n=len(starts)))
    if skew > _SKEW * measured:
        raise Invalid(
            f"the hosts started within {skew:.2f} s of each other, more than {_SKEW:.0%} of the"
            f" {measured:.3g} s measured: use a longer runtime, or synchronise their clocks",
            measurements=rows,
        )
    return rows


def _jobs(report: Sequence[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    jobs = [job for job in report if job["jobname"] != _ALL]
    for job in jobs:
        if job["error"]:
            raise Failed(f"fio's job ended with error {job['error']}")
    if len(jobs) != count:
        raise Failed(f"fio reports {len(jobs)} jobs, {count} were requested")
    return jobs


def _with_percentiles(
    total: dict[str, Any], clients: Sequence[dict[str, Any]], params: FioParams
) -> dict[str, Any]:
    """Add percentiles of all hosts to the total, if every host's report has its histogram."""
    merged = dict(total)
    for kind in params.kinds:
        side = merged[kind] = dict(total[kind])
        for _, key in _LATENCIES:
            bins = [client[kind].get(key, {}).get("bins") for client in clients]
            if key in side and all(bins):
                side[key] = {**side[key], "percentile": percentiles(bins)}
    return merged


def percentiles(histograms: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """Return percentiles of several histograms together, in ns, as fio computes them.

    A percentile is the value of the bin where the count reaches p % of all.
    """
    counts: Counter[int] = Counter()
    for histogram in histograms:
        counts.update({int(nanoseconds): count for nanoseconds, count in histogram.items()})
    reached = 0
    remaining = list(_PERCENTILES)
    values: dict[str, float] = {}
    for value in sorted(counts):
        reached += counts[value]
        while remaining and reached >= remaining[0] / 100 * counts.total():
            values[f"{remaining.pop(0):f}"] = float(value)
    return values


def _rows(job: dict[str, Any], params: FioParams, subject: str | None = None) -> list[Measurement]:
    rows = []
    for kind in params.kinds:
        side = job[kind]
        total = int(side["total_ios"])
        seconds = side["runtime"] / 1000
        # A job that ends early hit an error or a device's end.
        if params.runtime is not None and seconds < 0.9 * params.runtime:
            raise Failed(f"fio's {kind} ended after {seconds:.2f} s of {params.runtime:g} s")
        coords = {"direction": kind}
        for metric, rate in (("iops", float(side["iops"])), ("bandwidth", float(side["bw_bytes"]))):
            # fio reports its runtime in ms.
            step = rate / (1000 * seconds) if seconds else math.inf
            rows.append(Measurement(metric, rate, "value", coords, total, subject, step=step))
        for metric, key in _LATENCIES:
            rows += _latency(metric, side[key], coords, subject)
    if (sync := job.get("sync", {}).get("lat_ns", {})).get("N"):
        rows += _latency("sync_latency", sync, {}, subject)
    rows += [
        Measurement(metric, float(job[key]) / 100, subject=subject)
        for metric, key in (("user_cpu", "usr_cpu"), ("system_cpu", "sys_cpu"))
    ]
    return rows


def _latency(
    metric: str, block: Mapping[str, Any], coords: Mapping[str, str], subject: str | None
) -> list[Measurement]:
    """Return mean, extremes, and the percentiles that this many I/Os support.

    The list is empty if fio measured none, as for the submission latency of psync.
    """
    n = int(block["N"])
    if n == 0 or block["max"] == 0:
        return []
    stats = {stat: block[stat] for stat in ("mean", "min", "max", "stddev")}
    percentile = {float(p): value for p, value in block.get("percentile", {}).items()}
    stats |= {
        f"p{p:g}": percentile[p]
        for p in map(float, _PERCENTILES)
        if p in percentile and n >= needed(p / 100)
    }
    return [
        Measurement(metric, float(value) / 1e9, stat, coords, n, subject)
        for stat, value in stats.items()
    ]
