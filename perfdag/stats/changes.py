"""Change points in one series: divisive energy statistic, permutation tests, robust effect gate.

The statistic is the two-sample energy distance of Szekely and Rizzo on |x_i - x_j|, split
recursively as in E-divisive (Matteson and James 2014). Two rules are added. A level has at least
three runs, so that one bad night is no level. A change exceeds `min_effect` and three robust
standard errors. The result is deterministic: the seed is the name of the series.
"""

import math
import zlib
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
"""Runs looked at together. A longer history is split into overlapping windows."""
STRIDE = 40
MIN_EFFECT = 0.05
GATE = 3.0
"""Robust standard errors that a change must exceed."""
LOOSE = (99, 5)
"""(permutations, exceedances allowed): p <= 0.06 proposes a split."""
STRICT = (999, 1)
"""p <= 0.002 keeps it, counted over all splits of these sizes where there are at most EXACT."""
EXACT, STRICT_P = 200_000, 0.002
SCREEN = 4.2
"""Energy of the best split, in mean distances, below which a full window needs no permutations.

LOOSE would refuse the split. Of windows without a change, 6 % lie above 4.5 (t) to 5.9 (Cauchy).
"""


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
    values: ArrayLike,
    series_id: str,
    *,
    min_effect: float = MIN_EFFECT,
    absolute: bool = False,
    tail: int = TAIL,
) -> list[Change]:
    """Return the changes of level of a series of run medians, oldest first.

    `values` has one number per run, oldest first. NaN of a failed run is dropped, never filled.
    Changes are relative: on the log scale where all values are positive, otherwise to |median|.
    With `absolute`, they and `min_effect` are in the metric's unit. Fewer than 11 values show none.
    """
    array = np.asarray(values, dtype=np.float64).ravel()
    kept = np.flatnonzero(np.isfinite(array))
    finite = array[kept]
    if finite.size < HEAD + tail or np.ptp(finite) == 0:
        return []
    scale = scale_for(finite, absolute)
    x = scale.apply(finite)
    gate = scale.gate(min_effect)
    rng = np.random.default_rng(zlib.crc32(f"{series_id}:{x.size}".encode()))
    cuts = _merge(x, _proposals(x, tail, gate, rng), gate, rng)
    edges = zip([0, *cuts], cuts, [*cuts[1:], x.size], strict=False)
    return [describe(*_sides(finite, a, k, b), scale, int(kept[k])) for a, k, b in edges]


def _proposals(x: Array, tail: int, gate: float, rng: np.random.Generator) -> list[int]:
    """Propose splits. A long history is split into windows that overlap by 20 runs."""
    if x.size < WINDOW:
        return _divide(x, 0, x.size, tail, rng) if _reach(x[None])[0] >= 0.8 * gate else []
    starts = np.array([*range(0, x.size - WINDOW, STRIDE), x.size - WINDOW])
    windows = x[starts[:, None] + np.arange(WINDOW)]
    starts, windows = starts[wide := _reach(windows) >= 0.8 * gate], windows[wide]
    proposals: set[int] = set()
    for start in starts[_screen(windows, tail)].tolist() if starts.size else []:
        window = x[start : start + WINDOW]
        proposals.update(start + k for k in _divide(window, 0, WINDOW, tail, rng))
    cuts: list[int] = []
    for k in sorted(proposals):
        if not cuts or k - cuts[-1] >= tail:
            cuts.append(k)
    return cuts


def _reach(windows: Array) -> Array:
    """Return how far apart the medians of any three successive runs are, for each row.

    A level has at least three runs, so the medians of levels are no farther apart. For an even
    number of runs they are by a little, which the caller allows for. A quiet window needs no test.
    """
    a, b, c = windows[:, :-2], windows[:, 1:-1], windows[:, 2:]
    reach: Array = np.ptp(np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c)), axis=1)
    return reach


