"""What is printed for others: the example of a DAG of one's own, and never by Hera's own writer of YAML."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfdag.workflows import base, lint
from perfdag.workflows.emit import dump
from perfdag.workflows.templates import Installation

ROOT = Path(__file__).parents[2]
STORE = "s3://bench/results"


def compose(**told: str) -> dict[str, Any]:
    argv = [
        sys.executable,
        str(ROOT / "examples/compose.py"),
        str(ROOT / "suites/quick.yaml"),
        STORE,
    ]
    environment = {**os.environ, **told}
    made: dict[str, Any] = yaml.safe_load(
        subprocess.run(argv, env=environment, capture_output=True, text=True, check=True).stdout
    )
    return made


@pytest.fixture(scope="module")
def composed() -> dict[str, Any]:
    return compose()


def test_a_dag_of_ones_own_shares_the_lock_and_the_templates_of_any_installation(
    composed: dict[str, Any],
) -> None:
    other = compose(LOCK_NAMESPACE="team", CLUSTER_SCOPE="1")
    for made, lock, scope in ((composed, "perfdag", None), (other, "team", True)):
        assert made["spec"]["synchronization"]["mutexes"] == [
            {"name": "perfdag-measuring", "namespace": lock}
        ]
        [dag] = [each for each in made["spec"]["templates"] if each["name"] == "all"]
        refs = [
            made["spec"]["hooks"]["exit"]["templateRef"],
            *(task["templateRef"] for task in dag["dag"]["tasks"] if "templateRef" in task),
        ]
        assert [(ref["template"], ref.get("clusterScope")) for ref in refs] == [
            ("finish", scope),
            ("run", scope),
        ]


def test_a_dag_of_ones_own_keeps_the_rules_and_is_found_by_its_label(
    composed: dict[str, Any],
) -> None:
    assert lint.problems(composed) == []
    assert composed["metadata"]["labels"] == {"perfdag/suite": "quick"}
    told = {each["name"]: each.get("value") for each in composed["spec"]["arguments"]["parameters"]}
    assert told["store"] == STORE
    [template] = [
        each
        for each in base.objects(Installation(store=STORE))
        if each["metadata"]["name"] == "perfdag" and "spec" in each
    ]
    assert set(told) == {each["name"] for each in template["spec"]["arguments"]["parameters"]}
    for key in (
        "synchronization",
        "podGC",
        "ttlStrategy",
        "activeDeadlineSeconds",
        "workflowMetadata",
    ):
        assert composed["spec"][key] == template["spec"][key]


@pytest.mark.skipif(shutil.which("argo") is None, reason="needs the argo command")
def test_argo_takes_a_dag_of_ones_own(composed: dict[str, Any], tmp_path: Path) -> None:
    templates = [
        each
        for each in base.objects(Installation(namespace="bench", store=STORE))
        if each["kind"] == "WorkflowTemplate"
    ]
    file = tmp_path / "composed.yaml"
    file.write_text(
        dump([*templates, {**composed, "metadata": {**composed["metadata"], "namespace": "bench"}}])
    )
    said = subprocess.run(
        ["argo", "lint", "--offline", str(file)], capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stdout + said.stderr


def test_nothing_is_written_by_heras_own_writer() -> None:
    files = [
        file
        for room in ("workflows", "examples", "perfdag/cli", "benchmarks")
        for file in (ROOT / room).rglob("*.py")
    ]
    assert files
    assert [str(file) for file in files if re.search(r"\bto_(yaml|file)\(", file.read_text())] == []
