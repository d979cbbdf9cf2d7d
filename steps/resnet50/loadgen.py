"""Run one test of MLCommons LoadGen against a system: settings, callbacks, logs.

It runs in a process that can import mlperf_loadgen. LoadGen calls issue_query in its own thread
with the GIL. The batcher takes the samples and returns at once, so that the schedule is kept.
"""

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from perfdag.steps.resnet50.system import System

Ids = Sequence[int] | np.ndarray
Queued = tuple[np.ndarray, np.ndarray, float]
"""Ids and indices of samples, and when they were queued (time.monotonic() seconds)."""
SCENARIOS = {"offline": "Offline", "server": "Server", "single-stream": "SingleStream"}
"""LoadGen's name of each scenario."""
SPARE, MOST_SPARE = 3.0, 100_000
"""Factors of a stream's queries over those of the expected rate, and the queries they add.

LoadGen itself makes twice as many. A test that runs out of them, after a slow warm-up, is
INVALID. A test that reaches its minimum duration leaves the rest. LoadGen makes all queries
before its clock starts, a million in about a second and 230 MB, so their number is limited."""
LOGS = ("summary", "detail")


class Batcher:
    """Hands queued ids and indices to `infer` in batches and their results to `complete`.

    `infer(indices, ready)` returns one result an index; `ready` is when the last one was queued.
    `complete(ids, results)` follows in the worker's thread. `max_batch` is at least 1.
    `max_delay` is how many seconds the oldest query may wait for a full batch; 0 means none.
    `failed(error)` is called if infer raises, and that worker ends. `workers` batches are in
    flight at most, each in a thread of its own.
    """

    def __init__(
        self,
        infer: Callable[[np.ndarray, float], Ids],
        complete: Callable[[np.ndarray, Ids], None],
        max_batch: int,
        max_delay: float,
        failed: Callable[[BaseException], None],
        workers: int = 1,
    ) -> None:
        self._infer, self._complete, self._failed = infer, complete, failed
        self._max_batch, self._max_delay = max_batch, max_delay
        self._queue: deque[Queued] = deque()
        self._samples = 0
        self._changed = threading.Condition()
        self._closed = False
        self.batch_sizes: Counter[int] = Counter()
        self._workers = [threading.Thread(target=self._work, daemon=True) for _ in range(workers)]

    def start(self, first: Callable[[], object] = lambda: None) -> None:
        """Start the workers, and wait until each has called `first` in its thread."""
        self._first, self._ready = first, threading.Semaphore(0)
        for worker in self._workers:
            worker.start()
        for _ in self._workers:
            self._ready.acquire()

    def put(self, ids: Ids, indices: Ids) -> None:
        """Queue samples and return at once, as LoadGen requires."""
        queued = np.asarray(ids, np.uint64), np.asarray(indices, np.intp), time.monotonic()
        with self._changed:
            self._queue.append(queued)
            self._samples += len(ids)
            self._changed.notify(max(1, len(ids)))

    def close(self) -> None:
        """Run the queued samples, then end the workers."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for worker in self._workers:
            if worker.ident:  # it was started
                worker.join()

    def _take(self) -> Queued | None:
        """Return the next batch; None if the batcher is closed and drained."""
        with self._changed:
            while True:
                while not (self._queue or self._closed):
                    self._changed.wait()
                while (
                    self._max_delay > 0
                    and 0 < self._samples < self._max_batch
                    and not self._closed
                    and (left := self._queue[0][2] + self._max_delay - time.monotonic()) > 0
                ):
                    self._changed.wait(left)
                # Another worker may have taken what there was.
                if (batch := self._batch()) or self._closed:
                    return batch

    def _batch(self) -> Queued | None:
        """Remove and return up to `max_batch` samples, None without any."""
        batch: list[Queued] = []
        room = self._max_batch
        while room and self._queue:
            ids, indices, at = self._queue.popleft()
            batch.append((ids[:room], indices[:room], at))
            if len(ids) > room:
                self._queue.appendleft((ids[room:], indices[room:], at))
            room -= len(batch[-1][0])
        self._samples -= self._max_batch - room
        if len(batch) < 2:
            return batch[0] if batch else None
        ids, indices = (np.concatenate([item[what] for item in batch]) for what in (0, 1))
        return ids, indices, batch[-1][2]

    def _work(self) -> None:
        try:
            try:
                self._first()
            finally:
                self._ready.release()
            while batch := self._take():
                ids, indices, at = batch
                self._complete(ids, self._infer(indices, at))
                with self._changed:
                    self.batch_sizes[len(ids)] += 1
        except BaseException as error:
            self._failed(error)


@dataclass(frozen=True)
class Load:
    """Settings of one LoadGen test. Times in seconds, rates in 1/s.

    `expected_rate` sizes Offline's one query and SingleStream's schedule. A wrong rate makes a
    run longer, or INVALID if Offline's query ends before the minimum duration. `workers` is the
    number of batches at once.
    """

    scenario: str
    batch: int
    min_duration: float
    min_queries: int
    samples: int
    expected_rate: float
    target_rate: float = 0.0
    latency_bound: float = 0.015
    max_delay: float = 0.0
    seed: int = 0
    workers: int = 1


@dataclass(frozen=True)
class LoadGenRun:
    """LoadGen's logs by name, verbatim, and the batches by size.

    `span` is from the first query that LoadGen issued to the last answer, in seconds since the
    epoch. LoadGen's own times of day have no time zone.
    """

    logs: Mapping[str, str]
    batches: Mapping[int, int]
    span: tuple[float, float]


def settings(load: Load) -> Any:
    """Return LoadGen's TestSettings for a load."""
    import mlperf_loadgen as lg

    test_settings = lg.TestSettings()
    test_settings.scenario = getattr(lg.TestScenario, SCENARIOS[load.scenario])
    test_settings.mode = lg.TestMode.PerformanceOnly
    test_settings.min_duration_ms = max(1, math.ceil(load.min_duration * 1000))
    test_settings.min_query_count = load.min_queries
    test_settings.qsl_rng_seed = test_settings.sample_index_rng_seed = (
        test_settings.schedule_rng_seed
    ) = load.seed + 1
    if load.scenario == "offline":
        # LoadGen makes one query of ceil(1.1 * expected * duration) samples. min_query_count counts
        # queries there, so the rate sets the samples.
        test_settings.min_query_count = 1
        test_settings.offline_expected_qps = max(
            load.expected_rate, load.min_queries / 1.1 / (test_settings.min_duration_ms / 1000)
        )
    elif load.scenario == "single-stream":
        test_settings.single_stream_expected_latency_ns = max(
            1, round(1e9 / (spare(load) * load.expected_rate))
        )
        test_settings.single_stream_target_latency_percentile = 0.9
    else:
        test_settings.server_target_qps = load.target_rate
        test_settings.server_target_latency_ns = round(load.latency_bound * 1e9)
        test_settings.server_target_latency_percentile = 0.99
    return test_settings


