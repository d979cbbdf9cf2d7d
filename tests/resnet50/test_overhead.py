"""The overhead of a treatment: pairs, verdicts, and LD_PRELOAD layers."""

import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfdag.benchmark.contract import Gang, Output
from perfdag.hosts.base import Finished
from perfdag.hosts.local import LocalHost
from perfdag.outcome import Failed, Invalid
from perfdag.shape import Shape
from perfdag.stats.student import student_t
from perfdag.steps.resnet50 import preload
from perfdag.steps.resnet50.benchmark import Resnet50
from perfdag.steps.resnet50.interference import Resnet50Interference
from perfdag.steps.resnet50.overhead import Resnet50Overhead
from perfdag.steps.resnet50.overhead_params import OverheadParams
from perfdag.steps.resnet50.paired_cost import overhead
from perfdag.steps.resnet50.workload import program_facts
from tests.resnet50.harness import needs_loadgen


def costs(mean: float, half: float, n: int) -> list[float]:
    """Log ratios whose 95 % interval is about mean plus or minus half (relative)."""
    base = np.array([(-1) ** i for i in range(n)], dtype=float)
    base *= half / (student_t(0.975, n - 1) * statistics.stdev(base) / math.sqrt(n))
    return [math.log1p(mean) + float(item) for item in base - base.mean()]


@pytest.mark.parametrize(
    ("mean", "half", "apart", "verdict"),
    [
        (0.03, 0.01, 0.001, "passed"),
        (0.03, 0.04, 0.003, "inconclusive"),
        (0.08, 0.01, 0.003, "failed"),
    ],
)
def test_the_interval_decides_the_verdict(
    mean: float, half: float, apart: float, verdict: str
) -> None:
    result = overhead(costs(mean, half, 8), 0.05)
    assert (result.mean, result.low, result.high) == pytest.approx(
        (mean, mean - half, mean + half), abs=apart
    )
    assert result.verdict == verdict
    if verdict == "inconclusive":
        # Half the width needs four times the 8 pairs, less for the narrower t.
        assert 20 < result.needed < 60


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(2000):
        result = overhead(list(rng.normal(math.log1p(0.04), 0.02, 6)), 0.05)
        hits += result.low <= 0.04 <= result.high
    assert 0.935 < hits / 2000 < 0.965


@pytest.mark.parametrize("bad", [[], [0.1], [0.1, math.nan]])
def test_too_few_or_broken_pairs_are_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="pairs"):
        overhead(bad, 0.05)


RECORDED = Path(__file__).parent.parent / "recorded" / "loadgen" / "single-stream.json"
P90 = re.compile(r'("key": "result_90.00_percentile_latency_ns", "value": )\d+')


class Drifting(LocalHost):
    """A host in virtual time: each run is 1 % slower than the last, and one behind the wrapper
    takes `cost` more.
    """

    def __init__(self, cost: float) -> None:
        super().__init__("127.0.0.1")
        self.cost, self.latency = cost, 0.010

    def run(self, argv: Sequence[str], **_: Any) -> Finished:
        raw = json.loads(RECORDED.read_text())
        seconds = self.latency * (1 + self.cost if argv[0] == "treated" else 1)
        self.latency *= 1.01
        logs = raw["tests"][0]["logs"]
        logs["detail"] = P90.sub(rf"\g<1>{round(seconds * 1e9)}", logs["detail"])
        return Finished(list(argv), 0, json.dumps(raw), "", seconds)


NO_ROOM = {"program": 1, "error": {"kind": "memory", "text": "batch 9 does not fit"}}


class Ending(Drifting):
    """One of its runs ends as told."""

    def __init__(self, number: int, end: dict[str, Any]) -> None:
        super().__init__(0.0)
        self.number, self.end, self.runs = number, end, 0

    def run(self, argv: Sequence[str], **more: Any) -> Finished:
        self.runs += 1
        output = super().run(argv, **more)
        return replace(output, **self.end) if self.runs == self.number else output


