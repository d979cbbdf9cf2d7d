"""imb: the Intel MPI Benchmarks (IMB-MPI1), point-to-point and collective, by message size."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from perfdag import cgroups
from perfdag.benchmark import (
    Benchmark,
    Failed,
    Gang,
    Invalid,
    Measurement,
    Metric,
    Output,
    Params,
    Skip,
    Tool,
)
from perfdag.hosts import Finished, Host
from perfdag.shape import Shape
from perfdag.steps import devices, imb_table, intelmpi, openmpi
from perfdag.steps.imb_table import BANDS, COLLECTIVES, KNOWN, PAIRS, REDUCTIONS, SYNCS
from perfdag.units import PositiveDuration, quantity_bytes, short

GIB = 2**30
_OWN_MEMORY = GIB
"""Bytes of buffers that a rank may have where IMB is not told another number (its default of -mem)."""
_OWN_VOLUME = (
    40 * 2**20
)  # bytes a size after which IMB repeats it no more, if it is not told another number
_SHARE = 0.8  # of the memory that there is, for buffers; the rest is MPI's and the system's
_NO_QUESTION = (
    GIB // 4
)  # buffers of all ranks of a host that are not worth asking it for its memory
_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB", re.M)


class ImbParams(Params):
    """What IMB-MPI1 is asked to do."""

    benchmark: Literal[KNOWN] = Field("PingPong", description="one of IMB-MPI1's benchmarks")  # type: ignore[valid-type]
    ranks: int = Field(2, ge=2, le=65536, description="MPI processes")
    ranks_per_host: int | None = Field(
        None, ge=1, description="default: all on one host for shm, else half on each of two hosts"
    )
    transport: Literal["tcp", "shm", "rdma"] = Field(
        "tcp", description="chosen, then verified from what MPI says it used"
    )
    min_log: int = Field(
        0,
        ge=0,
        le=30,
        description="smallest message is 2^min_log bytes (0 bytes come first always)",
    )
    max_log: int = Field(22, ge=0, le=30, description="largest message is 2^max_log bytes")
    iterations: int = Field(1000, ge=1, le=10**7, description="most repetitions of a message size")
    time_per_size: PositiveDuration = Field(
        10.0, le=3600, description="seconds after which IMB cuts the repetitions of a size"
    )
    mpi: Literal["intel", "openmpi"] = Field(
        "intel", description="MPI distribution; openmpi needs an IMB built for it"
    )
    program: str | None = Field(
        None, pattern=r"^/", description="path of IMB-MPI1 for mpi: openmpi"
    )
    oversubscribe: bool = Field(
        False, description="allow more ranks than CPUs; they then spin against each other"
    )

    @model_validator(mode="after")
    def _possible(self) -> "ImbParams":
        if self.benchmark in REDUCTIONS and self.max_log < 2:
            raise ValueError(f"{self.benchmark} is of 4-byte floats; max_log is at least 2")
        if self.min_log > self.max_log:
            raise ValueError(f"min_log {self.min_log} is above max_log {self.max_log}")
        if self.ranks_per_host is not None and self.ranks % self.ranks_per_host:
            raise ValueError(
                f"ranks {self.ranks} is not a multiple of ranks_per_host {self.ranks_per_host}"
            )
        if self.benchmark in PAIRS and self.ranks != 2:
            raise ValueError(f"{self.benchmark} runs between exactly 2 ranks, not {self.ranks}")
        if self.benchmark in BANDS and self.ranks % 2:
            raise ValueError(f"{self.benchmark} needs an even number of ranks, not {self.ranks}")
        if self.program is not None and self.mpi == "intel":
            raise ValueError("program belongs to mpi: openmpi; intel brings its own")
        if imb_table.too_large(self.benchmark, self.ranks, 2**self.max_log):
            largest = next(
                log
                for log in range(29, -1, -1)
                if not imb_table.too_large(self.benchmark, self.ranks, 2**log)
            )
            raise ValueError(
                f"max_log {self.max_log}: IMB cannot count ranks x size of {self.benchmark} then; at most {largest} with {self.ranks} ranks"
            )
        return self

    def hosts(self) -> int:
        """Hosts that the ranks are spread over."""
        if self.transport == "shm":
            return 1
        return 2 if self.ranks_per_host is None else self.ranks // self.ranks_per_host

    def sizes(self) -> list[int]:
        """Message sizes in bytes that IMB measures with -msglog min:max: 0, then powers of two; reductions are of whole floats."""
        smallest = max(self.min_log, 2) if self.benchmark in REDUCTIONS else self.min_log
        return [0, *(2**log for log in range(smallest, self.max_log + 1))]

    def rounds(self) -> int:
        """Messages one after the other that an operation takes on a rank, roughly: one to each other rank, or along a tree of all."""
        if self.benchmark in (*imb_table.EXCHANGES, *imb_table.SPREADS):
            return self.ranks - 1
        return math.ceil(math.log2(self.ranks)) if self.benchmark in (*COLLECTIVES, *SYNCS) else 1

    def memory(self) -> int:
        """Bytes of a rank's buffers at the largest size."""
        return imb_table.buffers(self.benchmark, self.ranks) << self.max_log


