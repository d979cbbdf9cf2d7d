"""Warm every batch size of a system before it is measured, and learn its rate."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from perfdag.steps.resnet50.errors import OutOfMemoryError, classify
from perfdag.steps.resnet50.inference.system_under_test import System
from perfdag.steps.resnet50.inference.timing import STRETCH, Warmup, largest_fitting, warm_up

WARM_LIMIT, WARM_LIMIT_FAST = 60.0, 2.0
WARM_LEAST_CUDA = 1.0
"""Seconds that a GPU stays busy before its rate counts: its clocks rise meanwhile."""


def warm_all(spec: Mapping[str, Any], system: System, woken: float) -> tuple[float, dict[str, Any]]:
    """Warm every batch size; return the rate (1/s) of the largest, and the facts of the warm-up.

    `woken` is the seconds of a batch before the first.
    """
    largest, warmups = spec["batch"], {}
    sizes = sorted({*system.buckets(largest), largest}, reverse=True)
    for size in sizes:
        warmups[size] = _warm_size(spec, system, size, settle=size in (sizes[0], sizes[-1]))
    ends = [warmups[sizes[0]], warmups[sizes[-1]]]
    facts = {
        "first": woken + warmups[largest].first,
        "steady": warmups[largest].steady,
        "stable": all(warmup.stable for warmup in ends),
        "few": any(warmup.few for warmup in ends),
        "batches": sum(warmup.batches for warmup in warmups.values()),
        "by_size": {size: [warmup.first, warmup.steady] for size, warmup in warmups.items()},
    }
    return largest / max(warmups[largest].steady, 1e-6), facts


def _warm_size(spec: Mapping[str, Any], system: System, size: int, settle: bool) -> Warmup:
    """Warm one size until its time is stable, or for two batches."""
    indices = np.arange(size) % spec["samples"]
    fast = spec["fast"]
    limit, stretch = (
        (WARM_LIMIT_FAST if fast else WARM_LIMIT, 0 if fast else STRETCH) if settle else (0.0, 0)
    )
    least = WARM_LEAST_CUDA if settle and not fast and spec["device"] == "cuda" else 0.0
    try:
        return warm_up(
            lambda: system.infer(indices, time.monotonic()), limit, stretch=stretch, least=least
        )
    except Exception as error:
        if classify(error)[0] != "memory":
            raise
        text = str(error).splitlines()[0][:200]
    largest = largest_fitting(lambda count: _fits(system, count), size)
    advice = f"the largest that fits is {largest}" if largest else "not even one sample fits"
    raise OutOfMemoryError(
        f"batch {size} does not fit in the memory of {spec['device']}: {advice} ({text})"
    )


def _fits(system: System, count: int) -> bool:
    try:
        system.attempt(count)
    except Exception as error:
        if classify(error)[0] == "memory":
            return False
        raise
    return True
