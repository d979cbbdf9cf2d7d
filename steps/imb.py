"""imb: the Intel MPI Benchmarks (IMB-MPI1), point-to-point and collective, by message size."""

import re
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from perfdag.benchmark import Benchmark, Failed, Gang, Invalid, Measurement, Metric, Output, Params, Skip, Tool
from perfdag.hosts import Finished
from perfdag.shape import Shape
from perfdag.steps import devices, intelmpi, openmpi
from perfdag.units import PositiveDuration

PAIRS = ("PingPong", "PingPing", "PingPongSpecificSource", "PingPongAnySource", "PingPingSpecificSource", "PingPingAnySource")
STREAMS = ("Sendrecv", "Exchange")
BANDS = ("Uniband", "Biband")
SYNCS = ("Barrier",)
REDUCTIONS = ("Reduce", "Reduce_local", "Reduce_scatter", "Reduce_scatter_block", "Allreduce")
COLLECTIVES = (
    "Bcast",
    "Allgather",
    "Allgatherv",
    "Gather",
    "Gatherv",
    "Scatter",
    "Scatterv",
    "Alltoall",
    "Alltoallv",
    *REDUCTIONS,
)
KNOWN = (*PAIRS, *STREAMS, *BANDS, *COLLECTIVES, *SYNCS)
_HEADER = re.compile(r"^# Benchmarking (\S+)\s*$", re.M)
_PROCESSES = re.compile(r"# #processes = (\d+)")
_COLUMNS = {
    "#bytes": "bytes",
    "#repetitions": "repetitions",
    "t[usec]": "t_avg",
    "t_min[usec]": "t_min",
    "t_max[usec]": "t_max",
    "t_avg[usec]": "t_avg",
    "Mbytes/sec": "bandwidth",
    "Msg/sec": "rate",
}


