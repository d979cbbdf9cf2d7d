"""latency: what netperf's output means, what is refused, and real tests where netperf is
installed.
"""

import os
import re
import shutil
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from perfdag.benchmark.contract import Gang
from perfdag.hosts.local import LocalHost
from perfdag.outcome import Failed, Invalid, SampleError
from perfdag.results.samples import as_rows
from perfdag.shape import Shape, merge
from perfdag.steps.latency import Latency, LatencyParams, commands
from tests.fakes.watching_host import WatchingHost
from tests.recorded.record import load

LATENCY = Latency()
INSTALLED = pytest.mark.skipif(shutil.which("netperf") is None, reason="netperf is not installed")


def gang(params: LatencyParams, scratch: str, **shape: Any) -> Gang:
    return Gang(
        [LocalHost(), LocalHost()], Shape(**merge(LATENCY.shape(params), shape)), 30, scratch
    )


def test_rates_are_of_a_second_and_latencies_in_seconds() -> None:
    _, params, output, _ = load("latency/tcp-rr")
    rows = {(row.metric, row.stat): row for row in LATENCY.parse(output, params)}
    assert rows["transaction_rate", "value"].value == 26891.16
    assert rows["latency", "p99"].value == 162e-6
    assert {row.n for row in rows.values()} == {26891}
    stats = {stat for metric, stat in rows if metric == "latency"}
    assert stats == {"mean", "min", "p50", "p90", "p99", "max"}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"REQUEST_SIZE": "9"}, Invalid, "netperf measured"),
        ({"PROTOCOL": "UDP"}, Invalid, "netperf measured"),
        ({"DIRECTION": "Connect|Send|Recv"}, Invalid, "netperf measured"),
        ({"ELAPSED_TIME": "0.50"}, Failed, "netperf ended after 0.5 s of 1 s"),
        ({"THROUGHPUT": "0.00"}, Failed, "completed no transaction"),
        ({"THROUGHPUT": "-nan"}, Failed, "completed no transaction"),
        ({"THROUGHPUT_UNITS": "10^6bits/s"}, Failed, "but 10\\^6bits/s"),
        ({"P50_LATENCY": "900"}, Failed, "out of order"),
        ({"MAX_LATENCY": "1"}, Failed, "out of order"),
    ],
)
def test_what_netperf_did_otherwise_is_no_sample(
    changes: dict[str, str], error: type[SampleError], message: str
) -> None:
    _, params, output, _ = load("latency/tcp-rr")
    for name, value in changes.items():
        output.texts["client"] = re.sub(
            rf"^{name}=.*", f"{name}={value}", output.texts["client"], flags=re.M
        )
    with pytest.raises(error, match=message):
        as_rows(LATENCY, LATENCY.parse(output, params))


def test_a_lost_datagram_is_invalid_and_a_slow_last_transaction_is_not() -> None:
    """UDP has the figures that netperf printed when its server was stopped after 0.76 s of 2 s."""
    lost = {"THROUGHPUT": "15017.62", "ELAPSED_TIME": "2.00", "MEAN_LATENCY": "25.31"}
    for name, reason in (("udp-rr", "no answer in 1.24 s of 2.00 s: .*lost"), ("tcp-rr", None)):
        _, params, output, _ = load(f"latency/{name}")
        for key, value in lost.items():
            output.texts["client"] = re.sub(f"{key}=.*", f"{key}={value}", output.texts["client"])
        if reason is None:
            assert LATENCY.parse(output, params), "TCP sends again what was lost"
            continue
        with pytest.raises(Invalid, match=reason):
            LATENCY.parse(output, params)
        slow = re.sub("MAX_LATENCY=.*", "MAX_LATENCY=1300000", output.texts["client"])
        output.texts["client"] = slow
        assert LATENCY.parse(output, params), "a busy machine holds up a transaction so long"


def test_percentiles_are_refused_below_the_transactions_they_need() -> None:
    _, params, output, _ = load("latency/tcp-rr")
    few = {"THROUGHPUT": "100", "MEAN_LATENCY": "10000"}
    for name, value in few.items():
        output.texts["client"] = re.sub(rf"{name}=.*", f"{name}={value}", output.texts["client"])
    stats = [row.stat for row in LATENCY.parse(output, params) if row.metric == "latency"]
    assert stats == ["mean", "min", "p50", "p90", "max"]


