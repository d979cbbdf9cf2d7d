"""Warm every batch size of a system before it is measured, and learn its rate."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfdag.steps.resnet50.system import OutOfMemoryError, System, classify

WINDOW = 5
WINDOWS = 3
TOLERANCE = 0.1
"""The warm-up ends when three windows of five batches have medians within 10 %.

The rule is perf_analyzer's. Windows are shorter if five batches would not fit three times."""
STRETCH = 16
"""Batches to wait for when they exceed the limit: three windows of five, and one."""
WARM_LIMIT, WARM_LIMIT_FAST = 60.0, 2.0
WARM_LEAST_CUDA = 1.0
"""Seconds that a GPU stays busy before its rate counts: its clocks rise meanwhile."""


@dataclass(frozen=True)
class Warmup:
    """A warm-up in seconds: `first` batch, and `steady` median of the last window.

    The first batch includes lazy initialisation, compilation and tuning. `few` means that there
    were not three windows to compare.
    """

    first: float
    steady: float
    batches: int
    stable: bool
    few: bool = False


def warm_up(
    call: Callable[[], object],
    limit: float,
    clock: Callable[[], float] = time.perf_counter,
    stretch: int = STRETCH,
    least: float = 0.0,
) -> Warmup:
    """Call until three windows of five agree within 10 %.

    It takes between `least` and `limit` seconds after the first call. If `stretch` times the
    second call is more than the limit, that is the limit. At the limit it is not stable.
    """

    def timed() -> float:
        start = clock()
        call()
        return clock() - start

    first = timed()
    begun, seconds = clock(), [timed()]
    medians: list[float] = []
    window = max(1, min(WINDOW, int(limit / (WINDOWS * max(seconds[0], 1e-9)))))
    limit = max(limit, stretch * seconds[0])
    while True:
        while len(seconds) < window * (len(medians) + 1) and clock() - begun <= limit:
            seconds.append(timed())
        medians.append(statistics.median(seconds[-window:]))
        last = medians[-WINDOWS:]
        stable = len(last) == WINDOWS and max(last) <= (1 + TOLERANCE) * min(last)
        if (stable and clock() - begun >= least) or clock() - begun > limit:
            return Warmup(first, medians[-1], 1 + len(seconds), stable, len(last) < WINDOWS)


def largest_fitting(fits: Callable[[int], bool], failing: int) -> int:
    """Return the largest batch below `failing` for which `fits` holds, by bisection; 0 if none."""
    low, high = 0, failing
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


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
