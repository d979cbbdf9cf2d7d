"""What the benchmarks vmi-burst, vmi-steady and scale make of a result: measurements, verdicts, and what is kept whole."""

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from perfdag.benchmark.contract import Output
from perfdag.benchmark.registry import get
from perfdag.outcome import VERDICT, Invalid, Measurement
from perfdag.steps.scale.figures.moments import Clocks
from perfdag.steps.scale.figures.percentiles import summaries
from perfdag.steps.scale.figures.rows import rows_of
from perfdag.steps.scale.measure.generator import Submission
from perfdag.steps.scale.model import gates
from perfdag.steps.scale.model.records import Record
from perfdag.steps.scale.model.stages import VMI
from perfdag.steps.scale.scenarios.base import Result

SECOND = 1_000_000_000
BASE = 1_700_000_000 * SECOND
CALLS = [
    {
        "phase": "creation",
        "call": "POST pods resource",
        "count": 600,
        "p99_s": 0.02,
        "low_s": 0.01,
        "high_s": 0.025,
    }
]


def result(kind: str, count: int, stuck: int = 0, **figures: float | None) -> dict[str, Any]:
    """A result of objects of which each takes 1 s a stage, the first `stuck` get no further than their creation, and i is i ms later."""
    way = (
        ("pending", "scheduling", "scheduled", "running") if kind == VMI else ("scheduled", "ready")
    )
    records, items = {}, []
    for i in range(count):
        record = Record(kind, f"u{i}", f"r-{i}", "ns", "")
        for second, stage in enumerate(("created", *(way if i >= stuck else ())), 1):
            record.put(stage, received_ns=BASE + second * SECOND + i * 1_000_000)
        record.put("deleting", received_ns=BASE + 20 * SECOND)
        record.put("gone", received_ns=BASE + 21 * SECOND)
        records[record.uid] = record
        items.append(Submission(i, record.name, "ns", BASE, BASE, BASE + 1, record.uid))
    rows = list(
        rows_of(
            items,
            records,
            Clocks(0, 0.0, 0.004),
            run="r",
            kind=kind,
            until_ns=BASE + 30 * SECOND,
            expected_pods=1,
        )
    )
    seen = {
        "success_ratio": (count - stuck) / count,
        "create_ratio": 1.0,
        "left_behind": 0.0,
        "api_p99": 0.02,
        "watch_lag_p99": 0.004,
    }
    facts = {"notes": [], "generator": [{"held": None}], "simulated": True}
    held = gates.evaluate(
        [gates.parse_gate("api_p99 < 1"), gates.parse_gate("creation_to_running_p50 < 2")],
        {"api_p99": 0.02},
    )
    made_of = Result(
        "x",
        count,
        "r",
        rows,
        summaries(rows),
        {**seen, **figures},
        facts,
        held,
        [(0.0, 0), (3.0, count)],
        CALLS,
        1.0,
        2.0,
    )
    return asdict(made_of)


def parsed(benchmark: str, raw: dict[str, Any]) -> tuple[list[Measurement], Output]:
    benchmark_class = get(benchmark)
    texts = (
        {"result": raw}
        if benchmark == "scale"
        else {"results": {"capacity": None, "results": [raw]}}
    )
    output = Output({key: orjson.dumps(text).decode() for key, text in texts.items()})
    return benchmark_class.parse(output, benchmark_class.Params.model_validate({})), output


