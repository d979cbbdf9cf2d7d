"""imb: the Intel MPI Benchmarks (IMB-MPI1), point-to-point and collective, by message size."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from perfdag.benchmark.contract import (
    Benchmark,
    Equal,
    Failed,
    Form,
    Gang,
    Identity,
    Invalid,
    Measurement,
    Metric,
    Output,
    Params,
    PositiveDuration,
    Problem,
    Shape,
    ShortForm,
    Tool,
    argv_of,
    need_tools,
)
from perfdag.steps import mpi

PAIRS = (
    "PingPong",
    "PingPing",
    "PingPongSpecificSource",
    "PingPongAnySource",
    "PingPingSpecificSource",
    "PingPingAnySource",
)
STREAMS = ("Sendrecv", "Exchange")
BANDS = ("Uniband", "Biband")
SYNCS = ("Barrier",)
EXCHANGES = ("Alltoall", "Alltoallv")
SPREADS = ("Allgather", "Allgatherv", "Gather", "Gatherv", "Scatter", "Scatterv")
REDUCTIONS = ("Reduce", "Reduce_local", "Reduce_scatter", "Reduce_scatter_block", "Allreduce")
COLLECTIVES = ("Bcast", *SPREADS, *EXCHANGES, *REDUCTIONS)
KNOWN = (*PAIRS, *STREAMS, *BANDS, *COLLECTIVES, *SYNCS)


GIB = 2**30
OPENMPI_PROGRAM = "/opt/imb/IMB-MPI1"
"""IMB-MPI1 of the image imb-openmpi."""
_OWN_VOLUME = 40 * 2**20
"""Bytes of a size after which IMB stops repeating it by default."""
PRINTED_BANDWIDTH = 0.5e4
"""B/s by which a bandwidth can be off: IMB rounds MB/s to two decimals."""
PRINTED = 0.5e-8
"""Seconds by which a time can be off: IMB rounds microseconds to two decimals."""
# An exception from the 100 of other tools: through shared memory a message takes 0.2 to 0.5 us,
# which IMB prints as 1 part in 40 to 100. A change of 5 % is still seen.
STEPS = 20
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
    """Parameters of one IMB-MPI1 run."""

    benchmark: Literal[KNOWN] = Field("PingPong", description="one of IMB-MPI1's benchmarks")  # type: ignore[valid-type]
    ranks: int = Field(2, ge=2, le=65536, description="MPI processes")
    ranks_per_host: int | None = Field(
        None, ge=1, description="default: all on one host for shm, else half on each of two hosts"
    )
    transport: Literal["tcp", "shm", "rdma"] = Field(
        "tcp", description="requested, then verified in what MPI reports"
    )
    min_log: int = Field(
        0,
        ge=0,
        le=30,
        description="smallest message is 2^min_log bytes; 0 bytes always come first",
    )
    max_log: int = Field(22, ge=0, le=30, description="largest message is 2^max_log bytes")
    iterations: int = Field(1000, ge=1, le=10**7, description="most repetitions of a message size")
    time_per_size: PositiveDuration = Field(
        10.0, le=3600, description="seconds after which IMB cuts the repetitions of a size"
    )
    mpi: Literal["intel", "openmpi"] = Field(
        "intel", description="MPI distribution; openmpi has an image of its own, imb-openmpi"
    )
    program: Annotated[str, Form("an absolute path", "^/")] | None = Field(
        None,
        description=f"path of IMB-MPI1 for mpi: openmpi; default {OPENMPI_PROGRAM}",
    )
    oversubscribe: bool = Field(
        False, description="allow more ranks than CPUs; they then spin against each other"
    )

    @property
    def directions(self) -> int:
        return 2 if self.benchmark in STREAMS else 1

    def problems(self) -> Iterator[Problem]:
        """Yield the parameters that contradict one another."""
        if self.benchmark in REDUCTIONS and self.max_log < 2:
            yield Problem(
                "small-messages", f"{self.benchmark} works on 4-byte floats; max_log is at least 2"
            )
        if self.min_log > self.max_log:
            yield Problem(
                "sizes-swapped", f"min_log {self.min_log} is above max_log {self.max_log}"
            )
        if self.ranks_per_host is not None and self.ranks % self.ranks_per_host:
            yield Problem(
                "uneven-ranks",
                f"ranks {self.ranks} is not a multiple of ranks_per_host {self.ranks_per_host}",
            )
        if self.benchmark in PAIRS and self.ranks != 2:
            yield Problem(
                "two-ranks", f"{self.benchmark} runs between exactly 2 ranks, not {self.ranks}"
            )
        if self.benchmark in BANDS and self.ranks % 2:
            yield Problem(
                "odd-ranks", f"{self.benchmark} needs an even number of ranks, not {self.ranks}"
            )
        if self.program is not None and self.mpi == "intel":
            yield Problem("own-program", "program belongs to mpi: openmpi; intel brings its own")

    def hosts(self) -> int:
        """Return the number of hosts that the ranks are spread over."""
        if self.transport == "shm":
            return 1
        return 2 if self.ranks_per_host is None else self.ranks // self.ranks_per_host

    def sizes(self) -> list[int]:
        """Return the message sizes in bytes that -msglog min:max measures; 0 alone of a Barrier.

        Zero comes first, then powers of two. Reductions work on whole 4-byte floats.
        """
        smallest = max(self.min_log, 2) if self.benchmark in REDUCTIONS else self.min_log
        last = smallest if self.benchmark in SYNCS else self.max_log + 1
        return [0, *(2**log for log in range(smallest, last))]

    def rounds(self) -> int:
        """Estimate how many messages a rank exchanges one after the other in an operation.

        It is one with each other rank, or one a level along a tree of all ranks.
        """
        if self.benchmark in (*EXCHANGES, *SPREADS):
            return self.ranks - 1
        return math.ceil(math.log2(self.ranks)) if self.benchmark in (*COLLECTIVES, *SYNCS) else 1

    def memory(self) -> int:
        """Return the most bytes that a rank's buffers have at the largest size.

        An Alltoall sends a message to each rank and receives one; the others have fewer.
        """
        return 2 * self.ranks << self.max_log


class Imb(Benchmark[ImbParams]):
    """Latency and bandwidth of MPI messages by size, with IMB-MPI1.

    It runs PingPong, Sendrecv, Allreduce, Alltoall, Barrier and the rest of IMB-MPI1. All
    messages use the requested transport, also between ranks of one host. For tcp and rdma,
    Intel MPI's shared-memory collectives are off. The provider, the interface and the nodes are
    read from what MPI prints; a fallback or another placement is invalid. IMB leaves out the
    sizes that do not fit in memory or in the time of all sizes. The sample is then failed, and
    the smaller sizes are kept.

    Clock: IMB's own, MPI_Wtime on every rank. It starts after a barrier and IMB's warm-up of the
    size. It stops after the last repetition. The time is divided by the repetitions; PingPong
    reports half a round trip. Starting MPI, connecting and the warm-up are outside.
    """

    network = "pairs"
    canaries = ("cpu", "memory", "loopback")
    tools = (mpi.IMB,)
    coords = ("message_bytes",)
    sizes = ("message_bytes",)
    short_forms: ClassVar[Mapping[str, ShortForm]] = {
        "benchmark": "{}",
        "transport": {"tcp": "TCP", "shm": "shared memory", "rdma": "RDMA"},
        "message_bytes": "{}",
        "ranks": "{} ranks",
        "ranks_per_host": "{} ranks a host",
        "mpi": {"intel": "Intel MPI", "openmpi": "Open MPI"},
        "min_log": "from 2^{} bytes",
        "max_log": "up to 2^{} bytes",
        "iterations": "{} iterations",
        "time_per_size": "{} a size",
        "program": "{}",
    }
    metrics = (
        Metric(
            "zero_byte_latency",
            "s",
            "lower",
            "time of a message (or operation) of no bytes",
            headline=True,
            steps=STEPS,
            label="latency of an empty message",
            claim="MPI starts in {value}",
        ),
        Metric(
            "peak_bandwidth",
            "B/s",
            "higher",
            "highest bandwidth over all sizes",
            headline=True,
            nominal=True,
        ),
        Metric(
            "half_bandwidth_size",
            "B",
            "lower",
            "smallest of the measured sizes that reaches half the peak bandwidth",
            label="size of half the bandwidth",
        ),
        Metric(
            "operation_time",
            "s",
            "lower",
            "mean over ranks of the time of one operation at the largest size",
            headline=True,
            steps=STEPS,
        ),
        Metric(
            "latency",
            "s",
            "lower",
            "time of one operation by message size; stats min, mean, max are over the ranks",
        ),
        Metric("bandwidth", "B/s", "higher", "bandwidth by message size"),
        Metric(
            "message_rate", "1/s", "higher", "messages a second by message size", counts="messages"
        ),
    )

    def shape(self, params: ImbParams) -> dict[str, object]:
        image = "imb-openmpi" if params.mpi == "openmpi" else "imb"
        return mpi.shape(image, params.hosts(), params.transport)

    def check(self, params: ImbParams, shape: Shape) -> Iterator[Problem]:
        count = shape.hosts.count
        per_host = math.ceil(params.ranks / count)
        if params.ranks % count:
            yield Problem(
                "uneven-ranks",
                f"ranks {params.ranks} cannot be spread evenly over {count} hosts;"
                f" use a multiple of {count}, or a ranks_per_host (or hosts.count)"
                f" that divides {params.ranks}",
            )
        elif params.ranks_per_host not in (None, per_host):
            yield Problem(
                "other-ranks-per-host",
                f"ranks {params.ranks} over {count} hosts is not {params.ranks_per_host}"
                " ranks_per_host; change one of the three",
            )
        if params.transport == "shm" and count > 1:
            yield Problem(
                "shm-between-hosts",
                "transport shm stays on one host; set hosts.count to 1 or use tcp",
            )
        yield from mpi.problems(shape, per_host, params.transport, params.oversubscribe)

    def identities(self, params: ImbParams) -> Iterable[Identity]:
        yield Equal(("message_rate", "message_bytes"), ("bandwidth",), step=PRINTED_BANDWIDTH)

    def seconds(self, params: ImbParams) -> float:
        # Measured on two shared cores: a start costs 0.3 s, and a size below 64 KiB costs about
        # 15 ms for 1000 repetitions.
        seconds = 0.4 + 0.01 * (params.ranks - 2)
        for size in params.sizes():
            repetitions = min(params.iterations, max(1, _OWN_VOLUME // max(size, 1)))
            message = 12e-6 + size / 2e9
            seconds += min(params.time_per_size, repetitions * params.rounds() * message)
        return seconds

    def limit(self, params: ImbParams) -> float:
        # IMB begins no size after time_per_size for all but two of them. It takes about a second
        # to estimate the repetitions of a size.
        start = 5 * (0.4 + 0.01 * params.ranks)
        return max(super().limit(params), start + len(params.sizes()) * (params.time_per_size + 2))

    def require(self, gang: Gang, params: ImbParams) -> None:
        if params.mpi == "openmpi":
            advice = "build IMB-MPI1 for Open MPI and name it as program; impi-rt's is Intel's"
            program = Tool(params.program or OPENMPI_PROGRAM, {}, advice)
            need_tools(gang.hosts, [program, mpi.MPIRUN])
            gang.output.tool = "{} ({})".format(*mpi.find_openmpi(gang.lead))
        else:
            roots = [mpi.intel_root(host) for host in gang.hosts]
            gang.output.tool = f"{roots[0]}/bin/mpirun (Intel MPI)"
        mpi.require(gang.hosts, params.ranks, params.oversubscribe, params.transport)

    def run(self, gang: Gang, params: ImbParams) -> list[Measurement]:
        openmpi = None
        if params.mpi == "openmpi":
            mpirun, openmpi = mpi.find_openmpi(gang.lead)
            argv = openmpi_command(gang, mpirun, params)
            env = mpi.OPENMPI_ENVIRONMENT
        else:
            root = mpi.intel_root(gang.hosts[0])
            env = mpi.intel_environment(gang, root, params.transport, params.oversubscribe)
            argv = mpi.intel_mpirun(gang, root, params.ranks)
            argv += [f"{root}/bin/IMB-MPI1", *arguments(params)]
        finished = gang.lead.run(argv, timeout=gang.timeout, env=env)
        log = finished.stdout + finished.stderr
        number = re.search(r"MPI startup\(\): Intel\(R\) MPI Library, Version (\S+)", log)
        intel = f"Intel MPI {number[1]}" if number else "Intel MPI"
        gang.output = Output(
            {"stdout": finished.stdout, "stderr": finished.stderr},
            [argv],
            f"IMB-MPI1, {openmpi or intel}",
            {
                "fabric": mpi.openmpi_layer(log) if openmpi else mpi.intel_fabric(log),
                "interface": env.get("FI_TCP_IFACE"),
                "hosts": [host.name for host in gang.hosts],
            },
        )
        finished.check("mpirun IMB-MPI1")
        rows = parse(gang.output.texts, params)
        wrong = mpi.wrong_placement(log, gang.hosts, params.ranks)
        interface = env.get("FI_TCP_IFACE")
        # libfabric does not fail for a missing interface: it takes another one. The NIC table of
        # I_MPI_DEBUG=3 has those that the ranks were pinned to.
        used = re.findall(r"(?m)MPI startup\(\): \d+\s+\d+\s+(\S+)\s*$", log)
        unwanted = {*used} - {interface}
        if interface and unwanted:
            wrong = f"interface {interface} was requested, MPI used {', '.join(sorted(unwanted))}"
        if wrong:
            raise Invalid(wrong, measurements=rows)
        return rows


def openmpi_command(gang: Gang, mpirun: str, params: ImbParams) -> list[str]:
    """Return mpirun of Open MPI with IMB-MPI1."""
    argv = mpi.openmpi_mpirun(
        gang,
        mpirun,
        params.ranks,
        params.transport,
        oversubscribe=params.oversubscribe,
        tls=mpi.WIRE,
        # Allow one transport only: shared memory must not carry messages named tcp.
        layers="self,vader" if params.transport == "shm" else "self,tcp",
        interface=mpi.interface_of(gang) if params.transport == "tcp" else None,
    )
    return [*argv, params.program or OPENMPI_PROGRAM, *arguments(params)]


def arguments(params: ImbParams) -> list[str]:
    """Return the arguments of IMB-MPI1."""
    has_sizes = params.benchmark not in SYNCS
    is_large = has_sizes and params.memory() > GIB  # what IMB allows without -mem
    options = {
        "-npmin": params.ranks,
        "-iter": params.iterations,
        "-time": f"{params.time_per_size:g}",
        "-msglog": f"{params.min_log}:{params.max_log}" if has_sizes else None,
        "-mem": f"{params.memory() / GIB + 1e-6:.6f}" if is_large else None,
    }
    return [params.benchmark, *argv_of(options)]


def parse(texts: Mapping[str, str], params: ImbParams) -> list[Measurement]:
    """Return the values by message size, and the headlines of a whole table.

    Raises Failed if the table is absent, cut, garbled or of another number of ranks. Raises Invalid
    if MPI used another transport.
    """
    log = texts.get("stdout", "")
    rows, stopped = _read(log, params)
    measured = _by_size(rows, params)
    if not stopped:
        measured = _headlines(rows, params) + measured
    printed = log + texts.get("stderr", "")
    if wrong := mpi.wrong_transport(printed, params.transport, params.mpi == "openmpi"):
        raise Invalid(wrong, measurements=measured)
    if stopped:
        raise Failed(stopped, measurements=measured)
    return measured


def _read(log: str, params: ImbParams) -> tuple[list[dict[str, float]], str | None]:
    """Return the rows of the requested benchmark's table, and why IMB left out larger sizes.

    The reason is None if every size is present. Raises Failed if the table is absent, cut, garbled,
    or of another number of ranks.
    """
    name = params.benchmark
    _, *parts = re.split(r"(?m)^# Benchmarking (\S+)\s*$", log)
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    if name not in sections:
        ran = ", ".join(sections) or "nothing"
        raise Failed(f"IMB printed no table of {name}; it ran {ran}")
    body = sections[name]
    ranks = re.search(r"# #processes = (\d+)", body)
    if ranks is None or int(ranks[1]) != params.ranks:
        printed = ranks[1] if ranks else "nothing"
        raise Failed(f"{params.ranks} ranks were requested, IMB says {printed}")
    head = re.search(r"(?m)^.*#repetitions.*\n", body)
    rows: list[dict[str, float]] = []
    exit_line = r"\s*(\d+)\s+(out-of-mem|time-out|int-overflow)\.?;\s*(?:needed X=\s*([\d.]+) GB)?"
    stop = None
    try:
        columns = [_COLUMNS[title] for title in head[0].split()] if head else []
    except KeyError as error:
        raise Failed(f"cannot read the table of {name}: {error} is no column of it") from None
    for line in body[head.end() :].splitlines() if head else ():
        if stop := re.match(exit_line, line):
            break
        with suppress(ValueError):  # a warning of MPI among the rows, or what follows the table
            rows.append(dict(zip(columns, map(float, line.split()), strict=True)))
    end = int(stop[1]) if stop else math.inf
    expected = [size for size in params.sizes() if size < end]
    if [int(row.get("bytes", 0)) for row in rows] != expected:
        raise Failed(
            f"the table of {name} has {len(rows)} of {len(expected)} message sizes, or others"
        )
    return rows, _stop_reason(stop, params) if stop else None


def _stop_reason(stop: re.Match[str], params: ImbParams) -> str:
    advice = {
        "out-of-mem": f"its buffers need {stop[3]} GiB a rank, more than there is;"
        " lower max_log or the ranks of a host",
        "time-out": f"the time of all sizes by time_per_size {params.time_per_size:g} s was over;"
        " raise it, or lower iterations or max_log",
        "int-overflow": "ranks x size is more than IMB can count; lower max_log or ranks",
    }[stop[2]]
    sizes = params.sizes()
    skipped = sum(size >= int(stop[1]) for size in sizes)
    return (
        f"IMB left out {skipped} of {len(sizes)} message sizes, from {stop[1]} B on ({stop[2]}):"
        f" {advice}"
    )


def _bandwidth(row: dict[str, float], params: ImbParams) -> float:
    """Return the bandwidth in B/s, or 0 if the row has none.

    IMB's user guide defines it as the bytes that a rank sends and receives by the time of the
    slowest rank. It is computed from the time: the printed figure has two decimals, too few for
    small messages, and old versions print units of 2^20 bytes. Tables without a time (Uniband,
    Biband) come from versions that print 10^6 bytes.
    """
    messages = {"Sendrecv": 2, "Exchange": 4}.get(params.benchmark, 1)
    if "bandwidth" not in row or row.get("bytes", 0) == 0:
        return 0.0
    time = row.get("t_max", row.get("t_avg", 0))
    return (messages * row["bytes"] / time if time else row["bandwidth"]) * 1e6


def _by_size(rows: list[dict[str, float]], params: ImbParams) -> list[Measurement]:
    """Return latency, bandwidth and message rate of each row."""
    measurements: list[Measurement] = []
    for row in rows:
        coords = {"message_bytes": int(row["bytes"])} if "bytes" in row else {}
        n = int(row["repetitions"])
        measurements += [
            Measurement("latency", row[column] * 1e-6, stat, coords, n)
            for column, stat in (("t_avg", "mean"), ("t_min", "min"), ("t_max", "max"))
            if column in row
        ]
        rates = (("bandwidth", _bandwidth(row, params)), ("message_rate", row.get("rate")))
        measurements += [
            Measurement(metric, rate, coords=coords, n=n) for metric, rate in rates if rate
        ]
    return measurements


def _headlines(rows: list[dict[str, float]], params: ImbParams) -> list[Measurement]:
    """Return the headline figures of a whole table; the printed columns decide which exist."""
    measurements = []
    for metric, row, benchmarks in (
        ("zero_byte_latency", rows[0], (*PAIRS, *STREAMS)),
        ("operation_time", rows[-1], (*COLLECTIVES, *SYNCS)),
    ):
        if params.benchmark in benchmarks and "t_avg" in row:
            n = int(row["repetitions"])
            measurements.append(Measurement(metric, row["t_avg"] * 1e-6, n=n, step=PRINTED))
    fast = [(speed, int(row["bytes"])) for row in rows if (speed := _bandwidth(row, params))]
    if fast:
        peak = max(speed for speed, _ in fast)
        half = min(size for speed, size in fast if speed >= peak / 2)
        measurements += [
            Measurement("peak_bandwidth", peak),
            Measurement("half_bandwidth_size", half),
        ]
    return measurements
