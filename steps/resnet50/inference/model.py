"""torchvision's ResNet-50 as a system under test, on CPU or CUDA. Only the program imports it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from perfdag.steps.resnet50.inference.images import preprocess
from perfdag.steps.resnet50.inference.pipeline import Pipeline

_TYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


class Resnet50(Pipeline):
    """PyTorch's pipeline, whose copies and computations are asynchronous on CUDA."""

    def __init__(self, spec: dict[str, Any], net: torch.nn.Module) -> None:
        compiling = spec["backend"] == "compile"
        super().__init__(spec, self.logits, few=compiling)
        self._device = torch.device(spec["device"])
        self._dtype, self._cuda = _TYPES[spec["precision"]], self._device.type == "cuda"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = (
            spec["precision"] == "tf32"
        )
        self._plain: Any = net.to(self._device, self._dtype, memory_format=torch.channels_last)
        self.net: Any = compiled(self._plain, len(self.sizes)) if compiling else self._plain
        self._events: list[Any] | None = None

    def prepare(self, raw: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(preprocess(raw)).to(self._dtype)

    def join(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat(list(parts))

    def gather(self, indices: Sequence[int]) -> torch.Tensor:
        """Return a batch in host memory (pinned for CUDA), padded to one of the sizes."""
        batch: torch.Tensor = super().gather(indices)
        return batch.pin_memory() if self._cuda else batch

    def copy(self, batch: torch.Tensor) -> torch.Tensor:
        """Return a batch on the device, in the memory order of convolutions."""
        return batch.to(self._device, non_blocking=True).contiguous(
            memory_format=torch.channels_last
        )

    def logits(self, batch: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            out: torch.Tensor = self.net(batch)
            return out

    def host(self, logits: torch.Tensor) -> np.ndarray:
        array: np.ndarray = logits.float().cpu().numpy()
        return array

    def infer(self, indices: Sequence[int], ready: float = 0.0) -> Sequence[int]:
        self._mark()
        answer = self.logits(self.copy(self.gather(indices))).argmax(1)
        self._mark()
        classes: list[int] = answer.tolist()[: len(indices)]
        return classes

    def attempt(self, count: int) -> None:
        """Run a batch of that size unpadded and not compiled. Raises if it does not fit."""
        with torch.inference_mode():
            self._plain(
                self.copy(self.store[[at % len(self.store) for at in range(count)]])
            ).argmax(1).tolist()

    def _mark(self) -> None:
        """Record an event if the batch is to be clocked."""
        if self._events is not None:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append(event)

    def clocked(self, indices: Sequence[int]) -> None:
        self._events = [] if self._cuda else None
        self.infer(indices)

    def busy(self) -> float:
        if self._events is None:
            return 0.0
        self.finish()
        (start, end), self._events = self._events, None
        return float(start.elapsed_time(end)) / 1e3

    def finish(self) -> None:
        if self._cuda:
            torch.cuda.synchronize(self._device)

    def computed(self, batch: torch.Tensor) -> tuple[torch.Tensor, float | None]:
        """Return the logits, and on CUDA the seconds between events around them."""
        if not self._cuda:
            return self.logits(batch), None
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        out = self.logits(batch)
        end.record()
        end.synchronize()
        return out, float(start.elapsed_time(end)) / 1e3


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
