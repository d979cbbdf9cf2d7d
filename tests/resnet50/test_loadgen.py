"""The real LoadGen against a system of known service time."""

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfdag.steps.resnet50 import loadgen, loadgen_log, program
from perfdag.steps.resnet50.loadgen import Load
from perfdag.steps.resnet50.params import Workload
from perfdag.steps.resnet50.program import Program
from perfdag.steps.resnet50.system import Stub
from tests.recorded.measured import values
from tests.resnet50.harness import Indices, fail, run_resnet50

pytest.importorskip(
    "mlperf_loadgen", reason="mlcommons-loadgen is not installed: pip install 'perfdag[dev]'"
)


def measure(folder: Path, **params: Any) -> Sequence[Any]:
    """Run the benchmark on this machine with the stub; return its measurements."""
    return run_resnet50(Workload(system="stub", **params), folder)[1]


def mllog(tested: loadgen.LoadGenRun) -> Mapping[str, Any]:
    return loadgen_log.read(tested.logs["summary"], tested.logs["detail"]).keys


def test_a_single_stream_four_times_as_fast_as_its_warm_up_is_long_enough() -> None:
    """The queries are made beforehand, by the warm-up's rate: a machine that was busy then is
    not now.
    """
    load = Load("single-stream", 1, 0.5, 20, 8, 50.0)
    tested = loadgen.measure(Stub(0.005), load, fail)
    assert mllog(tested)["result_min_duration_met"] is True


@pytest.mark.parametrize(("rate", "duration"), [(50.0, 0.5), (50.0, 60.0), (1000.0, 600.0)])
def test_queries_are_spared_where_they_are_few(rate: float, duration: float) -> None:
    """LoadGen makes 2 * duration / expected latency of them, in memory, before its clock starts."""
    settings = loadgen.settings(Load("single-stream", 1, duration, 20, 8, rate))
    expected = settings.single_stream_expected_latency_ns / 1e9
    own = 2 * duration * rate
    assert 2 * duration / expected == pytest.approx(min(3 * own, own + 100_000), rel=0.01)


class Cold(Stub):
    """The first batch of each size in a thread takes half a second; `threads` has the thread of
    each batch.
    """

    def __init__(self) -> None:
        super().__init__(0.002)
        self.warm = threading.local()
        self.threads: list[int] = []

    def buckets(self, largest: int) -> Sequence[int]:
        return range(1, largest + 1)

    def infer(self, indices: Indices, ready: float) -> np.ndarray:
        self.threads.append(threading.get_ident())
        if not hasattr(self.warm, f"at_{len(indices)}"):
            setattr(self.warm, f"at_{len(indices)}", True)
            time.sleep(0.5)
        return super().infer(indices, time.monotonic())


def test_the_first_batch_of_a_size_in_the_answering_thread_is_no_part_of_a_latency() -> None:
    begun: list[float] = []
    load = Load("server", 3, 0.1, 64, 8, 500, target_rate=200, latency_bound=1.0, max_delay=0.01)
    tested = loadgen.measure(Cold(), load, fail, lambda: begun.append(time.monotonic()))
    assert len(begun) == 1
    assert tested.batches.keys() >= {2, 3}
    assert mllog(tested)["result_max_latency_ns"] < 0.4e9


class Slow(Stub):
    """A set of samples takes 0.4 s to load."""

    loaded = 0.0

    def load(self, indices: Sequence[int]) -> None:
        time.sleep(0.4)
        self.loaded = time.time()


@pytest.mark.parametrize("duration", [0.0001, 0.0014, 0.0037])
@pytest.mark.parametrize("queries", [1, 16, 333])
def test_offline_asks_min_queries_however_short_the_duration(duration: float, queries: int) -> None:
    load = Load("offline", 64, duration, queries, 8, 1.0)
    tested = loadgen.measure(Stub(1e-6), load, fail)
    actual = loadgen_log.read(tested.logs["summary"], tested.logs["detail"]).queries
    assert queries <= actual <= queries + 2


@pytest.mark.parametrize(
    ("scenario", "more", "rate"),
    [
        ("offline", {}, 1.25 * 500),
        ("offline", {"fast": True}, 500),
        ("offline", {"target_rate": 2000}, 2000),
        ("server", {}, 250),
        ("server", {"target_rate": 40}, 40),
    ],
)
def test_a_test_is_sized_by_target_rate_or_the_warm_up(
    monkeypatch: pytest.MonkeyPatch, scenario: str, more: dict[str, Any], rate: float
) -> None:
    """Offline takes its rate with a margin, and Server half of it."""
    requests: list[Load] = []

    def measure_nothing(system: Any, load: Load, *_: Any) -> loadgen.LoadGenRun:
        requests.append(load)
        return loadgen.LoadGenRun({}, {}, (0.0, 1.0))

    monkeypatch.setattr(loadgen, "measure", measure_nothing)
    monkeypatch.setattr(program, "warm_all", lambda spec, system, woken: (500.0, {}))
    limits = {"min_queries": 16, "min_duration": 0.01}
    params = Workload.model_validate({"system": "stub", "scenario": scenario, **limits, **more})
    Program(params.spec(), 1).measure()
    load = requests[0]
    assert (load.expected_rate if scenario == "offline" else load.target_rate) == rate


@pytest.mark.parametrize("scenario", ["offline", "single-stream"])
def test_the_span_of_a_test_is_loadgens_own(scenario: str) -> None:
    system = Slow(0.002)
    tested = loadgen.measure(system, Load(scenario, 1, 0.1, 64, 8, 500), fail)
    keys = loadgen_log.mllog(tested.logs["detail"])
    began, ended = (
        float(keys[name].rpartition(":")[2]) for name in ("power_begin", "power_end")
    )  # seconds of a minute
    took = tested.span[1] - tested.span[0]
    assert took == pytest.approx((ended - began) % 60, abs=0.05)
    assert tested.span[0] > system.loaded - 0.2, "the time to load is no part of it"


def test_offline_counts_samples_and_batches(tmp_path: Path) -> None:
    rows = measure(
        tmp_path,
        scenario="offline",
        batch=8,
        stub={"base": 0.004, "each": 0.0005},
        min_queries=200,
        min_duration=0.5,
    )
    [throughput] = [row for row in rows if row.metric == "throughput"]
    assert throughput.value == pytest.approx(8 / 0.008, rel=0.1)
    assert (throughput.n or 0) >= 200


def test_server_batches_what_waits(tmp_path: Path) -> None:
    rows = measure(
        tmp_path,
        scenario="server",
        batch=8,
        target_rate=150,
        latency_bound=0.5,
        max_delay=0.05,
        stub={"base": 0.01},
        min_queries=470,
        min_duration=0.5,
    )
    assert values(rows, "batch_size")[0] > 3
    assert values(rows, "scheduled_rate") == [pytest.approx(150, rel=0.15)]


def test_the_logs_are_kept_verbatim(tmp_path: Path) -> None:
    limits = {"min_queries": 64, "min_duration": 0.1}
    params = Workload(system="stub", scenario="single-stream", stub={"base": 0.001}, **limits)
    output, _ = run_resnet50(params, tmp_path)
    assert output.texts["mlperf_log_summary"].startswith("================")
    assert "MLPerf Results Summary" in output.texts["mlperf_log_summary"]
    assert ":::MLLOG" in output.texts["mlperf_log_detail"]
    assert output.facts["summary_document"]["benchmarks"][0]["scenario"] == "single_stream"