def values(measurements: list[Measurement], metric: str) -> dict[str, float]:
    return {
        measurement.stat: measurement.value
        for measurement in measurements
        if measurement.metric == metric
    }


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
    measurements, output = parsed(benchmark, result(kind, 100, churn_cycles=3.0))
    assert values(measurements, headline)["p50"] == pytest.approx(median)
    assert set(values(measurements, headline)) == {"p50", "p95"}, "100 are too few for a p99"
    known = {item.name for item in get(benchmark).metrics}
    assert {item.metric for item in measurements} - known == {VERDICT}
    stages = {str(item.coords["stage"]) for item in measurements if item.metric == "object_latency"}
    assert {
        "vmi-burst": "creation_to_running",
        "vmi-steady": "running",
        "scale": "submission_to_scheduled",
    }[benchmark] in stages
    assert {"created", "deletion"} <= stages
    verdicts = [
        (item.value, item.subject, item.note) for item in measurements if item.metric == VERDICT
    ]
    assert [verdict[0] for verdict in verdicts] == [1.0, 0.0], "no data is a breach"
    assert verdicts[0] == (1.0, "api_p99 < 1", "0.02 against 1")
    assert verdicts[1][2].startswith("no data for ")
    assert values(measurements, "api_latency") == {"p99": 0.02}
    whole = orjson.loads(next(iter(output.texts.values())))
    rows = (whole if benchmark == "scale" else whole["results"][0])["rows"]
    assert len(rows) == 100 * len({item["stage"] for item in rows}), (
        "every stage of every object stays in the part"
    )
    assert stages == {item["stage"] for item in rows if item["status"] == "ok"}, (
        "the charts have every stage that was seen"
    )
    assert {"api_time", "event_time", "receive_time", "source", "resolution_s"} <= set(rows[0])


def test_a_steady_state_has_its_cycles_and_the_trace() -> None:
    measurements, _ = parsed("vmi-steady", result(VMI, 9, churn_cycles=3.0))
    assert values(measurements, "churn_cycles") == {"value": 3.0}
    assert [
        (measurement.coords["seconds"], measurement.value)
        for measurement in measurements
        if measurement.metric == "running"
    ] == [
        (0.0, 0.0),
        (3.0, 9.0),
    ]


@pytest.mark.parametrize(
    ("benchmark", "kind", "message"),
    [("vmi-steady", VMI, "5.0% of 100 never ran"), ("scale", "Pod", "5.0% did not reach the goal")],
)
def test_what_never_came_is_invalid_and_kept(benchmark: str, kind: str, message: str) -> None:
    with pytest.raises(Invalid, match=message) as caught:
        parsed(benchmark, result(kind, 100, stuck=5, churn_cycles=1.0))
    missing = {
        measurement.subject
        for measurement in caught.value.measurements
        if measurement.metric == "object_missing"
    }
    assert missing == {f"r-{i}" for i in range(5)}


@pytest.mark.parametrize("benchmark", ["vmi-burst", "vmi-steady", "scale"])
def test_what_was_not_alone_on_the_cluster_is_invalid_and_kept(benchmark: str) -> None:
    message = result("Pod" if benchmark == "scale" else VMI, 9, churn_cycles=1.0) | {
        "disturbed": "performance run x took the cluster over"
    }
    with pytest.raises(Invalid, match="performance run x took the cluster over") as caught:
        parsed(benchmark, message)
    assert caught.value.measurements


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("vmi-burst", "scenarios.vmi_benchmark.measure_vmis"),
        ("scale", "workloads_benchmark.measure_workloads"),
    ],
)
def test_what_a_run_says_is_in_the_log_of_its_pod(
    name: str, function: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Among it who else measures on the cluster, and the id by which a killed run is deleted."""

    class Refused(Exception):
        pass

    async def measure(spec: Any, _: Any) -> None:
        spec.log("waiting for performance run x to end")
        raise Refused

    monkeypatch.setattr(
        f"perfdag.steps.scale.{function}",
        measure,
    )
    with pytest.raises(Refused):
        get(name).run(SimpleNamespace(timeout=60.0), get(name).Params())  # type: ignore[arg-type]
    assert capsys.readouterr().err == "waiting for performance run x to end\n"


@pytest.mark.parametrize("benchmark", ["vmi-burst", "scale"])
def test_what_was_left_behind_is_invalid(benchmark: str) -> None:
    with pytest.raises(Invalid, match="2 objects were left behind"):
        parsed(benchmark, result("Pod" if benchmark == "scale" else VMI, 9, left_behind=2.0))
