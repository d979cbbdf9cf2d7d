"""What the GPU scenarios make of a scheduler's decisions, which a test makes itself."""

import asyncio
import contextlib
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

import orjson
import pytest

from perfdag.kube.client import KubeError
from perfdag.steps.scale.measure.clock import Offset
from perfdag.steps.scale.measure.observer import Observer
from perfdag.steps.scale.model.records import Record
from perfdag.steps.scale.scenarios import gangs, gpus, session, submit
from perfdag.steps.scale.scenarios.base import Result

from .test_workloads import Heart

Decide = Callable[[int], Sequence[tuple[str, float]]]


class Cluster:
    """An API server whose scheduler does with the pod of each object (by its index) what `decide` says: stages, in seconds from its creation.

    A stage in the future of more than a second comes as much later as it says in hundredths.
    """

    counts: dict[str, int] = {}
    stuck = "none"
    "What the names of queues end with that cannot be deleted."

    def __init__(self, decide: Decide = lambda index: []) -> None:
        self.deletions: list[str] = []
        self.decide, self.observer = decide, Observer(None, "r", [], ["ns"])  # type: ignore[arg-type]

    async def submit(self, bodies: Sequence[bytes], namespace: str, tally: Counter[str]) -> str:
        body = orjson.loads(bodies[-1])
        own = Record(body["kind"], uuid.uuid4().hex, body["metadata"]["name"], namespace, "")
        now = time.monotonic_ns()
        own.put("created", received_ns=now)
        self.observer.adopt(own)
        pod = (
            own
            if own.kind == "Pod"
            else Record("Pod", uuid.uuid4().hex, own.name + "-x", namespace, own.uid)
        )
        pod.put("created", received_ns=now)
        if pod is not own:
            self.observer.adopt(pod)
        for stage, after in self.decide(int(body["metadata"]["labels"]["perfdag/index"])):
            say = partial(self.observer.note, pod, stage, 0, 0, now + round(after * 1e9))
            asyncio.get_running_loop().call_later(after / 100 if after > 1 else 0.0, say)
        return own.uid

    async def resource(self, api_version: str, kind: str) -> str:
        return kind

    async def create(self, body: Any) -> None:
        pass

    async def delete(self, resource: str, name: str, namespace: str = "") -> bool:
        if resource == "Queue":
            self.deletions.append(name)
            if name.endswith(self.stuck):
                raise KubeError(403, "Forbidden", "no such right")
        for item in self.observer.records.values():
            item.put("gone", received_ns=time.monotonic_ns())
        return True

    async def raw(self, *_: Any) -> Any:
        raise KubeError(0, "Unreachable", "no answer")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs a scenario on nodes with so many GPUs each."""

    async def run(
        scenario: submit.Scenario, nodes: list[int], decide: Decide, **more: Any
    ) -> Result:
        kube: Any = Cluster(decide)
        free = {f"n{i}": count for i, count in enumerate(nodes)}

        @contextlib.asynccontextmanager
        async def opened(
            _: Any, spec: Any, run: str, template: Any
        ) -> AsyncIterator[session.Session]:
            yield session.Session(
                kube, run, template, ["ns"], kube.observer, Heart(), kube, Offset(0.0, 0.0), [], 1
            )  # type: ignore[arg-type]

        async def known(*_: Any) -> Any:
            return free

        async def none(*_: Any) -> Any:
            return Counter[str]()

        async def both(*_: Any) -> Any:
            return free, Counter[str]()

        async def played(*_: Any) -> tuple[set[str], str]:
            return set(), ""

        for module in (gpus, gangs):
            monkeypatch.setattr(module, "session_of", opened)
            monkeypatch.setattr(module, "free_gpus", known)
        for name, answer in {"usable_gpus": both, "_allocated": none}.items():
            monkeypatch.setattr(gpus, name, answer)
        monkeypatch.setattr(gpus, "VERDICT", 0.2)
        monkeypatch.setattr(session, "simulated_nodes", played)
        return await submit.measure(
            kube,
            submit.Spec(template="pod", namespaces=["ns"], **{"timeout": 0.2, **more}),
            scenario,
        )

    return run


class TestFill:
    async def test_the_verdict_is_that_of_the_extra_pod(self, measured: Any) -> None:
        """The first is told that it has no room, and is placed a moment later."""
        stages = {0: [("unschedulable", 0.01), ("scheduled", 0.02)], 4: []}
        result = await measured("fill", [4], lambda i: stages.get(i, [("scheduled", 0.02)]))
        assert result.figures["unschedulable_verdict"] is None
        assert any("extra pod refused False" in note for note in result.facts["notes"])
        result = await measured(
            "fill", [4], lambda i: [("scheduled", 0.02)] if i < 4 else [("unschedulable", 0.25)]
        )
        assert 0.25 <= result.figures["unschedulable_verdict"] < 1
        assert result.figures["success_ratio"] == 1

    async def test_an_extra_pod_that_is_placed_is_not_the_one_that_may_miss(
        self, measured: Any
    ) -> None:
        result = await measured("fill", [4], lambda i: [] if i == 1 else [("scheduled", 0.02)])
        assert result.figures["success_ratio"] == 4 / 5


class TestFragmentation:
    async def test_a_small_pod_that_was_not_placed_leaves_nothing_to_tell_of_the_packing(
        self, measured: Any
    ) -> None:
        result = await measured(
            "fragmentation", [8, 8], lambda i: [] if i == 3 else [("scheduled", 0.01)]
        )
        assert (
            result.figures["whole_nodes_placed"],
            result.figures["whole_nodes_ideal"],
            result.figures["packing"],
        ) == (1, 1, None)
        assert any("7 of 8 small pods were placed" in note for note in result.facts["notes"])
        assert result.figures["success_ratio"] == 8 / 9

    async def test_a_pod_that_is_placed_at_its_second_try_is_one(self, measured: Any) -> None:
        """Of two whole nodes; the other pod is placed later."""
        stages = {16: [("unschedulable", 0.01), ("scheduled", 0.02)], 17: [("scheduled", 10.0)]}
        result = await measured(
            "fragmentation", [8] * 4, lambda i: stages.get(i, [("scheduled", 0.01)]), timeout=5
        )
        assert (
            result.figures["whole_nodes_placed"],
            result.figures["packing"],
            result.figures["success_ratio"],
        ) == (2, 1, 1)


@pytest.mark.parametrize(
    ("scenario", "wait"), [("preemption", "preemptor_wait"), ("reclaim", "reclaim_wait")]
)
@pytest.mark.parametrize(
    ("placed", "p50", "most"), [(1, None, None), (6, 1.0, None), (10, 1.0, 1.0)]
)
async def test_what_is_never_placed_waits_for_ever(
    measured: Any, scenario: str, wait: str, placed: int, p50: float | None, most: float | None
) -> None:
    """So many of ten that ask for the others' room get it within a second."""
    result = await measured(
        scenario, [20], lambda i: [("scheduled", 1.0)] if i < 20 + placed else [], count=10
    )
    assert [result.figures[f"{wait}_{value}"] for value in ("p50", "max")] == [p50, most]


