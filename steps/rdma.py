"""perftest (ib_write_bw and its kin): what bandwidth and latency have in common: parameters, arguments, the two sides, the tables.

Formats are those of linux-rdma/perftest, src/perftest_parameters.h (RESULT_FMT*, REPORT_FMT*), from 4.5-0.17 (Debian 12) to 26.04. Its JSON
is read where it is JSON (4.5 writes keys without quotes) and a run has one size (each size overwrites the file), else the text table.
"""

import re
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar

from pydantic import Field, field_validator, model_validator

from perfdag.benchmark import (
    Benchmark,
    Failed,
    Gang,
    Invalid,
    Measurement,
    Output,
    Params,
    Skip,
    Tool,
)
from perfdag.hosts import Finished, Host
from perfdag.shape import Shape
from perfdag.steps import devices, gpu, gpu_watch, rdma_options, rdma_report
from perfdag.units import PositiveDuration, Size

Mode = Literal["read", "write", "send", "atomic"]
MAX_SIZE = 1 << 23
SLOW_LINK = 1.25e9
"""Bytes a second of the slowest link that is reckoned with: 10 Gb/s."""
_CONNECTIONS = {
    "write": ("RC", "UC", "XRC", "DC"),
    "read": ("RC", "XRC", "DC"),
    "send": ("RC", "UC", "UD", "XRC", "DC"),
    "atomic": ("RC", "XRC", "DC"),
}
_BY_CM = ("RC", "UD")  # connection types that perftest connects with rdma_cm
_NO_DEVICE = (
    "Did not detect devices",
    "Unable to find the Infiniband/RoCE device",
    "No IB devices found",
    "IB device not found",
)
_NOT_LOCKED = "Couldn't allocate MR"  # ibv_reg_mr() failed, most often at RLIMIT_MEMLOCK
_CM_READY = 1.0
"""Seconds that a server with rdma_cm is given to listen where the kernel does not tell when it does."""


class RdmaParams(Params):
    """Parameters of both kinds. One iteration is one message (bandwidth) or one exchange (latency)."""

    mode: Mode = Field("write", description="the verb that is measured")
    iterations: int = Field(
        1000, ge=5, le=100_000_000, description="messages of each size (of each queue pair)"
    )
    duration: PositiveDuration | None = Field(
        None,
        description="measure each size for so long instead of `iterations`; needs `sizes` to be a list",
    )
    sizes: (
        Literal["all"]
        | Annotated[list[Annotated[Size, Field(ge=1, le=1 << 30)]], Field(min_length=1)]
    ) = Field(
        "all",
        description="message sizes in bytes, or all: 2, 4, 8 ... 8 MiB (perftest's -a); atomic is always 8 bytes",
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
        description="buffers in the memory of this GPU (nvidia-smi's index); needs a perftest built with CUDA",
    )
    atomic: Literal["CMP_AND_SWAP", "FETCH_AND_ADD"] = Field(
        "FETCH_AND_ADD", description="with mode: atomic"
    )
    extra_args: list[Annotated[str, Field(pattern=rdma_options.EXTRA)]] = Field(
        [],
        description="added to the command on both sides, for example --tclass=96; options that parameters give are refused",
    )

    @field_validator("extra_args")
    @classmethod
    def _not_ours(cls, given: list[str]) -> list[str]:
        if wrong := next(
            (said for each in given if (said := rdma_options.refused(each, cls.model_fields))), None
        ):
            raise ValueError(wrong)
        return given

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.connection not in _CONNECTIONS[self.mode]:
            raise ValueError(
                f"mode {self.mode} has no connection {self.connection}; it has {', '.join(_CONNECTIONS[self.mode])}"
            )
        if self.rdma_cm and self.connection not in _BY_CM:
            raise ValueError(
                f"rdma_cm connects {' and '.join(_BY_CM)} only, not {self.connection}; leave rdma_cm out, or use one of these"
            )
        if self.duration is not None and self.sizes == "all" and self.mode != "atomic":
            raise ValueError(
                "duration needs sizes as a list, for example sizes: [65536]; perftest cannot time all sizes"
            )
        if self.mode == "atomic" and self.sizes not in ("all", [8]):
            raise ValueError("mode atomic measures 8 bytes; leave sizes out")
        if self.duration is not None and self.duration < 3:
            raise ValueError(
                "duration must be 3 s or more: perftest leaves out a margin at both ends"
            )
        if self.duration is not None and self.duration % 1:
            whole = int(self.duration)
            raise ValueError(
                f"duration {self.duration:g} s: perftest takes whole seconds; use {whole}s or {whole + 1}s"
            )
        largest = 0 if self.sizes == "all" else max(self.sizes)
        if self.connection == "UD" and largest > (self.mtu or 4096):
            raise ValueError(
                f"sizes: {largest} B is more than one datagram; UD ends at the path MTU, at most {self.mtu or 4096} B"
            )
        return self

    def runs(self) -> list[int | None]:
        """The size of each run of the tool; None: the tool goes through all by itself."""
        if self.mode == "atomic" or self.sizes == "all":
            return [None]
        return list(self.sizes)

    def expected_sizes(self) -> set[int]:
        """Sizes that must be in the result. UD ends at the path MTU, which only the link knows: then those up to 256 bytes."""
        if self.mode == "atomic":
            return {8}
        if self.sizes != "all":
            return set(self.sizes)
        last = 8 if self.connection == "UD" else 23
        return {1 << power for power in range(1, last + 1)}


