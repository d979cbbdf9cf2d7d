"""The dynamic batcher, and the real LoadGen against a system of known service time."""

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from perfdag.benchmark.contract import Failed, Invalid
from perfdag.steps.resnet50.program import (
    SLOWER,
    Batcher,
    BatchTimes,
    Stub,
    largest_rate,
    late_share,
    measure,
    settings,
)
from perfdag.steps.resnet50.workload import SHARE_OF_LARGEST, Workload, mllog, result_of
from tests.recorded.measured import values
from tests.resnet50.harness import Indices, fail, needs_loadgen, recorded, run_resnet50


class Recorder:
    """Collects what is completed."""

    def __init__(self) -> None:
        self.done: list[tuple[list[int], list[int], float]] = []
        self.errors: list[BaseException] = []

    def infer(self, indices: np.ndarray, ready: float) -> np.ndarray:
        return indices * 10

    def complete(self, ids: np.ndarray, results: Indices) -> None:
        self.done.append((list(ids), list(results), time.monotonic()))

    def batcher(self, max_batch: int, max_delay: float, workers: int = 1) -> Batcher:
        options = (max_batch, max_delay, self.errors.append, workers)
        return Batcher(self.infer, self.complete, *options)


@pytest.mark.parametrize("workers", [1, 2])
def test_everything_is_answered_once_in_batches_no_larger_than_asked(workers: int) -> None:
    seen = Recorder()
    batcher = seen.batcher(8, 0.0, workers)
    batcher.put(range(100, 150), range(50))
    batcher.close()
    answers = {
        one: result
        for ids, results, _ in seen.done
        for one, result in zip(ids, results, strict=True)
    }
    assert answers == {100 + n: 10 * n for n in range(50)}
    assert batcher.batch_sizes == {8: 6, 2: 1}


@pytest.mark.parametrize(
    ("max_batch", "delay", "queries", "least", "most"),
    [(4, 0.05, 1, 0.045, 2), (2, 30.0, 2, 0, 10)],
    ids=["a lone query waits for the delay", "a full batch does not wait"],
)
def test_a_batch_waits_for_the_delay_and_no_longer_unless_it_is_full(
    max_batch: int, delay: float, queries: int, least: float, most: float
) -> None:
    seen = Recorder()
    batcher = seen.batcher(max_batch, delay, 2)
    start = time.monotonic()
    for number in range(queries):
        batcher.put([number], [number])
    while not seen.done and time.monotonic() - start < 10:
        time.sleep(0.001)
    batcher.close()
    assert [batch for batch, _, _ in seen.done] == [list(range(queries))]
    assert least < seen.done[0][2] - start < most


def test_an_error_is_told_once_and_ends_the_worker() -> None:
    seen = Recorder()
    broken = Mock(side_effect=MemoryError("batch"))
    batcher = Batcher(broken, seen.complete, 1, 0.0, seen.errors.append)
    batcher.put([1, 2], [0, 1])
    batcher.close()
    assert [type(error) for error in seen.errors] == [MemoryError]


def spec(scenario: str, duration: float, queries: int, **more: Any) -> dict[str, Any]:
    """The program's input for a short test of a stub."""
    own = {"scenario": scenario, "min_duration": duration, "min_queries": queries, "samples": 8}
    return Workload.model_validate({"system": "stub", **own, **more}).spec()


@needs_loadgen
def test_a_single_stream_four_times_as_fast_as_its_warm_up_is_long_enough() -> None:
    """The queries are made beforehand, by the warm-up's rate: a machine that was busy then is
    not now.
    """
    tested = measure(Stub(0.005), spec("single-stream", 0.5, 20), 50.0, fail)
    assert result_of({"test": tested}).met["result_min_duration_met"]


