"""rdma-bandwidth and rdma-latency: RDMA verbs between two hosts, with perftest."""

import json
import math
import re
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar

from pydantic import Field, field_validator, model_validator

from perfdag.benchmark.contract import (
    Benchmark,
    Gang,
    Metric,
    Network,
    Output,
    Params,
    Tool,
    broken,
    refuse,
)
from perfdag.hosts import gpu_use
from perfdag.hosts.base import CommandResult, Host
from perfdag.outcome import Failed, Invalid, Measurement, Skip
from perfdag.shape import Shape
from perfdag.stats.robust import needed
from perfdag.steps import devices, gpu_watch
from perfdag.units import PositiveDuration, Size

Mode = Literal["read", "write", "send", "atomic"]
_CONNECTIONS = {
    "write": ("RC", "UC", "XRC", "DC"),
    "read": ("RC", "XRC", "DC"),
    "send": ("RC", "UC", "UD", "XRC", "DC"),
    "atomic": ("RC", "XRC", "DC"),
}
_BY_CM = ("RC", "UD")
"""Connection types that perftest connects with rdma_cm."""


_EXTRA = (
    "aes_block_size", "aes_xts", "bind_source_ip", "burst_size", "congest_type", "cq-mod",
    "cqe_poll", "cuda_mem_type", "data_enc_keys_number", "dest_mac", "disable_pcie_relaxed",
    "dlid", "dont_xchg_versions", "encrypt_on_tx", "events", "flow_label", "flows", "flows_burst",
    "force-link", "gpu_touch", "hop_limit", "inline_size", "ipv6", "ipv6-addr", "latency_gap",
    "limit_bw", "limit_msgrate", "log_active_dci_streams", "log_dci_streams", "margin", "mmap",
    "mmap-offset", "mr_per_qp", "no_enhanced_reorder", "no_lock", "noPeak", "odp", "outs",
    "payload_file_path", "perform_warm_up", "pkey_index", "post_list", "qp-timeout", "rate_limit",
    "rate_limit_type", "rate_units", "recv_post_list", "report-counters", "retry_count", "rx-depth",
    "send_with_imm", "sig_before", "sl", "source_ip", "tclass", "tos", "tx-depth",
    "typical_pkt_size", "unsolicited_write", "use-null-mr", "use-srq", "use_cuda_dmabuf",
    "use_cuda_pcie_mapping", "use_data_direct", "use_hugepages", "use_old_post_send", "use_ooo",
    "vector", "wait_destroy", "write_with_imm",
)  # fmt: skip
"""Long options of perftest that change the traffic, and neither its size nor what it prints."""
_EXTRA_LETTERS = re.compile(r"-[eN]*([STtruIXolQLfwyW].*)?")
"""Their letters: those without a value first, then one with its value in the same word."""


def _is_extra(argument: str) -> bool:
    if argument.startswith("--"):
        # getopt_long(3) accepts a prefix of a name, which another option may have in common
        return argument[2:].partition("=")[0] in _EXTRA
    return _EXTRA_LETTERS.fullmatch(argument) is not None


