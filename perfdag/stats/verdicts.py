"""Verdict on two measurements of one series from different days, against the noise between runs.

Tests within a run are misleading. With equal noise within and between runs, Welch's t at p < 0.01
calls 19 % of equal pairs different. The gate is therefore the noise of run medians: that of the
series where it has enough past runs, otherwise that of similar series, otherwise an assumption.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from perfdag.stats.robust import (
    Array,
    Spread,
    finite,
    middle,
    robust_sigma,
    scale_for,
    spread,
)
from perfdag.stats.student import student_t

Word = Literal["better", "worse", "differs", "no difference shown", "inconclusive"]
Better = Literal["higher", "lower", "none"]

PAST_RUNS = 15
"""Runs of a series from which its own noise is its floor.

With 15 runs, 0.8 % of equal pairs are called different, with 20 runs 0.4 %, with 30 runs 0.2 %.
"""
FLOORS = 4.0
"""Floors of the difference that a change must exceed, where the series has its own floor."""
FREEDOM = 10
"""Degrees of freedom from which the pooled noise of similar series is used."""
ALPHA = 0.005
"""Chance that equal pairs exceed the gate of a pooled noise (two-sided, Student's t)."""
SIMILAR = 2.0
"""A series whose noise exceeds this multiple of the pooled noise counts its own."""
DEFAULT_NOISE, DEFAULT_FLOORS = 0.2, 3.0
"""Noise of one run that is assumed without pooled noise, and the floors of that."""
POWER_90 = 1.2816
"""Phi^-1(0.9): added to the gate, it gives the effect found nine times in ten."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Noise of one run from several series: standard deviation and degrees of freedom."""

    sigma: float
    freedom: int
    series: int


def pool(series: Iterable[Array]) -> Pool:
    """Pool the variance of run medians around the mean of each series, on the scale of analysis."""
    known = [x for x in series if x.size > 1]
    freedom = sum(x.size - 1 for x in known)
    total = sum(float(((x - x.mean()) ** 2).sum()) for x in known)
    return Pool(math.sqrt(total / freedom) if freedom else 0.0, freedom, len(known))


@dataclass(frozen=True, slots=True)
class Noise:
    """Noise of one run, the floors that a change must exceed, and where the noise comes from.

    `reach` is half the width of a 95 % interval in standard deviations.
    """

    sigma: float
    floors: float
    reach: float
    source: str


def noise_of(past: Array, similar: Pool, assumed: float) -> Noise:
    """Return the noise of a series from its own past, similar series, or an assumption."""
    own = float(past.std(ddof=1)) if past.size > 1 else 0.0
    if past.size >= PAST_RUNS:
        return Noise(robust_sigma(past), FLOORS, 1.96, f"of {past.size} past runs")
    if similar.freedom < FREEDOM:
        return Noise(max(assumed, own), DEFAULT_FLOORS, 1.96, "assumed")
    floors, reach = (student_t(1 - alpha / 2, similar.freedom) for alpha in (ALPHA, 0.05))
    if own > SIMILAR * similar.sigma:
        return Noise(own, floors, reach, "of few past runs, noisier than similar series")
    source = f"pooled over {similar.series} series, {similar.freedom} degrees of freedom"
    return Noise(similar.sigma, floors, reach, source)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Side A of a series against side B.

    Medians are in the unit of the values, everything else relative (0.1 is +10 %) or absolute.
    `effect` is B against A, and `low` and `high` its 95 % interval. `floor` is the noise of one run
    and `source` where it comes from. `gate` is the smallest effect that counts as a change.
    `detectable` is the effect found in nine of ten comparisons. `why` is one sentence, and for
    "inconclusive" it says what a verdict needs.
    """

    word: Word
    why: str
    a: float
    b: float
    spread_a: Spread
    spread_b: Spread
    effect: float
    floor: float
    source: str
    gate: float
    detectable: float
    low: float
    high: float
    absolute: bool = False


def compare(
    a: ArrayLike,
    b: ArrayLike,
    past: ArrayLike,
    *,
    better: str,
    min_effect: float = 0.05,
    absolute: bool = False,
    runs_a: int = 1,
    runs_b: int = 1,
    similar: Pool | None = None,
    assumed: float = DEFAULT_NOISE,
) -> Verdict:
    """Compare two sides of one series.

    `a` and `b` are the repetitions of one run, or the run medians of `runs_a` and `runs_b` runs.
    `past` has the run medians of the series, with those of A and without those of B. `similar` is
    the pooled noise of series like it, by default that of the series alone, and `assumed` the noise
    of one run where that has too few degrees of freedom. `min_effect` is relative, with `absolute`
    in the unit of the metric. Raises ValueError where a side has no finite value.
    """
    side_a, side_b, history = finite(a), finite(b), finite(past)
    if not side_a.size or not side_b.size:
        raise ValueError("a side of the comparison has no value")
    scale = scale_for(np.concatenate([side_a, side_b, history]), absolute)
    middle_a, middle_b = middle(side_a), middle(side_b)
    difference = float(np.subtract(*scale.apply([middle_b, middle_a])))
    if runs_a == 1 and side_a.size > 1:  # A's own repetitions bound the noise from below
        repetitions = float(scale.apply(side_a).std(ddof=1))
        assumed = max(assumed, repetitions * math.sqrt(math.pi / 2 / side_a.size))
    x = scale.apply(history)
    noise = noise_of(x, similar or pool([x]), assumed)
    error = noise.sigma * math.sqrt(_variance(runs_a) + _variance(runs_b))
    gate = max(scale.gate(min_effect), noise.floors * error)
    low, high = (scale.effect(difference + sign * noise.reach * error) for sign in (-1, 1))
    word, why = _word(difference, scale.gate(min_effect), gate, noise, better, runs_a, runs_b)
    return Verdict(
        word=word,
        why=why,
        a=middle_a,
        b=middle_b,
        spread_a=spread(side_a),
        spread_b=spread(side_b),
        effect=scale.effect(difference),
        floor=noise.sigma,
        source=noise.source,
        gate=scale.effect(gate),
        detectable=scale.effect(gate + POWER_90 * error),
        low=low,
        high=high,
        absolute=absolute,
    )


def _variance(runs: int) -> float:
    """Return the variance of the median of `runs` run medians: pi / 2n from three runs on.

    The unit is the variance of one run median.
    """
    return 1.0 / runs if runs < 3 else math.pi / (2 * runs)


def side(difference: float, better: str) -> Word:
    """Return the direction of a difference as a verdict."""
    if better not in ("higher", "lower"):
        return "differs"
    return "better" if (difference > 0) == (better == "higher") else "worse"


def _word(
    difference: float,
    smallest: float,
    gate: float,
    noise: Noise,
    better: str,
    runs_a: int,
    runs_b: int,
) -> tuple[Word, str]:
    """Return the verdict and its reason. All numbers are on the scale of the analysis."""
    source = f"noise {noise.source}"
    if abs(difference) > gate:
        return side(difference, better), f"beyond the gate, {source}"
    if abs(difference) <= smallest:
        return "no difference shown", f"within the smallest effect that counts, {source}"
    # Runs per side at which the gate would be the measured difference.
    runs = math.ceil(math.pi * (noise.floors * noise.sigma / abs(difference)) ** 2)
    runs = max(runs, runs_a + 1, runs_b + 1)
    more = f"about {runs} runs a side would show it, or `perfdag ab`"
    if noise.source == "assumed":
        more = "more past runs would measure it, or `perfdag ab`"
    return "inconclusive", f"within the noise between runs ({source}): {more}"
