"""iperf and latency: their command lines, refused params, and real tests of one machine."""

import json
import os
import shutil
import socket
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from perfdag.benchmark.contract import Benchmark, Failed, Gang
from perfdag.hosts.local import LocalHost
from perfdag.identity import merge
from perfdag.shape import Shape
from perfdag.steps.iperf import Iperf, IperfParams, client_command as iperf_command
from perfdag.steps.latency import Latency, LatencyParams, client_command as netperf_command
from perfdag.suite.document import BadDocument
from perfdag.suite.load import parse_suite
from perfdag.suite.points import enumerate_points
from tests.fakes.watching_host import WatchingHost
from tests.recorded.measured import values

IPERF, LATENCY = Iperf(), Latency()
REAL: list[tuple[Benchmark[Any], dict[str, Any], str]] = [
    (IPERF, {}, "throughput"),
    (LATENCY, {}, "transaction_rate"),
    (LATENCY, {"test": "TCP_CRR"}, "transaction_rate"),
    (LATENCY, {"test": "UDP_RR"}, "transaction_rate"),
]
BOTH = REAL[:2]


def gang(benchmark: Benchmark[Any], folder: Path, *hosts: LocalHost, **shape: Any) -> Gang:
    """Return the hosts of a benchmark; skip the test where its tool is not installed."""
    for tool in benchmark.tools:
        if not shutil.which(tool.program):
            pytest.skip(f"{tool.program} is not installed")
    merged = Shape.model_validate(merge(benchmark.shape(benchmark.Params()), shape))
    return Gang(hosts or (LocalHost(), LocalHost()), merged, 30, str(folder))


@pytest.mark.parametrize(
    ("params", "client"),
    [
        (
            {
                "streams": 4,
                "duration": 3,
                "omit": 1,
                "rate": "2Gbit/s",
                "bidirectional": True,
                "length": "64KiB",
                "mss": 1400,
                "window": "1MiB",
                "congestion": "bbr",
                "zerocopy": True,
            },
            "iperf3 --json --client 10.0.0.2 --port 5999 --connect-timeout 10000 --time 3 "
            "--parallel 4 --omit 1 --bitrate 2000000000 --length 65536 --set-mss 1400 "
            "--window 1048576 --congestion bbr --bidir --zerocopy",
        ),
        (
            {"extra_args": ["--tos=0x60", "--no-delay"], "protocol": "udp", "reverse": True},
            "iperf3 --json --client 10.0.0.2 --port 5999 --connect-timeout 10000 --time 10 "
            "--parallel 1 --udp --reverse --tos=0x60 --no-delay",
        ),
    ],
)
def test_the_client_of_iperf_has_every_parameter(params: dict[str, Any], client: str) -> None:
    assert " ".join(iperf_command(IperfParams(**params), "10.0.0.2", 5999)) == client


def test_the_client_of_netperf_has_every_parameter() -> None:
    params = LatencyParams(test="TCP_CRR", duration=3, request_size="1KiB", response_size=9)
    assert " ".join(netperf_command(params, "fd00::2", 6000, ["-H", "fd00::2"])).startswith(
        "netperf -6 -H fd00::2 -p 6000 -t TCP_CRR -l 3 -j -P 0 -- -H fd00::2 -r 1024,9 -k "
        "THROUGHPUT,"
    )


@pytest.mark.parametrize(
    ("shape", "params", "refused"),
    [
        ({"hosts": {"count": 1}}, {}, True),
        ({"hosts": {"count": 3}}, {}, True),
        ({"hosts": {"count": 3, "pairs": "ring"}}, {}, False),
        ({"hosts": {"count": 2}}, {"port": 5201}, False),
        ({"hosts": {"count": 2}, "network": {"path": "service"}}, {"port": 5201}, True),
    ],
)
@pytest.mark.parametrize("benchmark", ["iperf", "latency"])
def test_a_pair_is_a_client_and_a_server(
    benchmark: str, shape: dict[str, Any], params: dict[str, Any], refused: bool
) -> None:
    entry = {"benchmark": benchmark, "params": params, **shape}
    loaded = parse_suite(json.dumps({"name": "s", "entries": [entry]}))
    with pytest.raises(BadDocument) if refused else nullcontext():
        enumerate_points(loaded)


@pytest.mark.parametrize(("benchmark", "params", "metric"), REAL)
def test_a_real_run_with_client_and_server_on_their_own_cpus(
    benchmark: Benchmark[Any], params: dict[str, Any], metric: str, tmp_path: Path
) -> None:
    client, server = WatchingHost(), WatchingHost()
    last = max(os.sched_getaffinity(0))
    cpus = {"cpus": {"client": "0", "server": str(last)}}
    hosts = gang(benchmark, tmp_path, client, server, hosts=cpus)
    rows = benchmark.run(hosts, benchmark.Params.model_validate({"duration": 1, **params}))
    assert values(rows, metric)[0] > 100
    assert (client.requests[0], server.serving) == ("0", {last})
    assert server.listening == {"0100007F"}, "the server listens at the measured address alone"
    assert hosts.output.tool.split()[1][0].isdigit(), "the version of the tool is known"
    assert not list(tmp_path.iterdir())


def test_a_real_run_over_ipv6(tmp_path: Path) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 loopback here")
    hosts = gang(IPERF, tmp_path, LocalHost("::1"), LocalHost("::1"))
    assert values(IPERF.run(hosts, IperfParams(duration=1)), "throughput")[0] > 1e6


def bystander(benchmark: Benchmark[Any], port: int) -> list[str]:
    """Return the command of a server that somebody else started."""
    if benchmark is IPERF:
        return ["iperf3", "-s", "-p", str(port)]
    return ["netserver", "-D", "-N", "-4", "-L", "127.0.0.1", "-p", str(port)]


@pytest.mark.parametrize(("benchmark", "params", "_"), BOTH)
def test_a_server_of_somebody_else_is_never_measured(
    benchmark: Benchmark[Any],
    params: dict[str, Any],
    _: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hosts, start = gang(benchmark, tmp_path), LocalHost.serve
    port = LocalHost().free_port()
    options = benchmark.Params.model_validate({"duration": 1, "port": port})
    with LocalHost().serve(bystander(benchmark, port), port=port):
        with pytest.raises(Failed, match=f"tcp port {port} is in use"):
            benchmark.run(hosts, options)
        # Somebody was faster between the look at the table and our server's bind: its client is
        # content all the same.
        monkeypatch.setattr(LocalHost, "serve", lambda host, argv, **named: start(host, argv))
        with pytest.raises(Failed, match=r"Address already in use|another process answered"):
            benchmark.run(hosts, options)
