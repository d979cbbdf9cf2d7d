"""The scripts of examples/ on a real cluster: what they print runs, and its rows are in the
store.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from perfdag.kube.client import Kube, Object, run_with_client

from .conftest import Namespace, samples_of

pytestmark = [pytest.mark.argo, pytest.mark.slow]
ARGO = "argoproj.io/v1alpha1"
EXAMPLES = Path(__file__).parents[2] / "examples"


def create(bench: Namespace, example: str, *words: str) -> list[Object]:
    argv = [sys.executable, str(EXAMPLES / example), *words]
    output = subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    async def create_all(client: Kube) -> list[Object]:
        return [await client.create(body, bench.name) for body in yaml.safe_load_all(output)]

    return run_with_client(create_all)


def measured(bench: Namespace, parent: str) -> list[Object]:
    """The rows of the runs that the tasks of a Workflow have made."""
    argv = ["argo", "wait", parent, "-n", bench.name]
    subprocess.run(argv, check=False, timeout=420)
    workflow = bench.workflow(parent)
    nodes = workflow["status"]["nodes"].values()
    assert workflow["status"]["phase"] == "Succeeded", [each.get("message") for each in nodes]
    rows = []
    for node in sorted(nodes, key=lambda each: str(each.get("startedAt"))):
        for output in (node.get("outputs") or {}).get("parameters") or []:
            if node.get("type") == "Pod" and output["name"] == "workflow":
                run = bench.finish(output["value"])
                run.assert_ok()
                rows += run.rows
    return rows


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


def test_what_follows_a_suite_runs_after_its_failure_too(bench: Namespace, tmp_path: Path) -> None:
    suite = tmp_path / "broken.yaml"
    suite.write_text("name: broken\nentries: [{benchmark: command, params: {argv: ['false']}}]\n")
    [workflow] = create(bench, "compose.py", str(suite))
    name = workflow["metadata"]["name"]
    subprocess.run(["argo", "wait", name, "-n", bench.name], check=False, timeout=420)
    nodes = bench.workflow(name)["status"]["nodes"].values()
    phases = {node["displayName"]: node["phase"] for node in nodes}
    assert (phases["measure"], phases["tidy"]) == ("Failed", "Succeeded")


def test_two_benchmarks_with_their_permutations(bench: Namespace) -> None:
    [workflow] = create(bench, "one_benchmark.py")
    rows = measured(bench, workflow["metadata"]["name"])
    assert list(dict.fromkeys(row["benchmark"] for row in rows)) == ["iperf", "latency"]
    assert len({row["point"] for row in rows}) == 4


def test_the_schedules(bench: Namespace, suite: str) -> None:
    create(bench, "nightly.py", bench.name)
    create(bench, "nightly_dag.py", suite)
    run = bench.finish(start(bench, "perfdag-nightly"), timeout=420)
    run.assert_ok()
    assert len(samples_of(run.rows)) == 5
    assert len(samples_of(measured(bench, start(bench, "nightly-dag")))) == 1
    for name in ("perfdag-nightly", "perfdag-nightly-age", "nightly-dag"):
        bench.delete("CronWorkflow", name, ARGO)
