"""The program that measures, and its parameters."""

import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from pydantic import ValidationError

from perfdag.benchmark.contract import Output
from perfdag.benchmark.registry import get
from perfdag.hosts.base import CommandResult
from perfdag.outcome import Failed, Invalid
from perfdag.plan.plan import make_plan
from perfdag.shape import Shape
from perfdag.stats import peak
from perfdag.steps.resnet50 import launch, loadgen, loadgen_log, program
from perfdag.steps.resnet50.benchmark import Resnet50
from perfdag.steps.resnet50.inference import system_under_test
from perfdag.steps.resnet50.inference.system_under_test import Stub, StubSubject
from perfdag.steps.resnet50.interference_params import InterferenceParams
from perfdag.steps.resnet50.load import Load
from perfdag.steps.resnet50.overhead_params import OverheadParams
from perfdag.steps.resnet50.params import Workload
from perfdag.suite.load import load_suite
from tests.resnet50.harness import Indices, fail, run_resnet50

pytest.importorskip(
    "mlperf_loadgen", reason="mlcommons-loadgen is not installed: pip install 'perfdag[dev]'"
)
SMALL = {"fast": True, "threads": 1, "samples": 4}


def run(folder: Path, **params: Any) -> tuple[Output, dict[tuple[str, str], float]]:
    """Run the benchmark; what the program said, and its values by metric and stat."""
    output, rows = run_resnet50(Workload.model_validate({**SMALL, **params}), folder)
    return output, {(row.metric, row.stat): row.value for row in rows}


def torch() -> Any:
    return pytest.importorskip(
        "torch", reason="torch is not installed: pip install 'perfdag[torch]'"
    )


def test_cpus_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"^cpus 0-4095: this process may use "):
        run(tmp_path, system="stub", cpus="0-4095")


class Ended(BaseException):
    """In place of the end of the process."""


def written_by(params: Workload, folder: Path, prepare: Callable[[program.Program], None]) -> str:
    """Run the program in this process; return what it wrote for the lead."""
    with (folder / "out").open("wb") as out:
        measured = program.Program(params.spec(), out.fileno())
        prepare(measured)
        try:
            measured.measure()
        except Exception as error:
            with pytest.raises(Ended):
                measured.fail(error)
        else:
            measured.emit()
    return (folder / "out").read_text()


def error_of(
    system: type[Stub], folder: Path, monkeypatch: pytest.MonkeyPatch, **params: Any
) -> str:
    """The error of the row of a stub that breaks."""

    monkeypatch.setattr(system_under_test, "Stub", system)
    monkeypatch.setattr(os, "_exit", Mock(side_effect=Ended))
    value = Workload.model_validate(
        {**SMALL, "system": "stub", "batch": 64, "stub": {"base": 0.001}, **params}
    )
    written = written_by(value, folder, lambda _: None)
    printed = launch.result_text(CommandResult([], 0, written, "", 1.0), value)
    with pytest.raises(Failed) as error:
        Resnet50().parse(Output({"result": printed}), value)
    return str(error.value)


NO_MEMORY = (
    "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried 9 "
    "bytes."
)


class Small(Stub):
    def infer(self, indices: Indices, ready: float) -> np.ndarray:
        if len(indices) > 5:
            raise RuntimeError(NO_MEMORY)
        return super().infer(indices, ready)


class Samples(Stub):
    def load(self, indices: Sequence[int]) -> None:
        raise MemoryError("Unable to allocate 9 GiB for an array")


class Checks(StubSubject):
    def check_logits(self) -> dict[str, Any]:
        raise RuntimeError(
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
        )


def no_model(spec: Any) -> Any:
    raise RuntimeError("CUDA out of memory. Tried to allocate 98 MiB")


