"""torchvision's ResNet-50 as a system under test, on CPU or CUDA. Only the program imports it."""

import bisect
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from perfdag.steps.resnet50.inference.network import CHECKED, decode, images, preprocess
from perfdag.steps.resnet50.inference.timing import ClockCheck, check_clock

STEPS = 32
"""Most sizes of an eager batch."""
_TYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


class Resnet50:
    """A system that runs batches of up to `batch` on one device; see `System`."""

    def __init__(self, spec: dict[str, Any], net: torch.nn.Module) -> None:
        self._device = torch.device(spec["device"])
        self._dtype, self._seed = _TYPES[spec["precision"]], spec["seed"]
        self._cuda = self._device.type == "cuda"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = (
            spec["precision"] == "tf32"
        )
        self._sizes = sizes(
            spec["batch"], spec["scenario"], spec["backend"] == "compile" or spec["fast"]
        )
        self._plain: Any = net.to(self._device, self._dtype, memory_format=torch.channels_last)
        self.net: Any = (
            compiled(self._plain, len(self._sizes)) if spec["backend"] == "compile" else self._plain
        )
        self._store, self._row = torch.empty(0), {}  # type: tuple[torch.Tensor, dict[int, int]]
        self._events: list[Any] = []
        self.files: Sequence[Path] | None = None
        self.resize = 256

    def load(self, indices: Sequence[int]) -> None:
        """Preprocess images and keep them in host memory."""
        parts = [
            preprocess(self._raw(indices[at : at + 64])).to(self._dtype)
            for at in range(0, len(indices), 64)
        ]
        self._store = torch.cat(parts)
        self._row = {index: row for row, index in enumerate(indices)}

    def _raw(self, indices: Sequence[int]) -> np.ndarray:
        if self.files is None:
            return images(self._seed, indices)
        return np.stack([decode(self.files[index], self.resize) for index in indices])

    def unload(self, indices: Sequence[int]) -> None:
        """Drop the images."""
        self._store, self._row = torch.empty(0), {}

    def buckets(self, largest: int) -> Sequence[int]:
        """Return the sizes to which batches are padded; all are warmed and checked beforehand."""
        return [size for size in self._sizes if size <= largest]

    def _padded(self, count: int) -> int:
        return self._sizes[bisect.bisect_left(self._sizes, count)]

    def gather(self, indices: Sequence[int]) -> torch.Tensor:
        """Return a batch in host memory (pinned for CUDA), padded to one of the sizes."""
        rows = [self._row[index] for index in indices]
        rows += rows[:1] * (self._padded(len(rows)) - len(rows))
        batch = self._store[rows]
        return batch.pin_memory() if self._cuda else batch

    def copy(self, batch: torch.Tensor) -> torch.Tensor:
        """Return a batch on the device, in the memory order of convolutions."""
        return batch.to(self._device, non_blocking=True).contiguous(
            memory_format=torch.channels_last
        )

    def wake(self) -> float:
        """Return the seconds of one image before compilation, for lazy initialisation."""
        start = time.perf_counter()
        self.attempt(1)
        return time.perf_counter() - start

    def logits(self, batch: torch.Tensor) -> torch.Tensor:
        """Run the network, (n, 3, 224, 224) to (n, 1000); on CUDA it may return early."""
        with torch.inference_mode():
            out: torch.Tensor = self.net(batch)
            return out

    def infer(self, indices: Sequence[int], ready: float = 0.0) -> Sequence[int]:
        """Return the classes of a batch; `tolist` waits for the device."""
        self._mark()
        answer = self.logits(self.copy(self.gather(indices))).argmax(1)
        self._mark()
        classes: list[int] = answer.tolist()[: len(indices)]
        return classes

    def attempt(self, count: int) -> None:
        """Run a batch of that size unpadded and not compiled. Raises if it does not fit."""
        with torch.inference_mode():
            self._plain(
                self.copy(self._store[[at % len(self._store) for at in range(count)]])
            ).argmax(1).tolist()

    def _mark(self) -> None:
        if self._cuda and len(self._events) < 2:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append(event)

    def check_clock(self, count: int) -> ClockCheck:
        """Compare the host's clock with CUDA events; on a CPU the work is the host's own."""
        indices = list(self._row)[:1] * count

        def call() -> None:
            self._events = []
            self.infer(indices)

        def busy() -> float:
            if not self._cuda:
                return 0.0
            torch.cuda.synchronize(self._device)
            return float(self._events[0].elapsed_time(self._events[1])) / 1e3

        return check_clock(call, busy)

    def _done(self) -> None:
        if self._cuda:
            torch.cuda.synchronize(self._device)

    def _computed(self, batch: torch.Tensor) -> tuple[torch.Tensor, float | None]:
        """Return the logits, and on CUDA the seconds between events around them."""
        if not self._cuda:
            return self.logits(batch), None
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        out = self.logits(batch)
        end.record()
        end.synchronize()
        return out, float(start.elapsed_time(end)) / 1e3

    def phases(self, count: int, repetitions: int, limit: float = 10.0) -> dict[str, list[float]]:
        """Return the seconds of preprocess, copy, compute and postprocess of a batch of `count`.

        The device is idle before and after. The host's clock measures, with a synchronisation at
        each end; on CUDA, events measure compute. It runs at least once, and up to `repetitions`
        times within `limit` seconds.
        """
        indices = [list(self._row)[at % len(self._row)] for at in range(count)]
        raw = images(self._seed, indices) if self.files is None else self._raw(indices)
        begun = time.perf_counter()
        seconds: dict[str, list[float]] = {
            name: [] for name in ("preprocess", "copy", "compute", "postprocess")
        }
        for _ in range(repetitions):
            self._done()
            stamps = [time.perf_counter()]
            preprocess(raw).to(self._dtype)
            stamps.append(time.perf_counter())
            batch = self.copy(self.gather(indices))
            self._done()
            stamps.append(time.perf_counter())
            out, computing = self._computed(batch)
            stamps.append(time.perf_counter())
            out.argmax(1).tolist()
            stamps.append(time.perf_counter())
            for name, (start, end) in zip(seconds, pairwise(stamps), strict=True):
                seconds[name].append(
                    computing if name == "compute" and computing is not None else end - start
                )
            if time.perf_counter() - begun > limit:
                break
        return seconds

    def fixed_logits(self, size: int) -> torch.Tensor:
        """Return the logits of the fixed images in batches of `size`, (n, 1000) float32 on the CPU.

        Image i is image i modulo 4 of the set. There are as many batches as the set needs.
        """
        fixed = preprocess(images(self._seed, range(CHECKED))).to(self._dtype)
        batches = [
            [at % CHECKED for at in range(start, start + size)] for start in range(0, CHECKED, size)
        ]
        return torch.cat([self.logits(self.copy(fixed[rows])).float().cpu() for rows in batches])


