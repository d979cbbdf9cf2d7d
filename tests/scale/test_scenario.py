"""Sessions and scenarios: what they wait for, what they make of it, and what they leave behind."""

import re
import time
from typing import Any
from unittest.mock import AsyncMock

import pytest

from perfdag.benchmark.contract import Invalid
from perfdag.kube.client import KubeError
from perfdag.steps.scale import figures, scenario, vmi, watch, workloads
from perfdag.steps.scale.figures import Result
from perfdag.steps.scale.generate import Batch, Schedule, Submission
from perfdag.steps.scale.objects import VMI, Record, load, now_ns
from perfdag.steps.scale.scenario import Context, Session
from tests.fakes.api_server import Answer, ApiServer, Request, client, failure

from .builders import SECOND, logged, observer_of, record, session_of, submissions_of
from .test_cluster import FUTURE, held_by, node

SHARED = """apiVersion: v1
kind: ConfigMap
metadata: {name: "size-${run}"}
---
apiVersion: v1
kind: Pod
metadata: {name: "${name}"}
"""


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "server_offset", AsyncMock(return_value=0.0))
    monkeypatch.setattr(scenario, "CLEANUP_TIMEOUT_S", 0.5)
    monkeypatch.setattr(scenario, "IN_FLIGHT_S", 0.0)


@pytest.fixture
def cluster(server: ApiServer) -> ApiServer:
    server.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ns"}})
    return server


async def test_a_shared_object_is_made_once_for_a_run_and_deleted_with_it(
    caplog: pytest.LogCaptureFixture, soon: None, cluster: ApiServer
) -> None:
    context, template = Context(run="r7"), load(SHARED, "r7")
    async with (
        client(cluster) as kube,
        scenario.open_session(kube, context, template, ["ns"], 1) as session,
    ):
        await session.create(3, Schedule(), 2)
        assert [name for name in cluster.names("ConfigMap") if "size" in name] == ["size-r7"]
        assert sorted(cluster.names("Pod")) == ["r7-0", "r7-1", "r7-2"]
        assert await session.delete(session.submissions, 2, 5.0)
    assert [*cluster.names("ConfigMap"), *cluster.names("Pod"), *logged(caplog)] == []


@pytest.mark.parametrize("refused", [None, ("DELETE .*/pods", 403), ("(GET|DELETE) .*/pods", 503)])
async def test_an_error_within_a_session_leaves_nothing_or_says_so(
    caplog: pytest.LogCaptureFixture,
    refused: tuple[str, int] | None,
    soon: None,
    cluster: ApiServer,
) -> None:
    context, template = Context(run="r7"), load("pod", "r7", {"gpus": 0})

    async def work() -> None:
        async with (
            client(cluster) as kube,
            scenario.open_session(kube, context, template, ["ns"], 1) as session,
        ):
            await session.create(2, Schedule(), 1)
            if refused:
                cluster.fail(*refused, "pods is forbidden")
            raise LookupError

    with pytest.raises(LookupError):
        await work()
    why = "pods is forbidden); `perfdag scale delete --run r7` deletes them"
    assert [why in text for text in logged(caplog)] == [True] * bool(refused)
    assert bool(cluster.of("Pod")) == bool(refused)


async def test_what_is_churned_away_or_ran_is_waited_for_no_more() -> None:
    """Of 4 VMIs one never ran and was deleted in a cycle: the next wait is for the other 3."""
    vmis = [record(VMI, f"v{i}", created=1, **({"running": 2.0} if i else {})) for i in range(4)]
    items = submissions_of(*(item.uid for item in vmis))
    session = session_of(None, observer_of(*vmis), load("vmi", "r"), submissions=items)
    assert not await session.all_reached(0.05, "running")
    session.deleted.add("v0")
    assert await session.all_reached(0.05, "running")
    vmis[1].put("gone")
    assert await session.all_reached(0.05, "running"), "one that ran, ran"


def jobs_session(count: int, *stages: str) -> Session:
    """A session of that many Jobs of one pod, which (and whose pods) reached the stages a second
    apart.
    """
    start, observer, items = now_ns() - 60 * SECOND, observer_of(), []
    for i in range(count):
        own = (
            Record("Job", f"j{i}", f"r-{i}", "ns", ""),
            Record("Pod", f"p{i}", f"r-{i}-x", "ns", f"j{i}"),
        )
        for item in own:
            for second, stage in enumerate(("created", *stages), 1):
                item.put(stage, received_ns=start + second * SECOND + i * 10**6)
            item.put("gone", received_ns=start + 50 * SECOND)
            observer.records[item.uid] = item
        observer.roots.add(f"j{i}")
        items.append(Submission(i, f"r-{i}", "ns", start, start, start + 1, f"j{i}"))
    observer.kube = ApiServer().client()
    session = session_of(observer.kube, observer, load("job", "r"), submissions=items)
    session.batches = [Batch(Schedule(), items)]
    return session


@pytest.mark.parametrize(
    ("goal", "stages", "ratio", "censored"),
    [
        ("succeeded", ("scheduled", "ready"), 0.0, 0.0),
        ("succeeded", ("scheduled", "succeeded"), 1.0, 0.0),
        ("succeeded", ("scheduled", "ready", "succeeded"), 1.0, 0.0),
        ("ready", ("scheduled", "ready"), 1.0, 0.0),
        ("ready", ("scheduled", "succeeded"), 0.0, 0.0),
        ("ready", (), 0.0, 10.0),
        ("scheduled", ("scheduled",), 1.0, 0.0),
    ],
)
async def test_a_goal_is_judged_by_its_own_stage(
    goal: workloads.Goal, stages: tuple[str, ...], ratio: float, censored: float
) -> None:
    session = jobs_session(10, *stages)
    result = await workloads.finish(session, workloads.ScaleParams(goal=goal))
    assert (result.figures["success_ratio"], result.figures["censored"]) == (ratio, censored)
    assert bool(result.figures["throughput_mean"]) == bool(ratio)