@pytest.mark.parametrize(
    ("system", "subject", "message"),
    [
        (
            Small,
            StubSubject,
            "batch 64 does not fit in the memory of cpu: the largest that fits is 5 ",
        ),
        (
            Samples,
            StubSubject,
            "out of memory while 4 samples were loaded for batch 64: lower samples, or raise the "
            "memory limit (Unable to",
        ),
        (
            Stub,
            Checks,
            "out of memory at the checks of batch 64, which fitted in the warm-up: lower batch",
        ),
        (
            Stub,
            no_model,
            "out of memory while the model was set up, before any batch: stop what else uses cpu",
        ),
    ],
)
def test_memory_that_runs_out_names_the_batch_and_what_to_lower(
    system: type[Stub],
    subject: Any,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(program, "StubSubject", subject)
    assert error_of(system, tmp_path, monkeypatch).startswith(message)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            {
                "latency_bound": 0.0001,
                "search_duration": 0.01,
                "min_duration": 0.01,
                "max_queries": 20,
            },
            "2 trials gave no answer: 900/s failed, 600/s failed",
        ),
        (
            {
                "latency_bound": 0.5,
                "search_duration": 1.0,
                "min_duration": 30,
                "max_queries": 662,
                "fast": False,
            },
            "max_queries 662 ended a trial at 900/s before it had lasted 1 s: raise it, or leave "
            "it out",
        ),
    ],
)
def test_a_search_without_a_peak_is_a_failed_row_that_says_what_was_tried(
    params: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peak, "MOST_PROBES", 2)  # to the lowest rate it would be minutes
    search: dict[str, Any] = {"scenario": "find-peak", "batch": 1, "target_rate": 900.0}
    search["stub"] = {"base": 0.0002}  # far quicker than 900/s, on a busy machine too
    assert error_of(Stub, tmp_path, monkeypatch, **search, **params) == message


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            {
                "scenario": "server",
                "target_rate": 0.5,
                "min_queries": 662,
                "min_duration": 60,
                "fast": False,
            },
            (
                "did not end within 9 s: 662 queries at 0.5/s arrive in 1324 s: raise timeout or "
                "target_rate, or lower min_queries"
            ),
        ),
        (
            {"scenario": "find-peak", "fast": False},
            r"\(1 finished trials .*\): .* search_duration; each trial takes 662 queries",
        ),
        (
            {"scenario": "server", "target_rate": 500},
            "within 9 s: raise timeout or lower min_duration",
        ),
        ({"scenario": "accuracy", "imagenet": "/x"}, "within 9 s: raise timeout$"),
        (
            {"scenario": "offline", "min_duration": 60, "fast": False},
            (
                "24576 samples and 60 s at least were requested: raise timeout, or lower "
                "min_queries and min_duration"
            ),
        ),
    ],
)
def test_a_program_that_takes_too_long_says_what_makes_it_so(
    params: dict[str, Any], message: str
) -> None:
    trials = '{"test": {}}\n{"test": {"logs": ' if params["scenario"] == "find-peak" else ""
    with pytest.raises(Failed, match=message):
        launch.result_text(
            CommandResult([], -9, trials, "", 9.0, timed_out=True),
            Workload.model_validate({**SMALL, **params}),
        )


@pytest.mark.parametrize("trials", range(3))
def test_the_result_is_the_last_line(trials: int) -> None:
    result, printed = '{"program": 1}\n', '{"test": {}}\n' * trials
    ended = CommandResult([], 0, printed + result, "", 1.0)
    assert launch.result_text(ended, Workload.model_validate(SMALL)) == result


@pytest.mark.parametrize(
    ("finished", "message"),
    [
        (
            CommandResult([], -9, "", "", 4.0),
            (
                "batch 8 with 4 samples took too much; lower batch or samples, or raise the "
                "memory limit"
            ),
        ),
        (
            CommandResult([], 137, "", "", 4.0),
            "the program was killed, as the kernel does when memory runs out",
        ),
        (
            CommandResult([], -9, "", "", 4.0, timed_out=True),
            "did not end within 4 s: 16 samples and 2 s at least were requested: raise timeout",
        ),
        (
            CommandResult([], 1, "", "Traceback\nImportError: libcudart.so", 4.0),
            "exited 1 without a result: (?s:.*)libcudart",
        ),
    ],
)
def test_a_program_that_ends_without_a_result_says_why(
    finished: CommandResult, message: str
) -> None:
    with pytest.raises(Failed, match=message):
        launch.result_text(finished, Workload.model_validate({**SMALL, "batch": 8}))


@pytest.mark.slow
def test_compiled_bf16_on_one_cpu(tmp_path: Path) -> None:
    torch()
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed, and torch.compile needs it on a CPU")
    # a cache of its own: an earlier compilation would hide how long one takes
    output, values = run(
        tmp_path,
        scenario="offline",
        backend="compile",
        precision="bf16",
        cpus=str(min(os.sched_getaffinity(0))),
        min_queries=4,
        threads=None,
        wrapper_env={"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")},
    )
    assert output.facts["model"]["threads"] == 1  # one CPU is allowed
    assert 1e-4 < values["logit_error", "max"] < 0.1
    assert values["throughput", "value"] > 0
    # compilation is there and not in what is timed
    first = values["first_batch", "value"]
    assert first > values["warm_batch", "p50"] + 3
    assert 3 < values["compile_time", "total"] < first


