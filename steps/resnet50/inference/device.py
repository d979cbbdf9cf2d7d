"""torchvision's ResNet-50 on CUDA: one batch is copied while another is computed.

Each batch in flight has a lane of its own. Copies and computations have a stream each, so the
copy of a batch runs beside the computation of the one before it. Only the program imports it.
"""

import queue
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from perfdag.steps.resnet50.inference.images import IMAGE
from perfdag.steps.resnet50.inference.model import Resnet50

WARM_CAPTURES = 3
"""Batches before a capture, so that libraries have chosen their kernels and have their memory."""


class Lane:
    """Memory of one batch in flight: pinned on the host, fixed on the device."""

    def __init__(self, largest: int, dtype: torch.dtype, device: torch.device) -> None:
        self.pinned = torch.empty((largest, *IMAGE), dtype=dtype).pin_memory()
        self.input = torch.empty((largest, *IMAGE), dtype=dtype, device=device)
        self.classes = torch.empty(largest, dtype=torch.int64).pin_memory()
        self.begun, self.copied, self.done = (
            torch.cuda.Event(enable_timing=True) for _ in range(3)
        )
        self.graphs: dict[int, tuple[Any, tuple[torch.Tensor, torch.Tensor]]] = {}


Batch = tuple[Lane, int]
"""A batch on the device: its lane, and the number of its samples."""


class DeviceResnet50(Resnet50):
    """PyTorch's pipeline on CUDA; `infer` serves `in_flight` threads at once."""

    def __init__(self, spec: dict[str, Any], net: torch.nn.Module) -> None:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = (
            spec["precision"] == "tf32"
        )
        super().__init__(spec, net)
        self._resident, self._graphs = spec["resident"], spec["graphs"]
        self.lanes = spec["in_flight"]
        self._copying, self.computing = torch.cuda.Stream(), torch.cuda.Stream()
        self._launching = threading.Lock()  # a batch waits for its own copy alone
        self._lanes: list[Lane] = []
        self._free: queue.SimpleQueue[Lane] = queue.SimpleQueue()
        self._turn = 0

    def join(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        store = super().join(parts)
        return store.to(self.device) if self._resident else store

    def _open(self) -> None:
        """Allocate the lanes at the first batch, which is where a batch too large is reported."""
        if not self._lanes:
            lanes = [Lane(self.sizes[-1], self.dtype, self.device) for _ in range(self.lanes)]
            self._pool = torch.cuda.graph_pool_handle()
            self._lanes = lanes
            for lane in lanes:
                self._free.put(lane)
            self.finish()

    def attempt(self, count: int) -> None:
        """Run a batch of that size, not compiled, beside the memory of the others in flight."""
        self._lanes, self._free = [], queue.SimpleQueue()  # those of a batch that was too large
        lanes = [Lane(count, self.dtype, self.device) for _ in range(self.lanes)]
        self._fill(lanes[0], np.arange(count) % len(self.store))
        self.finish()
        with torch.inference_mode():
            self.answers(self.plain(lanes[0].input.permute(0, 3, 1, 2)))

    def _next(self) -> Lane:
        """Return the lanes in turn, outside `infer`, so that the checks see each."""
        self._open()
        self._turn += 1
        return self._lanes[self._turn % len(self._lanes)]

    def infer(self, indices: Sequence[int] | np.ndarray, ready: float = 0.0) -> np.ndarray:
        """Return the classes of a batch, once they are in host memory."""
        self._open()
        lane = self._free.get()
        try:
            rows = self.rows(indices)
            self._fill(lane, rows)
            with self._launching, torch.cuda.stream(self.computing):
                self.computing.wait_event(lane.copied)
                _, answer = self.compute(lane, len(rows))
                lane.classes[: len(rows)].copy_(answer, non_blocking=True)
                lane.done.record()
            lane.done.synchronize()
            self.last = lane
            classes: np.ndarray = lane.classes[: len(indices)].numpy().copy()
            return classes
        finally:
            self._free.put(lane)

    def _fill(self, lane: Lane, rows: np.ndarray) -> None:
        """Enqueue the copy of samples into a lane."""
        size, chosen = len(rows), torch.from_numpy(rows)
        if not self._resident:
            torch.index_select(self.store, 0, chosen, out=lane.pinned[:size])
        with torch.cuda.stream(self._copying):
            lane.begun.record()
            if self._resident:
                chosen = chosen.to(self.device)
                torch.index_select(self.store, 0, chosen, out=lane.input[:size])
            else:
                lane.input[:size].copy_(lane.pinned[:size], non_blocking=True)
            lane.copied.record()

    def compute(self, lane: Lane, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Enqueue a batch in the current stream; return its logits and classes."""
        if not self._graphs:
            return self._classify(lane, size)
        if size not in lane.graphs:
            self._capture(size)
        graph, out = lane.graphs[size]
        graph.replay()
        return out

    def _classify(self, lane: Lane, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        logits = super().logits(lane.input[:size])
        return logits, logits.argmax(1)

    def _capture(self, size: int) -> None:
        """Capture a batch size as a CUDA graph for every lane.

        The graphs share their memory, since they run one after the other in one stream. All eager
        batches precede the captures, or their memory would be needed beside that of a graph.
        """
        for lane in self._lanes:
            for _ in range(WARM_CAPTURES):
                self._classify(lane, size)
        for lane in self._lanes:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=self.computing):
                out = self._classify(lane, size)
            lane.graphs[size] = graph, out

    def gather(self, indices: Sequence[int] | np.ndarray) -> Batch:
        """Return a batch whose copy is enqueued."""
        lane, rows = self._next(), self.rows(indices)
        self._fill(lane, rows)
        return lane, len(rows)

    def copy(self, batch: torch.Tensor | Batch) -> Batch:
        """Return a batch on the device; what `gather` returns is on its way."""
        if isinstance(batch, torch.Tensor):
            lane, size = self._next(), len(batch)
            lane.input[:size].copy_(batch)
            batch = lane, size
        return batch

    def logits(self, batch: Batch) -> torch.Tensor:
        return self.computed(batch)[0]

    def computed(self, batch: Batch) -> tuple[torch.Tensor, float]:
        """Return the logits, and the seconds between events around them."""
        self.finish()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with self._launching, torch.cuda.stream(self.computing):
            start.record()
            logits, _ = self.compute(*batch)
            end.record()
        end.synchronize()
        return logits, float(start.elapsed_time(end)) / 1e3

    def busy(self) -> float:
        """Return the seconds from the copy of the last batch to its classes on the host."""
        self.finish()
        return float(self.last.begun.elapsed_time(self.last.done)) / 1e3

    def finish(self) -> None:
        torch.cuda.synchronize(self.device)
