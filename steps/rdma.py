"""rdma-bandwidth and rdma-latency: RDMA verbs between two hosts, with perftest."""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import AfterValidator, Field

from perfdag.benchmark.contract import (
    RDMA_WANTED,
    AtMost,
    Benchmark,
    Equal,
    Failed,
    Form,
    FreeOptions,
    Gang,
    Host,
    Identity,
    Invalid,
    Measurement,
    Metric,
    Network,
    Params,
    PositiveDuration,
    Problem,
    Remark,
    Shape,
    ShortForm,
    Size,
    Skip,
    Tool,
    argv_of,
    needed,
)
from perfdag.steps.mpi import require_rdma

CM_READY = 1.0
"""Seconds for a server with rdma_cm to listen: no table of sockets shows RDMA's port space."""
SLOW_LINK = 1.25e9
"""Bytes a second of the slowest link that estimates assume: 10 Gb/s."""
PRINTED_BANDWIDTH = 0.5e7
"""bit/s by which a bandwidth can be off: perftest rounds Gbit/s to two decimals."""
PRINTED = 0.5e-8
"""Seconds by which a latency can be off: perftest rounds microseconds to two decimals."""
NO_DEVICE = (
    "Did not detect devices",
    "Unable to find the Infiniband/RoCE device",
    "No IB devices found",
    "IB device not found",
)
_BANDWIDTHS = (
    "#bytes",
    "#iterations",
    "BW peak[Gb/sec]",
    "BW average[Gb/sec]",
    "MsgRate[Mpps]",
)
_LATENCIES = (
    "#bytes",
    "#iterations",
    "t_min[usec]",
    "t_max[usec]",
    "t_typical[usec]",
    "t_avg[usec]",
    "t_stdev[usec]",
    "99% percentile[usec]",
    "99.9% percentile[usec]",
)
_TIMED_LATENCIES = ("#bytes", "#iterations", "t_avg[usec]", "tps average")
_STATS = ("min", "max", "p50", "mean", "stdev", "p99", "p99.9")
# p99.9 is an exception. perftest reports it for its default of 1000 iterations, and users look
# for it, although needed(0.999) asks for 4,603.
_NEEDED = {"p99": needed(0.99), "p99.9": 1000}

FREE = FreeOptions(
    "perftest",
    parameters={
        "-b --bidirectional": "bidirectional",
        "-c --connection": "connection",
        "-d --ib-dev": "device",
        "-D --duration": "duration",
        "-i --ib-port": "port",
        "-m --mtu": "mtu",
        "-n --iters": "iterations",
        "-q --qp": "qps",
        "-R --rdma_cm": "rdma_cm",
        "-s --size -a --all": "sizes",
        "-x --gid-index": "gid_index",
    },
    changes={
        "-p --port": "the port that perfdag sets",
        "--ipv6 --ipv6-addr --source_ip --bind_source_ip": "the addresses, as network.family does,",
        "-f --margin": "the measured part of the duration",
        "-w --limit_bw -y --limit_msgrate --run_infinitely": "the end or the judgement",
        "-C --report-cycles --report_gbits --report-per-port --report-both": "the units",
        "-H --report-histogram -U --report-unsorted -N --noPeak": "the table",
        "--cpu_util -W --report-counters --output --out_json --out_json_file": "the table",
        "-V --version -h --help": "the output",
        "-O --dualport --reversed": "the direction or the number of ports",
    },
)
"""Options of perftest 25.04 (`ib_write_bw --help`) that `extra_args` may not have."""


