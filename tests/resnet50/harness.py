"""The harness's own figures on a system of known service time, to hold against plain LoadGen's."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from perfdag.benchmark.contract import Gang, Output
from perfdag.hosts.local import LocalHost
from perfdag.outcome import Measurement
from perfdag.shape import Shape
from perfdag.steps.resnet50.benchmark import Resnet50
from perfdag.steps.resnet50.params import Workload

needs_loadgen = pytest.mark.skipif(
    find_spec("mlperf_loadgen") is None,
    reason="mlcommons-loadgen is not installed: pip install 'perfdag[dev]'",
)


Indices = Sequence[int] | np.ndarray


def fail(error: BaseException) -> None:
    """Fail where the answering thread has an error."""
    pytest.fail(repr(error))


def run_resnet50(params: Workload, folder: Path) -> tuple[Output, Sequence[Measurement]]:
    """Run the benchmark on this machine; return its output and measurements.

    Raises Invalid and Failed as the lead would see them.
    """
    output = Resnet50().measure(Gang([LocalHost()], Shape(), 900.0, str(folder)), params)
    return output, Resnet50().parse(output, params)
