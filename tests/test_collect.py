"""Collect: what the cluster was stands in the environment of each row."""

from pathlib import Path

import orjson

from perfdag.plan.plan import make_plan
from perfdag.results.collect import gather
from perfdag.results.samples import SampleRecord, now, sample_key
from perfdag.store.folder import FolderStore
from perfdag.suite.load import parse_suite

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
