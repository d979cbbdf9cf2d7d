"""Rows of queue-scaling from what the validator prints.

recorded/queue/validate.json: perfdag queue validate --local --limit 3 --json -- sleep 0.05 (the
host's name replaced).
"""

import json
from pathlib import Path
from typing import Any

import pytest

from perfdag.benchmark.contract import Output
from perfdag.outcome import (
    VERDICT,
    VERDICT_VALUES,
    Failed,
    Invalid,
    Measurement,
    VerdictWord,
)
from perfdag.steps.queue.scaling_benchmark import QueueScaling, QueueScalingParams

RECORDED = Path(__file__).parents[1] / "recorded" / "queue" / "validate.json"


LOST = "1 of 3 backends ended by themselves (1 by SIGKILL)"


def parse_result(limit: int = 3, **last: Any) -> list[Measurement]:
    """The recorded result with fields of its last step replaced."""
    result = json.loads(RECORDED.read_text())
    result["verdict"] = last.pop("verdict", result["verdict"])
    result["steps"][-1].update(last)
    return QueueScaling().parse(
        Output({"stdout": json.dumps(result)}), QueueScalingParams(limit=limit)
    )


def at(rows: list[Measurement], metric: str, stat: str = "value") -> dict[int, float]:
    return {
        row.coords["replicas"]: row.value
        for row in rows
        if (row.metric, row.stat) == (metric, stat)
    }


UNSTEADY = "not steady in 9 s"


@pytest.mark.parametrize(
    ("word", "note", "last"),
    [
        (
            "passed",
            "1.479 times at 3 replicas (95 % 1.413 to 1.549), 1.410 needed",
            {},
        ),
        (
            "inconclusive",
            "1.495 times at 3 replicas (95 % 1.300 to 1.700), 1.410 needed",
            {"verdict": "inconclusive", "ratio": [1.495, 1.3, 1.7]},
        ),
        (
            "failed",
            "1.300 times at 3 replicas (95 % 1.250 to 1.350), 1.410 needed",
            {"verdict": "failed", "ratio": [1.3, 1.25, 1.35]},
        ),
        ("failed", "at 3 replicas not steady in 9 s (1 of 3 steps)", {"problems": [UNSTEADY]}),
    ],
)
def test_the_validator_decides_the_verdict_of_a_valid_sample(
    word: VerdictWord, note: str, last: dict[str, Any]
) -> None:
    [verdict] = [row for row in parse_result(**last) if row.metric == VERDICT]
    assert (verdict.value, verdict.note) == (VERDICT_VALUES[word], note)
    assert verdict.subject == "throughput grows 1.8 times with each doubling"


@pytest.mark.parametrize(
    ("kind", "message", "last"),
    [
        (Invalid, "not steady at 3 replicas", {"steady": False}),
        (
            Failed,
            "at 3 replicas: 1 of 3 backends ended by themselves",
            {"lost": LOST, "problems": [LOST]},
        ),
    ],
)
def test_a_bad_last_step_keeps_the_rows(
    kind: type[Failed | Invalid], message: str, last: dict[str, Any]
) -> None:
    with pytest.raises(kind, match=message) as raised:
        parse_result(**last)
    assert at(list(raised.value.measurements), "throughput").keys() == {1, 2, 3}


def test_failed_requests_fail_the_sample_and_its_rows_say_where() -> None:
    with pytest.raises(Failed, match="at 3 replicas: 3 failed requests") as raised:
        parse_result(
            failures=3,
            failed={"node-1/card1": 2, "node-2": 1},
            problems=["3 failed requests (3 workload)"],
        )
    failures = [
        (row.subject, row.coords["replicas"], row.value)
        for row in raised.value.measurements
        if row.metric == "failures"
    ]
    assert failures == [("node-1/card1", 3, 2), ("node-2", 3, 1)]
    assert at(list(raised.value.measurements), "throughput").keys() == {1, 2, 3}


def test_a_limit_that_was_not_reached_fails() -> None:
    with pytest.raises(Failed, match="did not reach 4 replicas"):
        parse_result(limit=4)


@pytest.mark.parametrize("text", ["", "{}", "restoring 1 replica"])
def test_no_result_fails(text: str) -> None:
    with pytest.raises(Failed, match="printed no result"):
        QueueScaling().parse(Output({"stdout": text}), QueueScalingParams(limit=3))