class Cold(Stub):
    """The first batch of each size in a thread takes half a second."""

    def __init__(self) -> None:
        super().__init__(0.002)
        self.warm = threading.local()

    def sizes(self) -> Sequence[int]:
        return range(1, 4)

    def infer(self, indices: Indices, ready: float) -> np.ndarray:
        if not hasattr(self.warm, f"at_{len(indices)}"):
            setattr(self.warm, f"at_{len(indices)}", True)
            time.sleep(0.5)
        return super().infer(indices, time.monotonic())


@needs_loadgen
def test_the_first_batch_of_a_size_in_the_answering_thread_is_no_part_of_a_latency() -> None:
    more = {"target_rate": 200, "latency_bound": 1.0, "max_delay": 0.01, "batch": 3}
    tested = measure(Cold(), spec("server", 0.1, 64, **more), 500, fail)
    assert tested["batches"].keys() >= {2, 3}
    assert mllog(tested["logs"]["detail"])["result_max_latency_ns"] < 0.4e9


@needs_loadgen
@pytest.mark.parametrize("duration", [0.0001, 0.0037])
@pytest.mark.parametrize("queries", [1, 16, 333])
def test_offline_asks_min_queries_however_short_the_duration(duration: float, queries: int) -> None:
    tested = measure(Stub(1e-6), spec("offline", duration, queries, batch=64), 0.5, fail)
    assert queries <= result_of({"test": tested}).queries <= queries + 2


@needs_loadgen
@pytest.mark.parametrize(
    ("scenario", "more", "rate"),
    [
        ("offline", {}, 1.25 * 500),
        ("offline", {"fast": True}, 500),
        ("offline", {"target_rate": 2000}, 2000),
        ("server", {"target_rate": 40}, 40),
    ],
)
def test_a_test_is_sized_by_target_rate_or_the_warm_up(
    scenario: str, more: dict[str, Any], rate: float
) -> None:
    """Offline takes that of the warm-up with a margin."""
    test = settings(spec(scenario, 1.0, 16, **more), 500.0)
    assert (test.offline_expected_qps if scenario == "offline" else test.server_target_qps) == rate


def spread_evenly(share: float) -> list[float]:
    return [1 + share * number / 100 for number in range(-100, 101)]


@pytest.mark.parametrize(
    ("times", "more", "late"),
    [
        # The p99 of an M/D/1 queue at half of its capacity is 4.35 service times.
        (BatchTimes((1, 1), (0.004, 0.004), [1.0]), {"latency_bound": 4.35 * 0.004}, 0.01),
        # A lone query waits for others as long as it may, and is late by that.
        (
            BatchTimes((1, 8), (0.004, 0.004), [1.0]),
            {"batch": 8, "max_delay": 1.0, "latency_bound": 0.4, "rate": 0.01},
            1.0,
        ),
    ],
)
def test_a_simulated_batcher_is_late_as_often_as_queueing_theory_says(
    times: BatchTimes, more: dict[str, Any], late: float
) -> None:
    rate = more.pop("rate", 125.0)
    simulated = late_share(rate, times, spec("server", 1.0, 1, **more), 1)
    assert simulated == pytest.approx(late, rel=0.2)


@pytest.mark.parametrize(
    ("times", "batch", "bound"),
    [
        (BatchTimes((1, 1), (0.0048, 0.0048), spread_evenly(0.02)), 1, 0.010),
        (BatchTimes((1, 1), (0.003, 0.003), spread_evenly(0.02)), 1, 0.010),
        (BatchTimes((1, 8), (0.005, 0.022), spread_evenly(0.02)), 8, 0.015),
        (BatchTimes((1, 32), (0.005, 0.085), spread_evenly(0.02)), 32, 0.030),
    ],
)
def test_the_rate_of_server_leaves_loadgen_no_doubt_of_the_bound(
    times: BatchTimes, batch: int, bound: float
) -> None:
    """Its p99 is in time with 99 % confidence where less than a third of the 1 % is late."""
    device = spec("server", 30.0, 100, batch=batch, latency_bound=bound)
    in_time = Mock(side_effect=[False, True])
    rate = largest_rate(times, device, 2, in_time)
    [[first], [second]] = (tried.args for tried in in_time.mock_calls)
    assert rate == second == SLOWER * first
    assert 2.5 < rate < times.capacity
    assert late_share(SHARE_OF_LARGEST * first, times, device, 2) < 0.003
    assert late_share(2 * first, times, device, 2) > 0.003


