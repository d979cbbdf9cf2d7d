"""Histograms and sliding maxima of times in seconds."""

from bisect import bisect_left
from collections import deque

# Seconds: 250 us of dispatch up to an hour of transcoding, about three steps a decade.
BOUNDS = (
    0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 3600.0,
)  # fmt: skip


class Histogram:
    """Counts of seconds in fixed buckets, with their sum."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        """Count one time."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum += seconds


class WindowMax:
    """The largest value of the last `window` seconds, in slices of a tenth of it."""

    __slots__ = ("slice", "slices")

    def __init__(self, window: float) -> None:
        self.slice = window / 10
        self.slices: deque[tuple[int, float]] = deque(maxlen=10)

    def add(self, value: float, now: float) -> None:
        """Note a value at `now`, in monotonic seconds."""
        key = int(now / self.slice)
        slices = self.slices
        if slices and slices[-1][0] == key:
            if value > slices[-1][1]:
                slices[-1] = (key, value)
        else:
            slices.append((key, value))

    def read(self, now: float) -> float:
        """Return the maximum at `now` (monotonic seconds), 0 if there is no value."""
        oldest = int(now / self.slice) - 9
        return max((value for key, value in self.slices if key >= oldest), default=0.0)
