"""One run at a time, rights, nodes, and the removal of what a run left."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from perfdag.benchmark.registry import get
from perfdag.kube.client import KubeError
from perfdag.steps.scale import cluster
from perfdag.steps.scale.cluster import belongs, ensure_namespace, remove_run
from perfdag.steps.scale.objects import RUN_LABEL, built_in, kinds_of, load
from perfdag.steps.scale.scenario import sample_error
from tests.fakes.api_server import ApiServer, Request

NAMED = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}


def held_by(holder: str, renewed: str) -> dict[str, Any]:
    return {
        **NAMED,
        "metadata": {"name": cluster.LEASE, "namespace": cluster.LEASE_NAMESPACE},
        "spec": {"holderIdentity": holder, "renewTime": renewed},
    }


def holder_of(server: ApiServer) -> str:
    (lease,) = server.of("Lease")
    return str(lease["spec"]["holderIdentity"])


FUTURE, PAST = "2099-01-01T00:00:00.000000Z", "1999-01-01T00:00:00.000000Z"


@pytest.mark.parametrize(
    "renewed", [PAST, FUTURE], ids=["its clock is behind", "its clock is ahead"]
)
async def test_a_holder_is_gone_when_it_does_not_renew_while_we_look_whatever_its_clock_says(
    renewed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(cluster, "time", SimpleNamespace(monotonic=lambda: now[0]))
    server = ApiServer(held_by("other", renewed))
    run = cluster.ExclusiveRun(server.client(), "me", 1.0)
    assert await run.try_acquire() == "other"
    now[0] += cluster.LEASE_DURATION_S - 1
    assert await run.try_acquire() == "other"
    server.add(held_by("other", renewed.replace("00Z", "01Z")))
    now[0] += cluster.LEASE_DURATION_S - 1
    assert await run.try_acquire() == "other", "it was renewed meanwhile"
    now[0] += cluster.LEASE_DURATION_S + 1
    assert await run.try_acquire() is None
    assert holder_of(server) == "me"


async def test_who_took_the_cluster_meanwhile_is_told_once_and_kept(
    caplog: pytest.LogCaptureFixture, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "LEASE_DURATION_S", 0.03)
    async with cluster.ExclusiveRun(server.client(), "me", 1.0) as run:
        while not server.count("PUT"):
            await asyncio.sleep(0.01)
        assert run.lost == ""
        server.add(held_by("other", FUTURE))
        await asyncio.sleep(0.1)
    assert server.of("Lease")[0]["spec"]["renewTime"] == FUTURE, "not kept alive for the other"
    assert (
        run.lost
        == caplog.messages[0]
        == "performance run other took the cluster over: the figures of both runs are mixed"
    )
    assert len(caplog.messages) == 1
    assert holder_of(server) == "other", "theirs to delete"


def node(
    name: str, ready: str = "True", gpus: int = 0, labels: dict[str, str] | None = None
) -> dict[str, Any]:
    status = {
        "conditions": [{"type": "Ready", "status": ready}],
        "allocatable": {"nvidia.com/gpu": str(gpus)},
    }
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {},
        "status": status,
    }


async def test_vmis_already_there_count_and_nodes_that_are_not_ready_do_not() -> None:
    phases = ["Running"] * 60 + ["Scheduling"] * 40 + ["Succeeded", "Failed"] * 30
    there = [
        {
            "apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachineInstance",
            "metadata": {"name": f"v{number}"},
            "status": {"phase": phase},
        }
        for number, phase in enumerate(phases)
    ]
    virtual = {"feature.node.kubernetes.io/cpu-cpuid.HYPERVISOR": "true"}
    nodes = node("a"), node("b", labels=virtual), node("c", "False")
    kube = ApiServer(*nodes, *there).client()
    facts = await cluster.check_nodes(kube, 300, 200)
    assert (facts["nodes"], facts["nested_virtualisation"]) == (2, ["b"])
    with pytest.raises(
        ValueError,
        match="301 VMIs beside 100 existing ones on 2 nodes are more than 200 a node; use 3 nodes",
    ):
        await cluster.check_nodes(kube, 301, 200)


@pytest.mark.parametrize("name", ["scale", "vmi-burst"])
async def test_what_built_in_templates_need_is_granted(name: str) -> None:
    """`install --allow` grants enough for every kind that their chains look at."""
    rules = get(name).api.named
    for source in [item for item in built_in() if item.startswith("vm") == (name == "vmi-burst")]:
        last, server = load(source, "r").documents[-1], ApiServer()
        watched = kinds_of(last.api_version, last.kind)
        server.serve(*watched)
        for number, kind in enumerate(watched):
            path = await server.client().path("/".join(kind))
            wanted = {"list", "watch", *(() if number else ("create", "delete"))}
            granted = {
                verb
                for rule in rules
                if kind[0].rpartition("/")[0] in rule["apiGroups"]
                and {path.rpartition("/")[2], "*"} & {*rule["resources"]}
                for verb in rule["verbs"]
            }
            assert wanted <= granted, (source, kind)


def test_a_missing_right_skips_the_sample_and_names_what_grants_it() -> None:
    text = str(sample_error(KubeError(403, "Forbidden", "pods is forbidden"), "scale"))
    assert "pods is forbidden" in text
    assert "--allow scale=NAMESPACE" in text


RUN = "r1121120501-a1b2c3"


@pytest.mark.parametrize(
    ("label", "ours"),
    [
        (RUN, True),
        (f"{RUN}-primer", True),
        (f"{RUN}-2", True),
        (f"{RUN}-2-primer", True),
        (f"{RUN}-other", False),
        (f"{RUN}9", False),
    ],
)
def test_parts_of_a_run_belong_to_it_and_other_runs_do_not(label: str, ours: bool) -> None:
    assert belongs(RUN, {"labels": {RUN_LABEL: label}}) is ours
    assert not belongs(RUN.partition("-")[0], {"labels": {RUN_LABEL: RUN}}), (
        "half an id is no run's"
    )
    assert not belongs(RUN, {})


async def test_deletion_by_id_deletes_objects_of_any_kind_of_the_run_alone() -> None:
    labels = {RUN_LABEL: "r"}
    server = ApiServer(
        {"kind": "Namespace", "metadata": {"name": "ns", "labels": labels}},
        *(
            {"apiVersion": api, "kind": kind, "metadata": {"namespace": "ns", "name": n, **more}}
            for api, kind, n, more in (
                ("batch/v1", "Job", "x", {}),
                ("batch/v1", "Job", "ours", {"labels": labels}),
                ("v1", "ConfigMap", "ours", {"labels": {RUN_LABEL: "r-primer"}}),
            )
        ),
    )
    assert await remove_run(server.client(), "r", None, 5.0) == 0
    assert (server.names("Job"), server.names("ConfigMap")) == (["x"], [])
    assert server.names("Namespace") == ["ns"], "it may hold what is not ours"


async def test_of_two_runs_that_take_an_expired_lease_exactly_one_gets_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both have read the same Lease when they write: the server refuses the second."""
    now = [1000.0]
    monkeypatch.setattr(cluster, "time", SimpleNamespace(monotonic=lambda: now[0]))
    server, both_read = ApiServer(held_by("dead", PAST)), asyncio.Barrier(2)
    runs = [cluster.ExclusiveRun(server.client(), name, 1.0) for name in ("a", "b")]
    assert [await run.try_acquire() for run in runs] == ["dead", "dead"]
    now[0] += cluster.LEASE_DURATION_S + 1

    async def after_both(_: Request) -> None:
        await both_read.wait()

    server.on("PUT .*/leases/", after_both)
    answers = await asyncio.gather(*(run.try_acquire() for run in runs))
    assert answers.count(None) == 1
    assert holder_of(server) == "ab"[answers.index(None)]


