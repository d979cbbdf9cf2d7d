"""The frame of the measured time: a stable warm-up, the largest batch."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

WINDOW = 5
WINDOWS = 3
TOLERANCE = 0.1
"""The warm-up ends when three windows of five batches have medians within 10 %.

The rule is perf_analyzer's. Windows are shorter if five batches would not fit three times."""
STRETCH = 16
"""Batches to wait for when they exceed the limit: three windows of five, and one."""


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
