"""latency: time of a request and its response between two hosts, with netperf."""

import re
from typing import ClassVar

from perfdag.benchmark.contract import Gang, Metric, Output, Params, Tool
from perfdag.outcome import Failed, Measurement
from perfdag.shape import Shape
from perfdag.steps import two_hosts
from perfdag.steps.latency import netperf
from perfdag.steps.latency.params import LatencyParams

_PACKAGES = {"apt": "netperf", "brew": "netperf"}
_ADVICE = (
    "apt-get install netperf (Debian 12: in non-free), or build github.com/HewlettPackard/netperf"
)


class Latency(two_hosts.TwoHostBenchmark[LatencyParams]):
    """Transactions a second and the latency of one, over TCP or UDP, with netperf.

    The client runs on the first host, the server on the second. One transaction is in flight. The
    percentiles are those of netperf's histogram. Its steps are 1 us up to 100 us, and 1 to 10 %
    of the value above. UDP_RR stops at a lost datagram, and the sample is invalid.

    Clock: netperf's. It starts when the client sends a request, with TCP_CRR before it connects.
    It stops when the whole response is received, with TCP_CRR when the connection is closed.
    The rate counts the transactions in `duration`.
    """

    name = "latency"
    image = "netperf"
    tools = (Tool("netperf", _PACKAGES, _ADVICE), Tool("netserver", _PACKAGES, _ADVICE))
    Params: ClassVar[type[Params]] = LatencyParams
    metrics = (
        Metric(
            "transaction_rate", "1/s", "higher", "transactions completed in a second", headline=True
        ),
        Metric(
            "latency", "s", "lower", "time of one transaction: mean, min, p50, p90, p99 and max"
        ),
    )

    def check(self, params: LatencyParams, shape: Shape) -> list[str]:
        return two_hosts.problems(self.name, shape, params.port)

    def seconds(self, params: LatencyParams) -> float:
        return params.duration + 0.1

    def least_seconds(self, params: LatencyParams) -> float:
        return params.duration

    def run(self, gang: Gang, params: LatencyParams) -> Output:
        client, server = self.hosts(gang)
        cpus = gang.shape.hosts.cpus
        serving, port = two_hosts.serve(
            server,
            lambda port: netperf.commands(params, server.address, port)[0],
            port=params.port,
            proto="tcp",
            cpus=cpus.server,
        )
        forwarded = gang.shape.network.forwarded
        service = (server.target, server.free_port()) if forwarded else None
        serve, connect = netperf.commands(params, server.address, port, service)
        with serving:
            client_exit = client.run(connect, timeout=gang.timeout, cpus=cpus.client)
            served = serving.stop()
        texts = {
            "client": client_exit.stdout,
            "client_stderr": client_exit.stderr,
            "server": served.stderr,
        }
        texts = {role: text for role, text in texts.items() if text}
        if "Unable to start netserver" in served.stderr:
            raise Failed(f"another process answered netperf on port {port}: {served.tail()}", texts)
        client_exit.check("netperf")
        version = re.search(r"version (\S+)", client.run(["netperf", "-V"], timeout=10).stdout)
        return Output(
            texts,
            [serve, connect],
            f"netperf {version[1]}" if version else "netperf",
            {"server_address": server.target, "client_address": client.address},
        )

    def parse(self, output: Output, params: LatencyParams) -> list[Measurement]:
        return netperf.measurements(output.texts.get("client", ""), params)
