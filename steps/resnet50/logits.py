"""Logits of the timed model held against those of fp32 eager. Imports torch: only the program does."""

from collections.abc import Mapping
from typing import Any

import torch

TOLERANCE = {"fp32": 1e-3, "tf32": 1e-2, "bf16": 1e-1, "fp16": 2e-2}
"""Largest ||logits - reference|| / ||reference|| of an image: about ten times what rounding alone gives over 50 layers."""
TIE = 0.4
"""Part of the tolerance, of one logit, within which two classes of fp32's are as good as equal: four times what rounding alone gives."""


def compare_logits(got: torch.Tensor, wanted: torch.Tensor, precision: str) -> dict[str, Any]:
    """Relative error of the worst image and agreement of the first classes; `ok` where all are finite, within tolerance and of fp32's class.

    A class of which fp32's own logit is as good as the largest (TIE) agrees too: rounding may take either.
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


def worst(found: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
    """The checks of several batch sizes as one: that of the worst size (`batch`), with the images of all and the error by size."""

    def badness(size: int) -> tuple[bool, float]:
        error = found[size]["error"]
        return not found[size]["ok"], float("inf") if error is None else error

    size = max(found, key=badness)
    return {
        **found[size],
        "batch": size,
        "same_class": sum(each["same_class"] for each in found.values()),
        "images": sum(each["images"] for each in found.values()),
        "by_size": {size: each["error"] for size, each in found.items()},
    }
