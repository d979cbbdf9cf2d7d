"""Run one test of MLCommons LoadGen against a system.

It runs in a process that can import mlperf_loadgen. LoadGen calls issue_query in its own thread
with the GIL. The batcher takes the samples and returns at once, so that the schedule is kept.
"""

import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import numpy as np

Ids = Sequence[int] | np.ndarray
SCENARIOS = {"offline": "Offline", "server": "Server", "single-stream": "SingleStream"}
"""LoadGen's name of each scenario."""
SPARE, MOST_SPARE = 3.0, 100_000
"""Factors of a stream's queries over those of the expected rate, and the queries they add.

LoadGen itself makes twice as many. A test that runs out of them, after a slow warm-up, is
INVALID. A test that reaches its minimum duration leaves the rest. LoadGen makes all queries
before its clock starts, a million in about a second and 230 MB, so their number is limited."""


class UnusableError(Exception):
    """The device is not there, or cannot compute so."""


class System(Protocol):
    """Answers batches of samples, which are in host memory, by index."""

    def infer(self, indices: Ids, ready: float) -> np.ndarray:
        """Return the class of each sample, once the answer is in host memory.

        `ready` is when the last of the batch was queued (time.monotonic() seconds).
        """

    def sizes(self) -> Sequence[int]:
        """Return the batch sizes to warm so that any batch is warm, the largest last."""


class Stub:
    """A system of known service time, to measure the harness itself.

    It is a single server that takes exactly `base + each * b` seconds for a batch of b samples.
    Ends are scheduled, not slept one after the other. A late timer delays one answer by tens of
    microseconds but never the server, so the theory of a deterministic server (M/D/1) holds.
    """

    facts: Mapping[str, Any] = {
        "model": {"system": "stub", "weights": "none"},
        "device": {"name": "stub"},
    }

    def __init__(self, base: float, each: float = 0.0, batch: int = 1) -> None:
        self.base, self.each, self.batch, self.end = base, each, batch, 0.0

    def sizes(self) -> Sequence[int]:
        """Return one size, as every size is equally warm."""
        return (self.batch,)

    def infer(self, indices: Ids, ready: float) -> np.ndarray:
        """Wait for the service time and return the classes: sample i has class i modulo 1000."""
        self.end = max(ready, self.end) + self.base + self.each * len(indices)
        sleep_until(self.end)
        return np.asarray(indices) % 1000


def sleep_until(deadline: float) -> None:
    """Sleep until time.monotonic() is `deadline`; the timer may be some 60 us late."""
    if (left := deadline - time.monotonic()) > 0:
        time.sleep(left)


class Batcher:
    """Hands queued ids and indices to `infer` in batches and their results to `complete`.

    `infer(indices, ready)` returns one result an index; `ready` is when the last one was queued.
    `complete(ids, results)` follows in the worker's thread. `max_batch` is at least 1.
    `max_delay` is how many seconds the oldest query may wait for a full batch; 0 means none.
    `failed(error)` is called if infer raises, and that worker ends. `workers` batches are in
    flight at most, each in a thread of its own, which first infers the batches of `warm`.
    """

    def __init__(
        self,
        infer: Callable[[np.ndarray, float], Ids],
        complete: Callable[[np.ndarray, Ids], None],
        max_batch: int,
        max_delay: float,
        failed: Callable[[BaseException], None],
        workers: int = 1,
        warm: Sequence[np.ndarray] = (),
    ) -> None:
        self._infer, self._complete, self._failed = infer, complete, failed
        self._max_batch, self._max_delay = max_batch, max_delay
        self._queue: queue.SimpleQueue[tuple[int, int, float] | None] = queue.SimpleQueue()
        self._taking = threading.Lock()  # a batch that waits for more must not lose them to another
        self.batch_sizes: Counter[int] = Counter()
        self._warm, self._ready = warm, threading.Barrier(workers + 1)
        self._workers = [threading.Thread(target=self._work, daemon=True) for _ in range(workers)]
        for worker in self._workers:
            worker.start()
        self._ready.wait()

    def put(self, ids: Ids, indices: Ids) -> None:
        """Queue samples and return at once, as LoadGen requires."""
        now = time.monotonic()
        for one, index in zip(ids, indices, strict=True):
            self._queue.put((one, index, now))

    def close(self) -> None:
        """Run the queued samples, then end the workers."""
        for _ in self._workers:
            self._queue.put(None)
        for worker in self._workers:
            worker.join()

    def _take(self) -> list[tuple[int, int, float]]:
        """Return the next batch, empty at the end."""
        with self._taking:
            if (item := self._queue.get()) is None:
                return []
            batch = [item]
            while len(batch) < self._max_batch:
                left = batch[0][2] + self._max_delay - time.monotonic()
                try:
                    item = self._queue.get(left > 0, max(0.0, left))
                except queue.Empty:
                    break
                if item is None:
                    self._queue.put(None)
                    break
                batch.append(item)
            return batch

    def _work(self) -> None:
        try:
            for batch in self._warm:
                self._infer(batch, time.monotonic())
            self._ready.wait()
            while samples := self._take():
                ids, indices, queued = zip(*samples, strict=True)
                self._complete(np.array(ids), self._infer(np.array(indices), queued[-1]))
                self.batch_sizes[len(samples)] += 1
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


