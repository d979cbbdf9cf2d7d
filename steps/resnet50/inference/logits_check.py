"""The check of logits against a reference: relative error and class of each image."""

from collections.abc import Mapping
from typing import Any

import numpy as np

TOLERANCE = {"fp32": 1e-3, "tf32": 1e-2, "bf16": 1e-1, "fp16": 2e-2}
"""Largest ||logits - reference|| / ||reference|| of an image.

It is about ten times the effect of rounding over 50 layers."""
TIE = 0.4
"""Share of the tolerance within which two of the reference's logits count as equal.

It is four times the effect of rounding."""


def compare_logits(actual: np.ndarray, expected: np.ndarray, precision: str) -> dict[str, Any]:
    """Return the relative error of the worst image and the agreement of the first classes.

    Both are (n, classes) float32. `ok` needs finite logits within tolerance and the reference's
    class. Another class also agrees if its logit there ties with the largest (TIE): rounding may
    choose either.
    """
    finite = bool(np.isfinite(actual).all())
    norms = np.linalg.norm(expected, axis=1)
    error = np.linalg.norm(actual - expected, axis=1) / norms if finite else np.array([np.inf])
    worst = float(error.max())
    short = expected.max(1) - np.take_along_axis(expected, actual.argmax(1)[:, None], 1)[:, 0]
    same = int((short <= TIE * TOLERANCE[precision] * norms / expected.shape[1] ** 0.5).sum())
    return {
        "ok": finite and worst <= TOLERANCE[precision] and same == len(actual),
        "error": worst if finite else None,
        "tolerance": TOLERANCE[precision],
        "finite": finite,
        "same_class": same,
        "images": len(actual),
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
