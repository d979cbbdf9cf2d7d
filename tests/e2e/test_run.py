"""A suite on a real cluster: the same rows as here, and its text
unchanged on both ways.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfdag.results.collect import gather
from perfdag.results.run_store import RunStore, stored_plan
from perfdag.store.s3 import open_store

from .conftest import Namespace

pytestmark = [pytest.mark.argo, pytest.mark.slow]
NASTY = (
    "quote ' \" back\\slash {{workflow.name}} {{=1+1}} $(HOME) $HOME `id`\n"
    "second: line # not a comment\n- {{ item"
)


def _suite(folder: Path) -> Path:
    path = folder / "nasty.yaml"
    entry = {"benchmark": "command", "params": {"argv": ["printf", "%s", NASTY]}, "repetitions": 2}
    two = {"benchmark": "command", "name": "slept", "params": {"argv": ["sleep", "0.1"]}}
    path.write_text(yaml.safe_dump({"name": "nasty", "entries": [entry, two]}))
    return path


def _here(suite: Path, folder: Path, *more: str) -> list[dict[str, Any]]:
    """Rows of the suite's samples, measured without a cluster."""
    argv = [
        sys.executable,
        "-m",
        "perfdag",
        "run",
        str(suite),
        "--store",
        str(folder / "s"),
        "--no-report",
        *more,
    ]
    result = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    store = open_store(str(folder / "s"))
    table, _ = gather(store, stored_plan(store, [*RunStore(store).suites_by_run][-1]))
    return [row for row in table.to_pylist() if row["benchmark"] != "canary"]


def test_suite_text_through_the_store_and_rows_equal_to_a_local_run(
    bench: Namespace, tmp_path: Path
) -> None:
    suite = _suite(tmp_path)
    run = bench.measure(suite)
    run.assert_ok()
    there = run.rows
    assert {row["command"] for row in there if row["entry"] == "command"} == {f"printf %s {NASTY}"}
    here = _here(suite, tmp_path)
    same = (
        "entry",
        "benchmark",
        "benchmark_version",
        "metric",
        "stat",
        "unit",
        "better",
        "headline",
        "params",
        "repetition",
        "phase",
        "status",
        "coords",
    )

    def keyed(rows: list[dict[str, object]]) -> list[tuple[object, ...]]:
        return sorted(
            tuple(str(row[name]) for name in (*same, "point", "series_id")) for row in rows
        )

    assert keyed(there) == keyed(here)
    assert set(there[0]) == set(here[0])
    nodes = {node["metadata"]["name"]: node["status"]["nodeInfo"] for node in bench.objects("Node")}
    for row in there:
        assert "sha256:" in row["image_digest"], "which image measured is in the row"
        assert row["cluster"], "the uid of kube-system stands for the cluster"
        cluster = json.loads(row["env"])["cluster"]
        assert cluster["kubernetes"].startswith("v")
        assert {kind["kubelet"] for kind in cluster["nodes"]} == {
            nodes[name]["kubeletVersion"] for name in row["nodes"]
        }


def test_suite_text_by_argo_submit(bench: Namespace, tmp_path: Path) -> None:
    rendered = bench.perfdag("render", str(_suite(tmp_path)), check=True).stdout
    (tmp_path / "workflow.yaml").write_text(rendered)
    argv = ["argo", "submit", str(tmp_path / "workflow.yaml")]
    argv += ["-n", bench.name, "--wait", "-o", "name"]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    rows = bench.rows(bench.run_id(result.stdout.split()[0]))
    assert {row["command"] for row in rows if row["entry"] == "command"} == {f"printf %s {NASTY}"}


def test_doctor_finds_nothing_missing_in_a_fresh_installation(bench: Namespace) -> None:
    doctor = bench.perfdag("doctor", "--cluster", "--json")
    result = json.loads(doctor.stdout)
    assert [each for each in result if each["state"] == "missing"] == []
    assert doctor.returncode == 0
    assert f"a pod can write and read store {bench.store}" in {each["what"] for each in result}
