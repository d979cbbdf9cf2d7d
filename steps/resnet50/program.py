"""Measure one workload in a process of its own: set up, warm up, run MLCommons LoadGen.

It reads its input, a line of JSON on standard input, and prints one JSON object with LoadGen's
logs verbatim, so any wrapper that passes on the standard streams can precede it.

    python -m perfdag.steps.resnet50.program
"""

import json
import math
import os
import queue
import random
import re
import statistics
import sys
import threading
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np

from perfdag.benchmark.contract import Skip
from perfdag.steps.resnet50.workload import (
    MARGIN,
    PROGRAM,
    SHARE_OF_CAPACITY,
    SHARE_OF_LARGEST,
    result_of,
)

Ids = Sequence[int] | np.ndarray
Spec = Mapping[str, Any]
"""The program's input, see `Workload.spec` and `Workload.stdin`."""
LATE = 0.001
"""Share of late queries at the largest rate: a tenth of what p99 allows, for LoadGen to be sure."""
CONFIDENT = 838
"""Fewest queries of which LoadGen takes 2 late ones (its early stopping, p99 at 99 %)."""
LONGEST = 300.0
"""Seconds that these queries may take. A lower rate is none."""
ARRIVALS = 30_000
STEPS = 2000
"""Parts of the capacity in which the largest rate is found."""
TRIALS, SLOWER = 3, 0.75
"""Trials of a rate, and the factor of the next one after a trial in which p99 was late."""
WINDOW = 5
WINDOWS = 3
TOLERANCE = 0.1
"""The warm-up ends when three windows of five batches have medians within 10 %.

The rule is perf_analyzer's. Windows are shorter if five batches would not fit three times."""
STRETCH = 16
"""Batches to wait for when they exceed the limit: three windows of five, and one."""
WARM_LIMIT, WARM_LIMIT_FAST = 60.0, 2.0
TRIAL = 8.0
"""Seconds of a trial of Server's rate: three of them and the simulation take 30 s at most."""
WARM_LEAST_CUDA = 1.0
"""Seconds that a GPU stays busy before its rate counts: its clocks rise meanwhile."""
SCENARIOS = {"offline": "Offline", "server": "Server", "single-stream": "SingleStream"}
"""LoadGen's name of each scenario."""
SPARE, MOST_SPARE = 3.0, 100_000
"""Factors of a stream's queries over those of the expected rate, and the queries they add.

LoadGen itself makes twice as many. A test that runs out of them, after a slow warm-up, is
INVALID. A test that reaches its minimum duration leaves the rest. LoadGen makes all queries
before its clock starts, a million in about a second and 230 MB, so their number is limited."""
_NO_MEMORY = re.compile(
    "out of memory|can't allocate memory|_STATUS_ALLOC_FAILED|Unable to allocate"
)


class BatchTimes(NamedTuple):
    """How long batches take, as a warm-up measured it.

    The smallest and the largest one have `samples`, and take `seconds` in the median; the time
    grows evenly between them. `spread` has single times over their median.
    """

    samples: tuple[int, int]
    seconds: tuple[float, float]
    spread: Sequence[float]

    @property
    def capacity(self) -> float:
        """Samples per second in the largest batches."""
        return self.samples[1] / self.seconds[1]


def late_share(rate: float, times: BatchTimes, spec: Mapping[str, Any], workers: int) -> float:
    """Return the share of queries that a simulation of `Batcher` answers after the bound.

    They arrive at `rate` (1/s) as a Poisson process. A worker that is free takes the oldest query,
    and waits for a full batch up to `max_delay`. The device computes one batch after the other.
    """
    generator = random.Random(0)
    arrivals = list(accumulate(generator.expovariate(rate) for _ in range(ARRIVALS)))
    medians = np.interp(range(spec["batch"] + 1), times.samples, times.seconds).tolist()
    ends = [0.0] * workers  # of the newest batches, the oldest first, as the device takes them
    closed = 0.0
    first = late = 0
    while first < ARRIVALS:
        # A worker is free when its last batch ended, and only one collects a batch at a time.
        taken = max(arrivals[first], ends[-workers], closed)
        full = arrivals[min(first + spec["batch"], ARRIVALS) - 1]
        closed = max(taken, min(arrivals[first] + spec["max_delay"], full))
        last = min(bisect_right(arrivals, closed, first), first + spec["batch"])
        seconds = medians[last - first] * generator.choice(times.spread)
        ends = [*ends[1:], max(closed, ends[-1]) + seconds]
        late += bisect_left(arrivals, ends[-1] - spec["latency_bound"], first, last) - first
        first = last
    return late / ARRIVALS


