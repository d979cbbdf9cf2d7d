"""Paired comparison of two variants measured in blocks: exact sign-flip test and interval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from perfdag.stats.robust import FEWEST_BLOCKS, MOST_BLOCKS, Spread, spread
from perfdag.stats.scale import Array, VerdictKind, finite, kind_of_change, middle, scale_for

P_VALUE = 0.01
FALSE_DISCOVERIES = 0.05
COVERAGE = 0.95
"""Least probability with which an interval has the true median, over all looks at the blocks."""
LOOKS = (10, 20, MOST_BLOCKS)
"""Blocks after which a duet that ends once it is decided is looked at."""


def sign_flip_p(differences: ArrayLike) -> float:
    """Return the exact two-sided p-value of the sign-flip test (Fisher randomisation).

    All 2**n assignments of signs are counted, by halves: the sums of one half are sorted, and those
    of the other are looked up in them. Without any difference p is 1. Above MOST_BLOCKS it would
    need too much memory.
    """
    d = finite(differences)
    if not d.any():
        return 1.0
    n = int(d.size)
    observed = abs(float(d.sum())) - 1e-9 * float(np.abs(d).sum())  # sums are rounded
    first_half = np.sort(_signed_sums(d[: n // 2]))
    second_half = _signed_sums(d[n // 2 :])
    above = first_half.size - np.searchsorted(first_half, observed - second_half, side="left")
    below = np.searchsorted(first_half, -observed - second_half, side="right")
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

    `b` is `a` with the effect, so it is not the median of B: the pairs say more than that. `kind`
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
    kind: VerdictKind = "unclear"
    why: str = ""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of B over A against a limit. `kind` is within, beyond or unclear.

    `share` and its interval are shares of A: 0.03 is 3 % more time for the same work. With `points`
    they are shares of the whole: 0.03 is 3 points. They are NaN where A has nothing to take a share
    of.
    """

    limit: float
    share: float
    low: float
    high: float
    kind: str
    why: str
    points: bool = False


def paired(
    a: Array,
    b: Array,
    *,
    better: str,
    min_effect: float = 0.05,
    absolute: bool = False,
    looks: int = 1,
) -> Paired:
    """Compare blocks: `a[i]` and `b[i]` are the medians of variant A and B in block i, shape (n,).

    The interval holds over so many `looks` at a growing number of blocks (Bonferroni). Blocks where
    a side is not finite are dropped; at least one must be left.
    """
    both = np.isfinite(a) & np.isfinite(b)
    values_a = a[both]
    values_b = b[both]
    scale = scale_for(np.concatenate([values_a, values_b]), absolute)
    level = middle(values_a)
    if scale.kind == "relative" and level > 0:
        scale = replace(scale, unit=level)  # effects are shares of A
    differences = scale.apply(values_b) - scale.apply(values_a)
    band = spread(differences, 1 - (1 - COVERAGE) / looks)
    effect, low, high = map(scale.effect, (band.middle, band.low, band.high))
    moved = middle(values_b)
    if scale.kind == "absolute":
        moved = level + effect
    elif level > 0:
        moved = level * (1 + effect)
    return Paired(
        effect=effect,
        interval=replace(band, middle=effect, low=low, high=high),
        p=sign_flip_p(differences),
        blocks=int(differences.size),
        a=level,
        b=moved,
        min_effect=min_effect,
        better=better,
        absolute=absolute,
    )


def within_limit(pair: Paired, limit: float) -> Cost | None:
    """Compare the cost of B with `limit`, a share of A. Return None where no direction is worse.

    B is within where the whole interval is below the limit, and beyond where it is above. An
    absolute result must be a fraction from 0 to 1, and its limit is in points.
    """
    if pair.better not in ("higher", "lower"):
        return None
    share = _cost(pair, pair.effect)
    low, high = sorted(_cost(pair, effect) for effect in (pair.interval.low, pair.interval.high))
    cost = Cost(limit, share, low, high, "unclear", f"{pair.blocks} blocks", pair.absolute)
    if pair.a <= 0 and not pair.absolute and (low, high) != (0, 0):
        reason = f"A's median is {pair.a:g}: there is no share of it"
        return Cost(limit, math.nan, math.nan, math.nan, "unclear", reason)
    if pair.interval.kind != "interval":
        return replace(cost, why=f"{pair.blocks} blocks allow no interval")
    if high < limit:
        return replace(cost, kind="within")
    if low > limit:
        return replace(cost, kind="beyond")
    # The interval has no end where B has a value of zero.
    width = (high - low) / 2 / abs(limit - share) if share != limit else math.inf
    return replace(cost, why=_remedy(pair.blocks, width))


def _remedy(blocks: int, width: float) -> str:
    """Return what would decide, if the half width is now `width` times the wanted one.

    It shrinks with the root of the blocks.
    """
    needed = max(blocks + 2, blocks * width**2)
    if needed > MOST_BLOCKS:
        return f"not even {MOST_BLOCKS} blocks would tell: stop other work, or measure longer"
    return f"--blocks {math.ceil(needed)} would tell"


def _cost(pair: Paired, effect: float) -> float:
    """Return what B costs more than A, where its values differ by an effect."""
    if pair.better == "lower":
        return effect
    if pair.absolute:
        return -effect
    return 1 / (1 + effect) - 1 if effect > -1 else math.inf


def benjamini_hochberg(p_values: Sequence[float]) -> list[bool]:
    """Return which hypotheses are rejected at FALSE_DISCOVERIES (Benjamini, Hochberg 1995)."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    shares = [p_values[i] * len(order) / rank for rank, i in enumerate(order, 1)]
    below = [rank for rank, share in enumerate(shares, 1) if share <= FALSE_DISCOVERIES]
    rejected = set(order[: max(below, default=0)])
    return [i in rejected for i in range(len(p_values))]


def with_verdicts(pairs: Sequence[Paired], looks: int = 1) -> list[Paired]:
    """Return the results with their verdicts.

    A difference is shown where p <= 1 % over all `looks`, the effect reaches min_effect and it
    survives the correction for many series.
    """
    rejected = benjamini_hochberg([pair.p for pair in pairs])
    limit = P_VALUE / looks
    return [
        _with_verdict(pair, survives and pair.p <= limit)
        for pair, survives in zip(pairs, rejected, strict=True)
    ]


def _with_verdict(pair: Paired, significant: bool) -> Paired:
    if pair.blocks < FEWEST_BLOCKS:
        reason = f"{pair.blocks} blocks: an exact p of 1 % needs at least {FEWEST_BLOCKS}"
        return replace(pair, why=reason)
    if significant and abs(pair.effect) >= pair.min_effect:
        kind = kind_of_change(pair.effect, pair.better)
        return replace(pair, kind=kind, why=f"p = {pair.p:.2g}, {pair.blocks} blocks")
    if -pair.min_effect < pair.interval.low and pair.interval.high < pair.min_effect:
        reason = "the interval lies within the smallest effect"
        if significant:
            reason = "a real effect, but below the smallest that counts"
        return replace(pair, kind="same", why=reason)
    # A half width of min_effect / 2 separates zero from min_effect.
    width = (pair.interval.high - pair.interval.low) / pair.min_effect
    return replace(pair, why=f"p = {pair.p:.2g}; {_remedy(pair.blocks, width)}")
