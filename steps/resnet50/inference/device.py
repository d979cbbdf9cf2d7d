"""torchvision's ResNet-50 on CUDA: one batch is copied while another is computed.

Copies and computations have a stream each, and images are pinned in host memory, so the copy of a
batch runs beside the computation of the one before it. Only the program imports it.
"""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from perfdag.steps.resnet50.inference.model import Resnet50


class DeviceResnet50(Resnet50):
    """PyTorch's pipeline on CUDA; `infer` serves two threads at once."""

    def __init__(self, spec: dict[str, Any], net: torch.nn.Module) -> None:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = (
            spec["precision"] == "tf32"
        )
        super().__init__(spec, net)
        self._copying, self._computing = torch.cuda.Stream(), torch.cuda.Stream()
        self._launching = threading.Lock()  # kernels of two batches must not mix in the stream

    def gather(self, indices: Sequence[int] | np.ndarray) -> torch.Tensor:
        batch: torch.Tensor = super().gather(indices)
        return batch.pin_memory()

    def copy(self, batch: torch.Tensor) -> torch.Tensor:
        """Return a batch on the device; the computing stream waits for it."""
        with torch.cuda.stream(self._copying):
            there = batch.to(self.device, non_blocking=True)
        self._computing.wait_stream(self._copying)
        there.record_stream(self._computing)
        return there

    def logits(self, batch: torch.Tensor) -> torch.Tensor:
        with self._launching, torch.cuda.stream(self._computing):
            return super().logits(batch)

    def answers(self, logits: torch.Tensor) -> np.ndarray:
        with torch.cuda.stream(self._computing):
            return super().answers(logits)

    def computed(self, batch: torch.Tensor) -> tuple[torch.Tensor, float]:
        """Return the logits, and the seconds between events around them."""
        self.finish()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record(self._computing)
        logits = self.logits(batch)
        end.record(self._computing)
        end.synchronize()
        return logits, float(start.elapsed_time(end)) / 1e3

    def finish(self) -> None:
        torch.cuda.synchronize(self.device)
