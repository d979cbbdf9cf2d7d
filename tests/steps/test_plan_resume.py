"""The plan step of a run that goes on, or that its cluster refuses: on a store in a folder and
an API server that is played.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from perfdag.benchmark.contract import Infrastructure
from perfdag.commands.main import parser
from perfdag.kube.client import KubeError
from perfdag.plan import Plan, make_plan, prepare_duet
from perfdag.results.collect import gather
from perfdag.results.run_store import resume_command, resume_obstacle, stored_plan
from perfdag.results.samples import (
    MissingReason,
    SampleRecord,
    budget_spent,
    now,
    sample_key,
    write_reason,
)
from perfdag.steps.pods.context import PodContext
from perfdag.steps.pods.plan import step
from perfdag.store.base import FolderStore
from perfdag.suite.document import BadDocument
from perfdag.suite.load import parse_suite
from tests.conftest import CommandLine
from tests.fakes.api_server import ApiServer

from .test_plan_step import place

SUITE = "name: s\nrepetitions: 4\nentries: [{benchmark: command, params: {argv: ['true']}}]\n"


def cluster(name: str | None, nodes: dict[str, str]) -> ApiServer:
    """An API server with nodes of these names and kinds, which tells of nothing else but its
    name.
    """
    server = ApiServer()
    for node, kind in nodes.items():
        metadata = {"name": node, "labels": {"node.kubernetes.io/instance-type": kind}}
        server.add(
            {
                "kind": "Node",
                "metadata": metadata,
                "spec": {},
                "status": {"nodeInfo": {"kubeletVersion": "v1"}},
            }
        )
    server.fail("GET .*(csidrivers|daemonsets|kube-system)", 403)
    server.on("GET .*/nodes", lambda _: {"metadata": {}, "items": server.of("Node")})
    if name:
        server.on("GET .*/kube-system$", lambda _: {"metadata": {"uid": name}})
    return server


Run = Callable[[ApiServer, str], Plan]


@pytest.fixture
def run(store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The step of the Workflow with that uid on a cluster."""

    def of(server: ApiServer, uid: str) -> Plan:
        monkeypatch.setattr("perfdag.kube.patch.STORE", store.root)
        monkeypatch.setattr("perfdag.kube.client.Kube", server.client)
        return step(workflow(uid), tmp_path / "out", {})

    return of


def workflow(uid: str) -> PodContext:
    return replace(place(), store="claim://results", workflow=f"wf-{uid}", workflow_uid=uid)


def put(store: FolderStore, where: dict[str, Any]) -> Plan:
    plan = make_plan(parse_suite(SUITE), run_id=place().run_id)
    plan.where = where
    store.put(f"runs/{plan.run_id}/plan.json", plan.dump())
    return plan


def store_sample(store: FolderStore, plan: Plan, position: int, node: str, **where: str) -> None:
    part = SampleRecord(
        plan.points[0].id,
        position + 1,
        "ok",
        started_at=now(),
        finished_at=now(),
        nodes=[node],
        where=dict(where),
    )
    store.put(sample_key(plan.run_id, plan.key(position)), part.dump())


@pytest.mark.parametrize(
    ("there", "here", "message"),
    [
        (
            {},
            "k8s-1",
            (
                "by `perfdag run`.*there, with the folder that holds its samples: perfdag run "
                "--resume 2026.* --store FOLDER$"
            ),
        ),
        (
            {"cluster": "k8s-1", "workflow_uid": "a"},
            "k8s-2",
            "measured on another cluster .*k8s-1, here k8s-2",
        ),
    ],
)
def test_a_run_with_samples_of_another_place_is_refused_and_left_as_it_is(
    store: FolderStore, run: Run, there: dict[str, Any], here: str, message: str
) -> None:
    plan = put(store, there)
    write_reason(store, plan.run_id, budget_spent(9))
    assert run(cluster(here, {}), "b").where["cluster"] == here, "nothing was measured yet"

    plan = put(store, there)
    write_reason(store, plan.run_id, budget_spent(9))
    store_sample(store, plan, 0, "n1")
    before = {key: store.get(key) for key in store.list("runs")}
    with pytest.raises(BadDocument, match=message):
        run(cluster(here, {}), "b")
    assert {key: store.get(key) for key in store.list("runs")} == before


