"""The schedule of an open loop: a constant rate, random gaps, or a profile that repeats."""

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

Arrival = Literal["constant", "poisson", "burst", "step", "ramp", "spike"]
PROFILES = {
    "step": ((0.0, 0.0), (0.25, 0.0), (0.25, 1.0), (0.75, 1.0), (0.75, 0.0), (1.0, 0.0)),
    "ramp": ((0.0, 0.0), (0.25, 0.0), (0.5, 1.0), (0.75, 0.0), (1.0, 0.0)),
    "spike": ((0.0, 0.0), (0.25, 0.0), (0.25, 1.0), (0.35, 1.0), (0.35, 0.0), (1.0, 0.0)),
}
"""Points of (share of the period, share of the way from the low rate to the rate)."""
_FLAT = ((0.0, 1.0), (1.0, 1.0))
MOST_RATE = 1e6


@dataclass(frozen=True)
class Arrivals:
    """The load of an open loop: `rate` requests a second, for a profile at its height.

    constant: even gaps. poisson: exponential gaps from `seed`. burst: those of a `period`
    (seconds) at its start.
    step, ramp and spike begin at `low` requests a second. step: `rate` from a quarter of the
    period to three quarters. ramp: up over the second quarter, down over the third. spike: `rate`
    for a tenth, from a quarter on. Raises ValueError for values that do not fit together.
    """

    rate: float
    arrival: Arrival = "constant"
    low: float = 0.0
    period: float = 60.0
    seed: int = 1

    def __post_init__(self) -> None:
        if self.arrival not in get_args(Arrival):
            raise ValueError(f"arrival {self.arrival!r} is none of {', '.join(get_args(Arrival))}")
        if not 0 < self.rate < MOST_RATE:
            raise ValueError(f"rate {self.rate:g} requests/s: must be above 0 and below 1e6")
        if self.low and self.arrival not in PROFILES:
            raise ValueError(f"arrival {self.arrival} has no low rate; {', '.join(PROFILES)} have")
        if not 0 <= self.low < self.rate:
            raise ValueError(f"low rate {self.low:g}/s: must be from 0 to below rate {self.rate:g}")
        if not 0 < self.period < math.inf:
            raise ValueError(f"period {self.period:g} s: must be above 0 and finite")
        if self.arrival == "burst" and self.rate * self.period < 1:
            raise ValueError(f"a burst of {self.rate * self.period:g} requests: raise the period")

    def rate_at(self, at: float) -> float:
        """Return requests a second at `at` seconds; of bursts the mean."""
        points = PROFILES.get(self.arrival, _FLAT)
        x = at / self.period % 1.0
        (x0, y0), (x1, y1) = next((a, b) for a, b in itertools.pairwise(points) if a[0] <= x < b[0])
        return self._between(y0 + (y1 - y0) * (x - x0) / (x1 - x0))

    def times(self) -> Iterator[float]:
        """Yield the seconds at which requests are due, without an end.

        One is due whenever the integral of the rate has grown by 1; for a Poisson process by an
        exponential draw of mean 1.
        """
        if self.arrival == "burst":
            for cycle in itertools.count():
                yield from itertools.repeat(cycle * self.period, round(self.rate * self.period))
        draw = random.Random(self.seed)
        missing = 0.0
        for start, seconds, first, last in self._segments():
            sent, slope = 0.0, (last - first) / seconds
            while sent + missing < (first + last) / 2 * seconds:
                sent += missing
                root = math.sqrt(max(0.0, first * first + 2 * slope * sent))
                yield start + (2 * sent / (first + root) if sent else 0.0)
                missing = draw.expovariate(1.0) if self.arrival == "poisson" else 1.0
            missing -= (first + last) / 2 * seconds - sent

    def _segments(self) -> Iterator[tuple[float, float, float, float]]:
        """Yield start and seconds, first and last rate of the segments, without an end."""
        points = PROFILES.get(self.arrival, _FLAT)
        for cycle in itertools.count():
            for (x0, y0), (x1, y1) in itertools.pairwise(points):
                if x1 > x0:
                    start, seconds = (cycle + x0) * self.period, (x1 - x0) * self.period
                    yield start, seconds, self._between(y0), self._between(y1)

    def _between(self, share: float) -> float:
        return self.low + (self.rate - self.low) * share
