"""fio: throughput and latency of a file system or block device; on several hosts by fio's own client and server."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from perfdag.benchmark import (
    Benchmark,
    Gang,
    Invalid,
    Measurement,
    Metric,
    Output,
    Params,
    Skip,
    Tool,
)
from perfdag.hosts import Finished
from perfdag.shape import Shape
from perfdag.steps import fio_files, fio_report, gpu
from perfdag.steps.filesystems import filesystem
from perfdag.steps.fio_files import Place
from perfdag.units import Duration, PositiveDuration, Size

_SYNCHRONOUS = ("sync", "psync", "vsync", "pvsync", "pvsync2", "mmap", "splice")
_SKEW = 0.1  # part of the measured time by which hosts may start apart; beyond it the sum is not of hosts at work together
_JOB = "worker"
_PRERUN = f"{_JOB}.prerun.txt"  # fio's own name for the output of exec_prerun

# no control characters: the value goes into a line of a job file
FilePath = Annotated[str, StringConstraints(pattern=r"^/[^\x00-\x1f\x7f]*$", max_length=4096)]


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
    bs: Size = Field(4096, ge=512, le=1 << 30, description="bytes of one I/O")
    size: Size = Field(1 << 30, ge=512, description="bytes that each job works on")
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
        description="write all data before measuring: writes meet no new block, reads of a block device no hole",
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
        description="allow writing over a `file` that exists, or over a block volume of an existing `claim`: its data is lost",
    )

    @property
    def directions(self) -> tuple[str, ...]:
        """Of read, write and trim those that this pattern does."""
        kind = self.rw.removeprefix("rand")
        if kind == "rw":
            return (
                ("write",)
                if self.rwmixread == 0
                else ("read",)
                if self.rwmixread == 100
                else ("read", "write")
            )
        return ("trim", "write") if kind == "trimwrite" else (kind,)

    @property
    def writes(self) -> bool:
        """Whether data that is there before is lost."""
        return self.prefill or self.directions != ("read",)

    @model_validator(mode="after")
    def _possible(self) -> "FioParams":
        if self.directory is not None and self.file is not None:
            raise ValueError("directory and file exclude each other; set one of them")
        if self.file is not None and self.nrfiles > 1:
            raise ValueError("nrfiles: one file is given; leave it at 1, or give a directory")
        if self.size // self.nrfiles < self.bs:
            raise ValueError(
                f"size / nrfiles is {self.size // self.nrfiles} B, less than one I/O of bs {self.bs} B"
            )
        if self.iodepth > 1 and self.ioengine in _SYNCHRONOUS:
            raise ValueError(
                f"iodepth {self.iodepth}: {self.ioengine} has one I/O in flight; use libaio, io_uring or posixaio, or numjobs"
            )
        if self.iodepth > 1 and self.ioengine == "libaio" and not self.direct:
            text = "through the page cache libaio has one I/O in flight; use direct: true, io_uring or posixaio, or numjobs"
            raise ValueError(f"iodepth {self.iodepth}: {text}")
        if self.ioengine == "mmap" and self.direct:
            raise ValueError("ioengine mmap works through the page cache; set direct: false")
        if self.direct and self.bs % 512:
            raise ValueError(
                f"bs {self.bs} B: direct I/O needs a multiple of 512 B; change bs or set direct: false"
            )
        if self.percentage_random != 100 and not self.rw.startswith("rand"):
            raise ValueError(
                f"percentage_random: rw is {self.rw}, not random; use one of randread, randwrite, randrw"
            )
        if (
            self.prefill
            and self.directions == ("read",)
            and self.file is not None
            and not self.overwrite
        ):
            raise ValueError(
                f"prefill writes over {self.file}; set overwrite: true, or prefill: false"
            )
        return self


class Fio(Benchmark[FioParams]):
    """I/O operations, bandwidth and latency of a file system or block device, with fio.

    With several hosts each runs fio's server with files of its own, in the shared volume or in one of its own, and the first host
    is the client that starts all at once, their files laid out before. Rows with a subject are one host's, by the name of its node, rows without are all together,
    invalid where the hosts started further apart than a tenth of the time. Files are removed after each sample. `direct` on a file system
    in memory is skipped: the kernel takes the flag there and there is no disk.
    On overlayfs the flag reaches the file system below, which the row cannot name.

    Clock: fio's own. A job's clock starts when its files are laid out (and `ramp` is over) and stops at `runtime` or at the end of
    the size; an I/O's latency runs from its creation to its completion, submission and completion latency are its two parts.
    """

    name = "fio"
    image = "fio"
    canaries = ("disk",)
    tools = (Tool("fio", dict.fromkeys(("apt", "dnf", "zypper", "pacman", "brew"), "fio")),)
    pins = ("client", "server")
    Params: ClassVar[type[Params]] = FioParams
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
        wrong = []
        block = shape.volume is not None and shape.volume.mode == "Block"
        if (
            "trim" in params.directions
            and not block
            and not (params.file or "").startswith("/dev/")
        ):
            wrong.append(
                f"rw {params.rw} needs a block device: volume.mode Block, or file /dev/..."
            )
        if block and (params.directory or params.file or params.nrfiles > 1):
            wrong.append(
                "volume.mode is Block; leave out directory, file and nrfiles, or use mode Filesystem"
            )
        claim = shape.volume.claim if block and shape.volume else None
        if claim and params.writes and not params.overwrite:
            wrong.append(
                f"the claim {claim} exists, and the data of its device would be lost; use another, or set overwrite: true"
            )
        if shape.volume is not None and not (params.directory or params.file):
            known = shape.volume.known_size
            sharing = shape.hosts.count if shape.volume.common else 1
            needed, said = (
                (params.size, "size")
                if block
                else (params.size * params.numjobs * sharing, fio_files.product(sharing))
            )
            if known is not None and needed > known:
                wrong.append(
                    f"{said} is {needed} B, volume.size {known} B; make the volume larger or size smaller"
                )
        unused = "server" if shape.hosts.count == 1 else "client"
        if getattr(shape.hosts.cpus, unused):
            does = (
                "the client does the I/O of one host"
                if unused == "server"
                else "the servers do the I/O of several hosts"
            )
            wrong.append(
                f"hosts.cpus.{unused}: {does}; pin {'client' if unused == 'server' else 'server'}"
            )
        if params.file and shape.hosts.count > 1:
            wrong.append(
                "file with several hosts would have all of them write one file; use directory or a volume"
            )
        return wrong

    def seconds(self, params: FioParams) -> float:
        # a guess of 1 GB/s where fio goes once through the size, and for laying the files out
        moved = params.size * params.numjobs / 1e9
        return (params.runtime if params.runtime is not None else moved) + params.ramp + moved + 0.2

    def least_seconds(self, params: FioParams) -> float:
        return 0.0 if params.runtime is None else params.runtime + params.ramp

    def longest(self, params: FioParams, timeout: float) -> float:
        return fio_files.STEPS * timeout

    def provenance(self, gang: Gang, params: FioParams) -> dict[str, Any]:
        target = params.file or fio_files.home(gang, params, gang.hosts[0])
        return {"filesystem": filesystem(gang.hosts[0], target)}

    def run(self, gang: Gang, params: FioParams) -> Output:
        with fio_files.files(gang, params) as places, ExitStack() as stack:
            with self._laying_out(gang, params, places):
                servers = self._servers(gang, places, stack) if len(places) > 1 else {}
            if params.drop_caches:
                fio_files.drop_caches(gang)
            return (
                self._distributed(gang, params, places, servers)
                if servers
                else self._local(gang, params, places[0])
            )

    @contextmanager
    def _laying_out(self, gang: Gang, params: FioParams, places: list[Place]) -> Iterator[None]:
        """Lay out the files where that is to be apart from measuring: on all hosts at once, beginning before the block and done after it."""
        # files that are only read are written by fio itself, before its clock starts; a device's blocks are not
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
            argvs = [_command(params.model_copy(update=fill), place) for place in places]
        elif (
            params.drop_caches or len(places) > 1
        ):  # hosts that lay out their files inside the measured run start at different times
            argvs = [[*_command(params, place), "--create_only=1"] for place in places]
        else:
            argvs = []
        with ExitStack() as stack:
            pairs = zip(places, argvs, strict=False)
            laying = [
                (place, stack.enter_context(place.host.serve(argv, cwd=place.folder)))
                for place, argv in pairs
            ]
            yield
            for place, each in laying:
                laid = each.wait(gang.timeout)
                late = replace(
                    laid, timed_out=laid.seconds >= gang.timeout
                )  # wait() ends what is late and does not say so
                late.check(f"fio, laying out files on {place.host.name},")

    def _servers(self, gang: Gang, places: list[Place], stack: ExitStack) -> dict[str, list[str]]:
        """A fio server on each host: its argv by its address and port."""
        made = {}
        for place in places:
            host, port = place.host, place.host.free_port("tcp")
            kind = "ip6" if ":" in host.address else "ip"
            argv = ["fio", f"--server={kind}:{host.address},{port}"]
            stack.enter_context(
                host.serve(argv, port=port, cwd=place.folder, cpus=gang.shape.hosts.cpus.server)
            )
            made[f"{host.address}:{port}"] = argv
        return made

    def _local(self, gang: Gang, params: FioParams, place: Place) -> Output:
        argv = _command(params, place)
        finished = gang.hosts[0].run(
            argv, timeout=gang.timeout, cwd=place.folder, cpus=gang.shape.hosts.cpus.client
        )
        return _output(finished, [argv], {"filesystem": place.described})

    def _distributed(
        self, gang: Gang, params: FioParams, places: list[Place], servers: dict[str, list[str]]
    ) -> Output:
        lead = gang.hosts[0]
        client = [
            "fio",
            "--output-format=json+",
        ]  # with the histograms: percentiles of all hosts are computed from them
        for index, (place, argv) in enumerate(zip(places, servers.values(), strict=True)):
            job = str(PurePosixPath(gang.scratch) / f"job-{index}.fio")
            lead.put(job, job_file(params, place).encode())
            client += [argv[-1].replace("--server=", "--client="), job]
        finished = lead.run(client, timeout=gang.timeout)
        output = _output(
            finished,
            [*servers.values(), client],
            {"filesystem": [place.described for place in places]},
        )
        output.texts["job"] = job_file(params, places[0])
        starts = [place.host.get(f"{place.folder}/{_PRERUN}").decode().strip() for place in places]
        output.facts |= {
            "started": starts,
            "workers": dict(
                zip(servers, gpu.by_name([place.host for place in places]), strict=True)
            ),
        }
        return output

    def parse(self, output: Output, params: FioParams) -> list[Measurement]:
        found = fio_report.parse(
            output.texts, params.directions, params.runtime, output.facts.get("workers")
        )
        if output.facts.get("started"):
            starts = [float(each) for each in output.facts["started"]]
            skew = max(starts) - min(starts)
            found.append(Measurement("start_skew", skew, n=len(starts)))
            rates = [
                (each.n or 0, each.value)
                for each in found
                if each.metric == "bandwidth" and each.subject and each.value
            ]
            lasted = min((n * params.bs / rate for n, rate in rates), default=0.0)
            if skew > _SKEW * lasted:
                raise Invalid(
                    f"the hosts started within {skew:.2f} s of each other, more than {_SKEW:.0%} of the {lasted:.3g} s measured: use a longer "
                    "runtime, or synchronise their clocks",
                    output.texts,
                    found,
                )
        return found


_PERCENTILES = ":".join(f"{p:g}" for p in fio_report.PERCENTILES)
_FORMAT = ["--output-format=json"]


def options(params: FioParams, place: Place) -> list[tuple[str, str]]:
    """The job's options in the order of fio(1)'s manual; `:` separates file names there and is escaped."""
    target = ("filename", place.target) if place.target else ("directory", place.folder)
    given: list[tuple[str, object]] = [
        (target[0], target[1].replace(":", r"\:")),
        *(
            (name, getattr(params, name))
            for name in ("rw", "bs", "size", "iodepth", "ioengine", "numjobs", "nrfiles")
        ),
        ("direct", int(params.direct)),
        ("thread", int(params.thread)),
        ("group_reporting", 1),
        (
            "unique_filename",
            0,
        ),  # the folder is the host's own; the same names whoever starts the job
        ("lat_percentiles", 1),
        ("clat_percentiles", 1),
        ("slat_percentiles", 1),
        ("percentile_list", _PERCENTILES),
    ]
    if "rw" in params.rw:
        given.append(("rwmixread", params.rwmixread))
    if params.percentage_random != 100:
        given.append(("percentage_random", params.percentage_random))
    if params.runtime is not None:
        given += [("time_based", 1), ("runtime", f"{round(params.runtime * 1e6)}us")]
    if params.ramp:
        given.append(("ramp_time", f"{round(params.ramp * 1e6)}us"))
    if params.fsync:
        given.append(("fsync", params.fsync))
    return [(name, str(value)) for name, value in given]


def job_file(params: FioParams, place: Place) -> str:
    """The job as a file for fio's client; exec_prerun leaves the start time beside the data."""
    lines = [
        f"{name}={value}"
        for name, value in [*options(params, place), ("exec_prerun", "date +%s.%N")]
    ]
    return "\n".join([f"[{_JOB}]", *lines, ""])


