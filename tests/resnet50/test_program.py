"""The program as a benchmark starts it, with the real model: compilation, precision, pinning, accuracy, memory that goes bad."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfdag.benchmark.contract import Gang, Output
from perfdag.hosts.base import Finished
from perfdag.hosts.local import LocalHost
from perfdag.outcome import Failed, Invalid
from perfdag.shape import Shape
from perfdag.steps.resnet50 import launch, program
from perfdag.steps.resnet50.benchmark import Resnet50
from perfdag.steps.resnet50.inference import system_under_test
from perfdag.steps.resnet50.inference.system_under_test import Stub
from perfdag.steps.resnet50.params import Workload

pytest.importorskip(
    "mlperf_loadgen", reason="mlcommons-loadgen is not installed: pip install 'perfdag[dev]'"
)
SMALL = {"fast": True, "threads": 1, "samples": 4}


def run(folder: Path, **params: Any) -> tuple[Output, dict[tuple[str, str], float]]:
    """Run the benchmark; what the program said, and its values by metric and stat."""
    value = Workload.model_validate({**SMALL, **params})
    output = Resnet50().run(Gang([LocalHost()], Shape(), 300.0, str(folder)), value)
    return output, {
        (measurement.metric, measurement.stat): measurement.value
        for measurement in Resnet50().parse(output, value)
    }


def torch() -> Any:
    return pytest.importorskip(
        "torch", reason="torch is not installed: pip install 'perfdag[torch]'"
    )


def test_cpus_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"^cpus 0-4095: this process may use "):
        run(tmp_path, system="stub", cpus="0-4095")


class Ended(BaseException):
    """In place of the end of the process."""


def said_by(
    system: type[Stub], folder: Path, monkeypatch: pytest.MonkeyPatch, **params: Any
) -> str:
    """The error of the row of a stub that breaks."""

    def ended(code: int) -> None:
        raise Ended

    monkeypatch.setattr(system_under_test, "Stub", system)
    monkeypatch.setattr(program.os, "_exit", ended)
    value = Workload.model_validate(
        {**SMALL, "system": "stub", "batch": 64, "stub": {"base": 0.001}, **params}
    )
    with (folder / "out").open("wb") as out:
        measured = program.Program(value.spec(), out.fileno())
        try:
            measured.measure()
        except Exception as error:
            with pytest.raises(Ended):
                measured.fail(error)
        else:
            measured.emit()
    printed = launch.result_text(Finished([], 0, (folder / "out").read_text(), "", 1.0), value)
    with pytest.raises(Failed) as caught:
        Resnet50().parse(Output({"result": printed}), value)
    return str(caught.value)


NO_MEMORY = "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried 9 bytes."


def test_a_batch_that_does_not_fit_names_the_largest_that_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Small(Stub):
        def infer(self, indices: Sequence[int], ready: float) -> Sequence[int]:
            if len(indices) > 5:
                raise RuntimeError(NO_MEMORY)
            return super().infer(indices, ready)

    message = said_by(Small, tmp_path, monkeypatch)
    assert message.startswith(
        "batch 64 does not fit in the memory of cpu: the largest that fits is 5 "
    )


def test_memory_that_runs_out_elsewhere_names_the_batch_and_what_to_lower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Samples(Stub):
        def load(self, indices: Sequence[int]) -> None:
            raise MemoryError("Unable to allocate 9 GiB for an array")

    class Checks(program.StubSubject):
        def check_logits(self) -> dict[str, Any]:
            raise RuntimeError(
                "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
            )

    def no_model(spec: Any) -> Any:
        raise RuntimeError("CUDA out of memory. Tried to allocate 98 MiB")

    loaded = said_by(Samples, tmp_path, monkeypatch)
    assert loaded.startswith(
        "out of memory while 4 samples were loaded for batch 64: lower samples, or raise the memory limit (Unable to"
    )
    monkeypatch.setattr(program, "StubSubject", Checks)
    assert said_by(Stub, tmp_path, monkeypatch).startswith(
        "out of memory at the checks of batch 64, which fitted in the warm-up: lower batch"
    )
    monkeypatch.setattr(program, "StubSubject", no_model)
    assert said_by(Stub, tmp_path, monkeypatch).startswith(
        "out of memory while the model was set up, before any batch: stop what else uses cpu"
    )


def test_a_search_without_a_peak_is_a_failed_row_that_says_what_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = {
        "scenario": "find-peak",
        "latency_bound": 0.0001,
        "search_duration": 0.01,
        "min_duration": 0.01,
        "max_queries": 20,
    }
    monkeypatch.setattr(program.peak, "MOST_PROBES", 2)  # to the lowest rate it would be minutes
    assert (
        said_by(Stub, tmp_path, monkeypatch, batch=1, target_rate=900.0, **params)
        == "2 trials gave no answer: 900/s failed, 600/s failed"
    )


def test_a_search_whose_trials_max_queries_ends_is_no_peak_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = {
        "scenario": "find-peak",
        "latency_bound": 0.5,
        "search_duration": 1.0,
        "min_duration": 30,
        "max_queries": 662,
        "fast": False,
    }
    message = said_by(Stub, tmp_path, monkeypatch, batch=1, target_rate=900.0, **params)
    assert (
        message
        == "max_queries 662 ended a trial at 900/s before it had lasted 1 s: raise it, or leave it out"
    )


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
            "did not end within 9 s: 662 queries at 0.5/s arrive in 1324 s: raise timeout or target_rate, or lower min_queries",
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
            "24576 samples and 60 s at least were requested: raise timeout, or lower min_queries and min_duration",
        ),
    ],
)
def test_a_program_that_takes_too_long_says_what_makes_it_so(
    params: dict[str, Any], message: str
) -> None:
    trials = '{"test": {}}\n{"test": {"logs": ' if params["scenario"] == "find-peak" else ""
    with pytest.raises(Failed, match=message):
        launch.result_text(
            Finished([], -9, trials, "", 9.0, timed_out=True),
            Workload.model_validate({**SMALL, **params}),
        )


def test_the_result_is_the_last_line() -> None:
    params = Workload.model_validate(SMALL)
    for before in ("", '{"test": {}}\n', '{"test": {}}\n{"test": {}}\n'):
        assert (
            launch.result_text(Finished([], 0, before + '{"program": 1}\n', "", 1.0), params)
            == '{"program": 1}\n'
        )


@pytest.mark.parametrize(
    ("finished", "message"),
    [
        (
            Finished([], -9, "", "", 4.0),
            "batch 8 with 4 samples took too much; lower batch or samples, or raise the memory limit",
        ),
        (
            Finished([], 137, "", "", 4.0),
            "the program was killed, as the kernel does when memory runs out",
        ),
        (
            Finished([], -9, "", "", 4.0, timed_out=True),
            "did not end within 4 s: 16 samples and 2 s at least were requested: raise timeout",
        ),
        (
            Finished([], 1, "", "Traceback\nImportError: libcudart.so", 4.0),
            "exited 1 without a result: (?s:.*)libcudart",
        ),
    ],
)
def test_a_program_that_ends_without_a_result_says_why(finished: Finished, message: str) -> None:
    with pytest.raises(Failed, match=message):
        launch.result_text(finished, Workload.model_validate({**SMALL, "batch": 8}))


@pytest.mark.slow
def test_compiled_bf16_on_one_cpu(tmp_path: Path) -> None:
    torch()
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed, and torch.compile needs it on a CPU")
    cpu = min(os.sched_getaffinity(0))
    options = {
        "scenario": "offline",
        "backend": "compile",
        "precision": "bf16",
        "cpus": str(cpu),
        "min_queries": 4,
    }
    # a cache of its own: an earlier compilation would hide how long one takes
    output, values = run(
        tmp_path,
        **options,
        threads=None,
        wrapper_env={"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")},
    )
    assert output.facts["model"]["threads"] == 1  # one CPU is allowed
    assert 1e-4 < values[("logit_error", "max")] < 0.1
    assert values[("throughput", "value")] > 0
    assert (
        values[("first_batch", "value")] > values[("warm_batch", "p50")] + 3
    )  # compilation is there and not in what is timed
    assert 3 < values[("compile_time", "total")] < values[("first_batch", "value")]


@pytest.mark.slow
def test_server_is_checked_at_every_size_that_it_may_run(tmp_path: Path) -> None:
    torch()
    options = {
        "scenario": "server",
        "batch": 3,
        "target_rate": 20.0,
        "latency_bound": 60.0,
        "max_delay": 0.05,
        "min_queries": 16,
    }
    output, values = run(tmp_path, **options)
    raw = json.loads(output.texts["result"])
    assert (
        raw["warmup"]["by_size"].keys()
        == raw["logits"]["by_size"].keys()
        == raw["logits_after"]["by_size"].keys()
        == {"1", "2", "3"}
    )
    assert set(raw["tests"][0]["batches"]) <= {"1", "2", "3"}
    assert raw["logits"]["same_class"] == raw["logits"]["images"] == 4 + 4 + 6
    assert values[("logit_error", "max")] < 1e-4
    assert {name for name, _ in values} >= {"batch_size", "phase_time"}


@pytest.mark.slow
def test_accuracy_of_a_folder_of_images(tmp_path: Path) -> None:
    torch()
    from PIL import Image

    from perfdag.steps.resnet50.inference.network import build, decode, preprocess

    rng, folder = np.random.default_rng(1), tmp_path / "images"
    folder.mkdir()
    for number, (height, width) in enumerate(((300, 260), (256, 400), (224, 224), (512, 300))):
        Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(
            folder / f"{number}.png"
        )
    files = sorted(folder.glob("*.png"))
    with torch().inference_mode():
        labels = [
            int(build("random", 0)[0](preprocess(decode(file)[None])).argmax()) for file in files
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
                self._net.layer3[2].conv2.weight[:8, ::3] *= -64.0

    params = Workload.model_validate({**SMALL, "scenario": "offline", "min_queries": 2, "seed": 3})
    with (tmp_path / "out").open("wb") as out:
        measured = program.Program(params.spec(), out.fileno())
        subject = ModelSubject(dict(measured.spec), 1)
        subject.system.__class__ = Failing
        monkeypatch.setattr(program, "model_subject", lambda spec: subject)
        measured.measure()
        measured.emit()
    output = Output({"result": (tmp_path / "out").read_text()})
    assert json.loads(output.texts["result"])["logits"]["ok"]
    with pytest.raises(
        Invalid,
        match=r"logits differ by .* after the measurement: weights or arithmetic are corrupted",
    ):
        Resnet50().parse(output, params)