@pytest.mark.parametrize(
    ("number", "end", "message"),
    [
        (2, {"code": 3, "stdout": json.dumps(NO_ROOM)}, "batch 9 does not fit"),
        (3, {"code": 137, "stdout": ""}, "the program was killed"),
    ],
)
def test_the_first_run_without_a_result_ends_the_comparison_and_keeps_the_texts_before_it(
    number: int, end: dict[str, Any], message: str
) -> None:
    params = OverheadParams.model_validate(
        {"system": "stub", "scenario": "single-stream", "wrapper": ["treated"], "pairs": 2}
    )
    host = Ending(number, end)
    with pytest.raises(
        Failed, match=rf"^run {number} of 4 \((treatment|baseline)\): {message}"
    ) as lost:
        Resnet50Overhead().run(Gang([host], Shape(), 60, "/"), params)
    assert host.runs == number
    assert sum(text.startswith("{") for text in lost.value.texts.values()) >= 2
    assert lost.value.texts["order"]


@pytest.mark.parametrize(("cost", "verdict"), [(0.0, 1), (0.02, 1), (0.08, 0), (0.3, 0)])
def test_the_cost_of_a_treatment_is_found_and_drift_is_not_part_of_it(
    cost: float, verdict: float
) -> None:
    params = OverheadParams.model_validate(
        {"system": "stub", "scenario": "single-stream", "wrapper": ["treated"], "pairs": 12}
    )
    benchmark = Resnet50Overhead()
    output = benchmark.run(Gang([Drifting(cost)], Shape(), 60, "/"), params)
    values = {
        (measurement.metric, measurement.stat): measurement.value
        for measurement in benchmark.parse(output, params)
    }
    assert values[("overhead", "mean")] == pytest.approx(cost, abs=0.001)
    assert values[("overhead_bound", "low")] < cost < values[("overhead_bound", "high")]
    assert values[("verdict", "value")] == verdict
    broken = {**output.texts, "order": "A"}
    with pytest.raises(Failed, match="12 pairs were requested"):
        benchmark.parse(Output(broken), params)


WRAPPER = """
import sys
import perfdag.steps.resnet50.inference.system_under_test as system
plain = system.sleep_until
system.sleep_until = lambda deadline: plain(deadline + 0.01)
sys.argv = sys.argv[3:]
from perfdag.steps.resnet50.__main__ import main
sys.exit(main())
"""


@needs_loadgen
@pytest.mark.slow
def test_a_real_wrapper_is_run_and_its_cost_is_seen(tmp_path: Path) -> None:
    # the wrapper swaps the program for one whose stub takes 10 ms more of 10; argv after it: python
    # -m module --spec -
    options = {
        "wrapper": [sys.executable, "-c", WRAPPER],
        "pairs": 3,
        "min_duration": 0.2,
        "min_queries": 64,
    }
    params = OverheadParams.model_validate(
        {"system": "stub", "scenario": "single-stream", **options}
    )
    benchmark = Resnet50Overhead()
    output = benchmark.run(Gang([LocalHost()], Shape(), 60, str(tmp_path)), params)
    values = [
        measurement
        for measurement in benchmark.parse(output, params)
        if measurement.metric == "cost"
    ]
    plain, treated = (
        [value.value for value in values if value.coords["side"] == side]
        for side in ("baseline", "treatment")
    )
    assert len(plain) == len(treated) == 3
    assert (
        min(treated) > 0.02
    )  # other work on this machine adds to either side, so only the shorter end is sharp
    assert 0.01 < min(plain) < 0.02


def test_invalid_runs_make_the_comparison_invalid() -> None:
    good = json.loads(RECORDED.read_text())
    bad = json.loads(RECORDED.read_text())
    bad["logits"] = {"ok": False, "error": 0.7, "tolerance": 0.001, "finite": True}
    texts = {
        "order": "ABBA",
        "000A": json.dumps(good),
        "001B": json.dumps(bad),
        "002B": json.dumps(good),
        "003A": json.dumps(good),
    }
    params = OverheadParams.model_validate(
        {"system": "stub", "scenario": "single-stream", "wrapper": ["env"], "pairs": 2}
    )
    with pytest.raises(Invalid, match=r"run 2 \(treatment\): logits differ"):
        Resnet50Overhead().parse(Output(texts), params)
    texts["001B"] = json.dumps({**good, "model": {"weights": "random, seed 3"}})
    with pytest.raises(
        Invalid, match="baseline and treatment ran different weights: none, random, seed 3"
    ):
        Resnet50Overhead().parse(Output(texts), params)