async def test_a_namespace_that_is_being_deleted_is_waited_for(server: ApiServer) -> None:
    held = {"name": "ns", "finalizers": ["hold"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    server.add({"kind": "Namespace", "metadata": held, "status": {}})
    text = "namespace ns is still being deleted after 0.1 s.*use another namespace"
    with pytest.raises(KubeError, match=text):
        await ensure_namespace(server.client(), "ns", "r", timeout=0.1)
    server.add({"kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "ns"}})
    asyncio.get_running_loop().call_later(0.3, server.remove, "Namespace")
    assert await ensure_namespace(server.client(), "ns", "again", timeout=60.0)
    assert server.of("Namespace")[0]["metadata"]["labels"][RUN_LABEL] == "again"
    assert not await ensure_namespace(server.client(), "ns", "r"), "it is there, not ours to delete"


async def test_simulated_nodes_have_gpus_and_a_real_one_of_their_name_is_left_alone(
    server: ApiServer,
) -> None:
    labels = {cluster.SIMULATED_LABEL: "true"}
    server.add(node("perfdag-sim-0", gpus=2, labels=labels))
    kube, gpu = server.client(), "nvidia.com/gpu"
    assert [await cluster.make_nodes(kube, count, 8) for count in (2, 3, 3)] == [1, 1, 0]
    real, made, _ = server.of("Node")
    assert made["status"]["allocatable"][gpu] == made["status"]["capacity"][gpu] == "8"
    assert made["metadata"]["labels"]["nvidia.com/gpu.present"] == "true"
    assert await cluster.ready_nodes(kube, 2, 0.1) == 1, "KWOK does not run"
    assert await cluster.remove_nodes(kube) == 2
    assert server.of("Node") == [real]
    assert real["status"]["allocatable"] == {gpu: "2"}


async def test_where_nodes_may_not_be_listed_it_is_not_known_which_are_simulated(
    server: ApiServer,
) -> None:
    server.fail("/nodes", 403)
    assert await cluster.simulated_nodes(server.client()) is None