class ImbParams(Params):
    """What IMB-MPI1 is asked to do."""

    benchmark: Literal[KNOWN] = Field("PingPong", description="one of IMB-MPI1's benchmarks")  # type: ignore[valid-type]
    ranks: int = Field(2, ge=2, le=65536, description="MPI processes")
    ranks_per_host: int | None = Field(None, ge=1, description="default: all on one host for shm, else spread over two hosts")
    transport: Literal["tcp", "shm", "rdma"] = Field("tcp", description="chosen, then verified from what MPI says it used")
    min_log: int = Field(0, ge=0, le=30, description="smallest message is 2^min_log bytes (0 bytes come first always)")
    max_log: int = Field(22, ge=0, le=30, description="largest message is 2^max_log bytes")
    iterations: int = Field(1000, ge=1, le=10**7, description="most repetitions of a message size")
    time_per_size: PositiveDuration = Field(10.0, le=3600, description="seconds after which IMB cuts the repetitions of a size")
    mpi: Literal["intel", "openmpi"] = Field("intel", description="MPI distribution; openmpi needs an IMB built for it")
    program: str | None = Field(None, pattern=r"^/", description="path of IMB-MPI1 for mpi: openmpi")
    oversubscribe: bool = Field(False, description="allow more ranks than CPUs; they then spin against each other")

    @model_validator(mode="after")
    def _possible(self) -> "ImbParams":
        if self.benchmark in REDUCTIONS and self.max_log < 2:
            raise ValueError(f"{self.benchmark} is of 4-byte floats; max_log is at least 2")
        if self.min_log > self.max_log:
            raise ValueError(f"min_log {self.min_log} is above max_log {self.max_log}")
        if self.ranks_per_host is not None and self.ranks % self.ranks_per_host:
            raise ValueError(f"ranks {self.ranks} is not a multiple of ranks_per_host {self.ranks_per_host}")
        if self.benchmark in PAIRS and self.ranks != 2:
            raise ValueError(f"{self.benchmark} runs between exactly 2 ranks, not {self.ranks}")
        if self.benchmark in BANDS and self.ranks % 2:
            raise ValueError(f"{self.benchmark} needs an even number of ranks, not {self.ranks}")
        if self.program is not None and self.mpi == "intel":
            raise ValueError("program belongs to mpi: openmpi; intel brings its own")
        return self

    def hosts(self) -> int:
        """Hosts that the ranks are spread over."""
        if self.transport == "shm":
            return 1
        per_host = self.ranks_per_host or max(self.ranks // 2, 1)
        return self.ranks // per_host

    def sizes(self) -> list[int]:
        """Message sizes in bytes that IMB measures with -msglog min:max: 0, then powers of two; reductions are of whole floats."""
        smallest = max(self.min_log, 2) if self.benchmark in REDUCTIONS else self.min_log
        return [0, *(2**log for log in range(smallest, self.max_log + 1))]


class Imb(Benchmark[ImbParams]):
    """Latency and bandwidth of MPI messages by size: PingPong, Sendrecv, Allreduce, Alltoall, Barrier and the rest of IMB-MPI1.

    All messages go through the transport asked for, also between ranks of one host: Intel MPI's shared-memory collectives are off
    for tcp and rdma. The provider and the interface are read from what MPI prints, and a fallback is invalid.

    Clock: IMB's own, MPI_Wtime on every rank. It starts after a barrier and IMB's warm-up of the size, stops after the last repetition,
    and is divided by the repetitions; half a round trip for PingPong. Starting MPI, connecting and the warm-up are outside.
    """

    name = "imb"
    image = "imb"
    pairwise = True
    canaries = ("cpu", "memory", "loopback")
    tools = (intelmpi.IMB,)
    Params: ClassVar[type[Params]] = ImbParams
    metrics = (
        Metric("zero_byte_latency", "s", "lower", "time of a message (or operation) of no bytes", headline=True),
        Metric("peak_bandwidth", "B/s", "higher", "highest bandwidth over all sizes", headline=True),
        Metric("half_bandwidth_size", "B", "lower", "smallest message that reaches half the peak bandwidth", headline=True),
        Metric("operation_time", "s", "lower", "mean over ranks of the time of one operation at the largest size", headline=True),
        Metric("latency", "s", "lower", "time of one operation by message size; stats min, mean, max are over the ranks"),
        Metric("bandwidth", "B/s", "higher", "bandwidth by message size"),
        Metric("message_rate", "1/s", "higher", "messages a second by message size"),
    )

    def shape(self, params: ImbParams) -> dict[str, object]:
        return {"hosts": {"count": params.hosts()}} | ({"privileges": ["rdma"]} if params.transport == "rdma" else {})

    def check(self, params: ImbParams, shape: Shape) -> list[str]:
        problems = []
        count = shape.hosts.count
        if params.ranks % count:
            problems.append(f"ranks {params.ranks} cannot be spread evenly over {count} hosts; use a multiple, or another hosts.count")
        elif params.ranks_per_host is not None and params.ranks // count != params.ranks_per_host:
            problems.append(
                f"ranks {params.ranks} over {count} hosts is not {params.ranks_per_host} ranks_per_host; change one of the three"
            )
        if params.transport == "shm" and count > 1:
            problems.append("transport shm stays on one host; set hosts.count to 1 or use tcp")
        if params.transport == "rdma" and not devices.has_rdma(shape):
            problems.append(f"transport: rdma {devices.RDMA_WANTED}")
        return problems

    def seconds(self, params: ImbParams) -> float:
        # measured on two shared cores: a start costs 0.3 s, a size of 1000 repetitions some 15 ms below 64 KiB
        return 0.4 + sum(min(params.time_per_size, params.iterations * (12e-6 + size / 2e9)) for size in params.sizes())

    def missing(self, gang: Gang, params: ImbParams) -> list[Tool]:
        if params.mpi == "openmpi":
            own = f"IMB-MPI1 built for Open MPI ({params.program or 'no `program` is given'}; that of impi-rt is for Intel MPI)"
            wanted = ((params.program or "", Tool(own, {})), (openmpi.MPIRUN.program, openmpi.MPIRUN))
            return [tool for program, tool in wanted if any(host.which(program) is None for host in gang.hosts)]
        try:
            for host in gang.hosts:
                intelmpi.root_of(host)
        except Skip:
            return list(self.tools)
        return []

    def run(self, gang: Gang, params: ImbParams) -> Output:
        if not params.oversubscribe:
            openmpi.need_cpus(gang.hosts, params.ranks)
        if params.ranks % len(gang.hosts):
            raise Failed(f"ranks {params.ranks} cannot be spread evenly over the {len(gang.hosts)} hosts given; set hosts.count")
        if params.transport == "rdma":
            openmpi.need_rdma(gang.hosts)
        library = openmpi.version(gang.lead) if params.mpi == "openmpi" else None
        argv, env = self._intel(gang, params) if params.mpi == "intel" else self._openmpi(gang, params)
        finished = gang.lead.run(argv, timeout=gang.timeout, env=env)
        output = self._output(finished, library)
        output.facts["interface"] = env.get("FI_TCP_IFACE")
        return output

    def _intel(self, gang: Gang, params: ImbParams) -> tuple[list[str], dict[str, str]]:
        root = intelmpi.root_of(gang.hosts[0])
        rsh = intelmpi.rsh_script(gang)
        argv = [*intelmpi.mpirun(gang, root, params.ranks, rsh), f"{root}/bin/IMB-MPI1", *self.arguments(params)]
        return argv, intelmpi.environment(gang, root, params.transport, params.oversubscribe)

    def _openmpi(self, gang: Gang, params: ImbParams) -> tuple[list[str], dict[str, str]]:
        if params.transport == "rdma":
            argv = openmpi.mpirun(gang, params.ranks, "rdma", oversubscribe=params.oversubscribe)
        else:  # one way only, or messages between ranks of one host would go through shared memory under the name of tcp
            way = {"tcp": "self,tcp", "shm": "self,vader"}[params.transport]
            interface = intelmpi.interface_of(gang) if params.transport == "tcp" else None
            argv = openmpi.mpirun(gang, params.ranks, "tcp", oversubscribe=params.oversubscribe, layers=way, interface=interface)
        return [*argv, params.program or "", *self.arguments(params)], openmpi.environment()

    @staticmethod
    def arguments(params: ImbParams) -> list[str]:
        """Arguments of IMB-MPI1."""
        made = [params.benchmark, "-npmin", str(params.ranks), "-iter", str(params.iterations), "-time", f"{params.time_per_size:g}"]
        return made if params.benchmark in SYNCS else [*made, "-msglog", f"{params.min_log}:{params.max_log}"]

    def _output(self, finished: Finished, library: str | None) -> Output:
        """`library` is the Open MPI that was used; None: Intel MPI, whose log says its version."""
        finished.check("mpirun IMB-MPI1")
        log = finished.stdout + finished.stderr
        tool = f"IMB-MPI1, {library or f'Intel MPI {intelmpi.version(log)}'.strip()}"
        facts = {"fabric": openmpi.selected_layer(log) if library else intelmpi.used(log)}
        return Output({"stdout": finished.stdout, "stderr": finished.stderr}, [finished.argv], tool, facts)

    def parse(self, output: Output, params: ImbParams) -> list[Measurement]:
        log = output.texts.get("stdout", "")
        rows = _rows(log, params, output)
        measured = _measurements(rows, params)
        everything = log + output.texts.get("stderr", "")
        if params.mpi == "intel":
            wrong = intelmpi.wrong_transport(everything, params.transport, output.facts.get("interface"))
        else:
            wrong = openmpi.wrong_transport(everything, params.transport)
        if wrong:
            raise Invalid(wrong, output.texts, measured)
        return measured


def _rows(log: str, params: ImbParams, output: Output) -> list[dict[str, float]]:
    """Rows of the table of the benchmark asked for, every size that the params imply. Raises Failed."""
    name = params.benchmark
    sections = list(_HEADER.finditer(log))
    section = next((found for found in sections if found[1] == name), None)
    if section is None:
        ran = ", ".join(found[1] for found in sections) or "nothing"
        raise Failed(f"IMB printed no table of {name}; it ran {ran}", output.texts)
    following = next((found.start() for found in sections if found.start() > section.start()), len(log))
    body = log[section.end() : following]
    ranks = _PROCESSES.search(body)
    if ranks is None or int(ranks[1]) != params.ranks:
        raise Failed(f"{params.ranks} ranks were asked, IMB says {ranks[1] if ranks else 'nothing'}", output.texts)
    lines = body.splitlines()
    head = next((i for i, line in enumerate(lines) if "#repetitions" in line), None)
    if head is None:
        raise Failed(f"the table of {name} has no header", output.texts)
    titles = lines[head].split()
    unknown = [title for title in titles if title not in _COLUMNS]
    if unknown:
        raise Failed(f"unknown columns in the table of {name}: {' '.join(unknown)}", output.texts)
    columns = [_COLUMNS[title] for title in titles]
    rows: list[dict[str, float]] = []
    for line in lines[head + 1 :]:
        words = line.split()
        if not words or words[0].startswith("#"):
            if rows:
                break
            continue
        try:
            rows.append(dict(zip(columns, map(float, words), strict=True)))
        except ValueError:
            raise Failed(f"cannot read this line of the table of {name}: {line.strip()[:80]}", output.texts) from None
    _complete(rows, params, output)
    return rows


def _complete(rows: list[dict[str, float]], params: ImbParams, output: Output) -> None:
    sync = params.benchmark in SYNCS
    expected = [None] if sync else params.sizes()
    got = [None if sync else row.get("bytes") for row in rows]
    absent = [size for size in expected if size not in got]
    if absent or len(got) != len(expected):
        what = "its row" if sync else f"{len(absent)} of {len(expected)} message sizes, first {absent[0] if absent else 'none'}"
        raise Failed(f"the table of {params.benchmark} lacks {what}", output.texts)


def _measurements(rows: list[dict[str, float]], params: ImbParams) -> list[Measurement]:
    made: list[Measurement] = []
    for row in rows:
        coords = {"message_bytes": int(row["bytes"])} if "bytes" in row else {}
        n = int(row["repetitions"])
        for column, stat in (("t_avg", "mean"), ("t_min", "min"), ("t_max", "max")):
            if column in row:
                made.append(Measurement("latency", row[column] * 1e-6, stat, coords, n))
        bandwidth = _bandwidth(row, params)
        if bandwidth:
            made.append(Measurement("bandwidth", bandwidth, "value", coords, n))
        if "rate" in row:
            made.append(Measurement("message_rate", row["rate"], "value", coords, n))
    return _headlines(rows, params) + made


def _bandwidth(row: dict[str, float], params: ImbParams) -> float | None:
    """B/s by IMB's own definition (its user guide: bytes that a rank sends and receives, by the slowest rank's time).

    Computed from the time: the printed figure has two decimals, none at all left for small messages, and its Mbyte was 2^20 bytes in
    old versions. Tables without a time (Uniband, Biband) are of versions where it is 10^6.
    """
    size, messages = row.get("bytes", 0), {"Sendrecv": 2, "Exchange": 4}.get(params.benchmark, 1)
    if "bandwidth" not in row or size == 0:
        return None
    time = row.get("t_max", row.get("t_avg", 0))
    return messages * size / time * 1e6 if time else row["bandwidth"] * 1e6


def _headlines(rows: list[dict[str, float]], params: ImbParams) -> list[Measurement]:
    """The figures people quote; which there are depends on the columns that the benchmark prints."""
    made = []
    first, last = rows[0], rows[-1]
    if params.benchmark in (*PAIRS, *STREAMS) and "t_avg" in first:
        made.append(Measurement("zero_byte_latency", first["t_avg"] * 1e-6, n=int(first["repetitions"])))
    if params.benchmark in (*COLLECTIVES, *SYNCS):
        made.append(Measurement("operation_time", last["t_avg"] * 1e-6, n=int(last["repetitions"])))
    speeds = [(_bandwidth(row, params), int(row.get("bytes", 0))) for row in rows]
    fast = [(speed, size) for speed, size in speeds if speed]
    if fast:
        peak = max(fast)[0]
        made.append(Measurement("peak_bandwidth", peak))
        made.append(Measurement("half_bandwidth_size", min(size for bandwidth, size in fast if bandwidth >= peak / 2)))
    return made
