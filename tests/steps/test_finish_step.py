"""The last step of a run on a cluster, on a store in a folder and without an API server."""

import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from perfdag.commands.main import main
from perfdag.results.run_store import stored_plan
from perfdag.results.samples import as_annotation
from perfdag.results.schema import load_rows
from perfdag.results.summary import BenchmarkVerdict
from perfdag.steps.pods.watchdog import owner
from perfdag.store.base import Store
from perfdag.store.s3 import open_store
from tests.conftest import CommandLine

SUITE = "name: tiny\nentries:\n  - {benchmark: command, name: list, params: {argv: [ls, /]}}\n"


@pytest.fixture(scope="module")
def stored_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with three runs."""
    folder = tmp_path_factory.mktemp("measured")
    (folder / "tiny.yaml").write_text(SUITE)
    command = ["run", str(folder / "tiny.yaml"), "--store", str(folder / "store"), "--no-report"]
    assert [main(command) for _ in range(3)] == [0, 0, 0]
    return folder / "store"


@pytest.fixture
def store(stored_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The store as a pod of the newest run finds it behind its claim."""
    root = str(shutil.copytree(stored_runs, tmp_path / "store"))
    monkeypatch.setattr("perfdag.kube.patch.STORE", root)
    monkeypatch.setenv("PERFDAG_STORE", "claim://bench")
    monkeypatch.setenv("PERFDAG_RUN", newest(open_store(root)))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none.yaml"))
    return open_store(root)


def newest(store: Store) -> str:
    return max(key.split("/")[1] for key in store.list("runs"))


def scheduled(store: Store) -> None:
    plan = stored_plan(store, newest(store))
    plan.trigger = "cron"
    store.put(f"runs/{plan.run_id}/plan.json", plan.dump())


def test_it_leaves_the_report_and_the_site(store: Store) -> None:
    assert main(["step", "finish"]) == 0
    left = {key.rpartition("/")[2] for key in store.list(f"runs/{newest(store)}")}
    assert "report.html" in left
    assert "check.xml" not in left  # nobody asked for a gate
    assert {"site/index.html", "site/data/tiny/suite.js"} <= set(store.list("site"))
    scheduled(store)
    assert main(["step", "finish"]) == 0
    assert f"runs/{newest(store)}/check.xml" in store.list(f"runs/{newest(store)}")


def test_a_site_that_cannot_be_written_leaves_the_exit_code(
    store: Store, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    full = Mock(side_effect=OSError("no space"))
    monkeypatch.setattr("perfdag.charts.pages.site.write_site", full)
    assert "the site is not up to date" in cli(["step", "finish"]).err


def test_a_run_without_a_plan_is_no_mistake_of_its_suite(
    store: Store, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    """Its plan step never started: an image that no registry has, a store out of reach.

    A suite that it refused has its own exit code.
    """
    monkeypatch.setenv("PERFDAG_RUN", "20260101T000000Z-00000000")
    assert "it has no plan" in cli(["step", "finish", "--phase", "Failed"], 4).err


def test_the_rows_of_a_run_that_was_ended_say_so(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "perfdag.steps.pods.watchdog.run_with_client",
        lambda work: {"metadata": {}, "spec": {"shutdown": "Stop"}},
    )
    monkeypatch.setenv("PERFDAG_WORKFLOW", "wf-1")
    run_id = newest(store)
    for prefix in (f"runs/{run_id}/parts", "results"):  # it ended before it was collected
        store.delete(prefix)
    assert main(["step", "finish", "--phase", "Failed"]) == 1
    assert load_rows(store, suites=["tiny"], runs=[run_id])["error"].to_pylist() == [
        "workflow wf-1 was ended by `argo stop`"
    ]


def test_a_run_whose_pods_never_started_says_why_in_its_message(
    store: Store, monkeypatch: pytest.MonkeyPatch, termination_message: Path
) -> None:
    workflow: dict[str, Any] = {"metadata": {"uid": "u"}, "spec": {}}
    why = "ImagePullBackOff on node-3: image none:1 of main: not found"
    text = f"pod of rank 0 never started: {why}"
    workflow["metadata"]["annotations"] = as_annotation(owner(workflow), {0: text})
    monkeypatch.setattr("perfdag.steps.pods.watchdog.run_with_client", lambda work: workflow)
    store.delete(f"runs/{newest(store)}/parts")
    for _ in ("at first", "after `argo retry`"):
        assert main(["step", "finish", "--phase", "Failed"]) == 4
        assert termination_message.read_text() == why


def test_a_failed_verdict_of_a_benchmark_is_left_to_the_gate_of_the_run(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "perfdag.results.summary.benchmark_verdicts",
        lambda table, labels: [
            BenchmarkVerdict("burst", "p", "burst", "p99 < 1", "failed", "1.4 of 1", "burst")
        ],
    )
    assert main(["step", "finish"]) == 3
    scheduled(store)
    ack = b"acks: [{series: '*p99 < 1', run: 20260101T000000Z, reason: known}]"
    store.put("acks.yaml", ack)
    assert main(["step", "finish"]) == 0  # which knows the acknowledgement


def test_a_typo_in_the_acknowledgements_costs_neither_report_nor_gate(
    store: Store, capsys: pytest.CaptureFixture[str], cli: CommandLine
) -> None:
    store.put("acks.yaml", b"acks:\n  - {series: x, run: yesterday, reason: y}\n")
    scheduled(store)
    assert main(["step", "finish"]) == 0
    assert {"report.html", "check.xml"} <= {
        key.rpartition("/")[2] for key in store.list(f"runs/{newest(store)}")
    }
    out = capsys.readouterr().out
    assert f"ACKS tiny: {store.url('acks.yaml')} is unreadable and accepts nothing" in out
    assert "acks.yaml:2: acks[0].run" in out
    assert "(reported before)" in cli(["step", "finish"]).out
