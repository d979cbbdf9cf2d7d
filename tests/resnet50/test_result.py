"""What LoadGen really printed, read; and the same cut, garbled or contradicted."""

import copy
import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from perfdag.benchmark.contract import Gang, Output
from perfdag.cli import main
from perfdag.hosts.base import Finished
from perfdag.hosts.local import LocalHost
from perfdag.outcome import Failed, Invalid, Measurement, Skip
from perfdag.results import exports
from perfdag.shape import Shape
from perfdag.steps.command import Command
from perfdag.steps.resnet50 import launch, loadgen_log, result
from perfdag.steps.resnet50.benchmark import Resnet50, documents, seed_json
from perfdag.steps.resnet50.measurements import cost_per_million
from perfdag.steps.resnet50.params import Workload
from perfdag.store.folder import FolderStore

RECORDED = Path(__file__).parent.parent / "recorded" / "loadgen"


def recorded(name: str) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text())
    return raw


def params(scenario: str, **more: Any) -> Workload:
    more = {"min_queries": 640, **more} if scenario == "offline" else more  # as recorded
    return Workload.model_validate(
        {
            "system": "stub",
            "scenario": scenario,
            "target_rate": 400 if scenario == "server" else None,
            **more,
        }
    )


def parse(raw: dict[str, Any], options: Workload) -> list[Measurement]:
    values = Resnet50().parse(Output({"result": json.dumps(raw)}), options)
    assert {name for each in values for name in each.coords} <= set(Resnet50.coords)
    return values


def value(values: list[Measurement], metric: str, stat: str | None = None) -> float:
    return next(
        item.value for item in values if item.metric == metric and stat in (None, item.stat)
    )


def test_single_stream() -> None:
    values = parse(recorded("single-stream"), params("single-stream"))
    assert value(values, "tail_latency") == value(values, "latency", "p90")
    assert (
        0.001
        < value(values, "latency", "p50")
        <= value(values, "latency", "p90")
        <= value(values, "latency", "p99")
    )
    assert value(values, "estimated_latency") >= value(values, "latency", "p90")


def test_percentiles_that_the_samples_cannot_carry_are_left_out() -> None:
    stats = {
        measurement.stat
        for measurement in parse(recorded("single-stream"), params("single-stream"))
        if measurement.metric == "latency"
    }
    assert stats == {
        "p50",
        "p90",
        "p95",
        "p99",
        "mean",
    }  # 700 queries are too few for p99.9, which needs 4603


def test_offline() -> None:
    values = parse(recorded("offline"), params("offline", batch=8, price_per_hour=0.54))
    throughput = next(item for item in values if item.metric == "throughput")
    assert throughput.n is not None
    assert throughput.n >= 640
    assert 2000 < throughput.value <= 4000
    assert value(values, "cost_per_million") == pytest.approx(0.54 / 3600 / throughput.value * 1e6)
    assert next(item.coords for item in values if item.metric == "cost_per_million") == {
        "currency": "USD"
    }


def test_an_overloaded_server_is_invalid_with_loadgens_reasons() -> None:
    with pytest.raises(
        Invalid, match="LoadGen says INVALID: Performance constraints satisfied: NO"
    ) as caught:
        parse(recorded("server-overloaded"), params("server"))
    assert value(caught.value.measurements, "tail_latency") > 0.01
    assert "Reduce target QPS" in str(caught.value)


def test_cost_of_a_million() -> None:
    assert cost_per_million(3.6, 1000) == pytest.approx(1.0)
    single = parse(recorded("single-stream"), params("single-stream", price_per_hour=3.6))
    assert value(single, "cost_per_million") == pytest.approx(
        1e3 * value(single, "latency", "mean")
    )
    with pytest.raises(
        Invalid
    ) as caught:  # an overloaded server: its cost is that of what it completed
        parse(recorded("server-overloaded"), params("server", price_per_hour=3.6))
    actual = caught.value.measurements
    assert value(actual, "cost_per_million") == pytest.approx(1e3 / value(actual, "completed_rate"))


def test_a_fast_run_says_that_it_is_not_comparable() -> None:
    values = parse(recorded("offline"), params("offline", batch=8, fast=True))
    assert all(item.coords["fast"] == "not comparable" for item in values)


