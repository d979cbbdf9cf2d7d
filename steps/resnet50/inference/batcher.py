"""Dynamic batching: run queries together when a batch is full or the oldest has waited."""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

import numpy as np

Ids = Sequence[int] | np.ndarray
Queued = tuple[np.ndarray, np.ndarray, float]
"""Ids and indices of samples, and when they were queued (time.monotonic() seconds)."""


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
        self._errands: dict[int, tuple[Callable[[], object], threading.Event]] = {}
        self.batch_sizes: Counter[int] = Counter()
        self._workers = [
            threading.Thread(target=self._work, args=(number,), name="batcher", daemon=True)
            for number in range(workers)
        ]
        for worker in self._workers:
            worker.start()

    def begin(self, complete: Callable[[np.ndarray, Ids], None]) -> None:
        """Begin another test with an empty queue: set `complete` and reset the counts."""
        self._complete, self.batch_sizes = complete, Counter()

    def put(self, ids: Ids, indices: Ids) -> None:
        """Queue samples and return at once, as LoadGen requires."""
        queued = np.asarray(ids, np.uint64), np.asarray(indices, np.intp), time.monotonic()
        with self._changed:
            self._queue.append(queued)
            self._samples += len(ids)
            self._changed.notify(max(1, len(ids)))

    def run_in_workers(self, call: Callable[[], object]) -> None:
        """Call a function in each worker's thread between batches, and wait for all."""
        ends = [threading.Event() for _ in self._workers]
        with self._changed:
            self._errands = {number: (call, done) for number, done in enumerate(ends)}
            self._changed.notify_all()
        for done in ends:
            done.wait()

    def close(self) -> None:
        """Run the queued samples, then end the workers."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for worker in self._workers:
            worker.join()

    def _take(self, number: int) -> Queued | None:
        """Return the next batch; None if the batcher is closed and drained, or has an errand."""
        with self._changed:
            while not (self._queue or self._closed or number in self._errands):
                self._changed.wait()
            if number in self._errands:
                return None
            while (
                self._max_delay > 0
                and 0 < self._samples < self._max_batch
                and not self._closed
                and (left := self._queue[0][2] + self._max_delay - time.monotonic()) > 0
            ):
                self._changed.wait(left)
            return self._batch()

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

    def _run_errand(self, number: int) -> bool:
        """Run the worker's pending errand; return False if there is none."""
        with self._changed:
            errand = self._errands.pop(number, None)
        if errand is None:
            return False
        call, done = errand
        try:
            call()
        finally:
            done.set()
        return True

    def _work(self, number: int) -> None:
        try:
            while True:
                if (batch := self._take(number)) is None:
                    if self._run_errand(number) or not self._drained():
                        continue
                    return
                ids, indices, at = batch
                self._complete(ids, self._infer(indices, at))
                with self._changed:
                    self.batch_sizes[len(ids)] += 1
        except BaseException as error:
            self._failed(error)

    def _drained(self) -> bool:
        with self._changed:
            return self._closed and not self._queue
