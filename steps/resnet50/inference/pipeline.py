"""From preprocessed images in host memory to classes, in batches of warmed sizes."""

import bisect
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from perfdag.steps.resnet50.inference.images import images, preprocess

STEPS = 32
"""Most sizes of an eager batch."""
Run = Callable[[np.ndarray], np.ndarray]
"""A network: float32 images (n, 3, 224, 224) to float32 logits (n, classes)."""


class Pipeline:
    """A system that runs batches of up to `batch` through `run`; see `System`.

    A subclass with memory of its own replaces the steps from `prepare` to `answers`.
    """

    def __init__(self, spec: Mapping[str, Any], run: Run, few: bool = False) -> None:
        self.sizes = sizes(spec["batch"], spec["scenario"], few or spec["fast"])
        self.seed, self._run = spec["seed"], run
        self.store: Any = ()
        self.loaded = self._row_of = np.empty(0, np.intp)

    def prepare(self, raw: np.ndarray) -> Any:
        """Return the input of the network for uint8 pixels (n, 224, 224, 3), in host memory."""
        return np.ascontiguousarray(preprocess(raw))

    def join(self, parts: Sequence[Any]) -> Any:
        """Return several inputs as one."""
        return np.concatenate(parts)

    def gather(self, indices: Sequence[int] | np.ndarray) -> Any:
        """Return a batch in host memory, padded to one of the sizes."""
        return self.store[self.rows(indices)]

    def copy(self, batch: Any) -> Any:
        """Return a batch where it is computed; on a CPU that is where it is."""
        return batch

    def logits(self, batch: Any) -> Any:
        """Run the network; on a device it may return early."""
        return self._run(batch)

    def answers(self, logits: Any) -> np.ndarray:
        """Return the class of each sample; it waits for the device."""
        classes: np.ndarray = logits.argmax(1)
        return classes

    def finish(self) -> None:
        """Wait until the device is idle."""

    def computed(self, batch: Any) -> tuple[Any, float | None]:
        """Return the logits, and on a device its own seconds for them."""
        return self.logits(batch), None

    def load(self, indices: Sequence[int]) -> None:
        """Preprocess images and keep them in host memory."""
        parts = [self.prepare(self.raw(indices[at : at + 64])) for at in range(0, len(indices), 64)]
        self.store = self.join(parts)
        self.loaded = np.asarray(indices, np.intp)
        self._row_of = np.zeros(max(indices) + 1, np.intp)
        self._row_of[self.loaded] = np.arange(len(indices))

    def raw(self, indices: Sequence[int]) -> np.ndarray:
        """Return the uint8 pixels (n, 224, 224, 3) of samples."""
        return images(self.seed, indices)

    def unload(self, indices: Sequence[int]) -> None:
        """Drop the images."""
        self.store = ()

    def buckets(self, largest: int) -> Sequence[int]:
        """Return the sizes to which batches are padded; all are warmed beforehand."""
        return [size for size in self.sizes if size <= largest]

    def rows(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the rows of samples in the store, padded with the first one to a size."""
        rows: np.ndarray = self._row_of[np.asarray(indices)]
        size = self.sizes[bisect.bisect_left(self.sizes, len(rows))]
        padding = size - len(rows)
        return np.append(rows, rows[:1].repeat(padding)) if padding else rows

    def infer(self, indices: Sequence[int] | np.ndarray, ready: float = 0.0) -> np.ndarray:
        """Return the classes of a batch."""
        return self.answers(self.logits(self.copy(self.gather(indices))))[: len(indices)]

    def attempt(self, count: int) -> None:
        """Run a batch of that size unpadded. Raises if it does not fit."""
        self.answers(
            self.logits(self.copy(self.store[[at % len(self.store) for at in range(count)]]))
        )

    def wake(self) -> float:
        """Return the seconds of one image before compilation, for lazy initialisation."""
        start = time.perf_counter()
        self.attempt(1)
        return time.perf_counter() - start

    def phases(self, count: int, repetitions: int, limit: float = 10.0) -> dict[str, list[float]]:
        """Return the seconds of preprocess, copy, compute and postprocess of a batch of `count`.

        The device is idle before and after. The host's clock measures, with a synchronisation at
        each end; on CUDA, events measure compute. It runs at least once, and up to `repetitions`
        times within `limit` seconds.
        """
        indices = np.resize(self.loaded, count)
        raw = self.raw(indices.tolist())
        begun = time.perf_counter()
        seconds: dict[str, list[float]] = {
            name: [] for name in ("preprocess", "copy", "compute", "postprocess")
        }
        for _ in range(repetitions):
            self.finish()
            stamps = [time.perf_counter()]
            self.prepare(raw)
            stamps.append(time.perf_counter())
            batch = self.copy(self.gather(indices))
            self.finish()
            stamps.append(time.perf_counter())
            out, computing = self.computed(batch)
            stamps.append(time.perf_counter())
            self.answers(out)
            stamps.append(time.perf_counter())
            for name, (start, end) in zip(seconds, pairwise(stamps), strict=True):
                seconds[name].append(
                    computing if name == "compute" and computing is not None else end - start
                )
            if time.perf_counter() - begun > limit:
                break
        return seconds


def sizes(largest: int, scenario: str, few: bool) -> list[int]:
    """Return the batch sizes of a scenario, up to the largest.

    In Server any number of queries may wait. With `few` the sizes
    are powers of two, since each is compiled. Else they are every size up to 32, and at most 32
    of larger batches, since padding costs time.
    """
    if scenario != "server":
        return [largest]
    if few:
        return [*(2**power for power in range(largest.bit_length()) if 2**power < largest), largest]
    step = -(-largest // STEPS)
    return [*range(step, largest, step), largest]
