"""Samples of one point within a node, between nodes and between zones are series of their own."""

from pathlib import Path
from typing import Any

import pytest

from perfdag.analysis.compare import compare_selections
from perfdag.analysis.gate import judge_run
from perfdag.analysis.gate_result import Rules
from perfdag.benchmark import registry
from perfdag.benchmark.contract import Measurement
from perfdag.plan import make_plan
from perfdag.results.collect import collect, gather
from perfdag.results.run_store import RunStore, stored_plan
from perfdag.results.samples import SampleRecord, as_rows, now, sample_key
from perfdag.results.selections import select
from perfdag.results.summary import points_of
from perfdag.store.base import FolderStore
from perfdag.suite.load import parse_suite

ZONES: dict[str, Any] = {
    "a": {"zone": "west"},
    "b": {"zone": "west"},
    "c": {"zone": "east"},
    "d": {"zone": None},
}


def measure(store: FolderStore, hosts: list[list[str]], night: int = 1) -> str:
    """Store a run of one point with a sample on each of these lists of nodes; return its id."""
    entry = f"{{benchmark: iperf, repetitions: {len(hosts)}}}"
    suite = parse_suite(f"name: net\nentries:\n  - {entry}\n")
    plan = make_plan(suite, run_id=f"202611{night:02}T020000Z-00000000", trigger="cron")
    plan.where = {"nodes": ZONES, "kubernetes": "v1"}
    iperf = registry.get("iperf")
    for position, nodes in enumerate(hosts):
        repetition = plan.order[position][1]
        rows = as_rows(iperf, [Measurement("throughput", 1e9 + repetition)])
        sample = SampleRecord(
            plan.points[0].id, repetition, "ok", rows=rows, nodes=nodes, started_at=now(),
            finished_at=now(), benchmark_version="1",
        )  # fmt: skip
        store.put(sample_key(plan.run_id, plan.key(position)), sample.dump())
    store.put(f"runs/{plan.run_id}/plan.json", plan.dump())
    collect(store, plan)
    return plan.run_id


@pytest.mark.parametrize(
    ("nodes", "span", "name"),
    [
        (["a"], None, "throughput"),
        (["a", "a"], "node", "throughput"),
        (["a", "b"], "nodes", "throughput between nodes"),
        (["a", "d"], "nodes", "throughput between nodes"),
        (["a", "e"], "nodes", "throughput between nodes"),
        (["a", "a", "b"], "nodes", "throughput between nodes"),
        (["a", "c"], "zones", "throughput between zones"),
    ],
)
def test_the_span_of_a_sample(
    tmp_path: Path, nodes: list[str], span: str | None, name: str
) -> None:
    store = FolderStore(str(tmp_path))
    table, _ = gather(store, stored_plan(store, measure(store, [nodes])))
    assert table["span"].to_pylist() == [span]
    assert points_of(table)[0].series[0].name == name


def test_runs_of_different_spans_are_not_compared(tmp_path: Path) -> None:
    store = FolderStore(str(tmp_path))
    a, b = (
        (store, select(RunStore(store), measure(store, [["a", node]] * 3, night)))
        for night, node in enumerate("ab", 1)
    )
    result = compare_selections(a, b)
    assert not result.series
    assert [len(result.left_out[side]) for side in ("only_a", "only_b")] == [1, 1]
    assert "between nodes" in result.left_out["only_b"][0]


def test_a_series_is_not_absent_where_its_hosts_were_elsewhere(tmp_path: Path) -> None:
    store = FolderStore(str(tmp_path))
    for night in range(1, 6):
        measure(store, [["a", "a"]] * 3, night)
    gate = judge_run(store, "net", measure(store, [["a", "b"]] * 3, 6), Rules())
    assert not [case for case in gate.cases if case.state == "absent"]
