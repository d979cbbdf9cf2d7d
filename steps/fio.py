"""fio: I/O of a file system or block device, on one host or several."""

import math
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from perfdag.benchmark.contract import Benchmark, Gang, Metric, Output, Params, Tool, broken, refuse
from perfdag.hosts import gpu_use
from perfdag.hosts.base import CommandResult, Host
from perfdag.hosts.local import LocalHost, common, filesystem
from perfdag.outcome import Failed, Invalid, Measurement, Skip
from perfdag.shape import Shape
from perfdag.stats.percentiles import needed
from perfdag.steps.json_report import read_report
from perfdag.units import Duration, PositiveDuration, Size

JOB = "worker"
"""The name of fio's job."""
_SYNCHRONOUS = ("sync", "psync", "vsync", "pvsync", "pvsync2", "mmap", "splice")
# fio would replace or cut off text with one of these characters, and use another file.
FilePath = Annotated[
    str,
    StringConstraints(pattern=r"^/([^\x00-\x1f\x7f$;#\\]*[^\x00- \x7f$;#\\])?$", max_length=4096),
]


def _binary(value: Any) -> Any:
    """Return `4k` as fio reads it, as `4KiB`. Other values pass unchanged."""
    if isinstance(value, str) and re.fullmatch(r"\d+[kmgtKMGT]", value):
        return f"{value.upper()}iB"
    return value


FioSize = Annotated[Size, BeforeValidator(_binary)]


