"""The stub: a system of known service time, to measure the harness itself."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np


class Stub:
    """A single server that takes exactly `base + each * b` seconds for a batch of b samples.

    Ends are scheduled, not slept one after the other. A late timer delays one answer by tens of
    microseconds but never the server, so the theory of a deterministic server (M/D/1) holds.
    `stall` seconds are added to the batch with query number `stalled`; 1 is the first after
    `begin`. The server holds an exclusive lock on the file `lock` while it serves, as copies that
    share a device would.
    """

    facts: Mapping[str, Any] = {
        "model": {"system": "stub", "weights": "none"},
        "device": {"name": "stub"},
    }

    def __init__(
        self,
        base: float,
        each: float = 0.0,
        lock: str | None = None,
        stalled: int = 0,
        stall: float = 0.0,
        batch: int = 1,
    ) -> None:
        self.base, self.each, self.lock, self.batch = base, each, lock, batch
        self.stalled, self.stall = stalled, stall
        self.end = 0.0
        self.seen: int | None = None

    def begin(self) -> None:
        """Count queries for the stall from here on; the next is number 1."""
        self.seen = 0

    def load(self, indices: Sequence[int]) -> None:
        """Do nothing: there are no samples to load."""

    def unload(self, indices: Sequence[int]) -> None:
        """Do nothing: there are no samples to unload."""

    def sizes(self) -> Sequence[int]:
        """Return one size, as every size is equally warm."""
        return (self.batch,)

    def infer(self, indices: Sequence[int] | np.ndarray, ready: float) -> np.ndarray:
        """Wait for the service time and return the classes: sample i has class i modulo 1000."""
        count = len(indices)
        with self._exclusive():
            start = time.monotonic() if self.lock else max(ready, self.end)
            self.end = start + self.base + self.each * count
            late = 0.0
            if self.seen is not None:
                late = self.stall if self.seen < self.stalled <= self.seen + count else 0.0
                self.seen += count
            sleep_until(self.end + late)
        return np.asarray(indices) % 1000

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        if self.lock is None:
            yield
            return
        handle = os.open(self.lock, os.O_CREAT | os.O_RDWR, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def sleep_until(deadline: float) -> None:
    """Sleep until time.monotonic() is `deadline`; the timer may be some 60 us late."""
    if (left := deadline - time.monotonic()) > 0:
        time.sleep(left)
