"""torchbench: refusals, arguments, and the parser on outputs of the real run.py."""

import json
import os
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from perfdag.benchmark.contract import Failed, Gang, Invalid, SampleError, Skip
from perfdag.hosts.local import LocalHost
from perfdag.shape import Shape
from perfdag.steps import torchbench
from perfdag.steps.torchbench import COMMIT, Torchbench, TorchbenchParams, arguments
from perfdag.steps.torchbench_runner import MARK
from tests.recorded.recordings import CASES


def recording(name: str = "alexnet-eval-1", **changes: Any) -> Any:
    """Return the params of a recording, and its texts with other values in the runner's report."""
    _, params, output, _ = CASES[f"torchbench/{name}"].load()
    head, _, report = output.texts["stdout"].rpartition(MARK)
    text = head + MARK + json.dumps(json.loads(report) | changes) + "\n"
    return params, {"stdout": text}


def report_of(name: str = "alexnet-eval-1") -> dict[str, Any]:
    """Return the runner's report of a recorded output."""
    result: dict[str, Any] = json.loads(recording(name)[1]["stdout"].rpartition(MARK)[2])
    return result


@pytest.mark.parametrize(("n", "stats"), [(43, set()), (44, {"p90"}), (459, {"p90", "p99"})])
def test_percentiles_are_nearest_rank_of_enough_batches(n: int, stats: set[str]) -> None:
    params, texts = recording(wall_s=[0.001 * i for i in range(n, 0, -1)])
    measurements = torchbench.parse(texts, params.model_copy(update={"iterations": n}))
    counts = [m.n or 0 for m in measurements if m.metric == "iteration_time"]
    assert (sum(counts), len(counts)) == (n, min(n, 100))
    values = {m.stat: m.value for m in measurements if m.metric == "batch_time_spread"}
    assert values.keys() & {"p90", "p99"} == stats
    # the 455th of 459: ceil(0.99 * 459)
    assert values.get("p99", 0.455) == pytest.approx(0.455)


def test_arguments_are_those_of_run_py() -> None:
    """A peak of memory would clear torch's own count after the measured batches and run others."""
    argv = arguments(
        TorchbenchParams(model="alexnet", device="cuda", batch_size=3, precision="bf16")
    )
    assert argv == [
        "alexnet", "-d", "cuda", "-t", "eval", "--bs", "3", "--metrics", "ttfb", "--precision", "bf16",  # noqa: E501
    ]  # fmt: skip


CUDA = {
    "device": "cuda",
    "gpu_s": report_of()["wall_s"],
    "gpus_visible": 2,
    "gpus_used": 1,
    "gpu_peak_bytes": [5 << 20, 0],
}


@pytest.mark.parametrize(
    ("report", "options", "error"),
    [
        ({}, {"iterations": 12}, Failed),
        ({"batch_size": 64}, {}, Invalid),
        ({}, {"precision": "bf16"}, Invalid),
        ({"threads": 64}, {"threads": 2}, Invalid),
        (CUDA, {}, Invalid),
        (CUDA | {"gpus_used": 2}, {"device": "cuda"}, Invalid),
    ],
)
def test_what_was_run_otherwise_than_asked_is_no_sample(
    report: dict[str, Any], options: dict[str, Any], error: type[SampleError]
) -> None:
    params, texts = recording(**report)
    with pytest.raises(error) as wrong:
        torchbench.parse(texts, params.model_copy(update=options))
    assert bool(wrong.value.measurements) == (error is Invalid)


def test_on_a_gpu_the_time_is_the_gpus_and_the_rate_is_by_the_wall_clock() -> None:
    """Constructed: there was no GPU to record from."""
    gpu = [0.010, 0.011, 0.012, 0.013, 0.014]
    walls = [2 * seconds + 0.001 for seconds in gpu]
    params, texts = recording(**CUDA | {"gpu_s": gpu, "wall_s": walls, "batch_size": 4})
    options = {"device": "cuda", "batch_size": 4, "iterations": 5}
    rows = torchbench.parse(texts, params.model_copy(update=options))
    values = {(row.metric, row.stat): row.value for row in rows}
    assert values["batch_time", "value"] == pytest.approx(0.012)
    assert values["samples_rate", "value"] == pytest.approx(4 / 0.025)
    assert values["batch_time_spread", "max"] == pytest.approx(0.014)
    gpus = [values[name, "value"] for name in ("gpus_used", "gpus_visible", "gpu_memory")]
    assert gpus == [1, 2, 5 << 20]