@pytest.mark.parametrize(
    ("name", "other", "message"),
    [
        (
            "device",
            {"name": "Tesla T4", "uuid": "GPU-2"},
            "device is Tesla T4 GPU-1 in the baseline and Tesla T4 GPU-2 in the treatment",
        ),
        (
            "device",
            {"name": "NVIDIA L4"},
            "device is Tesla T4 GPU-1 in the baseline and NVIDIA L4 in the treatment",
        ),
        (
            "versions",
            {"torch": "2.8.0", "torchvision": "0.24"},
            r"torch is 2\.9\.0 in the baseline and 2\.8\.0 in the treatment",
        ),
        (
            "versions",
            {"torch": "2.9.0", "torchvision": "0.23"},
            r"torchvision is 0\.24 in the baseline and 0\.23 in",
        ),
        (
            "model",
            {"weights": "none", "threads": 2},
            "threads is 16 in the baseline and 2 in the treatment: set threads",
        ),
    ],
)
def test_sides_that_differ_by_more_than_the_treatment_are_no_comparison(
    name: str, other: dict[str, Any], message: str
) -> None:
    params = OverheadParams.model_validate(
        {"system": "stub", "scenario": "single-stream", "wrapper": ["env"], "pairs": 2}
    )
    raw = json.loads(RECORDED.read_text()) | {
        "device": {"name": "Tesla T4", "uuid": "GPU-1"},
        "versions": {"torch": "2.9.0", "torchvision": "0.24"},
        "model": {"weights": "none", "threads": 16},
    }
    texts = {"order": "ABBA", **dict.fromkeys(("000A", "001B", "002B", "003A"), json.dumps(raw))}
    assert Resnet50Overhead().parse(Output(texts), params)
    texts["002B"] = json.dumps(raw | {name: other})
    with pytest.raises(
        Invalid, match=rf"{message.split()[0]} is .* in the baseline and .* and .* in the treatment"
    ):
        Resnet50Overhead().parse(Output(texts), params)
    texts["001B"] = texts["002B"]
    with pytest.raises(Invalid, match=message):
        Resnet50Overhead().parse(Output(texts), params)


def test_another_loadgen_is_no_comparison_and_both_sides_are_in_the_facts() -> None:
    params = OverheadParams.model_validate(
        {"system": "stub", "scenario": "single-stream", "wrapper": ["treated"], "pairs": 2}
    )

    class Newer(Drifting):
        """LoadGen is another version behind the wrapper."""

        def run(self, argv: Sequence[str], **more: Any) -> Finished:
            result = super().run(argv, **more)
            return (
                replace(
                    result,
                    stdout=re.sub(
                        r'(loadgen_version\\", \\"value\\": \\")\S+', r"\g<1>9.9.9", result.stdout
                    ),
                )
                if argv[0] == "treated"
                else result
            )

    output = Resnet50Overhead().run(Gang([Newer(0.0)], Shape(), 60, "/"), params)
    assert output.facts["sides"]["treatment"]["LoadGen"] == ["9.9.9"]
    assert output.facts["sides"]["baseline"]["device"] == ["stub"]
    with pytest.raises(
        Invalid, match=r"LoadGen is \S+ in the baseline and 9\.9\.9 in the treatment"
    ):
        Resnet50Overhead().parse(output, params)


