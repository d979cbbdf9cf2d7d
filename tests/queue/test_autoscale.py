"""Scores of known traces, the model of the HPA, and the benchmark queue-autoscale."""

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import Any

import pytest

from perfdag.benchmark.contract import Output
from perfdag.outcome import VERDICT, Failed, Invalid, Measurement
from perfdag.steps.queue.autoscale.params import QueueAutoscaleParams
from perfdag.steps.queue.autoscale.run import run_locally, run_on_target, trace_json
from perfdag.steps.queue.autoscale.scores import HpaModel, Sample, needed, score
from perfdag.steps.queue.autoscale_benchmark import QueueAutoscale
from perfdag.steps.queue.backend.processes import Processes
from perfdag.steps.queue.client.arrivals import Arrivals
from perfdag.steps.queue.client.load import Load
from perfdag.steps.queue.client.stats import ClientStats
from perfdag.steps.queue.frontend.frontend import Frontend
from tests.queue.conftest import StartBackends, by_control_port, until


def trace(*samples: tuple[float, int, int]) -> list[Sample]:
    return [Sample(*item) for item in samples]


def test_a_known_trace() -> None:
    result = score(
        trace(
            (0, 1, 1),
            (10, 4, 1),
            (13, 4, 3),
            (15, 4, 6),
            (20, 4, 4),
            (30, 1, 4),
            (34, 1, 1),
            (40, 1, 1),
        )
    )
    assert asdict(result) == pytest.approx(
        {
            "reaction": 5,
            "release": 4,
            "overshoot": 0.5,
            "oscillations": 0,
            "wasted": 2 * 5 + 3 * 4,
            "missing": 3 * 3 + 1 * 2,
        }
    )


def test_flapping_is_counted_and_a_height_never_reached_is_none() -> None:
    flapping = score(trace((0, 2, 2), (1, 2, 3), (2, 2, 2), (3, 2, 3), (4, 2, 2)))
    assert flapping.oscillations == 3
    assert score(trace((0, 1, 1), (1, 4, 1), (5, 4, 3))).reaction is None
    with pytest.raises(ValueError, match="two samples"):
        score(trace((0, 1, 1)))


@pytest.mark.parametrize(
    ("shape", "at", "rate"),
    [("step", 10, 2), ("step", 30, 10), ("ramp", 37.5, 6), ("spike", 30, 10), ("spike", 40, 2)],
)
def test_profiles(shape: str, at: float, rate: float) -> None:
    arrivals = Arrivals(10, shape, 2, 100)  # type: ignore[arg-type]
    assert arrivals.rate_at(at) == arrivals.rate_at(100 + at) == pytest.approx(rate)


def test_the_rule_of_the_hpa() -> None:
    model = HpaModel(target=2, window=10)
    for at, metric, have, expected in (
        (0, 2, 1, 1),
        (1, 2.1, 1, 1),  # within the tolerance
        (2, 100, 1, 5),  # at most 4 more in 5 s
        (3, 100, 5, 5),
        (8, 100, 5, 10),  # doubled
        (9, 2, 10, 10),  # a larger answer is in the window
        (30, 2, 10, 1),
    ):
        assert model.desired(at, metric, have) == expected, at


def simulate(
    scaler: Callable[[float, float, int], int],
    arrivals: Arrivals,
    item_seconds: float,
    sync: float,
    delay: float,
) -> list[Sample]:
    """Simulate a scaler on a fluid queue and return the trace. Times are in seconds.

    The metric is the number of items in the system, read every ``sync`` seconds. A new replica
    starts to
    work after ``delay``.
    """
    dt, backlog, have, trace = 0.1, 0.0, 1, []
    coming: list[tuple[float, int]] = []
    requested = 1
    for k in range(int(arrivals.period / dt)):
        now = k * dt
        while coming and coming[0][0] <= now:
            have = coming.pop(0)[1]
        rate = arrivals.rate_at(now)
        served = min(have / item_seconds, rate + backlog / dt)
        backlog = max(0.0, backlog + (rate - served) * dt)
        if k % max(1, round(sync / dt)) == 0:
            expected = scaler(now, backlog + served * item_seconds, requested)
            if expected != requested:
                requested = expected
                coming.append((now + (delay if expected > have else 0.0), expected))
                coming.sort()
        trace.append(Sample(now, needed(rate, item_seconds), have))
    return trace


def test_a_simulated_controller_is_scored_as_its_settings_say() -> None:
    arrivals = Arrivals(8, "step", 1, 200)

    def reaction_of(sync: float, delay: float) -> float:
        reaction = score(simulate(HpaModel(target=1).desired, arrivals, 1.0, sync, delay)).reaction
        assert reaction is not None
        return reaction

    assert reaction_of(15, 5) > reaction_of(5, 5) > reaction_of(1, 0)
    calm = score(simulate(lambda _now, _metric, _have: 8, arrivals, 1.0, 15, 0))
    assert calm.wasted == pytest.approx(7 * 100, rel=0.05)
    assert calm.reaction == pytest.approx(0, abs=0.11)