class RdmaParams(Params):
    """Parameters of both benchmarks.

    One iteration is one message (bandwidth) or one exchange (latency).
    """

    retired: ClassVar[Mapping[str, Any]] = {"cuda": None, "atomic": "FETCH_AND_ADD"}
    mode: Literal["read", "write", "send"] = Field("write", description="the verb that is measured")
    iterations: int = Field(
        1000, ge=5, le=100_000_000, description="messages of each size (of each queue pair)"
    )
    duration: PositiveDuration | None = Field(
        None,
        description="measure each size for so long instead of `iterations`;"
        " needs `sizes` to be a list",
    )
    sizes: (
        Literal["all"]
        | Annotated[list[Annotated[Size, Field(ge=1, le=1 << 30)]], Field(min_length=1)]
    ) = Field(
        "all",
        description="message sizes in bytes, or all: 2, 4, 8 ... 8 MiB (perftest's -a)",
    )
    mtu: Literal[256, 512, 1024, 2048, 4096] | None = Field(
        None, description="path MTU in bytes; default the port's"
    )
    connection: Literal["RC", "UC", "UD", "XRC", "DC"] = Field(
        "RC", description="connection type; read knows no UC or UD, write no UD"
    )
    device: (
        Annotated[str, Form("the name of a device, such as mlx5_0", r"^[A-Za-z0-9_.-]{1,64}$")]
        | None
    ) = Field(None, description="RDMA device, for example mlx5_0; default the first")
    port: int = Field(1, ge=1, le=255, description="port of the device")
    gid_index: Annotated[int, Field(ge=0, le=64)] | None = Field(
        None, description="index in the GID table (RoCE version and address)"
    )
    rdma_cm: bool = Field(
        False, description="connect the queue pairs with rdma_cm; connection RC or UD"
    )
    extra_args: Annotated[list[str], AfterValidator(FREE.check)] = Field(
        [], description="added to the command on both sides, for example --tclass=96"
    )

    def problems(self) -> Iterator[Problem]:
        """Yield the parameters that contradict one another."""
        seconds = 3.0 if self.duration is None else self.duration
        if self.duration is not None and self.sizes == "all":
            yield Problem(
                "duration-of-all-sizes",
                "duration needs sizes as a list, for example sizes: [65536];"
                " perftest cannot time all sizes",
            )
        if seconds < 3:
            yield Problem(
                "short-duration",
                "duration must be 3 s or more: perftest leaves out a margin at both ends",
            )
        if seconds % 1:
            yield Problem(
                "whole-seconds",
                f"duration {seconds:g} s: perftest takes whole seconds;"
                f" use {int(seconds)}s or {int(seconds) + 1}s",
            )

    @property
    def runs(self) -> list[int | None]:
        """The size of each run of the tool; None is one run of all sizes."""
        return [None] if self.sizes == "all" else list(self.sizes)

    @property
    def expected_sizes(self) -> set[int]:
        """The sizes that the result must have.

        UD ends at the path MTU, which only the link knows. It must have the sizes up to 256 bytes.
        """
        if self.sizes != "all":
            return set(self.sizes)
        last = 8 if self.connection == "UD" else 23
        return {1 << power for power in range(1, last + 1)}

    @property
    def queue_pairs(self) -> int:
        """The queue pairs that the program reports; XRC and DC have one a direction."""
        return 2 if self.connection in ("XRC", "DC") else 1

    @property
    def messages(self) -> int:
        """The messages of each size on the wire, in both directions, without `duration`."""
        return 2 * self.iterations


R = TypeVar("R", bound=RdmaParams)


