"""The verdicts of benchmarks themselves: from rows to words, exit codes and JUnit."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pyarrow as pa
import pytest

from perfdag.benchmark import registry
from perfdag.benchmark.contract import VERDICT, VERDICT_VALUES, Failed, VerdictWord, verdict
from perfdag.commands.main import main
from perfdag.results.samples import as_rows
from perfdag.results.summary import PointState, benchmark_verdicts, worst_of_points
from tests.conftest import CommandLine, SuiteWriter

RULE = "throughput grows 1.8 times with each doubling"


RECORDED = json.loads((Path(__file__).parent / "recorded/queue/validate.json").read_text())
ONE_STEP = RECORDED | {"verdict": "inconclusive", "steps": RECORDED["steps"][:1]}
SLOW_STEP = RECORDED["steps"][1] | {
    "ratio": [1.05, 1.01, 1.09],
    "verdict": "failed",
    "problems": ["1.05 times the step before, 1.8 wanted"],
}
TOO_SLOW = RECORDED | {"verdict": "failed", "steps": [RECORDED["steps"][0], SLOW_STEP]}


@pytest.mark.parametrize(
    ("result", "code", "word", "tag"),
    [
        (TOO_SLOW, 3, "failed: " + RULE + ": at 2 replicas 1.05 times", "failure"),
        (ONE_STEP, 0, "inconclusive: " + RULE + ": one step", "skipped"),
    ],
)
def test_a_queue_is_judged_by_its_validation(
    write_suite: SuiteWriter,
    tmp_path: Path,
    cli: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    result: dict[str, Any],
    code: int,
    word: str,
    tag: str,
) -> None:
    monkeypatch.setattr("perfdag.steps.queue.sites.validate_local", AsyncMock(return_value=result))
    params = "{command: [sleep, '0.02'], limit: 2, factor: 1.8}"
    suite = write_suite(f"name: q\nentries:\n  - {{benchmark: queue-scaling, params: {params}}}\n")
    store = ["--store", str(tmp_path / "store")]
    output = cli(["run", str(suite), *store], code).out
    assert f"verdict queue-scaling: {word}" in output
    assert f", verdict {word.partition(':')[0]}" in output  # in the column `state`
    [report] = tmp_path.glob("store/runs/*/report.html")
    assert f"queue-scaling</strong>: {word}" in report.read_text().partition("<h2")[0]
    assert main(["check", "last", *store, "--junit", str(tmp_path / "check.xml")]) == code
    case = ElementTree.parse(tmp_path / "check.xml").find(".//testcase[@classname='q.verdict']")
    assert case is not None
    assert case.get("name") == f"queue-scaling: {RULE}"
    assert [child.tag for child in case] == [tag]


def test_a_run_of_a_whole_suite_with_checks_is_checked(
    write_suite: SuiteWriter, tmp_path: Path, cli: CommandLine
) -> None:
    suite = write_suite(
        "name: q\nchecks:\n  - {metric: wall_time, op: '<', value: 1us}\n"
        "entries:\n  - {benchmark: command, params: {argv: ['true']}}\n"
    )
    run = ["run", str(suite), "--no-report", "--store", str(tmp_path / "store")]
    output = cli(run, 3).out
    assert "failed  threshold: command wall time: wall_time < 1e-06: " in output
    assert "gate FAILED  q  " in output
    assert len(list(tmp_path.glob("store/runs/*/check.xml"))) == 1
    # A part of a suite lacks the other entries, which checks would miss.
    assert "gate" not in cli([*run, "--only", "command"]).out


BENCHMARKS = (
    "queue-scaling",
    "resnet50-interference",
    "resnet50-overhead",
    "scale",
    "vmi-burst",
    "vmi-steady",
)


@pytest.mark.parametrize("name", registry.names())
def test_only_a_benchmark_that_declares_a_verdict_may_return_one(name: str) -> None:
    judged = verdict("failed", "p99 < 1 s", "1.4 s", {"count": 9})
    if name not in BENCHMARKS:
        with pytest.raises(Failed, match="no metric 'verdict' is declared"):
            as_rows(registry.get(name), [judged])
        return
    (row,) = as_rows(registry.get(name), [judged])
    assert (row["value"], row["subject"], row["note"]) == (0.0, "p99 < 1 s", "1.4 s")
    assert not row["headline"]


def rows(*judged: tuple[str, str, int, VerdictWord, str, str]) -> pa.Table:
    """Rows of verdicts: point, rule, repetition, word, phase and status."""
    return pa.Table.from_pylist(
        [
            {
                "entry": "burst",
                "point": point,
                "params": f'{{"vms":"{point}"}}',
                "shape": "{}",
                "pair": None,
                "coords": '{"count":9}',
                "metric": VERDICT,
                "subject": rule,
                "value": VERDICT_VALUES[word],
                "note": f"note {repetition}",
                "phase": phase,
                "status": status,
            }
            for point, rule, repetition, word, phase, status in judged
        ]
    )


def test_the_worst_sample_and_the_worst_rule_decide() -> None:
    verdicts = benchmark_verdicts(
        rows(
            ("a", "x < 1", 1, "failed", "warmup", "ok"),
            ("a", "x < 1", 1, "passed", "measure", "ok"),
            ("a", "x < 1", 2, "inconclusive", "measure", "ok"),
            ("a", "y < 1", 1, "passed", "measure", "ok"),
            ("b", "x < 1", 1, "passed", "measure", "invalid"),
            ("b", "x < 1", 2, "failed", "measure", "invalid"),
            ("c", "x < 1", 1, "passed", "measure", "invalid"),
        ),
        [
            PointState(point, "burst", "vmi-burst", {}, {}, differences={"vms": point})
            for point in "abc"
        ],
    )
    assert [(item.where, item.rule, item.kind, item.note) for item in verdicts] == [
        ("burst vms=a count=9", "x < 1", "inconclusive", "note 2 (1 of 2 samples)"),
        ("burst vms=a count=9", "y < 1", "passed", "note 1"),
        ("burst vms=b count=9", "x < 1", "failed", "note 2"),
    ]
    assert [(item.point, item.kind, count) for item, count in worst_of_points(verdicts)] == [
        ("b", "failed", ""),
        ("a", "inconclusive", "1 of 2 rules inconclusive"),
    ]
