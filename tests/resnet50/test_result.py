"""What LoadGen really printed, read; and the same cut, garbled or contradicted."""

import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from perfdag.benchmark.contract import Failed, Invalid, Measurement, Output, Skip
from perfdag.results.collect import write_exports
from perfdag.steps.command import Command
from perfdag.steps.resnet50.benchmark import Resnet50, documents
from perfdag.steps.resnet50.workload import Workload, read
from perfdag.store.base import FolderStore
from tests.conftest import CommandLine, SuiteWriter
from tests.resnet50.harness import needs_loadgen, recorded


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
    measured = Resnet50().parse(Output({"result": json.dumps(raw)}), options)
    assert {name for each in measured for name in each.coords} <= set(Resnet50.coords)
    return measured


def test_a_fast_run_with_too_few_queries_is_marked_not_refused() -> None:
    raw = recorded("server-overloaded")
    logs = raw["test"]["logs"]
    for old, new in (
        ('constraints_met", "value": false', 'constraints_met", "value": true'),
        ('"result_query_count", "value": 500', '"result_query_count", "value": 20'),
    ):
        logs["detail"] = logs["detail"].replace(old, new)
    fast = params("server", fast=True)
    for each in parse(raw, fast):
        assert {"loadgen": "INVALID", "fast": "not comparable"}.items() <= each.coords.items()
    entry = entry_of(raw, fast)
    assert entry.items() >= {"fast": True, "valid": False}.items()
    assert entry["reason"].startswith("LoadGen says INVALID")
    with pytest.raises(Invalid):
        parse(raw, params("server"))


OFFLINE: dict[str, Any] = {"scenario": "offline", "batch": 8}


@pytest.mark.parametrize(
    ("changes", "more", "message"),
    [
        ({'"stable": true': '"stable": false'}, {}, r"still differed .* last took 0.002"),
        (
            {
                r"min_duration_met\", \"value\": true": r"min_duration_met\", \"value\": false",
                "VALID": "INVALID",
            },
            {},
            "NO.*; target_rate is the expected QPS: set it to [0-9]+ or",
        ),
    ],
)
def test_a_result_that_fails_a_check_is_invalid(
    changes: dict[str, str], more: dict[str, Any], message: str
) -> None:
    options, text = {**OFFLINE, **more}, json.dumps(recorded("offline"))
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    raw = json.loads(text)
    with pytest.raises(Invalid, match=message):
        parse(raw, params(**options))
    entry = entry_of(raw, params(**options))
    assert entry["valid"] is False
    assert re.search(message, entry["reason"])
    assert parse(raw, params(**OFFLINE, fast=True, min_queries=839))


@pytest.mark.parametrize(("facts", "valid"), [({}, True), ({"against": "GPU 0 was slowed"}, False)])
def test_the_seed_document_calls_valid_what_the_rows_do(facts: dict[str, str], valid: bool) -> None:
    entry = entry_of(recorded("offline"), params(**OFFLINE), **facts)
    assert (entry["valid"], entry["reason"], entry["fast"]) == (valid, facts.get("against"), False)


def ends(kind: str) -> str:
    return json.dumps({"program": 2, "error": {"kind": kind, "text": "the reason"}})


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (ends("device"), Skip, "the reason"),
        (ends("other"), Failed, "the reason"),
        *((text, Failed, None) for text in ("", "{", '{"program": 2', "[]", '{"program": 99}')),
        ('{"program": 2, "test": {}}', Failed, None),
    ],
)
def test_an_error_of_the_program_or_a_foreign_output_is_no_sample(
    text: str, error: type[Exception], message: str | None
) -> None:
    with pytest.raises(error, match=message):
        read(text)


