"""Every recording cut, garbled and in another locale; and for every tool a run of more than an
hour.
"""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from perfdag.outcome import Measurement
from perfdag.steps.rdma import BandwidthParams, LatencyParams, RdmaBandwidth
from perfdag.steps.torchbench.runner import MARK
from perfdag.testing import Recording, damage
from tests.recorded.recordings import CASES, DAMAGED

HOUR = 3600.0


@pytest.mark.parametrize("name", DAMAGED)
def test_recorded_outputs_have_declared_metrics(name: str) -> None:
    damage.check_declared(DAMAGED[name].load())


@pytest.mark.parametrize("name", DAMAGED)
def test_a_cut_output_is_noticed(name: str) -> None:
    case = DAMAGED[name]
    damage.check_cut(case.load(), case.halves or ())


@pytest.mark.parametrize("name", DAMAGED)
def test_a_garbled_output_is_noticed(name: str) -> None:
    damage.check_garbled(DAMAGED[name].load())


@pytest.mark.parametrize("name", DAMAGED)
def test_a_decimal_comma_is_refused(name: str) -> None:
    damage.check_decimal_comma(DAMAGED[name].load())


IMPOSSIBLE = [
    ("iperf/udp-lossy", r'("lost_packets":\s*)\d+', r"\g<1>-5"),
    ("iperf/udp-lossy", r'("lost_packets":\s*)\d+', r"\g<1>10000000"),
    ("iperf/tcp", r'("retransmits":\s*)\d+', r"\g<1>-1"),
    ("iperf/tcp", r'("min_rtt":\s*)\d+', r"\g<1>99999999"),
    ("fio/randread", r'("iops" : )[\d.]+', r"\g<1>-4.0"),
    ("fio/randread", r'("iops" : )[\d.]+', r"\g<1>Infinity"),
    ("fio/randread", r'("99.000000" : )\d+', r"\g<1>999999999999"),
    ("fio/write-once", r'("runtime" : )103', r"\g<1>1"),
    ("perftest/constructed-write-bw-all-26.04.txt", r"^( 4 .*)0\.13", r"\g<1>-0.13"),
    ("imb/pingpong-shm", r"^( +0 +\d+ +)\S+", r"\g<1>0.01"),
]
"""A recording, and what to replace so that a figure of it is impossible, or too coarse."""


@pytest.mark.parametrize(("name", "pattern", "by"), IMPOSSIBLE)
def test_an_impossible_figure_is_no_sample(name: str, pattern: str, by: str) -> None:
    recording = CASES[name].load()
    texts = {
        role: re.sub(pattern, by, text, flags=re.M) for role, text in recording.output.texts.items()
    }
    assert texts != recording.output.texts
    damage.check_refused(recording, texts)


@pytest.mark.parametrize(
    "line",
    [
        "perfdag-rank max_rss_bytes=",
        "perfdag-rank max_rss_bytes=nan user_s=1 system_s=1",
        "perfdag-rank max_rss_bytes=1 user_s=1",
        "perfdag-rank max_rss_bytes=1 user_s=1 system_s=1.2.3",
    ],
)
def test_a_cut_line_of_a_rank_is_failed(line: str) -> None:
    benchmark, params, output, parse = CASES["openfoam/xs-1-proc"].load()
    output.texts["stdout"] = re.sub(r"perfdag-rank.*", line, output.texts["stdout"])
    damage.check_refused(Recording(benchmark, params, output, parse))


# -- more than an hour ---------------------------------------------------------------------------


def one(result: list[Measurement], metric: str, stat: str = "value", **coords: Any) -> float:
    (value,) = [
        measurement.value
        for measurement in result
        if (measurement.metric, measurement.stat) == (metric, stat)
        and coords.items() <= measurement.coords.items()
        and not measurement.subject
    ]
    return value