class Imb(Benchmark[ImbParams]):
    """Latency and bandwidth of MPI messages by size: PingPong, Sendrecv, Allreduce, Alltoall, Barrier and the rest of IMB-MPI1.

    All messages go through the transport asked for, also between ranks of one host: Intel MPI's shared-memory collectives are off
    for tcp and rdma. The provider, the interface and the nodes are read from what MPI prints; a fallback or another placement is invalid.
    Where a size does not fit in memory, or time_per_size for all is over, IMB leaves out that and the larger ones: failed, with the rest kept.

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
        Metric(
            "zero_byte_latency",
            "s",
            "lower",
            "time of a message (or operation) of no bytes",
            headline=True,
        ),
        Metric(
            "peak_bandwidth", "B/s", "higher", "highest bandwidth over all sizes", headline=True
        ),
        Metric(
            "half_bandwidth_size",
            "B",
            "lower",
            "smallest message that reaches half the peak bandwidth",
            headline=True,
        ),
        Metric(
            "operation_time",
            "s",
            "lower",
            "mean over ranks of the time of one operation at the largest size",
            headline=True,
        ),
        Metric(
            "latency",
            "s",
            "lower",
            "time of one operation by message size; stats min, mean, max are over the ranks",
        ),
        Metric("bandwidth", "B/s", "higher", "bandwidth by message size"),
        Metric("message_rate", "1/s", "higher", "messages a second by message size"),
    )

    def shape(self, params: ImbParams) -> dict[str, object]:
        return {"hosts": {"count": params.hosts()}} | (
            {"privileges": ["rdma"]} if params.transport == "rdma" else {}
        )

    def check(self, params: ImbParams, shape: Shape) -> list[str]:
        problems = []
        count = shape.hosts.count
        if params.ranks % count:
            advice = f"use a multiple of {count}, or a ranks_per_host (or hosts.count) that divides {params.ranks}"
            problems.append(
                f"ranks {params.ranks} cannot be spread evenly over {count} hosts; {advice}"
            )
        elif params.ranks_per_host is not None and params.ranks // count != params.ranks_per_host:
            problems.append(
                f"ranks {params.ranks} over {count} hosts is not {params.ranks_per_host} ranks_per_host; change one of the three"
            )
        if params.transport == "shm" and count > 1:
            problems.append("transport shm stays on one host; set hosts.count to 1 or use tcp")
        if params.transport == "rdma" and not devices.has_rdma(shape):
            problems.append(f"transport: rdma {devices.RDMA_WANTED}")
        per_pod = math.ceil(params.ranks / count)
        problems += [] if params.oversubscribe else openmpi.few_cpus(shape, per_pod)
        given, needed = shape.resources.get("memory"), params.memory() * per_pod
        if given is not None and needed > _SHARE * quantity_bytes(given):
            problems.append(
                f"messages of 2^{params.max_log} B need buffers of {short(needed, 'B')} on each host, too much for resources.memory {given};"
                " lower max_log or the ranks of a host, or raise it"
            )
        return problems

    def seconds(self, params: ImbParams) -> float:
        # measured on two shared cores: a start costs 0.3 s, a size of 1000 repetitions some 15 ms below 64 KiB
        rounds = params.rounds()
        repeated = (
            (size, min(params.iterations, max(1, _OWN_VOLUME // max(size, 1))))
            for size in params.sizes()
        )
        work = sum(
            min(params.time_per_size, repetitions * rounds * (12e-6 + size / 2e9))
            for size, repetitions in repeated
        )
        return 0.4 + 0.01 * (params.ranks - 2) + work

    def limit(self, params: ImbParams) -> float:
        # IMB begins no size when it has taken time_per_size for each but two, and estimates the repetitions of a size in a second or so
        sizes = 1 if params.benchmark in SYNCS else params.max_log - params.min_log + 2
        own = 5 * (0.4 + 0.01 * params.ranks) + sizes * (params.time_per_size + 2)
        return max(super().limit(params), own)

    def missing(self, gang: Gang, params: ImbParams) -> list[Tool]:
        if params.mpi == "openmpi":
            own = f"IMB-MPI1 built for Open MPI ({params.program or 'no `program` is given'}; that of impi-rt is for Intel MPI)"
            wanted = (
                (params.program or "", Tool(own, {})),
                (openmpi.MPIRUN.program, openmpi.MPIRUN),
            )
            return [
                tool
                for program, tool in wanted
                if any(host.which(program) is None for host in gang.hosts)
            ]
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
            raise Failed(
                f"ranks {params.ranks} cannot be spread evenly over the {len(gang.hosts)} hosts given; set hosts.count"
            )
        if params.transport == "rdma":
            openmpi.need_rdma(gang.hosts)
        library = openmpi.version(gang.lead) if params.mpi == "openmpi" else None
        argv, env = (
            self._intel(gang, params) if params.mpi == "intel" else self._openmpi(gang, params)
        )
        finished = gang.lead.run(argv, timeout=gang.timeout, env=env)
        output = self._output(finished, library)
        placed = (openmpi if library else intelmpi).nodes_of_ranks(
            finished.stdout + finished.stderr
        )
        output.facts |= {
            "interface": env.get("FI_TCP_IFACE"),
            "hosts": [host.name for host in gang.hosts],
            "ranks_of": dict(Counter(placed.values())),
        }
        return output

    def _intel(self, gang: Gang, params: ImbParams) -> tuple[list[str], dict[str, str]]:
        root = intelmpi.root_of(gang.hosts[0])
        rsh = intelmpi.rsh_script(gang)
        argv = [
            *intelmpi.mpirun(gang, root, params.ranks, rsh),
            f"{root}/bin/IMB-MPI1",
            *self.arguments(params, _memory(gang, params)),
        ]
        return argv, intelmpi.environment(gang, root, params.transport, params.oversubscribe)

    def _openmpi(self, gang: Gang, params: ImbParams) -> tuple[list[str], dict[str, str]]:
        if params.transport == "rdma":
            argv = openmpi.mpirun(
                gang, params.ranks, "rdma", oversubscribe=params.oversubscribe, tls=openmpi.WIRE
            )
        else:  # one way only, as with rdma, or messages between ranks of one host would go through shared memory under the name of tcp
            way = {"tcp": "self,tcp", "shm": "self,vader"}[params.transport]
            interface = intelmpi.interface_of(gang) if params.transport == "tcp" else None
            argv = openmpi.mpirun(
                gang,
                params.ranks,
                "tcp",
                oversubscribe=params.oversubscribe,
                layers=way,
                interface=interface,
            )
        return [
            *argv,
            params.program or "",
            *self.arguments(params, _memory(gang, params)),
        ], openmpi.environment()

    @staticmethod
    def arguments(params: ImbParams, memory: float | None) -> list[str]:
        """Arguments of IMB-MPI1; `memory` is how many bytes of buffers a rank may have (None: not known)."""
        made = [
            params.benchmark,
            "-npmin",
            str(params.ranks),
            "-iter",
            str(params.iterations),
            "-time",
            f"{params.time_per_size:g}",
        ]
        if params.benchmark in SYNCS:
            return made
        made += ["-msglog", f"{params.min_log}:{params.max_log}"]
        needed, room = params.memory(), math.inf if memory is None else memory
        # more than it takes by itself; or less, where the kernel would end a rank that takes what it needs
        return (
            made
            if needed <= min(_OWN_MEMORY, room)
            else [*made, "-mem", f"{min(needed, room) / GIB + 1e-6:.6f}"]
        )

    def _output(self, finished: Finished, library: str | None) -> Output:
        """`library` is the Open MPI that was used; None: Intel MPI, whose log says its version."""
        finished.check("mpirun IMB-MPI1")
        log = finished.stdout + finished.stderr
        tool = f"IMB-MPI1, {library or f'Intel MPI {intelmpi.version(log)}'.strip()}"
        facts = {"fabric": openmpi.selected_layer(log) if library else intelmpi.used(log)}
        return Output(
            {"stdout": finished.stdout, "stderr": finished.stderr}, [finished.argv], tool, facts
        )

    def parse(self, output: Output, params: ImbParams) -> list[Measurement]:
        log = output.texts.get("stdout", "")
        rows, cut = imb_table.read(log, params, output.texts)
        measured = (
            imb_table.by_size(rows, params)
            if cut
            else imb_table.headlines(rows, params) + imb_table.by_size(rows, params)
        )
        everything = log + output.texts.get("stderr", "")
        if params.mpi == "intel":
            wrong = intelmpi.wrong_transport(
                everything, params.transport, output.facts.get("interface")
            )
        else:
            wrong = openmpi.wrong_transport(everything, params.transport)
        wrong = wrong or _wrong_placement(
            output.facts.get("hosts", []), output.facts.get("ranks_of", {}), params.ranks
        )
        if wrong:
            raise Invalid(wrong, output.texts, measured)
        if cut:
            raise Failed(cut, output.texts, measured)
        return measured


def _wrong_placement(hosts: Sequence[str], ranks_of: Mapping[str, int], ranks: int) -> str | None:
    """Why the ranks did not run on the nodes of `hosts` by what MPI says (`ranks_of` a node; pods of one node have names of their own), or None.

    Open MPI says nothing of it with transport rdma: then there is nothing to compare.
    """
    if not hosts or sum(ranks_of.values()) != ranks:
        return None
    nodes = Counter({name: count * ranks // len(hosts) for name, count in Counter(hosts).items()})
    if len(ranks_of) > len(nodes) or sorted(ranks_of.values()) == sorted(nodes.values()):
        return None
    found = ", ".join(f"{count} on {name}" for name, count in sorted(ranks_of.items()))
    return (
        f"{ranks} ranks were asked on {len(nodes)} nodes ({', '.join(nodes)}), MPI placed {found}"
    )


def _memory(gang: Gang, params: ImbParams) -> float | None:
    """Bytes of buffers that a rank may have by what is free on the host that has the least, and by the limit of a pod; None: not known."""
    ranks = max(openmpi.ranks_by_address(gang.hosts, params.ranks).values())
    if ranks * params.memory() <= _NO_QUESTION:
        return None
    found = [
        int(each[1]) * 1024 for host in gang.hosts if (each := _AVAILABLE.search(_meminfo(host)))
    ]
    limit = cgroups.limits()[
        "memory_limit_bytes"
    ]  # pods of a gang have one shape, and here is one of them
    found += [limit] if limit else []
    return _SHARE * min(found) / ranks if found else None


def _meminfo(host: Host) -> str:
    try:
        return host.get("/proc/meminfo").decode()
    except Failed:
        return ""