R = TypeVar("R", bound=RdmaParams)


class Rdma(Benchmark[R], Generic[R]):
    """Both sides of one perftest program; a subclass says which program and reads the table."""

    image: ClassVar[str] = "perftest"
    pairwise: ClassVar[bool] = True
    canaries: ClassVar[tuple[str, ...]] = ("cpu", "memory")
    suffix: ClassVar[str]
    tools: ClassVar[tuple[Tool, ...]] = (
        Tool("ib_write_bw", {"apt": "perftest", "dnf": "perftest", "zypper": "perftest"}),
    )

    def shape(self, params: R) -> dict[str, Any]:
        return {"hosts": {"count": 2}, "privileges": ["rdma"]}

    def check(self, params: R, shape: Shape) -> list[str]:
        problems = []
        if not devices.has_rdma(shape):
            problems.append(devices.RDMA_WANTED)
        if shape.hosts.count != 2:
            problems.append(f"measures between 2 hosts, not {shape.hosts.count}")
        return problems

    def program(self, params: R) -> str:
        """Name of the tool, for example ib_read_lat."""
        return f"ib_{params.mode}_{self.suffix}"

    def own_arguments(self, params: R) -> list[str]:
        """Arguments that only this kind has."""
        return []

    def arguments(self, params: R, size: int | None) -> list[str]:
        """The command without the server's name, port and JSON file; equal on both sides, as perftest demands."""
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
        """Queue pairs that the program says it has made: XRC and DC have one for each direction."""
        return 2 if params.connection in ("XRC", "DC") else 1

    def messages(self, params: R) -> int:
        """Messages of each size on the wire, of all queue pairs and in both directions, where `iterations` count."""
        return 2 * params.iterations

    def seconds(self, params: R) -> float:
        if params.duration is not None:
            return 2 + len(params.runs()) * (params.duration + 2)
        return (
            2
            + len(params.runs()) * (0.5 + params.iterations * 2e-4)
            + self.messages(params) * sum(params.expected_sizes()) / SLOW_LINK
        )

    def least_seconds(self, params: R) -> float:
        return params.duration or 0.0  # each size is a run of its own, with the whole timeout

    def longest(self, params: R, timeout: float) -> float:
        return len(params.runs()) * timeout

    def prepare(self, gang: Gang, params: R) -> None:
        for host in gang.hosts:
            lacking = lacks(host)
            if lacking:
                raise Skip(f"{self.program(params)} cannot run on {host.name}: {lacking}")
        told = gang.hosts[0].run([self.program(params), "--help"], timeout=10)
        gang.notes["json"] = "--out_json_file" in told.stdout + told.stderr
        if gang.shape.network.family == "ipv6":
            if "--ipv6-addr" not in told.stdout + told.stderr:
                advice = "use a perftest of 23.07 or later, or network.family: ipv4"
                raise Skip(
                    f"{self.program(params)} on {gang.hosts[0].name} negotiates over IPv4 only; {advice}"
                )
            gang.notes["family"] = [
                "--ipv6-addr",
                "--ipv6",
            ]  # of the sides' socket (with rdma_cm: of the queue pairs), and of the GID
        if params.cuda is not None:
            lacking = next((said for host in gang.hosts if (said := gpu.problem(host))), None)
            if lacking:
                raise Skip(lacking)
            if "--use_cuda" not in told.stdout + told.stderr:
                raise Skip(
                    f"{self.program(params)} on {gang.hosts[0].name} is built without CUDA; docs/kube-perftest.md says how"
                )

    def provenance(self, gang: Gang, params: R) -> dict[str, Any]:
        facts: dict[str, Any] = {"memlock": [memlock(host) for host in gang.hosts]}
        if params.cuda is not None:
            facts["gpus"] = gang.notes["gpus"] = {
                name: gpu.facts(host) for name, host in gpu.by_name(gang.hosts).items()
            }
        return facts

    def run(self, gang: Gang, params: R) -> Output:
        if params.cuda is None:
            return self._measure(gang, params)
        # the NIC works on their memory: what they compute is the set-up
        with gpu_watch.watched(gang.hosts, gang.notes.get("gpus"), computes=False) as watch:
            for name, host in gpu.by_name(gang.hosts).items():
                watch.used |= gpu_watch.numbered(host, watch.hosts[name]["gpus"], params.cuda)
            output = self._measure(gang, params)
        output.facts |= {"gpu": watch.hosts, "against": watch.against}
        return output

    def _measure(self, gang: Gang, params: R) -> Output:
        client, server = gang.hosts[0], gang.hosts[-1]
        env = None if params.cuda is None else gpu_watch.PCI_ORDER
        texts: dict[str, str] = {}
        commands: list[list[str]] = []
        for number, size in enumerate(params.runs()):
            port, report = server.free_port(), f"{gang.scratch}/perftest.json"
            argv = [*self.arguments(params, size), *gang.notes.get("family", ()), "-p", str(port)]
            asked = [
                *argv,
                *(["--out_json", f"--out_json_file={report}"] if gang.notes.get("json") else []),
                server.address,
            ]
            commands += [argv, asked]
            # with rdma_cm the server listens in RDMA's own port space, which no socket table shows
            with self._serve(server, argv, None if params.rdma_cm else port, env) as serving:
                if params.rdma_cm:
                    _await_cm(server, port)
                finished = client.run(asked, timeout=gang.timeout, env=env)
                ended = serving.wait(5.0)
            texts[f"client{number}"] = finished.stdout + finished.stderr
            texts[f"server{number}"] = ended.stdout + ended.stderr
            _check_finished(self.program(params), client, finished, texts)
            try:
                texts[f"json{number}"] = client.get(report).decode(errors="replace")
            except Failed:
                texts[f"json{number}"] = ""
            client.remove(report)
        version = re.search(
            r"Version:\s*(\S+)", client.run([self.program(params), "--version"], timeout=10).stdout
        )
        return Output(
            texts,
            commands,
            f"perftest {version[1] if version else '(version not said)'}",
            {"test": rdma_report.read_info(texts.get("client0", ""))},
        )

    def _serve(
        self, server: Host, argv: Sequence[str], port: int | None, env: Mapping[str, str] | None
    ) -> Any:
        try:
            return server.serve(argv, port=port, env=env)
        except Failed as error:
            if any(text in str(error) for text in _NO_DEVICE):
                raise Skip(
                    f"{argv[0]} finds no RDMA device on {server.name}: {lacks(server) or error}"
                ) from None
            raise

    def series(self, output: Output) -> str:
        return output.tool

    def judged(self, output: Output, params: R, made: list[Measurement]) -> list[Measurement]:
        """The values, or Invalid where perftest measured another thing than was asked for, or the GPUs that held the buffers were at fault."""
        asked = {
            "mtu": params.mtu and f"{params.mtu}[B]",
            "connection_type": params.connection,
            "device": params.device,
        }
        wrong = rdma_report.differs(
            output, {**asked, "number_of_qps": str(self.queue_pairs(params))}
        ) or output.facts.get("against")
        if wrong:
            raise Invalid(wrong, output.texts, made)
        return made


