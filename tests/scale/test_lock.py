"""One run at a time, and the removal of what a run left."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfdag.benchmark.registry import get
from perfdag.kube.client import Kube, KubeError
from perfdag.steps.scale.cluster import lease_lock, nodes, rights
from perfdag.steps.scale.cluster import nodes as kubevirt
from perfdag.steps.scale.cluster.removal import (
    belongs,
    ensure_namespace,
    remove_namespaces,
    remove_run,
)
from perfdag.steps.scale.figures import measurements
from perfdag.steps.scale.model.stages import kinds_of
from perfdag.steps.scale.model.templates import RUN_LABEL, built_in, load
from perfdag.steps.scale.scenarios import vmi
from tests.fakes.api_server import ApiServer, Request

NAMED = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}


def held_by(holder: str, renewed: str) -> dict[str, Any]:
    return {
        **NAMED,
        "metadata": {"name": lease_lock.NAME, "namespace": lease_lock.NAMESPACE},
        "spec": {"holderIdentity": holder, "renewTime": renewed},
    }


def holder_of(server: ApiServer) -> str:
    (lease,) = server.of("Lease")
    return str(lease["spec"]["holderIdentity"])


FUTURE, PAST = "2099-01-01T00:00:00.000000Z", "1999-01-01T00:00:00.000000Z"


async def test_a_lease_that_nobody_renews_stops_no_deletion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lease_lock, "LIFE", 0.1)
    server = ApiServer(held_by("r1", FUTURE))
    await lease_lock.require_ended(server.client(), "r1")
    assert holder_of(server) == "r1"


@pytest.mark.parametrize("busy", [True, False])
async def test_a_creation_that_was_tried_again_does_not_take_another_run_s_lease_for_ours(
    busy: bool,
) -> None:
    server = ApiServer({**held_by("the-other-run", FUTURE)})
    server.of("Lease")[0]["metadata"]["managedFields"] = [{"manager": "perfdag"}]
    if busy:
        server.fail("POST", 429, times=1)
    with pytest.raises(
        lease_lock.LockTimeoutError, match="performance run the-other-run still holds"
    ):
        async with lease_lock.ExclusiveRun(server.client(retries=1), "me", 0.0):
            pass
    assert holder_of(server) == "the-other-run"


@pytest.mark.parametrize(
    "renewed", [PAST, FUTURE], ids=["its clock is behind", "its clock is ahead"]
)
async def test_a_holder_is_gone_when_it_does_not_renew_while_we_look_whatever_its_clock_says(
    renewed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(lease_lock, "time", SimpleNamespace(monotonic=lambda: now[0]))
    server = ApiServer(held_by("other", renewed))
    run = lease_lock.ExclusiveRun(server.client(), "me", 1.0)
    assert await run.try_acquire() == "other"
    now[0] += lease_lock.LIFE - 1
    assert await run.try_acquire() == "other"
    server.add(held_by("other", renewed.replace("00Z", "01Z")))
    now[0] += lease_lock.LIFE - 1
    assert await run.try_acquire() == "other", "it was renewed meanwhile"
    now[0] += lease_lock.LIFE + 1
    assert await run.try_acquire() is None
    assert holder_of(server) == "me"


async def test_the_lease_of_a_run_that_was_killed_is_deleted_with_all_else_of_it(
    monkeypatch: pytest.MonkeyPatch, server: ApiServer
) -> None:
    """It is labelled with the id that the run said."""
    message, seen = list[str](), list[Any]()

    async def measure(*request: Any) -> Any:
        seen.append(server.of("Lease")[0])
        return []

    monkeypatch.setattr(vmi, "ladder", measure)
    server.add({"kind": "Namespace", "metadata": {"name": "perfdag-vmi"}})
    await vmi.measure(
        server.client(), vmi.Spec(log=message.append), vmi.VmiRequest(lock_timeout=1.0)
    )
    assert belongs(message[0].split()[1].rstrip(":"), seen[0]["metadata"])


async def test_a_run_that_renews_its_lease_is_not_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_lock, "LIFE", 3)
    server = ApiServer(held_by("r1", PAST))
    check = asyncio.create_task(lease_lock.require_ended(server.client(), "r1"))
    await asyncio.sleep(0.1)
    server.add(held_by("r1", FUTURE))
    with pytest.raises(KubeError, match="run r1 renews its Lease"):
        await check


async def test_who_took_the_cluster_meanwhile_is_told_once_and_kept(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_lock, "LIFE", 0.03)
    messages: list[str] = []
    async with lease_lock.ExclusiveRun(server.client(), "me", 1.0, messages.append) as run:
        while not server.count("PUT"):
            await asyncio.sleep(0.01)
        assert run.lost == ""
        server.add(held_by("other", FUTURE))
        await asyncio.sleep(0.1)
    assert server.of("Lease")[0]["spec"]["renewTime"] == FUTURE, "not kept alive for the other"
    assert (
        run.lost
        == messages[0]
        == "performance run other took the cluster over: the figures of both runs are mixed"
    )
    assert len(messages) == 1
    assert holder_of(server) == "other", "theirs to delete"


async def test_a_lease_that_somebody_deleted_is_made_again(
    monkeypatch: pytest.MonkeyPatch, server: ApiServer
) -> None:
    monkeypatch.setattr(lease_lock, "LIFE", 0.03)
    async with lease_lock.ExclusiveRun(server.client(), "me", 1.0) as run:
        server.remove("Lease")
        for _ in range(100):
            if server.of("Lease"):
                break
            await asyncio.sleep(0.01)
        assert holder_of(server) == "me"
    assert run.lost == ""


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
    kube = ApiServer(node("a"), node("b"), node("c", "False"), *there).client()
    assert (await kubevirt.check_nodes(kube, 300, 200))["nodes"] == 2
    with pytest.raises(
        kubevirt.TooDenseError,
        match="301 VMIs beside 100 existing ones on 2 nodes are more than 200 a node; use 3 nodes",
    ):
        await kubevirt.check_nodes(kube, 301, 200)


NFD, AMD64 = "feature.node.kubernetes.io/cpu-cpuid.", {"kubernetes.io/arch": "amd64"}


@pytest.mark.parametrize(
    ("labels", "virtual"),
    [
        ({f"{NFD}HYPERVISOR": "true", f"{NFD}AVX": "true"} | AMD64, True),
        ({f"{NFD}AVX": "true"} | AMD64, False),
        ({f"{NFD}SVE": "true"}, None),
        ({"cpu-feature.node.kubevirt.io/hypervisor": "true"} | AMD64, None),
    ],
    ids=["NFD has the flag", "NFD has it not", "no flag to have", "of the guest's CPU"],
)
async def test_nested_virtualisation_is_known_from_the_node_s_own_cpu_alone(
    labels: dict[str, str], virtual: bool | None
) -> None:
    facts = await kubevirt.check_nodes(ApiServer(node("a", labels=labels)).client(), 1, 200)
    assert facts["nested_virtualisation"] == (["a"] if virtual else [])
    assert facts["nested_unknown"] == (["a"] if virtual is None else [])
    note = kubevirt.nested_note(facts)
    assert ("" if virtual is False else "unknown" if virtual is None else "not of bare metal") in (
        note or ""
    )
    assert (note is None) == (virtual is False)


@pytest.mark.parametrize(("flags", "virtual"), [("fpu hypervisor", True), ("fpu", False)])
def test_the_node_that_we_run_on_tells_by_its_flags(
    flags: str, virtual: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(f"model name : x\nflags\t\t: {flags}\n")
    monkeypatch.setenv("PERFDAG_NODE", "here")
    assert nodes.is_virtual(node("here"), tmp_path / "cpuinfo") is virtual
    assert nodes.is_virtual(node("there"), tmp_path / "cpuinfo") is None


ACCOUNT = "system:serviceaccount:bench:perfdag-measure-scale"


def granting(
    *allowed: str,
    who: str = ACCOUNT,
    absent: tuple[str, ...] = (),
    also: Sequence[tuple[str, str]] = (),
) -> Kube:
    """A client of an API server that allows some verbs, to a service account."""

    def review(request: Request) -> dict[str, Any]:
        attributes = request.body["spec"]["resourceAttributes"]
        return {
            "status": {
                "allowed": f"{attributes['verb']} {attributes['resource']} {attributes['namespace']}"  # noqa: E501
                in allowed
            }
        }

    server = ApiServer(absent=absent)
    server.serve(*also)
    server.on("selfsubjectaccessreviews", review)
    server.on("selfsubjectreviews", lambda _: {"status": {"userInfo": {"username": who}}})
    return server.client()


RAY = "apiVersion: ray.io/v1\nkind: RayCluster\nmetadata: {name: '${name}'}\n"
RAYS = [f"{verb} rayclusters ns" for verb in ("create", "delete", "list", "watch")]


async def test_rights_that_no_allow_grants_are_named_with_the_account_that_lacks_them() -> None:
    """On Argo `install --allow scale` is no help for a kind that it knows nothing of."""
    rules = get("scale").api
    with pytest.raises(rights.MissingRightsError) as caught:
        await rights.check(granting(), load(RAY, "r"), ["ns"])
    output = str(measurements.sample_error(caught.value, "scale", rules))
    assert output.startswith(
        "you may not create, delete, list, watch rayclusters.ray.io in the namespace ns; "
        "grant it to the service account "
    )
    assert "perfdag-measure-scale of the namespace bench with a Role" in output
    assert "`--allow scale` does not grant it" in output
    assert "install --store" not in output


async def test_rights_that_allow_grants_say_so_also_those_to_watch() -> None:
    watched = [("v1", "Pod"), ("scheduling.run.ai/v1", "PodGroup")]
    absent = ("PodGroup",)
    await rights.check(
        granting(*RAYS, "list pods ns", "watch pods ns", absent=absent),
        load(RAY, "r"),
        ["ns"],
        watched,
    )
    with pytest.raises(
        rights.MissingRightsError,
        match="you may not watch pods in the namespace ns; grant it to the user of context 'fake'",
    ) as caught:
        await rights.check(
            granting(*RAYS, "list pods ns", who="me", absent=absent),
            load(RAY, "r"),
            ["ns"],
            watched,
        )
    output = str(measurements.sample_error(caught.value, "scale", get("scale").api))
    assert "`perfdag install --store ... --allow scale=NAMESPACE`" in output


@pytest.mark.parametrize("name", ["scale", "vmi-burst"])
async def test_what_built_in_templates_need_is_granted(name: str) -> None:
    """What `install --allow` grants is enough for every kind that their chains look at."""
    templates = [item for item in built_in() if item.startswith("vm") == (name == "vmi-burst")]
    for template in templates:
        document = load(template, "r").documents[-1]
        watched = kinds_of(document.api_version, document.kind)
        kinds = [(item.api_version, item.kind) for item in load(template, "r").documents]
        kube = granting(also=[*kinds, *watched])
        with pytest.raises(rights.MissingRightsError) as caught:
            await rights.check(kube, load(template, "r"), ["a", "b"], watched)
        assert [
            str(item) for item in caught.value.missing if not item.granted_by(get(name).api.named)
        ] == [], template


RUN = "r1121120501-a1b2c3"
AUTOMATIC = {"ConfigMap": [{"name": "kube-root-ca.crt"}], "ServiceAccount": [{"name": "default"}]}
OWNED = {"ownerReferences": [{"kind": "Job", "name": "gone", "uid": "u"}]}
BY_NODE = {"ownerReferences": [{"kind": "Node", "name": "n0", "uid": "u"}]}


def namespace(there: dict[str, list[dict[str, Any]]]) -> ApiServer:
    """One namespace `ns` that was made for run r, with what is put into it: metadata by kind."""
    server = ApiServer(
        {"kind": "Namespace", "metadata": {"name": "ns", "labels": {RUN_LABEL: "r"}}}
    )
    for kind, every in (AUTOMATIC | there).items():
        api = "batch/v1" if kind == "Job" else "v1"
        server.add(
            *(
                {"apiVersion": api, "kind": kind, "metadata": {"namespace": "ns", **item}}
                for item in every
            )
        )
    return server


@pytest.mark.parametrize(
    ("there", "refused", "message"),
    [
        ({}, "", ""),
        ({"Job": [{"name": "x", "labels": {RUN_LABEL: "q"}}]}, "", "Job x is in it"),
        ({"Job": [{"name": "x"}]}, "", "Job x is in it"),
        (
            {"ConfigMap": [*AUTOMATIC["ConfigMap"], {"name": "results"}]},
            "",
            "ConfigMap results is in it",
        ),
        ({"Pod": [{"name": "p"} | BY_NODE]}, "", "Pod p is in it"),
        ({"Pod": [{"name": "p"} | OWNED]}, "", ""),
        ({"Pod": [{"name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z"}]}, "", ""),
        ({"ConfigMap": [{"name": "heartbeat", "labels": {RUN_LABEL: "r-sample"}}]}, "", ""),
        ({}, "jobs", "we may not list jobs in it"),
    ],
)
async def test_a_namespace_goes_with_the_run_that_made_it_only_where_nothing_else_is_there(
    there: dict[str, list[dict[str, Any]]], refused: str, message: str
) -> None:
    """Of another kind than the run's, or without a label, as what Run:ai's command line submits."""
    server, output = namespace(there), list[str]()
    if refused:
        server.fail(f"GET .*/{refused}\\b", 403)
    assert await remove_namespaces(server.client(), "r", ["ns"], 5.0, output.append) == 0
    assert bool(server.of("Namespace")) is bool(message)
    assert output == (
        [f"the namespace ns, which was made for this run, stays: {message}"] if message else []
    )


@pytest.mark.parametrize(
    ("label", "ours"),
    [
        (RUN, True),
        (f"{RUN}-primer", True),
        (f"{RUN}-sample", True),
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


@pytest.mark.parametrize("other", [True, False])
async def test_deletion_by_id_keeps_such_a_namespace_too(other: bool) -> None:
    server = namespace({"Job": [{"name": "x"}] if other else []})
    assert await remove_run(server.client(), "r", None, 2, 5.0) == 0
    assert bool(server.of("Namespace")) is other


async def test_of_two_runs_that_take_an_expired_lease_exactly_one_gets_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both have read the same Lease when they write: the server refuses the second."""
    now = [1000.0]
    monkeypatch.setattr(lease_lock, "time", SimpleNamespace(monotonic=lambda: now[0]))
    server, both_read = ApiServer(held_by("dead", PAST)), asyncio.Barrier(2)
    runs = [lease_lock.ExclusiveRun(server.client(), name, 1.0) for name in ("a", "b")]
    assert [await run.try_acquire() for run in runs] == ["dead", "dead"]
    now[0] += lease_lock.LIFE + 1

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
        await ensure_namespace(server.client(), "ns", "r", patience=0.1)
    server.add({"kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "ns"}})
    asyncio.get_running_loop().call_later(0.3, server.remove, "Namespace")
    assert await ensure_namespace(server.client(), "ns", "again", patience=60.0)
    assert server.of("Namespace")[0]["metadata"]["labels"][RUN_LABEL] == "again"
    assert not await ensure_namespace(server.client(), "ns", "r"), "it is there, not ours to delete"