class FioParams(Params):
    """fio's options by their own names; sizes in bytes, times in seconds."""

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
    drop_caches: bool = Field(
        False, description="drop the hosts' page caches before measuring; needs root, else skipped"
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
    def directions(self) -> tuple[str, ...]:
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
        return self.prefill or self.directions != ("read",)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        share = self.size // self.nrfiles
        refuse(
            (
                self.directory is not None and self.file is not None,
                "directory and file exclude each other; set one of them",
            ),
            (
                self.file is not None and self.nrfiles > 1,
                "nrfiles: file names one file; leave it at 1, or use directory",
            ),
            (
                share < self.bs,
                f"size / nrfiles is {share} B, less than one I/O of bs {self.bs} B",
            ),
            (
                self.iodepth > 1 and self.ioengine in _SYNCHRONOUS,
                f"iodepth {self.iodepth}: {self.ioengine} has one I/O in flight;"
                " use libaio, io_uring or posixaio, or numjobs",
            ),
            (
                self.iodepth > 1 and self.ioengine == "libaio" and not self.direct,
                f"iodepth {self.iodepth}: through the page cache libaio has one I/O in flight;"
                " use direct: true, io_uring or posixaio, or numjobs",
            ),
            (
                self.ioengine == "mmap" and self.direct,
                "ioengine mmap works through the page cache; set direct: false",
            ),
            (
                self.direct and self.bs % 512 != 0,
                f"bs {self.bs} B: direct I/O needs a multiple of 512 B;"
                " change bs or set direct: false",
            ),
            (
                self.percentage_random != 100 and not self.rw.startswith("rand"),
                f"percentage_random: rw is {self.rw}, not random;"
                " use one of randread, randwrite, randrw",
            ),
            (
                self.prefill
                and self.directions == ("read",)
                and self.file is not None
                and not self.overwrite,
                f"prefill writes over {self.file}; set overwrite: true, or prefill: false",
            ),
        )
        return self


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


class FioTarget:
    """The place where one host's job works: folder, target and facts of its file system."""

    def __init__(
        self, host: Host, folder: str, target: str | None, described: dict[str, Any]
    ) -> None:
        self.host, self.folder, self.target, self.described = host, folder, target, described


def target_directory(gang: Gang, params: FioParams, host: Host) -> str:
    """Return the folder, or the volume's block device, that holds a host's files."""
    if params.directory or gang.volume:
        return params.directory or str(gang.volume)
    if params.direct and filesystem(host, gang.scratch).get("type") in _MEMORY:
        return _DISK_SCRATCH
    return gang.scratch


@contextmanager
def prepared_targets(gang: Gang, params: FioParams) -> Iterator[list[FioTarget]]:
    """Prepare a place on each host, with enough space and with direct I/O if requested.

    Everything created is removed at the end, also after a failure.
    """
    token = secrets.token_hex(4)
    created: list[tuple[Host, str]] = []
    try:
        places = []
        for index, host in enumerate(gang.hosts):
            root = target_directory(gang, params, host)
            if params.directory and not _exists(host, params.directory):
                raise Failed(
                    f"directory {params.directory} does not exist on {host.name};"
                    " make it, or name another"
                )
            described = filesystem(host, params.file or root)
            if params.direct and (reason := direct_io_caveat(str(described.get("type")))):
                described["direct_io"] = reason
            device = params.file or (root if described.get("type") == "block" else None)
            folder = str(
                PurePosixPath(gang.scratch if device else root) / f"perfdag-fio-{token}-{index}"
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
            if device and described.get("type") != "block" and not _exists(host, device):
                if not _exists(host, parent := str(PurePosixPath(device).parent)):
                    raise Failed(
                        f"folder {parent} of file {device} does not exist on {host.name};"
                        " make it, or name another file"
                    )
                created.append((host, device))
            created.append((host, folder))
            # fio's client needs its working folder.
            host.run(["mkdir", "-p", folder], timeout=10).check("mkdir")
            places.append(FioTarget(host, folder, device, described))
        yield places
    finally:
        for host, path in created:
            host.remove(path)


def direct_io_caveat(kind: str) -> str | None:
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
    needed = round(params.size * (1 if device else params.numjobs * sharing) * _SPARE)
    if (
        kind != "block"
        and free is not None
        and not (device and _exists(host, device))
        and free < needed
    ):
        label = "size" if device else space_formula(params, sharing)
        raise Failed(
            f"{where} on {host.name} has {free} B free, fio needs {needed} B ({label});"
            " free some or make size smaller"
        )


def space_formula(params: FioParams, sharing: int) -> str:
    """Return the formula of the space that so many hosts need together."""
    return "size x numjobs" + (f" x {sharing} hosts" if sharing > 1 else "")


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


PERCENTILES = (50, 90, 95, 99, 99.9, 99.99)
_LATENCIES = (
    ("latency", "lat_ns"),
    ("completion_latency", "clat_ns"),
    ("submission_latency", "slat_ns"),
)
_ALL = "All clients"


def _parse(
    texts: Mapping[str, str],
    directions: tuple[str, ...],
    runtime: float | None,
    workers: Mapping[str, str] | None = None,
) -> list[Measurement]:
    """Return measurements by direction: iops in 1/s, bandwidth in B/s, latencies in s.

    With several hosts, `workers` names each host by its server's `address:port`. Rows with that
    subject belong to one host, rows without a subject to all. The percentiles of all hosts are
    computed from their histograms (json+), never averaged, as fio merges no percentiles.
    Raises Failed if a direction or a host is missing from the report.
    """
    # Warnings and the servers' log lines precede the report on the same stream.
    report = read_report("fio", texts.get("client", ""), texts)
    try:
        if not workers:
            return _one(_jobs(report, "jobs", 1, texts)[0], directions, runtime, texts)
        clients = _jobs(report, "client_stats", len(workers), texts)
        by_server = {f"{job['hostname']}:{job['port']}": job for job in clients}
        by_host = []
        for server, subject in workers.items():
            by_host += _one(by_server[server], directions, runtime, texts, subject)
        clients_total = (job for job in report["client_stats"] if job["jobname"] == _ALL)
        total = next(clients_total, None)
        if total is None:
            raise Failed(f"fio's report lacks the total of {len(workers)} hosts", texts)
        return (
            _one(_with_percentiles(total, clients, directions), directions, runtime, texts)
            + by_host
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise Failed(f"fio's report lacks {error}: not the JSON of a whole run", texts) from error


def _with_percentiles(
    total: dict[str, Any], clients: list[dict[str, Any]], directions: tuple[str, ...]
) -> dict[str, Any]:
    """Add percentiles of all hosts to the total, if every host's report has its histogram."""
    merged = dict(total)
    for direction in directions:
        side = merged[direction] = dict(total[direction])
        for _, key in _LATENCIES:
            bins = [client[direction].get(key, {}).get("bins") for client in clients]
            if key in side and all(bins):
                side[key] = {**side[key], "percentile": percentiles(bins)}
    return merged


def percentiles(histograms: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """Return percentiles of several histograms together, in ns, as fio computes them.

    A percentile is the value of the bin where the count reaches p % of all.
    """
    counts: dict[int, int] = {}
    for histogram in histograms:
        for nanoseconds, count in histogram.items():
            counts[int(nanoseconds)] = counts.get(int(nanoseconds), 0) + count
    total, reached, remaining = sum(counts.values()), 0, list(PERCENTILES)
    values: dict[str, float] = {}
    for value in sorted(counts):
        reached += counts[value]
        while remaining and reached >= remaining[0] / 100 * total:
            values[f"{remaining.pop(0):f}"] = float(value)
    return values


def _jobs(
    report: dict[str, Any], key: str, count: int, texts: Mapping[str, str]
) -> list[dict[str, Any]]:
    jobs = [job for job in report[key] if job["jobname"] != _ALL]
    for job in jobs:
        if job["error"]:
            raise Failed(f"fio's job ended with error {job['error']}", texts)
    if len(jobs) != count:
        raise Failed(f"fio reports {len(jobs)} jobs, {count} were requested", texts)
    return jobs


def _one(
    job: dict[str, Any],
    directions: tuple[str, ...],
    runtime: float | None,
    texts: Mapping[str, str],
    subject: str | None = None,
) -> list[Measurement]:
    measurements = []
    for direction in directions:
        side = job[direction]
        total = int(side["total_ios"])
        if total <= 0:
            raise Failed(f"fio completed no {direction}", texts)
        # fio reports its runtime in ms. A job that ends early hit an error or a device's end.
        if runtime is not None and side["runtime"] / 1000 < 0.9 * runtime:
            raise Failed(
                f"fio's {direction} ended after {side['runtime'] / 1000:.2f} s of {runtime:g} s",
                texts,
            )
        coords = {"direction": direction}
        # fio 2 reports KiB/s only.
        bandwidth = side["bw_bytes"] if "bw_bytes" in side else side["bw"] * 1024
        for metric, rate in (("iops", float(side["iops"])), ("bandwidth", float(bandwidth))):
            step = rate / side["runtime"] if side["runtime"] else math.inf
            measurements.append(
                Measurement(metric, rate, coords=coords, n=total, subject=subject, step=step)
            )
        for metric, key in _LATENCIES:
            # fio 2 reports microseconds, under the name without a suffix.
            block, scale = (side[key], 1e9) if key in side else (side[key.removesuffix("_ns")], 1e6)
            measurements += _latency(metric, block, scale, coords, subject, total)
    sync = job.get("sync", {}).get("lat_ns", {})
    if sync.get("N"):
        measurements += _latency("sync_latency", sync, 1e9, {}, subject, int(sync["N"]))
    measurements.append(Measurement("user_cpu", float(job["usr_cpu"]) / 100, subject=subject))
    measurements.append(Measurement("system_cpu", float(job["sys_cpu"]) / 100, subject=subject))
    return measurements


def _latency(
    metric: str,
    block: Mapping[str, Any],
    scale: float,
    coords: Mapping[str, str],
    subject: str | None,
    total: int,
) -> list[Measurement]:
    """Return mean, extremes, and the percentiles that this many I/Os support.

    The list is empty if fio measured none, as for the submission latency of psync.
    """
    n = int(block.get("N", total))
    if n == 0 or block["max"] == 0:
        return []
    stats = {
        "mean": block["mean"],
        "min": block["min"],
        "max": block["max"],
        "stddev": block["stddev"],
    }
    percentile = {float(p): value for p, value in block.get("percentile", {}).items()}
    stats |= {
        f"p{p:g}": percentile[p]
        for p in map(float, PERCENTILES)
        if p in percentile and n >= needed(p / 100)
    }
    return [
        Measurement(metric, float(value) / scale, stat, coords, n, subject)
        for stat, value in stats.items()
    ]


PRERUN = f"{JOB}.prerun.txt"
"""fio's name for the output of exec_prerun."""
_PERCENTILES = ":".join(f"{p:g}" for p in PERCENTILES)


def options(params: FioParams, place: FioTarget) -> list[tuple[str, str]]:
    """Return the job's options in the order of fio(1).

    fio separates file names by `:`, so a colon in a name is escaped.
    """
    target = ("filename", place.target) if place.target else ("directory", place.folder)
    pairs: list[tuple[str, object]] = [
        (target[0], target[1].replace(":", r"\:")),
        *(
            (name, getattr(params, name))
            for name in ("rw", "bs", "size", "iodepth", "ioengine", "numjobs", "nrfiles")
        ),
        ("direct", int(params.direct)),
        ("thread", int(params.thread)),
        ("group_reporting", 1),
        # Each host has its own folder, so names need not depend on who starts the job.
        ("unique_filename", 0),
        ("lat_percentiles", 1),
        ("clat_percentiles", 1),
        ("slat_percentiles", 1),
        ("percentile_list", _PERCENTILES),
    ]
    if "rw" in params.rw:
        pairs.append(("rwmixread", params.rwmixread))
    if params.percentage_random != 100:
        pairs.append(("percentage_random", params.percentage_random))
    if params.runtime is not None:
        pairs += [("time_based", 1), ("runtime", f"{round(params.runtime * 1e6)}us")]
    if params.ramp:
        pairs.append(("ramp_time", f"{round(params.ramp * 1e6)}us"))
    if params.fsync:
        pairs.append(("fsync", params.fsync))
    return [(name, str(value)) for name, value in pairs]


def job_file(params: FioParams, place: FioTarget) -> str:
    """Return the job file for fio's client. exec_prerun records the start time beside the data."""
    lines = [
        f"{name}={value}"
        for name, value in [*options(params, place), ("exec_prerun", "date +%s.%N")]
    ]
    return "\n".join([f"[{JOB}]", *lines, ""])


def command(params: FioParams, place: FioTarget, *more: tuple[str, str]) -> list[str]:
    """Return the command line of fio that runs the job, with the options of `more`."""
    pairs = [("name", JOB), *options(params, place), *more]
    return ["fio", "--output-format=json", *(f"--{key}={value}" for key, value in pairs)]


_SKEW = 0.1
"""Share of the measured time by which the hosts may start apart.

Beyond it, the sum is not a rate that all hosts reached together."""


class Fio(Benchmark[FioParams]):
    """I/O operations, bandwidth and latency of a file system or block device, with fio.

    On several hosts, each host runs fio's server with its own files. The files lie in the shared
    volume, or in a volume of the host. The first host runs the client, which starts all jobs at
    once. Rows with a subject belong to one host and carry the name of its node. Rows without a
    subject are the total. The sample is invalid if the hosts start further apart than a tenth of
    the measured time. Files are removed after each sample.

    `direct` on a file system in memory is skipped: the kernel accepts the flag, but there is no
    disk. On overlayfs the flag reaches the lower file system, which the row cannot name.

    Clock: fio's own. A job's clock starts after its files are laid out and `ramp` is over. It
    stops at `runtime` or at the end of the size. An I/O's latency runs from its creation to its
    completion; submission and completion latency are its two parts.
    """

    name = "fio"
    image = "fio"
    canaries = ("disk",)
    tools = (Tool("fio", dict.fromkeys(("apt", "dnf", "zypper", "pacman", "brew"), "fio")),)
    pins = ("client", "server")
    Params: ClassVar[type[Params]] = FioParams
    coords = ("direction",)
    metrics = (
        Metric("iops", "1/s", "higher", "I/Os completed in a second, by direction", headline=True),
        Metric("bandwidth", "B/s", "higher", "data moved in a second, by direction", headline=True),
        Metric("latency", "s", "lower", "from creating an I/O to its completion"),
        Metric("completion_latency", "s", "lower", "from submission to completion (fio's clat)"),
        Metric(
            "submission_latency",
            "s",
            "lower",
            "time to submit (fio's slat); asynchronous engines only",
        ),
        Metric("sync_latency", "s", "lower", "time of an fsync"),
        Metric("user_cpu", "1", "lower", "share of a job's time in user code"),
        Metric("system_cpu", "1", "lower", "share of a job's time in the kernel"),
        Metric(
            "start_skew", "s", "lower", "first to last host that started, by the hosts' own clocks"
        ),
    )

    def check(self, params: FioParams, shape: Shape) -> list[str]:
        volume, several = shape.volume, shape.hosts.count > 1
        block = volume is not None and volume.mode == "Block"
        claim = volume.claim if block and volume else None
        known, needed, label = volume.known_size if volume else None, params.size, "size"
        if volume and not block:
            sharing = shape.hosts.count if volume.common else 1
            needed, label = needed * params.numjobs * sharing, space_formula(params, sharing)
        pin, unused, reason = (
            ("server", "client", "the servers do the I/O of several hosts")
            if several
            else ("client", "server", "the client does the I/O of one host")
        )
        return broken(
            (
                "trim" in params.directions
                and not block
                and not (params.file or "").startswith("/dev/"),
                f"rw {params.rw} needs a block device: volume.mode Block, or file /dev/...",
            ),
            (
                block and (params.directory or params.file or params.nrfiles > 1),
                "volume.mode is Block; leave out directory, file and nrfiles,"
                " or use mode Filesystem",
            ),
            (
                claim and params.writes and not params.overwrite,
                f"the claim {claim} exists, and the data of its device would be lost;"
                " use another, or set overwrite: true",
            ),
            (
                known is not None and needed > known and not (params.directory or params.file),
                f"{label} is {needed} B, volume.size {known} B;"
                " make the volume larger or size smaller",
            ),
            (
                getattr(shape.hosts.cpus, unused),
                f"hosts.cpus.{unused}: {reason}; pin {pin}",
            ),
            (
                params.file and several,
                "file with several hosts would have all of them write one file;"
                " use directory or a volume",
            ),
        )

    def seconds(self, params: FioParams) -> float:
        # Assume 1 GB/s for laying out the files, and for one pass through the size.
        moved = params.size * params.numjobs / 1e9
        return (params.runtime if params.runtime is not None else moved) + params.ramp + moved + 0.2

    def least_seconds(self, params: FioParams) -> float:
        return 0.0 if params.runtime is None else params.runtime + params.ramp

    def provenance(self, gang: Gang, params: FioParams) -> dict[str, Any]:
        target = params.file or target_directory(gang, params, gang.hosts[0])
        return {"filesystem": filesystem(gang.hosts[0], target)}

    def run(self, gang: Gang, params: FioParams) -> Output:
        with prepared_targets(gang, params) as places, ExitStack() as stack:
            with self._laying_out(gang, params, places):
                servers = self._servers(gang, places, stack) if len(places) > 1 else {}
            if params.drop_caches:
                drop_caches(gang)
            return (
                self._distributed(gang, params, places, servers)
                if servers
                else self._local(gang, params, places[0])
            )

    @contextmanager
    def _laying_out(self, gang: Gang, params: FioParams, places: list[FioTarget]) -> Iterator[None]:
        """Lay out the files apart from measuring, on all hosts at once.

        Start before the block and wait for the end after it. Nothing happens if fio may lay out
        the files itself: it does so before its clock starts.
        """
        # fio itself writes files that it only reads, but not the blocks of a device.
        if params.prefill and (
            params.directions != ("read",)
            or any(place.described.get("type") == "block" for place in places)
        ):
            fill = {
                "rw": "write",
                "bs": min(params.size // params.nrfiles, 1 << 20) // 512 * 512,
                "runtime": None,
                "ramp": 0.0,
            }
            argvs = [command(params.model_copy(update=fill), place) for place in places]
        elif params.drop_caches or len(places) > 1:
            # Hosts that lay out files inside the measured run start at different times.
            argvs = [command(params, place, ("create_only", "1")) for place in places]
        else:
            argvs = []
        with ExitStack() as stack:
            pairs = zip(places, argvs, strict=False)
            layouts = [
                (place, stack.enter_context(place.host.serve(argv, cwd=place.folder)))
                for place, argv in pairs
            ]
            yield
            for place, server in layouts:
                finished = server.wait(gang.timeout)
                # wait() stops a late command without reporting a timeout.
                late = replace(finished, timed_out=finished.seconds >= gang.timeout)
                late.check(f"fio, laying out files on {place.host.name},")

    def _servers(
        self, gang: Gang, places: list[FioTarget], stack: ExitStack
    ) -> dict[str, list[str]]:
        """Start a fio server on each host. Return each server's argv by its address and port here.

        A server runs the jobs of whoever connects. So it listens at 127.0.0.1, and the lead
        reaches it through its connection to the host.
        """
        servers = {}
        for place in places:
            host, port = place.host, place.host.free_port()
            argv = ["fio", f"--server=ip:127.0.0.1,{port}"]
            stack.enter_context(
                host.serve(argv, port=port, cwd=place.folder, cpus=gang.shape.hosts.cpus.server)
            )
            servers[f"127.0.0.1:{stack.enter_context(host.forwarded(port))}"] = argv
        return servers

    def _local(self, gang: Gang, params: FioParams, place: FioTarget) -> Output:
        argv = command(params, place)
        finished = gang.hosts[0].run(
            argv, timeout=gang.timeout, cwd=place.folder, cpus=gang.shape.hosts.cpus.client
        )
        return _output(finished, [argv], {"filesystem": place.described})

    def _distributed(
        self, gang: Gang, params: FioParams, places: list[FioTarget], servers: dict[str, list[str]]
    ) -> Output:
        lead = gang.hosts[0]
        # json+ adds the histograms, from which the percentiles of all hosts are computed.
        client = ["fio", "--output-format=json+"]
        for index, (place, server) in enumerate(zip(places, servers, strict=True)):
            path = str(PurePosixPath(gang.scratch) / f"job-{index}.fio")
            lead.put(path, job_file(params, place).encode())
            client += [f"--client=ip:{server.replace(':', ',')}", path]
        finished = lead.run(client, timeout=gang.timeout)
        output = _output(
            finished,
            [*servers.values(), client],
            {"filesystem": [place.described for place in places]},
        )
        output.texts["job"] = job_file(params, places[0])
        starts = [place.host.get(f"{place.folder}/{PRERUN}").decode().strip() for place in places]
        output.facts |= {
            "started": starts,
            "workers": dict(
                zip(servers, gpu_use.by_name([place.host for place in places]), strict=True)
            ),
        }
        return output

    def parse(self, output: Output, params: FioParams) -> list[Measurement]:
        measurements = _parse(
            output.texts, params.directions, params.runtime, output.facts.get("workers")
        )
        if output.facts.get("started"):
            starts = [float(text) for text in output.facts["started"]]
            skew = max(starts) - min(starts)
            measurements.append(Measurement("start_skew", skew, n=len(starts)))
            rates = [
                (row.n or 0, row.value)
                for row in measurements
                if row.metric == "bandwidth" and row.subject and row.value
            ]
            duration = min((n * params.bs / rate for n, rate in rates), default=0.0)
            if skew > _SKEW * duration:
                raise Invalid(
                    f"the hosts started within {skew:.2f} s of each other, more than"
                    f" {_SKEW:.0%} of the {duration:.3g} s measured: use a longer runtime,"
                    " or synchronise their clocks",
                    output.texts,
                    measurements,
                )
        return measurements


def _output(finished: CommandResult, argv: list[list[str]], facts: dict[str, Any]) -> Output:
    """Return the output.

    Raises Skip if the kernel or the file system lacks a capability, Failed with fio's message.
    """
    if finished.timed_out:
        finished.check("fio")
    log = f"{finished.stderr}\n{finished.stdout[:2000]}"
    for pattern, reason in (
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
    ):
        if re.search(pattern, log):
            raise Skip(f"fio: {reason}: {finished.tail(200)}", finished.texts())
    finished.check("fio")
    version = re.search(r'"fio version"\s*:\s*"fio-([^"]+)"', finished.stdout)
    return Output(
        {"client": finished.stdout, "stderr": finished.stderr},
        argv,
        f"fio {version[1]}" if version else "fio",
        facts,
    )
