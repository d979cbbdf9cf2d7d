"""Verdict on two measurements of one series from different days, against the noise between runs.

Tests within a run are misleading. With equal noise within and between runs, Welch's t at p < 0.01
calls 19 % of equal pairs different. The gate is therefore the noise floor of past run medians.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from perfdag.stats.robust import Spread, finite, middle, robust_sigma, scale_for, spread

Word = Literal["better", "worse", "differs", "no difference shown", "inconclusive"]
Better = Literal["higher", "lower", "none"]

PAST_RUNS = 15
"""Past runs that a floor needs.

With 15 runs, 0.8 % of equal pairs are called different, with 20 runs 0.4 %, with 30 runs 0.2 %.
"""
FLOORS = 4.0
"""Floors of the difference that a change must exceed."""
POWER_90 = 1.2816
"""Phi^-1(0.9): added to the gate, it gives the effect found nine times in ten."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Side A of a series against side B.

    Medians are in the unit of the values, everything else relative (0.1 is +10 %) or absolute.
    `effect` is B against A, and `low` and `high` its 95 % interval, None where the floor is
    unknown. `floor` is the noise of one run. `gate` is the smallest effect that counts as a change.
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
    floor: float | None
    gate: float | None
    detectable: float | None
    low: float | None
    high: float | None
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
) -> Verdict:
    """Compare two sides of one series.

    `a` and `b` are the repetitions of one run, or the run medians of `runs_a` and `runs_b` runs.
    `past` has the medians of earlier runs without the two sides. `min_effect` is relative, with
    `absolute` in the unit of the metric. Raises ValueError where a side has no finite value.
    """
    side_a, side_b, history = finite(a), finite(b), finite(past)
    if not side_a.size or not side_b.size:
        raise ValueError("a side of the comparison has no value")
    scale = scale_for(np.concatenate([side_a, side_b, history]), absolute)
    middle_a, middle_b = middle(side_a), middle(side_b)
    difference = float(np.subtract(*scale.apply([middle_b, middle_a])))
    known = history.size >= PAST_RUNS
    floor = robust_sigma(scale.apply(history)) if known else None
    error = math.sqrt(_variance(runs_a) + _variance(runs_b))
    gate = detectable = low = high = None
    if floor is not None:
        low, high = (scale.effect(difference + sign * 1.96 * floor * error) for sign in (-1, 1))
        gate = max(scale.gate(min_effect), FLOORS * floor * error)
        detectable = gate + POWER_90 * floor * error
    word, why = _word(
        difference, scale.gate(min_effect), gate, floor, error, better, history.size, runs_a, runs_b
    )
    return Verdict(
        word=word,
        why=why,
        a=middle_a,
        b=middle_b,
        spread_a=spread(side_a),
        spread_b=spread(side_b),
        effect=scale.effect(difference),
        floor=floor,
        gate=None if gate is None else scale.effect(gate),
        detectable=None if detectable is None else scale.effect(detectable),
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
    gate: float | None,
    floor: float | None,
    error: float,
    better: str,
    past: int,
    runs_a: int,
    runs_b: int,
) -> tuple[Word, str]:
    """Return the verdict and its reason. All numbers are on the scale of the analysis."""
    if gate is None or floor is None:
        missing = PAST_RUNS - past
        return (
            "inconclusive",
            f"noise floor unknown: {missing} more past runs (has {past} of {PAST_RUNS}), "
            "or `perfdag ab`",
        )
    if abs(difference) > gate:
        return side(difference, better), "beyond the gate"
    noisy = gate > smallest
    if not noisy or abs(difference) <= smallest:
        return (
            "no difference shown",
            "within the gate" if noisy else "within the smallest effect that counts",
        )
    # Runs per side at which the gate would be the measured difference.
    runs = math.ceil(math.pi * (FLOORS * floor / abs(difference)) ** 2)
    if runs <= max(runs_a, runs_b):
        runs = max(runs_a, runs_b) + 1
    return (
        "inconclusive",
        f"within the noise between runs: about {runs} runs a side would show it, or `perfdag ab`",
    )
