"""The rule by which steps are judged, the fitted laws, and the rows of a validation."""

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from perfdag.benchmark.contract import VERDICT, VERDICT_VALUES, Failed, Invalid, Measurement
from perfdag.steps.queue.scaling_benchmark import QueueScalingParams, parse
from perfdag.steps.queue.validate import Step, fit, judge, scaling_verdict, summary

RECORDED = Path(__file__).parents[1] / "recorded" / "queue" / "validate.json"
SPREAD = (1 - 0.01 * math.sqrt(3), 1.0, 1 + 0.01 * math.sqrt(3))
"""Windows with a relative standard error of 1 %."""
WIDTH = 4.302653 * 0.01 * math.sqrt(2)
"""Of two such rates: Student's t of 2 degrees of freedom times both errors."""


def step(replicas: int, rate: float, spread: tuple[float, ...] = SPREAD, problem: str = "") -> Step:
    return {
        "replicas": replicas,
        "per_second": rate,
        "windows": [rate * part for part in spread] if rate else [],
        "problems": [problem] if problem else [],
        "nodes": {},
    }


HIGH, LOW = math.exp(WIDTH), math.exp(-WIDTH)
MORE, LESS = 1 + 1e-6, 1 - 1e-6


@pytest.mark.parametrize(
    ("steps", "word"),
    [
        ([(1, 10), (2, 18 * HIGH * MORE)], "passed"),  # the low end is just above what is needed
        ([(1, 10), (2, 18 * HIGH * LESS)], "inconclusive"),
        ([(1, 10), (2, 18 * LOW * MORE)], "inconclusive"),  # the high end is just above
        ([(1, 10), (2, 18 * LOW * LESS)], "failed"),
        ([(2, 19.9), (1, 10)], "passed"),
        ([(1, 10), (4, 32.4 * HIGH * MORE)], "passed"),  # 1.8 for each of two doublings
        ([(1, 10), (4, 32.4 * LOW * LESS)], "failed"),
        ([(1, 10), (2, 10), (4, 20)], "failed"),  # the worst step decides
        ([(1, 0), (2, 10)], "passed"),  # nothing to compare with
        ([], "failed"),
    ],
)
def test_the_interval_of_the_ratio_decides(steps: list[tuple[int, float]], word: str) -> None:
    result = judge((step(*one) for one in steps), 1.8)
    assert result["verdict"] == word
    assert word.upper() in summary(result)
    replicas = [one["replicas"] for one in result["steps"]]
    assert replicas == sorted(replicas)


def test_a_problem_fails_whatever_the_rates_and_one_window_decides_nothing() -> None:
    result = judge([step(1, 10), step(2, 20, problem="3 failed requests")], 1.8)
    assert [one["verdict"] for one in result["steps"]] == ["passed", "failed"]
    assert "FAILED: 3 failed requests" in summary(result)
    result = judge([step(1, 10), step(2, 20, (1.0,))], 1.8)
    assert result["steps"][1]["ratio"] == [2, 0.0, None]
    assert result["verdict"] == "inconclusive"
    assert "inf" in str(scaling_verdict(result, 1.8).note)


@pytest.mark.parametrize(
    ("sigma", "kappa"), [(0.0, 0.0), (0.2, 0.0), (0.05, 0.002), (0.02, 0.0005), (0.3, 0.01)]
)
def test_a_known_law_is_recovered(sigma: float, kappa: float) -> None:
    def law(n: int) -> float:
        return 10 * n / (1 + sigma * (n - 1) + kappa * n * (n - 1))

    chance = random.Random(5)
    fitted = fit([(n, law(n) * chance.gauss(1, 0.002)) for n in (1, 2, 4, 8, 16, 32)])
    assert fitted is not None
    assert fitted["rate_per_second"] == pytest.approx(10, rel=0.02)
    assert fitted["sigma"] == pytest.approx(sigma, rel=0.1, abs=0.003)
    assert fitted["kappa"] == pytest.approx(kappa, rel=0.1, abs=0.0002)


def parse_result(**last: Any) -> list[Measurement]:
    """The recorded result (`validate --local --limit 3 --json -- sleep 0.05`) with fields of its
    last step replaced.
    """
    result = json.loads(RECORDED.read_text())
    result["verdict"] = last.pop("verdict", result["verdict"])
    result["steps"][-1].update(last)
    return parse({"stdout": json.dumps(result)}, QueueScalingParams(limit=3))


@pytest.mark.parametrize(
    ("word", "note", "last"),
    [
        ("passed", "1.479 times at 3 replicas (95 % 1.413 to 1.549), 1.410 needed", {}),
        (
            "failed",
            "1.300 times at 3 replicas (95 % 1.250 to 1.350), 1.410 needed",
            {"verdict": "failed", "ratio": [1.3, 1.25, 1.35]},
        ),
        ("failed", "at 3 replicas bad (1 of 3 steps)", {"problems": ["bad"]}),
    ],
)
def test_the_verdict_is_a_row(word: Any, note: str, last: dict[str, Any]) -> None:
    [row] = [row for row in parse_result(**last) if row.metric == VERDICT]
    assert (row.value, row.note) == (VERDICT_VALUES[word], note)
    assert row.subject == "throughput grows 1.8 times with each doubling"


@pytest.mark.parametrize(
    ("kind", "message", "last"),
    [
        (Invalid, "not steady at 3 replicas", {"steady": False}),
        (
            Failed,
            "at 3 replicas: 3 failed requests",
            {
                "failures": 3,
                "failed": {"n/card1": 2, "n2": 1},
                "problems": ["3 failed requests"],
            },
        ),
    ],
)
def test_a_bad_last_step_keeps_the_rows(
    kind: type[Failed | Invalid], message: str, last: dict[str, Any]
) -> None:
    with pytest.raises(kind, match=message) as raised:
        parse_result(**last)
    rows = raised.value.measurements
    at = {row.coords["replicas"] for row in rows if row.metric == "throughput"}
    assert at == {1, 2, 3}
    failed = {row.subject: row.value for row in rows if row.metric == "failures"}
    assert failed == last.get("failed", {})
