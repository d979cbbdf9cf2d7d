"""The frame of the measured time: a stable warm-up, a check of the clock, the largest batch."""

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
HONEST = 0.95
"""Share of the device's time that the host's clock must cover; the rest is resolution."""


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


@dataclass(frozen=True)
class ClockCheck:
    """Seconds of the same calls by the clocks of host and device."""

    host: float
    device: float

    @property
    def honest(self) -> bool:
        """Whether the host's clock ran until the device was done."""
        return self.host >= HONEST * self.device

    def text(self) -> str:
        """Return the finding as a text for a row's error."""
        host, device = self.host * 1e3, self.device * 1e3
        return (
            f"the clock stopped before the device was done: {host:.3g} ms on the host,"
            f" {device:.3g} ms of work on the device"
        )


def check_clock(
    call: Callable[[], object], busy: Callable[[], float], calls: int = 5
) -> ClockCheck:
    """Time calls as the measurement does, and compare with the device's own time.

    `busy()` waits for the device and returns its seconds of work for the last call (CUDA:
    synchronised events around the work). A call that returns too early, without synchronisation,
    shows as a host time below the device's.
    """
    host = device = 0.0
    for _ in range(calls):
        start = time.perf_counter()
        call()
        host += time.perf_counter() - start
        device += busy()
    return ClockCheck(host, device)


def largest_fitting(fits: Callable[[int], bool], failing: int) -> int:
    """Return the largest batch below `failing` for which `fits` holds, by bisection; 0 if none."""
    low, high = 0, failing
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