def rows_of(
    raw: dict[str, Any], options: Workload, repetition: int = 1, **more: Any
) -> list[dict[str, Any]]:
    """The rows of a sample, as its run stores them."""
    test = raw["test"]
    facts = {"span": [test["started"], test["ended"]], "device": raw.get("device", {}), **more}
    reason = None
    try:
        output = Output({"result": json.dumps(raw)}, facts=facts)
        measured = Resnet50().parse(output, options)
    except Invalid as error:
        measured, reason = error.measurements, str(error)
    sample = {
        "env": json.dumps({"sample": facts}),
        "phase": "measure",
        "point": "p",
        "repetition": repetition,
        "params": options.model_dump_json(),
        "error": reason,
    }
    return [
        {
            **sample,
            "coords": json.dumps(dict(each.coords)),
            "metric": each.metric,
            "stat": each.stat,
            "value": each.value,
        }
        for each in measured
    ]


def entry_of(raw: dict[str, Any], options: Workload, **facts: Any) -> dict[str, Any]:
    [entry] = documents(rows_of(raw, options, **facts))["resnet50.json"]["benchmarks"]
    return dict(entry)


def test_the_seed_document_has_its_fields() -> None:
    offline = rows_of(recorded("offline"), params(**OFFLINE), gpus=[{"driver": "550.1"}])
    single = rows_of(recorded("single-stream"), params("single-stream"), 2)
    whole = documents([*offline, *single])["resnet50.json"]
    assert set(whole) == {"timestamp", "gpu_info", "benchmarks"}
    assert {"name", "cuda_version", "total_memory_gb"} <= set(whole["gpu_info"])
    first, second = sorted(whole["benchmarks"], key=lambda item: str(item["scenario"]))
    assert {"scenario", "batch_size", "throughput_samples_per_sec", "duration_sec"} <= set(first)
    assert {"scenario", "batch_size", "latency_p90_ms"} <= set(second)
    assert (first["scenario"], second["scenario"]) == ("offline", "single_stream")
    assert 1 < second["latency_p90_ms"] < 10
    server = entry_of(recorded("server-overloaded"), params("server"))
    assert (server["target_qps"], server["latency_bound_ms"], server["valid"]) == (400, 15, False)


def test_the_seed_document_holds_a_sample_once_and_a_device_each() -> None:
    def one(repetition: int, **facts: Any) -> list[dict[str, Any]]:
        return rows_of(recorded("offline"), params(**OFFLINE), repetition, **facts)

    warm = [row | {"phase": "warmup"} for row in one(3)]
    lost = [row | {"env": None} for row in one(4)]
    whole = documents([*one(1), *one(2), *warm, *lost])
    assert [len(each["benchmarks"]) for each in whole.values()] == [2]
    actual = documents([*one(1, device={"name": "X"}), *one(2, device={"name": "Y"})])
    assert {name: item["gpu_info"]["name"] for name, item in actual.items()} == {
        "resnet50-1.json": "X",
        "resnet50-2.json": "Y",
    }
    assert documents([]) == {}


@needs_loadgen
def test_a_run_writes_the_seed_document_beside_its_report(
    tmp_path: Path, write_suite: SuiteWriter, cli: CommandLine
) -> None:
    stub = "{system: stub, scenario: offline, fast: true, stub: {base: 1ms}}"
    suite = write_suite(
        f"name: seed\nentries:\n  - {{benchmark: resnet50, params: {stub}}}\n"
        "  - {benchmark: command, params: {argv: ['true']}}\n"
    )
    root = tmp_path / "store"
    printed = cli(["run", str(suite), "--store", str(root), "--no-report"])
    (file,) = root.glob("runs/*/resnet50.json")
    assert f"also    {file}" in printed.out
    first = file.read_bytes()
    assert [benchmark["scenario"] for benchmark in json.loads(first)["benchmarks"]] == ["offline"]
    cli(["collect", "last", "--store", str(root)])
    assert file.read_bytes() == first


def test_an_export_that_fails_costs_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Resnet50, "exports", Mock(side_effect=ValueError("no such row")))
    monkeypatch.setattr(
        Command, "exports", lambda self, rows: {"count.txt": str(rows.num_rows).encode()}
    )
    rows = pa.table({"benchmark": ["resnet50", "command", "command", "of another package"]})
    file = tmp_path / "runs/r1/count.txt"
    assert set(write_exports(FolderStore(str(tmp_path)), "r1", rows)) == {
        str(file),
        "not written, export of resnet50: ValueError: no such row",
    }
    assert file.read_text() == "2"