def lacks(host: Host) -> str | None:
    """What a host has not that verbs need: a device under /sys/class/infiniband and its files in /dev/infiniband; None: it has them."""
    found = host.run(["ls", "/sys/class/infiniband"], timeout=10)
    if found.code != 0:
        return "the node has no RDMA device: /sys/class/infiniband is absent (no driver such as mlx5_ib, rdma_rxe or siw is loaded)"
    if not found.stdout.split():
        return "the node has no RDMA device: /sys/class/infiniband is empty"
    files = host.run(["ls", "/dev/infiniband"], timeout=10)
    if files.code != 0 or "uverbs" not in files.stdout:
        devices = ", ".join(found.stdout.split())
        return f"the node has {devices}, but /dev/infiniband/uverbs* is not in the container; ask for the device plugin's resource"
    return None


def _await_cm(server: Host, port: int) -> None:
    """Wait until a server listens on a port of RDMA's port space, by the kernel's table of connection identifiers (`rdma`, of iproute2).

    A second at most: where `rdma` is absent or may not look, that second is what there is.
    """
    deadline = time.monotonic() + _CM_READY
    listens = re.compile(rf"state LISTEN .*src-addr \S*:{port}\s")
    told = server.which("rdma") is not None
    while (left := deadline - time.monotonic()) > 0:
        shown = server.run(["rdma", "resource", "show", "cm_id"], timeout=10) if told else None
        if shown is not None and listens.search(shown.stdout):
            return
        told = shown is not None and shown.code == 0
        time.sleep(min(left, 0.01 if told else left))