class RdmaParams(Params):
    """Parameters of both benchmarks.

    One iteration is one message (bandwidth) or one exchange (latency).
    """

    mode: Mode = Field("write", description="the verb that is measured")
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
        description="message sizes in bytes, or all: 2, 4, 8 ... 8 MiB (perftest's -a);"
        " atomic is always 8 bytes",
    )
    mtu: Literal[256, 512, 1024, 2048, 4096] | None = Field(
        None, description="path MTU in bytes; default the port's"
    )
    connection: Literal["RC", "UC", "UD", "XRC", "DC"] = Field(
        "RC", description="connection type; read and atomic know no UC or UD, write no UD"
    )
    device: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")] | None = Field(
        None, description="RDMA device, for example mlx5_0; default the first"
    )
    port: int = Field(1, ge=1, le=255, description="port of the device")
    gid_index: Annotated[int, Field(ge=0, le=64)] | None = Field(
        None, description="index in the GID table (RoCE version and address)"
    )
    rdma_cm: bool = Field(
        False, description="connect the queue pairs with rdma_cm; connection RC or UD"
    )
    cuda: Annotated[int, Field(ge=0, le=63)] | None = Field(
        None,
        description="buffers in the memory of this GPU (nvidia-smi's index);"
        " needs a perftest built with CUDA",
    )
    atomic: Literal["CMP_AND_SWAP", "FETCH_AND_ADD"] = Field(
        "FETCH_AND_ADD", description="with mode: atomic"
    )
    extra_args: list[Annotated[str, Field(pattern=r"^--?[A-Za-z0-9]")]] = Field(
        [],
        description="added to the command on both sides, for example --tclass=96:"
        " options that change neither what a parameter sets nor what perftest prints",
    )

    @field_validator("extra_args")
    @classmethod
    def _not_ours(cls, arguments: list[str]) -> list[str]:
        if other := [argument for argument in arguments if not _is_extra(argument)]:
            raise ValueError(
                f"{', '.join(other)}: a parameter sets this option, or it would change what is"
                " measured or read here; set the parameter, or leave it out"
            )
        return arguments

    @model_validator(mode="after")
    def _agree(self) -> Self:
        listed, by_cm = self.sizes != "all", " and ".join(_BY_CM)
        largest = 0 if self.sizes == "all" else max(self.sizes)
        seconds = 3.0 if self.duration is None else self.duration
        refuse(
            (
                self.connection not in _CONNECTIONS[self.mode],
                f"mode {self.mode} has no connection {self.connection};"
                f" it has {', '.join(_CONNECTIONS[self.mode])}",
            ),
            (
                self.rdma_cm and self.connection not in _BY_CM,
                f"rdma_cm connects {by_cm} only, not {self.connection};"
                " leave rdma_cm out, or use one of these",
            ),
            (
                self.duration is not None and not listed and self.mode != "atomic",
                "duration needs sizes as a list, for example sizes: [65536];"
                " perftest cannot time all sizes",
            ),
            (
                self.mode == "atomic" and self.sizes not in ("all", [8]),
                "mode atomic measures 8 bytes; leave sizes out",
            ),
            (
                seconds < 3,
                "duration must be 3 s or more: perftest leaves out a margin at both ends",
            ),
            (
                seconds % 1,
                f"duration {seconds:g} s: perftest takes whole seconds;"
                f" use {int(seconds)}s or {int(seconds) + 1}s",
            ),
            (
                self.connection == "UD" and largest > (self.mtu or 4096),
                f"sizes: {largest} B is more than one datagram; UD ends at the path MTU,"
                f" at most {self.mtu or 4096} B",
            ),
        )
        return self

    def runs(self) -> list[int | None]:
        """Return the size of each run of the tool; None is one run of all sizes."""
        if self.mode == "atomic" or self.sizes == "all":
            return [None]
        return list(self.sizes)

    def expected_sizes(self) -> set[int]:
        """Return the sizes that the result must have.

        UD ends at the path MTU, which only the link knows. It must have the sizes up to 256 bytes.
        """
        if self.mode == "atomic":
            return {8}
        if self.sizes != "all":
            return set(self.sizes)
        last = 8 if self.connection == "UD" else 23
        return {1 << power for power in range(1, last + 1)}


NO_DEVICE = (
    "Did not detect devices",
    "Unable to find the Infiniband/RoCE device",
    "No IB devices found",
    "IB device not found",
)
_NOT_LOCKED = "Couldn't allocate MR"
"""Message of a failed ibv_reg_mr(), most often at RLIMIT_MEMLOCK."""
CM_READY = 1.0
"""Seconds for a server with rdma_cm to listen if the kernel does not report that it does."""


def missing_device(host: Host) -> str | None:
    """Return what verbs need and the host lacks, or None.

    They need a device under /sys/class/infiniband and its files in /dev/infiniband.
    """
    listing = host.run(["ls", "/sys/class/infiniband"], timeout=10)
    if listing.code != 0:
        return (
            "the node has no RDMA device: /sys/class/infiniband is absent"
            " (no driver such as mlx5_ib, rdma_rxe or siw is loaded)"
        )
    if not listing.stdout.split():
        return "the node has no RDMA device: /sys/class/infiniband is empty"
    files = host.run(["ls", "/dev/infiniband"], timeout=10)
    if files.code != 0 or "uverbs" not in files.stdout:
        devices = ", ".join(listing.stdout.split())
        return (
            f"the node has {devices}, but /dev/infiniband/uverbs* is not in the container;"
            " ask for the device plugin's resource"
        )
    return None