def parse_trace(
    params: QueueAutoscaleParams, samples: list[Sample], **client: object
) -> list[Measurement]:
    lag = {"p99": None, "late": 0.0}
    counts = {
        "scheduled": 10,
        "success": 10,
        "failure": 0,
        "pending": 0,
        "latency": {"count": 10},
        "run": {"count": 10, "mean": 0.4},
        "schedule_lag": lag,
    }
    one = trace_json(samples, {**counts, "causes": {}, "nodes": {}, **client})
    return QueueAutoscale().parse(Output({"result": json.dumps({"queue-1": one})}), params)


FOLLOWED = trace((0, 1, 1), (15, 4, 1), (20, 4, 4), (45, 1, 4), (55, 1, 1), (60, 1, 1))


def test_a_load_that_was_followed_is_ok_and_requests_without_an_answer_are_not() -> None:
    params = QueueAutoscaleParams()
    assert {item.metric for item in parse_trace(params, FOLLOWED)} >= {"reaction", "release"}
    with pytest.raises(Invalid, match="3 of 10 requests were not answered") as raised:
        parse_trace(params, FOLLOWED, success=7)
    assert raised.value.measurements
    with pytest.raises(Invalid, match="100 ms late at p99 on queue-1"):
        parse_trace(params, FOLLOWED, schedule_lag={"p99": None, "late": 3.0})
    watching = QueueAutoscaleParams(deployments=["queue-1"])
    assert parse_trace(watching, FOLLOWED)
    with pytest.raises(Invalid, match="3 of 10 requests were not answered"):
        parse_trace(watching, FOLLOWED, success=7)
    with pytest.raises(Invalid, match="an item took 2 s, so the backends needed are not those"):
        parse_trace(watching, FOLLOWED, run={"count": 10, "mean": 2.0})


def test_failed_requests_fail_it_and_its_rows_say_where() -> None:
    nodes = {"n1": {"failed_devices": {"card0": 1, "card2": 9}}, "n2": {"failed_devices": {}}}
    with pytest.raises(Failed) as raised:
        parse_trace(
            QueueAutoscaleParams(),
            FOLLOWED,
            failure=11,
            causes={"exit code 9": 10, "cannot connect": 1},
            nodes=nodes,
        )
    assert str(raised.value) == (
        "queue-1: 11 requests failed (10 exit code 9, 1 cannot connect): 9 on n1/card2, 1 on "
        "n1/card0"
    )
    failures = [
        (item.subject, item.coords, item.value)
        for item in raised.value.measurements
        if item.metric == "failures"
    ]
    assert failures == [
        ("n1/card2", {"queue": "queue-1"}, 9),
        ("n1/card0", {"queue": "queue-1"}, 1),
    ]
    assert "failures" not in {item.metric for item in parse_trace(QueueAutoscaleParams(), FOLLOWED)}


def over_time(rows: list[Measurement], metric: str) -> dict[float, float]:
    return {item.coords["elapsed"]: item.value for item in rows if item.metric == metric}


def test_depth_and_wait_are_rows_over_time_where_they_were_had() -> None:
    line = {15: (30, 2.5), 20: (12, 3.0), 45: (None, None)}
    samples = [
        Sample(item.at, item.needed, item.have, *line.get(int(item.at), (0, 0.0)))
        for item in FOLLOWED
    ]
    rows = parse_trace(QueueAutoscaleParams(), samples)
    depth, wait = over_time(rows, "depth"), over_time(rows, "wait")
    assert (depth[0], depth[10], depth[18], depth[50]) == (
        0,
        30,
        12,
        0,
    )  # at a moment stands what was seen next
    assert (wait[0], wait[10], wait[18], wait[50]) == (0, 2.5, 3, 0)
    assert set(over_time(rows, "replicas")) - set(depth) == set(range(21, 46))
    assert all(
        (item.subject is None) == ("elapsed" not in item.coords)
        for item in rows
        if item.metric != VERDICT
    )  # a moment is no series of the history
    bare = parse_trace(QueueAutoscaleParams(), FOLLOWED)
    assert not over_time(bare, "depth")
    assert not over_time(bare, "wait")