@pytest.mark.slow
def test_server_is_checked_at_every_size_that_it_may_run(tmp_path: Path) -> None:
    torch()
    output, values = run(
        tmp_path,
        scenario="server",
        batch=3,
        target_rate=20.0,
        latency_bound=60.0,
        max_delay=0.05,
        min_queries=16,
    )
    raw = json.loads(output.texts["result"])
    for part in ("warmup", "logits", "logits_after"):
        assert raw[part]["by_size"].keys() == {"1", "2", "3"}
    assert set(raw["tests"][0]["batches"]) <= {"1", "2", "3"}
    assert raw["logits"]["same_class"] == raw["logits"]["images"] == 4 + 4 + 6
    assert values["logit_error", "max"] < 1e-4
    assert {name for name, _ in values} >= {"batch_size", "phase_time"}


@pytest.mark.slow
def test_accuracy_of_a_folder_of_images(tmp_path: Path) -> None:
    torch()
    from PIL import Image

    from perfdag.steps.resnet50.inference.images import decode, preprocess
    from perfdag.steps.resnet50.inference.network import build

    rng, folder = np.random.default_rng(1), tmp_path / "images"
    folder.mkdir()
    for number, (height, width) in enumerate(((300, 260), (256, 400), (224, 224), (512, 300))):
        Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(
            folder / f"{number}.png"
        )
    files = sorted(folder.glob("*.png"))
    with torch().inference_mode():
        labels = [
            int(build("random", 0)[0](torch().from_numpy(preprocess(decode(file)[None]))).argmax())
            for file in files
        ]
    right = [f"{file.name} {label}" for file, label in zip(files, labels, strict=True)]
    wrong = [*right[:3], f"{files[3].name} {(labels[3] + 1) % 1000}"]
    for lines, share in ((right, 1.0), (wrong, 0.75)):
        (folder / "val_map.txt").write_text("\n".join(lines) + "\n")
        output, values = run(tmp_path, scenario="accuracy", imagenet=str(folder), batch=2)
        assert values[("top1", "value")] == share
        assert output.facts["accuracy"]["images"] == 4


@pytest.mark.slow
def test_weights_that_change_while_it_runs_make_the_row_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch()
    from perfdag.steps.resnet50.inference.model import Resnet50 as System
    from perfdag.steps.resnet50.inference.system_checks import ModelSubject

    class Failing(System):
        """Memory goes bad at the end of LoadGen's test."""

        def unload(self, indices: Sequence[int]) -> None:
            super().unload(indices)
            with torch().no_grad():
                self.net.layer3[2].conv2.weight[:8, ::3] *= -64.0

    def prepare(measured: program.Program) -> None:
        subject = ModelSubject(dict(measured.spec), 1)
        subject.system.__class__ = Failing
        monkeypatch.setattr(program, "model_subject", lambda spec: subject)

    params = Workload.model_validate({**SMALL, "scenario": "offline", "min_queries": 2, "seed": 3})
    written = written_by(params, tmp_path, prepare)
    assert json.loads(written)["logits"]["ok"]
    with pytest.raises(
        Invalid,
        match=r"logits differ by .* after the measurement: weights or arithmetic are corrupted",
    ):
        Resnet50().parse(Output({"result": written}), params)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"batch": 0}, "greater than or equal to 1"),
        ({"scenario": "server", "target_rate": 0}, "greater than 0"),
        ({"scenario": "server", "target_rate": -5}, "greater than 0"),
        ({"scenario": "server"}, "needs target_rate"),
        ({"precision": "tf32"}, "device: cuda"),
        ({"precision": "int8"}, "'fp32', 'tf32', 'bf16' or 'fp16'"),
        ({"scenario": "accuracy"}, "needs imagenet"),
        ({"scenario": "single-stream", "batch": 8}, "batch 1, not 8"),
        ({"latency_bound": "0s"}, "more than zero"),
        ({"weights_sha256": "a" * 64}, "needs a weights file"),
        ({"cpus": "0; rm -rf /"}, "match pattern"),
        ({"wrapper_env": {"A=B": "1"}}, "environment variable"),
        ({"wrapper_env": {"-u": "1"}}, "environment variable"),
        ({"threads": 0}, "greater than or equal to 1"),
        ({"price_per_hour": 0}, "greater than 0"),
        ({"colour": "red"}, "Extra inputs"),
        ({"max_queries": 100}, "max_queries does nothing in scenario offline"),
        (
            {"scenario": "single-stream", "max_queries": 99},
            "max_queries 99 ends a run before the 100 queries",
        ),
        (
            {"scenario": "server", "target_rate": 5, "min_queries": 662, "max_queries": 661},
            "before the 662 queries",
        ),
        ({"scenario": "server", "target_rate": 5, "max_queries": 458}, "before the 459 queries"),
        (
            {"scenario": "server", "target_rate": 5, "min_queries": 9, "max_queries": 458},
            "before the 459 queries",
        ),
        (
            {"scenario": "single-stream", "min_queries": 9, "max_queries": 63},
            "before the 64 queries",
        ),
        ({"scenario": "find-peak", "max_queries": 661}, "before the 662 queries"),
        (
            {"scenario": "server", "target_rate": 20, "max_queries": 1308, "min_duration": 60},
            (
                r"max_queries 1308 at 20/s \(Poisson\) may end a run before min_duration \(60 "
                r"s\), .* INVALID: raise it to 1309,"
            ),
        ),
        (
            {"scenario": "server", "target_rate": 5, "max_queries": 3000},
            r"before min_duration \(600 s\), .* raise it to 3169,",
        ),
        ({"scenario": "server", "target_rate": float("inf")}, "finite number"),
        ({"price_per_hour": float("inf")}, "finite number"),
        (
            {"scenario": "single-stream", "target_rate": 5},
            "target_rate does nothing in scenario single-stream",
        ),
        (
            {"scenario": "server", "target_rate": 5, "fast": True, "max_queries": 10},
            "before its 64 queries: raise it, or lower min_queries",
        ),
        (
            {"scenario": "single-stream", "fast": True, "min_queries": 9, "max_queries": 8},
            "before its 9 queries",
        ),
    ],
)
def test_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Workload.model_validate(params)


