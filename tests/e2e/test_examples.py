"""The scripts of examples/ on a real cluster: what they print runs, and its rows are in the
store.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from perfdag.kube.client import Kube, Object, run_with_client

from .conftest import Namespace

pytestmark = [pytest.mark.argo, pytest.mark.slow]
ARGO = "argoproj.io/v1alpha1"
EXAMPLES = Path(__file__).parents[2] / "examples"


def create(bench: Namespace, example: str, *words: str) -> list[Object]:
    argv = [sys.executable, str(EXAMPLES / example), *words]
    output = subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    async def create_all(client: Kube) -> list[Object]:
        return [await client.create(body, bench.name) for body in yaml.safe_load_all(output)]

    return run_with_client(create_all)


def rows_of(bench: Namespace, workflow: str) -> list[Object]:
    run = bench.finish(workflow, timeout=420)
    run.assert_ok()
    return run.rows


def start(bench: Namespace, cron: str) -> str:
    argv = ["argo", "submit", "--from", f"cronwf/{cron}", "-n", bench.name, "-o", "name"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def suite(tmp_path: Path) -> str:
    path = tmp_path / "short.yaml"
    path.write_text(
        "name: short\nentries:\n  - {benchmark: command, params: {argv: [sleep, '0.1']}}\n"
    )
    return str(path)


def test_a_suite_between_two_steps(bench: Namespace, suite: str) -> None:
    [workflow] = create(bench, "compose.py", suite, bench.store)
    name = workflow["metadata"]["name"]
    [row] = rows_of(bench, name)
    assert row["metric"] == "wall_time"
    assert bench.workflow(name)["status"]["phase"] == "Succeeded"
    assert bench.perfdag("rm", row["run_id"]).returncode == 0
    assert name not in {each["metadata"]["name"] for each in bench.objects("Workflow", ARGO)}


def test_one_benchmark_with_its_permutations(bench: Namespace) -> None:
    [workflow] = create(bench, "one_benchmark.py", bench.store)
    rows = rows_of(bench, workflow["metadata"]["name"])
    assert len({row["point"] for row in rows}) == 4


def test_an_entry_for_each_node_pool(bench: Namespace) -> None:
    labels = [f"kubernetes.io/hostname={node}" for node in bench.nodes()]
    [workflow] = create(bench, "node_pools.py", bench.store, *labels)
    rows = rows_of(bench, workflow["metadata"]["name"])
    assert sorted({row["nodes"][0] for row in rows}) == bench.nodes()


def test_the_schedules(bench: Namespace, suite: str) -> None:
    create(bench, "nightly.py", bench.store, bench.name)
    create(bench, "nightly_dag.py", suite, bench.store)
    for cron, samples in (("perfdag-nightly", 5), ("nightly-dag", 1)):
        assert len(rows_of(bench, start(bench, cron))) == samples
    for name in ("perfdag-nightly", "perfdag-nightly-age", "nightly-dag"):
        bench.delete("CronWorkflow", name, ARGO)