def settings(load: Load) -> Any:
    """Return LoadGen's TestSettings for a load."""
    import mlperf_loadgen as lg

    test = lg.TestSettings()
    test.scenario = getattr(lg.TestScenario, SCENARIOS[load.scenario])
    test.mode = lg.TestMode.PerformanceOnly
    test.min_duration_ms = max(1, math.ceil(load.min_duration * 1000))
    test.min_query_count = load.min_queries
    test.qsl_rng_seed = test.sample_index_rng_seed = test.schedule_rng_seed = load.seed + 1
    if load.scenario == "offline":
        # LoadGen makes one query of ceil(1.1 * expected * duration) samples. min_query_count counts
        # queries there, so the rate sets the samples.
        test.min_query_count = 1
        least = load.min_queries / 1.1 / (test.min_duration_ms / 1000)
        test.offline_expected_qps = max(load.expected_rate, least)
    elif load.scenario == "single-stream":
        spare = min(SPARE, 1 + MOST_SPARE / (2 * load.expected_rate * load.min_duration))
        test.single_stream_expected_latency_ns = max(1, round(1e9 / (spare * load.expected_rate)))
        test.single_stream_target_latency_percentile = 0.9
    else:
        test.server_target_qps = load.target_rate
        test.server_target_latency_ns = round(load.latency_bound * 1e9)
        test.server_target_latency_percentile = 0.99
    return test


def measure(system: System, load: Load, failed: Callable[[BaseException], None]) -> dict[str, Any]:
    """Run one LoadGen test to its end; return LoadGen's `logs` by name, and the `batches` by size.

    It `started` with the first query that LoadGen issued and `ended` with the last answer, in
    seconds since the epoch: LoadGen's own times of day have no time zone.

    `failed` is called in another thread if the system raises. It must end the process, as
    LoadGen cannot be stopped from outside.
    """
    import mlperf_loadgen as lg

    times: dict[str, float] = {}

    def complete(ids: np.ndarray, results: Ids) -> None:
        lg.QuerySamplesComplete([lg.QuerySampleResponse(one, 0, 0) for one in ids.tolist()])
        times["end"] = time.time()

    def answer(ids: Sequence[int], indices: Sequence[int]) -> None:
        # LoadGen sends one at a time and waits. A hand-over between threads would be most of the
        # harness's share of the latency.
        try:
            complete(np.asarray(ids), system.infer(np.asarray(indices), time.monotonic()))
        except BaseException as error:
            failed(error)

    alone = load.scenario == "single-stream"
    delay, workers = (
        load.max_delay if load.scenario == "server" else 0.0,
        0 if alone else load.workers,
    )
    # The first batch of a thread allocates its arena and its handles.
    warm = [np.arange(size) % load.samples for size in system.sizes()]
    batcher = Batcher(system.infer, complete, load.batch, delay, failed, workers, warm)
    take = answer if alone else batcher.put

    def issue(ids: Sequence[int], indices: Sequence[int]) -> None:
        times.setdefault("begin", time.time())
        take(ids, indices)

    with TemporaryDirectory(prefix="loadgen-") as folder:
        logs = lg.LogSettings()
        logs.enable_trace = False
        logs.log_output.outdir = folder
        # The fast SUT gives two lists of numbers instead of an object a sample.
        sut = lg.ConstructFastSUT(issue, lambda: None)
        qsl = lg.ConstructQSL(load.samples, load.samples, lambda _: None, lambda _: None)
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
            for name in ("summary", "detail")
        }
    return {
        "started": times["begin"],
        "ended": times["end"],
        "batches": dict(batcher.batch_sizes),
        "logs": texts,
    }
