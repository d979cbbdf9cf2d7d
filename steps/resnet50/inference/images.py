"""Images for any runtime: seeded or from files, and MLPerf's preprocessing, as numpy arrays."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from perfdag.steps.resnet50.errors import UnusableError

IMAGE = (224, 224, 3)
CHECKED = 4
"""Images on which logits are checked; a larger batch repeats them and compares each place."""
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and deviation of ImageNet's channels (torchvision.models.ResNet50_Weights)."""


def images(seed: int, indices: Sequence[int]) -> np.ndarray:
    """Return seeded images (n, 224, 224, 3), uint8; image i is the same on any machine (PCG64)."""
    sample = [
        np.random.Generator(np.random.PCG64([seed, index])).integers(0, 256, IMAGE, dtype=np.uint8)
        for index in indices
    ]
    return np.stack(sample)


def preprocess(raw: np.ndarray) -> np.ndarray:
    """Normalise (n, 224, 224, 3) uint8 pixels to (n, 3, 224, 224) float32.

    The result is a view whose channels lie together in memory, as convolutions like it.
    """
    pixels = raw.astype(np.float32) / np.float32(255)
    pixels -= np.array(MEAN, np.float32)
    pixels /= np.array(STD, np.float32)
    return pixels.transpose(0, 3, 1, 2)


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
