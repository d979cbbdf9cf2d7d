"""What surrounds the measured time: warm-up until stable, the self-check of the clock, the largest batch that fits."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

WINDOW = 5
WINDOWS = 3
TOLERANCE = 0.1
"""Warm when three windows of five batches have medians within 10 % (the rule of perf_analyzer); windows are shorter where five batches
would not fit three times."""
STRETCH = 16
"""Batches that are waited for where they take longer than the limit: three windows of five, and one."""
HONEST = 0.95
"""Part of the device's time that the host's clock must cover; the rest is the resolution of both."""


@dataclass(frozen=True)
class Warmup:
    """Seconds: `first` batch (lazy initialisation, compilation, tuning), `steady` median of the last window. `few`: there were not three
    windows to compare."""

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
    """Call until three windows of five agree within 10 %, at least `least` and at most `limit` seconds after the first call, or `stretch` times
    what the second took where that is more (then not stable)."""

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
    """Host's and device's seconds of the same calls."""

    host: float
    device: float

    @property
    def honest(self) -> bool:
        """Whether the host's clock ran until the device was done."""
        return self.host >= HONEST * self.device

    def words(self) -> str:
        """What the check found, for a row's error."""
        host, device = self.host * 1e3, self.device * 1e3
        return f"the clock stopped before the device was done: {host:.3g} ms on the host, {device:.3g} ms of work on the device"


def check_clock(
    call: Callable[[], object], busy: Callable[[], float], calls: int = 5
) -> ClockCheck:
    """Time calls as the measurement does and hold that against the device's own time.

    `busy()` waits for the device and returns its seconds of work for the last call (CUDA: events around the work, synchronised).
    A call that returns before the device is done, for want of a synchronisation, shows as a host time below the device's.
    """
    host = device = 0.0
    for _ in range(calls):
        start = time.perf_counter()
        call()
        host += time.perf_counter() - start
        device += busy()
    return ClockCheck(host, device)


def largest_fitting(fits: Callable[[int], bool], failing: int) -> int:
    """The largest batch below `failing` for which `fits` holds, by bisection; 0 where not even 1 does."""
    low, high = 0, failing
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
