"""What is nominally possible beside a figure: the NIC between nodes, the memory within one."""

from typing import Any

import pytest

from perfdag.charts.pages import report
from perfdag.digest import canonical
from perfdag.results.nominal import add_nominal
from perfdag.results.summary import summarise
from tests.charts import rows

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
        ({}, None, [NIC], [NIC], True, "14 % of 80 Gbit/s (memory copy)"),
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
    memory = rows.throughput(1e10, metric="memory", unit="B/s", headline=False)
    table = rows.table(sample, rows.sample("canary", {}, 1, [memory]))
    states = summarise(table)
    add_nominal(table, states)
    assert [series.nominal for series in states[0].series] == [note]
    page = report.report(table)
    assert ("of nominal" in page, note in page) == (bool(note), True)
