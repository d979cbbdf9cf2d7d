"""The network and its input: images, weights, and the check of logits against fp32 eager."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision

from perfdag.steps.resnet50.errors import UnusableError
from perfdag.steps.resnet50.imagenet import KNOWN

IMAGE = (224, 224, 3)


MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and deviation of ImageNet's channels (torchvision.models.ResNet50_Weights)."""


def images(seed: int, indices: Sequence[int]) -> np.ndarray:
    """Return seeded images (n, 224, 224, 3), uint8; image i is the same on any machine (PCG64)."""
    sample = [
        np.random.Generator(np.random.PCG64([seed, index])).integers(0, 256, IMAGE, dtype=np.uint8)
        for index in indices
    ]
    return np.stack(sample)


def preprocess(raw: np.ndarray) -> torch.Tensor:
    """Normalise (n, 224, 224, 3) uint8 pixels to (n, 3, 224, 224) float32."""
    pixels = torch.from_numpy(raw).permute(0, 3, 1, 2).to(torch.float32).div_(255)
    return pixels.sub_(torch.tensor(MEAN).view(1, 3, 1, 1)).div_(torch.tensor(STD).view(1, 3, 1, 1))


def decode(file: Path, resize: int = 256) -> np.ndarray:
    """Return an image as ImageNet is evaluated. Raises UnusableError.

    The shorter side has `resize` pixels, bilinear; the middle 224 x 224 is taken, as uint8.
    """
    from PIL import Image

    try:
        with Image.open(file) as opened:
            image = opened.convert("RGB")
    except Exception as error:  # Pillow's decoders raise whatever they meet in a broken file
        raise UnusableError("images", f"{file}: not an image: {error}") from None
    scale = resize / min(image.size)
    width, height = (round(side * scale) for side in image.size)
    left, top = (width - 224) // 2, (height - 224) // 2
    pixels = np.array(image.resize((width, height), Image.Resampling.BILINEAR), dtype=np.uint8)
    return pixels[top : top + 224, left : left + 224]


CHECKED = 4
"""Images on which logits are checked; a larger batch repeats them and compares each place."""


def build(
    weights: str, seed: int, sha256: str | None = None
) -> tuple[torch.nn.Module, dict[str, Any]]:
    """Return an fp32 model in eval mode on the CPU, and its weights. Raises UnusableError."""
    torch.manual_seed(seed)
    net = torchvision.models.resnet50(weights=None)
    if weights == "random":
        # With the untrained statistics 0 and 1, the activations of 16 blocks overflow fp16.
        for module in net.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = 1.0
            if isinstance(module, torchvision.models.resnet.Bottleneck):
                # Untrained blocks would amplify every rounding tenfold. Trained ones add little.
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
            f"weights {weights}: {error.strerror}; give a file of torchvision's ResNet-50 or"
            " `random`",
        ) from None
    digest = hashlib.sha256(data).hexdigest()
    named = re.fullmatch(r"resnet50-([0-9a-f]{8,64})\.pth", path.name)
    wanted = sha256 or (named[1] if named else "")
    if not digest.startswith(wanted):
        mend = "correct weights_sha256" if sha256 else "rename it, or set weights_sha256"
        raise UnusableError(
            "weights",
            f"weights {weights} are not what they claim: sha256 {digest[:16]}...,"
            f" {wanted[:16]} expected; download the file again, or {mend}",
        )
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        if isinstance(state, dict) and "state_dict" in state:
            raise ValueError("it is a checkpoint; save what its `state_dict` holds alone")
        net.load_state_dict(state)
    except Exception as error:
        # The first line of load_state_dict()'s message only counts the errors.
        message = " ".join(" ".join(str(error).splitlines()[:2]).split())
        raise UnusableError(
            "weights",
            f"weights {weights} are no state dict of torchvision's ResNet-50: {message[:200]}",
        ) from None
    verified = bool(wanted) or digest[:8] in KNOWN
    return net.eval(), {
        "weights": str(path),
        "weights_sha256": digest,
        "weights_verified": verified,
        "trained": True,
    }


TOLERANCE = {"fp32": 1e-3, "tf32": 1e-2, "bf16": 1e-1, "fp16": 2e-2}
"""Largest ||logits - reference|| / ||reference|| of an image.

It is about ten times the effect of rounding over 50 layers."""
TIE = 0.4
"""Share of the tolerance within which two of fp32's logits count as equal.

It is four times the effect of rounding."""


def compare_logits(got: torch.Tensor, wanted: torch.Tensor, precision: str) -> dict[str, Any]:
    """Return the relative error of the worst image and the agreement of the first classes.

    `ok` needs finite logits within tolerance and fp32's class. Another class also agrees if its
    fp32 logit ties with the largest (TIE): rounding may choose either.
    """
    finite = bool(torch.isfinite(got).all())
    norms = wanted.norm(dim=1)
    worst = float(((got - wanted).norm(dim=1) / norms).max()) if finite else float("inf")
    short = wanted.amax(1) - wanted.gather(1, got.argmax(1, keepdim=True))[:, 0]
    same = int((short <= TIE * TOLERANCE[precision] * norms / wanted.shape[1] ** 0.5).sum())
    return {
        "ok": finite and worst <= TOLERANCE[precision] and same == len(got),
        "error": worst if finite else None,
        "tolerance": TOLERANCE[precision],
        "finite": finite,
        "same_class": same,
        "images": len(got),
    }


def worst(comparisons: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
    """Return the check of the worst size (`batch`), with all images and the error by size."""

    def badness(size: int) -> tuple[bool, float]:
        error = comparisons[size]["error"]
        return not comparisons[size]["ok"], float("inf") if error is None else error

    size = max(comparisons, key=badness)
    return {
        **comparisons[size],
        "batch": size,
        "same_class": sum(comparison["same_class"] for comparison in comparisons.values()),
        "images": sum(comparison["images"] for comparison in comparisons.values()),
        "by_size": {size: comparison["error"] for size, comparison in comparisons.items()},
    }