def largest_rate(
    times: BatchTimes,
    spec: Mapping[str, Any],
    workers: int,
    holds: Callable[[float], bool],
) -> float:
    """Return the largest rate (1/s) that holds the bound of the spec, or 0 if none does.

    `holds` tries a rate, and returns whether p99 was in time.
    """
    step = times.capacity / STEPS
    steps = bisect_right(
        range(1, STEPS), LATE, key=lambda n: late_share(n * step, times, spec, workers)
    )
    rate = steps * step
    for _ in range(TRIALS):
        if rate < CONFIDENT / LONGEST:
            return 0.0
        if holds(rate):
            break
        rate *= SLOWER
    return rate


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
        time.sleep(max(0.0, self.end - time.monotonic()))
        return np.asarray(indices) % 1000


@dataclass(frozen=True)
class Warmup:
    """A warm-up in seconds: `first` batch, and `steady` median of the last window.

    The first batch includes lazy initialisation, compilation and tuning. `spread` has the times of
    the later half of the batches over their median.
    """

    first: float
    steady: float
    stable: bool
    spread: Sequence[float]


def warm_up(
    call: Callable[[], object],
    limit: float,
    clock: Callable[[], float] = time.perf_counter,
    stretch: int = STRETCH,
    least: float = 0.0,
) -> Warmup:
    """Call until three windows of five agree within 10 %.

    It takes between `least` and `limit` seconds after the first call. If `stretch` times the
    second call is more than the limit, that is the limit. At the limit it is not stable.
    """

    def timed() -> float:
        start = clock()
        call()
        return clock() - start

    first = timed()
    begun = clock()
    seconds = [timed()]
    medians: list[float] = []
    # All windows fit into the limit as given; only then a slow call raises it.
    window = max(1, min(WINDOW, int(limit / (WINDOWS * max(seconds[0], 1e-9)))))
    limit = max(limit, stretch * seconds[0])
    while True:
        while len(seconds) < window * (len(medians) + 1) and clock() - begun <= limit:
            seconds.append(timed())
        medians.append(statistics.median(seconds[-window:]))
        last = medians[-WINDOWS:]
        stable = len(last) == WINDOWS and max(last) <= (1 + TOLERANCE) * min(last)
        if (stable and clock() - begun >= least) or clock() - begun > limit:
            later = seconds[len(seconds) // 2 :]
            spread = [taken / statistics.median(later) for taken in later]
            return Warmup(first, medians[-1], stable, spread)


def warm_all(spec: Spec, system: System) -> tuple[BatchTimes, dict[str, Any]]:
    """Warm every batch size; return the times of batches, and the facts of the warm-up.

    The largest and the smallest are warmed until they are steady, the others for two batches.
    """
    fast, warmups = spec["fast"], dict[int, Warmup]()
    *_, largest = sizes = system.sizes()
    smallest = sizes[0]
    for size in reversed(sizes):
        settle = size in (smallest, largest)
        indices = np.arange(size) % spec["samples"]
        limit = (WARM_LIMIT_FAST if fast else WARM_LIMIT) if settle else 0.0
        busy = settle and not fast and spec["device"] == "cuda"
        warmups[size] = warm_up(
            lambda indices=indices: system.infer(indices, time.monotonic()),  # type: ignore[misc]
            limit,
            stretch=0 if fast or not settle else STRETCH,
            least=WARM_LEAST_CUDA if busy else 0.0,
        )
    seconds = max(warmups[smallest].steady, 1e-6), max(warmups[largest].steady, 1e-6)
    return BatchTimes((smallest, largest), seconds, warmups[largest].spread), {
        "first": warmups[largest].first,
        "steady": warmups[largest].steady,
        "stable": warmups[smallest].stable and warmups[largest].stable,
        "by_size": {size: [warmup.first, warmup.steady] for size, warmup in warmups.items()},
    }


class Batcher:
    """Hands queued ids and indices to `infer` in batches and their results to `complete`.

    `infer(indices, ready)` returns one result an index; `ready` is when the last one was queued.
    `complete(ids, results)` follows in the worker's thread. `max_batch` is at least 1.
    `max_delay` is how many seconds the oldest query may wait for a full batch; 0 means none.
    `failed(error)` is called if infer raises, and that worker ends. `workers` batches are in
    flight at most, each in a thread of its own, which first infers the batches of `warm`.

    LoadGen queues in a thread of its own with the GIL, and gets it back at once, so that its
    schedule is kept.
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


def settings(spec: Spec, rate: float) -> Any:
    """Return LoadGen's TestSettings; `rate` is that of the warm-up in samples/s.

    Where the spec has no other rate, it sizes Offline's one query and SingleStream's schedule. A
    wrong rate makes a run longer, or INVALID if Offline's query ends before the minimum duration.
    """
    import mlperf_loadgen as lg

    test = lg.TestSettings()
    test.scenario = getattr(lg.TestScenario, SCENARIOS[spec["scenario"]])
    test.mode = lg.TestMode.PerformanceOnly
    test.min_duration_ms = max(1, math.ceil(spec["duration"] * 1000))
    test.min_query_count = spec["queries"]
    seed = spec.get("load_seed", spec["seed"]) + 1
    test.qsl_rng_seed = test.sample_index_rng_seed = test.schedule_rng_seed = seed
    if spec["scenario"] == "offline":
        # LoadGen makes one query of ceil(1.1 * expected * duration) samples. min_query_count counts
        # queries there, so the rate sets the samples.
        test.min_query_count = 1
        least = spec["queries"] / 1.1 / (test.min_duration_ms / 1000)
        warm = rate if spec["fast"] else MARGIN * rate
        expected = spec.get("expected_rate") or spec["target_rate"] or warm
        test.offline_expected_qps = max(expected, least)
    elif spec["scenario"] == "single-stream":
        spare = min(SPARE, 1 + MOST_SPARE / (2 * rate * spec["duration"]))
        test.single_stream_expected_latency_ns = max(1, round(1e9 / (spare * rate)))
        test.single_stream_target_latency_percentile = 0.9
    else:
        test.server_target_qps = spec["target_rate"]
        test.server_target_latency_ns = round(spec["latency_bound"] * 1e9)
        test.server_target_latency_percentile = 0.99
    return test


def workers_of(spec: Spec) -> int:
    """Return how many batches the batcher has in flight: on CUDA one is copied, one computed."""
    return 2 if spec["device"] == "cuda" else 1


def measure(
    system: System, spec: Spec, rate: float, failed: Callable[[BaseException], None]
) -> dict[str, Any]:
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

    alone = spec["scenario"] == "single-stream"
    delay = spec["max_delay"] if spec["scenario"] == "server" else 0.0
    # The first batch of a thread allocates its arena and its handles.
    warm = [np.arange(size) % spec["samples"] for size in system.sizes()]
    workers = 0 if alone else workers_of(spec)
    batcher = Batcher(system.infer, complete, spec["batch"], delay, failed, workers, warm)
    take = answer if alone else batcher.put

    def issue(ids: Sequence[int], indices: Sequence[int]) -> None:
        times.setdefault("begin", time.time())
        take(ids, indices)

    with TemporaryDirectory(prefix="loadgen-") as folder:
        test, logs = settings(spec, rate), lg.LogSettings()
        logs.enable_trace = False
        logs.log_output.outdir = folder
        # The fast SUT gives two lists of numbers instead of an object a sample.
        sut = lg.ConstructFastSUT(issue, lambda: None)
        qsl = lg.ConstructQSL(spec["samples"], spec["samples"], lambda _: None, lambda _: None)
        try:
            # An audit configuration in the working directory would change the test.
            lg.StartTestWithLogSettings(sut, qsl, test, logs, f"{folder}/audit.config")
        finally:
            lg.DestroyQSL(qsl)
            lg.DestroyFastSUT(sut)
            batcher.close()
        texts = {
            name: (Path(folder) / f"mlperf_log_{name}.txt").read_text(errors="replace")
            for name in ("summary", "detail")
        }
    return {
        "rate": test.server_target_qps,
        "started": times["begin"],
        "ended": times["end"],
        "batches": dict(batcher.batch_sizes),
        "logs": texts,
    }


class Program:
    """One measurement; `result` is the JSON to print."""

    def __init__(self, spec: Spec, out: int) -> None:
        self.spec, self._out = spec, out
        self.result: dict[str, Any] = {"program": PROGRAM, "spec": dict(spec)}
        self._once = threading.Lock()

    def emit(self) -> None:
        """Print the result."""
        with os.fdopen(self._out, "wb", closefd=False) as out:
            out.write(json.dumps(self.result, default=str).encode() + b"\n")

    def fail(self, error: BaseException) -> NoReturn:
        """Print the result with the error and end the process, from any thread.

        LoadGen would wait for answers for ever. The kind `device` skips the sample.
        """
        with self._once:
            text = (str(error).strip() or type(error).__name__).splitlines()[0][:400]
            if isinstance(error, MemoryError) or _NO_MEMORY.search(text):
                text = (
                    "out of memory on {device} with batch {batch} and {samples} samples: lower "
                    "them, or stop what else uses it"
                ).format(**self.spec) + f" ({text})"
            elif not isinstance(error, Skip):
                text = f"{type(error).__name__}: {text}"
            kind = "device" if isinstance(error, Skip) else "other"
            self.result["error"] = {"kind": kind, "text": text}
            self.emit()
            sys.stderr.flush()
            os._exit(3)

    def measure(self) -> None:
        """Set up, warm up, run LoadGen."""
        spec = self.spec
        if spec["system"] == "stub":
            system: Any = Stub(**spec["stub"], batch=spec["batch"])
        else:
            from perfdag.steps.resnet50.torch_backend import torch_system

            system = torch_system(dict(spec))
        self.result |= system.facts
        times, self.result["warmup"] = warm_all(spec, system)
        if spec["scenario"] == "server" and spec["target_rate"] is None:
            spec = self.with_rate(system, times)
        time.sleep(max(0.0, spec.get("start_at", 0.0) - time.time()))
        self.result["test"] = measure(system, spec, times.capacity, self.fail)

    def with_rate(self, system: System, times: BatchTimes) -> Spec:
        """Return the spec with the rate of Server: a part of the largest that holds its bound.

        If none does, it is a part of what the warm-up completed, and LoadGen says INVALID.
        """

        def holds(rate: float) -> bool:
            seconds = min(TRIAL, self.spec["duration"])
            spec = {**self.spec, "duration": seconds, "queries": 1, "target_rate": rate}
            trial = measure(system, spec, rate, self.fail)
            # of too few queries there is no p99
            return not result_of({"test": trial}).latency("p99") > self.spec["latency_bound"]

        rate = largest_rate(times, self.spec, workers_of(self.spec), holds)
        self.result["largest_rate"] = rate
        if not rate:
            return {**self.spec, "target_rate": SHARE_OF_CAPACITY * times.capacity}
        queries = max(self.spec["queries"], 0 if self.spec["fast"] else CONFIDENT)
        return {**self.spec, "target_rate": SHARE_OF_LARGEST * rate, "queries": queries}


def main() -> int:
    """Measure the input. Exit 0 with a result, even if INVALID, or 3 with an error in the JSON."""
    spec = json.loads(sys.stdin.readline())
    sys.stdout.flush()
    out = os.dup(1)
    os.dup2(2, 1)  # what libraries print goes to standard error
    program = Program(spec, out)
    try:
        program.measure()
    except Exception as error:
        program.fail(error)
    program.emit()
    return 0


if __name__ == "__main__":
    sys.exit(main())
