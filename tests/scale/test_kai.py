"""KAI's scenarios on simulated pods: consolidation, topology, and reclaims of gangs."""

import asyncio
import contextlib
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any
from unittest.mock import AsyncMock

import orjson
import pytest

from perfdag.kube.client import KubeError
from perfdag.steps.scale.model.records import Record
from perfdag.steps.scale.scenarios import gangs, gpus, kai, session, submit
from perfdag.steps.scale.scenarios.base import Result, ScenarioUnavailableError

from .sessions import session_of
from .test_session import Cluster

Fate = dict[str, float]
"""Seconds until a pod reaches a stage; a stage `on NODE` is its placement on that node."""
Decide = Callable[[int, int], Fate]
"""The fate of a pod: the number of its workload, and its own."""


class Pods(Cluster):
    """A cluster that makes the pods of Jobs and ReplicaSets, with a fate each."""

    def __init__(self, fate: Decide) -> None:
        super().__init__(lambda index: [])
        self.fate, self.bodies = fate, list[Any]()

    def pod(self, owner: Record, fate: Fate) -> Record:
        pod = Record("Pod", uuid.uuid4().hex, f"{owner.name}-x", "ns", owner.uid)
        pod.put("created", received_ns=(now := time.monotonic_ns()))
        self.observer.adopt(pod)
        for stage, after in fate.items():
            if stage.startswith("on "):  # an Event told of it before the pod shows its node
                asyncio.get_running_loop().call_later(0.02, setattr, pod, "node", stage[3:])
            name = "scheduled" if stage.startswith("on ") else stage
            self.observer.note(pod, name, 0, 0, now + round(after * 1e9))
        return pod

    async def submit(self, bodies: Sequence[bytes], namespace: str, tally: Counter[str]) -> str:
        body = orjson.loads(bodies[-1])
        self.bodies.append(body)
        own = Record(body["kind"], uuid.uuid4().hex, body["metadata"]["name"], namespace, "")
        own.put("created", received_ns=time.monotonic_ns())
        self.observer.adopt(own)
        count = body["spec"].get("replicas") or body["spec"].get("parallelism", 1)
        index = int(body["metadata"]["labels"]["perfdag/index"])
        for number in range(count):
            self.pod(own, self.fate(index, number))
        return own.uid

    async def list(self, resource: str, *_: Any, **__: Any) -> list[Any]:
        """Nodes of two racks: n0 and n1, n2 and n3."""
        labels = [{"rack": f"r{i // 2}"} for i in range(4)]
        return [{"metadata": {"name": f"n{i}", "labels": own}} for i, own in enumerate(labels)]


