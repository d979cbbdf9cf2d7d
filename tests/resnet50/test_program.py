"""The program as a benchmark starts it, with the real model: compilation, precision, pinning, accuracy, memory that goes bad."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfdag.benchmark import Failed, Gang, Invalid, Output
from perfdag.hosts import LocalHost
from perfdag.shape import Shape
from perfdag.steps.resnet50 import program
from perfdag.steps.resnet50.benchmark import Resnet50
from perfdag.steps.resnet50.params import Workload
from perfdag.steps.resnet50.system import Stub

pytest.importorskip("mlperf_loadgen", reason="mlcommons-loadgen is not installed: pip install 'perfdag[dev]'")
SMALL = {"fast": True, "threads": 1, "samples": 4}


def run(folder: Path, **params: Any) -> tuple[Output, dict[tuple[str, str], float]]:
    """Run the benchmark; what the program said, and its values by metric and stat."""
    made = Workload.model_validate({**SMALL, **params})
    output = Resnet50().run(Gang([LocalHost()], Shape(), 300.0, str(folder)), made)
    return output, {(each.metric, each.stat): each.value for each in Resnet50().parse(output, made)}


def torch() -> Any:
    return pytest.importorskip("torch", reason="torch is not installed: pip install 'perfdag[torch]'")


def test_cpus_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"^cpus 0-4095: this process may use "):
        run(tmp_path, system="stub", cpus="0-4095")


def test_a_batch_that_does_not_fit_names_the_largest_that_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Small(Stub):
        def infer(self, indices: Sequence[int], ready: float) -> Sequence[int]:
            if len(indices) > 5:
                raise RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried 9 bytes.")
            return super().infer(indices, ready)

    class Ended(BaseException):
        """In place of the end of the process."""

    def ended(code: int) -> None:
        raise Ended

    monkeypatch.setattr(program, "Stub", Small)
    monkeypatch.setattr(program.os, "_exit", ended)
    made = Workload.model_validate({**SMALL, "system": "stub", "batch": 64, "stub": {"base": 0.001}})
    with (tmp_path / "out").open("wb") as out:
        measured = program.Program(made.spec(), out.fileno())
        with pytest.raises(program.OutOfMemoryError) as caught:
            measured.measure()
        with pytest.raises(Ended):
            measured.fail(caught.value)
    with pytest.raises(Failed, match=r"^batch 64 does not fit in the memory of cpu: the largest that fits is 5 "):
        Resnet50().parse(Output({"result": (tmp_path / "out").read_text()}), made)


@pytest.mark.slow
def test_compiled_bf16_on_one_cpu(tmp_path: Path) -> None:
    torch()
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed, and torch.compile needs it on a CPU")
    cpu = min(os.sched_getaffinity(0))
    given = {"scenario": "offline", "backend": "compile", "precision": "bf16", "cpus": str(cpu), "min_queries": 4}
    # a cache of its own: an earlier compilation would hide how long one takes
    output, values = run(tmp_path, **given, threads=None, wrapper_env={"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")})
    assert output.facts["model"]["threads"] == 1  # one CPU is allowed
    assert 1e-4 < values[("logit_error", "max")] < 0.1
    assert values[("throughput", "value")] > 0
    assert values[("first_batch", "value")] > values[("warm_batch", "p50")] + 3  # compilation is there and not in what is timed


@pytest.mark.slow
def test_accuracy_of_a_folder_of_images(tmp_path: Path) -> None:
    torch()
    from PIL import Image

    from perfdag.steps.resnet50 import model

    rng, folder = np.random.default_rng(1), tmp_path / "images"
    folder.mkdir()
    for number, (height, width) in enumerate(((300, 260), (256, 400), (224, 224), (512, 300))):
        Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    files = sorted(folder.glob("*.png"))
    with model.torch.inference_mode():
        found = [int(model.build("random", 0)[0](model.preprocess(model.decode(file)[None])).argmax()) for file in files]
    right = [f"{file.name} {label}" for file, label in zip(files, found, strict=True)]
    wrong = [*right[:3], f"{files[3].name} {(found[3] + 1) % 1000}"]
    for lines, share in ((right, 1.0), (wrong, 0.75)):
        (folder / "val_map.txt").write_text("\n".join(lines) + "\n")
        output, values = run(tmp_path, scenario="accuracy", imagenet=str(folder), batch=2)
        assert values[("top1", "value")] == share
        assert output.facts["accuracy"]["images"] == 4


@pytest.mark.slow
def test_weights_that_change_while_it_runs_make_the_row_invalid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch()
    from perfdag.steps.resnet50.model import Resnet50 as System
    from perfdag.steps.resnet50.subject import ModelSubject

    class Failing(System):
        """Memory goes bad at the end of LoadGen's test."""

        def unload(self, indices: Sequence[int]) -> None:
            super().unload(indices)
            with torch().no_grad():
                self._net.layer3[2].conv2.weight[:8, ::3] *= -64.0

    made = Workload.model_validate({**SMALL, "scenario": "offline", "min_queries": 2, "seed": 3})
    with (tmp_path / "out").open("wb") as out:
        measured = program.Program(made.spec(), out.fileno())
        subject = ModelSubject(dict(measured.spec), 1)
        subject.system.__class__ = Failing
        monkeypatch.setattr(program, "_model_subject", lambda spec: subject)
        measured.measure()
        measured.emit()
    output = Output({"result": (tmp_path / "out").read_text()})
    assert json.loads(output.texts["result"])["logits"]["ok"]
    with pytest.raises(Invalid, match=r"logits differ by .* after the measurement: weights or arithmetic are corrupted"):
        Resnet50().parse(output, made)