def _screen(windows: Array, tail: int) -> NDArray[np.bool_]:
    """Return which windows, one per row, are worth a permutation test."""
    rows = distribution_steps(windows.T)
    best = energy_statistics(rows, np.arange(HEAD, WINDOW - tail + 1)).max(axis=0)
    # Mean distance of all ordered pairs from the sorted values: 2 / n^2 * sum_i (2 i - n + 1) x_i.
    weights = 2 * np.arange(WINDOW) - WINDOW + 1
    mean_distance = 2 / WINDOW**2 * (np.sort(windows, axis=1) @ weights)
    suspicious: NDArray[np.bool_] = best > SCREEN * mean_distance
    return suspicious


def _divide(x: Array, a: int, b: int, tail: int, rng: np.random.Generator) -> list[int]:
    """Split x[a:b] at its best place while a loose permutation test allows, recursively."""
    ks = np.arange(HEAD if a == 0 else tail, b - a - tail + 1)
    if not ks.size:
        return []
    steps = distribution_steps(x[a:b, None])
    observed = energy_statistics(steps.copy(), ks)[:, 0]
    best = int(observed.argmax())
    if not _any_split_beats_chance(steps[:, 0], ks, float(observed[best]), rng):
        return []
    k = a + int(ks[best])
    return [*_divide(x, a, k, tail, rng), k, *_divide(x, k, b, tail, rng)]


def distribution_steps(x: Array) -> Floats:
    """Return the scaled steps of the centred empirical distribution, (n, P) to (n, P, n - 1).

    On the line, the energy distance of two samples is 2 * integral (F - G)^2. Let g be the gaps
    between the sorted values and N_r the number of values at or below gap r. Let c_r be how many of
    these are among the first k. A split after k values has the energy 2 n / (k (n - k)) * sum_r g_r
    (c_r - k N_r / n)^2. That is the square of a running sum of these rows.
    """
    n = len(x)
    order = np.sort(x, axis=0).T
    below = x[:, :, None] <= order[None, :, :-1]
    # N_r is r + 1 except between equal values, where the gap and so the whole column is zero.
    scaled = (below - np.arange(1, n) / n) * np.sqrt(np.diff(order, axis=1))
    # Half the memory to move. The comparisons below allow for the lost precision.
    steps: Floats = scaled.astype(np.float32)
    return steps


def energy_statistics(rows: Floats, ks: NDArray[np.int64]) -> Array:
    """Return the energy statistic of splits after `ks` values, shape (len(ks), P).

    `rows` has the steps of P orderings, shape (n, P, n - 1), and is overwritten.
    """
    n = len(rows)
    for i in range(1, int(ks[-1])):  # four times as fast as cumsum, which strides over memory
        rows[i] += rows[i - 1]
    sums = rows[ks - 1]
    result: Array = (2 * n / (ks * (n - ks)))[:, None] * np.einsum("kpr,kpr->kp", sums, sums)
    return result


def _any_split_beats_chance(
    steps: Floats, ks: NDArray[np.int64], observed: float, rng: np.random.Generator
) -> bool:
    """Test the best split by permutations. Stop when too many permutations do as well."""
    permutations, allowed = LOOSE
    n, bar, exceeded = len(steps), observed * (1 - 1e-5), 0
    for chunk in (20, permutations - 20):
        order = np.argsort(rng.random((n, chunk)), axis=0)
        exceeded += int((energy_statistics(steps.take(order, axis=0), ks).max(axis=0) >= bar).sum())
        if exceeded > allowed:
            return False
    return True


@lru_cache(maxsize=8)
def _choices(n: int, k: int) -> NDArray[np.int64]:
    """Return all choices of k of n values, one per column."""
    choices = np.arange(n)[None]
    for _ in range(k - 1):
        column, later = np.nonzero(choices[-1][:, None] < np.arange(n))
        choices = np.vstack([choices[:, column], later])
    return choices


