"""MLPerf's own settings, audits and the layout of a submission, with the real LoadGen."""

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from perfdag.benchmark.contract import Gang
from perfdag.hosts.local import LocalHost
from perfdag.results.samples import SampleRecord, run_folder
from perfdag.shape import Shape
from perfdag.steps.resnet50 import loadgen_log, result
from perfdag.steps.resnet50.benchmark import Resnet50
from perfdag.steps.resnet50.load import Load
from perfdag.steps.resnet50.measurements import measurements
from perfdag.steps.resnet50.mlperf import official, submission
from perfdag.steps.resnet50.params import Workload
from tests.resnet50.harness import needs_loadgen

pytestmark = needs_loadgen
SEEDS = {
    "effective_qsl_rng_seed": 2085463073848966840,
    "effective_sample_index_rng_seed": 2747215439041700203,
    "effective_schedule_rng_seed": 16159082839903944936,
}
"""Those of mlcommons/inference, loadgen/mlperf.conf."""
SCENARIOS = {
    "single-stream": {},
    "multi-stream": {"batch": 8},
    "server": {"target_rate": 400},
    "offline": {"batch": 8},
}


def stub(scenario: str, **more: Any) -> Workload:
    return Workload.model_validate(
        {
            "scenario": scenario,
            "system": "stub",
            "stub": {"base": 0.001},
            "mlperf": True,
            "fast": True,
            "min_queries": 700,
            "audits": ["TEST01", "TEST04"],
            **SCENARIOS[scenario],
            **more,
        }
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, list[Any]]]:
    """The program's result and the rows of each scenario."""

    def measure(scenario: str) -> tuple[Any, list[Any]]:
        params = stub(scenario)
        gang = Gang([LocalHost()], Shape(), 120.0, str(tmp_path_factory.mktemp("scratch")))
        output = Resnet50().run(gang, params)
        # A busy machine may break the 15 ms of Server, so the rows are read without the verdict.
        read = result.read(output.texts["result"])
        return dict(read.raw), measurements(read, params)

    with ThreadPoolExecutor() as pool:  # they mostly wait
        return dict(zip(SCENARIOS, pool.map(measure, SCENARIOS), strict=True))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_loadgen_runs_with_its_own_configuration(scenario: str, results: Any) -> None:
    raw, _ = results[scenario]
    assert [test["name"] for test in raw["tests"]] == [
        "performance",
        "accuracy",
        "TEST01",
        "TEST04",
    ]
    for test in raw["tests"]:
        keys = loadgen_log.mllog(test["logs"]["detail"])
        assert keys.items() >= SEEDS.items()
        assert keys["effective_performance_sample_count"] == 1024
        assert not [key for key in keys if key.startswith("error")]
    keys = loadgen_log.mllog(raw["tests"][0]["logs"]["detail"])
    assert keys["effective_scenario"].lower() == scenario.replace("-", "")
    if scenario == "multi-stream":
        assert keys["effective_samples_per_query"] == 8
        assert keys["effective_target_latency_percentile"] == 0.99
    if scenario == "server":
        assert keys["effective_target_latency_ns"] == 15_000_000
    last = loadgen_log.mllog(raw["tests"][3]["logs"]["detail"])
    assert last["effective_performance_issue_same"] is True
    assert last["effective_performance_issue_same_index"] == 3


def test_without_a_shorter_run_nothing_but_the_rate_is_overridden() -> None:
    for scenario, more in SCENARIOS.items():
        params = Workload.model_validate({"scenario": scenario, "mlperf": True, **more})
        spec = params.spec()
        load = Load(scenario, 1, spec["duration"], spec["queries"], 1024, 100.0, target_rate=100.0)
        assert re.fullmatch(
            r"\*\.\w+\.target_(qps|latency) = [\d.]+\n", official.user_conf(load, 2.0)
        )
        assert spec["samples"] == 1024


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_system_that_does_not_cheat_passes_the_accuracy_audit(
    scenario: str, results: Any
) -> None:
    _, rows = results[scenario]
    audits = {row.coords["audit"]: row for row in rows if row.metric == "audit"}
    assert set(audits) == {"TEST01", "TEST04"}
    assert re.search(r"; 0 of [1-9]\d* sampled answers differ", audits["TEST01"].note)
    # Times of a busy machine may move a score by more than 10 %, which is then the result.
    assert all("of the run's" in row.note or "INVALID" in row.note for row in audits.values())


def test_other_answers_and_a_faster_audit_fail(results: Any) -> None:
    raw, _ = results["single-stream"]
    tests = {test["name"]: dict(test["logs"]) for test in raw["tests"]}
    tests["TEST01"] |= {name: tests["performance"][name] for name in ("summary", "detail")}
    assert official.verdicts(tests)["TEST01"][0]
    sampled = json.loads(tests["TEST01"]["accuracy"])
    sampled[0]["data"] = "FFFFFFFF"
    tests["TEST01"]["accuracy"] = json.dumps(sampled)
    passed, note = official.verdicts(tests)["TEST01"]
    assert not passed
    assert note.endswith(f"1 of {len(sampled)} sampled answers differ from the accuracy run")
    detail = tests["performance"]["detail"]
    estimate = loadgen_log.mllog(detail)["early_stopping_latency_ss"]
    for factor, expected in ((0.95, True), (0.8, False)):
        tests["TEST04"] = tests["performance"] | {
            "detail": detail.replace(f"{estimate}", f"{round(estimate * factor)}")
        }
        assert official.verdicts(tests)["TEST04"][0] is expected


