"""Change points in one series: divisive energy statistic, permutation tests, robust effect gate.

The statistic is the two-sample energy distance of Szekely and Rizzo on |x_i - x_j|, split
recursively as in E-divisive (Matteson and James 2014). Two rules are added. A level has at least
three runs, so that one bad night is no level. A change exceeds `min_effect` and three robust
standard errors. The result is deterministic: the seeds are the numbers of values.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfdag.stats.robust import SIGMA_OF_MAD, Array, Scale, middle, robust_sigma, scale_for

Floats = NDArray[np.float32]

HEAD = 8
"""Fewest runs of the first level."""
TAIL = 3
"""Fewest runs of any later level."""
WINDOW = 60
"""Most runs that are looked at together."""
MIN_EFFECT = 0.05
GATE = 3.0
"""Robust standard errors that a change must exceed."""
LOOSE = (99, 5)
"""(permutations, exceedances allowed): p <= 0.06 proposes a split."""
STRICT = (999, 1)
"""p <= 0.002 keeps it, counted over all splits of these sizes where there are at most EXACT."""
EXACT, STRICT_P = 200_000, 0.002
ONE_THREAD = 2**18
"""Multiplications of a matrix product that BLAS does in one thread. On a busy machine, threads
wait for each other."""
EQUAL = 1 - 1e-5
"""Part of a statistic from which another counts as equal to it, in spite of rounding."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of level. `index` is the first run of the new level, counting dropped values.

    `effect` is relative (0.1 is +10 %) or in the unit of the metric on an absolute scale. `before`
    and `after` are the medians of the two levels in the unit of the values. `noise` is the robust
    sigma around both on the scale used. `low` and `high` are the effect minus and plus two standard
    errors.
    """

    index: int
    effect: float
    before: float
    after: float
    n_before: int
    n_after: int
    noise: float
    low: float
    high: float


def change_points(
    values: ArrayLike, *, min_effect: float = MIN_EFFECT, absolute: bool = False
) -> list[Change]:
    """Return the changes of level of a series of run medians, oldest first.

    `values` has one number per run, oldest first, and about WINDOW of them. NaN of a failed run is
    dropped, never filled. Changes are relative: on the log scale where all values are positive,
    otherwise to |median|. With `absolute`, they and `min_effect` are in the metric's unit. Fewer
    than 11 values show none.
    """
    array = np.asarray(values, dtype=np.float64).ravel()
    positions = np.flatnonzero(np.isfinite(array))
    finite = array[positions]
    if finite.size < HEAD + TAIL or np.ptp(finite) == 0:
        return []
    scale = scale_for(finite, absolute)
    x = scale.apply(finite)
    cuts = _merge(x, _divide(x, 0, x.size), scale.gate(min_effect))
    edges = zip([0, *cuts], cuts, [*cuts[1:], x.size], strict=False)
    return [describe(finite[a:k], finite[k:b], scale, int(positions[k])) for a, k, b in edges]


def _divide(x: Array, a: int, b: int) -> list[int]:
    """Split x[a:b] at its best place while a loose permutation test allows, recursively."""
    first = HEAD if a == 0 else TAIL
    if b - a < first + TAIL:
        return []
    order = np.argsort(x[a:b])
    gaps = np.diff(x[a:b][order])
    observed = (split_weights(np.argsort(order)[None], first) @ gaps)[0]
    weights, beyond = _shuffled_weights(b - a, first), 0
    for part in (weights[:20], weights[20:]):
        energies = (part @ gaps.astype(np.float32)).max(axis=1)
        beyond += int((energies >= observed.max() * EQUAL).sum())
        if beyond > LOOSE[1]:
            return []
    k = a + first + int(observed.argmax())
    return [*_divide(x, a, k), k, *_divide(x, k, b)]


def split_weights(ranks: NDArray[np.int64], first: int) -> Array:
    """Return weights of the gaps between sorted values whose sum is the energy of a split.

    `ranks` has the ranks of P orderings of n values, shape (P, n). Splits are those after `first`
    to n - TAIL values; the shape is (P, splits, n - 1). On the line, the energy distance of two
    samples is 2 * integral (F - G)^2. Let c_r be how many of the r smallest values are among the
    first k. Then the gap after the r smallest has the weight 2 n / (k (n - k)) * (c_r - k r / n)^2.
    """
    n = ranks.shape[1]
    ks, below = np.arange(first, n - TAIL + 1)[:, None], np.arange(1, n)
    counts = (ranks[:, :, None] < below).cumsum(axis=1)[:, first - 1 : n - TAIL]
    weights: Array = 2 * n / (ks * (n - ks)) * (counts - ks * below / n) ** 2
    return weights


@lru_cache(maxsize=128)
def _shuffled_weights(n: int, first: int) -> Floats:
    """Return the weights of LOOSE random orderings of n values."""
    ranks = np.argsort(np.random.default_rng(n).random((LOOSE[0], n)), axis=1)
    return split_weights(ranks, first).astype(np.float32)


@lru_cache(maxsize=512)
def _choices(n: int, k: int) -> NDArray[np.int64]:
    """Return all choices of k of n values, one per row."""
    return np.array(list(combinations(range(n), k)), dtype=np.int64).reshape(math.comb(n, k), k)


@lru_cache(maxsize=64)
def _shuffled(n: int) -> NDArray[np.int16]:
    """Return STRICT random orderings of n values, one per row."""
    ranks = np.argsort(np.random.default_rng(n).random((STRICT[0], n)), axis=1)
    return ranks.astype(np.int16)


def _split_beats_chance(x: Array, k: int) -> bool:
    """Return whether a split passes a permutation test of its smaller side.

    The energy of a split is the squared length of the sum of the steps of one side. The steps of a
    value are those of the centred empirical distribution. All of them sum to zero, so either side
    gives the same result.
    """
    order, n = np.sort(x), x.size
    steps = ((x[:, None] <= order[:-1]) - np.arange(1, n) / n) * np.sqrt(np.diff(order))
    bar = float((steps[:k].sum(axis=0) ** 2).sum()) * EQUAL
    k = min(k, n - k)
    if math.comb(n, k) <= EXACT:
        return count_beyond(steps, k, bar) <= STRICT_P * math.comb(n, k)
    sums = _product((_shuffled(n) < k).astype(np.float64), steps)
    return int((np.einsum("pr,pr->p", sums, sums) >= bar).sum()) <= STRICT[1]


def _product(a: Array, b: Array) -> Array:
    """Return the product of two matrices, computed in parts of ONE_THREAD."""
    parts = math.ceil(a.shape[0] * b.size / ONE_THREAD)
    return np.vstack([part @ b for part in np.array_split(a, parts)])


def count_beyond(steps: Array, k: int, bar: float) -> int:
    """Count the choices of k steps whose sum has a squared length of at least `bar`.

    Each is a choice from the first half and one from the second: |a + b|^2 = |a|^2 + 2 ab + |b|^2.
    """
    left, right = np.split(steps, [len(steps) // 2])
    count = 0
    for from_left in range(max(0, k - len(right)), min(k, len(left)) + 1):
        a = left[_choices(len(left), from_left)].sum(axis=1)
        b = right[_choices(len(right), k - from_left)].sum(axis=1)
        lengths = (a**2).sum(axis=1)[:, None] + 2 * _product(a, b.T) + (b**2).sum(axis=1)
        count += int((lengths >= bar).sum())
    return count


def judge(left: Array, right: Array, gate: float) -> tuple[float, float, float]:
    """Return (effect over its gate, difference of medians, robust noise) of two adjacent levels."""
    middle_left, middle_right = middle(left), middle(right)
    residuals = np.concatenate([left - middle_left, right - middle_right])
    noise = SIGMA_OF_MAD * middle(np.abs(residuals))
    difference = middle_right - middle_left
    bar = max(gate, GATE * noise * math.sqrt(1 / left.size + 1 / right.size))
    return abs(difference) / bar if bar else 0.0, difference, noise


def _merge(x: Array, cuts: list[int], gate: float) -> list[int]:
    """Delete the weakest cut until all cuts pass the gate and the strict test."""
    while cuts:
        edges = list(zip([0, *cuts], cuts, [*cuts[1:], x.size], strict=False))
        scores = [judge(x[a:k], x[k:b], gate)[0] for a, k, b in edges]
        bad = [i for i, score in enumerate(scores) if score < 1] or [
            i for i, (a, k, b) in enumerate(edges) if not _split_beats_chance(x[a:b], k - a)
        ]
        if not bad:
            break
        del cuts[min(bad, key=lambda i: scores[i])]
    return cuts


def describe(left: Array, right: Array, scale: Scale, index: int) -> Change:
    """Return the change between two levels, from their values and the index of the second."""
    x_left, x_right = scale.apply(left), scale.apply(right)
    _, difference, noise = judge(x_left, x_right, 0.0)
    error = 2 * noise * math.sqrt(math.pi / 2 * (1 / left.size + 1 / right.size))
    return Change(
        index=index,
        effect=scale.effect(difference),
        before=middle(left),
        after=middle(right),
        n_before=left.size,
        n_after=right.size,
        noise=noise,
        low=scale.effect(difference - error),
        high=scale.effect(difference + error),
    )


def moved_at(values: ArrayLike, index: int) -> Change | None:
    """Return the change of level at one run by the same gate and strict test, or None.

    Three runs beyond the gate and four floors are enough. `index` counts the values as passed. At
    most WINDOW runs count on each side.
    """
    array = np.asarray(values, dtype=np.float64).ravel()
    positions = np.flatnonzero(np.isfinite(array))
    finite, k = array[positions], int(np.searchsorted(positions, index))
    if k < HEAD or finite.size - k < TAIL:
        return None
    before, after = finite[max(0, k - WINDOW) : k], finite[k : k + WINDOW]
    scale = scale_for(finite)
    left, right = scale.apply(before), scale.apply(after)
    gate = scale.gate(MIN_EFFECT)
    if judge(left, right, gate)[0] < 1:
        return None
    off = right[:TAIL] - middle(left)
    if max(off.min(), -off.max()) <= max(gate, 4 * robust_sigma(left)) and not _split_beats_chance(
        np.concatenate([left, right]), left.size
    ):
        return None
    return describe(before, after, scale, int(positions[k]))
