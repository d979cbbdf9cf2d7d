"""The two sides of a perftest program (ib_write_bw and its kin), for bandwidth and latency.

Source of the formats: RESULT_FMT* and REPORT_FMT* in src/perftest_parameters.h of
linux-rdma/perftest, 4.5-0.17 (Debian 12) to 26.04. The JSON is read if it is valid and the run
has one size, else the text table: 4.5 writes keys without quotes, and each size overwrites the
file.
"""

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from perfdag.benchmark.contract import Benchmark, Gang, Output, Tool
from perfdag.hosts import gpu_queries
from perfdag.hosts.base import Finished, Host
from perfdag.outcome import Failed, Invalid, Measurement, Skip
from perfdag.shape import Shape
from perfdag.steps import devices, gpu_watch
from perfdag.steps.rdma import report as rdma_report
from perfdag.steps.rdma.params import RdmaParams

SLOW_LINK = 1.25e9
"""Bytes a second of the slowest link that estimates assume: 10 Gb/s."""
NO_DEVICE = (
    "Did not detect devices",
    "Unable to find the Infiniband/RoCE device",
    "No IB devices found",
    "IB device not found",
)
_NOT_LOCKED = "Couldn't allocate MR"
"""Message of a failed ibv_reg_mr(), most often at RLIMIT_MEMLOCK."""
_CM_READY = 1.0
"""Seconds for a server with rdma_cm to listen if the kernel does not report that it does."""


R = TypeVar("R", bound=RdmaParams)


class Rdma(Benchmark[R], Generic[R]):
    """Both sides of one perftest program; a subclass names the program and reads its table."""

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

    def least_seconds(self, params: R) -> float:
        return params.duration or 0.0  # each size is a run with the whole timeout

    def longest(self, params: R, timeout: float) -> float:
        return len(params.runs()) * timeout

    def prepare(self, gang: Gang, params: R) -> None:
        for host in gang.hosts:
            problem = lacks(host)
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
            problem = next(
                (text for host in gang.hosts if (text := gpu_queries.problem(host))), None
            )
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
                name: gpu_queries.facts(host)
                for name, host in gpu_queries.by_name(gang.hosts).items()
            }
        return facts

    def run(self, gang: Gang, params: R) -> Output:
        if params.cuda is None:
            return self._measure(gang, params)
        # The NIC works on the GPUs' memory: their own computing is only set-up.
        with gpu_watch.watched(gang.hosts, gang.notes.get("gpus"), computes=False) as watch:
            for name, host in gpu_queries.by_name(gang.hosts).items():
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
            client_argv = [
                *argv,
                *(["--out_json", f"--out_json_file={report}"] if gang.notes.get("json") else []),
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
            if any(text in str(error) for text in NO_DEVICE):
                raise Skip(
                    f"{argv[0]} finds no RDMA device on {server.name}: {lacks(server) or error}"
                ) from None
            raise

    def series(self, output: Output) -> str:
        return output.tool

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
        reason = rdma_report.differs(
            output, {**requested, "number_of_qps": str(self.queue_pairs(params))}
        ) or output.facts.get("against")
        if reason:
            raise Invalid(reason, output.texts, measurements)
        return measurements


def lacks(host: Host) -> str | None:
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
    deadline = time.monotonic() + _CM_READY
    listens = re.compile(rf"state LISTEN .*src-addr \S*:{port}\s")
    can_list = server.which("rdma") is not None
    while (left := deadline - time.monotonic()) > 0:
        shown = server.run(["rdma", "resource", "show", "cm_id"], timeout=10) if can_list else None
        if shown is not None and listens.search(shown.stdout):
            return
        can_list = shown is not None and shown.code == 0
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


def check_finished(program: str, client: Host, finished: Finished, texts: dict[str, str]) -> None:
    """Raise Skip or Failed if the client did not end well."""
    log = finished.stdout + finished.stderr
    if any(text in log for text in NO_DEVICE):
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
            f"{program} could not lock its buffers; the limit of locked memory on {client.name}"
            f" is {memlock(client) or 'not known'} B (soft hard): raise LimitMEMLOCK of the"
            " container runtime, or run as uid 0 with privileges: [rdma], which adds IPC_LOCK",
            texts,
        )
    if finished.code != 0:
        raise Failed(f"{program} exited {finished.code}: {finished.tail()}", texts)