class Rdma(Benchmark[R], Generic[R]):
    """Both sides of one perftest program; a subclass names the program and reads its table."""

    network: ClassVar[Network] = "pairs"
    canaries: ClassVar[tuple[str, ...]] = ("cpu", "memory")
    coords: ClassVar[tuple[str, ...]] = ("message_bytes",)
    sizes: ClassVar[tuple[str, ...]] = ("message_bytes",)
    short_forms: ClassVar[Mapping[str, ShortForm]] = {
        "mode": "{}",
        "message_bytes": "{}",
        "sizes": {"all": "all sizes"},
        "qps": "{} queue pairs",
        "bidirectional": {"true": "both send", "false": "one sends"},
        "connection": "{}",
        "mtu": "MTU {}",
        "device": "{}",
        "gid_index": "GID {}",
        "rdma_cm": {"true": "rdma_cm", "false": "no rdma_cm"},
        "iterations": "{} iterations",
        "duration": "for {}",
        "extra_args": "{}",
    }
    remarks: ClassVar[tuple[Remark, ...]] = (
        # perftest then samples the frequency itself, so its times are right, but the CPU is slow.
        Remark(r"Conflicting CPU frequency values|CPU Frequency is not max", "note"),
        Remark(r"(?i)^\s*warning:", "note"),
    )
    suffix: ClassVar[str]
    parse: Callable[[Mapping[str, str], Any], list[Measurement]]
    tools: ClassVar[tuple[Tool, ...]] = (
        Tool("ib_write_bw", {"apt": "perftest", "dnf": "perftest", "zypper": "perftest"}),
    )

    def shape(self, params: R) -> dict[str, Any]:
        return {"image": "perftest", "hosts": {"count": 2}, "privileges": ["rdma"]}

    def check(self, params: R, shape: Shape) -> Iterator[Problem]:
        if not shape.has_rdma():
            yield Problem("no-rdma", RDMA_WANTED)
        if shape.hosts.count != 2:
            yield Problem("two-hosts", f"measures between 2 hosts, not {shape.hosts.count}")

    def seconds(self, params: R) -> float:
        if params.duration is not None:
            return 2 + len(params.runs) * (params.duration + 2)
        moved = params.messages * sum(params.expected_sizes)
        return 2 + len(params.runs) * (0.5 + params.iterations * 2e-4) + moved / SLOW_LINK

    def require(self, gang: Gang, params: R) -> None:
        super().require(gang, params)
        program = f"ib_{params.mode}_{self.suffix}"
        for host in gang.hosts:
            require_rdma(host)
        if gang.shape.network.family != "ipv6":
            return
        usage = gang.lead.run([program, "--help"], timeout=10)
        if "--ipv6-addr" not in usage.stdout + usage.stderr:
            raise Skip(
                f"{program} on {gang.lead.name} negotiates over IPv4 only;"
                " use a perftest of 23.07 or later, or network.family: ipv4"
            )

    def arguments(self, params: R, size: int | None) -> list[str]:
        """Return the command without the server's name and port, which both sides have alike."""
        options: dict[str, object] = {
            "-F": True,
            "-c": params.connection,
            "-i": params.port,
            # perftest takes either a duration or a number of messages, not both.
            "-D": None if params.duration is None else f"{params.duration:.0f}",
            "-n": params.iterations if params.duration is None else None,
            "-s": size,
            "-m": params.mtu,
            "-d": params.device,
            "-x": params.gid_index,
            "-a": size is None,  # all sizes in one call
            "-R": params.rdma_cm,
        }
        return [f"ib_{params.mode}_{self.suffix}", *argv_of(options), *params.extra_args]

    def run(self, gang: Gang, params: R) -> list[Measurement]:
        client, server = gang.hosts
        output = gang.output
        output.comparable = False
        # The first is for the sides' socket (with rdma_cm for the queue pairs), the second for the
        # GID.
        family = ["--ipv6-addr", "--ipv6"] if gang.shape.network.family == "ipv6" else []
        for number, size in enumerate(params.runs):
            port = server.free_port()
            serve = [*self.arguments(params, size), *family, "-p", str(port)]
            connect = [*serve, server.address]
            output.argv += [serve, connect]
            try:
                serving = server.serve(serve, port=None if params.rdma_cm else port)
            except Failed as error:
                _check_device(serve[0], server, str(error))
                raise
            with serving:
                if params.rdma_cm:
                    time.sleep(CM_READY)
                finished = client.run(connect, timeout=gang.timeout)
                served = serving.wait(5.0)
            output.texts[f"client{number}"] = finished.stdout + finished.stderr
            output.texts[f"server{number}"] = served.stdout + served.stderr
            _check_device(serve[0], client, finished.stdout + finished.stderr)
            # The message of a failed ibv_reg_mr(), most often at RLIMIT_MEMLOCK.
            unlocked = [text for text in output.texts.values() if "Couldn't allocate MR" in text]
            if finished.code != 0 and unlocked:
                raise Failed(
                    f"{serve[0]} could not lock its buffers; raise LimitMEMLOCK of the container"
                    " runtime, or run as uid 0 with privileges: [rdma], which adds IPC_LOCK"
                )
            finished.check(serve[0])
        version = client.run([serve[0], "--version"], timeout=10).stdout
        number_of = re.search(r"Version:\s*(\S+)", version)
        output.tool = f"perftest {number_of[1] if number_of else '(version not said)'}"
        output.facts["test"] = read_info(output.texts["client0"])
        return self.parse(output.texts, params)


