"""Results of scenarios become measurements, gates are judged, and KubeVirt's audit is written."""

import math
from typing import Any

import pytest

from perfdag.benchmark.contract import VERDICT, Invalid, Measurement
from perfdag.benchmark.registry import get
from perfdag.steps.scale import figures
from perfdag.steps.scale.figures import Result, evaluate, parse_gate
from perfdag.steps.scale.objects import VMI
from perfdag.steps.scale.rows import Row, summaries

from .builders import record, rows_for

RATIO = "PATCH-vmis-count <= 2 * CREATE-pods-count"
FEW_REQUESTS: dict[str, float | None] = {
    "api_p99": None,
    "api_slowest": 0.5,
    "api_requests": 60.0,
}
TOO_FEW = "60 requests are too few for a p99, the slowest took up to 0.5 s"


@pytest.mark.parametrize(
    ("text", "figures", "passed", "shown"),
    [
        (RATIO, {"PATCH-vmis-count": 150, "CREATE-pods-count": 100}, True, "150 against 200"),
        (RATIO, {"PATCH-vmis-count": 250, "CREATE-pods-count": 100}, False, "250 against 200"),
        (RATIO, {"PATCH-vmis-count": 250}, None, "no data for CREATE-pods-count"),
        ("api_p99 < 1", FEW_REQUESTS, True, "0.5 against 1"),
        ("api_p99 < 0.1", FEW_REQUESTS, None, TOO_FEW),
        ("api_p99 < 1", {"api_p99": 2.0, "api_slowest": 0.5}, False, "2 against 1"),
        ("api_p99 < 1", {}, None, "no data for api_p99"),
        ("api_p99 < 1", {"api_p99": math.nan}, None, "no data for api_p99"),
        ("vmiCreationToRunningSecondsP50<4", {"creation_to_running_p50": 3}, True, "3 against 4"),
    ],
)
def test_what_figures_say_of_a_gate(
    text: str, figures: dict[str, float | None], passed: bool | None, shown: str
) -> None:
    (verdict,) = evaluate([parse_gate(text)], figures)
    assert (verdict.passed, verdict.figures()) == (passed, shown)


@pytest.mark.parametrize("text", ["api_p99", "api_p99 = 1", "api_p99 < x", "< 1", "a < 1 * "])
def test_a_bad_gate_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(ValueError, match="write METRIC < VALUE"):
        parse_gate(text)


CALL = {"phase": "creation", "call": "POST pods resource", "count": 600, "p99_s": 0.02}


def result(kind: str, count: int, stuck: int = 0, **more: float | None) -> Result:
    """A result of objects of which each takes 1 s a stage, the first `stuck` get no further than
    their creation, and i is i ms later.
    """
    vmi_way, pod_way = ("pending", "scheduling", "scheduled", "running"), ("scheduled", "ready")
    way: tuple[str, ...] = vmi_way if kind == VMI else pod_way
    names, records = [chr(200 + i) for i in range(count)], []
    for i, name in enumerate(names):
        stages = ("created", *(way if i >= stuck else ()))
        at = {stage: second + i / 1000 for second, stage in enumerate(stages, 1)}
        records.append(record(kind, name, **at, deleting=20, gone=21))
    rows = rows_for(kind, *records, submitted="".join(names), until=30, members=1)
    own = {"success_ratio": (count - stuck) / count, "left_behind": 0.0, "api_p99": 0.02, **more}
    facts = {"notes": [], "generator": [{"held": None}], "simulated": True}
    gates = [parse_gate("api_p99 < 1"), parse_gate("creation_to_running_p50 < 2")]
    held = evaluate(gates, {"api_p99": 0.02})
    return Result("x", count, "r", rows, summaries(rows), own, facts, held, [CALL])


def values_of(benchmark: str, *results: Result) -> list[Measurement]:
    measured: list[Measurement] = get(benchmark).values(results)  # type: ignore[attr-defined]
    assert {name for value in measured for name in value.coords} <= {*get(benchmark).coords}
    return measured


def values(measured: list[Measurement], metric: str) -> dict[str, float]:
    return {item.stat: item.value for item in measured if item.metric == metric}


@pytest.mark.parametrize(
    ("benchmark", "kind", "headline", "median"),
    [
        ("vmi-burst", VMI, "creation_to_running", 4.0),
        ("vmi-steady", VMI, "creation_to_running", 4.0),
        ("scale", "Pod", "submission_to_scheduled", 2.049),
    ],
)
def test_the_headline_the_objects_and_the_gates(
    benchmark: str, kind: str, headline: str, median: float
) -> None:
    deletion: Any = {"deletion/DELETE-pods-count": 7.0, "deletion/api_p99": 0.5}
    measured = values_of(
        benchmark, result(kind, 100, churn_cycles=3.0, submit_lag=None, **deletion)
    )
    assert values(measured, headline)["p50"] == pytest.approx(median)
    assert set(values(measured, headline)) == {"p50", "p95"}, "100 are too few for a p99"
    stages = {item.coords["stage"] for item in measured if item.metric == "object_latency"}
    assert {headline, "created", "deletion"} <= stages
    assert len([item for item in measured if item.metric == "object_time"]) == 100 * len(stages)
    verdicts = [item for item in measured if item.metric == VERDICT]
    assert [item.value for item in verdicts] == [1.0, 0.0], "no data is a breach"
    assert (verdicts[0].subject, verdicts[0].note) == ("api_p99 < 1", "0.02 against 1")
    assert values(measured, "api_latency") == {"p99": 0.02}
    (call,) = [item for item in measured if item.metric == "api_calls"]
    unit = "objects" if benchmark == "scale" else "vms"
    assert (call.coords["call"], call.coords["phase"]) == ("DELETE-pods", "deletion")
    assert call.coords[unit] == 100
    p99s = {item.coords.get("phase"): item.value for item in measured if item.metric == "api_p99"}
    assert p99s == {None: 0.02, "deletion": 0.5}
    if benchmark == "vmi-steady":
        assert values(measured, "churn_cycles") == {"value": 3.0}


