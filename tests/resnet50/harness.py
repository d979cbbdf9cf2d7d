"""Runs of the benchmarks on a system of known service time, and what LoadGen printed once."""

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfdag.benchmark.contract import Gang, Measurement, Output
from perfdag.hosts.base import Host
from perfdag.hosts.local import LocalHost
from perfdag.shape import Shape
from perfdag.steps.resnet50.benchmark import Resnet50
from perfdag.steps.resnet50.workload import Workload

needs_loadgen = pytest.mark.skipif(
    find_spec("mlperf_loadgen") is None,
    reason="mlcommons-loadgen is not installed: pip install 'perfdag[dev]'",
)
RECORDED = Path(__file__).parent.parent / "recorded" / "loadgen"
Indices = Sequence[int] | np.ndarray


def recorded(name: str = "single-stream", **more: Any) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text())
    return raw | more


def fail(error: BaseException) -> None:
    """Fail where the answering thread has an error."""
    pytest.fail(repr(error))


def gang(*hosts: Host) -> Gang:
    return Gang(list(hosts) or [LocalHost()], Shape(), 900.0, str(Path.cwd()))


def run_resnet50(params: Workload) -> tuple[Output, Sequence[Measurement]]:
    """Run the benchmark on this machine; return its output and measurements.

    Raises Invalid and Failed as the lead would see them.
    """
    machine = gang()
    rows = Resnet50().run(machine, params)
    return machine.output, rows
