"""Paired comparison of two variants measured in blocks: exact sign-flip test and interval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from perfdag.stats.robust import FEWEST_BLOCKS, MOST_BLOCKS, Spread, spread
from perfdag.stats.scale import Array, Word, finite, scale_for, side_word

P_VALUE = 0.01
FALSE_DISCOVERIES = 0.05
COVERAGE = 0.95
"""Least probability with which an interval has the true median, over all looks at the blocks."""
LOOKS = (10, 20, MOST_BLOCKS)
"""Blocks after which a duet that ends once it is decided is looked at."""


def sign_flip_p(differences: ArrayLike) -> float:
    """Return the exact two-sided p-value of the sign-flip test (Fisher randomisation).

    All 2**n assignments of signs are counted, by halves: the sums of one half are sorted, and those
    of the other are looked up in them. Without any difference p is 1. Raises ValueError above 40
    blocks.
    """
    d = finite(differences)
    n = int(d.size)
    if n > MOST_BLOCKS:
        raise ValueError(
            f"{n} blocks: the exact test counts 2**n assignments and takes at most {MOST_BLOCKS}"
        )
    observed = abs(float(d.sum()))
    if n == 0 or not d.any():
        return 1.0
    bar = observed - 1e-9 * float(np.abs(d).sum())
    left, right = np.sort(_signed_sums(d[: n // 2])), _signed_sums(d[n // 2 :])
    above = left.size - np.searchsorted(left, bar - right, side="left")
    below = np.searchsorted(left, -bar - right, side="right")
    return min(1.0, float((above + below).sum()) / 2.0**n)


def _signed_sums(d: Array) -> Array:
    """Return the sums of all assignments of signs, length 2**len(d)."""
    sums = np.zeros(1)
    for difference in d:
        sums = np.concatenate([sums + difference, sums - difference])
    return sums


@dataclass(frozen=True, slots=True)
class Paired:
    """B against A over blocks. Effect and interval are relative (0.1: +10 %) or absolute.

    `b` is `a` with the effect, so it is not the median of B: the pairs say more than that. `word`
    and `why` are the verdict after the correction for many series.
    """

    effect: float
    interval: Spread
    p: float
    blocks: int
    a: float
    b: float
    min_effect: float
    better: str
    absolute: bool = False
    word: Word = "unclear"
    why: str = ""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of B over A against a limit. `word` is within, beyond or unclear.

    `share` and its interval are shares of A: 0.03 is 3 % more time for the same work. With `points`
    they are shares of the whole: 0.03 is 3 points. They are NaN where A has nothing to take a share
    of.
    """

    limit: float
    share: float
    low: float
    high: float
    word: str
    why: str
    points: bool = False


def paired(
    a: ArrayLike,
    b: ArrayLike,
    *,
    better: str,
    min_effect: float = 0.05,
    absolute: bool = False,
    looks: int = 1,
) -> Paired:
    """Compare blocks: `a[i]` and `b[i]` are the medians of variant A and B in block i, shape (n,).

    The interval holds over so many `looks` at a growing number of blocks (Bonferroni). Blocks where
    a side is not finite are dropped. Raises ValueError where the lengths differ or nothing is left.
    """
    left, right = np.asarray(a, dtype=np.float64).ravel(), np.asarray(b, dtype=np.float64).ravel()
    if left.size != right.size:
        raise ValueError(f"{left.size} blocks of A and {right.size} of B")
    both = np.isfinite(left) & np.isfinite(right)
    left, right = left[both], right[both]
    if not left.size:
        raise ValueError("no block has a value on both sides")
    scale = scale_for(np.concatenate([left, right]), absolute)
    level = float(np.median(left))
    if scale.kind == "relative" and level > 0:
        scale = replace(scale, unit=level)  # effects are shares of A
    d = scale.apply(right) - scale.apply(left)
    band = spread(d, 1 - (1 - COVERAGE) / looks)
    effect, low, high = map(scale.effect, (band.middle, band.low, band.high))
    moved = level + effect if scale.kind == "absolute" else level * (1 + effect)
    return Paired(
        effect=effect,
        interval=replace(band, middle=effect, low=low, high=high),
        p=sign_flip_p(d),
        blocks=int(d.size),
        a=level,
        b=moved if level > 0 or scale.kind == "absolute" else float(np.median(right)),
        min_effect=min_effect,
        better=better,
        absolute=absolute,
    )