def memlock(host: Host) -> str:
    """The limit of locked memory, `soft hard` in bytes or `unlimited` (proc(5), /proc/PID/limits); empty where it cannot be read."""
    try:
        found = re.search(
            r"^Max locked memory\s+(\S+)\s+(\S+)", host.get("/proc/self/limits").decode(), re.M
        )
    except Failed:
        return ""
    return f"{found[1]} {found[2]}" if found else ""


def _check_finished(program: str, client: Host, finished: Finished, texts: dict[str, str]) -> None:
    said = finished.stdout + finished.stderr
    if any(text in said for text in _NO_DEVICE):
        raise Skip(
            f"{program} finds no RDMA device on {client.name}: {lacks(client) or finished.tail()}",
            texts,
        )
    if finished.timed_out:
        raise Failed(
            f"{program} did not end within {finished.seconds:.1f} s: {finished.tail()}", texts
        )
    if finished.code != 0 and any(_NOT_LOCKED in text for text in texts.values()):
        raise Failed(
            f"{program} could not lock its buffers; the limit of locked memory on {client.name} is {memlock(client) or 'not known'} B (soft hard): "
            "raise LimitMEMLOCK of the container runtime, or run as uid 0 with privileges: [rdma], which adds IPC_LOCK",
            texts,
        )
    if finished.code != 0:
        raise Failed(f"{program} exited {finished.code}: {finished.tail()}", texts)
