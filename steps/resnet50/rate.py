"""The rate of Server where none is given: the largest that holds its latency bound.

It is found by a simulation of the batcher with the times of the warm-up, and tried. Counting late
queries alone would take minutes, as LoadGen wants to be 99 % sure that 99 % of them are in time.
"""

import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

LATE = 0.001
"""Share of late queries at the largest rate: a tenth of what p99 allows, for LoadGen to be sure."""
CONFIDENT = 838
"""Fewest queries of which LoadGen takes 2 late ones (its early stopping, p99 at 99 %)."""
LONGEST = 300.0
"""Seconds that these queries may take. A lower rate is none."""
ARRIVALS = 30_000
STEPS = 2000
"""Parts of the capacity in which the largest rate is found."""
TRIALS, SLOWER = 3, 0.75
"""Trials of a rate, and the factor of the next one after a trial in which p99 was late."""


class BatchTimes(NamedTuple):
    """How long batches take, as a warm-up measured it.

    The smallest and the largest one have `samples`, and take `seconds` in the median; the time
    grows evenly between them. `spread` has single times over their median.
    """

    samples: tuple[int, int]
    seconds: tuple[float, float]
    spread: Sequence[float]

    @property
    def capacity(self) -> float:
        """Samples per second in the largest batches."""
        return self.samples[1] / self.seconds[1]


def late_share(rate: float, times: BatchTimes, spec: Mapping[str, Any], workers: int) -> float:
    """Return the share of queries that a simulation of `Batcher` answers after the bound.

    They arrive at `rate` (1/s) as a Poisson process. A worker that is free takes the oldest query,
    and waits for a full batch up to `max_delay`. The device computes one batch after the other.
    """
    generator = random.Random(0)
    arrivals = list(accumulate(generator.expovariate(rate) for _ in range(ARRIVALS)))
    medians = np.interp(range(spec["batch"] + 1), times.samples, times.seconds).tolist()
    ends = [0.0] * workers
    closed = 0.0
    first = late = 0
    while first < ARRIVALS:
        taken = max(arrivals[first], ends[-workers], closed)
        full = arrivals[min(first + spec["batch"], ARRIVALS) - 1]
        closed = max(taken, min(arrivals[first] + spec["max_delay"], full))
        last = min(bisect_right(arrivals, closed, first), first + spec["batch"])
        seconds = medians[last - first] * generator.choice(times.spread)
        ends = [*ends[1:], max(closed, ends[-1]) + seconds]
        late += bisect_left(arrivals, ends[-1] - spec["latency_bound"], first, last) - first
        first = last
    return late / ARRIVALS


def largest_rate(
    times: BatchTimes,
    spec: Mapping[str, Any],
    workers: int,
    holds: Callable[[float], bool],
) -> float:
    """Return the largest rate (1/s) that holds the bound of the spec, or 0 if none does.

    `holds` tries a rate, and returns whether p99 was in time.
    """
    step = times.capacity / STEPS
    steps = bisect_right(
        range(1, STEPS), LATE, key=lambda n: late_share(n * step, times, spec, workers)
    )
    rate = steps * step
    for _ in range(TRIALS):
        if rate < CONFIDENT / LONGEST:
            return 0.0
        if holds(rate):
            break
        rate *= SLOWER
    return rate
