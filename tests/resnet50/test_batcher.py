"""The dynamic batcher: sizes, delays, failures."""

import threading
import time
from unittest.mock import Mock

import numpy as np
import pytest

from perfdag.steps.resnet50.loadgen import Batcher
from tests.resnet50.harness import Indices


class Recorder:
    """Collects what is completed; `infer` may be held by an event."""

    def __init__(self) -> None:
        self.done: list[tuple[list[int], list[int], float]] = []
        self.errors: list[BaseException] = []
        self.release = threading.Event()
        self.release.set()

    def infer(self, indices: np.ndarray, ready: float) -> np.ndarray:
        self.release.wait(5)
        return indices * 10

    def complete(self, ids: np.ndarray, results: Indices) -> None:
        self.done.append((list(ids), list(results), time.monotonic()))

    def batcher(self, max_batch: int, max_delay: float) -> Batcher:
        batcher = Batcher(self.infer, self.complete, max_batch, max_delay, self.errors.append)
        batcher.start()
        return batcher


@pytest.fixture
def seen() -> Recorder:
    return Recorder()


def test_everything_is_answered_once_in_batches_no_larger_than_asked(seen: Recorder) -> None:
    batcher = seen.batcher(8, 0.0)
    batcher.put(range(100, 150), range(50))
    batcher.close()
    ids = [one for batch, _, _ in seen.done for one in batch]
    assert ids == list(range(100, 150))
    assert max(len(batch) for batch, _, _ in seen.done) == 8
    assert batcher.batch_sizes == {8: 6, 2: 1}
    assert seen.done[0][1] == [0, 10, 20, 30, 40, 50, 60, 70]


@pytest.mark.parametrize(
    ("max_batch", "delay", "queries", "least", "most"),
    [(4, 0.05, 1, 0.045, 2), (2, 30.0, 2, 0, 10)],
    ids=["a lone query waits for the delay", "a full batch does not wait"],
)
def test_a_batch_waits_for_the_delay_and_no_longer_unless_it_is_full(
    max_batch: int, delay: float, queries: int, least: float, most: float, seen: Recorder
) -> None:
    batcher = seen.batcher(max_batch, delay)
    start = time.monotonic()
    for number in range(queries):
        batcher.put([number], [number])
    while not seen.done and time.monotonic() - start < 10:
        time.sleep(0.001)
    batcher.close()
    assert [batch for batch, _, _ in seen.done] == [list(range(queries))]
    assert least < seen.done[0][2] - start < most


def test_queries_that_come_while_busy_form_the_next_batch(seen: Recorder) -> None:
    seen.release.clear()
    batcher = seen.batcher(4, 0.0)
    batcher.put([1], [0])
    time.sleep(0.05)
    batcher.put([2, 3], [1, 2])
    seen.release.set()
    batcher.close()
    assert [batch for batch, _, _ in seen.done] == [[1], [2, 3]]


def test_an_error_is_told_once_and_ends_the_worker(seen: Recorder) -> None:
    broken = Mock(side_effect=MemoryError("batch"))
    batcher = Batcher(broken, seen.complete, 1, 0.0, seen.errors.append)
    batcher.start()
    batcher.put([1, 2], [0, 1])
    batcher.close()
    assert [type(error) for error in seen.errors] == [MemoryError]