def test_a_treatment_that_breaks_the_latency_bound_fails_and_a_baseline_that_does_is_invalid() -> (
    None
):
    options = {"scenario": "server", "target_rate": 400, "wrapper": ["env"], "pairs": 3}
    params = OverheadParams.model_validate({"system": "stub", **options})
    raw = json.loads(RECORDED.with_name("server-overloaded.json").read_text())
    logs = raw["tests"][0]["logs"]
    held = {name: text.replace("INVALID", "VALID") for name, text in logs.items()}
    held["detail"] = re.sub(
        r'("result_99.00_percentile_latency_ns", "value": )\d+', r"\g<1>9000000", held["detail"]
    )
    plain, late = (
        json.dumps({**raw, "tests": [raw["tests"][0] | {"logs": item}]}) for item in (held, logs)
    )
    texts = {"order": "ABBAAB"} | {
        f"{n:03}{side}": plain if side == "A" else late for n, side in enumerate("ABBAAB")
    }
    values = Resnet50Overhead().parse(Output(texts), params)
    assert {name for value in values for name in value.coords} <= set(Resnet50Overhead.coords)
    assert next(value.value for value in values if value.metric == "verdict") == 0
    valid = {
        (value.coords["side"], value.coords["pair"]): value.value
        for value in values
        if value.metric == "valid"
    }
    assert valid == {
        (side, pair): float(side == "baseline")
        for side in ("baseline", "treatment")
        for pair in range(3)
    }
    with pytest.raises(Invalid, match=r"run 1 \(baseline\): LoadGen says INVALID"):
        Resnet50Overhead().parse(Output({**texts, "000A": late}), params)
    short = late.replace(
        r"result_min_duration_met\", \"value\": true",
        r"result_min_duration_met\", \"value\": false",
    )
    assert short != late
    with pytest.raises(Invalid, match=r"run 2 \(treatment\): LoadGen says INVALID"):
        Resnet50Overhead().parse(Output({**texts, "001B": short}), params)


def test_marks_and_facts_are_those_of_one_measurement() -> None:
    options = {"wrapper": ["env"], "pairs": 2, "check_logits": False, "fast": True}
    params = OverheadParams.model_validate(
        {"system": "stub", "scenario": "single-stream", **options}
    )
    raw = json.loads(RECORDED.read_text())
    raw["model"]["weights_verified"] = False
    raw["tests"][0]["logs"] = {
        name: text.replace("VALID", "INVALID") for name, text in raw["tests"][0]["logs"].items()
    }
    raw["tests"][0]["logs"]["detail"] = raw["tests"][0]["logs"]["detail"].replace(
        '"result_query_count", "value": 700', '"result_query_count", "value": 20'
    )
    texts = {"order": "ABBA", **dict.fromkeys(("000A", "001B", "002B", "003A"), json.dumps(raw))}
    marks = {
        "fast": "not comparable",
        "loadgen": "INVALID",
        "logits_checked": False,
        "weights": "unverified",
    }
    assert all(
        marks.items() <= measurement.coords.items()
        for measurement in Resnet50Overhead().parse(Output(texts), params)
    )
    facts = program_facts(texts)
    assert facts["model"]["weights_verified"] is False
    assert facts["logits"].keys() == {"000A", "001B", "002B", "003A"}


def test_the_treatment_may_have_an_interpreter_of_its_own() -> None:
    options = {
        "wrapper": ["treated"],
        "pairs": 2,
        "python": "/here/python",
        "treatment_python": "/there/python",
    }
    params = OverheadParams.model_validate(
        {"system": "stub", "scenario": "single-stream", **options}
    )
    output = Resnet50Overhead().run(Gang([Drifting(0.0)], Shape(), 60, "/"), params)
    assert [argv[:2] for argv in output.argv] == [
        ["/here/python", "-m"],
        ["treated", "/there/python"],
    ]


