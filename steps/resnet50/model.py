"""ResNet-50 of torchvision as a system under test, on a CPU or a CUDA device. Imports torch: only the program does."""

import hashlib
import re
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision

from perfdag.steps.resnet50.timing import ClockCheck, check_clock

IMAGE = (224, 224, 3)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's channels, as torchvision's weights expect them (torchvision.models.ResNet50_Weights)."""
CHECKED = 4
"""Images of the fixed set on which logits are checked."""
TOLERANCE = {"fp32": 1e-3, "tf32": 1e-2, "bf16": 1e-1, "fp16": 2e-2}
"""Largest ||logits - reference|| / ||reference|| of an image: about ten times what rounding alone gives over 50 layers."""
KNOWN = ("0676ba61", "11ad3fa6", "19c8e357")
"""How the SHA-256 of torchvision's own files begins: resnet50-0676ba61.pth, resnet50-11ad3fa6.pth and resnet50-19c8e357.pth."""
_TYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class UnusableError(Exception):
    """What was asked cannot be had here: `kind` is `device`, `weights`, `memory`, `compiler` or `images`."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def images(seed: int, indices: Sequence[int]) -> np.ndarray:
    """Seeded images (n, 224, 224, 3), uint8: image i is the same in any set, on any machine (PCG64)."""
    made = [np.random.Generator(np.random.PCG64([seed, index])).integers(0, 256, IMAGE, dtype=np.uint8) for index in indices]
    return np.stack(made)


def preprocess(raw: np.ndarray) -> torch.Tensor:
    """Pixels (n, 224, 224, 3) uint8 to normalised (n, 3, 224, 224) float32."""
    pixels = torch.from_numpy(raw).permute(0, 3, 1, 2).to(torch.float32).div_(255)
    return pixels.sub_(torch.tensor(MEAN).view(1, 3, 1, 1)).div_(torch.tensor(STD).view(1, 3, 1, 1))


def build(weights: str, seed: int, sha256: str | None = None) -> tuple[torch.nn.Module, dict[str, Any]]:
    """An fp32 model in eval mode on the CPU, and what its weights are. Raises UnusableError (weights)."""
    torch.manual_seed(seed)
    net = torchvision.models.resnet50(weights=None)
    if weights == "random":
        # statistics of one seeded batch in place of the untrained 0 and 1, or the activations of 16 blocks overflow fp16
        for module in net.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = 1.0
            if isinstance(module, torchvision.models.resnet.Bottleneck):
                # as in a trained net, a block adds little to what it is given; untrained ones amplify every rounding tenfold
                torch.nn.init.constant_(module.bn3.weight, 0.2)
        with torch.no_grad():
            net.train()(preprocess(images(seed, range(CHECKED))))
        return net.eval(), {"weights": f"random, seed {seed}", "trained": False}
    path = Path(weights)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UnusableError("weights", f"weights {weights}: {error.strerror}; give a file of torchvision's ResNet-50 or `random`") from None
    digest = hashlib.sha256(data).hexdigest()
    named = re.search(r"-([0-9a-f]{8,64})\.pth$", path.name)
    wanted = sha256 or (named[1] if named else "")
    if not digest.startswith(wanted):
        raise UnusableError("weights", f"weights {weights} are not what they claim: sha256 {digest[:16]}..., {wanted[:16]} expected")
    try:
        net.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:
        raise UnusableError(
            "weights", f"weights {weights} are no state dict of torchvision's ResNet-50: {str(error).splitlines()[0][:200]}"
        ) from None
    verified = bool(wanted) or digest.startswith(KNOWN)
    return net.eval(), {"weights": str(path), "weights_sha256": digest, "weights_verified": verified, "trained": True}


class Resnet50:
    """A system (see `system.System`) that runs batches on one device. `largest` bounds a batch."""

    def __init__(self, spec: dict[str, Any], net: torch.nn.Module) -> None:
        self._device = torch.device(spec["device"])
        self._dtype, self._seed, self._largest = _TYPES[spec["precision"]], spec["seed"], spec["batch"]
        self._cuda = self._device.type == "cuda"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = spec["precision"] == "tf32"
        self.compiled = spec["backend"] == "compile"
        module = net.to(self._device, self._dtype, memory_format=torch.channels_last)
        self._net: Any = torch.compile(module, dynamic=False) if self.compiled else module
        self._store, self._row = torch.empty(0), {}  # type: tuple[torch.Tensor, dict[int, int]]
        self._events: list[Any] = []
        self.files: Sequence[Path] | None = None

    def load(self, indices: Sequence[int]) -> None:
        """Preprocessed images in host memory."""
        parts = [preprocess(self._raw(indices[at : at + 64])).to(self._dtype) for at in range(0, len(indices), 64)]
        self._store = torch.cat(parts)
        self._row = {index: row for row, index in enumerate(indices)}

    def _raw(self, indices: Sequence[int]) -> np.ndarray:
        if self.files is None:
            return images(self._seed, indices)
        return np.stack([decode(self.files[index]) for index in indices])

    def unload(self, indices: Sequence[int]) -> None:
        """Let the images go."""
        self._store, self._row = torch.empty(0), {}

    def buckets(self, largest: int) -> Sequence[int]:
        """Powers of two and the largest: a compiled batch is padded to one of these, so that no query meets a compilation.

        Eager needs one sample and the largest: kernels and buffers of the sizes between are not tuned one by one.
        """
        if not self.compiled:
            return sorted({1, largest})
        sizes = [2**power for power in range(largest.bit_length()) if 2**power < largest]
        return [*sizes, largest]

    def _padded(self, count: int) -> int:
        return next(size for size in self.buckets(self._largest) if size >= count) if self.compiled else count

    def gather(self, indices: Sequence[int]) -> torch.Tensor:
        """A batch in host memory (pinned where the device is CUDA), padded where the backend is compiled."""
        rows = [self._row[index] for index in indices]
        rows += rows[:1] * (self._padded(len(rows)) - len(rows))
        batch = self._store[rows]
        return batch.pin_memory() if self._cuda else batch

    def copy(self, batch: torch.Tensor) -> torch.Tensor:
        """A batch on the device, in the memory order that convolutions want."""
        return batch.to(self._device, non_blocking=True).contiguous(memory_format=torch.channels_last)

    def logits(self, batch: torch.Tensor) -> torch.Tensor:
        """The network alone, (n, 3, 224, 224) to (n, 1000), on the device; on CUDA it may return before the device is done."""
        with torch.inference_mode():
            out: torch.Tensor = self._net(batch)
            return out

    def infer(self, indices: Sequence[int], ready: float = 0.0) -> Sequence[int]:
        """Classes of a batch; `tolist` waits for the device."""
        self._mark()
        answer = self.logits(self.copy(self.gather(indices))).argmax(1)
        self._mark()
        classes: list[int] = answer.tolist()[: len(indices)]
        return classes

    def _mark(self) -> None:
        if self._cuda and len(self._events) < 2:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append(event)

    def check_clock(self, count: int) -> ClockCheck:
        """Hold the host's clock of `infer` against CUDA events in the same stream; on a CPU the work is the host's own."""
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

    def phases(self, count: int, repetitions: int, limit: float = 10.0) -> dict[str, list[float]]:
        """Seconds of each phase of a batch of `count`, the device idle before and after: preprocess, copy, compute, postprocess.

        At least once, then up to `repetitions` times within `limit` seconds.
        """
        indices = [list(self._row)[at % len(self._row)] for at in range(count)]
        raw = images(self._seed, indices) if self.files is None else self._raw(indices)
        begun = time.perf_counter()
        seconds: dict[str, list[float]] = {name: [] for name in ("preprocess", "copy", "compute", "postprocess")}
        for _ in range(repetitions):
            self._done()
            stamps = [time.perf_counter()]
            preprocess(raw).to(self._dtype)
            stamps.append(time.perf_counter())
            batch = self.copy(self.gather(indices))
            self._done()
            stamps.append(time.perf_counter())
            out = self.logits(batch)
            self._done()
            stamps.append(time.perf_counter())
            out.argmax(1).tolist()
            stamps.append(time.perf_counter())
            for name, (start, end) in zip(seconds, pairwise(stamps), strict=True):
                seconds[name].append(end - start)
            if time.perf_counter() - begun > limit:
                break
        return seconds

    def fixed_logits(self) -> torch.Tensor:
        """Logits of the fixed seeded set, (4, 1000) float32 on the CPU, in batches that the system runs anyway."""
        batch = preprocess(images(self._seed, range(CHECKED))).to(self._dtype)
        size = self._padded(min(CHECKED, self._largest))
        parts = []
        for at in range(0, CHECKED, size):
            part = batch[at : at + size]
            filled = torch.cat([part, part[:1].expand(size - len(part), -1, -1, -1)]) if len(part) < size else part
            parts.append(self.logits(self.copy(filled))[: len(part)].float().cpu())
        return torch.cat(parts)


def reference(net: torch.nn.Module, seed: int) -> torch.Tensor:
    """Logits of the fixed seeded set by the fp32 eager model on the CPU."""
    with torch.inference_mode():
        out: torch.Tensor = net(preprocess(images(seed, range(CHECKED))))
        return out


def compare_logits(got: torch.Tensor, wanted: torch.Tensor, precision: str) -> dict[str, Any]:
    """Relative error of the worst image and agreement of the classes; `ok` where all are finite and within tolerance."""
    finite = bool(torch.isfinite(got).all())
    errors = (got - wanted).norm(dim=1) / wanted.norm(dim=1)
    worst = float(errors.max()) if finite else float("inf")
    same = int((got.argmax(1) == wanted.argmax(1)).sum())
    ok = finite and worst <= TOLERANCE[precision]
    return {
        "ok": ok,
        "error": worst if finite else None,
        "tolerance": TOLERANCE[precision],
        "finite": finite,
        "same_class": same,
        "images": len(got),
    }


def decode(file: Path) -> np.ndarray:
    """An image file as ImageNet is evaluated: shorter side 256 bilinear, the middle 224 x 224, uint8. Raises UnusableError."""
    from PIL import Image

    try:
        with Image.open(file) as opened:
            image = opened.convert("RGB")
    except Exception as error:  # Pillow's decoders raise whatever they meet in a broken file
        raise UnusableError("images", f"{file}: not an image: {error}") from None
    scale = 256 / min(image.size)
    width, height = (round(side * scale) for side in image.size)
    left, top = (width - 224) // 2, (height - 224) // 2
    pixels = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR), dtype=np.uint8)
    return pixels[top : top + 224, left : left + 224]
