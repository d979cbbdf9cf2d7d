"""Images for any runtime: seeded, and MLPerf's preprocessing, as numpy arrays."""

from collections.abc import Sequence

import numpy as np

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


def preprocess(raw: np.ndarray) -> np.ndarray:
    """Normalise (n, 224, 224, 3) uint8 pixels to (n, 3, 224, 224) float32.

    The result is a view whose channels lie together in memory, as convolutions like it.
    """
    pixels = raw.astype(np.float32) / np.float32(255)
    pixels -= np.array(MEAN, np.float32)
    pixels /= np.array(STD, np.float32)
    return pixels.transpose(0, 3, 1, 2)
