"""ResNet-50 of torchvision as a system under test, on a CPU or a CUDA device. Imports torch: only the program does."""

import bisect
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

from perfdag.steps.resnet50.imagenet import KNOWN
from perfdag.steps.resnet50.timing import ClockCheck, check_clock

IMAGE = (224, 224, 3)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's channels, as torchvision's weights expect them (torchvision.models.ResNet50_Weights)."""
CHECKED = 4
"""Images of the fixed set on which logits are checked; a larger batch repeats them, and each place in it is compared."""
STEPS = 32
"""Most sizes of an eager batch."""
_TYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


class UnusableError(Exception):
    """What was asked cannot be had here: `kind` is `device`, `weights`, `memory`, `compiler` or `images`."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def images(seed: int, indices: Sequence[int]) -> np.ndarray:
    """Seeded images (n, 224, 224, 3), uint8: image i is the same in any set, on any machine (PCG64)."""
    made = [
        np.random.Generator(np.random.PCG64([seed, index])).integers(0, 256, IMAGE, dtype=np.uint8)
        for index in indices
    ]
    return np.stack(made)


def preprocess(raw: np.ndarray) -> torch.Tensor:
    """Pixels (n, 224, 224, 3) uint8 to normalised (n, 3, 224, 224) float32."""
    pixels = torch.from_numpy(raw).permute(0, 3, 1, 2).to(torch.float32).div_(255)
    return pixels.sub_(torch.tensor(MEAN).view(1, 3, 1, 1)).div_(torch.tensor(STD).view(1, 3, 1, 1))


def build(
    weights: str, seed: int, sha256: str | None = None
) -> tuple[torch.nn.Module, dict[str, Any]]:
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
        raise UnusableError(
            "weights",
            f"weights {weights}: {error.strerror}; give a file of torchvision's ResNet-50 or `random`",
        ) from None
    digest = hashlib.sha256(data).hexdigest()
    named = re.fullmatch(r"resnet50-([0-9a-f]{8,64})\.pth", path.name)
    wanted = sha256 or (named[1] if named else "")
    if not digest.startswith(wanted):
        mend = "correct weights_sha256" if sha256 else "rename it, or set weights_sha256"
        raise UnusableError(
            "weights",
            f"weights {weights} are not what they claim: sha256 {digest[:16]}..., {wanted[:16]} expected; get the file again, or {mend}",
        )
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        if isinstance(state, dict) and "state_dict" in state:
            raise ValueError("it is a checkpoint; save what its `state_dict` holds alone")
        net.load_state_dict(state)
    except Exception as error:
        # the first line of load_state_dict's says only that there are errors
        said = " ".join(" ".join(str(error).splitlines()[:2]).split())
        raise UnusableError(
            "weights",
            f"weights {weights} are no state dict of torchvision's ResNet-50: {said[:200]}",
        ) from None
    verified = bool(wanted) or digest[:8] in KNOWN
    return net.eval(), {
        "weights": str(path),
        "weights_sha256": digest,
        "weights_verified": verified,
        "trained": True,
    }