def _check_device(program: str, host: Host, log: str) -> None:
    """Raise Skip if the program says that it finds no device."""
    if any(text in log for text in NO_DEVICE):
        raise Skip(f"{program} finds no RDMA device on {host.name}: {log.strip()[-200:]}")


def read_info(text: str) -> dict[str, str]:
    """Return what a report's head says of the link: device, transport, connection, MTU, type."""
    form = (
        r"^ ?(Device|Number of qps|Transport type|Connection type|Mtu|Link type|GID index"
        r"|rdma_cm QPs|TX depth)\s*: (.+?)\s*$"
    )
    lines = re.sub(r"\t{2,}|\r", "\n", text)  # a line may have two pairs
    return {key.lower().replace(" ", "_"): value for key, value in re.findall(form, lines, re.M)}


def _read(texts: Mapping[str, str], params: RdmaParams, titles: Sequence[str]) -> list[list[float]]:
    """Return the numbers below `titles` in each row of every run, by size.

    Raises Failed if a title or a size is missing, as with another unit, or if a row is cut or not
    numeric.
    """
    rows: list[list[float]] = []
    for number in range(len(params.runs)):
        header: list[str] = []
        for line in texts.get(f"client{number}", "").splitlines():
            cells = line.split()
            if line.lstrip().startswith("#bytes"):
                header = re.findall(r"tps average|[\w.%]+(?: \w+)*\[[^]]*\]|\S+", line)
                if absent := [title for title in titles if title not in header]:
                    raise Failed(f"perftest's table lacks {', '.join(absent)}: {line.strip()}")
            elif line.startswith("---"):
                header = []
            elif header and cells and cells[0].isdigit():  # else a warning between the rows
                try:
                    values = dict(zip(header, map(float, cells), strict=True))
                except ValueError:
                    raise Failed(
                        f"perftest's row is not {len(header)} numbers: {line.strip()}"
                    ) from None
                rows.append([values[title] for title in titles])
    sizes = [int(row[0]) for row in rows]
    if absent := [str(size) for size in sorted(params.expected_sizes - set(sizes))]:
        of_all = f"{len(absent)} of {len(params.expected_sizes)} message sizes"
        raise Failed(f"no row for {of_all}: {', '.join(absent[:5])}")
    if len(set(sizes)) != len(sizes):
        raise Failed("perftest's table has a message size twice")
    return sorted(rows)


def _verified(
    texts: Mapping[str, str], params: RdmaParams, rows: list[Measurement]
) -> list[Measurement]:
    """Return the rows. Raises Invalid if a head says that perftest used something else.

    perftest lowers an MTU without an error.
    """
    requested = {
        "mtu": params.mtu and f"{params.mtu}[B]",
        "connection_type": params.connection,
        "device": params.device,
        "number_of_qps": str(params.queue_pairs),
    }
    for name, text in texts.items():
        info = read_info(text) if name.startswith("client") else {}
        for key, value in requested.items():
            if value is not None and info.get(key, value) != value:
                label = key.replace("_", " ")
                raise Invalid(
                    f"{value} was requested as {label}, perftest used {info[key]}",
                    measurements=rows,
                )
    return rows


class BandwidthParams(RdmaParams):
    """Options of ib_*_bw: one run for all sizes, or one for each size."""

    qps: int = Field(
        1,
        ge=1,
        le=16384,
        description="queue pairs; more spread traffic, for example over the ports of a bond",
    )
    bidirectional: bool = Field(
        False, description="both sides send; the sum of both directions is reported"
    )

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def queue_pairs(self) -> int:
        return self.qps * (super().queue_pairs if self.bidirectional else 1)

    @property
    def messages(self) -> int:
        return self.iterations * self.qps * self.directions


