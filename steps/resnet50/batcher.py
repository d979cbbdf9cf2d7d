"""Dynamic batching: queries wait until a batch is full or the oldest has waited its limit, then one worker runs them together."""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Batches:
    """What was run: batch size -> count."""

    sizes: Counter[int] = field(default_factory=Counter)

    def mean(self) -> float:
        """Mean batch size; 0 where nothing ran."""
        runs = sum(self.sizes.values())
        return sum(size * count for size, count in self.sizes.items()) / runs if runs else 0.0


class Batcher:
    """Hands queued (id, index) pairs to `infer` in batches and their results to `complete`.

    `infer(indices, ready)` returns one result an index (`ready`: when the last of them was queued); `complete(ids, results)` is called
    in the worker's thread right after. `max_batch` is at least 1, `max_delay` in seconds: how long the oldest query may wait for the batch
    to fill (0: never). `failed(error)` is called once where infer raises; the worker then ends.
    """

    def __init__(
        self,
        infer: Callable[[Sequence[int], float], Sequence[int]],
        complete: Callable[[Sequence[int], Sequence[int]], None],
        max_batch: int,
        max_delay: float,
        failed: Callable[[BaseException], None],
    ) -> None:
        if max_batch < 1 or max_delay < 0:
            raise ValueError(
                f"max_batch {max_batch} is at least 1 and max_delay {max_delay:g} s not negative"
            )
        self._infer, self._complete, self._failed = infer, complete, failed
        self._max_batch, self._max_delay = max_batch, max_delay
        self._queue: deque[tuple[int, int, float]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._errand: tuple[Callable[[], object], threading.Event] | None = None
        self.batches = Batches()
        self.warm = False  # set by who warmed the worker's thread
        self._worker = threading.Thread(target=self._work, name="batcher", daemon=True)
        self._worker.start()

    def begin(self, complete: Callable[[Sequence[int], Sequence[int]], None]) -> None:
        """Begin another test, nothing being queued: results go to `complete`, and batches are counted anew."""
        self._complete, self.batches = complete, Batches()

    def put(self, samples: Sequence[Any]) -> None:
        """Queue LoadGen's samples (each has an `id` and an `index`); returns at once, as LoadGen's issuing thread must."""
        now = time.monotonic()
        with self._changed:
            self._queue.extend((sample.id, sample.index, now) for sample in samples)
            self._changed.notify()

    def errand(self, call: Callable[[], object]) -> None:
        """Have the worker's thread call something between batches, and wait until it has."""
        done = threading.Event()
        with self._changed:
            self._errand = (call, done)
            self._changed.notify()
        done.wait()

    def close(self) -> None:
        """Run what is queued, then end the worker."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._worker.join()

    def _take(self) -> list[tuple[int, int, float]]:
        """The next batch; empty where the batcher was closed and nothing is left, or an errand is to be done."""
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
        """Do what was asked; false where nothing was."""
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
                self.batches.sizes[len(batch)] += 1
        except BaseException as error:
            self._failed(error)