class Resnet50:
    """A system (see `system.System`) that runs batches of up to the spec's `batch` on one device."""

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
        self._net: Any = (
            compiled(self._plain, len(self._sizes)) if spec["backend"] == "compile" else self._plain
        )
        self._store, self._row = torch.empty(0), {}  # type: tuple[torch.Tensor, dict[int, int]]
        self._events: list[Any] = []
        self.files: Sequence[Path] | None = None
        self.resize = 256

    def load(self, indices: Sequence[int]) -> None:
        """Preprocessed images in host memory."""
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
        """Let the images go."""
        self._store, self._row = torch.empty(0), {}

    def buckets(self, largest: int) -> Sequence[int]:
        """Sizes to which a batch is padded; each is warmed and checked, so that no query meets a compilation or the tuning of a shape."""
        return [size for size in self._sizes if size <= largest]

    def _padded(self, count: int) -> int:
        return self._sizes[bisect.bisect_left(self._sizes, count)]

    def gather(self, indices: Sequence[int]) -> torch.Tensor:
        """A batch in host memory (pinned where the device is CUDA), padded to one of the sizes."""
        rows = [self._row[index] for index in indices]
        rows += rows[:1] * (self._padded(len(rows)) - len(rows))
        batch = self._store[rows]
        return batch.pin_memory() if self._cuda else batch

    def copy(self, batch: torch.Tensor) -> torch.Tensor:
        """A batch on the device, in the memory order that convolutions want."""
        return batch.to(self._device, non_blocking=True).contiguous(
            memory_format=torch.channels_last
        )

    def wake(self) -> float:
        """Seconds of one image through the net as it is before compilation: lazy initialisation of the device and its libraries."""
        start = time.perf_counter()
        self.attempt(1)
        return time.perf_counter() - start

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

    def attempt(self, count: int) -> None:
        """Run a batch of so many images as it is, padded to nothing and not compiled: raises where the memory does not hold it."""
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

    def _computed(self, batch: torch.Tensor) -> tuple[torch.Tensor, float | None]:
        """The logits, the device done, and on CUDA the seconds between events around them in its stream."""
        if not self._cuda:
            return self.logits(batch), None
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        out = self.logits(batch)
        end.record()
        end.synchronize()
        return out, float(start.elapsed_time(end)) / 1e3

    def phases(self, count: int, repetitions: int, limit: float = 10.0) -> dict[str, list[float]]:
        """Seconds of each phase of a batch of `count`, the device idle before and after: preprocess, copy, compute, postprocess.

        By the host's clock with a synchronisation at each end; compute on CUDA by events in its stream. At least once, then up to
        `repetitions` times within `limit` seconds.
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
        """Logits of the fixed seeded set in batches of `size`, as the system is timed with: (n, 1000) float32 on the CPU, image i being the
        i modulo 4th of the set; one batch, or as many as hold the set."""
        fixed = preprocess(images(self._seed, range(CHECKED))).to(self._dtype)
        batches = [
            [at % CHECKED for at in range(start, start + size)] for start in range(0, CHECKED, size)
        ]
        return torch.cat([self.logits(self.copy(fixed[rows])).float().cpu() for rows in batches])


def sizes(largest: int, scenario: str, few: bool) -> list[int]:
    """Sizes of the batches of a scenario, up to the largest: in Server (and the search for its peak) any number of queries may wait.

    `few`: powers of two, since each is compiled; else every size up to 32, and of larger ones at most 32, since padding costs time.
    """
    if scenario not in ("server", "find-peak"):
        return [largest]
    if few:
        return [*(2**power for power in range(largest.bit_length()) if 2**power < largest), largest]
    step = -(-largest // STEPS)
    return [*range(step, largest, step), largest]


def compiled(net: torch.nn.Module, count: int) -> Any:
    """The net compiled anew for each of `count` sizes. Beyond a limit of its own, torch.compile would run the others eagerly without a word."""
    from torch._dynamo import config

    # their names until PyTorch 2.6 and since
    limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    setattr(config, limit, max(getattr(config, limit), count))
    for name in ("fail_on_recompile_limit_hit", "fail_on_cache_limit_hit"):
        if hasattr(config, name):
            setattr(config, name, True)
    return torch.compile(net, dynamic=False)


def reference(net: torch.nn.Module, seed: int) -> torch.Tensor:
    """Logits of the fixed seeded set by the fp32 eager model on the CPU."""
    with torch.inference_mode():
        out: torch.Tensor = net(preprocess(images(seed, range(CHECKED))))
        return out


def decode(file: Path, resize: int = 256) -> np.ndarray:
    """An image file as ImageNet is evaluated: shorter side `resize` pixels, bilinear, the middle 224 x 224, uint8. Raises UnusableError."""
    from PIL import Image

    try:
        with Image.open(file) as opened:
            image = opened.convert("RGB")
    except Exception as error:  # Pillow's decoders raise whatever they meet in a broken file
        raise UnusableError("images", f"{file}: not an image: {error}") from None
    scale = resize / min(image.size)
    width, height = (round(side * scale) for side in image.size)
    left, top = (width - 224) // 2, (height - 224) // 2
    pixels = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR), dtype=np.uint8)
    return pixels[top : top + 224, left : left + 224]
