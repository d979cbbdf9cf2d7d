"""The program that measures, and its parameters."""

import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from pydantic import ValidationError

from perfdag.benchmark.contract import Output
from perfdag.benchmark.registry import get
from perfdag.hosts.base import CommandResult
from perfdag.outcome import Failed
from perfdag.plan.plan import make_plan
from perfdag.shape import Shape
from perfdag.steps.resnet50 import launch, program
from perfdag.steps.resnet50 import system as system_under_test
from perfdag.steps.resnet50.benchmark import Resnet50
from perfdag.steps.resnet50.interference import InterferenceParams
from perfdag.steps.resnet50.params import Workload
from perfdag.steps.resnet50.system import Stub, StubSubject
from perfdag.suite.load import load_suite
from tests.resnet50.harness import Indices, run_resnet50

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
            {"scenario": "server", "target_rate": 500},
            "within 9 s: raise timeout or lower min_duration",
        ),
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
    with pytest.raises(Failed, match=message):
        launch.result_text(
            CommandResult([], -9, "", "", 9.0, timed_out=True),
            Workload.model_validate({**SMALL, **params}),
        )


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
    assert values["throughput", "value"] > 0
    # compilation is there and not in what is timed
    first = values["first_batch", "value"]
    assert first > values["warm_batch", "p50"] + 3
    assert 3 < values["compile_time", "total"] < first


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"batch": 0}, "greater than or equal to 1"),
        ({"scenario": "server", "target_rate": 0}, "greater than 0"),
        ({"scenario": "server", "target_rate": -5}, "greater than 0"),
        ({"precision": "tf32"}, "device: cuda"),
        ({"precision": "int8"}, "'fp32', 'tf32', 'bf16' or 'fp16'"),
        ({"scenario": "single-stream", "batch": 8}, "batch 1, not 8"),
        ({"latency_bound": "0s"}, "more than zero"),
        ({"weights_sha256": "a" * 64}, "needs a weights file"),
        ({"cpus": "0; rm -rf /"}, "match pattern"),
        ({"wrapper_env": {"A=B": "1"}}, "environment variable"),
        ({"wrapper_env": {"-u": "1"}}, "environment variable"),
        ({"threads": 0}, "greater than or equal to 1"),
        ({"price_per_hour": 0}, "greater than 0"),
        ({"colour": "red"}, "Extra inputs"),
        ({"scenario": "server", "target_rate": float("inf")}, "finite number"),
        ({"price_per_hour": float("inf")}, "finite number"),
        (
            {"scenario": "single-stream", "target_rate": 5},
            "target_rate does nothing in scenario single-stream",
        ),
    ],
)
def test_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Workload.model_validate(params)


def test_defaults_are_mlperfs_and_fast_is_seconds() -> None:
    params = Workload.model_validate({"scenario": "server", "target_rate": 100})
    assert (params.latency_bound, params.duration(), params.queries()) == (0.015, 600.0, 100)
    assert Workload().queries() == 24576
    fast = Workload(fast=True, batch=32)
    assert (fast.duration(), fast.queries()) == (2.0, 64)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (
            {"scenario": "server", "target_rate": 0.5, "min_queries": 662, "min_duration": 60},
            90 + 1.2 * 1324,
        ),
        ({"scenario": "server", "target_rate": 20, "min_duration": 60}, 90 + 72),
        ({"scenario": "server", "target_rate": 2, "fast": True}, 60 + 1.2 * 32),
        ({"scenario": "single-stream", "min_duration": 60}, 90 + 72),
        ({"scenario": "offline", "min_duration": 60}, 90 + 90),
        ({"scenario": "offline", "min_duration": 60, "target_rate": 20}, 90 + 1.2 * 24576 / 20),
        ({"scenario": "offline", "min_duration": 60, "target_rate": 2000}, 90 + 72),
        (
            {"scenario": "offline", "min_duration": 60, "target_rate": 20, "min_queries": 640},
            90 + 72,
        ),
        ({"scenario": "offline", "fast": True}, 60 + 2.4),
    ],
)
def test_a_run_takes_what_its_queries_take_to_arrive(
    params: dict[str, Any], expected: float
) -> None:
    value = Workload.model_validate(params)
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


SUITES = Path(__file__).parents[2] / "suites"


@pytest.mark.parametrize(
    ("name", "entries"),
    [
        ("ml", {"offline-compiled", "offline-cost", "two-copies-server"}),
        ("ml-gpu", {"overhead-of-vgpu", "offline-cost"}),
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
