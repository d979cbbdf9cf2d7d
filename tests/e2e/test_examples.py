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


def printed_by(example: str, *words: str) -> str:
    argv = [sys.executable, str(EXAMPLES / example), *words]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def create_all(bench: Namespace, manifests: str) -> list[Object]:
    async def work(client: Kube) -> list[Object]:
        return [await client.create(body, bench.name) for body in yaml.safe_load_all(manifests)]

    return run_with_client(work)


def create(bench: Namespace, example: str, *words: str) -> list[Object]:
    return create_all(bench, printed_by(example, *words))


def measured(bench: Namespace, parent: str, phase: str = "Succeeded") -> list[Object]:
    """The rows of the runs that the tasks of a Workflow have made."""
    subprocess.run(["argo", "wait", parent, "-n", bench.name], check=False, timeout=420)
    workflow = bench.workflow(parent)
    nodes = workflow["status"]["nodes"].values()
    assert workflow["status"]["phase"] == phase, [each.get("message") for each in nodes]
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


def test_an_upgrade_that_makes_a_suite_slower_is_taken_back(bench: Namespace, suite: str) -> None:
    printed = printed_by("upgrade.py", suite, bench.store)
    earlier, after, later = printed.partition("  - name: after\n")
    [workflow] = create_all(bench, earlier + after + later.replace("'0.1'", "'0.6'"))
    name = workflow["metadata"]["name"]
    rows = measured(bench, name, "Failed")
    nodes = {each["displayName"]: each for each in bench.workflow(name)["status"]["nodes"].values()}
    phases = [nodes[each]["phase"] for each in ("compare", "keep", "take-back")]
    assert phases == ["Failed", "Omitted", "Succeeded"]
    outputs = [
        {each["name"]: each["value"] for each in nodes[side]["outputs"]["parameters"]}
        for side in ("before", "after")
    ]
    assert [each["run"] for each in outputs] == list(dict.fromkeys(row["run_id"] for row in rows))
    assert all(each["summary"] for each in outputs), "the sentence about each run"
    argv = [sys.executable, "-m", "perfdag", "compare", *(each["workflow"] for each in outputs)]
    argv += ["--store", bench.store]
    compared = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert compared.stdout.splitlines()[:2] == [
        f"{letter}  short  {each['run']}" for letter, each in zip("AB", outputs, strict=True)
    ]