def sizes(largest: int, scenario: str, few: bool) -> list[int]:
    """Return the batch sizes of a scenario, up to the largest.

    In Server, and the search for its peak, any number of queries may wait. With `few` the sizes
    are powers of two, since each is compiled. Else they are every size up to 32, and at most 32
    of larger batches, since padding costs time.
    """
    if scenario not in ("server", "find-peak"):
        return [largest]
    if few:
        return [*(2**power for power in range(largest.bit_length()) if 2**power < largest), largest]
    step = -(-largest // STEPS)
    return [*range(step, largest, step), largest]


def compiled(net: torch.nn.Module, count: int) -> Any:
    """Compile the network anew for each of `count` sizes.

    Beyond its own limit, torch.compile would silently run the other sizes eagerly.
    """
    from torch._dynamo import config

    # The first is the name since PyTorch 2.7, the second that of earlier versions.
    limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    setattr(config, limit, max(getattr(config, limit), count))
    for name in ("fail_on_recompile_limit_hit", "fail_on_cache_limit_hit"):
        if hasattr(config, name):
            setattr(config, name, True)
    return torch.compile(net, dynamic=False)


def reference(net: torch.nn.Module, seed: int) -> torch.Tensor:
    """Return the logits of the fixed images by the fp32 eager model on the CPU."""
    with torch.inference_mode():
        out: torch.Tensor = net(preprocess(images(seed, range(CHECKED))))
        return out