def await_cm(server: Host, port: int) -> None:
    """Wait until a server listens on a port of RDMA's port space.

    The kernel's table of connection identifiers shows it (`rdma`, of iproute2). If `rdma` is
    missing or not permitted, wait one second.
    """
    deadline = time.monotonic() + CM_READY
    listens = re.compile(rf"state LISTEN .*src-addr \S*:{port}\s")
    can_list = server.which("rdma") is not None
    while (left := deadline - time.monotonic()) > 0:
        listing = (
            server.run(["rdma", "resource", "show", "cm_id"], timeout=10) if can_list else None
        )
        if listing is not None and listens.search(listing.stdout):
            return
        can_list = listing is not None and listing.code == 0
        time.sleep(min(left, 0.01 if can_list else left))


def memlock(host: Host) -> str:
    """Return the limit of locked memory, `soft hard` in bytes or `unlimited`.

    Empty if unreadable. Source: /proc/PID/limits in proc(5).
    """
    try:
        match = re.search(
            r"^Max locked memory\s+(\S+)\s+(\S+)", host.get("/proc/self/limits").decode(), re.M
        )
    except Failed:
        return ""
    return f"{match[1]} {match[2]}" if match else ""


def check_finished(
    program: str, client: Host, finished: CommandResult, texts: dict[str, str]
) -> None:
    """Raise Skip or Failed if the client did not end well."""
    log = finished.stdout + finished.stderr
    if any(text in log for text in NO_DEVICE):
        reason = missing_device(client) or finished.tail()
        raise Skip(f"{program} finds no RDMA device on {client.name}: {reason}", texts)
    if finished.timed_out:
        raise Failed(
            f"{program} did not end within {finished.seconds:.1f} s: {finished.tail()}", texts
        )
    if finished.code != 0 and any(_NOT_LOCKED in text for text in texts.values()):
        raise Failed(
            f"{program} could not lock its buffers; the limit of locked memory on {client.name}"
            f" is {memlock(client) or 'not known'} B (soft hard): raise LimitMEMLOCK of the"
            " container runtime, or run as uid 0 with privileges: [rdma], which adds IPC_LOCK",
            texts,
        )
    if finished.code != 0:
        raise Failed(f"{program} exited {finished.code}: {finished.tail()}", texts)


_PAIR = re.compile(
    r"^ ?(Device|Number of qps|Transport type|Connection type|Mtu|Link type|GID index|rdma_cm QPs"
    r"|TX depth)\s*: (.+?)\s*$"
)


def read_info(text: str) -> dict[str, str]:
    """Return what a report's head says of the link: device, transport, connection, MTU, type."""
    info = {}
    for line in text.splitlines():
        for part in re.split(r"\t{2,}", line):
            pair = _PAIR.match(part)
            if pair:
                info[pair[1].lower().replace(" ", "_")] = pair[2]
    return info


def option_mismatch(output: Output, requested: Mapping[str, str | None]) -> str | None:
    """Return what the run's head reports other than requested, or None.

    A requested value of None matches anything. perftest lowers an MTU without an error.
    """
    for name, text in output.texts.items():
        info = read_info(text) if name.startswith("client") else {}
        for key, value in requested.items():
            if value is not None and info.get(key, value) != value:
                label = key.replace("_", " ")
                return f"{value} was requested as {label}, perftest used {info[key]}"
    return None


_TITLE = re.compile(r"tps average|[\w.%]+(?: \w+)*\[[^]]*\]|\S+")


