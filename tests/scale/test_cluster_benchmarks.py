"""The benchmarks scale and vmi-steady as entries of a suite, on a real API server with simulated
nodes.
"""

import uuid
from pathlib import Path

import pytest

from perfdag.commands.main import main
from perfdag.results.schema import load_rows
from perfdag.store.base import open_store
from tests.simulation import simulate

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SUITE = """name: control-plane
entries:
  - benchmark: scale
    params: {{template: job, count: 20, workers: 2, parallel: 4, goal: succeeded, namespace: perfdag-test-{id}-jobs, timeout: 60s}}
    timeout: 180s
  - benchmark: scale
    name: scheduler
    params: {{scenario: gated, template: pod, gpus: 0, count: 50, namespace: perfdag-test-{id}-pods, timeout: 60s}}
    timeout: 180s
  - benchmark: vmi-steady
    params: {{count: 6, churn: 2, pause: 1s, duration: 4s, api_gates: false, namespace: perfdag-test-{id}-vmis, timeout: 60s}}
    timeout: 180s
"""  # noqa: E501


def test_they_run_and_their_rows_add_up(tmp_path: Path) -> None:
    assert main(["scale", "nodes", "--count", "20", "--gpus", "8"]) == 0
    simulate("kubevirt")
    (tmp_path / "s.yaml").write_text(SUITE.format(id=uuid.uuid4().hex[:6]))
    assert main(["run", str(tmp_path / "s.yaml"), "--store", str(tmp_path / "store")]) == 0
    rows = load_rows(open_store(str(tmp_path / "store")), suites=["control-plane"]).to_pylist()
    value = {
        (row["entry"], row["metric"], row["stat"]): row["value"]
        for row in rows
        if row["subject"] is None and row["status"] == "ok"
    }
    assert {
        value[entry, "success_ratio", "value"] for entry in ("scale", "scheduler", "vmi-steady")
    } == {1.0}
    assert value["scale", "submission_to_scheduled", "p50"] > 0
    assert value["scheduler", "schedule_rate", "value"] > 0
    assert value["vmi-steady", "churn_cycles", "value"] >= 1
    running = {row["value"] for row in rows if row["metric"] == "running"}
    assert running == {0.0, 4.0, 6.0}, "up, replaced in turn, down"
    assert (
        len(
            {
                row["subject"]
                for row in rows
                if row["entry"] == "scale" and row["metric"] == "object_latency"
            }
        )
        == 20
    )
    assert all("simulated" in row["tool"] for row in rows if row["benchmark"] != "canary")
    assert list((tmp_path / "store" / "runs").glob("*/report.html"))