def within_limit(r: Paired, limit: float) -> Cost | None:
    """Compare the cost of B with `limit`, a share of A. Return None where no direction is worse.

    B is within where the whole interval is below the limit, and beyond where it is above. An
    absolute result must be a fraction from 0 to 1, and its limit is in points.
    """
    if r.better not in ("higher", "lower"):
        return None
    cost = _cost(r, r.effect)
    low, high = sorted(_cost(r, effect) for effect in (r.interval.low, r.interval.high))
    if r.a <= 0 and not r.absolute and (low, high) != (0, 0):
        why = f"A's median is {r.a:g}: there is no share of it"
        return Cost(limit, math.nan, math.nan, math.nan, "unclear", why)
    word, why = "unclear", f"{r.blocks} blocks allow no interval"
    if r.interval.kind == "interval" and (high < limit or low > limit):
        word, why = "within" if high < limit else "beyond", f"{r.blocks} blocks"
    elif r.interval.kind == "interval":
        # The interval has no end where B has a value of zero.
        why = _remedy(r.blocks, (high - low) / 2 / abs(limit - cost) if cost != limit else math.inf)
    return Cost(limit, cost, low, high, word, why, r.absolute)


def _remedy(blocks: int, width: float) -> str:
    """Return what would decide, if the half width is now `width` times the wanted one.

    It shrinks with the root of the blocks.
    """
    needed = max(blocks + 2, blocks * width**2)
    if needed > MOST_BLOCKS:
        return f"not even {MOST_BLOCKS} blocks would tell: stop other work, or measure longer"
    return f"--blocks {math.ceil(needed)} would tell"


def _cost(r: Paired, effect: float) -> float:
    if r.better == "lower" or r.absolute:
        return effect if r.better == "lower" else -effect
    return 1 / (1 + effect) - 1 if effect > -1 else math.inf


def benjamini_hochberg(p_values: Sequence[float]) -> list[bool]:
    """Return which hypotheses are rejected at FALSE_DISCOVERIES (Benjamini, Hochberg 1995)."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    last = max(
        (
            rank
            for rank, i in enumerate(order, 1)
            if p_values[i] <= FALSE_DISCOVERIES * rank / len(order)
        ),
        default=0,
    )
    rejected = set(order[:last])
    return [i in rejected for i in range(len(p_values))]


def judge(results: Sequence[Paired], looks: int = 1) -> list[Paired]:
    """Return the results with their verdicts.

    A difference is shown where p <= 1 % over all `looks`, the effect reaches min_effect and it
    survives the correction for many series.
    """
    significant = benjamini_hochberg([r.p for r in results])
    limit = P_VALUE / looks
    return [_judged(r, survives, limit) for r, survives in zip(results, significant, strict=True)]


def _judged(r: Paired, survives: bool, limit: float) -> Paired:
    if r.blocks < FEWEST_BLOCKS:
        why = f"{r.blocks} blocks: an exact p of 1 % needs at least {FEWEST_BLOCKS}"
        return replace(r, why=why)
    significant = r.p <= limit and survives
    if significant and abs(r.effect) >= r.min_effect:
        why = f"p = {r.p:.2g}, {r.blocks} blocks"
        return replace(r, word=side_word(r.effect, r.better), why=why)
    if -r.min_effect < r.interval.low and r.interval.high < r.min_effect:
        real = "a real effect, but below the smallest that counts"
        within_it = "the interval lies within the smallest effect"
        return replace(r, word="same", why=real if significant else within_it)
    # A half width of min_effect / 2 separates zero from min_effect.
    width = (r.interval.high - r.interval.low) / r.min_effect
    return replace(r, why=f"p = {r.p:.2g}; {_remedy(r.blocks, width)}")