def read_table(text: str, titles: Sequence[str]) -> list[list[float]]:
    """Return the numbers below `titles` in each row of a report's tables.

    Raises Failed if a table lacks a title, as with another unit, or if a row is cut or not numeric.
    """
    rows: list[list[float]] = []
    header: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("#bytes"):
            header = _TITLE.findall(line)
            if absent := [title for title in titles if title not in header]:
                raise Failed(f"perftest's table lacks {', '.join(absent)}: {line.strip()}")
        elif header and line.startswith("---"):
            header = []
        elif header and line.strip():
            cells = line.split()
            if not cells[0].isdigit():
                continue  # a warning line between the rows
            try:
                values = dict(zip(header, map(float, cells), strict=True))
            except ValueError:
                raise Failed(
                    f"perftest's table has a row that is not {len(header)} numbers: {line.strip()}"
                ) from None
            if not all(map(math.isfinite, values.values())):
                raise Failed(f"perftest's table has a row without a number: {line.strip()}")
            rows.append([values[title] for title in titles])
    return rows


def read_json(text: str) -> dict[str, float] | None:
    """Return `results` of perftest's JSON; None if absent or, as in 4.5, not JSON."""
    try:
        results = json.loads(text)["results"]
    except (ValueError, KeyError, TypeError):
        return None
    return {name: float(value) for name, value in results.items() if isinstance(value, int | float)}


def rows_of(output: Output, params: RdmaParams, columns: Mapping[str, str]) -> list[list[float]]:
    """Return the numbers of every row of every run, in the order of `columns`.

    `columns` has the names of the JSON, and their titles in the table. Raises Failed if a row is
    cut or garbled.
    """
    rows = []
    for number, size in enumerate(params.runs()):
        results = read_json(output.texts.get(f"json{number}", "")) if size is not None else None
        if results is not None and columns.keys() <= results.keys():
            rows.append([results[key] for key in columns])
        else:
            rows += read_table(output.texts.get(f"client{number}", ""), list(columns.values()))
    return rows


def check_sizes(params: RdmaParams, sizes: Sequence[int], texts: dict[str, str]) -> None:
    """Raise Failed if a size that the params imply is missing or appears twice."""
    absent = sorted(params.expected_sizes() - set(sizes))
    if absent:
        raise Failed(
            f"no row for {len(absent)} of {len(params.expected_sizes())} message sizes:"
            f" {', '.join(map(str, absent[:5]))}",
            texts,
        )
    if len(set(sizes)) != len(sizes):
        raise Failed("perftest's table has a message size twice", texts)


SLOW_LINK = 1.25e9
"""Bytes a second of the slowest link that estimates assume: 10 Gb/s."""
R = TypeVar("R", bound=RdmaParams)


