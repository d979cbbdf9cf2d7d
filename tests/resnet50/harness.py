"""The harness's own figures on a system of known service time, to hold against plain LoadGen's."""

import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from perfdag.benchmark.contract import Gang, Output
from perfdag.hosts.local import LocalHost
from perfdag.outcome import Measurement
from perfdag.shape import Shape
from perfdag.steps.resnet50 import loadgen, loadgen_log
from perfdag.steps.resnet50.benchmark import Resnet50
from perfdag.steps.resnet50.loadgen import Load
from perfdag.steps.resnet50.params import Workload
from perfdag.steps.resnet50.system import Stub

needs_loadgen = pytest.mark.skipif(
    find_spec("mlperf_loadgen") is None,
    reason="mlcommons-loadgen is not installed: pip install 'perfdag[dev]'",
)


Indices = Sequence[int] | np.ndarray


def fail(error: BaseException) -> None:
    """Fail where the answering thread has an error."""
    pytest.fail(repr(error))


class FromTheCall(Stub):
    """Serves from when it is called, not from when a query was queued, so that the way through
    the batcher shows.
    """

    def infer(self, indices: Indices, ready: float) -> np.ndarray:
        return super().infer(indices, time.monotonic())


def run_resnet50(params: Workload, folder: Path) -> tuple[Output, Sequence[Measurement]]:
    """Run the benchmark on this machine; return its output and measurements.

    Raises Invalid and Failed as the lead would see them.
    """
    output = Resnet50().run(Gang([LocalHost()], Shape(), 900.0, str(folder)), params)
    return output, Resnet50().parse(output, params)


def server_p50(
    service: float, queries: int, rate: float, failed: Callable[[BaseException], None] = fail
) -> float:
    """Seconds of the median query of Server at `rate`/s through the batcher."""
    load = Load(
        "server",
        1,
        0.001,
        queries,
        64,
        1 / service,
        target_rate=rate,
        latency_bound=1.0,
    )
    logs = loadgen.measure(FromTheCall(service), load, failed).logs
    return loadgen_log.read(logs["summary"], logs["detail"]).percentiles[0.5]
