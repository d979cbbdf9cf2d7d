"""The program that measures, and its parameters."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import ANY, Mock

import numpy as np
import pytest
from pydantic import ValidationError

from perfdag.benchmark.contract import Failed
from perfdag.benchmark.registry import get
from perfdag.hosts.base import CommandResult
from perfdag.plan import make_plan
from perfdag.shape import Shape
from perfdag.steps.resnet50 import program
from perfdag.steps.resnet50.interference import InterferenceParams
from perfdag.steps.resnet50.program import Stub, warm_up
from perfdag.steps.resnet50.workload import Workload, kept, read
from perfdag.suite.load import load_suite
from tests.resnet50.harness import Indices, run_resnet50

SMALL = {"fast": True, "threads": 1, "samples": 4}


class Fake:
    """A clock that calls advance."""

    def __init__(self, cost: Callable[[int], float]) -> None:
        self.now, self.calls, self._cost = 0.0, 0, cost

    def clock(self) -> float:
        return self.now

    def __call__(self) -> None:
        self.now += self._cost(self.calls)
        self.calls += 1


def rising_clock(call: int) -> float:
    """A GPU whose clock rises after 40 batches; the batches are steady before and after."""
    return 0.0133 if call < 40 else 0.01


@pytest.mark.parametrize(
    ("cost", "options", "stable", "batches", "steady"),
    [
        (lambda call: 0.01 if call else 7.0, {}, True, (16, 16), 0.01),
        (lambda call: 0.01 + 0.1 * 0.8**call, {}, True, (21, 200), 0.01),
        (lambda call: 1.0 if call // 5 % 2 else 2.0, {}, False, (1, 80), ANY),
        *((lambda _, s=s: s, {}, True, (1, 7), s) for s in (9.5, 25.0, 90.0)),
        (lambda call: 1.0 if call < 2 else 50.0, {}, False, (1, 7), ANY),
        (lambda call: 9.5 + call, {"limit": 2.0, "stretch": 0}, ANY, (2, 2), ANY),
        (rising_clock, {}, True, (1, 40), 0.0133),
        (rising_clock, {"least": 1.0}, True, (41, 200), 0.01),
    ],
)
def test_a_warm_up_lasts_until_its_batches_are_steady(
    cost: Callable[[int], float],
    options: dict[str, Any],
    stable: Any,
    batches: tuple[int, int],
    steady: Any,
) -> None:
    """`batches`: the least and the most of them."""
    fake = Fake(cost)
    warm = warm_up(fake, **{"limit": 60.0, "clock": fake.clock, **options})
    assert warm.first == pytest.approx(cost(0))
    assert warm.stable == stable
    assert steady is ANY or warm.steady == pytest.approx(steady, rel=0.15)
    assert batches[0] <= fake.calls <= batches[1]


def torch() -> Any:
    return pytest.importorskip(
        "torch", reason="torch is not installed: pip install 'perfdag[torch]'"
    )


class Ended(BaseException):
    """In place of the end of the process."""


class Small(Stub):
    def infer(self, indices: Indices, ready: float) -> np.ndarray:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 9 bytes.")


class Samples(Stub):
    def __init__(self, **_: Any) -> None:
        raise MemoryError("Unable to allocate 9 GiB for an array")


@pytest.mark.parametrize("system", [Small, Samples])
def test_memory_that_runs_out_names_the_batch_and_what_to_lower(
    system: type[Stub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "Stub", system)
    monkeypatch.setattr(os, "_exit", Mock(side_effect=Ended))
    params = Workload.model_validate({**SMALL, "system": "stub", "batch": 64})
    with (tmp_path / "out").open("wb") as out:
        measured = program.Program(params.spec(), out.fileno())
        with pytest.raises(Exception, match="allocate") as error:
            measured.measure()
        with pytest.raises(Ended):
            measured.fail(error.value)
    with pytest.raises(Failed, match=r"^out of memory on cpu with batch 64 and 4 samples: lower"):
        read((tmp_path / "out").read_text())


@pytest.mark.parametrize(
    ("finished", "message"),
    [
        (CommandResult([], -9, "", "", 4.0), "batch 8 with 4 samples took too much; lower batch"),
        (CommandResult([], 137, "", "", 4.0), "the program was killed, as the kernel does"),
        (
            CommandResult([], -9, "", "", 4.0, timed_out=True),
            "did not end within 4 s: raise timeout, or lower min_duration and min_queries",
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
        kept({}, "result", finished, Workload.model_validate({**SMALL, "batch": 8}))


@pytest.mark.slow
def test_compiled_bf16_on_one_cpu(tmp_path: Path) -> None:
    torch()
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed, and torch.compile needs it on a CPU")
    # a cache of its own: an earlier compilation would hide how long one takes
    params = {
        "scenario": "offline",
        "backend": "compile",
        "precision": "bf16",
        "wrapper": ["taskset", "-c", str(min(os.sched_getaffinity(0)))],
        "min_queries": 4,
        "wrapper_env": {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")},
    }
    output, rows = run_resnet50(Workload.model_validate({**SMALL, "threads": None, **params}))
    values = {(row.metric, row.stat): row.value for row in rows}
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
        ({"precision": "tf32"}, "device: cuda"),
        ({"precision": "int8"}, "'fp32', 'tf32', 'bf16' or 'fp16'"),
        ({"scenario": "single-stream", "batch": 8}, "batch 1, not 8"),
        ({"colour": "red"}, "Extra inputs"),
        ({"scenario": "server", "target_rate": float("inf")}, "finite number"),
        (
            {"scenario": "single-stream", "target_rate": 5},
            "target_rate does nothing in scenario single-stream",
        ),
    ],
)
def test_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Workload.model_validate(params)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (
            {"scenario": "server", "target_rate": 0.5, "min_queries": 662, "min_duration": 60},
            60 + 1.2 * 1324,
        ),
        ({"scenario": "server", "target_rate": 20, "min_duration": 60}, 60 + 72),
        ({"scenario": "server", "target_rate": 2, "fast": True}, 60 + 1.2 * 32),
        ({"scenario": "single-stream", "min_duration": 60}, 60 + 72),
        ({"scenario": "offline", "min_duration": 60}, 60 + 90),
        ({"scenario": "offline", "min_duration": 60, "target_rate": 20}, 60 + 1.2 * 24576 / 20),
        ({"scenario": "offline", "min_duration": 60, "target_rate": 2000}, 60 + 72),
        (
            {"scenario": "offline", "min_duration": 60, "target_rate": 20, "min_queries": 640},
            60 + 72,
        ),
        ({"scenario": "offline", "fast": True}, 60 + 2.4),
    ],
)
def test_a_run_takes_what_its_queries_take_to_arrive(
    params: dict[str, Any], expected: float
) -> None:
    value = Workload.model_validate(params)
    assert get("resnet50").seconds(value) == pytest.approx(expected)


@pytest.mark.parametrize(("placement", "fits"), [("spread", 0), ("any", 0), ("packed", 1)])
def test_copies_on_different_nodes_are_refused(placement: str, fits: bool) -> None:
    shape = Shape.model_validate({"hosts": {"count": 2, "placement": placement}})
    problems = get("resnet50-interference").check(InterferenceParams(), shape)
    assert [problem.code for problem in problems] == ["spread-copies"] * (not fits)


SUITES = Path(__file__).parents[2] / "suites"


@pytest.mark.parametrize(
    ("name", "entries"),
    [
        ("ml", {"offline-compiled", "offline-cost", "two-copies-server"}),
        ("ml-gpu", {"precisions", "overhead-of-vgpu", "offline-cost"}),
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