def serve_at_default_rate(bound: float) -> tuple[Sequence[Any], str]:
    """Return the largest rate and the rate of a stub of 2 ms, and why LoadGen says INVALID."""
    own = {"scenario": "server", "stub": {"base": 0.002}, "latency_bound": bound}
    params = Workload.model_validate({"system": "stub", "min_duration": 0.5, **own})
    reason = ""
    try:
        _, rows = run_resnet50(params)
    except Invalid as error:  # as it also may on a busy machine
        rows, reason = error.measurements, str(error)
    return [*values(rows, "largest_rate"), *values(rows, "target_rate")], reason


@needs_loadgen
@pytest.mark.slow
def test_server_says_of_which_rate_its_default_is_a_part() -> None:
    (largest, target), _ = serve_at_default_rate(bound=0.2)
    assert target == pytest.approx(0.9 * largest)
    assert 0 < largest < 500
    (largest, target), reason = serve_at_default_rate(bound=0.0001)
    assert largest == 0
    assert 0 < target < 250
    assert reason.startswith("LoadGen says INVALID: no rate holds 100 µs, as a batch takes ")


@needs_loadgen
@pytest.mark.parametrize("scenario", ["offline", "single-stream"])
def test_the_span_of_a_test_is_loadgens_own(scenario: str) -> None:
    tested = measure(Stub(0.002), spec(scenario, 0.1, 64), 500, fail)
    keys = mllog(tested["logs"]["detail"])
    # seconds of a minute
    began, ended = (float(keys[f"power_{end}"].rpartition(":")[2]) for end in ("begin", "end"))
    took = tested["ended"] - tested["started"]
    assert took == pytest.approx((ended - began) % 60, abs=0.05)


@needs_loadgen
def test_offline_counts_samples_and_server_batches_what_waits() -> None:
    limits: dict[str, Any] = {"batch": 8, "min_duration": 0.5, "system": "stub"}
    stub: dict[str, Any] = {"base": 0.004, "each": 0.0005}
    output, rows = run_resnet50(Workload(scenario="offline", min_queries=200, **limits, stub=stub))
    [throughput] = [row for row in rows if row.metric == "throughput"]
    assert throughput.value == pytest.approx(8 / 0.008, rel=0.1)
    assert (throughput.n or 0) >= 200
    assert "MLPerf Results Summary" in output.texts["mlperf_log_summary"]
    assert ":::MLLOG" in output.texts["mlperf_log_detail"]
    server: dict[str, Any] = {"target_rate": 150, "latency_bound": 0.5, "max_delay": 0.05}
    more = {"min_queries": 470, "stub": {"base": 0.01}}
    _, rows = run_resnet50(Workload(scenario="server", **limits, **server, **more))
    assert values(rows, "batch_size")[0] > 3
    assert values(rows, "scheduled_rate") == [pytest.approx(150, rel=0.15)]


@pytest.mark.parametrize("name", ["single-stream", "offline", "server-overloaded"])
def test_a_log_cut_anywhere_yields_all_or_an_error(name: str) -> None:
    detail = recorded(name)["test"]["logs"]["detail"]
    whole = result_of({"test": {"logs": {"detail": detail}}})
    for at in range(0, len(detail), max(1, len(detail) // 60)):
        with suppress(Failed):
            cut = result_of({"test": {"logs": {"detail": detail[:at]}}})
            assert replace(cut, raw={}) == replace(whole, raw={})
