"""Rows of collect: the reasons of missing samples, series ids that stay, and the cluster."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from perfdag.benchmark import registry
from perfdag.benchmark.contract import Measurement
from perfdag.plan import Plan, make_plan
from perfdag.results.collect import gather
from perfdag.results.samples import (
    NOTES,
    UNKNOWN,
    MissingReason,
    SampleRecord,
    as_annotation,
    as_row,
    budget_spent,
    forget_reasons,
    from_annotations,
    now,
    reason_for,
    sample_key,
    stored_reasons,
    write_reason,
)
from perfdag.store.base import FolderStore
from perfdag.suite.load import parse_suite

FLIGHT = MissingReason("sample", "failed", "in flight", 0, ("a-1", "b-w2"), 2, "node-1")
BUDGET, BATCH = budget_spent(100, 0), MissingReason("batch", "failed", "no node", 0)
PLAN, WORKFLOW = (
    MissingReason("plan", "failed", "forbidden"),
    MissingReason("workflow", "missing", "stopped"),
)


@pytest.mark.parametrize(
    ("reasons", "batch", "answer"),
    [
        ([WORKFLOW, PLAN, BATCH, BUDGET], 0, BUDGET),
        ([WORKFLOW, PLAN, BATCH], 0, BATCH),
        ([WORKFLOW, PLAN, BATCH], 1, PLAN),
        ([WORKFLOW, BATCH], None, WORKFLOW),
        ([BATCH, BUDGET], 1, UNKNOWN),
        ([], 0, UNKNOWN),
    ],
)
def test_precedence(reasons: list[MissingReason], batch: int | None, answer: MissingReason) -> None:
    assert reason_for(reasons, batch) == answer


def test_a_sample_in_flight_has_its_own_reason_and_what_ended_its_pod() -> None:
    reasons = [BATCH, replace(FLIGHT, attempt=1, text="earlier"), FLIGHT, WORKFLOW]
    assert reason_for(reasons, 0, "a-1") == replace(FLIGHT, text="in flight: no node")
    assert reason_for([FLIGHT], 0, "b-w2") == FLIGHT
    assert reason_for(reasons, 0, "a-2") == BATCH


def test_notes_in_the_store(tmp_path: Path) -> None:
    store = FolderStore(str(tmp_path))
    for reason in (BUDGET, FLIGHT, BATCH, PLAN, WORKFLOW):
        write_reason(store, "r", reason)
    assert set(stored_reasons(store, "r")) == {BUDGET, FLIGHT, BATCH, PLAN, WORKFLOW}
    forget_reasons(store, "r", "batch-0")
    assert set(stored_reasons(store, "r")) == {BUDGET, FLIGHT, PLAN, WORKFLOW}
    forget_reasons(store, "r")
    assert stored_reasons(store, "r") == []


def test_annotation_of_the_workflow() -> None:
    """Argo looks for the key of a batch, which no text of another one can have."""
    notes = as_annotation("u 1", {3: "x" * 500, 4: 'y"7 final":'}, {4, 5})
    assert from_annotations("u 1", notes) == ({3: "x" * 400, 4: 'y"7 final":'}, {4, 5})
    assert re.findall('"[0-9]+ final":', str(notes[NOTES])) == ['"4 final":', '"5 final":']
    assert from_annotations("u 2", notes) == ({}, set()), "another attempt"
    assert as_annotation("u 1", {}) == {NOTES: None}


RECORDED = Path(__file__).parent / "recorded/series_ids.json"
"""Point and series ids by benchmark and `metric stat coords`, recorded with version 1 of the
schema.
"""

RDMA = "permutations: {explicit: [{network.host: true}]}, "
NEEDS = {
    "resnet50-overhead": "params: {wrapper: [nice]}, ",
    "command": "params: {argv: ['true']}, ",
    "rdma-latency": RDMA,
    "rdma-bandwidth": RDMA,
}
"""What a benchmark needs beyond its defaults."""

COORDS: tuple[dict[str, Any], ...] = ({}, {"direction": "read", "message_bytes": 4096})


def series_ids(store: FolderStore, name: str, nodes: Sequence[str] = ()) -> dict[str, str]:
    """Return the ids of one point of a benchmark and of its rows: every metric, two statistics,
    two sets of coordinates.
    """
    entry = f"{{benchmark: {name}, {NEEDS.get(name, '')}repetitions: 1}}"
    plan = make_plan(parse_suite(f"name: ids\nentries:\n  - {entry}\n"))
    plan.where = ZONES
    store_sample(store, plan, name, nodes)
    table, _ = gather(store, plan)
    columns = [table[column].to_pylist() for column in ("metric", "stat", "coords", "series_id")]
    ids = {
        f"{metric} {stat} {coords}": series
        for metric, stat, coords, series in zip(*columns, strict=True)
    }
    return {"point": plan.points[0].id, **ids}


RECORDED_SPANS = Path(__file__).parent / "recorded/series_ids_of_several_hosts.json"
"""The same of iperf, by where the hosts of the sample were."""
SPANS = {"node": ["a", "a"], "nodes": ["a", "b"], "zones": ["a", "c"]}
ZONES = {"nodes": {"a": {"zone": "1"}, "b": {"zone": "1"}, "c": {"zone": "2"}}}


def store_sample(store: FolderStore, plan: Plan, name: str, nodes: Sequence[str] = ()) -> None:
    measured = registry.get(name)
    rows = [
        as_row(metric, Measurement(metric.name, 1.0, stat=stat, coords=coords))
        for metric in measured.metrics
        for stat in ("value", "p99")
        for coords in COORDS
    ]
    record = SampleRecord(
        plan.points[0].id,
        1,
        "ok",
        rows=rows,
        nodes=list(nodes),
        started_at=now(),
        finished_at=now(),
        benchmark_version=str(measured.version),
    )
    store.put(sample_key(plan.run_id, plan.key(0)), record.dump())


@pytest.mark.parametrize("name", registry.names())
def test_series_ids_stay(tmp_path: Path, name: str) -> None:
    recorded = json.loads(RECORDED.read_text())
    ids = series_ids(FolderStore(str(tmp_path)), name)
    if name not in recorded and os.environ.get("PERFDAG_REGENERATE"):
        recorded[name] = ids
        RECORDED.write_text(json.dumps(recorded, indent=2) + "\n")
    assert recorded[name].items() <= ids.items()


@pytest.mark.parametrize("span", SPANS)
def test_series_ids_of_several_hosts_stay(tmp_path: Path, span: str) -> None:
    ids = series_ids(FolderStore(str(tmp_path)), "iperf", SPANS[span])
    assert json.loads(RECORDED_SPANS.read_text())[span].items() <= ids.items()
    alone = json.loads(RECORDED.read_text())["iperf"]
    assert ids["point"] == alone["point"]
    assert not {*ids.values()} & {*alone.values()} - {alone["point"]}


KIND = {"kubelet": "v1.34.4", "type": "m5.large"}
WHERE = {
    "kubernetes": "v1.34.4",
    "csi": ["ebs.csi.aws.com"],
    "daemons": {"aws-node": ["aws-node:v1.19.2"]},
    "network_policy": True,
    "nodes": {"node-a": KIND, "node-b": KIND, "node-c": {"kubelet": "v1.33.0", "type": "m5.large"}},
}


def test_rows_name_the_cluster_and_the_kinds_of_node_they_used(tmp_path: Path) -> None:
    plan = make_plan(
        parse_suite("name: s\nentries:\n  - {benchmark: command, params: {argv: ['true']}}\n")
    )
    plan.where = WHERE
    store = FolderStore(str(tmp_path))
    part = SampleRecord(
        plan.points[0].id,
        1,
        "ok",
        started_at=now(),
        finished_at=now(),
        nodes=["node-a", "node-b"],
        env={"kernel": "6.1"},
    )
    store.put(sample_key(plan.run_id, plan.key(0)), part.dump())
    table, _ = gather(store, plan)
    assert orjson.loads(table["env"].to_pylist()[0]) == {
        "kernel": "6.1",
        "cluster": {
            "kubernetes": "v1.34.4",
            "csi": ["ebs.csi.aws.com"],
            "daemons": {"aws-node": ["aws-node:v1.19.2"]},
            "network_policy": True,
            "nodes": [KIND],
        },
    }
