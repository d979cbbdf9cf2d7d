"""iperf: what its outputs mean, what is refused, and real tests."""

import dataclasses
import json
import os
import shutil
import socket
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from perfdag.benchmark.contract import Gang, Output
from perfdag.hosts.local import LocalHost
from perfdag.outcome import Failed, Invalid, Skip
from perfdag.shape import Shape, merge
from perfdag.steps.iperf import Iperf, IperfParams, by_second, commands, sides
from tests.fakes.watching_host import WatchingHost
from tests.recorded.measured import values
from tests.recorded.record import load

IPERF = Iperf()


def changed(name: str, **changes: Any) -> tuple[IperfParams, Output]:
    """A recording whose client report has other values: `a__b=value` sets report["a"]["b"]."""
    _, params, output, _ = load(f"iperf/{name}")
    report = json.loads(output.texts["client"])
    for path, value in changes.items():
        *above, last = path.split("__")
        node = report
        for key in above:
            node = node[key]
        if value is None:
            node.pop(last, None)
        else:
            node[last] = value
    return params, dataclasses.replace(output, texts={**output.texts, "client": json.dumps(report)})


def test_tcp_values_are_those_of_the_report() -> None:
    _, params, output, _ = load("iperf/tcp")
    end = json.loads(output.texts["client"])["end"]
    measurements = IPERF.parse(output, params)
    for metric, value in (
        ("throughput", end["sum_received"]["bits_per_second"]),
        ("retransmits", end["sum_sent"]["retransmits"]),
        ("sender_cpu", end["cpu_utilization_percent"]["host_total"] / 100),
    ):
        assert values(measurements, metric) == [value]
    rtt = end["streams"][0]["sender"]["mean_rtt"] / 1e6
    assert values(measurements, "rtt")[0] == pytest.approx(rtt)
    # in reverse the server sends
    _, params, output, _ = load("iperf/tcp-reverse")
    used = json.loads(output.texts["client"])["end"]["cpu_utilization_percent"]
    assert values(IPERF.parse(output, params), "sender_cpu") == [used["remote_total"] / 100]


def test_both_directions_add_up() -> None:
    _, params, output, _ = load("iperf/tcp-2-streams-bidirectional")
    measurements = IPERF.parse(output, params)
    [throughput] = values(measurements, "throughput")
    assert sum(values(measurements, "direction_throughput")) == pytest.approx(throughput)
    assert {each.coords["direction"] for each in measurements if each.coords} == {
        "client_to_server",
        "server_to_client",
    }


def test_udp_loss_is_a_fraction_of_the_datagrams() -> None:
    _, params, output, _ = load("iperf/udp-lossy")
    total = json.loads(output.texts["client"])["end"]["sum_received"]
    measurements = IPERF.parse(output, params)
    assert values(measurements, "lost_fraction") == [total["lost_packets"] / total["packets"]]
    # iperf3's own percentage is of what the sender counted, the datagrams under way at the end
    # included
    assert values(measurements, "lost_fraction") == [
        pytest.approx(total["lost_percent"] / 100, rel=0.01)
    ]
    assert values(measurements, "jitter") == [pytest.approx(total["jitter_ms"] / 1000)]


def test_udp_of_an_old_iperf3_counts_what_arrived() -> None:
    # before 3.11 a UDP report has `sum` alone: what was sent and how many datagrams were lost
    params, output = changed("udp-lossy", end__sum_received=None, end__sum_sent=None)
    total = json.loads(output.texts["client"])["end"]["sum"]
    arrived = total["bits_per_second"] * (1 - total["lost_packets"] / total["packets"])
    measurements = IPERF.parse(output, params)
    assert values(measurements, "throughput") == [pytest.approx(arrived)]
    assert values(measurements, "sent_throughput") == [total["bits_per_second"]]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(
            {"end__sender_tcp_congestion": None, "end__receiver_tcp_congestion": None},
            id="an old report without congestion names",
        ),
        pytest.param(
            {"start__version": "iperf 3.18", "start__fq_rate": 0, "start__test_start__bidir": 0},
            id="a newer report with more fields",
        ),
    ],
)
def test_reports_of_other_versions_are_read(changes: dict[str, Any]) -> None:
    params, output = changed("tcp", **changes)
    assert values(IPERF.parse(output, params), "throughput")