class Rdma(Benchmark[R], Generic[R]):
    """Both sides of one perftest program; a subclass names the program and reads its table."""

    image: ClassVar[str] = "perftest"
    network: ClassVar[Network] = "pairs"
    canaries: ClassVar[tuple[str, ...]] = ("cpu", "memory")
    suffix: ClassVar[str]
    tools: ClassVar[tuple[Tool, ...]] = (
        Tool("ib_write_bw", {"apt": "perftest", "dnf": "perftest", "zypper": "perftest"}),
    )

    def shape(self, params: R) -> dict[str, Any]:
        return {"hosts": {"count": 2}, "privileges": ["rdma"]}

    def check(self, params: R, shape: Shape) -> list[str]:
        return broken(
            (not devices.has_rdma(shape), devices.RDMA_WANTED),
            (shape.hosts.count != 2, f"measures between 2 hosts, not {shape.hosts.count}"),
        )

    def program(self, params: R) -> str:
        """Return the name of the tool, for example ib_read_lat."""
        return f"ib_{params.mode}_{self.suffix}"

    def own_arguments(self, params: R) -> list[str]:
        """Return the arguments that only this benchmark has."""
        return []

    def arguments(self, params: R, size: int | None) -> list[str]:
        """Return the command without the server's name, port and JSON file.

        perftest requires the same options on both sides.
        """
        argv = [self.program(params), "-F", "-c", params.connection, "-i", str(params.port)]
        argv += (
            ["-D", f"{params.duration:.0f}"]
            if params.duration is not None
            else ["-n", str(params.iterations)]
        )
        if params.mode == "atomic":
            argv += ["-A", params.atomic]
        else:
            argv += ["-a"] if size is None else ["-s", str(size)]
        for flag, value in (("-m", params.mtu), ("-d", params.device), ("-x", params.gid_index)):
            if value is not None:
                argv += [flag, str(value)]
        if params.rdma_cm:
            argv.append("-R")
        if params.cuda is not None:
            argv.append(f"--use_cuda={params.cuda}")
        return argv + self.own_arguments(params) + params.extra_args

    def queue_pairs(self, params: R) -> int:
        """Return the queue pairs that the program reports; XRC and DC have one a direction."""
        return 2 if params.connection in ("XRC", "DC") else 1

    def messages(self, params: R) -> int:
        """Return the messages of each size on the wire, if `iterations` limit the run.

        They are those of all queue pairs, in both directions.
        """
        return 2 * params.iterations

    def seconds(self, params: R) -> float:
        if params.duration is not None:
            return 2 + len(params.runs()) * (params.duration + 2)
        return (
            2
            + len(params.runs()) * (0.5 + params.iterations * 2e-4)
            + self.messages(params) * sum(params.expected_sizes()) / SLOW_LINK
        )

    def require(self, gang: Gang, params: R) -> None:
        super().require(gang, params)
        for host in gang.hosts:
            problem = missing_device(host)
            if problem:
                raise Skip(f"{self.program(params)} cannot run on {host.name}: {problem}")
        result = gang.hosts[0].run([self.program(params), "--help"], timeout=10)
        help_text = result.stdout + result.stderr
        gang.notes["json"] = "--out_json_file" in help_text
        if gang.shape.network.family == "ipv6":
            if "--ipv6-addr" not in help_text:
                advice = "use a perftest of 23.07 or later, or network.family: ipv4"
                raise Skip(
                    f"{self.program(params)} on {gang.hosts[0].name} negotiates over IPv4 only;"
                    f" {advice}"
                )
            # The first is for the sides' socket (with rdma_cm for the queue pairs), the second
            # for the GID.
            gang.notes["family"] = ["--ipv6-addr", "--ipv6"]
        if params.cuda is not None:
            problem = next((text for host in gang.hosts if (text := gpu_use.problem(host))), None)
            if problem:
                raise Skip(problem)
            if "--use_cuda" not in help_text:
                raise Skip(
                    f"{self.program(params)} on {gang.hosts[0].name} is built without CUDA;"
                    " docs/kube-perftest.md says how"
                )

    def provenance(self, gang: Gang, params: R) -> dict[str, Any]:
        facts: dict[str, Any] = {"memlock": [memlock(host) for host in gang.hosts]}
        if params.cuda is not None:
            facts["gpus"] = gang.notes["gpus"] = {
                name: gpu_use.facts(host) for name, host in gpu_use.by_name(gang.hosts).items()
            }
        return facts

    def run(self, gang: Gang, params: R) -> list[Measurement]:
        gang.output.facts |= self.provenance(gang, params)
        facts = gang.output.facts
        gang.output = self.measure(gang, params)
        gang.output.facts |= facts | gang.output.facts
        gang.output.comparable = False
        return self.parse(gang.output, params)

    def measure(self, gang: Gang, params: R) -> Output:
        if params.cuda is None:
            return self._measure(gang, params)
        # The NIC works on the GPUs' memory: their own computing is only set-up.
        with gpu_watch.watched(gang.hosts, gang.notes.get("gpus"), computes=False) as watch:
            for name, host in gpu_use.by_name(gang.hosts).items():
                watch.used |= gpu_watch.uuids_of_device(
                    host, watch.hosts[name]["gpus"], params.cuda
                )
            output = self._measure(gang, params)
        output.facts |= {"gpu": watch.hosts, "against": watch.against}
        return output

    def _measure(self, gang: Gang, params: R) -> Output:
        client, server = gang.hosts[0], gang.hosts[-1]
        env = None if params.cuda is None else gpu_watch.PCI_ORDER
        texts: dict[str, str] = {}
        commands: list[list[str]] = []
        for number, size in enumerate(params.runs()):
            port, json_file = server.free_port(), f"{gang.scratch}/perftest.json"
            argv = [*self.arguments(params, size), *gang.notes.get("family", ()), "-p", str(port)]
            client_argv = [
                *argv,
                *(["--out_json", f"--out_json_file={json_file}"] if gang.notes.get("json") else []),
                server.address,
            ]
            commands += [argv, client_argv]
            # With rdma_cm the server listens in RDMA's port space, which no socket table shows.
            with self._serve(server, argv, None if params.rdma_cm else port, env) as serving:
                if params.rdma_cm:
                    await_cm(server, port)
                finished = client.run(client_argv, timeout=gang.timeout, env=env)
                server_end = serving.wait(5.0)
            texts[f"client{number}"] = finished.stdout + finished.stderr
            texts[f"server{number}"] = server_end.stdout + server_end.stderr
            check_finished(self.program(params), client, finished, texts)
            try:
                texts[f"json{number}"] = client.get(json_file).decode(errors="replace")
            except Failed:
                texts[f"json{number}"] = ""
            client.remove(json_file)
        version = re.search(
            r"Version:\s*(\S+)", client.run([self.program(params), "--version"], timeout=10).stdout
        )
        return Output(
            texts,
            commands,
            f"perftest {version[1] if version else '(version not said)'}",
            {"test": read_info(texts.get("client0", ""))},
        )

    def _serve(
        self, server: Host, argv: Sequence[str], port: int | None, env: Mapping[str, str] | None
    ) -> Any:
        try:
            return server.serve(argv, port=port, env=env)
        except Failed as error:
            if any(text in str(error) for text in NO_DEVICE):
                reason = missing_device(server) or error
                raise Skip(f"{argv[0]} finds no RDMA device on {server.name}: {reason}") from None
            raise

    @abstractmethod
    def parse(self, output: Output, params: R) -> list[Measurement]:
        """Return the values of an output."""

    def judged(
        self, output: Output, params: R, measurements: list[Measurement]
    ) -> list[Measurement]:
        """Return the measurements.

        Raises Invalid if perftest used other options than requested, or if the GPUs that held
        the buffers disturbed it.
        """
        requested = {
            "mtu": params.mtu and f"{params.mtu}[B]",
            "connection_type": params.connection,
            "device": params.device,
        }
        reason = option_mismatch(
            output, {**requested, "number_of_qps": str(self.queue_pairs(params))}
        ) or output.facts.get("against")
        if reason:
            raise Invalid(reason, output.texts, measurements)
        return measurements