@pytest.fixture
def run_scenario(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run a scenario on four nodes of four GPUs."""

    async def run(
        scenario: submit.Scenario,
        fate: Decide,
        seen: Callable[[Pods], None] | None = None,
        **more: Any,
    ) -> Result:
        kube: Any = Pods(fate)

        @contextlib.asynccontextmanager
        async def opened(_: Any, spec: Any, run: str, template: Any) -> AsyncIterator[Any]:
            yield session_of(kube, kube.observer, template, run=run, expected_pods=1)
            if seen:
                seen(kube)

        for module in (gangs, kai):
            monkeypatch.setattr(module, "session_of", opened)
            monkeypatch.setattr(
                module, "free_gpus", AsyncMock(return_value={f"n{i}": 4 for i in range(4)})
            )
        monkeypatch.setattr(gangs, "find_scheduler", AsyncMock(return_value=gangs.KAI))
        monkeypatch.setattr(session, "simulated_nodes", AsyncMock(return_value=(set(), "")))
        monkeypatch.setattr(kai, "STILL", 0.0)
        monkeypatch.setattr(gpus, "EVENT_PATIENCE", 0.1)
        spec = submit.Spec(namespaces=["ns"], rack_label="rack", **{"timeout": 0.2, **more})
        return await submit.measure(kube, spec, scenario)

    return run


async def test_a_gang_over_two_racks_is_a_miss(run_scenario: Any) -> None:
    """The wait counts to the last pod of a gang."""
    bodies: list[Any] = []
    result = await run_scenario(
        "topology",
        lambda gang, pod: {f"on n{pod + gang}": 1.0 + pod},
        lambda kube: bodies.extend(kube.bodies),
        workers=2,
        gpus=4,
    )
    figures = result.figures
    assert (figures["gangs_fitting"], figures["gangs_placed"]) == (2, 2)
    assert (figures["gangs_in_one_rack"], figures["success_ratio"]) == (1, 0.5)
    assert figures["topology_wait_max"] == pytest.approx(2.0, abs=0.1)
    assert any(
        "of 2 gangs 2 are placed whole and 1 in one rack" in n for n in result.facts["notes"]
    )
    annotations = bodies[0]["metadata"]["annotations"]
    assert annotations["kai.scheduler/topology-required-placement"] == "rack"
    assert annotations["kai.scheduler/topology"] == f"perfdag-{result.run}"


async def test_a_gang_that_fits_into_no_rack_is_not_tried(run_scenario: Any) -> None:
    with pytest.raises(ScenarioUnavailableError, match="no gang of 3 pods fits into a rack: 2 val"):
        await run_scenario("topology", lambda gang, pod: {}, workers=3, gpus=4)


@pytest.mark.parametrize(
    ("third", "refused"),
    [
        ({"unschedulable": 2.0}, 5),
        ({}, 4),
        ({"unschedulable": 2.0, "on n0": 3.0}, 4),
    ],
    ids=["refused", "one pod without a verdict", "placed after its verdict"],
)
async def test_a_reclaim_has_failed_when_no_pod_of_the_gang_can_be_placed(
    run_scenario: Any, third: Fate, refused: int
) -> None:
    """Of 16 pods the first queue has all; the third gang of nine has another fate."""

    def fate(workload: int, pod: int) -> Fate:
        if workload < 16:
            return {f"on n{workload // 4}": 1.0}
        return third if (workload, pod) == (18, 8) else {"unschedulable": 2.0}

    result = await run_scenario("failed-reclaim", fate)
    figures = result.figures
    assert (figures["gangs_refused"], figures["evicted"]) == (refused, 0)
    assert figures["refusal_wait_p50"] == pytest.approx(2.0, abs=0.1)
    assert (figures["refusal_wait_max"] is None) == (refused < 5)
    assert any(f"{refused} of 5 gangs were refused" in n for n in result.facts["notes"]) == (
        refused < 5
    )


@pytest.mark.parametrize("again", [True, False], ids=["placed again", "left waiting"])
async def test_pods_that_were_moved_must_be_placed_again(run_scenario: Any, again: bool) -> None:
    """Half of the pods of each node are deleted; those that stay on n0 move for a whole node."""
    cluster: list[Pods] = []

    def fate(workload: int, pod: int) -> Fate:
        if workload < 16:
            return {f"on n{workload // 4}": 1.0}
        records = list(cluster[0].observer.records.values())
        for moved in [r for r in records if r.node == "n0" and "gone" not in r.stages]:
            moved.put("gone", received_ns=time.monotonic_ns())
            cluster[0].pod(
                cluster[0].observer.records[moved.owner], {"on n1": 1.0} if again else {}
            )
        return {"on n0": 3.0}

    original = Pods.__init__

    def remember(self: Pods, *args: Any) -> None:
        original(self, *args)
        cluster.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pods, "__init__", remember)
        result = await run_scenario("consolidation", fate, count=1)
    figures = result.figures
    assert result.count == 17
    assert (figures["consolidated"], figures["evicted"]) == (1, 2)
    assert figures["consolidation_wait_max"] == pytest.approx(3.0, abs=0.1)
    assert figures["success_ratio"] == (1.0 if again else 15 / 17)
    assert any("6 of 8 small pods" in note for note in result.facts["notes"]) != again


async def test_a_gang_has_reclaimed_its_share_when_its_last_pod_is_placed(
    run_scenario: Any,
) -> None:
    """Two gangs of four; a pod of the second one gets no node."""

    def fate(workload: int, pod: int) -> Fate:
        return {} if (workload, pod) == (17, 3) else {"on n0": 1.0 + pod}

    result = await run_scenario("reclaim", fate, workers=4)
    figures = result.figures
    assert (figures["reclaimed"], result.count) == (7, 18)
    assert figures["reclaim_wait_p50"] == pytest.approx(4.0, abs=0.1)
    assert figures["reclaim_wait_max"] is None
    with pytest.raises(ScenarioUnavailableError, match="a gang of 9 pods exceeds half of 16 pods"):
        await run_scenario("reclaim", fate, workers=9)


@pytest.mark.parametrize("scenario", ["topology", "consolidation", "failed-reclaim"])
async def test_scenarios_of_kai_need_it(scenario: Any) -> None:
    class Volcano(Cluster):
        async def resource(self, api_version: str, kind: str) -> str:
            raise KubeError(404, "NoKind", f"no {kind} of {api_version}")

    kube: Any = Volcano(lambda index: [])
    with pytest.raises(ScenarioUnavailableError, match=f"^{scenario} needs KAI: .* no Queues of"):
        await submit.measure(kube, submit.Spec(), scenario)