@pytest.mark.parametrize(
    ("version", "bound"), [("iperf 3.12", 1.0), ("iperf 3.16", 0.0), ("iperf 3.17.1", 0.0)]
)
def test_cpu_bound_is_a_core_before_316_and_a_core_a_stream_after(
    version: str, bound: float
) -> None:
    busy = {"host_total": 99.1, "remote_total": 20}
    params, output = changed("udp-lossy", start__version=version, end__cpu_utilization_percent=busy)
    assert values(IPERF.parse(output, params), "cpu_bound") == [bound]


@pytest.mark.parametrize(
    ("cores", "host", "remote", "bound"),
    [
        ({}, 198, 20, False),
        ({"client": 2, "server": 8}, 198, 20, True),
        ({"client": 8, "server": 2}, 198, 20, False),
        ({"client": 2, "server": 2, "shared": True}, 99, 95, True),
        ({"client": 2, "server": 2}, 99, 95, False),
    ],
)
def test_cpu_bound_is_never_more_than_the_cores_that_a_side_may_run_on(
    cores: dict[str, Any], host: float, remote: float, bound: bool
) -> None:
    busy = {"host_total": host, "remote_total": remote}
    report = {"start": {"version": "iperf 3.18"}, "end": {"cpu_utilization_percent": busy}}
    assert any(side.bound for side in sides(report, IperfParams(streams=8), cores)) == bound


WINDOW = "tcp-reno-mss-window"
SMALL_PATH = [
    {"streams": [interval["streams"][0] | {"pmtu": 1000}], "sum": interval["sum"]}
    for interval in json.loads(load(f"iperf/{WINDOW}").output.texts["client"])["intervals"]
]


@pytest.mark.parametrize(
    ("name", "changes", "error", "match"),
    [
        # iperf3 exits 0 with these
        *(
            ("tcp", {"error": message, "end": {}}, Failed, message)
            for message in ("unable to connect to server", "the server has terminated")
        ),
        ("tcp-2-streams-bidirectional", {"end__streams": [{}]}, Failed, "1 streams, 4"),
        ("tcp", {"end__sum_sent__seconds": 0.4}, Failed, r"0\.4 s of 1 s"),
        ("no-such-congestion", {}, Skip, "tcp_available_congestion_control"),
        ("tcp-2-streams-bidirectional", {"start__version": "iperf 3.9"}, Skip, "3.11 or later"),
        ("udp-bidirectional", {"start__version": "iperf 3.10.1"}, Skip, "3.11 or later"),
        (
            "tcp",
            {"start__test_start__num_streams": 2},
            Invalid,
            "streams 1 was requested, iperf3 used 2",
        ),
        (WINDOW, {"end__sender_tcp_congestion": "cubic"}, Invalid, "congestion reno"),
        (WINDOW, {"start__sndbuf_actual": 425984}, Invalid, "window of 1048576 B"),
        (WINDOW, {"start__tcp_mss": 536}, Invalid, "mss 1000"),
        (WINDOW, {"intervals": SMALL_PATH}, Invalid, "path MTU of 1000 B"),
    ],
)
def test_a_test_of_something_else_is_no_sample(
    name: str, changes: dict[str, Any], error: type[Exception], match: str
) -> None:
    params, output = changed(name, **changes)
    with pytest.raises(error, match=match):
        IPERF.parse(output, params)


