"""What a scenario of workloads makes of what it saw: its goal, its count, and the release of
pods that were held.
"""

import time

import pytest

from perfdag.kube.client import STRATEGIC_PATCH, KubeError
from perfdag.steps.scale.measure.generator import GeneratorResult, Schedule, Submission
from perfdag.steps.scale.measure.observer import Observer
from perfdag.steps.scale.model.stages import Record
from perfdag.steps.scale.model.templates import load
from perfdag.steps.scale.scenarios import session, submit
from tests.fakes.api_server import ApiServer

from .sessions import session_of


def session_of_jobs(count: int, *stages: str) -> session.Session:
    """A session of that many Jobs of one pod, which (and whose pods) reached the stages a second
    apart.
    """
    observer, start = Observer(None, "r", [], ["n"]), time.monotonic_ns() - 60 * 10**9  # type: ignore[arg-type]
    items = []
    for i in range(count):
        job, pod = (
            Record("Job", f"j{i}", f"r-{i}", "n", ""),
            Record("Pod", f"p{i}", f"r-{i}-x", "n", f"j{i}"),
        )
        for second, stage in enumerate(("created", *stages), 1):
            for value in (job, pod):
                value.put(stage, received_ns=start + second * 10**9 + i * 10**6)
        for value in (job, pod):
            value.put("gone", received_ns=start + 50 * 10**9)
        observer.records |= {job.uid: job, pod.uid: pod}
        items.append(Submission(i, job.name, "n", start, start, start + 1, job.uid))
    submitted = GeneratorResult("r", items, time.time() - 60, start)
    server = ApiServer()
    server.fail("GET /version", 0)
    run = session_of(
        server.client(),
        observer,
        load("job", "r"),
        namespaces=["n"],
        submitter=None,
        expected_pods=1,
    )
    run.submissions, run.batches = items, [(submitted, Schedule())]
    return run


@pytest.mark.parametrize(
    ("goal", "stages", "ratio"),
    [
        ("succeeded", ("scheduled", "ready"), 0.0),
        ("succeeded", ("scheduled", "succeeded"), 1.0),
        ("succeeded", ("scheduled", "ready", "succeeded"), 1.0),
        ("ready", ("scheduled", "ready"), 1.0),
        ("ready", ("scheduled", "succeeded"), 0.0),
        ("scheduled", ("scheduled",), 1.0),
    ],
)
async def test_a_goal_is_judged_by_its_own_stage(
    goal: submit.Goal, stages: tuple[str, ...], ratio: float
) -> None:
    result = await submit.finish(
        "submit", submit.Spec(goal=goal, count=10), session_of_jobs(10, *stages), {}
    )
    assert (result.figures["success_ratio"], result.facts["goal"]) == (ratio, goal)
    assert bool(result.figures["throughput_mean"]) == bool(ratio)
    assert result.figures["censored"] == (
        0.0 if ratio or goal == "succeeded" or "succeeded" in stages else 10.0
    )


async def test_what_did_not_come_is_counted() -> None:
    result = await submit.finish("submit", submit.Spec(), session_of_jobs(10), {})
    assert (result.figures["success_ratio"], result.figures["censored"]) == (0.0, 10.0)


async def test_a_deletion_that_fails_costs_no_rows(server: ApiServer) -> None:
    run = session_of_jobs(10, "scheduled")
    server.fail(".", 0)
    run.kube = server.client()
    result = await submit.finish("submit", submit.Spec(goal="scheduled"), run, {})
    assert result.figures["success_ratio"] == 1.0
    assert any(
        note.startswith("the deletion was not observed to its end: no answer")
        for note in result.facts["notes"]
    )


@pytest.mark.parametrize(
    ("second", "status"), [("released", 422), ("gone", 404), ("forbidden", 403)]
)
async def test_a_pod_that_is_gone_or_released_does_not_end_the_release(
    second: str, status: int
) -> None:
    """The answer to the first request is lost; the second finds the pod as the first left it."""
    server = ApiServer(
        *({"kind": "Pod", "metadata": {"name": name, "namespace": "n"}} for name in "abc")
    )
    server.fail("PATCH .*/a", status, second)
    server.fail("PATCH .*/a", 503, times=1)
    kube = server.client(retries=1)
    pods = [Record("Pod", name, name, "n", "") for name in "abc"]
    if status == 403:
        with pytest.raises(KubeError, match="forbidden"):
            await submit.release(kube, pods, 1)
        return
    await submit.release(kube, pods, 1)
    requests = [request for request in server.requests if request.method == "PATCH"]
    assert [item.path.rpartition("/")[2] for item in requests] == ["a", "a", "b", "c"]
    assert {item.headers["Content-Type"] for item in requests} == {STRATEGIC_PATCH}
    assert all(
        item.body == {"spec": {"schedulingGates": [{"$patch": "delete", "name": "perfdag/hold"}]}}
        for item in requests
    )
    assert all("released" in pod.stages for pod in pods)