@needs_loadgen
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wrapper": ["env"], "treatment_python": sys.executable}, []),
        (
            {"wrapper": ["env"], "treatment_python": "/nowhere/python"},
            ["/nowhere/python (Python) behind env"],
        ),
        (
            {"wrapper": ["false"], "treatment_python": sys.executable},
            [f"{sys.executable} (Python) behind false"],
        ),
        ({"wrapper": ["false"]}, [f"{sys.executable} (Python) behind false"]),
        ({"wrapper": ["no-such-tool"]}, ["no-such-tool"]),
        (
            {"wrapper_env": {"A": "b"}, "treatment_python": "/nowhere/python"},
            ["/nowhere/python (Python) behind wrapper_env"],
        ),
    ],
)
def test_the_interpreter_of_the_treatment_is_tried_behind_its_wrapper(
    options: dict[str, Any], message: list[str], tmp_path: Path
) -> None:
    params = OverheadParams.model_validate(
        {"system": "stub", "scenario": "single-stream", **options}
    )
    tools = Resnet50Overhead().missing(Gang([LocalHost()], Shape(), 60, str(tmp_path)), params)
    assert [tool.program for tool in tools] == message


COMMON = {
    "system": "stub",
    "scenario": "single-stream",
    "fast": True,
    "min_duration": 0.1,
    "stub": {"base": 0.001},
}


@pytest.fixture
def layer(tmp_path: Path) -> str:
    """A library that nothing else has loaded: a copy of the C library's mathematics."""
    result = re.search(r"(/\S*/libm[.-]\S*)$", Path("/proc/self/maps").read_text(), re.M)
    if result is None:
        pytest.skip("no libm is mapped here to make a library of")
    return str(shutil.copy(result[1], tmp_path / "layer.so"))


def test_a_library_is_found_by_its_path_or_its_name(tmp_path: Path) -> None:
    mapped = {str(tmp_path.resolve() / "liblayer.so.1.2"), "/lib/libc.so.6"}
    (tmp_path / "link.so").symlink_to(tmp_path / "liblayer.so.1.2")
    there = [
        f"{tmp_path}/liblayer.so.1.2",
        f"{tmp_path}/link.so",
        "liblayer.so",
        "libc.so.6",
        "/opt/$LIB/libc.so.6",
    ]
    assert [preload.loaded(entry, mapped) for entry in there] == [True] * 5
    absent = [
        f"{tmp_path}/libc.so.6",
        f"{tmp_path}/other/liblayer.so.1.2",
        "liblay.so",
        "layer.so",
        "/opt/$LIB/libd.so",
    ]
    assert [preload.loaded(entry, mapped) for entry in absent] == [False] * 5
    assert preload.entries(" /a.so:/b.so  c.so") == ["/a.so", "/b.so", "c.so"]


def test_a_library_is_in_a_process_whatever_the_file_is_called_to_which_its_name_leads(
    layer: str, tmp_path: Path
) -> None:
    named = tmp_path / "vgpu.so"
    named.symlink_to(Path(layer).rename(tmp_path / "vgpu-1.2"))
    code = (
        "import json; from perfdag.steps.resnet50 import preload; "
        "print(json.dumps(preload.inspect({})))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "LD_PRELOAD": str(named)},
        capture_output=True,
        check=True,
    )
    assert json.loads(ran.stdout)["preloaded"] == {str(named): True}


@needs_loadgen
@pytest.mark.slow
@pytest.mark.parametrize("wrapper", [[], ["env", "-i"]])
def test_a_layer_that_is_loaded_is_a_treatment_whatever_the_wrapper_passes_on(
    wrapper: list[str], layer: str, tmp_path: Path
) -> None:
    benchmark, gang = Resnet50Overhead(), Gang([LocalHost()], Shape(), 60, str(tmp_path))
    options = {
        **COMMON,
        "wrapper": wrapper,
        "wrapper_env": {"LD_PRELOAD": layer, "LAYER": "on"},
        "pairs": 2,
    }
    params = benchmark.Params.model_validate(options)
    assert benchmark.missing(gang, params) == []
    output = benchmark.run(gang, params)
    assert benchmark.parse(output, params)
    raws = {
        side: json.loads(next(text for name, text in output.texts.items() if name[3:] == side))
        for side in "AB"
    }
    assert raws["B"]["environment"] == {"LD_PRELOAD": layer, "LAYER": "on"}
    assert (raws["B"]["preloaded"], raws["A"]["preloaded"]) == ({layer: True}, {layer: False})
    assert raws["A"]["environment"]["LAYER"] is None