_BANDWIDTHS = {
    "MsgSize": "#bytes",
    "n_iterations": "#iterations",
    "BW_peak": "BW peak[Gb/sec]",
    "BW_average": "BW average[Gb/sec]",
    "MsgRate": "MsgRate[Mpps]",
}
_SHARED_DEPTH = 512
"""DEF_RX_SEND of perftest, limited by the iterations."""
_GBIT = 1e9


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

    @model_validator(mode="after")
    def _shared_queue(self) -> Self:
        depth = _SHARED_DEPTH if self.duration is not None else min(_SHARED_DEPTH, self.iterations)
        if self.mode == "send" and self.connection == "XRC" and self.qps > depth:
            raise ValueError(
                f"qps {self.qps}: XRC shares one receive queue of {depth} messages here, and"
                f" each needs one; use {depth} or fewer"
            )
        return self


class RdmaBandwidth(Rdma[BandwidthParams]):
    """RDMA bandwidth by message size, with perftest.

    Clock: perftest's cycle counter on the sending side. It starts when the first message of a
    size is posted and stops at the completion of the last one. With `duration` it covers the
    middle of that time, without a margin at both ends.
    """

    name: ClassVar[str] = "rdma-bandwidth"
    suffix: ClassVar[str] = "bw"
    Params: ClassVar[type[BandwidthParams]] = BandwidthParams
    coords: ClassVar[tuple[str, ...]] = ("message_bytes",)
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
        Metric("message_rate", "1/s", "higher", "messages a second by message size"),
    )

    def queue_pairs(self, params: BandwidthParams) -> int:
        return params.qps * (super().queue_pairs(params) if params.bidirectional else 1)

    def messages(self, params: BandwidthParams) -> int:
        return params.iterations * params.qps * (2 if params.bidirectional else 1)

    def own_arguments(self, params: BandwidthParams) -> list[str]:
        return ["-q", str(params.qps), "--report_gbits", *(["-b"] if params.bidirectional else [])]

    def parse(self, output: Output, params: BandwidthParams) -> list[Measurement]:
        rows = rows_of(output, params, _BANDWIDTHS)
        check_sizes(params, [int(values[0]) for values in rows], output.texts)
        best = max(values[3] for values in rows) * _GBIT
        if best <= 0:
            raise Failed("perftest reports no bandwidth", output.texts)
        measurements = [Measurement("highest_bandwidth", best)]
        for size, count, peak, average, rate in rows:
            coords, iterations = {"message_bytes": int(size)}, int(count)
            measurements.append(
                Measurement("bandwidth", average * _GBIT, "mean", coords, iterations)
            )
            # 0: perftest omits the peak with `duration` and above 20,000 iterations.
            if peak > 0:
                measurements.append(
                    Measurement("bandwidth", peak * _GBIT, "max", coords, iterations)
                )
            measurements.append(Measurement("message_rate", rate * 1e6, "mean", coords, iterations))
        return self.judged(output, params, measurements)