class TestQueues:
    @pytest.fixture(autouse=True)
    def one_b(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each run's second queue cannot be deleted."""
        monkeypatch.setattr(Cluster, "stuck", "-b")
        monkeypatch.setattr(gangs, "PAUSE", 0.0)

    @pytest.mark.parametrize("scenario", ["reclaim", "gang"])
    async def test_one_that_cannot_be_deleted_costs_no_result(
        self, measured: Any, scenario: str
    ) -> None:
        messages: list[str] = []
        result = await measured(
            scenario, [4], lambda i: [("scheduled", 0.01)], workers=1, log=messages.append
        )
        (note,) = [note for note in result.facts["notes"] if "queue" in note and "left" in note]
        assert (
            note
            == f"the queue perfdag-{result.run}-b is left: no such right; `perfdag scale delete --run {result.run}` deletes it"
        )
        assert note not in messages, "it is said once, with the result"

    async def test_an_error_of_the_measurement_goes_first_and_all_queues_are_tried(self) -> None:
        kube: Any = Cluster()
        messages: list[str] = []
        with pytest.raises(KubeError, match="the watch is gone"):
            async with gangs.own_queues(kube, gangs.KAI, "r", 4, [], messages.append):
                raise KubeError(0, "Unreachable", "the watch is gone")
        assert set(kube.deletions) == {"perfdag-r", "perfdag-r-a", "perfdag-r-b"}
        assert messages == [
            "the queue perfdag-r-b is left: no such right; `perfdag scale delete --run r` deletes it"
        ]

    async def test_an_interrupted_deletion_tells_of_all_queues_that_may_be_left(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(gangs, "PAUSE", 60.0)
        message, left = list[str](), list[str]()

        async def leave() -> None:
            async with gangs.own_queues(Cluster(), gangs.KAI, "r", 4, left, message.append):  # type: ignore[arg-type]
                pass

        leaving = asyncio.create_task(leave())
        await asyncio.sleep(0.05)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        remedy = "is left is unknown (interrupted); `perfdag scale delete --run r` deletes it"
        assert message == [
            f"whether the queue {name} {remedy}"
            for name in ("perfdag-r-b", "perfdag-r-a", "perfdag-r")
        ]
