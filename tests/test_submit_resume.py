"""`perfdag submit --resume` before a cluster that is played: which run goes on, and which
cannot.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from perfdag.runs.cluster import follow_run
from tests.conftest import CommandLine, Printed
from tests.fakes.api_server import ApiServer

ID = "20260101T020000Z-0a1b2c3d"
ROOT = "s3://bench/results"


def workflow(name: str, run_id: str, at: str, store: str) -> dict[str, Any]:
    labels = {"perfdag/suite": "s", **({"perfdag/run": run_id} if run_id else {})}
    env = [{"name": "PERFDAG_STORE", "value": store}]
    patch = json.dumps({"containers": [{"name": "main", "env": env}]})
    metadata = {"name": name, "labels": labels, "creationTimestamp": f"2026-01-01T0{at}:00:00Z"}
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": metadata,
        "spec": {"priority": 3},
        "status": {"storedWorkflowTemplateSpec": {"podSpecPatch": patch}},
    }


class Cluster(ApiServer):
    """An API server, and the runs that were started."""

    started: list[tuple[Any, ...]]
    store = ROOT


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    played = Cluster(
        {"kind": "Namespace", "metadata": {"name": "kube-system", "uid": "k8s-1"}},
        namespace="bench",
    )
    played.started = []

    def start(namespace: str, *run: Any) -> str:
        played.started.append(run)
        return "perfdag-s-new"

    monkeypatch.setattr("perfdag.kube.client.Kube", played.client)
    monkeypatch.setattr("perfdag.commands.cluster.installed_store", lambda _: played.store)
    monkeypatch.setattr("perfdag.commands.cluster.start_run", start)
    return played


Resume = Callable[..., Printed]


@pytest.fixture
def resume(cli: CommandLine) -> Resume:
    """Run `perfdag submit --resume` in the namespace bench."""

    def run(name: str, *more: str, code: int = 0) -> Printed:
        return cli(["submit", "--resume", name, "--namespace", "bench", *more], code)

    return run


@pytest.mark.parametrize("name", ["last", "perfdag-s-b", ID, ID[:-2]])
def test_a_run_is_named_by_last_its_workflow_or_its_id(
    name: str, cluster: Cluster, resume: Resume
) -> None:
    cluster.add(
        workflow("perfdag-s-b", ID, "3", ROOT),
        workflow("perfdag-s-a", "20260101T010000Z-00000000", "2", ROOT),
    )
    assert resume(name).out.startswith(f"run {ID}, workflow perfdag-s-new ")
    assert cluster.started == [(ID, "s", 3)]


def test_the_run_before_the_last_is_last_1(cluster: Cluster, resume: Resume) -> None:
    cluster.add(
        workflow("perfdag-s-b", ID, "3", ROOT),
        workflow("perfdag-s-c", "20990101T010000Z-00000000", "4", ROOT),
    )
    resume("last~1")
    assert cluster.started == [(ID, "s", 3)]


def test_where_no_workflow_is_left_a_run_is_named_by_its_id(
    cluster: Cluster, resume: Resume
) -> None:
    resume(ID)
    assert cluster.started == [(ID, "resumed", 0)]


@pytest.mark.parametrize(
    ("workflows", "name", "message"),
    [
        (
            [("perfdag-s-b", ID, ROOT), ("perfdag-s-c", "20990101T010000Z-00000000", ROOT)],
            "perfdag-s",
            "perfdag-s: 2 runs begin so",
        ),
        (
            [("perfdag-s-b", ID, "claim://results")],
            ID,
            "is stored in claim://results, and the installation has the store",
        ),
        ([], "last", "no run last in namespace bench"),
        ([], "perfdag-s-b", "no run perfdag-s-b in namespace bench"),
        (
            [("perfdag-x", "", ROOT)],
            "perfdag-x",
            "workflow perfdag-x has no plan, so there is nothing to resume\n",
        ),
    ],
)
def test_a_run_that_cannot_go_on_is_refused(
    workflows: list[tuple[str, str, str]],
    name: str,
    message: str,
    cluster: Cluster,
    resume: Resume,
) -> None:
    cluster.add(*(workflow(own, run_id, "3", store) for own, run_id, store in workflows))
    assert message in resume(name, code=2).err
    assert cluster.started == []


async def test_the_watch_of_a_deleted_run_says_where_its_samples_are_and_how_to_go_on(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("perfdag.runs.cluster.Kube", cluster.client)
    monkeypatch.setattr("perfdag.runs.cluster.POLL_INTERVAL", 0.01)
    cluster.add(workflow("perfdag-s-b", ID, "3", ROOT))
    monkeypatch.setattr("perfdag.runs.cluster.print_now", lambda line: cluster.remove("Workflow"))
    assert await follow_run("perfdag-s-b", "bench") == 1
    go_on = f"perfdag submit --resume {ID} --namespace bench"
    assert capsys.readouterr().err == (
        f"workflow perfdag-s-b was deleted; what it measured is in {ROOT}; go on: {go_on}\n"
    )


@pytest.mark.parametrize("more", [[], ["--watch"]])
def test_the_status_of_a_deleted_run_says_it_too(
    more: list[str], cluster: Cluster, cli: CommandLine
) -> None:
    go_on = f"perfdag submit --resume {ID} --namespace bench"
    assert go_on in cli(["status", ID, "--namespace", "bench", *more], 2).err
    assert "go on" not in cli(["status", "perfdag-s-x", "--namespace", "bench", *more], 2).err