def parse_bandwidth(texts: Mapping[str, str], params: BandwidthParams) -> list[Measurement]:
    """Return the bandwidth in bit/s and the message rate in 1/s by size."""
    table = _read(texts, params, _BANDWIDTHS)
    rows = [Measurement("highest_bandwidth", max(row[3] for row in table) * 1e9)]
    for size, count, peak, average, rate in table:
        coords = {"message_bytes": int(size)}
        n = int(count)
        rows.append(Measurement("bandwidth", average * 1e9, "mean", coords, n))
        # 0: perftest omits the peak with `duration` and above 20,000 iterations.
        if peak > 0:
            rows.append(Measurement("bandwidth", peak * 1e9, "max", coords, n))
        rows.append(Measurement("message_rate", rate * 1e6, "mean", coords, n))
    return _verified(texts, params, rows)


class RdmaBandwidth(Rdma[BandwidthParams]):
    """RDMA bandwidth by message size, with perftest.

    Clock: perftest's cycle counter on the sending side. It starts when the first message of a
    size is posted and stops at the completion of the last one. With `duration` it covers the
    middle of that time, without a margin at both ends.
    """

    suffix: ClassVar[str] = "bw"
    parse = staticmethod(parse_bandwidth)
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric(
            "highest_bandwidth",
            "bit/s",
            "higher",
            "highest average bandwidth over all sizes",
            headline=True,
            nominal=True,
        ),
        Metric(
            "bandwidth",
            "bit/s",
            "higher",
            "bandwidth by message size: mean, and the peak of single completions (max)",
        ),
        Metric(
            "message_rate", "1/s", "higher", "messages a second by message size", counts="messages"
        ),
    )

    def identities(self, params: BandwidthParams) -> Iterable[Identity]:
        yield Equal(("message_rate", "message_bytes", 8), ("bandwidth",), step=PRINTED_BANDWIDTH)

    def arguments(self, params: BandwidthParams, size: int | None) -> list[str]:
        program, *shared = super().arguments(params, size)
        options = {"-q": params.qps, "--report_gbits": True, "-b": params.bidirectional}
        return [program, *argv_of(options), *shared]


def parse_latency(texts: Mapping[str, str], params: RdmaParams) -> list[Measurement]:
    """Return the latencies in s by size, and with `duration` the exchanges a second."""
    timed = params.duration is not None
    table = _read(texts, params, _TIMED_LATENCIES if timed else _LATENCIES)
    typical = table[0][2 if timed else 4] * 1e-6
    coords = {"message_bytes": int(table[0][0])}
    rows = [Measurement("lowest_latency", typical, coords=coords, step=PRINTED)]
    for size, iterations, *values in table:
        coords = {"message_bytes": int(size)}
        n = int(iterations)
        if timed:
            rows.append(Measurement("latency", values[0] * 1e-6, "mean", coords, n))
            rows.append(Measurement("exchange_rate", values[1], "mean", coords, n))
            continue
        rows += [
            Measurement("latency", value * 1e-6, stat, coords, n)
            for stat, value in zip(_STATS, values, strict=True)
            if n >= _NEEDED.get(stat, 0)
        ]
    return _verified(texts, params, rows)


class RdmaLatency(Rdma[RdmaParams]):
    """RDMA latency by message size, with perftest.

    p99 is left out below 459 iterations. p99.9 is perftest's own, from its default of 1000
    iterations on. Below 4,603 iterations it is little more than the second largest value.

    Clock: perftest's cycle counter on the client. It starts when a message is posted. It stops at
    its completion (read) or at the answer (write, send), where half of the round trip is
    reported.
    """

    suffix: ClassVar[str] = "lat"
    parse = staticmethod(parse_latency)
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric(
            "lowest_latency",
            "s",
            "lower",
            "typical latency of the smallest message (with `duration` its mean)",
            headline=True,
        ),
        Metric(
            "latency",
            "s",
            "lower",
            "latency by message size: min, p50 (perftest's typical), max, mean, stdev, p99, p99.9",
        ),
        Metric(
            "exchange_rate",
            "1/s",
            "higher",
            "exchanges a second by message size, with `duration`",
            counts="exchanges",
        ),
    )

    def identities(self, params: RdmaParams) -> Iterable[Identity]:
        yield AtMost(("exchange_rate", "latency"), (1,))  # one is in flight
