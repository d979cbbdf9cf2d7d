"""One test of MLCommons LoadGen against a system: settings, the callbacks, the logs that it wrote.

Runs in a process of its own, where mlperf_loadgen can be imported. LoadGen calls issue_query in its own thread with the GIL; the batcher
takes the samples and returns at once, so that the schedule is never held up.
"""

import array
import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from perfdag.steps.resnet50.batcher import Batcher
from perfdag.steps.resnet50.system import System

SPARE, MOST_SPARE = 3.0, 100_000
"""SingleStream's queries over those of the expected rate, and how many of them at most are more than LoadGen makes by itself, which is twice
as many. A test that runs out of them, as the warm-up was slower, is INVALID; one that reaches its minimum duration leaves the rest unasked. It
makes all before its clock starts, a million in about a second and 230 MB, so a long test of a fast system has few to spare."""
LOGS = ("summary", "detail", "accuracy")
_MODES = {"performance": "PerformanceOnly", "accuracy": "AccuracyOnly"}
_SCENARIOS = {"offline": "Offline", "server": "Server", "single-stream": "SingleStream"}


@dataclass(frozen=True)
class Load:
    """What LoadGen is asked for. Times in seconds, rates in 1/s.

    `expected_rate` sizes Offline's one query and SingleStream's schedule; a wrong one makes a run longer or, where Offline's query is done
    before the minimum duration, INVALID by LoadGen's own word; never wrong.
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
    max_queries: int = 0
    seed: int = 0
    mode: str = "performance"
    total: int = 0


@dataclass(frozen=True)
class Tested:
    """LoadGen's logs, verbatim, by name, and the batch sizes that were run (size -> count). `span`: from the first query that LoadGen issued to the
    last answer, in seconds since the epoch; LoadGen's own times of day are in an unnamed time zone."""

    logs: Mapping[str, str]
    batches: Mapping[int, int]
    span: tuple[float, float]


def settings(load: Load) -> Any:
    """LoadGen's TestSettings for a load."""
    import mlperf_loadgen as lg

    made = lg.TestSettings()
    made.scenario = getattr(lg.TestScenario, _SCENARIOS[load.scenario])
    made.mode = getattr(lg.TestMode, _MODES[load.mode])
    made.min_duration_ms = max(1, math.ceil(load.min_duration * 1000))
    made.min_query_count = load.min_queries
    made.max_query_count = load.max_queries
    made.qsl_rng_seed = made.sample_index_rng_seed = made.schedule_rng_seed = load.seed + 1
    if load.scenario == "offline":
        # one query of ceil(1.1 * expected * duration) samples; min_query_count counts queries there, so the samples are asked for by rate
        made.min_query_count = 1
        made.offline_expected_qps = max(
            load.expected_rate, load.min_queries / 1.1 / (made.min_duration_ms / 1000)
        )
    elif load.scenario == "single-stream":
        made.single_stream_expected_latency_ns = max(
            1, round(1e9 / (_spare(load) * load.expected_rate))
        )
        made.single_stream_target_latency_percentile = 0.9
    else:
        made.server_target_qps = load.target_rate
        made.server_target_latency_ns = round(load.latency_bound * 1e9)
        made.server_target_latency_percentile = 0.99
    return made


def _spare(load: Load) -> float:
    """By what SingleStream's expected rate is raised."""
    return min(SPARE, 1 + MOST_SPARE / (2 * load.expected_rate * load.min_duration))


@contextlib.contextmanager
def batching(
    system: System, load: Load, failed: Callable[[BaseException], None]
) -> Iterator[Batcher]:
    """A batcher for tests of one system that differ in their rate and duration only."""
    made = Batcher(
        system.infer,
        lambda ids, results: None,
        load.batch,
        load.max_delay if load.scenario == "server" else 0.0,
        failed,
    )
    try:
        yield made
    finally:
        made.close()


def measure(
    system: System,
    load: Load,
    failed: Callable[[BaseException], None],
    begin: Callable[[], None] = lambda: None,
    batcher: Batcher | None = None,
) -> Tested:
    """Run one LoadGen test to its end. `failed` is called in another thread where the system raises: LoadGen cannot be
    stopped from outside, so it must end the process. `begin` is called when samples are loaded and the thread that answers is warm.
    `batcher`: one of `batching` for several tests in turn, whose thread is warmed by the first of them."""
    import mlperf_loadgen as lg

    keep: list[Any] = []
    began: float | None = None
    ended = time.time()

    def complete(ids: Sequence[int], results: Sequence[int]) -> None:
        nonlocal ended
        if load.mode == "accuracy":
            answers = array.array("i", results)
            keep.append(answers)
            address, size = answers.buffer_info()[0], answers.itemsize
            lg.QuerySamplesComplete(
                [
                    lg.QuerySampleResponse(one, address + at * size, size)
                    for at, one in enumerate(ids)
                ]
            )
        else:
            lg.QuerySamplesComplete([lg.QuerySampleResponse(one, 0, 0) for one in ids])
        ended = time.time()

    def answer(samples: Sequence[Any]) -> None:
        # one at a time: LoadGen waits for it anyway, and a hand-over between threads would be most of our share of the latency
        try:
            complete(
                [sample.id for sample in samples],
                system.infer([sample.index for sample in samples], time.monotonic()),
            )
        except BaseException as error:
            failed(error)

    begun: list[bool] = []

    def bring(indices: Sequence[int]) -> None:
        # LoadGen calls this before its clock starts; an exception would end the process without a word
        try:
            system.load(indices)
            if (
                not answering.warm and load.scenario != "single-stream"
            ):  # a thread's first batch pays for its arena and its handles
                sizes = system.buckets(load.batch)
                answering.errand(
                    lambda: [
                        system.infer(
                            [indices[at % len(indices)] for at in range(s)], time.monotonic()
                        )
                        for s in sizes
                    ]
                )
                answering.warm = True
            if not begun:
                begin()
            begun.append(True)
        except BaseException as error:
            failed(error)

    lent = batching(system, load, failed) if batcher is None else contextlib.nullcontext(batcher)
    with TemporaryDirectory(prefix="loadgen-") as folder, lent as answering:
        answering.begin(complete)
        logs = lg.LogSettings()
        logs.enable_trace = False
        logs.log_output.outdir = folder
        take = answer if load.scenario == "single-stream" else answering.put

        def issue(samples: Sequence[Any]) -> None:
            nonlocal began
            if began is None:
                began = time.time()
            take(samples)

        sut = lg.ConstructSUT(issue, lambda: None)
        qsl = lg.ConstructQSL(load.total or load.samples, load.samples, bring, system.unload)
        try:
            # an audit configuration lying in the working directory would change the test
            lg.StartTestWithLogSettings(
                sut, qsl, settings(load), logs, os.path.join(folder, "no-audit.config")
            )  # noqa: PTH118
        finally:
            lg.DestroyQSL(qsl)
            lg.DestroySUT(sut)
        answering.errand(lambda: None)  # it counts a batch after its answers are out
        texts = {
            name: (
                Path(folder) / f"mlperf_log_{name}.{'json' if name == 'accuracy' else 'txt'}"
            ).read_text(errors="replace")
            for name in LOGS
        }
        return Tested(
            texts, dict(answering.batches.sizes), (ended if began is None else began, ended)
        )