def test_a_missing_checkout_or_torch_is_skipped_with_what_to_do(
    tmp_path: Path, gang: Gang, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        Skip, match=r"no run.py in .*git clone https://github.com/pytorch/benchmark"
    ):
        Torchbench().require(gang, TorchbenchParams(path=str(tmp_path)))
    bench = fake_checkout(tmp_path, monkeypatch, "resnet50")
    with pytest.raises(Skip, match="has no torch and torchvision"):
        Torchbench().run(gang, TorchbenchParams(path=str(bench), python="/bin/false"))


PACKAGE = """
import os, pathlib, sys
def load_model_by_name(name):
    def construct(test, device):
        with pathlib.Path(__file__).with_name("constructed").open("a") as file:
            file.write(f"{name} {test} {device} {'https_proxy' in os.environ}\\n")
        if name == "sam":
            sys.exit("urlopen error")
    return construct
"""


def fake_checkout(
    folder: Path, monkeypatch: pytest.MonkeyPatch, model: str = "vgg16", run_py: str = ""
) -> Path:
    """A checkout with one model, and a torch and torchvision that do as little as these tests
    need.
    """
    for name, text in {
        "packages/torch.py": "__version__ = '2'\nget_num_threads = lambda: 1\n"
        "class cuda: is_available = lambda: False\n",
        "packages/torchvision.py": "",
        "bench/torchbenchmark/__init__.py": PACKAGE,
        "bench/run.py": run_py,
        f"bench/torchbenchmark/models/{model}/__init__.py": "",
        "bench/.perfdag-commit": f"{COMMIT}\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(folder / "packages"))
    return folder / "bench"


@pytest.fixture
def gang(tmp_path: Path) -> Gang:
    (tmp_path / "scratch").mkdir()
    return Gang([LocalHost()], Shape(), 120, str(tmp_path / "scratch"))


@pytest.mark.parametrize("model", ["vgg16", "sam"])
def test_a_model_is_constructed_with_a_network_once_before_it_is_measured(
    model: str, tmp_path: Path, gang: Gang, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure is that of the run: it says what is missing."""
    for name in torchbench.OFFLINE:
        monkeypatch.delenv(name, raising=False)
    run_py = "import os, sys; sys.exit(os.environ['https_proxy'] + ' refused')"
    bench = fake_checkout(tmp_path, monkeypatch, model, run_py)
    params, benchmark = TorchbenchParams(model=model, path=str(bench)), Torchbench()
    for _ in "two samples":
        with pytest.raises(Failed, match=f"{model} lacks weights or data"):
            benchmark.run(gang, params)
    constructed = (bench / "torchbenchmark/constructed").read_text()
    assert constructed == f"{model} eval cpu False\n"


def prints(report: dict[str, Any], seconds: float = 0) -> str:
    """Return a run.py that prints a report."""
    return (
        "import sys, time\n"
        f"sys.stdout.write({MARK!r} + {json.dumps(report)!r} + chr(10))\n"
        "run_one_step = printResultSummaryTime = None\n"
        f"def main(): time.sleep({seconds}); raise SystemExit(0)\n"
    )


def test_the_commit_is_of_the_series_and_an_unknown_one_is_skipped(
    tmp_path: Path, gang: Gang, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = fake_checkout(tmp_path, monkeypatch, run_py=prints(report_of()))
    params = TorchbenchParams(model="vgg16", path=str(bench))
    for commit in (COMMIT, "f" * 40):
        (bench / ".perfdag-commit").write_text(commit)
        assert Torchbench().run(gang, params)
        assert gang.output.tool.endswith(f"pytorch/benchmark {commit[:12]}, fp32")
        assert gang.output.facts["precision"] == "fp32"
    (bench / ".perfdag-commit").unlink()
    with pytest.raises(Skip, match="does not say which commit of pytorch/benchmark it is"):
        Torchbench().run(gang, params)


@pytest.mark.parametrize(
    ("inputs", "counted"),
    [
        ("(numpy.ones((32, 8)), 1)", True),  # llama: a tensor and a position
        ("(numpy.ones((2, 2)), 1)", False),  # llama of March 2023: the same tensor for any batch
        ("{'input_ids': numpy.ones((32, 8))}", True),
        ("([{'image': numpy.ones((3, 9, 9)), 'size': (9, 9)}], False)", False),  # sam: one image
        ("([{'image': numpy.ones((3, 9, 9))}] * 32,)", True),  # detectron2
        ("nothing()", True),  # does not show them
    ],
)
def test_a_model_that_feeds_another_batch_than_asked_has_no_rate(
    inputs: str, counted: bool, tmp_path: Path, gang: Gang, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_py = f"""
import argparse, numpy
args = argparse.Namespace(device="cpu", test="eval")
def nothing(): raise NotImplementedError
class Model:
    ttfb, batch_size, dargs = 1.0, 32, argparse.Namespace(precision="fp32")
    def eval(self): pass
    def get_module(self): return None, {inputs}
def run_one_step(func, **named): return [[2.0]] * named["num_iter"]
def printResultSummaryTime(*result): pass
def main():
    model = Model()
    printResultSummaryTime(run_one_step(model.eval, model=model), model)
"""
    bench = fake_checkout(tmp_path, monkeypatch, run_py=run_py)
    params = TorchbenchParams(model="vgg16", batch_size=32, path=str(bench))
    rows = Torchbench().run(gang, params)
    assert [row.value for row in rows if row.metric == "samples_rate"] == [16_000] * counted
    assert gang.output.notes == ["no samples_rate: vgg16 feeds other than 32 samples"][counted:]


@pytest.mark.parametrize("how", ["return", "raise"])
def test_an_exception_that_a_model_returns_is_no_result(
    how: str, tmp_path: Path, gang: Gang, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As sam, llava and others did at the pinned commit: invoke() drops what train() returns,
    and microseconds were its time.
    """
    run_py = f"""
import argparse
args = argparse.Namespace(device="cpu", test="train")
class Model:
    ttfb = 1.0
    def train(self):
        {how} NotImplementedError("\\n   its weights are not public\\n   at all")
    def invoke(self):
        self.train()
def run_one_step(func, **named): print("measured")
printResultSummaryTime = None
def main():
    model = Model()
    run_one_step(model.invoke, model=model)
"""
    bench = fake_checkout(tmp_path, monkeypatch, run_py=run_py)
    benchmark, params = Torchbench(), TorchbenchParams(model="vgg16", test="train", path=str(bench))
    with pytest.raises(Failed, match="NotImplementedError"):
        benchmark.run(gang, params)
    assert "measured" not in gang.output.texts["stdout"]


SMI = """case "$*" in
*-L*) echo 'GPU 0: H200 (UUID: GPU-a)';;
*vbios*) for i in '0, H200, GPU-a' '1, H200, GPU-b'; do
  echo "$i, 550.90, 90.04, 15360, 70.00, 1590, 5001, Enabled, Default, Enabled, 0, 0, [N/A], 3, 16"; done;;
*) t='2026/11/22 12:00:00.000'; echo "0, 900, 5000, 60, 40, 99, 1024, 0x0, $t"; echo "1, 900, 5000, 60, 90, 99, 1024, 0x40, $t"; case "$*" in *loop*) exec sleep 9;; esac;;
esac"""  # noqa: E501


@pytest.mark.parametrize(
    ("used", "against"),
    [(["GPU-a"], None), ([], "GPU 1 was slowed down (hardware thermal slowdown)")],
)
def test_the_gpu_that_was_used_is_held_against_the_figures(
    used: list[str],
    against: str | None,
    gang: Gang,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Composed: there was no GPU to record from.

    GPU 1 is slowed; where the program does not say which it used, that counts.
    """
    report = report_of() | CUDA | {"gpu_uuids": used}
    bench = fake_checkout(tmp_path, monkeypatch, run_py=prints(report, 0.2))
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{SMI}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    params = TorchbenchParams(model="vgg16", path=str(bench), device="cuda")
    with pytest.raises(Invalid, match=re.escape(against)) if against else nullcontext():
        Torchbench().run(gang, params)
    facts = gang.output.facts
    assert [gpu["uuid"] for gpu in facts["gpus"]] == ["GPU-a", "GPU-b"]
    assert [item["index"] for item in facts["during"]] == [0, 1]


@pytest.mark.slow
@pytest.mark.skipif(
    "PERFDAG_TORCHBENCH" not in os.environ,
    reason="PERFDAG_TORCHBENCH names no checkout of pytorch/benchmark",
)
def test_the_real_run_py(tmp_path: Path) -> None:
    benchmark, gang = Torchbench(), Gang([LocalHost()], Shape(), 300, str(tmp_path))
    params = TorchbenchParams(
        model="alexnet",
        batch_size=1,
        iterations=3,
        warmup=1,
        python=os.environ.get("PERFDAG_TORCH_PYTHON"),
    )
    benchmark.require(gang, params)
    assert benchmark.run(gang, params)