_LATENCIES = {
    "MsgSize": "#bytes",
    "n_iterations": "#iterations",
    "t_min": "t_min[usec]",
    "t_max": "t_max[usec]",
    "t_typical": "t_typical[usec]",
    "t_avg": "t_avg[usec]",
    "t_stdev": "t_stdev[usec]",
    "percentile_99": "99% percentile[usec]",
    "percentile_99.9": "99.9% percentile[usec]",
}
_TIMED_LATENCIES = {
    "MsgSize": "#bytes",
    "n_iterations": "#iterations",
    "t_avg": "t_avg[usec]",
    "tps_average": "tps average",
}
_COLUMNS = ("min", "max", "p50", "mean", "stdev", "p99", "p99.9")
# p99.9 is an exception. perftest reports it for its default of 1000 iterations, and users look
# for it, although needed(0.999) asks for 4,603.
_NEEDED = {"p99": needed(0.99), "p99.9": 1000}


class LatencyParams(RdmaParams):
    """Options of ib_*_lat: one run for all sizes, or one for each size."""

    @model_validator(mode="after")
    def _host_memory(self) -> Self:
        if self.cuda is not None and self.mode == "write":
            raise ValueError(
                "cuda: ib_write_lat polls its buffer, which it cannot in a GPU's memory;"
                " use mode: read or send, or leave cuda out"
            )
        return self


class RdmaLatency(Rdma[LatencyParams]):
    """RDMA latency by message size, with perftest.

    p99 is left out below 459 iterations. p99.9 is perftest's own, from its default of 1000
    iterations on. Below 4,603 iterations it is little more than the second largest value.

    Clock: perftest's cycle counter on the client. It starts when a message is posted. It stops at
    its completion (read, atomic) or at the answer (write, send), where half of the round trip is
    reported.
    """

    name: ClassVar[str] = "rdma-latency"
    suffix: ClassVar[str] = "lat"
    Params: ClassVar[type[LatencyParams]] = LatencyParams
    coords: ClassVar[tuple[str, ...]] = ("message_bytes",)
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
            "exchange_rate", "1/s", "higher", "exchanges a second by message size, with `duration`"
        ),
    )

    def parse(self, output: Output, params: LatencyParams) -> list[Measurement]:
        timed = params.duration is not None
        rows = rows_of(output, params, _TIMED_LATENCIES if timed else _LATENCIES)
        check_sizes(params, [int(values[0]) for values in rows], output.texts)
        rows.sort()
        typical = rows[0][2 if timed else 4]
        if typical <= 0:
            raise Failed("perftest reports a latency of zero", output.texts)
        measurements = [
            Measurement(
                "lowest_latency",
                typical * 1e-6,
                coords={"message_bytes": int(rows[0][0])},
                step=0.5e-8,  # perftest rounds microseconds to two decimals
            )
        ]
        for size, iterations, *values in rows:
            coords, n = {"message_bytes": int(size)}, int(iterations)
            if timed:
                measurements.append(Measurement("latency", values[0] * 1e-6, "mean", coords, n))
                measurements.append(Measurement("exchange_rate", values[1], "mean", coords, n))
                continue
            for stat, value in zip(_COLUMNS, values, strict=True):
                if n >= _NEEDED.get(stat, 0):
                    measurements.append(Measurement("latency", value * 1e-6, stat, coords, n))
        return self.judged(output, params, measurements)
