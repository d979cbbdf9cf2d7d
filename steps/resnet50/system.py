"""Systems that answer LoadGen's queries, their errors, and the stub of known service time."""

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

_NO_MEMORY = re.compile(
    "out of memory|can't allocate memory|_STATUS_ALLOC_FAILED|Unable to allocate"
)


class OutOfMemoryError(Exception):
    """A batch is too large; the text names the largest that fits."""


def classify(error: BaseException) -> tuple[str, str]:
    """Return kind and text of an error; see UNUSABLE for kinds that skip."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0][:400]
    if isinstance(error, OutOfMemoryError | MemoryError) or _NO_MEMORY.search(text):
        return "memory", text
    if isinstance(error, ModuleNotFoundError):
        return (
            "missing",
            f"{text}: pip install 'perfdag[torch]' (with uv: uv pip install),"
            " or name an interpreter that has it with `python`",
        )
    if isinstance(error, UnusableError):
        return error.kind, text
    if type(error).__name__ in ("FailOnRecompileLimitHit", "FailOnCacheLimitHit"):
        return (
            "compiler",
            f"torch.compile gave up compiling and would run eagerly: {text}; lower batch,"
            " or backend: eager",
        )
    if type(error).__name__ in ("InductorError", "InvalidCxxCompiler", "BackendCompilerFailed"):
        return (
            "compiler",
            f"torch.compile failed: {text}; it needs a C++ compiler on a CPU: install g++,"
            " or backend: eager",
        )
    return "other", text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"


class UnusableError(Exception):
    """The request is impossible here.

    `kind` is device, weights, memory, compiler or images.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class System(Protocol):
    """Answers batches of samples by index."""

    def load(self, indices: Sequence[int]) -> None:
        """Load these samples into host memory, outside every clock."""
        ...

    def unload(self, indices: Sequence[int]) -> None: ...

    def infer(self, indices: Sequence[int] | np.ndarray, ready: float) -> np.ndarray:
        """Return the class of each sample, once the answer is in host memory.

        `ready` is when the last of the batch was queued (time.monotonic() seconds).
        """
        ...

    def buckets(self, largest: int) -> Sequence[int]:
        """Return the batch sizes to warm so that any batch up to `largest` is warm."""
        ...

    def attempt(self, count: int) -> None:
        """Run a batch of exactly `count` samples, without padding.

        Raises if it does not fit in memory.
        """
        ...


class Stub:
    """A single server that takes exactly `base + per_sample * b` seconds for a batch of b samples.

    Ends are scheduled, not slept one after the other. A late timer delays one answer by tens of
    microseconds but never the server, so the theory of a deterministic server (M/D/1) holds.
    `stall` seconds are added to the batch with query number `stalled`; 1 is the first after
    `arm`. The server holds an exclusive lock on the file `lock` while it serves, as copies that
    share a device would.
    """

    def __init__(
        self,
        base: float,
        per_sample: float = 0.0,
        lock: str | None = None,
        stalled: int = 0,
        stall: float = 0.0,
    ) -> None:
        self.base, self.per_sample = base, per_sample
        self._lock = lock
        self._stalled, self._stall = stalled, stall
        self._end = 0.0
        self._seen = -1

    def arm(self) -> None:
        """Count queries for the stall from here on; the next is number 1."""
        self._seen = 0

    def load(self, indices: Sequence[int]) -> None:
        """Do nothing: there are no samples to load."""

    def unload(self, indices: Sequence[int]) -> None:
        """Do nothing: there are no samples to unload."""

    def buckets(self, largest: int) -> Sequence[int]:
        """Return one size, as every size is equally warm."""
        return (largest,)

    def attempt(self, count: int) -> None:
        """Run it like any batch."""
        self.infer(range(count), time.monotonic())

    def infer(self, indices: Sequence[int] | np.ndarray, ready: float) -> np.ndarray:
        """Wait for the service time and return the classes: sample i has class i modulo 1000."""
        with self._exclusive():
            start = time.monotonic() if self._lock else max(ready, self._end)
            self._end = start + self.base + self.per_sample * len(indices)
            sleep_until(self._end + self._stalls(len(indices)))
        return np.asarray(indices) % 1000

    def _stalls(self, count: int) -> float:
        if self._seen < 0:
            return 0.0
        before, self._seen = self._seen, self._seen + count
        return self._stall if before < self._stalled <= self._seen else 0.0

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        if self._lock is None:
            yield
            return
        handle = os.open(self._lock, os.O_CREAT | os.O_RDWR, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def sleep_until(deadline: float) -> None:
    """Sleep until time.monotonic() is `deadline`; the timer may be some 60 us late."""
    if (left := deadline - time.monotonic()) > 0:
        time.sleep(left)


class StubSubject:
    """The stub, to measure the program itself."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        stub = spec["stub"]
        self.system = Stub(stub["base"], stub["each"], stub["lock"], stub["stalled"], stub["stall"])
        self.facts: dict[str, Any] = {
            "model": {"system": "stub", "weights": "none"},
            "device": {"name": "stub"},
        }

    def arm(self) -> None:
        self.system.arm()

    def wake(self) -> float:
        return 0.0

    def timing(self, batch: int) -> dict[str, Any]:
        return {}