@pytest.mark.parametrize(("there", "here"), [("k8s-1", "k8s-1"), ("k8s-1", None), (None, "k8s-1")])
def test_a_run_goes_on_where_it_was_and_each_sample_keeps_the_facts_of_its_workflow(
    store: FolderStore, run: Run, there: str | None, here: str | None
) -> None:
    put(store, {"namespace": "bench"})
    plan = run(cluster(there, {"n1": "small", "n2": "small"}), "a")
    store_sample(store, plan, 0, "n1", workflow_uid="a")
    write_reason(store, plan.run_id, MissingReason("batch", "failed", "it was lost"))
    plan = run(cluster(here, {"n1": "large", "n3": "large"}), "b")
    assert plan.where["cluster"] == "k8s-1", (
        "a look at kube-system that is forbidden does not make the cluster unknown"
    )
    assert store.list(f"runs/{plan.run_id}/notes") == []
    store_sample(store, plan, 1, "n1", workflow_uid="b")
    rows = gather(store, stored_plan(store, plan.run_id))[0].to_pylist()
    kinds = [
        [kind["type"] for kind in json.loads(row["env"])["cluster"]["nodes"]] for row in rows[:2]
    ]
    assert kinds == [["small"], ["large"]]
    assert [row["workflow_uid"] for row in rows] == ["a", "b", "b", "b"]
    assert {row["cluster"] for row in rows} == {"k8s-1"}
    with pytest.raises(BadDocument, match=r"measured on another cluster .*k8s-1, here k8s-2"):
        run(cluster("k8s-2", {}), "c")


@pytest.mark.parametrize(
    ("where", "options", "root", "command"),
    [
        ({}, None, "results", "perfdag run --resume {} --store results"),
        ({}, None, "claim://results", "perfdag run --resume {} --store FOLDER"),
        ({}, {}, "s3://b/r", "perfdag ab --resume {} --store s3://b/r"),
        (
            {"namespace": "bench"},
            None,
            "s3://b/r",
            "perfdag submit --resume {} --namespace bench",
        ),
        ({"namespace": "bench"}, None, "copied", "perfdag submit --resume {} --namespace bench"),
        (
            {"namespace": "bench"},
            {"cluster": True},
            "s3://b/r",
            "perfdag ab --resume {} --submit --namespace bench",
        ),
    ],
)
def test_the_command_that_goes_on_with_a_run_is_of_the_verb_that_began_it(
    where: dict[str, str], options: dict[str, Any] | None, root: str, command: str
) -> None:
    loaded = parse_suite(SUITE)
    if options is None:
        plan = make_plan(loaded)
        first = plan.run_id
    else:
        duel = prepare_duet(loaded, loaded, ("one", "two"), 8)
        plan, first = duel.b, duel.a.run_id
        plan.options = replace(plan.options, **options)
    plan.where = dict(where)
    line = resume_command(plan, root)
    assert line == command.format(first)
    words = line.split()[1:]
    assert parser(words[0]).parse_args(words).resume == first
    why = resume_obstacle(plan, "k8s-1", root)
    assert why is None if where else f"`perfdag {words[0]}`" in str(why) and str(why).endswith(line)


QUOTA = 'secrets "perfdag-ssh-a" is forbidden: exceeded quota: tight, requested: count/secrets=1'


def test_what_the_cluster_refuses_of_the_whole_run_is_the_reason_in_its_rows(
    store: FolderStore, run: Run
) -> None:
    plan = put(store, {"namespace": "bench"})
    full = cluster("k8s-1", {})
    full.fail("POST", 403, QUOTA)
    with pytest.raises(KubeError):
        run(full, "a")
    rows = gather(store, stored_plan(store, plan.run_id))[0].to_pylist()
    assert {row["status"] for row in rows} == {"failed"}
    assert all(QUOTA in row["error"] for row in rows)


def test_want_of_a_key_pair_is_said_and_no_traceback(
    store: FolderStore,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    cli: CommandLine,
    tmp_path: Path,
) -> None:
    plan = put(store, {})
    absent = Mock(side_effect=Infrastructure("ssh-keygen is not installed"))
    monkeypatch.setattr("perfdag.steps.pods.plan.make_keys", absent)
    with pytest.raises(Infrastructure):
        run(cluster("k8s-1", {}), "a")
    assert gather(store, plan)[0]["error"].to_pylist() == ["ssh-keygen is not installed"] * 4
    monkeypatch.setenv("PERFDAG_STORE", "claim://results")
    monkeypatch.setenv("PERFDAG_RUN", plan.run_id)
    assert (
        "perfdag step: ssh-keygen is not installed"
        in cli(["step", "plan", "--out", str(tmp_path / "out")], 1).err
    )
