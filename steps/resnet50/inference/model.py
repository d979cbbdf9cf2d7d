"""torchvision's ResNet-50 on the CPU, and what CUDA shares with it. Only the program imports it."""

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
    """PyTorch's pipeline. Images lie in memory as (n, 224, 224, 3), as convolutions like it."""

    def __init__(self, spec: dict[str, Any], net: torch.nn.Module) -> None:
        compiling = spec["backend"] == "compile"
        super().__init__(spec, self.logits, few=compiling)
        self.device, self.dtype = torch.device(spec["device"]), _TYPES[spec["precision"]]
        self.plain: Any = net.to(self.device, self.dtype, memory_format=torch.channels_last)
        self.net: Any = compiled(self.plain, len(self.sizes)) if compiling else self.plain

    def prepare(self, raw: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(preprocess(raw).transpose(0, 2, 3, 1)).to(self.dtype)

    def join(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat(list(parts))

    def gather(self, indices: Sequence[int] | np.ndarray) -> Any:
        return torch.index_select(self.store, 0, torch.from_numpy(self.rows(indices)))

    def logits(self, batch: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            out: torch.Tensor = self.net(batch.permute(0, 3, 1, 2))
            return out

    def answers(self, logits: torch.Tensor) -> np.ndarray:
        classes: np.ndarray = logits.argmax(1).cpu().numpy()
        return classes

    def attempt(self, count: int) -> None:
        """Run a batch of that size unpadded and not compiled. Raises if it does not fit."""
        rows = torch.arange(count, device=self.store.device) % len(self.store)
        with torch.inference_mode():
            batch = torch.index_select(self.store, 0, rows).to(self.device)
            self.answers(self.plain(batch.permute(0, 3, 1, 2)))


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