@pytest.mark.parametrize(
    "params",
    [
        {"scenario": "find-peak", "max_queries": 50, "fast": True},
        {
            "scenario": "server",
            "target_rate": 5,
            "max_queries": 25,
            "min_queries": 10,
            "fast": True,
        },
        {"scenario": "find-peak", "max_queries": 662},
    ],
)
def test_a_smoke_test_may_stop_early(params: dict[str, Any]) -> None:
    assert Workload(**params).max_queries == params["max_queries"]


@pytest.mark.parametrize(
    ("model", "params", "message"),
    [
        (OverheadParams, {}, "treatment is not named"),
        (InterferenceParams, {"memory_share": 0.5}, "needs device_memory"),
    ],
)
def test_comparisons_refuse_what_they_cannot_compare(
    model: Any, params: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        model.model_validate(params)


@pytest.mark.parametrize(
    ("rate", "duration", "most"),
    [(20.0, 60.0, 1309), (5.0, 600.0, 3169), (1000.0, 600.0, 602329)],
)
def test_queries_that_are_surely_enough_for_min_duration_are_taken(
    rate: float, duration: float, most: int
) -> None:
    params = Workload(scenario="server", target_rate=rate, min_duration=duration, max_queries=most)
    assert most - 3 * most**0.5 >= rate * params.duration() > most - 1 - 3 * (most - 1) ** 0.5


@pytest.mark.parametrize(("scenario", "least"), [("server", 459), ("single-stream", 64)])
def test_the_fewest_queries_are_those_with_which_loadgen_can_say_valid(
    scenario: str, least: int
) -> None:
    valid = {}
    for queries in (least - 1, least):
        load = Load(scenario, 1, 0.001, queries, 64, 1000, target_rate=500, latency_bound=10.0)
        load = replace(load, max_queries=queries)
        logs = loadgen.measure(Stub(0.0001), load, fail).logs
        valid[queries] = loadgen_log.read(logs["summary"], logs["detail"]).valid
    assert valid == {least - 1: False, least: True}


def test_defaults_are_mlperfs_and_fast_is_seconds() -> None:
    params = Workload.model_validate({"scenario": "server", "target_rate": 100})
    assert (params.latency_bound, params.duration(), params.queries()) == (0.015, 600.0, 100)
    assert Workload().queries() == 24576
    fast = Workload(fast=True, batch=32)
    assert (fast.duration(), fast.queries()) == (2.0, 64)


@pytest.mark.parametrize(
    ("params", "least", "expected"),
    [
        (
            {"scenario": "server", "target_rate": 0.5, "min_queries": 662, "min_duration": 60},
            1324,
            90 + 1.2 * 1324,
        ),
        ({"scenario": "server", "target_rate": 20, "min_duration": 60}, 60, 90 + 72),
        (
            {"scenario": "server", "target_rate": 0.5, "max_queries": 662, "min_duration": 60},
            0,
            90 + 1.2 * 200,
        ),
        ({"scenario": "server", "target_rate": 2, "fast": True}, 32, 60 + 1.2 * 32),
        (
            {"scenario": "find-peak", "target_rate": 2, "min_duration": 60},
            120,
            90 + 18.2 * 331 + 4 * 331,
        ),
        ({"scenario": "find-peak", "min_duration": 60}, 120, 90 + 182 + 240),
        ({"scenario": "single-stream", "min_duration": 60}, 60, 90 + 72),
        ({"scenario": "offline", "min_duration": 60}, 60, 90 + 90),
        ({"scenario": "offline", "min_duration": 60, "target_rate": 20}, 60, 90 + 1.2 * 24576 / 20),
        ({"scenario": "offline", "min_duration": 60, "target_rate": 2000}, 60, 90 + 72),
        (
            {"scenario": "offline", "min_duration": 60, "target_rate": 20, "min_queries": 640},
            60,
            90 + 72,
        ),
        ({"scenario": "offline", "fast": True}, 0, 60 + 2.4),
    ],
)
def test_a_run_takes_what_its_queries_take_to_arrive(
    params: dict[str, Any], least: float, expected: float
) -> None:
    value = Workload.model_validate(params)
    assert get("resnet50").least_seconds(value) == pytest.approx(least)
    assert get("resnet50").seconds(value) == pytest.approx(expected)


def test_a_gpu_asked_of_the_cluster_but_not_used_is_refused() -> None:
    shape = Shape.model_validate({"resources": {"nvidia.com/gpu": 1}})
    [problem] = get("resnet50").check(Workload(), shape)
    assert "device: cuda" in problem


@pytest.mark.parametrize(
    ("placement", "message"), [("spread", "puts"), ("any", "may put"), ("packed", None)]
)
def test_copies_on_different_nodes_are_refused(placement: str, message: str | None) -> None:
    shape = Shape.model_validate({"hosts": {"count": 2, "placement": placement}})
    expected = (
        f"hosts.placement {placement} {message} copies on different nodes, where they cannot "
        f"interfere: use packed"
    )
    problems = get("resnet50-interference").check(InterferenceParams(), shape)
    assert problems == ([expected] if message else [])


@pytest.mark.parametrize("name", ["resnet50", "resnet50-overhead", "resnet50-interference"])
def test_each_benchmark_says_when_its_clock_runs(name: str) -> None:
    result = get(name)
    assert "LoadGen" in result.clock()
    assert result.metrics[0].headline


SUITES = Path(__file__).parents[2] / "suites"


@pytest.mark.parametrize(
    ("name", "entries"),
    [
        ("ml", {"offline-compiled", "offline-cost", "accuracy", "two-copies-server"}),
        ("ml-gpu", {"overhead-of-vgpu", "offline-cost", "accuracy", "server-compiled"}),
    ],
)
def test_the_entries_of_the_suites_that_wait_for_a_users_own_can_be_switched_on(
    name: str, entries: set[str], tmp_path: Path
) -> None:
    file = tmp_path / "suite.yaml"
    file.write_text(
        re.sub(
            r"^  #(?=- name|  |resources)", "  ", (SUITES / f"{name}.yaml").read_text(), flags=re.M
        )
    )
    assert {point.entry for point in make_plan(load_suite(str(file))).points} >= entries


def test_the_suite_of_a_gpu_asks_what_it_says_of_every_point() -> None:
    points = make_plan(load_suite(str(SUITES / "ml-gpu.yaml"))).points
    bounds = [
        point.params["latency_bound"]
        for point in points
        if point.params["scenario"] in ("server", "find-peak")
    ]
    assert bounds == [0.015] * 11
    settings, ways = (
        {tuple(point.params[name] for name in names) for point in points}
        for names in (("device", "fast", "samples"), ("precision", "backend"))
    )
    assert settings == {("cuda", False, 1024)}
    assert ways == {
        ("fp32", "eager"),
        ("tf32", "eager"),
        ("fp16", "eager"),
        ("fp32", "compile"),
        ("fp16", "compile"),
    }
    for point in points:
        benchmark = get(point.benchmark)
        seconds = benchmark.seconds(benchmark.Params.model_validate(point.params))
        assert point.timeout > 2 * seconds, point.entry