def test_commands_name_the_measured_address_for_control_and_data() -> None:
    params = LatencyParams(test="TCP_CRR", duration=3, request_size="1KiB", response_size=9)
    server, client = commands(params, "fd00::2", 6000)
    assert " ".join(server) == "netserver -D -N -6 -L fd00::2 -p 6000"
    assert " ".join(client).startswith(
        "netperf -6 -H fd00::2 -p 6000 -t TCP_CRR -l 3 -j -P 0 -- -H fd00::2 -r 1024,9 -k "
        "THROUGHPUT,"
    )
    server, client = commands(params, "10.1.0.2", 30000, ("10.96.0.7", 30001))
    assert " ".join(server) == "netserver -D -N -4 -L 10.1.0.2 -p 30000"
    assert " ".join(client).startswith(
        "netperf -4 -H 10.96.0.7 -p 30000 -t TCP_CRR -l 3 -j -P 0 -- -P 0,30001 -r 1024,9 -k "
        "THROUGHPUT,"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test": "TCP_STREAM"}, "'TCP_RR', 'TCP_CRR' or 'UDP_RR'"),
        ({"duration": "1.5s"}, "whole seconds"),
        ({"duration": 0}, "more than zero"),
        ({"request_size": 0}, "greater than or equal to 1"),
        ({"test": "UDP_RR", "response_size": 65508}, "at most 65507 B"),
        ({"port": 80}, "greater than or equal to 1024"),
        ({"streams": 2}, "Extra inputs"),
    ],
)
def test_bad_params_are_refused_with_what_is_allowed(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        LatencyParams(**options)


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        ({"count": 1}, "hosts.count is 1; latency needs 2"),
        ({"count": 3}, "hosts.count is 3; latency measures 2 hosts, or set hosts.pairs"),
    ],
)
def test_a_pair_is_a_client_and_a_server(hosts: dict[str, Any], message: str) -> None:
    assert LATENCY.check(LatencyParams(), Shape.model_validate({"hosts": hosts}))[0].startswith(
        message
    )


def test_one_pair_is_never_measured_under_the_name_of_all(tmp_path: Path) -> None:
    four = gang(LatencyParams(), str(tmp_path), hosts={"count": 4, "pairs": "all"})
    four.hosts = [LocalHost() for _ in range(4)]
    with pytest.raises(Failed, match="2 hosts, not 4"):
        LATENCY.measure(four, LatencyParams())


@INSTALLED
@pytest.mark.parametrize("test", ["TCP_RR", "TCP_CRR", "UDP_RR"])
def test_a_real_run_with_client_and_server_on_their_own_cpus(test: Any, tmp_path: Path) -> None:
    params = LatencyParams(test=test, duration=1)
    last = max(os.sched_getaffinity(0))
    client, server = WatchingHost(), WatchingHost()
    shape = {"cpus": {"client": "0", "server": str(last)}}
    output = LATENCY.measure(
        replace(gang(params, str(tmp_path), hosts=shape), hosts=[client, server]), params
    )
    [rate] = [
        row.value for row in LATENCY.parse(output, params) if row.metric == "transaction_rate"
    ]
    assert rate > 100
    assert (client.requests[0], server.serving) == ("0", {last})
    assert server.listening == {"0100007F"}, "the server listens at the measured address alone"
    assert output.tool.startswith("netperf 2.")
    assert not list(tmp_path.iterdir())


@INSTALLED
def test_a_port_that_another_process_holds_says_so(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        params = LatencyParams(duration=1, port=taken.getsockname()[1])
        with pytest.raises(Failed, match=r"netserver ended \(exit 1\) before it listened"):
            LATENCY.measure(gang(params, str(tmp_path)), params)


@INSTALLED
def test_a_test_that_another_server_answered_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, port = LocalHost.serve, LocalHost().free_port()
    argv = ["netserver", "-D", "-N", "-4", "-L", "127.0.0.1", "-p", str(port)]
    with LocalHost().serve(argv, port=port):
        monkeypatch.setattr(LocalHost, "serve", lambda host, argv, **named: start(host, argv))
        params = LatencyParams(duration=1, port=port)
        with pytest.raises(Failed, match=f"another process answered netperf on port {port}"):
            LATENCY.measure(gang(params, str(tmp_path)), params)