@pytest.mark.parametrize(("version", "runs"), [("3.7", False), ("3.10.1", False), ("3.11", True)])
def test_both_directions_of_an_old_iperf3_are_skipped_before_it_runs(
    version: str, runs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "iperf3"
    tool.write_text(f"#!/bin/sh\necho 'iperf {version} (cJSON 1.7.15)'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    gang = Gang([LocalHost(), LocalHost()], Shape(), 20, str(tmp_path))
    IPERF.require(gang, IperfParams())
    with nullcontext() if runs else pytest.raises(Skip, match=r"3\.11 or later"):
        IPERF.require(gang, IperfParams(bidirectional=True))


def test_the_version_is_part_of_the_series() -> None:
    assert load("iperf/tcp")[2].tool.startswith("iperf3 3.")


@pytest.mark.parametrize(
    ("params", "address", "port", "server", "client"),
    [
        pytest.param(
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
            "10.0.0.2",
            5999,
            "iperf3 --server --bind 10.0.0.2 --one-off --port 5999 --json",
            "iperf3 --client 10.0.0.2 --port 5999 --json --connect-timeout 10000 --time 3 "
            "--parallel 4 --omit 1 --bitrate 2000000000 --length 65536 --set-mss 1400 "
            "--window 1048576 --congestion bbr --bidir --zerocopy",
            id="iperf3",
        ),
        pytest.param(
            {"extra_args": ["--tos=0x60", "--no-delay"]},
            "::1",
            6000,
            "iperf3 --server --bind ::1 --one-off --port 6000 --json",
            "iperf3 --client ::1 --port 6000 --json --connect-timeout 10000 --time 10 "
            "--parallel 1 --tos=0x60 --no-delay",
            id="extra arguments are the client's alone",
        ),
    ],
)
def test_commands_say_every_parameter(
    params: dict[str, Any], address: str, port: int, server: str, client: str
) -> None:
    result = commands(IperfParams(**params), address, port)
    assert [" ".join(argv) for argv in result] == [server, client]


def test_a_client_connects_to_the_service_that_its_server_is_behind() -> None:
    server, client = commands(IperfParams(), "10.0.0.2", 6000, "10.96.0.9")
    assert ("10.0.0.2" in server, "10.96.0.9" in server) == (True, False)
    assert ("10.0.0.2" in client, "10.96.0.9" in client) == (False, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"protocol": "sctp"}, "'tcp' or 'udp'"),
        ({"implementation": "iperf"}, "'iperf3'"),
        ({"streams": 0}, "greater than or equal to 1"),
        ({"streams": 129}, "less than or equal to 128"),
        ({"duration": "1.5s"}, "whole seconds"),
        ({"duration": 0}, "more than zero"),
        ({"rate": "10 Gb"}, "unknown unit"),
        ({"reverse": True, "bidirectional": True}, "exclude each other"),
        ({"protocol": "udp", "mss": 1000}, "mss: tcp only"),
        ({"congestion": "cubic; rm -rf /"}, "pattern"),
        ({"stream": 2}, "Extra inputs"),
        *(
            ({"extra_args": [word]}, "would change what is measured or read")
            for word in (
                "-J",
                "--json",
                "--json-stream",
                "-fg",
                "--format=g",
                "--logfile=/x",
                "-s",
                "--server",
                "-D",
                "-p1",
                "--port=1",
                "--pidfile=/x",
                "--file=/etc/passwd",
                "-F/x",
                "--bytes=1",
                "--time=1",
                "--get-server-output",
                "--bind=10.0.0.9",
                "--tos 1",
                "--to=1",
                "extra",
                "--rsa-public-key-path=/x",
                "--",
                "--tos=1\n--json",
            )
        ),
    ],
)
def test_bad_params_are_refused_with_what_is_allowed(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        IperfParams(**options)


@pytest.mark.parametrize(
    ("name", "direction", "sizes"),
    [
        ("tcp-2-streams-bidirectional", "client_to_server", [69337088, 70647808]),
        ("tcp-2-streams-bidirectional", "server_to_client", [245104640, 242483200]),
        ("udp-lossy", None, [281968640 * 788 / 8605, 281968640 * 786 / 8605]),
        ("tcp-reverse", None, [1274150912]),
    ],
)
def test_each_stream_has_the_bytes_and_the_rate_of_its_receiver(
    name: str, direction: str | None, sizes: list[float]
) -> None:
    _, params, output, _ = load(f"iperf/{name}")
    rows = IPERF.parse(output, params)
    streams = [row for row in rows if row.subject]
    own = [row for row in streams if row.coords.get("direction") == direction]
    assert values(own, "bytes") == pytest.approx(sizes)
    assert [row.subject for row in own if row.metric == "stream_throughput"] == [
        f"stream {number + 1}" for number in range(len(sizes))
    ]
    [total] = [row.value for row in rows if row.metric == "bytes" and not row.subject]
    assert total == pytest.approx(sum(values(streams, "bytes")))
    [throughput] = values(rows, "throughput")
    assert sum(values(streams, "stream_throughput")) == pytest.approx(throughput, rel=0.02)


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        ({}, "hosts.count is 1; iperf needs 2 (a client and a server)"),
        (IPERF.shape(IperfParams())["hosts"], None),
        ({"count": 3}, "hosts.pairs"),
    ],
)
def test_one_host_is_not_enough(hosts: dict[str, Any], message: str | None) -> None:
    problems = IPERF.check(IperfParams(), Shape.model_validate({"hosts": hosts}))
    assert [str(message) in problem for problem in problems] == [True] * bool(message)


def test_pairs_of_hosts_are_measured() -> None:
    ring = Shape.model_validate({"hosts": {"count": 3, "pairs": "ring"}})
    assert IPERF.check(IperfParams(), ring.pair()) == []