def test_multi_stream_is_judged_by_p99_of_queries_of_eight(results: Any) -> None:
    _, rows = results["multi-stream"]
    tail = next(row for row in rows if row.metric == "tail_latency")
    assert (tail.stat, tail.n >= 662) == ("p99", True)
    assert next(row for row in rows if row.metric == "estimated_latency").stat == "p99"


def test_a_submission_has_the_files_of_its_layout(results: Any, tmp_path: Path) -> None:
    raws = {scenario: raw for scenario, (raw, _) in results.items()}
    known = {"submitter": "me", "division": "closed", "system_name": "my box"}
    folders = submission.write(raws, tmp_path, known)
    assert [path.name for path in folders] == ["SingleStream", "MultiStream", "Server", "Offline"]
    files = {str(path.relative_to(folders[0])) for path in folders[0].rglob("*") if path.is_file()}
    logs = ("mlperf_log_detail.txt", "mlperf_log_summary.txt")
    assert files == {
        *(f"{folder}/{log}" for log in logs for folder in ("performance/run_1", "accuracy")),
        *(f"{audit}/performance/run_1/{log}" for log in logs for audit in ("TEST01", "TEST04")),
        "accuracy/mlperf_log_accuracy.json",
        "measurements.json",
        "user.conf",
        "README.md",
    }
    assert (folders[0] / "accuracy/mlperf_log_accuracy.json").stat().st_size <= 10 * 1024
    system = json.loads((tmp_path / "closed/me/systems/my_box.json").read_text())
    assert set(submission.FIELDS) <= set(system)


def test_accuracy_is_written_as_the_checker_reads_it(results: Any) -> None:
    raw, _ = results["offline"]
    labelled = {**raw, "mlperf": {**raw["mlperf"], "top1": 0.7613, "images": 50000}}
    lines = submission.scenario_files(labelled)["accuracy/accuracy.txt"].splitlines()
    assert lines[0] == "accuracy=76.130%, good=38065, total=50000"
    assert re.fullmatch(r"hash=[0-9a-f]{64}", lines[1])


def store_points(root: Path, results: Any, **points: dict[str, Any]) -> None:
    """A run whose points have these results of single-stream, with the changes of each."""
    raw = results["single-stream"][0]
    for name, changes in points.items():
        changed = {**raw, **changes, "spec": {**raw["spec"], **changes.get("spec", {})}}
        sample = SampleRecord(name, 1, "ok", texts={"result": json.dumps(changed, default=str)})
        file = root / run_folder("20260101T000000Z-0") / f"parts/{name}-1.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(sample.dump())


def laid_out(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    module = "perfdag.steps.resnet50.mlperf.submission"
    command = [sys.executable, "-m", module, "20260101T000000Z-0", "out", *options]
    return subprocess.run(
        [*command, "--store", str(folder)], cwd=folder, capture_output=True, text=True, check=False
    )


def test_the_points_of_a_sweep_are_not_mixed(results: Any, tmp_path: Path) -> None:
    store_points(tmp_path, results, a1={}, b2={"spec": {"threads": 2, "precision": "bf16"}})
    result = laid_out(tmp_path)
    assert (result.returncode, (tmp_path / "out").exists()) == (2, False)
    assert result.stderr.startswith("2 points are of scenario single-stream, and a submission")
    assert "b2 (precision bf16, threads 2)" in result.stderr
    assert laid_out(tmp_path, "--point", "b2").returncode == 0
    (written,) = (tmp_path / "out").rglob("measurements.json")
    assert json.loads(written.read_text())["weight_data_types"] == "bf16"
    absent = laid_out(tmp_path, "--point", "c3")
    assert (absent.returncode, absent.stderr.split("of point ")[1]) == (2, "c3\n")


def test_the_points_of_two_systems_are_not_mixed(results: Any, tmp_path: Path) -> None:
    other = {"device": {"name": "CPU: another"}, "spec": {"scenario": "offline"}}
    store_points(tmp_path, results, a1={}, b2=other)
    result = laid_out(tmp_path)
    assert result.returncode == 2
    assert "the devices of the points differ (" in result.stderr


def test_a_run_without_mlperf_is_named(tmp_path: Path) -> None:
    done = laid_out(tmp_path)
    assert done.returncode == 2
    assert done.stderr.endswith("has no result with mlperf: true\n")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"scenario": "find-peak", "mlperf": True}, "mlperf runs single-stream, .*, not find-peak"),
        ({"mlperf": True, "samples": 100}, "a library of 1024 samples: leave samples out"),
        (
            {"scenario": "server", "target_rate": 5, "mlperf": True, "latency_bound": "20ms"},
            "the latency bound of mlperf.conf, 15 ms",
        ),
        ({"audits": ["TEST01"]}, "set mlperf: true"),
        ({"mlperf": True, "audits": ["TEST05"]}, "'TEST01' or 'TEST04'"),
        ({"scenario": "multi-stream"}, "sends 8 samples at a time: set batch: 8"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Workload.model_validate(params)