def test_a_fast_run_with_too_few_queries_is_marked_not_refused() -> None:
    raw = recorded("server-overloaded")
    logs = raw["tests"][0]["logs"]
    logs["detail"] = logs["detail"].replace(
        '"result_perf_constraints_met", "value": false',
        '"result_perf_constraints_met", "value": true',
    )
    logs["detail"] = logs["detail"].replace(
        '"result_query_count", "value": 500', '"result_query_count", "value": 20'
    )
    raw["model"]["weights_verified"] = False
    fast = params("server", fast=True, check_logits=False)
    marks = {"loadgen": "INVALID", "logits_checked": False, "weights": "unverified"}
    assert all(marks.items() <= item.coords.items() for item in parse(raw, fast))
    entry = entry_of(raw, fast)
    assert entry.items() >= (marks | {"fast": True, "valid": False}).items()
    assert entry["reason"].startswith("LoadGen says INVALID")
    with pytest.raises(Invalid):
        parse(raw, params("server"))


def test_a_run_without_the_check_of_logits_is_flagged() -> None:
    raw = recorded("offline")
    del raw["logits"], raw["logits_after"]
    values = parse(raw, params("offline", batch=8, check_logits=False))
    assert all(item.coords["logits_checked"] is False for item in values)
    with pytest.raises(Invalid, match="not checked before"):
        parse(raw, params("offline", batch=8))


UNLIKE = {"ok": False, "tolerance": 0.001, "finite": True, "same_class": 20, "images": 20}


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        *(
            (
                part,
                {**UNLIKE, "error": 0.7},
                f"differ by 0.7 .* {when} the measurement: weights or arithmetic are corrupted",
            )
            for part, when in (("logits", "before"), ("logits_after", "after"))
        ),
        (
            "logits",
            {**UNLIKE, "batch": 16, "error": None, "finite": False},
            "logits are not finite at batch 16, unlike those of fp32 eager before",
        ),
        (
            "logits",
            {**UNLIKE, "batch": 16, "error": 0.5},
            r"logits differ by 0\.5 \(allowed 0\.001\) at batch 16 from fp32 eager before",
        ),
        (
            "logits",
            {**UNLIKE, "batch": 16, "error": 1e-5, "same_class": 17},
            "logits put 3 of 20 images into another class than fp32 eager before",
        ),
        (
            "clock",
            {"host": 0.001, "device": 0.02, "honest": False, "words": "the clock stopped early"},
            "the clock stopped early",
        ),
        ("warmup", {"stable": False}, "still differed"),
        (
            "warmup",
            {"stable": False, "few": True, "steady": 31.0},
            r"too few batches fit into the warm-up .* the last took 31 s",
        ),
    ],
)
def test_a_result_that_fails_a_check_is_invalid(
    part: str, change: dict[str, Any], message: str
) -> None:
    raw = recorded("offline")
    raw[part] = {**raw.get(part, {}), **change}
    with pytest.raises(Invalid, match=message):
        parse(raw, params("offline", batch=8))
    entry = entry_of(raw, params("offline", batch=8))
    assert entry["valid"] is False
    assert re.search(message, entry["reason"])
    if part == "warmup" and "few" not in change:
        assert parse(raw, params("offline", batch=8, fast=True))


def test_compile_time_is_apart_by_size_and_in_all() -> None:
    raw = recorded("server-overloaded")
    raw["tests"][0]["logs"] = {
        name: text.replace("INVALID", "VALID") for name, text in raw["tests"][0]["logs"].items()
    }
    raw["warmup"]["by_size"] = {"8": [9.02, 0.02], "1": [5.01, 0.01]}
    options = Workload.model_validate(
        {"scenario": "server", "target_rate": 400, "batch": 8, "backend": "compile"}
    )
    values = {
        measurement.coords.get("batch", measurement.stat): measurement.value
        for measurement in parse(raw, options)
        if measurement.metric == "compile_time"
    }
    assert values == pytest.approx({1: 5.0, 8: 9.0, "total": 14.0})


@pytest.mark.parametrize(
    ("kind", "error"),
    [(kind, Skip) for kind in ("device", "missing")]
    + [(kind, Failed) for kind in ("memory", "weights", "other", "peak")],
)
def test_an_error_of_the_program_skips_or_fails_the_sample(
    kind: str, error: type[Exception]
) -> None:
    with pytest.raises(error, match="the reason"):
        result.read(json.dumps({"program": 1, "error": {"kind": kind, "text": "the reason"}}))