def _command(params: FioParams, place: Place) -> list[str]:
    return [
        "fio",
        *_FORMAT,
        f"--name={_JOB}",
        *(f"--{name}={value}" for name, value in options(params, place)),
    ]


def _output(finished: Finished, argv: list[list[str]], known: dict[str, Any]) -> Output:
    """The output, or Skip where this kernel or file system cannot do it, or Failed with fio's own words."""
    if finished.timed_out:
        finished.check("fio")
    said = f"{finished.stderr}\n{finished.stdout[:2000]}"
    for pattern, reason in (
        (r"engine \S+ not loadable|failed to load engine", "this fio lacks the ioengine"),
        (
            r"file system does not support direct=1",
            "the file system refuses direct I/O; set direct: false",
        ),
        (
            r"io_uring.*(Operation not permitted|Function not implemented)|Operation not permitted.*io_uring",
            "io_uring is off here",
        ),
    ):
        if re.search(pattern, said):
            raise Skip(f"fio: {reason}: {finished.tail(200)}", finished.texts())
    finished.check("fio")
    version = re.search(r'"fio version"\s*:\s*"fio-([^"]+)"', finished.stdout)
    return Output(
        {"client": finished.stdout, "stderr": finished.stderr},
        argv,
        f"fio {version[1]}" if version else "fio",
        known,
    )