def gang(params: IperfParams, scratch: str, **shape: Any) -> Gang:
    hosts = [LocalHost(), LocalHost()]
    machines = Gang(hosts, Shape(**merge(IPERF.shape(params), shape)), 30, scratch)
    if not shutil.which("iperf3"):
        pytest.skip("iperf3 is not installed")
    return machines


def test_a_real_run_with_client_and_server_on_their_own_cpus(tmp_path: Any) -> None:
    params = IperfParams(duration=1)
    last = max(os.sched_getaffinity(0))
    local_gang = gang(params, str(tmp_path), hosts={"cpus": {"client": "0", "server": str(last)}})
    local_gang.hosts = [client, server] = [WatchingHost(), WatchingHost()]
    output = IPERF.measure(local_gang, params)
    assert values(IPERF.parse(output, params), "throughput")[0] > 1e6
    assert (client.requests[0], server.serving) == ("0", {last})
    assert server.listening == {"0100007F"}, "the server listens at the measured address alone"
    assert not list(tmp_path.iterdir())


def test_one_pair_is_never_measured_under_the_name_of_all(tmp_path: Any) -> None:
    four = gang(IperfParams(duration=1), str(tmp_path), hosts={"count": 4, "pairs": "all"})
    four.hosts = [LocalHost() for _ in range(4)]
    with pytest.raises(Failed, match="2 hosts, not 4"):
        IPERF.measure(four, IperfParams(duration=1))


def test_a_real_run_over_ipv6(tmp_path: Any) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 loopback here")
    params = IperfParams(duration=1)
    local_gang = gang(params, str(tmp_path))
    local_gang.hosts = [LocalHost("::1"), LocalHost("::1")]
    assert values(IPERF.parse(IPERF.measure(local_gang, params), params), "throughput")[0] > 1e6


@pytest.mark.skipif(shutil.which("iperf3") is None, reason="iperf3 is not installed")
def test_a_server_of_somebody_else_is_never_measured(tmp_path: Any) -> None:
    others = LocalHost()
    with others.serve(["iperf3", "-s", "-p", str(port := others.free_port())], port=port):
        params = IperfParams(duration=1, port=port)
        in_use = (
            f"tcp port {port} is in use on .*; end the process that listens there, or use another "
            "port"
        )
        with pytest.raises(Failed, match=in_use):
            IPERF.measure(gang(params, str(tmp_path)), params)


@pytest.mark.skipif(shutil.which("iperf3") is None, reason="iperf3 is not installed")
def test_a_port_that_is_bound_and_not_listened_on_says_so(tmp_path: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        params = IperfParams(duration=1, port=taken.getsockname()[1])
        with pytest.raises(Failed, match=r"iperf3 ended \(exit 1\) before it listened"):
            IPERF.measure(gang(params, str(tmp_path)), params)


@pytest.mark.skipif(shutil.which("iperf3") is None, reason="iperf3 is not installed")
def test_a_test_that_another_server_answered_fails(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody was faster between the look at the table and our server's bind: its client is
    content all the same.
    """
    start, port = LocalHost.serve, LocalHost().free_port()
    with LocalHost().serve(["iperf3", "-s", "-p", str(port)], port=port):
        monkeypatch.setattr(LocalHost, "serve", lambda host, argv, **named: start(host, argv))
        params = IperfParams(duration=1, port=port)
        with pytest.raises(
            Failed,
            match=(
                r"iperf3's server exited 1 although the client ended well: .*Address already in "
                r"use"
            ),
        ):
            IPERF.measure(gang(params, str(tmp_path)), params)


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        # the client receives; the last 0.03 s are no second
        ("tcp-reverse", [4.854190124e9, 5.336524447e9]),
        # two streams at the server, the omitted second and the rest left out
        ("tcp-seconds", [12.617e9, 11.537e9, 12.106e9]),
        ("udp-bidirectional-seconds", [0.2e9, 0.2e9]),
    ],
)
def test_the_rate_of_each_second_is_the_receivers(name: str, seconds: list[float]) -> None:
    _, params, output, _ = load(f"iperf/{name}")
    result = [each for each in IPERF.parse(output, params) if each.metric == "second_throughput"]
    assert [each.subject for each in result] == [f"second {k + 1}" for k in range(len(result))]
    assert [each.value for each in result] == pytest.approx(
        seconds, rel=1e-6 if name == "tcp-reverse" else 1e-2
    )


def test_a_long_run_has_300_rates_at_most() -> None:
    result = by_second([1.0, 3.0] * 400)
    assert len(result) == 267
    assert result[1].subject == "second 4"
    assert result[0].value == pytest.approx(5 / 3)
    assert by_second([1.0]) == []
