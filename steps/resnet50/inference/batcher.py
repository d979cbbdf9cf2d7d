"""Dynamic batching: run queries together when a batch is full or the oldest has waited."""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any


class Batcher:
    """Hands queued (id, index) pairs to `infer` in batches and their results to `complete`.

    `infer(indices, ready)` returns one result an index; `ready` is when the last one was queued.
    `complete(ids, results)` follows in the worker's thread. `max_batch` is at least 1.
    `max_delay` is how many seconds the oldest query may wait for a full batch; 0 means none.
    `failed(error)` is called once if infer raises, and the worker ends.
    """

    def __init__(
        self,
        infer: Callable[[Sequence[int], float], Sequence[int]],
        complete: Callable[[Sequence[int], Sequence[int]], None],
        max_batch: int,
        max_delay: float,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._infer, self._complete, self._failed = infer, complete, failed
        self._max_batch, self._max_delay = max_batch, max_delay
        self._queue: deque[tuple[int, int, float]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._errand: tuple[Callable[[], object], threading.Event] | None = None
        self.batch_sizes: Counter[int] = Counter()
        self.warm = False  # Set by the code that warms the worker's thread.
        self._worker = threading.Thread(target=self._work, name="batcher", daemon=True)
        self._worker.start()

    def begin(self, complete: Callable[[Sequence[int], Sequence[int]], None]) -> None:
        """Begin another test with an empty queue: set `complete` and reset the counts."""
        self._complete, self.batch_sizes = complete, Counter()

    def put(self, samples: Sequence[Any]) -> None:
        """Queue LoadGen's samples (`id`, `index`) and return at once, as LoadGen requires."""
        now = time.monotonic()
        with self._changed:
            self._queue.extend((sample.id, sample.index, now) for sample in samples)
            self._changed.notify()

    def errand(self, call: Callable[[], object]) -> None:
        """Call a function in the worker's thread between batches, and wait for it."""
        done = threading.Event()
        with self._changed:
            self._errand = (call, done)
            self._changed.notify()
        done.wait()

    def close(self) -> None:
        """Run the queued samples, then end the worker."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._worker.join()

    def _take(self) -> list[tuple[int, int, float]]:
        """Return the next batch; empty if the batcher is closed and drained, or has an errand."""
        with self._changed:
            while not (self._queue or self._closed or self._errand):
                self._changed.wait()
            if self._errand:
                return []
            if self._max_delay > 0 and self._queue:
                due = self._queue[0][2] + self._max_delay
                while (
                    len(self._queue) < self._max_batch
                    and not self._closed
                    and (left := due - time.monotonic()) > 0
                ):
                    self._changed.wait(left)
            return [self._queue.popleft() for _ in range(min(self._max_batch, len(self._queue)))]

    def _run_errand(self) -> bool:
        """Run the pending errand; return False if there is none."""
        if self._errand is None:
            return False
        call, done = self._errand
        self._errand = None
        try:
            call()
        finally:
            done.set()
        return True

    def _work(self) -> None:
        try:
            while (batch := self._take()) or self._run_errand():
                if not batch:
                    continue
                results = self._infer([index for _, index, _ in batch], batch[-1][2])
                self._complete([identity for identity, _, _ in batch], results)
                self.batch_sizes[len(batch)] += 1
        except BaseException as error:
            self._failed(error)
