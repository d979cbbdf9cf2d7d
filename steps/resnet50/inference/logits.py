"""Compare the timed model's logits with those of fp32 eager. Only the program imports this."""

from collections.abc import Mapping
from typing import Any

import torch

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
