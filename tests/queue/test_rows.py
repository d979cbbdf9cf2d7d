"""Rows of queue-scaling from what the validator prints.

recorded/queue/validate.json: perfdag queue validate --local --limit 3 --json -- sleep 0.05 (the host's name replaced).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfdag.benchmark import Failed, Invalid, Measurement, Output
from perfdag.steps.queue_scaling import QueueScaling, QueueScalingParams

RECORDED = Path(__file__).parents[1] / "recorded" / "queue" / "validate.json"


def parsed(limit: int = 3, **last: Any) -> list[Measurement]:
    """The recorded result with fields of its last step replaced."""
    result = json.loads(RECORDED.read_text())
    result["steps"][-1].update(last)
    return QueueScaling().parse(
        Output({"stdout": json.dumps(result)}), QueueScalingParams(limit=limit)
    )


def at(found: list[Measurement], metric: str, stat: str = "value") -> dict[int, float]:
    return {
        each.coords["replicas"]: each.value
        for each in found
        if (each.metric, each.stat) == (metric, stat)
    }


def test_every_step_is_rows() -> None:
    found = parsed()
    assert {each.metric for each in found} <= {each.name for each in QueueScaling.metrics}
    assert {n: round(value, 2) for n, value in at(found, "throughput").items()} == {
        1: 19.55,
        2: 39.07,
        3: 58.41,
    }
    assert {n: round(value, 3) for n, value in at(found, "gain").items()} == {2: 1.998, 3: 1.495}
    assert {n: round(value, 4) for n, value in at(found, "latency", "p50").items()} == {
        1: 0.051,
        2: 0.0514,
        3: 0.0514,
    }
    assert [each.n for each in found if each.metric == "latency"] == [
        14,
        26,
        39,
    ]  # too few for p95 and p99
    assert [(each.subject, each.value) for each in found if each.metric == "items"] == [
        ("node-1", 39)
    ]
    assert [each.value for each in found if each.metric == "steps_failed"] == [0]
    assert "failures" not in {each.metric for each in found}


def test_a_step_below_the_factor_is_a_finding_and_no_failure() -> None:
    found = parsed(problems=["1.1 times the throughput of 2, 1.41 needed"])
    assert [each.value for each in found if each.metric == "steps_failed"] == [1]


def test_a_step_that_was_not_steady_is_invalid_with_its_rows() -> None:
    with pytest.raises(Invalid, match="not steady at 3 replicas") as said:
        parsed(steady=False)
    assert at(list(said.value.measurements), "throughput").keys() == {1, 2, 3}


def test_failed_requests_fail_the_sample_and_its_rows_say_where() -> None:
    with pytest.raises(Failed, match="at 3 replicas: 3 failed requests") as said:
        parsed(
            failures=3,
            failed={"node-1/card1": 2, "node-2": 1},
            problems=["3 failed requests (3 workload)"],
        )
    failures = [
        (each.subject, each.coords["replicas"], each.value)
        for each in said.value.measurements
        if each.metric == "failures"
    ]
    assert failures == [("node-1/card1", 3, 2), ("node-2", 3, 1)]
    assert at(list(said.value.measurements), "throughput").keys() == {1, 2, 3}


def test_a_lost_backend_fails_the_sample_though_no_request_failed() -> None:
    with pytest.raises(Failed, match="at 3 replicas: 1 of 3 backends ended by themselves"):
        parsed(
            lost="1 of 3 backends ended by themselves (1 by SIGKILL)",
            problems=["1 of 3 backends ended by themselves (1 by SIGKILL)"],
        )


def test_a_limit_that_was_not_reached_fails() -> None:
    with pytest.raises(Failed, match="did not reach 4 replicas"):
        parsed(limit=4)


@pytest.mark.parametrize("text", ["", "{}", "putting 1 replica(s) back"])
def test_no_result_fails(text: str) -> None:
    with pytest.raises(Failed, match="printed no result"):
        QueueScaling().parse(Output({"stdout": text}), QueueScalingParams(limit=3))
