"""`perfdag submit --resume` before a cluster that is played: which run goes on, and which
cannot.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfdag.commands.cluster import InstalledTemplate, NewRun
from perfdag.commands.status import follow_run
from perfdag.plan.ab import on_cluster, prepare_duet
from perfdag.plan.plan import Plan, make_plan
from perfdag.results.runs import RunStore, sample_key
from perfdag.results.samples import SampleRecord
from perfdag.store.base import StoreError
from perfdag.store.folder import FolderStore
from perfdag.suite.load import parse_suite
from tests.conftest import CommandLine, Printed
from tests.fakes.api_server import ApiServer

SUITE = "name: s\npriority: 7\nentries: [{benchmark: command, params: {argv: ['true']}}]\n"
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

    started: list[NewRun]
    store = ROOT


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    played = Cluster(
        {"kind": "Namespace", "metadata": {"name": "kube-system", "uid": "k8s-1"}},
        namespace="bench",
    )
    played.started = []

    def start(self: InstalledTemplate, run: NewRun) -> str:
        played.started.append(run)
        return "perfdag-s-new"

    monkeypatch.setattr("perfdag.kube.client.Kube", played.client)
    monkeypatch.setattr(
        "perfdag.commands.submit.installed_template",
        lambda namespace: InstalledTemplate(namespace, False, played.store),
    )
    monkeypatch.setattr(InstalledTemplate, "start", start)
    return played


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderStore:
    """The store of the installation, which is reached from here."""
    folder = FolderStore(str(tmp_path / "store"))
    monkeypatch.setattr("perfdag.commands.cluster.open_store", lambda root, patience=0.0: folder)
    return folder


@pytest.fixture
def unreached(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(root: str, patience: float = 0.0) -> None:
        raise StoreError("no route to it")

    monkeypatch.setattr("perfdag.commands.cluster.open_store", away)


def put(
    store: FolderStore, run_id: str, where: dict[str, Any] | None = None, measured: bool = True
) -> Plan:
    plan = make_plan(parse_suite(SUITE), run_id=run_id)
    plan.where = {"namespace": "bench", "cluster": "k8s-1"} if where is None else where
    store.put(f"runs/{run_id}/plan.json", plan.dump())
    if measured:
        store.put(sample_key(run_id, plan.key(0)), SampleRecord(plan.points[0].id, 1, "ok").dump())
    return plan


Resume = Callable[..., Printed]


@pytest.fixture
def resume(cli: CommandLine) -> Resume:
    """Run `perfdag submit --resume` in the namespace bench."""

    def run(name: str, *more: str, code: int = 0) -> Printed:
        return cli(["submit", "--resume", name, "--namespace", "bench", *more], code)

    return run


@pytest.mark.parametrize("name", ["last", "perfdag-s-b", ID, ID[:-2]])
def test_a_run_is_named_by_last_its_workflow_or_its_id(
    name: str, cluster: Cluster, store: FolderStore, resume: Resume
) -> None:
    cluster.add(
        workflow("perfdag-s-b", ID, "3", ROOT),
        workflow("perfdag-s-a", "20260101T010000Z-00000000", "2", ROOT),
    )
    put(store, ID)
    assert resume(name).out.startswith(f"run {ID}, workflow perfdag-s-new ")
    assert cluster.started == [NewRun(ID, "s", 7)]


def test_the_run_before_the_last_is_last_1(
    cluster: Cluster, store: FolderStore, resume: Resume
) -> None:
    cluster.add(
        workflow("perfdag-s-b", ID, "3", ROOT),
        workflow("perfdag-s-c", "20990101T010000Z-00000000", "4", ROOT),
    )
    put(store, ID)
    assert "perfdag-s: 2 runs begin so" in resume("perfdag-s", code=2).err
    resume("last~1")
    assert cluster.started == [NewRun(ID, "s", 7)]


@pytest.mark.parametrize("name", ["last", "perfdag-s-b"])
def test_on_a_claim_its_workflow_tells_the_run(name: str, cluster: Cluster, resume: Resume) -> None:
    cluster.store = "claim://results"
    cluster.add(workflow("perfdag-s-b", ID, "3", "claim://results"))
    resume(name)
    assert cluster.started == [NewRun(ID, "s", 3)]


def test_a_run_of_another_store_is_not_continued(cluster: Cluster, resume: Resume) -> None:
    cluster.add(workflow("perfdag-s-b", ID, "3", "claim://results"))
    assert (
        "is stored in claim://results, and the installation has the store" in resume(ID, code=2).err
    )


def test_where_no_workflow_is_left_the_store_knows_the_last_run(
    cluster: Cluster, store: FolderStore, resume: Resume
) -> None:
    plan = put(store, ID)
    resume("last")
    RunStore(store).put_rechecks(plan, {plan.points[0].id})
    resume("last")  # rechecks are measured with it
    duel = on_cluster(prepare_duet(parse_suite(SUITE), parse_suite(SUITE), ("a", "b"), 8))
    for variant in (duel.a, duel.b):
        store.put(f"runs/{variant.run_id}/plan.json", variant.dump())
    resume(duel.b.run_id)
    assert [run.run_id for run in cluster.started] == [ID, ID, duel.a.run_id]


@pytest.mark.parametrize("store", ["claim://results", ROOT])
@pytest.mark.usefixtures("unreached")
def test_what_is_no_run_id_is_refused_where_neither_workflow_nor_store_knows_it(
    store: str, cluster: Cluster, resume: Resume
) -> None:
    cluster.store = store
    for name in ("last", "perfdag-s-b"):
        refused = resume(name, code=2)
        assert f"namespace bench has no Workflow of run {name}" in refused.err
    resume(ID)
    assert cluster.started == [NewRun(ID, "resumed")]


def test_a_workflow_without_a_plan_has_no_run(cluster: Cluster, resume: Resume) -> None:
    cluster.add(workflow("perfdag-x", "", "3", ROOT))
    assert (
        resume("perfdag-x", code=2).err
        == "perfdag submit: workflow perfdag-x has no plan, so there is nothing to resume\n"
    )
    assert cluster.started == []


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (
            {},
            (
                f"was measured by `perfdag run`, not on a cluster; continue it there: perfdag "
                f"run --resume {ID} --store "
            ),
        ),
        (
            {"cluster": "k8s-2"},
            "was measured on another cluster (uid of its kube-system k8s-2, here k8s-1)",
        ),
    ],
)
def test_samples_of_two_places_are_no_run(
    where: dict[str, Any],
    message: str,
    cluster: Cluster,
    store: FolderStore,
    resume: Resume,
) -> None:
    put(store, ID, where)
    assert message in resume(ID, code=2).err
    assert cluster.started == []
    store.delete(f"runs/{ID}/parts")
    resume(ID)


@pytest.mark.parametrize(
    ("root", "planned", "kept"),
    [
        (
            ROOT,
            True,
            f"{ROOT} keeps 1 of 2 samples of run {ID}; "
            f"go on: perfdag submit --resume {ID} --namespace bench",
        ),
        (ROOT, False, f"{ROOT} keeps nothing of run {ID}"),
        (
            "claim://results",
            False,
            f"claim://results keeps the samples that were stored of run {ID}; "
            f"go on: perfdag submit --resume {ID} --namespace bench",
        ),
    ],
)
async def test_the_watch_of_a_deleted_run_names_what_is_kept_and_how_to_go_on(
    root: str,
    planned: bool,
    kept: str,
    cluster: Cluster,
    store: FolderStore,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("perfdag.commands.status.Kube", cluster.client)
    monkeypatch.setattr("perfdag.commands.status.POLL_INTERVAL", 0.01)
    cluster.add(workflow("perfdag-s-b", ID, "3", root))
    if planned:
        plan = make_plan(parse_suite(f"{SUITE}repetitions: 2\n"), run_id=ID)
        plan.where = {"namespace": "bench", "cluster": "k8s-1"}
        store.put(f"runs/{ID}/plan.json", plan.dump())
        sample = SampleRecord(plan.points[0].id, 1, "ok")
        store.put(sample_key(ID, plan.key(0)), sample.dump())

    def delete_later(line: str) -> None:
        cluster.remove("Workflow")

    monkeypatch.setattr("perfdag.commands.status.print_now", delete_later)
    assert await follow_run("perfdag-s-b", "bench") == 1
    assert capsys.readouterr().err == f"workflow perfdag-s-b was deleted; {kept}\n"


@pytest.mark.parametrize("more", [[], ["--watch"]])
def test_the_status_of_a_deleted_run_names_them_too(
    more: list[str],
    cluster: Cluster,
    store: FolderStore,
    monkeypatch: pytest.MonkeyPatch,
    cli: CommandLine,
) -> None:
    installed = InstalledTemplate("bench", False, ROOT)
    monkeypatch.setattr("perfdag.commands.status.installed_template", lambda name: installed)
    put(store, ID)
    command = f"perfdag submit --resume {ID} --namespace bench"
    assert cli(["status", ID, "--namespace", "bench", *more], 2).err == (
        f"perfdag status: no run {ID} in namespace bench; there are: none; "
        f"{ROOT} keeps 1 of 1 sample of run {ID}; go on: {command}\n"
    )
    assert "keeps" not in cli(["status", "perfdag-s-x", "--namespace", "bench", *more], 2).err