@pytest.mark.parametrize("benchmark", ["vmi-burst", "vmi-steady", "scale"])
@pytest.mark.parametrize(
    ("stuck", "disturbed", "message"),
    [
        (5, "", "5.0% of 100 did not reach the goal"),
        (0, "performance run x took it over", "run x took it over"),
        (100, "", "nothing reached the goal"),
    ],
)
def test_an_invalid_result_keeps_its_rows(
    benchmark: str, stuck: int, disturbed: str, message: str
) -> None:
    kind, way = ("Pod", "submit") if benchmark == "scale" else (VMI, "burst")
    bad = result(kind, 100, stuck)
    bad.error, bad.scenario = disturbed, way
    with pytest.raises(Invalid, match=message) as caught:
        values_of(benchmark, bad)
    assert caught.value.measurements


def test_failures_are_one_row_a_distinct_message_without_names() -> None:
    def row(i: int, status: Any, error: str | None) -> Row:
        return Row("r", i, f"r-{i}", "ns", "Pod", "", "ready", "created", status, error=error)

    refused = [row(i, "failed", f'pods "r-{i}" is forbidden: used: pods=9') for i in range(3)]
    stuck = [row(i, "censored", f"no volume of virt-launcher-r-{i}-x7k2p") for i in range(3, 5)]
    fine = [row(9, "ok", "Unschedulable: for a moment")]
    assert figures.messages([*refused, *stuck, *fine]) == {
        'pods "NAME" is forbidden: used: pods=9': 3,
        "no volume of NAME": 2,
    }


def test_every_size_and_gate_has_the_names_of_the_audit() -> None:
    gates = [parse_gate(text) for text in ("api_p99 < 0.1", "api_p99 < 1")]

    def of_size(count: int, p99: float) -> Result:
        own: dict[str, float | None] = {
            "api_p99": p99,
            "avgVirtAPIMemoryUsageInMB": 2.0,
            "virtControllerWorkqueueAddRate": None,
            "virt_requests/CREATE-pods": 5.0,
            "running-phase-count": float(count),
            "CREATE-pods-count": 7.0,
            "deletion_p50": 3.0,
            "deletion_to_failed_p95": 4.0,
        }
        return Result("ladder", count, "r", [], [], own, {}, evaluate(gates, own))

    values = figures.audit_of(of_size(200, 0.5))
    want = {
        "running-phase-count": 200,
        "CREATE-pods-count": 5,  # of KubeVirt's own pods
        "apiserver/CREATE-pods-count": 7,
        "avgVirtAPIMemoryUsageInMB": 2,
        "vmiDeletionToFailedSecondsP95": 4.0,
    }
    shown = {key: value["value"] for key, value in values.items() if key != "api_p99"}
    assert shown == want, "what has no data has no key, and gone is not succeeded"
    exceeded = values["api_p99"]["thresholdResult"]["thresholdExceeded"]
    assert exceeded is True, "of two gates the one that was breached"


def test_thresholds_stand_under_the_keys_of_the_audit() -> None:
    """Those of a VM are its VMI's, a ratio names both counts, and no data is exceeded."""
    own: dict[str, float | None] = {
        "creation_to_running_p50": 8.68,
        "vmi_creation_to_running_p50": 1.0,
        "vmi_deletion_to_failed_p50": None,
        "PATCH-x-count": 250.0,
        "CREATE-pods-count": 100.0,
    }
    texts = (
        "vmi_creation_to_running_p50 < 0.5",
        "vmiDeletionToFailedSecondsP50 < 9",
        "PATCH-x-count <= 2 * CREATE-pods-count",
    )
    verdicts = evaluate([parse_gate(text) for text in texts], own)
    values = figures.audit_of(Result("burst", 9, "r", [], [], own, {}, verdicts))
    assert values == {
        "vmiCreationToRunningSecondsP50": {
            "value": 1.0,
            "thresholdResult": {"thresholdValue": 0.5, "thresholdExceeded": True},
        },
        "vmiDeletionToFailedSecondsP50": {"thresholdResult": {"thresholdExceeded": True}},
        "apiserver/PATCH-x-count": {
            "value": 250.0,
            "thresholdResult": {
                "thresholdValue": 200.0,
                "thresholdExceeded": True,
                "thresholdMetric": "apiserver/CREATE-pods-count",
                "thresholdRatio": 2.5,
            },
        },
        "apiserver/CREATE-pods-count": {"value": 100.0},
    }
