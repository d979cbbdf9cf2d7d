"""Scores of an autoscaler: reaction time, overshoot, oscillation and wasted pod-seconds of a trace.

A trace is a series of samples: the time, the replicas that the load needs, and the replicas that
run.
The need is the rate times the seconds of an item, rounded up (Little's law).
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Sample:
    """At `at` seconds, the load needed `needed` replicas and `have` ran.

    `depth`: requests that waited. `wait`: the age of the oldest of them in seconds. Both are
    None if unknown.
    """

    at: float
    needed: int
    have: int
    depth: int | None = None
    wait: float | None = None


@dataclass(frozen=True)
class Score:
    """Scores of a trace. Times are in seconds, `wasted` and `missing` in pod-seconds.

    `reaction`: from the first rise of the need until its peak is covered; None if it never is.
    `release`: from the last fall of the need until the replicas have fallen to it; None if they
    never do.
    `overshoot`: replicas beyond the peak, as a share of it.
    `oscillations`: changes of direction of the replicas beyond those of the need.
    """

    reaction: float | None
    release: float | None
    overshoot: float
    oscillations: int
    wasted: float
    missing: float


def score(trace: Sequence[Sample]) -> Score:
    """Score a trace; a sample holds until the next.

    Raises ValueError for under two samples or disorder.
    """
    if len(trace) < 2 or any(b.at < a.at for a, b in itertools.pairwise(trace)):
        raise ValueError("a trace needs at least two samples in order of time")
    peak = max(sample.needed for sample in trace)
    most = max(sample.have for sample in trace)
    wasted = missing = 0.0
    for current, following in itertools.pairwise(trace):
        over = (current.have - current.needed) * (following.at - current.at)
        wasted += max(0.0, over)
        missing += max(0.0, -over)
    turns = _turns([s.have for s in trace]) - _turns([s.needed for s in trace])
    overshoot = max(0.0, most / peak - 1) if peak else 0.0
    return Score(_reaction(trace, peak), _release(trace), overshoot, max(0, turns), wasted, missing)


def _reaction(trace: Sequence[Sample], peak: int) -> float | None:
    rise = next((s.at for s in trace if s.needed > trace[0].needed), None)
    if rise is None:
        return None
    return next((s.at - rise for s in trace if s.at >= rise and s.have >= peak), None)


def _release(trace: Sequence[Sample]) -> float | None:
    falls = [b.at for a, b in itertools.pairwise(trace) if b.needed < a.needed]
    if not falls:
        return None
    return next(
        (s.at - falls[-1] for s in trace if s.at >= falls[-1] and s.have <= trace[-1].needed), None
    )


def _turns(values: Sequence[int]) -> int:
    steps = [b - a for a, b in itertools.pairwise(values) if b != a]
    return sum((a > 0) != (b > 0) for a, b in itertools.pairwise(steps))


def needed(rate: float, item_seconds: float) -> int:
    """Return the replicas that keep up with `rate` requests a second."""
    return max(1, math.ceil(rate * item_seconds - 1e-9))


@dataclass
class HpaModel:
    """A model of the HorizontalPodAutoscaler's algorithm, for runs without a cluster.

    It brings `metric / replicas` to `target` (AverageValue), unless within `tolerance`
    (relative).
    Scaling in takes the largest result of the last `window` seconds.
    Scaling out at most doubles, or adds 4 replicas, in `period` seconds.
    Source: Kubernetes documentation, Horizontal Pod Autoscaling, "Algorithm details" and
    "behavior".
    """

    target: float
    least: int = 1
    most: int = 64
    tolerance: float = 0.1
    window: float = 10.0
    period: float = 5.0
    past: list[tuple[float, int]] = field(default_factory=list)
    grown: list[tuple[float, int]] = field(default_factory=list)

    def desired(self, now: float, metric: float, replicas: int) -> int:
        """Return the desired replicas; `metric` is the total of the queue, `now` in seconds."""
        ratio = metric / (self.target * max(1, replicas))
        wanted = (
            replicas if abs(ratio - 1) <= self.tolerance else math.ceil(metric / self.target - 1e-9)
        )
        self.past = [(at, value) for at, value in self.past if at > now - self.window] + [
            (now, wanted)
        ]
        if wanted < replicas:
            wanted = min(replicas, max(value for _, value in self.past))
        elif wanted > replicas:
            self.grown = [(at, value) for at, value in self.grown if at > now - self.period]
            base = replicas - sum(value for _, value in self.grown)
            wanted = min(wanted, max(2 * base, base + 4))
        wanted = max(self.least, min(self.most, wanted))
        if wanted > replicas:
            self.grown.append((now, wanted - replicas))
        return wanted