def spare(load: Load) -> float:
    """Return the factor on SingleStream's expected rate."""
    return min(SPARE, 1 + MOST_SPARE / (2 * load.expected_rate * load.min_duration))


def measure(
    system: System,
    load: Load,
    failed: Callable[[BaseException], None],
    begin: Callable[[], None] = lambda: None,
) -> LoadGenRun:
    """Run one LoadGen test to its end.

    `failed` is called in another thread if the system raises. It must end the process, as
    LoadGen cannot be stopped from outside. `begin` is called when samples are loaded and the
    answering thread is warm.
    """
    import mlperf_loadgen as lg

    began: float | None = None
    end = time.time()
    begun = False

    def complete(ids: np.ndarray, results: Ids) -> None:
        nonlocal end
        lg.QuerySamplesComplete([lg.QuerySampleResponse(one, 0, 0) for one in ids.tolist()])
        end = time.time()

    def answer(ids: Sequence[int], indices: Sequence[int]) -> None:
        # LoadGen sends one at a time and waits. A hand-over between threads would be most of the
        # harness's share of the latency.
        try:
            complete(np.asarray(ids), system.infer(np.asarray(indices), time.monotonic()))
        except BaseException as error:
            failed(error)

    def load_samples(indices: Sequence[int]) -> None:
        # LoadGen calls this before its clock starts. An exception would end the process silently.
        nonlocal begun
        try:
            system.load(indices)
            if begun:
                return
            begun = True
            if load.scenario != "single-stream":
                # The first batch of a thread allocates its arena and its handles.
                batcher.start(
                    lambda: [
                        system.infer(np.resize(indices, size), time.monotonic())
                        for size in system.buckets(load.batch)
                    ]
                )
            begin()
        except BaseException as error:
            failed(error)

    delay = load.max_delay if load.scenario == "server" else 0.0
    batcher = Batcher(system.infer, complete, load.batch, delay, failed, load.workers)
    with TemporaryDirectory(prefix="loadgen-") as folder:
        logs = lg.LogSettings()
        logs.enable_trace = False
        logs.log_output.outdir = folder
        take = answer if load.scenario == "single-stream" else batcher.put

        def issue(ids: Sequence[int], indices: Sequence[int]) -> None:
            nonlocal began
            if began is None:
                began = time.time()
            take(ids, indices)

        # The fast SUT gives two lists of numbers instead of an object a sample.
        sut = lg.ConstructFastSUT(issue, lambda: None)
        qsl = lg.ConstructQSL(load.samples, load.samples, load_samples, system.unload)
        try:
            # An audit configuration in the working directory would change the test.
            nowhere = f"{folder}/audit.config"
            lg.StartTestWithLogSettings(sut, qsl, settings(load), logs, nowhere)
        finally:
            lg.DestroyQSL(qsl)
            lg.DestroyFastSUT(sut)
            batcher.close()
        texts = {
            name: (Path(folder) / f"mlperf_log_{name}.txt").read_text(errors="replace")
            for name in LOGS
        }
        return LoadGenRun(texts, dict(batcher.batch_sizes), (end if began is None else began, end))