@pytest.mark.parametrize(
    "text", ["", "{", '{"program": 1', "[]", '{"program": 99}', '{"program": 1, "tests": []}']
)
def test_cut_or_foreign_output_is_failed(text: str) -> None:
    with pytest.raises(Failed):
        result.read(text)


@pytest.mark.parametrize("name", ["single-stream", "offline", "server-overloaded"])
@pytest.mark.parametrize("log", ["summary", "detail"])
def test_a_log_cut_anywhere_yields_all_or_an_error(name: str, log: str) -> None:
    raw = recorded(name)
    whole = loadgen_log.read(raw["tests"][0]["logs"]["summary"], raw["tests"][0]["logs"]["detail"])
    text = raw["tests"][0]["logs"][log]
    for at in range(0, len(text), max(1, len(text) // 60)):
        cut = copy.deepcopy(raw["tests"][0]["logs"])
        cut[log] = text[:at]
        try:
            actual = loadgen_log.read(cut["summary"], cut["detail"])
        except loadgen_log.UnreadableError:
            continue
        assert actual.valid == whole.valid
        assert dict(actual.percentiles).items() <= dict(whole.percentiles).items()


def test_logs_of_two_tests_are_not_mixed() -> None:
    valid, invalid = (
        recorded("single-stream")["tests"][0]["logs"],
        recorded("server-overloaded")["tests"][0]["logs"],
    )
    with pytest.raises(loadgen_log.UnreadableError, match="different tests"):
        loadgen_log.read(valid["summary"], invalid["detail"])


def seed_row(built: dict[str, Any], repetition: int = 1, **more: Any) -> dict[str, Any]:
    env = json.dumps({"sample": {"seed_json": built}})
    return {"env": env, "phase": "measure", "point": "p", "repetition": repetition, **more}


def test_the_seed_document_has_its_fields() -> None:
    offline = seed_json(
        result.read(json.dumps(recorded("offline"))),
        params("offline", batch=8),
        {"gpus": [{"driver": "550.1"}]},
    )
    single = seed_json(
        result.read(json.dumps(recorded("single-stream"))), params("single-stream"), {}
    )
    whole = documents([seed_row(offline), seed_row(single, 2)])["resnet50.json"]
    assert set(whole) == {"timestamp", "gpu_info", "benchmarks"}
    assert {"name", "cuda_version", "total_memory_gb"} <= set(whole["gpu_info"])
    first, second = sorted(whole["benchmarks"], key=lambda item: str(item["scenario"]))
    assert {"scenario", "batch_size", "throughput_samples_per_sec", "duration_sec"} <= set(first)
    assert first["scenario"] == "offline"
    assert {"scenario", "batch_size", "latency_p90_ms"} <= set(second)
    assert second["scenario"] == "single_stream"
    assert 1 < second["latency_p90_ms"] < 10


def test_the_seed_document_holds_a_sample_once_and_a_device_each() -> None:
    built = {"gpu_info": {"name": "X"}, "timestamp": "t", "benchmarks": [{"scenario": "offline"}]}
    rows = [
        seed_row(built),
        seed_row(built),
        seed_row(built, 2),
        seed_row(built, 3, phase="warmup"),
        seed_row(built, 4, env=None),
    ]
    assert documents(rows) == {"resnet50.json": {**built, "benchmarks": built["benchmarks"] * 2}}
    other = {**built, "gpu_info": {"name": "Y"}}
    actual = documents([seed_row(built), seed_row(other, 2)])
    assert {name: item["gpu_info"]["name"] for name, item in actual.items()} == {
        "resnet50-1.json": "X",
        "resnet50-2.json": "Y",
    }
    assert documents([]) == {}


def test_a_run_writes_the_seed_document_beside_its_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(
        "mlperf_loadgen", reason="mlcommons-loadgen is not installed: pip install 'perfdag[dev]'"
    )
    stub = "{system: stub, scenario: offline, fast: true, stub: {base: 1ms}}"
    suite = tmp_path / "suite.yaml"
    suite.write_text(
        f"name: seed\nentries:\n  - {{benchmark: resnet50, params: {stub}}}\n"
        f"  - {{benchmark: command, params: {{argv: ['true']}}}}\n"
    )
    root = tmp_path / "store"
    assert main(["run", str(suite), "--store", str(root), "--no-report"]) == 0
    (file,) = root.glob("runs/*/resnet50.json")
    assert f"also    {file}" in capsys.readouterr().out
    first = file.read_bytes()
    assert [benchmark["scenario"] for benchmark in json.loads(first)["benchmarks"]] == ["offline"]
    assert main(["collect", "last", "--store", str(root)]) == 0
    assert file.read_bytes() == first


def test_an_export_that_fails_costs_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(self: Any, rows: pa.Table) -> dict[str, bytes]:
        raise ValueError("no such row")

    monkeypatch.setattr(Resnet50, "exports", broken)
    monkeypatch.setattr(
        Command, "exports", lambda self, rows: {"count.txt": str(rows.num_rows).encode()}
    )
    rows = pa.table({"benchmark": ["resnet50", "command", "command", "of another package"]})
    message = exports.write(FolderStore(str(tmp_path)), "r1", rows)
    assert (tmp_path / "runs/r1/count.txt").read_text() == "2"
    assert sorted(message) == sorted(
        [
            f"{tmp_path}/runs/r1/count.txt",
            "not written, export of resnet50: ValueError: no such row",
        ]
    )


@pytest.mark.parametrize(
    ("top1", "images", "reached"),
    [(0.8086, 50000, True), (0.7646, 50000, False), (0.99, 200, None)],
)
def test_accuracy_has_its_reference_and_verdict(
    top1: float, images: int, reached: bool | None
) -> None:
    raw = recorded("offline")
    raw["accuracy"] = {"top1": top1, "images": images, "reference": 0.80858, "resize": 232}
    options = params("accuracy", imagenet="/x")
    (entry,) = seed_json(result.read(json.dumps(raw)), options, {})["benchmarks"]
    actual = {
        "top1": top1,
        "images": images,
        "reference_top1": 0.80858,
        "mlperf_top1": 0.76456,
        "resize": 232,
        "reached": reached,
    }
    assert actual.items() <= entry.items()
    assert entry["valid"] is True
    values = {measurement.metric: measurement.value for measurement in parse(raw, options)}
    assert (values["top1"], values["images"], values["top1_reference"]) == (top1, images, 0.80858)
    assert values.get("top1_reached") == reached
    raw["logits_after"] = WRONG
    (entry,) = seed_json(result.read(json.dumps(raw)), options, {})["benchmarks"]
    assert entry["valid"] is False


@pytest.mark.parametrize(
    ("more", "facts", "message"),
    [
        ({}, {}, None),
        ({"clock": {"honest": False, "words": "the clock stopped"}}, {}, "the clock stopped"),
        (
            {"warmup": {**recorded("offline")["warmup"], "stable": False}},
            {"slowed": "GPU 0 was slowed"},
            "batch times .*; GPU 0 was slowed",
        ),
        ({}, {"error": "nvidia-smi said nothing"}, "not known: nvidia-smi said nothing"),
    ],
)
def test_accuracy_is_not_invalid_for_its_times_which_are_left_out(
    more: dict[str, Any],
    facts: dict[str, Any],
    message: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = {
        **recorded("offline"),
        **more,
        "accuracy": {"top1": 0.8, "images": 50, "reference": 0.80858, "resize": 232},
    }
    raw |= {
        "phases": {"forward": [0.01, 0.02, 0.03]},
        "warmup": {**raw["warmup"], "by_size": {"8": [9.02, 0.02]}},
    }
    options = params("accuracy", imagenet="/x", system="resnet50", backend="compile")
    monkeypatch.setattr(
        LocalHost, "run", lambda self, argv, **_: Finished(list(argv), 0, json.dumps(raw), "", 1.0)
    )
    monkeypatch.setattr(
        launch,
        "watched",
        lambda hosts, params: nullcontext(launch.Watch(params, {**facts, "against": None})),
    )
    output = Resnet50().run(Gang([LocalHost()], Shape(), 60, str(tmp_path)), options)
    values = Resnet50().parse(output, options)
    every = {"phase_time", "first_batch", "warm_batch", "compile_time"}
    times = {item.metric for item in values} & every
    assert "top1" in {item.metric for item in values}
    assert times == (set() if message else every)
    assert {tuple(item.coords) for item in values if item.metric == "top1"} == {()}
    assert re.search(message or "^None$", str(output.facts.get("times_left_out")))
    (entry,) = seed_json(result.read(json.dumps(raw)), options, facts)["benchmarks"]
    assert entry["valid"] is True
    with pytest.raises(Invalid, match="GPU 0 had 3 uncorrected"):
        Resnet50().parse(
            Output(output.texts, facts={"against": "GPU 0 had 3 uncorrected memory error(s)"}),
            options,
        )


WRONG = {"ok": False, "error": 0.7, "tolerance": 0.001, "finite": True, "images": 4}


def entry_of(raw: dict[str, Any], options: Workload, **facts: Any) -> dict[str, Any]:
    actual: dict[str, Any] = seed_json(result.read(json.dumps(raw)), options, facts)["benchmarks"][
        0
    ]
    return actual


def test_the_seed_document_calls_valid_what_the_rows_do() -> None:
    assert (
        entry_of(recorded("offline"), params("offline", batch=8)).items()
        >= {"valid": True, "reason": None, "fast": False}.items()
    )
    slowed = entry_of(recorded("offline"), params("offline", batch=8), against="GPU 0 was slowed")
    assert (slowed["valid"], slowed["reason"]) == (False, "GPU 0 was slowed")


@pytest.mark.parametrize(("above", "bound"), [(None, "at least"), (130.0, None)])
def test_the_peak_has_the_load_and_bound_that_it_held_in_rows_and_seed_document(
    above: float | None, bound: str | None
) -> None:
    raw = recorded("server-overloaded")
    load = {"target_qps": 400.0, "latency_bound_ms": 10.0}
    server = entry_of(raw, params("server", latency_bound=0.01))
    assert server.items() >= load.items()
    assert server.keys().isdisjoint({"peak_rate_per_sec", "bound"})
    raw |= {"answer": 0, "peak": {"rate": 400.0, "above": above}}
    raw["tests"][0]["logs"] = {
        name: text.replace("INVALID", "VALID") for name, text in raw["tests"][0]["logs"].items()
    }
    rows = parse(raw, params("find-peak"))
    assert [row.coords.get("bound") for row in rows if row.metric == "peak_rate"] == [bound]
    actual = entry_of(raw, params("find-peak", latency_bound=0.01, target_rate=7))
    assert actual.items() >= {**load, "peak_rate_per_sec": 400.0, "bound": bound}.items()
    assert (
        entry_of(recorded("offline"), params("offline", batch=8))
        .keys()
        .isdisjoint({*load, "bound"})
    )


def ended_early(name: str) -> Any:
    """A recording whose test was over before the minimum duration."""
    raw = recorded(name)
    logs = raw["tests"][0]["logs"]
    logs["summary"] = (
        logs["summary"]
        .replace("VALID", "INVALID")
        .replace("Min duration satisfied : Yes", "Min duration satisfied : NO")
    )
    logs["detail"] = (
        logs["detail"]
        .replace('"VALID"', '"INVALID"')
        .replace('min_duration_met", "value": true', 'min_duration_met", "value": false')
    )
    return raw


def test_offline_that_was_done_early_names_the_parameter_and_a_rate() -> None:
    raw = ended_early("offline")
    with pytest.raises(
        Invalid,
        match=(
            r"Min duration satisfied: NO.*; target_rate is the expected QPS: set it to \d+ or "
            r"more"
        ),
    ):
        parse(raw, params("offline", batch=8))


def test_a_run_that_max_queries_ended_says_so() -> None:
    raw = ended_early("single-stream")
    with pytest.raises(
        Invalid,
        match=(
            r"Min duration satisfied: NO.*; max_queries ended it at 700, before min_duration: "
            r"raise it"
        ),
    ):
        parse(raw, params("single-stream", max_queries=700))
    with pytest.raises(Invalid) as other:
        parse(raw, params("single-stream", max_queries=701))
    assert "max_queries" not in str(other.value)


def test_offline_of_fewer_samples_than_asked_is_invalid() -> None:
    summary = result.read(json.dumps(recorded("offline"))).tested
    assert summary is not None
    assert parse(recorded("offline"), params("offline", batch=8, min_queries=summary.queries))
    with pytest.raises(
        Invalid,
        match=(
            f"LoadGen requested {summary.queries} samples, fewer than the {summary.queries + 1} "
            f"of min_queries"
        ),
    ):
        parse(recorded("offline"), params("offline", batch=8, min_queries=summary.queries + 1))