@needs_loadgen
@pytest.mark.slow
def test_a_layer_that_ld_so_passes_over_is_missing_and_no_treatment_that_costs_nothing(
    tmp_path: Path,
) -> None:
    gang = Gang([LocalHost(name="n1")], Shape(), 60, str(tmp_path))
    for benchmark in (Resnet50(), Resnet50Overhead(), Resnet50Interference()):
        params = benchmark.Params.model_validate(
            {**COMMON, "wrapper_env": {"LD_PRELOAD": "/nowhere/layer.so"}}
        )
        (tool,) = benchmark.missing(gang, params)
        assert tool.program.startswith("/nowhere/layer.so (LD_PRELOAD)")
        assert tool.advice.startswith(
            "n1 reports: ERROR: ld.so: object '/nowhere/layer.so' from LD_PRELOAD cannot be "
            "preloaded"
        )
        output = benchmark.run(gang, params)
        assert any(
            "cannot be preloaded" in text for name, text in output.texts.items() if "stderr" in name
        )
        with pytest.raises(
            Invalid, match=r"LD_PRELOAD /nowhere/layer.so was not loaded into the program"
        ):
            benchmark.parse(output, params)
    by_wrapper = Resnet50Overhead.Params.model_validate(
        {**COMMON, "wrapper": ["env", "LD_PRELOAD=/nowhere/layer.so"], "pairs": 2}
    )
    (tool,) = Resnet50Overhead().missing(gang, by_wrapper)
    assert tool.program == "/nowhere/layer.so (LD_PRELOAD) behind env"
    with pytest.raises(
        Invalid, match=r"LD_PRELOAD /nowhere/layer.so was not loaded into the treatment"
    ):
        Resnet50Overhead().parse(Resnet50Overhead().run(gang, by_wrapper), by_wrapper)


@needs_loadgen
def test_a_library_that_was_broken_before_is_nobodys_treatment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/old/broken.so")
    params = Resnet50Overhead.Params.model_validate({**COMMON, "wrapper": ["env"]})
    assert Resnet50Overhead().missing(Gang([LocalHost()], Shape(), 60, str(tmp_path)), params) == []


@pytest.mark.parametrize(
    ("plain", "treated", "message"),
    [
        (
            {"preloaded": {"/l.so": False}},
            {"preloaded": {"/l.so": True}, "environment": {"L": "1"}},
            None,
        ),
        (
            {"preloaded": {"/l.so": True}},
            {"preloaded": {"/l.so": True}, "environment": {"L": "1"}},
            "the baseline has /l.so too",
        ),
        (
            {},
            {"preloaded": {"/l.so": True}, "environment": {"L": None}},
            r"\(treatment\): L of wrapper_env did not reach the program",
        ),
        ({}, {}, r"\(treatment\): LD_PRELOAD /l.so was not loaded"),
        (
            {"preloaded": {"/l.so": False}, "device": {"name": "CPU: Model X"}},
            {
                "preloaded": {"/l.so": True},
                "environment": {"L": "1"},
                "device": {"name": "CPU: unknown"},
            },
            None,
        ),
        (
            {"preloaded": {"/old.so": False}},
            {"preloaded": {"/l.so": True, "/old.so": False}, "environment": {"L": "1"}},
            None,
        ),
    ],
)
def test_the_sides_differ_by_the_layer_and_not_by_a_cpu_without_a_name(
    plain: dict[str, Any], treated: dict[str, Any], message: str | None
) -> None:
    options = {
        "system": "stub",
        "scenario": "single-stream",
        "wrapper_env": {"LD_PRELOAD": "/l.so", "L": "1"},
        "pairs": 2,
    }
    params = Resnet50Overhead.Params.model_validate(options)
    raw = json.loads(RECORDED.read_text())
    texts = {"order": "ABBA"} | {
        f"{n:03}{side}": json.dumps(raw | (plain if side == "A" else treated))
        for n, side in enumerate("ABBA")
    }
    if message is None:
        assert Resnet50Overhead().parse(Output(texts), params)
    else:
        with pytest.raises(Invalid, match=message):
            Resnet50Overhead().parse(Output(texts), params)
