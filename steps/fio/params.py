"""Parameters of fio."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, ValidationError, model_validator

from perfdag.benchmark.contract import Params
from perfdag.benchmark.rules import refuse
from perfdag.steps.fio.job_text import OPTIONS, PARAMETERS, read_sections
from perfdag.units import Duration, PositiveDuration, Size

JOB = "worker"
"""The name of the job where no job_file names it."""
_SYNCHRONOUS = ("sync", "psync", "vsync", "pvsync", "pvsync2", "mmap", "splice")
# fio would replace or cut off text with one of these characters, and use another file.
FilePath = Annotated[
    str,
    StringConstraints(pattern=r"^/([^\x00-\x1f\x7f$;#\\]*[^\x00- \x7f$;#\\])?$", max_length=4096),
]


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

    job_file: str | None = Field(
        None,
        max_length=16384,
        # without job_file a point keeps the id that it had before it existed
        exclude_if=lambda text: text is None,
        description="text of a fio job file whose sections run at once and are reported as one;"
        f" a section may set {', '.join(PARAMETERS)} (unset: those of the entry) and"
        f" {', '.join(OPTIONS)}; what says where fio works, what it starts or prints is refused",
    )

    def jobs(self) -> dict[str, tuple["FioParams", dict[str, str]]]:
        """Return the parameters of each job by its name, and the further options of job_file.

        Without job_file there is one job. Raises ValueError with the reason.
        """
        if self.job_file is None:
            return {JOB: (self, {})}
        base = self.model_dump(exclude={"job_file"})
        jobs = {}
        for name, options in read_sections(self.job_file).items():
            own = {key: options.pop(key) for key in PARAMETERS if key in options}
            try:
                jobs[name] = (FioParams(**(base | own)), options)
            except ValidationError as error:
                first = error.errors()[0]
                what = "".join(f"{key}: " for key in first["loc"])
                reason = first["msg"].removeprefix("Value error, ")
                raise ValueError(f"job_file: [{name}]: {what}{reason}") from None
        return jobs

    @property
    def files(self) -> int:
        """Return how many jobs have files of their own."""
        return self.numjobs * len(self.jobs())

    @property
    def directions(self) -> tuple[str, ...]:
        """Return the directions of all jobs: some of read, write and trim."""
        ways = {way for params, _ in self.jobs().values() for way in params._directions()}
        return tuple(way for way in ("read", "trim", "write") if way in ways)

    def _directions(self) -> tuple[str, ...]:
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
                self.job_file is not None and self.prefill,
                "prefill fills the files of one job; leave it out with job_file",
            ),
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
        self.jobs()
        return self