def test_iperf_of_an_hour() -> None:
    _, params, output, parse = CASES["iperf/tcp"].load()
    report = json.loads(output.texts["client"])
    report["start"]["test_start"]["duration"] = 2 * HOUR
    _times(report, lambda seconds: seconds * 2 * HOUR)
    output.texts["client"] = json.dumps(report)
    long = params.model_copy(update={"duration": 2 * HOUR})
    assert (
        one(parse(output.texts, long), "throughput")
        == report["end"]["sum_received"]["bits_per_second"]
    )


def _times(node: Any, change: Callable[[float], float]) -> None:
    """Change every time (start, end, seconds) below a node of iperf3's report."""
    for key, value in (
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if isinstance(node, list)
        else ()
    ):
        if key in ("start", "end", "seconds") and isinstance(value, int | float):
            node[key] = change(value)
        else:
            _times(value, change)


def test_fio_of_hours() -> None:
    _, params, output, parse = CASES["fio/randread"].load()
    whole = output.texts["client"]
    report = json.loads(whole[whole.index("{\n") :])
    side = report["jobs"][0]["read"]
    side["runtime"], side["total_ios"] = 30_000_000, 10**11  # ms; more than 2^31 of both
    side["lat_ns"]["N"], side["lat_ns"]["max"] = 10**11, 4 * 10**12
    output.texts["client"] = json.dumps(report)
    measurements = parse(output.texts, params.model_copy(update={"runtime": 30_000.0}))
    assert one(measurements, "latency", "max", direction="read") == 4000.0
    assert (
        next(measurement.n for measurement in measurements if measurement.metric == "iops")
        == 10**11
    )


def test_imb_of_hours() -> None:
    _, params, output, parse = CASES["imb/allreduce-tcp"].load()
    row = re.compile(r"^( +1024 +)(\d+)( +)(\d+\.\d+)( +)(\d+\.\d+)( +)(\d+\.\d+)", re.M)
    longer = row.sub(
        r"\g<1>10000000 4000000000.15 4200000000.22 4100000000.18", output.texts["stdout"]
    )
    assert longer != output.texts["stdout"]
    output.texts["stdout"] = longer
    assert one(parse(output.texts, params), "latency", "mean", message_bytes=1024) == pytest.approx(
        4100.0
    )


def test_rdma_of_hours() -> None:
    params = BandwidthParams(duration="2h", sizes=[65536])
    _, _, output, parse = CASES["perftest/constructed-write-bw-65536-duration.txt"].load()
    output.texts["client0"] = re.sub(
        r"^( *65536 +)\d+", r"\g<1>13500000000", output.texts["client0"], flags=re.M
    )
    measurements = parse(output.texts, params)
    assert (
        next(measurement.n for measurement in measurements if measurement.metric == "bandwidth")
        == 13_500_000_000
    )
    assert "-D 7200" in " ".join(RdmaBandwidth().arguments(params, 65536))
    timed = LatencyParams(mode="send", duration="2h", sizes=[2])
    _, _, output, parse = CASES["perftest/constructed-send-lat-duration.txt"].load()
    output.texts["client0"] = re.sub(
        r"^( *2 +)\d+", r"\g<1>4600000000", output.texts["client0"], flags=re.M
    )
    assert (
        next(
            measurement.n
            for measurement in parse(output.texts, timed)
            if measurement.metric == "latency"
        )
        == 4_600_000_000
    )


def test_torchbench_of_hours() -> None:
    _, params, output, parse = CASES["torchbench/alexnet-eval-1"].load()
    head, _, line = output.texts["stdout"].rpartition(MARK)
    report = json.loads(line)
    report["wall_s"] = [4000.0 + i for i in range(10)]
    head = re.sub(r"(CPU Wall Time per batch:\s*)[0-9.]+", r"\g<1>4004500.000", head)
    output.texts["stdout"] = f"{head}{MARK}{json.dumps(report)}\n"
    assert one(parse(output.texts, params), "batch_time") == pytest.approx(4004.5)
