"""The trust in a run, and what is nominally possible beside a figure."""

from collections.abc import Sequence
from operator import add
from typing import Any

import pytest

from perfdag.identity import canonical
from perfdag.results.summary import summarise
from tests.charts import rows
from tests.charts.pages import report_of

Sample = list[dict[str, Any]]


def point(values: Sequence[float], entry: str = "x", **more: Any) -> list[Sample]:
    measured = [rows.throughput(value, **more) for value in values]
    return [
        rows.sample("iperf", {"entry": entry}, number, [row], entry=entry)
        for number, row in enumerate(measured, 1)
    ]


def bare(status: str, noise: str | None = None) -> Sample:
    values = [rows.throughput(1e9)] if status == "ok" else []
    return rows.sample("iperf", {}, 1, values, status=status, noise=noise, error="no", entry="y")


def canary(metric: str, *values: float) -> list[Sample]:
    return [
        rows.sample("canary", {}, number, [rows.throughput(value, metric=metric, headline=False)])
        for number, value in enumerate(values)
    ]


STEADY = point([1e9, 1.01e9, 1e9])
SHARE = {"metric": "efficiency", "unit": "1"}


@pytest.mark.parametrize(
    ("samples", "text"),
    [
        (STEADY, "good: 1 point"),
        (STEADY + canary("cpu", 1e4, 1.1e4), "good: 1 point"),
        (point([0.01, 0.05, 0.03], **SHARE), "good: 1 point"),
        (point([1e9]), "good: 1 point; one sample shows no spread (1 of 1 point)"),
        (
            [*STEADY, *point([1e9], "z")],
            "good: 2 points; one sample shows no spread (1 of 2 points)",
        ),
        ([*STEADY, bare("skipped")], "good: 1 point; 1 skipped"),
        (
            point([1e9, 1.2e9, 1.1e9]),
            "noisy: 1 of 1 point (spread 18 % of x throughput)",
        ),
        (
            [*STEADY, bare("ok", "steal 5.0%, load 13 on 2 cores before it")],
            "noisy: 1 of 2 points (steal, load); one sample shows no spread (1 of 2 points)",
        ),
        (
            STEADY + canary("loopback", 1e-5, 3e-5, 2e-5),
            "noisy: 1 of 1 point (canary loopback moved by 100 %)",
        ),
        (STEADY + canary("disk", 1e-5, 9e-5), "good: 1 point"),
        (
            point([1e8, 3.1e9, 1e8]) + point([1e9, 3e9, 2e9], "z"),
            "unusable: 1 of 2 points (spread 3,000 % of x throughput); "
            "noisy: 1 of 2 points (spread 100 % of z throughput)",
        ),
        (
            [*map(add, point([1e8, 3e9, 1e8]), point([0.1, 0.1, 0.2], **SHARE))],
            "noisy: 1 of 1 point (spread 2,900 % of x throughput)",
        ),
        ([*STEADY, bare("failed")], "failed: 1 of 2 points (no valid sample)"),
        ([bare("skipped")], "unusable: no point was measured; 1 skipped"),
    ],
)
def test_the_headline_is_the_trust_in_the_worst_point(samples: list[Sample], text: str) -> None:
    table = rows.table(*samples)
    trust = summarise(table).trust
    assert trust.text == text
    assert trust.text.startswith(trust.level)
    assert f">trust {text}</span>" in report_of(table)


NIC = {"name": "eth0", "driver": "mlx5_core", "speed": 25e9}
OTHER = {"name": "eth1", "driver": "mlx5_core", "speed": 100e9}
BRIDGE = {"name": "cni", "driver": None, "speed": 10e9}


@pytest.mark.parametrize(
    ("params", "interface", "nics", "peer", "same_node", "note"),
    [
        ({}, None, [NIC, BRIDGE], [OTHER], False, "46 % of 25 Gbit/s (NIC)"),
        ({"bidirectional": True}, None, [NIC], [NIC], False, "23 % of 50 Gbit/s (NIC)"),
        ({}, None, [NIC, OTHER], [NIC, OTHER], False, ""),
        ({}, "eth1", [NIC, OTHER], [NIC, OTHER], False, "12 % of 100 Gbit/s (NIC)"),
        ({}, None, [BRIDGE], [BRIDGE], False, ""),
        ({}, None, [NIC], [NIC], True, ""),
        ({}, None, [NIC], [NIC], None, ""),
    ],
)
def test_a_figure_stands_beside_what_is_nominally_possible(
    params: dict[str, Any],
    interface: str | None,
    nics: list[dict[str, Any]],
    peer: list[dict[str, Any]],
    same_node: bool | None,
    note: str,
) -> None:
    shape = {"network": {"interface": interface}}
    sample = rows.sample("iperf", params, 1, [rows.throughput(11.5e9)], shape=shape)
    for row in sample:
        row |= {"same_node": same_node}
        row |= {"env": canonical({"nics": nics, "peers": {"node-2": {"nics": peer}}})}
    table = rows.table(sample)
    [state] = summarise(table).points
    assert [series.nominal for series in state.series] == [note]
    page = report_of(table)
    assert ("of nominal" in page, note in page) == (bool(note), True)