async def test_a_cluster_is_driven_by_the_clients_own_open_loop(
    frontend: Frontend,
    client_stats: ClientStats,
    client_load: Callable[..., Load],
    backends: StartBackends,
    ending: AsyncExitStack,
) -> None:
    """The client and its control port are real; the replicas are those that run here."""
    replicas = await backends(frontend, 1, "sleep", "0.02")
    await until(lambda: frontend.parked["sleep"])
    load = client_load()
    load.set_parallel(2)
    sender = await by_control_port(load, client_stats, ending)
    looks = iter([(3, 0.5), (None, None)])

    async def line() -> tuple[int | None, float | None]:
        return next(looks, (0, 0.0))

    arrivals = Arrivals(60, "step", 10, 2)
    rows = await run_on_target(arrivals, 0.02, replicas, sender, line, interval=0.05)
    trace = [Sample(*item) for item in rows["trace"]]
    assert [(item.depth, item.wait) for item in trace[:3]] == [(3, 0.5), (None, None), (0, 0.0)]
    assert {item.have for item in trace} == {1}
    assert {item.needed for item in trace} == {1, 2}
    client = rows["client"]
    # 60 a second meet a backend that does 50: what waits counts from its scheduled time
    assert client["scheduled"] == 70
    assert (client["pending"], client["failure"]) == (0, 0)
    assert client["latency"]["max"] > 0.1
    assert (client_stats.arrivals, load.closed.wanted) == (None, 0)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (
            trace((0, 1, 1), (15, 4, 1), (20, 4, 3), (45, 1, 3), (55, 1, 1), (60, 1, 1)),
            "at most 3 of the 4 backends",
        ),
        (
            trace((0, 1, 1), (15, 4, 1), (20, 4, 4), (45, 1, 4), (60, 1, 2)),
            "2 backends were left at the end, 1 needed",
        ),
    ],
)
def test_a_scaler_that_never_came_there_is_invalid(samples: list[Sample], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        parse_trace(QueueAutoscaleParams(), samples)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"deployments": ["a", "b"], "queues": 2}, "queues is for local queues"),
        ({"deployments": ["a", "b"], "clients": ["c"]}, "1 clients for 2 deployments"),
        ({"deployments": ["a", "a"]}, "names a twice"),
        ({"deployments": ["a"], "low": 1, "high": 1.4}, "the load must change"),
        ({"low": 0.1, "high": 0.2}, "the load must change"),
        ({"clients": ["c"]}, "belong to deployments"),
        ({"deployments": ["a", "b"]}, ""),
        ({}, ""),
    ],
)
def test_what_is_watched_has_to_be_clear(params: dict[str, Any], message: str) -> None:
    problems = QueueAutoscale().check(QueueAutoscaleParams(**params), None)
    assert message in "; ".join(problems)
    assert bool(message) == bool(problems)


async def test_backends_that_end_by_themselves_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(
        Failed, match=r"queue-1: 1 of 1 backends ended by themselves \(1 by exit code 1\)"
    ):
        await asyncio.wait_for(
            run_locally(Arrivals(12, "step", 2, 16), 0.25, 1, 0.5, HpaModel(target=1)), 10
        )


async def test_no_backend_is_left_where_one_of_another_queue_ends_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frontends, backends = list[Frontend](), list[Processes]()

    def frontend(*args: Any) -> Frontend:
        frontends.append(Frontend(*args))
        return frontends[-1]

    def processes(*args: Any) -> Processes:
        backends.append(Processes(*args))
        return backends[-1]

    async def kill() -> None:
        while not frontends or not all(queue.running for queue in frontends[0].queues.values()):
            await asyncio.sleep(0.02)
        backends[0].running[0].kill()  # while that of the other queue has an item to end

    monkeypatch.setattr("perfdag.steps.queue.autoscale.run.Frontend", frontend)
    monkeypatch.setattr("perfdag.steps.queue.autoscale.run.Processes", processes)
    try:
        async with asyncio.timeout(20):
            killer = asyncio.create_task(kill())
            with pytest.raises(
                Failed, match=r"queue-1: 1 of 1 backends ended by themselves \(1 by SIGKILL\)"
            ):
                await run_locally(
                    Arrivals(8, "step", 4, 16), 0.5, 2, 0.05, HpaModel(target=1, most=1)
                )
            await killer
        assert not [process.pid for item in backends for process in item.running]
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
    finally:
        await asyncio.gather(*(item.stop() for item in backends))


@pytest.mark.slow
async def test_processes_follow_a_step_on_two_queues() -> None:
    results = await asyncio.wait_for(
        run_locally(
            Arrivals(12, "step", 2, 16), 0.25, 2, 0.5, HpaModel(target=1, most=8, window=2)
        ),
        60,
    )
    for one in results:
        assert one.client_stats.failure == 0
        result = score(one.trace)
        assert result.reaction is not None
        assert result.reaction < 6
        assert one.client_stats.success == one.client_stats.scheduled
        assert max(item.depth or 0 for item in one.trace) > 2
        assert max(item.wait or 0.0 for item in one.trace) > 0.1
        assert one.trace[-1].wait is not None
        assert one.trace[-1].wait < 0.25  # of what waits then, not of the whole run
