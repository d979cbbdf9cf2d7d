"""imb: the Intel MPI Benchmarks (IMB-MPI1), point-to-point and collective, by message size."""

import math
from collections import Counter
from typing import ClassVar

from perfdag.benchmark.contract import Benchmark, Gang, Metric, Output, Params, Tool
from perfdag.benchmark.rules import broken
from perfdag.hosts.base import CommandResult
from perfdag.outcome import Failed, Invalid, Measurement, Skip
from perfdag.quantities import parse_quantity
from perfdag.shape import Shape
from perfdag.steps import devices
from perfdag.steps.imb import placement, report
from perfdag.steps.imb.operations import STREAMS, SYNCS
from perfdag.steps.imb.params import GIB, OPENMPI_PROGRAM, ImbParams
from perfdag.steps.mpi import intelmpi, openmpi
from perfdag.units import short

_OWN_MEMORY = GIB
"""Bytes of buffers that IMB allows a rank by default (-mem)."""
_OWN_VOLUME = 40 * 2**20
"""Bytes of a size after which IMB stops repeating it by default."""


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

    name = "imb"
    image = "imb"
    pairwise = True
    placement = "spread"
    canaries = ("cpu", "memory", "loopback")
    tools = (intelmpi.IMB,)
    Params: ClassVar[type[Params]] = ImbParams
    coords = ("message_bytes",)
    metrics = (
        Metric(
            "zero_byte_latency",
            "s",
            "lower",
            "time of a message (or operation) of no bytes",
            headline=True,
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
        return {
            "hosts": {"count": params.hosts()},
            **({"privileges": ["rdma"]} if params.transport == "rdma" else {}),
            **({"image": "imb-openmpi"} if params.mpi == "openmpi" else {}),
        }

    def check(self, params: ImbParams, shape: Shape) -> list[str]:
        count, per_pod = shape.hosts.count, math.ceil(params.ranks / shape.hosts.count)
        uneven = params.ranks % count != 0
        few = [] if params.oversubscribe else openmpi.few_cpus(shape, per_pod)
        limit, needed = shape.resources.all_limits().get("memory"), params.memory() * per_pod
        return [
            *broken(
                (
                    uneven,
                    f"ranks {params.ranks} cannot be spread evenly over {count} hosts;"
                    f" use a multiple of {count}, or a ranks_per_host (or hosts.count)"
                    f" that divides {params.ranks}",
                ),
                (
                    not uneven and params.ranks_per_host not in (None, per_pod),
                    f"ranks {params.ranks} over {count} hosts is not {params.ranks_per_host}"
                    " ranks_per_host; change one of the three",
                ),
                (
                    params.transport == "shm" and count > 1,
                    "transport shm stays on one host; set hosts.count to 1 or use tcp",
                ),
                (
                    params.transport == "rdma" and not devices.has_rdma(shape),
                    f"transport: rdma {devices.RDMA_WANTED}",
                ),
            ),
            *few,
            *broken(
                (
                    limit is not None and needed > placement.SHARE * float(parse_quantity(limit)),
                    f"messages of 2^{params.max_log} B need buffers of {short(needed, 'B')} on"
                    f" each host, too much for resources.memory {limit};"
                    " lower max_log or the ranks of a host, or raise it",
                )
            ),
        ]

    def directions(self, params: ImbParams) -> int:
        return 2 if params.benchmark in STREAMS else 1

    def seconds(self, params: ImbParams) -> float:
        # Measured on two shared cores: a start costs 0.3 s, and a size below 64 KiB costs about
        # 15 ms for 1000 repetitions.
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
        # IMB begins no size after time_per_size for all but two of them. It takes about a second
        # to estimate the repetitions of a size.
        sizes = 1 if params.benchmark in SYNCS else params.max_log - params.min_log + 2
        own = 5 * (0.4 + 0.01 * params.ranks) + sizes * (params.time_per_size + 2)
        return max(super().limit(params), own)

    def missing(self, gang: Gang, params: ImbParams) -> list[Tool]:
        if params.mpi == "openmpi":
            program = params.program or OPENMPI_PROGRAM
            own = f"IMB-MPI1 built for Open MPI ({program}; that of impi-rt is for Intel MPI)"
            wanted = (
                (program, Tool(own, {})),
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

    def require(self, gang: Gang, params: ImbParams) -> None:
        openmpi.require(gang.hosts, params.ranks, params.oversubscribe, params.transport)

    def run(self, gang: Gang, params: ImbParams) -> Output:
        self.require(gang, params)
        library = openmpi.version(gang.lead) if params.mpi == "openmpi" else None
        argv, env = (
            self._intel(gang, params)
            if params.mpi == "intel"
            else self.openmpi_command(gang, params)
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
            *self.arguments(params, placement.buffer_memory(gang, params)),
        ]
        return argv, intelmpi.environment(gang, root, params.transport, params.oversubscribe)

    def openmpi_command(self, gang: Gang, params: ImbParams) -> tuple[list[str], dict[str, str]]:
        """Return mpirun of Open MPI with IMB-MPI1, and its environment."""
        if params.transport == "rdma":
            argv = openmpi.mpirun(
                gang, params.ranks, "rdma", oversubscribe=params.oversubscribe, tls=openmpi.WIRE
            )
        else:
            # Allow one transport only: shared memory must not carry messages named tcp.
            layers = {"tcp": "self,tcp", "shm": "self,vader"}[params.transport]
            interface = intelmpi.interface_of(gang) if params.transport == "tcp" else None
            argv = openmpi.mpirun(
                gang,
                params.ranks,
                "tcp",
                oversubscribe=params.oversubscribe,
                layers=layers,
                interface=interface,
            )
        return [
            *argv,
            params.program or OPENMPI_PROGRAM,
            *self.arguments(params, placement.buffer_memory(gang, params)),
        ], openmpi.environment()

    @staticmethod
    def arguments(params: ImbParams, memory: float | None) -> list[str]:
        """Return the arguments of IMB-MPI1.

        `memory` is the bytes of buffers that a rank may have, or None if unknown.
        """
        argv = [
            params.benchmark,
            "-npmin",
            str(params.ranks),
            "-iter",
            str(params.iterations),
            "-time",
            f"{params.time_per_size:g}",
        ]
        if params.benchmark in SYNCS:
            return argv
        argv += ["-msglog", f"{params.min_log}:{params.max_log}"]
        needed, available = params.memory(), math.inf if memory is None else memory
        # Raise IMB's default, or lower it where the kernel would kill a rank.
        return (
            argv
            if needed <= min(_OWN_MEMORY, available)
            else [*argv, "-mem", f"{min(needed, available) / GIB + 1e-6:.6f}"]
        )

    def _output(self, finished: CommandResult, library: str | None) -> Output:
        """Return the output of a finished run.

        `library` names the Open MPI used. None is Intel MPI, whose log has the version.
        """
        finished.check("mpirun IMB-MPI1")
        log = finished.stdout + finished.stderr
        tool = f"IMB-MPI1, {library or f'Intel MPI {intelmpi.version(log)}'.strip()}"
        facts = {"fabric": openmpi.selected_layer(log) if library else intelmpi.fabric_of(log)}
        return Output(
            {"stdout": finished.stdout, "stderr": finished.stderr}, [finished.argv], tool, facts
        )

    def parse(self, output: Output, params: ImbParams) -> list[Measurement]:
        log = output.texts.get("stdout", "")
        rows, cut = report.read(log, params, output.texts)
        measured = (
            report.by_size(rows, params)
            if cut
            else report.headlines(rows, params) + report.by_size(rows, params)
        )
        everything = log + output.texts.get("stderr", "")
        if params.mpi == "intel":
            wrong = intelmpi.wrong_transport(
                everything, params.transport, output.facts.get("interface")
            )
        else:
            wrong = openmpi.wrong_transport(everything, params.transport)
        wrong = wrong or placement.wrong_placement(
            output.facts.get("hosts", []), output.facts.get("ranks_of", {}), params.ranks
        )
        if wrong:
            raise Invalid(wrong, output.texts, measured)
        if cut:
            raise Failed(cut, output.texts, measured)
        return measured