def _split_beats_chance(x: Array, k: int, rng: np.random.Generator) -> bool:
    """Return whether a split passes a permutation test of its smaller side.

    The steps of all values sum to zero, so either side gives the same result.
    """
    steps = distribution_steps(x[:, None])[:, 0]
    bar = float((steps[:k].sum(axis=0) ** 2).sum()) * (1 - 1e-5)
    smaller = min(k, x.size - k)
    total = math.comb(x.size, smaller)
    if total <= EXACT:
        products, choices = steps @ steps.T, _choices(x.size, smaller)
        sums = products.diagonal()[choices].sum(axis=0)
        for a, b in combinations(choices, 2):
            sums += 2 * products[a, b]
        return int((sums >= bar).sum()) <= STRICT_P * total
    (permutations, allowed), exceeded = STRICT, 0
    for start in range(0, permutations, 37):  # so many stay in the cache
        chunk = min(37, permutations - start)
        draws = rng.random((chunk, x.size), dtype=np.float32)
        picked = np.argpartition(draws, smaller - 1, axis=1)[:, :smaller]
        sums = steps.take(picked.T, axis=0).sum(axis=0)
        exceeded += int((np.einsum("pr,pr->p", sums, sums) >= bar).sum())
        if exceeded > allowed:
            return False
    return True


def judge(left: Array, right: Array, gate: float) -> tuple[float, float, float]:
    """Return (effect over its gate, difference of medians, robust noise) of two adjacent levels."""
    middle_left, middle_right = middle(left), middle(right)
    residuals = np.concatenate([left - middle_left, right - middle_right])
    noise = SIGMA_OF_MAD * middle(np.abs(residuals))
    difference = middle_right - middle_left
    bar = max(gate, GATE * noise * math.sqrt(1 / left.size + 1 / right.size))
    return abs(difference) / bar if bar else 0.0, difference, noise


def _sides(x: Array, a: int, k: int, b: int) -> tuple[Array, Array]:
    """Return the two levels beside a cut, each no longer than a window."""
    return x[max(a, k - WINDOW) : k], x[k : min(b, k + WINDOW)]


def _merge(x: Array, cuts: list[int], gate: float, rng: np.random.Generator) -> list[int]:
    """Delete the weakest cut until all cuts pass the gate and the strict test."""
    while cuts:
        edges = list(zip([0, *cuts], cuts, [*cuts[1:], x.size], strict=False))
        scores = [judge(*_sides(x, *edge), gate)[0] for edge in edges]
        bad = [i for i, score in enumerate(scores) if score < 1]
        if not bad:
            for i, edge in enumerate(edges):
                left, right = _sides(x, *edge)
                if not _split_beats_chance(np.concatenate([left, right]), left.size, rng):
                    bad.append(i)
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


def moved_at(
    values: ArrayLike, index: int, series_id: str, *, min_effect: float = MIN_EFFECT
) -> Change | None:
    """Return the change of level at one run by the same gate and strict test, or None.

    Three runs beyond the gate and four floors are enough. `index` counts the values as passed.
    """
    array = np.asarray(values, dtype=np.float64).ravel()
    kept = np.flatnonzero(np.isfinite(array))
    finite, k = array[kept], int(np.searchsorted(kept, index))
    if k < HEAD or finite.size - k < TAIL:
        return None
    scale = scale_for(finite)
    left, right = _sides(scale.apply(finite), 0, k, finite.size)
    if judge(left, right, scale.gate(min_effect))[0] < 1:
        return None
    off = right[:TAIL] - middle(left)
    if max(off.min(), -off.max()) <= max(scale.gate(min_effect), 4 * robust_sigma(left)):
        rng = np.random.default_rng(zlib.crc32(f"{series_id}:{index}".encode()))
        if not _split_beats_chance(np.concatenate([left, right]), left.size, rng):
            return None
    return describe(*_sides(finite, 0, k, finite.size), scale, int(kept[k]))