async def test_the_pace_is_that_of_the_first_objects_not_of_what_replaces_them() -> None:
    session = jobs_session(10, "scheduled")
    for i in range(5, 10):
        api, received = session.observer.records[f"p{i}"].stages["scheduled"]
        session.observer.records[f"p{i}"].stages["scheduled"] = api, received + 30 * SECOND
    _, figures = await session.finish("scheduled", 5, 1, 1.0)
    assert figures["throughput_mean"] == pytest.approx(1000, rel=0.01)


async def test_a_deletion_that_fails_costs_no_rows(server: ApiServer) -> None:
    session = jobs_session(10, "scheduled")
    server.fail(".", 0)
    session.kube = session.observer.kube = server.client()
    result = await workloads.finish(session, workloads.ScaleParams(goal="scheduled"))
    assert result.figures["success_ratio"] == 1.0
    assert any("the deletion was not observed to its end" in note for note in result.facts["notes"])


@pytest.mark.parametrize(
    ("phase", "method", "answer", "error"),
    [
        ("Running", "-", None, ""),
        ("", "-", None, "in phase none: .*1 of 1 VMIs not Running after 0.3 s; does KubeV"),
        ("Pending", "-", None, "in phase pending: 1 x NoRoom: 0/3 nodes; .*1 of 1 VMIs not Run"),
        ("Failed", "-", None, "in phase failed: 1 x Failed: why"),
        ("Running", "POST", failure(403, "quota exceeded"), "in phase none: 1 x .*quota exceeded"),
        ("Running", "DELETE", Answer(), "in phase running: .*left behind: 1 object"),
    ],
)
async def test_a_primer_that_does_not_run_ends_the_run_with_its_phase_and_events(
    phase: str, method: str, answer: Answer | None, error: str, soon: None, cluster: ApiServer
) -> None:
    cluster.serve(("kubevirt.io/v1", VMI))
    cluster.add(node("n"))

    def phased(request: Request) -> None:
        if request.body["metadata"]["name"].startswith("r-primer"):
            request.body["status"] = {"phase": phase, "message": "why"}
        if phase == "Pending":
            room = {"type": "PodScheduled", "status": "False", "reason": "NoRoom"}
            request.body["status"]["conditions"] = [room | {"message": "0/3 nodes"}]

    cluster.on("POST .*/virtualmachineinstances", phased)
    cluster.on(f"{method} .*/virtualmachineinstances", lambda _: answer)
    params = vmi.VmiBurstParams(counts=[5], namespace="ns", timeout=0.3)
    results = list[Result]()
    ended = ""
    async with client(cluster) as kube:
        try:
            await vmi.VmiBurst().scenario(kube, params, Context(run="r", seen=results.append))
        except KubeError as why:
            ended = str(why)
    assert (bool(re.search(error, ended)), bool(ended)) == (True, bool(error)), ended
    assert len(results) == (not error), "the five are created after a primer that ran"
    assert bool(cluster.of(VMI)) == (method == "DELETE")


def measured(params: vmi.VmiParams, context: Context, count: int) -> Result:
    facts: dict[str, Any] = {"generator": [], "notes": [], "simulated": False, "version": "v1.6"}
    own: dict[str, float | None] = {"api_p99": 0.1, "left_behind": 0.0, "success_ratio": 1.0}
    verdicts = figures.evaluate(params.all_gates, own)
    return Result("burst", count, context.run, [], [], own, facts, verdicts)


async def test_sizes_before_one_that_broke_are_kept_and_a_run_that_was_not_alone_is_invalid(
    caplog: pytest.LogCaptureFixture, cluster: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster that takes 600 VMIs; at 800 its API server goes away; another run comes at 1."""

    async def burst(kube: Any, params: vmi.VmiParams, context: Context, count: int) -> Result:
        if count > 600:
            raise KubeError(0, "Unreachable", "no answer from https://x")
        if count == 1:
            cluster.add(held_by("x", FUTURE))
        return measured(params, context, count)

    monkeypatch.setattr(vmi, "burst", burst)
    monkeypatch.setattr(vmi, "check_nodes", AsyncMock())
    ladder: Any = {"scenario": "ladder", "cooldown": 0.1, "namespace": "ns"}
    kube, started = cluster.client(), time.monotonic()
    params = vmi.VmiBurstParams(counts=[400, 600, 800, 1000], **ladder)
    results = await vmi.VmiBurst().measure(kube, params, Context(run="r"))
    assert time.monotonic() - started >= 0.2
    assert caplog.messages.count("cooling down for 0.1 s") == 2
    why = "a later size was not measured: no answer from https://x"
    found = [(item.count, item.run, item.error) for item in results]
    assert found == [(400, "r-1", ""), (600, "r-2", why)]
    with pytest.raises(Invalid, match=why) as caught:
        vmi.VmiBurst().values(results)
    assert caught.value.measurements
    for count, error in ((800, KubeError), (1, Invalid)):
        params = vmi.VmiBurstParams(counts=[count], **ladder)
        with pytest.raises(error, match=r"no answer|run x took the cluster over"):
            vmi.VmiBurst().values(await vmi.VmiBurst().measure(kube, params, Context()))
