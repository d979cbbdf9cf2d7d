"""The matrix of pairs: names the slow node or link, shows what was not asked, not measured, and
on one node.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from matplotlib.figure import Figure

from perfdag.charts.benchmarks import pair_figures
from perfdag.charts.pictures import draw_pictures
from perfdag.identity import canonical
from perfdag.results.schema import SAMPLES
from perfdag.results.summary import points_of, summarise
from perfdag.suite.pairs import rounds
from tests.charts import rows as made
from tests.charts.figures import artist

SHAPE: dict[str, Any] = {"hosts": {"count": 8, "pairs": "all"}}


def table(
    kind: str = "all",
    hosts: int = 8,
    node: int | None = None,
    link: tuple[int, int] | None = None,
    failed: tuple[int, int] | None = None,
    nodes: list[str] | None = None,
    n: int = 1,
    shape: dict[str, Any] = SHAPE,
    beside: float = 1.0,
) -> pa.Table:
    rng, names = np.random.default_rng(3), nodes or [f"node-{host}" for host in range(hosts)]
    samples = []
    for a, b in (pair for round in rounds(kind, hosts) for pair in round):
        params, used = {"streams": 1, "pair": f"{a}-{b}"}, [names[a], names[b]]
        factor = 0.7 if node in (a, b) or (a, b) == link else 1.0
        factor *= beside if used[0] == used[1] else 1.0
        for repetition in range(1, n + 1):
            rate = made.throughput(2e10 * float(np.exp(rng.normal(0, 0.01))) * factor)
            values, status = ([], "failed") if (a, b) == failed else ([rate], "ok")
            each = made.sample("iperf", params, repetition, values, status=status, shape=shape)
            own = {"params": '{"streams":1}', "pair": f"{a}-{b}", "nodes": used}
            samples.append([row | own | {"same_node": used[0] == used[1]} for row in each])
    return made.table(*samples)


def only(rows: pa.Table) -> tuple[str, Figure]:
    (result,) = pair_figures(points_of(rows), rows)
    return result


def words(figure: Figure, which: str) -> str:
    return " ".join(
        next(text.get_text() for text in figure.texts if text.get_gid() == which).split()
    )


AT_ONCE = {"hosts": {"count": 8, "pairs": "all", "parallel_pairs": 4}}


@pytest.mark.parametrize(
    ("options", "title", "subtitle"),
    [
        ({"node": 5}, "Slow in throughput: node node-5 (-30 %)", "one pair at a time"),
        ({"link": (2, 6)}, "Slow in throughput: link node-2 - node-6 (-30 %)", ""),
        ({"node": 5, "kind": "ring", "n": 3}, "Slow in throughput: node node-5 (-30 %)", ""),
        ({"shape": AT_ONCE}, "No node and no link stands out", "concurrent: 4 pairs at once"),
        ({"hosts": 3}, "in the middle", ""),
        ({"nodes": "AAAA"}, "", "all hosts on one node"),
        ({"nodes": "AAAAB"}, "No node and no link stands out in throughput between nodes", ""),
        ({"nodes": "AABCDE"}, "No node and no link stands out in throughput between nodes", ""),
        (
            {"nodes": "AABCDE", "node": 4},
            "Slow in throughput between nodes: node 4 (D) (-30 %)",
            "",
        ),
        ({"nodes": "AAB"}, "in the middle between nodes", "hatched: both hosts on one node"),
    ],
)
def test_the_title_names_the_slow_node_or_link_though_a_pair_inside_a_node_is_fast(
    options: dict[str, Any], title: str, subtitle: str
) -> None:
    if nodes := options.get("nodes"):
        options = options | {"hosts": len(nodes), "nodes": list(nodes), "beside": 5.0}
    slug, figure = only(table(**options))
    assert slug == "pairs-throughput"
    assert title in words(figure, "title")
    assert subtitle in words(figure, "subtitle")


def test_the_title_explains_the_slow_node_by_the_facts_in_which_it_differs() -> None:
    def facts(node: str) -> dict[str, Any]:
        slow = node == "node-5"
        nic = {"name": "ens1", "speed": 10**10 if slow else 25 * 10**9, "mtu": 9000}
        return {"host": node, "kernel": "6.1" if slow else "6.8", "serial": node, "nics": [nic]}

    samples = table(node=5).to_pylist()
    for row in samples:
        first, second = row["nodes"]
        row["env"] = canonical({**facts(first), "peers": {second: facts(second)}})
    _, figure = only(pa.Table.from_pylist(samples, schema=SAMPLES))
    why = "node-5: kernel 6.1 (others 6.8), nics.ens1.speed 10 Gbit/s (others 25 Gbit/s)"
    assert words(figure, "subtitle").startswith(why)


def test_every_pair_is_a_cell_and_a_failed_one_a_cross() -> None:
    _, figure = only(table(failed=(1, 4), n=2))
    ax = figure.axes[0]
    grid = artist(ax, "median").get_array()
    assert int(np.isfinite(np.ma.filled(grid, np.nan)).sum()) == 27
    cross = artist(ax, "failed")
    assert (list(cross.get_xdata()), list(cross.get_ydata())) == ([4.5], [1.5])
    assert "median in Gbit/s of n=2; one pair" in words(figure, "subtitle")


def test_labels_tell_pairs_apart_and_the_benchmark_keeps_its_own_chart() -> None:
    rows = table(hosts=4)
    assert {state.title for state in points_of(rows)} == {
        f"hosts {a}-{b}" for a in range(4) for b in range(a + 1, 4)
    }
    both = pa.concat_tables([rows, made.iperf_paths()])
    assert {"iperf-pairs-throughput"} < {picture.name for picture in draw_pictures(summarise(both))}
    assert [picture.name for picture in draw_pictures(summarise(rows))] == [
        "iperf-pairs-throughput"
    ]
