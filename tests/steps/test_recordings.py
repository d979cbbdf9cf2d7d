"""Every recording cut, garbled, in another locale and with other figures."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from perfdag import testing
from perfdag.benchmark.contract import Invalid, Measurement, SampleError
from perfdag.results.samples import as_rows
from perfdag.steps import fio, rdma
from perfdag.steps.rdma import BandwidthParams, RdmaParams
from perfdag.testing import Recording
from tests.recorded.recordings import CASES, DAMAGED


@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.parametrize(
    "check", [testing.check_declared, testing.check_garbled, testing.check_decimal_comma]
)
def test_a_damaged_output_is_noticed(check: Callable[[Recording], None], name: str) -> None:
    check(DAMAGED[name].load())


@pytest.mark.parametrize("name", DAMAGED)
def test_a_cut_output_is_noticed(name: str) -> None:
    case = DAMAGED[name]
    testing.check_cut(case.load(), case.halves or ())


BANDWIDTH = "perftest/constructed-write-bw-all-26.04.txt"
LATENCY = "perftest/constructed-read-lat-all-26.04.txt"
RECEIVED = r'("sum_received":(?s:.*?)"bits_per_second":\s*)'
CHANGED = [
    # figures that are impossible, or too coarse
    ("iperf/udp-lossy", r'("lost_packets":\s*)\d+', r"\g<1>-5", "failed"),
    ("iperf/udp-lossy", r'("lost_packets":\s*)\d+', r"\g<1>10000000", "failed"),
    ("iperf/tcp", r'("retransmits":\s*)\d+', r"\g<1>-1", "failed"),
    ("iperf/tcp", r'("min_rtt":\s*)\d+', r"\g<1>99999999", "failed"),
    ("fio/randread", r'("iops" : )[\d.]+', r"\g<1>-4.0", "failed"),
    ("fio/randread", r'("iops" : )[\d.]+', r"\g<1>Infinity", "failed"),
    ("fio/randread", r'("99.000000" : )\d+', r"\g<1>999999999999", "failed"),
    ("fio/write-once", r'("runtime" : )103', r"\g<1>1", "invalid"),
    (BANDWIDTH, r"^( 4 .*)0\.13", r"\g<1>-0.13", "failed"),
    ("imb/pingpong-shm", r"^( +0 +\d+ +)\S+", r"\g<1>0.01", "invalid"),
    ("latency/tcp-rr", r"^P50_LATENCY=.*", "P50_LATENCY=900", "failed"),
    ("latency/tcp-rr", r"^MAX_LATENCY=.*", "MAX_LATENCY=1", "failed"),
    ("latency/tcp-rr", r"^THROUGHPUT=.*", "THROUGHPUT=0.00", "failed"),
    ("latency/tcp-rr", r"^THROUGHPUT=.*", "THROUGHPUT=-nan", "failed"),
    # figures that contradict each other
    ("iperf/udp-lossy", RECEIVED + r"[\d.e+]+", r"\g<1>9e9", "invalid"),
    ("iperf/tcp-seconds", RECEIVED + r"(\d)", r"\g<1>9\g<2>", "invalid"),
    ("fio/randread", r'("bw_bytes" : )', r"\g<1>9", "invalid"),
    ("fio/randread", r'("iops" : )', r"\g<1>9", "invalid"),
    ("latency/tcp-rr", r"^THROUGHPUT=", "THROUGHPUT=9", "invalid"),
    ("imb/uniband-shm", r"^( +64 +\d+ +)", r"\g<1>9", "invalid"),
    (BANDWIDTH, r"^( 4 .*)0\.13 ", r"\g<1>9.13 ", "failed"),
    # a test that ended early, or that the tool refused, also with exit code 0
    ("iperf/tcp", r'("seconds":\s*)1\.\d+', r"\g<1>0.4", "failed"),
    ("iperf/tcp", r'("end":)', r'"error": "unable to connect to server", \1', "failed"),
    ("latency/tcp-rr", r"^ELAPSED_TIME=.*", "ELAPSED_TIME=0.50", "failed"),
    ("latency/tcp-rr", r"^THROUGHPUT_UNITS=.*", "THROUGHPUT_UNITS=10^6bits/s", "invalid"),
    ("fio/randread", r'("error" : )0', r"\g<1>28", "failed"),
    ("fio/randread", r'("iops" : )[\d.]+', r"\g<1>0.0", "invalid"),
    ("fio/randread", r'("runtime" : )\d\d\d', r"\g<1>120", "failed"),
    ("fio/two-hosts", r'("jobname" : "worker")', r'"jobname" : "All clients"', "failed"),
    ("fio/two-hosts", r'(host 1\)", "started": \d+)\d\.', r"\g<1>1.", "invalid"),
    ("imb/pingpong-shm", r"# Benchmarking(?s:.*)", "Invalid benchmark name nope\n", "failed"),
    ("imb/allreduce-tcp", "#processes = 2", "#processes = 4", "failed"),
    ("imb/allreduce-tcp", r"^\s+64 .*\n", "", "failed"),
    (BANDWIDTH, r"(4 +)1000 ", r"\g<1>10x0 ", "failed"),
    (BANDWIDTH, r"^( 4 .*)0\.13", r"\g<1>nan", "failed"),
    (BANDWIDTH, r"Gb/sec", "Tb/sec", "failed"),
    (LATENCY, r"\[usec\]", "[cycles]", "failed"),
    # before 3.11 both directions have one key
    ("iperf/tcp-2-streams-bidirectional", r"iperf 3\.12", "iperf 3.9", "skipped"),
    ("iperf/udp-bidirectional", r"iperf 3\.12", "iperf 3.10.1", "skipped"),
    # a direction that got nothing, which the other one hides in the sum
    (
        "iperf/udp-bidirectional",
        r'(bidir_reverse":\s*{[^}]*"bits_per_second":\s*)[\d.]+',
        r"\g<1>0",
        "failed",
    ),
    # what was measured is something else
    ("iperf/tcp", r'("num_streams":\s*)1', r"\g<1>2", "invalid"),
    ("iperf/tcp-reno-mss-window", "reno", "cubic", "invalid"),
    ("iperf/tcp-reno-mss-window", r'("sndbuf_actual":\s*)\d+', r"\g<1>425984", "invalid"),
    ("iperf/tcp-reno-mss-window", r'("tcp_mss":\s*)\d+', r"\g<1>536", "invalid"),
    ("iperf/tcp-reno-mss-window", r'("pmtu":\s*)\d+', r"\g<1>1000", "invalid"),
    ("latency/tcp-rr", r"^REQUEST_SIZE=.*", "REQUEST_SIZE=9", "invalid"),
    ("latency/tcp-rr", r"^PROTOCOL=.*", "PROTOCOL=UDP", "invalid"),
    ("latency/tcp-rr", r"^DIRECTION=.*", "DIRECTION=Connect|Send|Recv", "invalid"),
    ("imb/pingpong-tcp", "provider: tcp", "provider: verbs;ofi_rxm", "invalid"),
    ("imb/pingpong-tcp", r"^.*libfabric provider.*\n", "", "invalid"),
    ("imb/pingpong-shm", "tuning_generic_shm", "tuning_generic_ofi", "invalid"),
    (BANDWIDTH, r"qps   : 1", "qps   : 2", "invalid"),
    (BANDWIDTH, r"type : RC", "type : UC", "invalid"),
    ("perftest/printed-write-bw-all-25.01.txt", r"mlx5_0", "mlx5_1", "ok"),  # none was requested
    # netperf waits to the end for a datagram that was lost; TCP sends it again
    ("latency/udp-rr", r"^MEAN_LATENCY=.*", "MEAN_LATENCY=25", "invalid"),
    ("latency/tcp-rr", r"^MEAN_LATENCY=.*", "MEAN_LATENCY=25", "ok"),
    # other versions and other machines
    ("fio/randread", r"\A", "fio: {something} is deprecated\\nnote: both\\n", "ok"),
    ("iperf/tcp", r',\s*"(sender|receiver)_tcp_congestion":\s*"\w+"', "", "ok"),
    ("iperf/tcp", r"iperf 3\.12", "iperf 3.18", "ok"),
]
"""A recording, what to replace in it by what, and the status that it has then."""


@pytest.mark.parametrize(("name", "pattern", "by", "status"), CHANGED)
def test_a_changed_output_has_the_status_of_what_it_says(
    name: str, pattern: str, by: str, status: str
) -> None:
    recording = CASES[name].load()
    texts = replaced(recording, pattern, by)
    assert texts != recording.output.texts
    try:
        rows = recording.parse(texts, recording.params)
        params = recording.params.model_dump(mode="json", by_alias=True)
        as_rows(recording.benchmark, rows, params)
        found = "ok"
    except SampleError as error:
        found = error.status
    assert found == status


def replaced(recording: Recording, pattern: str, by: str) -> dict[str, str]:
    """Return the texts of a recording with a part replaced."""
    texts = recording.output.texts
    return {role: re.sub(pattern, by, text, flags=re.M) for role, text in texts.items()}


# -- figures that golden rows do not show ----------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "cores", "host", "remote", "bound"),
    [
        # one core before 3.16, after it one for each stream, and no more than there are
        ("3.12", {}, 99.1, 20, 1.0),
        ("3.16", {}, 99.1, 20, 0.0),
        ("3.17.1", {"client": 1, "server": 8}, 99.1, 20, 1.0),
        ("3.18", {"client": 8, "server": 1}, 99.1, 20, 0.0),
        ("3.18", {"client": 2, "server": 2, "shared": True}, 99, 95, 1.0),
        ("3.18", {"client": 2, "server": 2}, 99, 95, 0.0),
    ],
)
def test_iperf_is_cpu_bound_where_a_side_uses_all_that_it_can(
    version: str, cores: dict[str, Any], host: float, remote: float, bound: float
) -> None:
    recording = CASES["iperf/udp-lossy"].load()
    report = json.loads(recording.output.texts["client"])
    report["start"]["version"] = f"iperf {version}"
    report["end"]["cpu_utilization_percent"] |= {"host_total": host, "remote_total": remote}
    texts = {
        **recording.output.texts,
        "client": json.dumps(report),
        "cores": json.dumps(cores),
    }
    assert one(recording.parse(texts, recording.params), "cpu_bound") == bound


def test_a_long_run_has_at_most_300_values_of_its_seconds() -> None:
    _, params, output, parse = CASES["iperf/tcp-seconds"].load()
    texts = dict(output.texts)
    for side in ("client", "server"):
        report = json.loads(texts[side])
        report["start"]["test_start"]["duration"] = 599
        report["end"]["sum_sent"]["seconds"] = report["end"]["sum_received"]["seconds"] = 599
        report["intervals"] = [report["intervals"][1]] * 599
        texts[side] = json.dumps(report)
    rows = parse(texts, params.model_copy(update={"duration": 599.0}))
    seconds = [row.subject for row in rows if row.metric == "second_throughput"]
    assert seconds[:2] == ["second 1", "second 3"]
    assert len(seconds) == 300


def test_udp_of_an_old_iperf3_counts_what_arrived() -> None:
    # before 3.11 a UDP report has `sum` alone: what was sent and how many datagrams were lost
    _, params, output, parse = CASES["iperf/udp-lossy"].load()
    report = json.loads(output.texts["client"])
    del report["end"]["sum_received"], report["end"]["sum_sent"]
    total = report["end"]["sum"]
    rows = parse({**output.texts, "client": json.dumps(report)}, params)
    arrived = total["bits_per_second"] * (1 - total["lost_packets"] / total["packets"])
    assert one(rows, "throughput") == pytest.approx(arrived)
    assert one(rows, "sent_throughput") == total["bits_per_second"]


def test_percentiles_of_several_histograms_are_those_that_fio_computes() -> None:
    text = CASES["fio/two-hosts"].load().output.texts["client"]
    report, _ = json.JSONDecoder().raw_decode(text, text.index("\n{") + 1)
    for client in report["client_stats"][:2]:
        for latency in (client["read"]["lat_ns"], client["read"]["clat_ns"]):
            assert fio.percentiles([latency["bins"]]) == latency["percentile"]
    merged = fio.percentiles([{"10": 30, "20": 20}, {"10": 20, "30": 30}])
    assert (merged["50.000000"], merged["90.000000"]) == (10.0, 30.0)


@pytest.mark.parametrize(
    ("options", "connection", "qps"),
    [
        ({"mtu": 4096, "qps": 1, "connection": "RC", "device": "mlx5_0"}, "RC", 1),
        ({"connection": "DC", "mode": "read", "qps": 2, "bidirectional": True}, "DC", 4),
        ({"connection": "XRC", "qps": 2}, "XRC", 2),
    ],
)
def test_perftest_used_what_was_requested(
    options: dict[str, Any], connection: str, qps: int
) -> None:
    text = CASES[BANDWIDTH].load().output.texts["client0"]
    text = text.replace("qps   : 1\t\t", f"qps   : {qps}\t\t")
    text = text.replace("Connection type : RC", f"Connection type : {connection}")
    params = BandwidthParams(**options)
    assert rdma.parse_bandwidth({"client0": text}, params)
    for other in ({"mtu": 1024}, {"qps": 7}, {"connection": "UC"}, {"device": "mlx5_9"}):
        with pytest.raises(Invalid):
            rdma.parse_bandwidth({"client0": text}, params.model_copy(update=other))


def test_perftest_has_columns_by_title_and_a_table_for_each_run() -> None:
    text = CASES[BANDWIDTH].load().output.texts["client0"]
    wider = re.sub(r"^( #bytes|  ?\d+ )", r"\1   #sl ", text, flags=re.M)
    wider = re.sub(r"^(  ?\d+ ) *#sl ", r"\1   3 ", wider, flags=re.M)
    read = [rdma.parse_bandwidth({"client0": each}, BandwidthParams()) for each in (text, wider)]
    assert read[0] == read[1]
    one = CASES["perftest/constructed-send-lat-duration.txt"].load().output.texts["client0"]
    two = one.replace("\n 2     ", "\n 4     ")
    params = RdmaParams(mode="send", duration="10s", sizes=[2, 4], mtu=4096)
    assert rdma.parse_latency({"client0": one, "client1": two}, params)
    for broken in ("", two.replace("4096[B]", "2048[B]")):
        with pytest.raises(SampleError):
            rdma.parse_latency({"client0": one, "client1": broken}, params)


def test_the_figure_that_a_cut_output_changed_is_named() -> None:
    recording = CASES["latency/tcp-rr"].load()

    output = replace(recording.output, texts={"client": "1" * 200})
    greedy = recording._replace(
        parse=lambda texts, _: [Measurement("transaction_rate", float(len(texts["client"])))],
        output=output,
    )
    with pytest.raises(
        AssertionError, match=r"transaction_rate', value=200.* -> .*; let the parser"
    ):
        testing.check_cut(greedy, ())


STRAY = ("[node-0:00123] Read -1, expected 4096, errno = 1", "hello 1 2 3", "")
LOGS = [name for name in CASES if name.startswith(("imb/", "openfoam/", "perftest/"))]


@pytest.mark.parametrize("name", [name for name in LOGS if name in DAMAGED])
def test_a_stray_line_loses_no_good_sample(name: str) -> None:
    """MPI and libraries print between the rows of a table, whatever stream a tool writes to."""
    _, params, output, parse = CASES[name].load()
    [role] = [role for role in output.texts if role in ("stdout", "client0")]
    lines, whole = output.texts[role].splitlines(keepends=True), parse(output.texts, params)
    for at in range(0, len(lines), 1 + len(lines) // 80):
        for stray in STRAY:
            text = "".join([*lines[:at], f"{stray}\n", *lines[at:]])
            assert parse({**output.texts, role: text}, params) == whole, (at, stray)


def test_percentiles_of_perftest_need_enough_iterations() -> None:
    recording = CASES[LATENCY].load()
    for iterations, most in (
        (1000, {"p50", "p99", "p99.9"}),
        (500, {"p50", "p99"}),
        (400, {"p50"}),
    ):
        texts = replaced(recording, " 1000  ", f" {iterations}  ")
        stats = {row.stat for row in recording.parse(texts, recording.params)}
        assert stats - {"value", "min", "max", "mean", "stdev"} == most


def test_percentiles_need_enough_transactions() -> None:
    recording = CASES["latency/tcp-rr"].load()
    few = re.sub(r"(?<=^THROUGHPUT=).*", "100", recording.output.texts["client"], flags=re.M)
    texts = {"client": re.sub(r"(?<=MEAN_LATENCY=).*", "10000", few)}
    rows = recording.parse(texts, recording.params)
    stats = [row.stat for row in rows if row.metric == "latency"]
    assert stats == ["mean", "min", "p50", "p90", "max"]


def one(result: list[Measurement], metric: str, stat: str = "value", **coords: Any) -> float:
    (value,) = [
        measurement.value
        for measurement in result
        if (measurement.metric, measurement.stat) == (metric, stat)
        and coords.items() <= measurement.coords.items()
        and not measurement.subject
    ]
    return value
