"""The two sides of a perftest program (ib_write_bw and its kin), for bandwidth and latency.

Source of the formats: RESULT_FMT* and REPORT_FMT* in src/perftest_parameters.h of
linux-rdma/perftest, 4.5-0.17 (Debian 12) to 26.04. The JSON is read if it is valid and the run
has one size, else the text table. Version 4.5 writes keys without quotes, and each size
overwrites the file.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from perfdag.benchmark.contract import Benchmark, Gang, Output, Tool
from perfdag.benchmark.rules import broken
from perfdag.hosts import gpu_queries
from perfdag.hosts.base import Host
from perfdag.outcome import Failed, Invalid, Measurement, Skip
from perfdag.shape import Placement, Shape
from perfdag.steps import devices, gpu_watch
from perfdag.steps.rdma import report, verbs
from perfdag.steps.rdma.params import RdmaParams

SLOW_LINK = 1.25e9
"""Bytes a second of the slowest link that estimates assume: 10 Gb/s."""
R = TypeVar("R", bound=RdmaParams)


class Rdma(Benchmark[R], Generic[R]):
    """Both sides of one perftest program; a subclass names the program and reads its table."""

    image: ClassVar[str] = "perftest"
    pairwise: ClassVar[bool] = True
    placement: ClassVar[Placement] = "spread"
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

    def least_seconds(self, params: R) -> float:
        return params.duration or 0.0  # Each size is a run with the whole timeout.

    def longest(self, params: R, timeout: float) -> float:
        return len(params.runs()) * timeout

    def require(self, gang: Gang, params: R) -> None:
        self.prepare(gang, params)

    def prepare(self, gang: Gang, params: R) -> None:
        for host in gang.hosts:
            problem = verbs.missing_device(host)
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
        facts: dict[str, Any] = {"memlock": [verbs.memlock(host) for host in gang.hosts]}
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
                    verbs.await_cm(server, port)
                finished = client.run(client_argv, timeout=gang.timeout, env=env)
                server_end = serving.wait(5.0)
            texts[f"client{number}"] = finished.stdout + finished.stderr
            texts[f"server{number}"] = server_end.stdout + server_end.stderr
            verbs.check_finished(self.program(params), client, finished, texts)
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
            {"test": report.read_info(texts.get("client0", ""))},
        )

    def _serve(
        self, server: Host, argv: Sequence[str], port: int | None, env: Mapping[str, str] | None
    ) -> Any:
        try:
            return server.serve(argv, port=port, env=env)
        except Failed as error:
            if any(text in str(error) for text in verbs.NO_DEVICE):
                reason = verbs.missing_device(server) or error
                raise Skip(f"{argv[0]} finds no RDMA device on {server.name}: {reason}") from None
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
        reason = report.option_mismatch(
            output, {**requested, "number_of_qps": str(self.queue_pairs(params))}
        ) or output.facts.get("against")
        if reason:
            raise Invalid(reason, output.texts, measurements)
        return measurements
