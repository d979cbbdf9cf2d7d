"""Screens that tell, for many runs at once, which of them may begin a level of a series.

Values are on the scale of the analysis, oldest first, without gaps.
"""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from perfdag.stats.changes import GATE, HEAD, TAIL, WINDOW
from perfdag.stats.robust import SIGMA_OF_MAD, Array

Runs = NDArray[np.int64]
Flags = NDArray[np.bool_]

NEAR = 0.8
"""Part of the gate by which the median of three runs must be off before anything is tested."""
TAILS = (3, 4, 5, 6, 8, 10, 13, 17, 22, 30)
"""Lengths of a new level at which a permutation test may be worth its time."""


def far_from_any(x: Array, distance: float) -> Flags:
    """Return at which runs the median of three is off from one of those in the last window."""
    rows = np.concatenate([np.full(TAIL - 1, np.nan), x])
    thirds = np.sort(sliding_window_view(rows, TAIL), axis=1)[:, 1]
    thirds[: TAIL - 1] = np.nan
    rows = np.concatenate([np.full(WINDOW - 1, np.nan), thirds])
    windows = sliding_window_view(rows, WINDOW)
    low, high = np.fmin.reduce(windows, axis=1), np.fmax.reduce(windows, axis=1)
    far: Flags = np.maximum(thirds - low, high - thirds) >= distance
    return far


def screen(x: Array, runs: Runs, start: int, earlier: int, gate: float) -> dict[int, bool]:
    """Return the runs that may begin a level, and whether permutations are worth their time.

    The level of `runs` began at `start`, and the noise of `earlier` runs before it is known.
    """
    sizes = np.minimum(runs + 1 - start, WINDOW)
    known = (sizes >= 2 * TAIL) & (sizes - TAIL + earlier >= HEAD)
    runs, sizes = runs[known], sizes[known]
    if not runs.size:
        return {}
    at = runs[:, None] + np.arange(1 - WINDOW, 1)
    rows = np.where(at < start, np.nan, x[np.maximum(at, 0)])
    off = rows[:, -TAIL:] - _medians(rows[:, :-TAIL])[:, None]
    near = np.abs(np.sort(off, axis=1)[:, 1]) >= NEAR * gate
    runs, sizes, rows, off = runs[near], sizes[near], rows[near], off[near]
    shifted = np.zeros(runs.size, dtype=np.bool_)
    for n in TAILS:
        some = np.flatnonzero(~shifted & (sizes >= HEAD + n))
        if some.size:
            shifted[some] = _is_shifted(rows[some], sizes[some], n, gate)
    chosen = shifted | (np.maximum(off.min(axis=1), -off.max(axis=1)) > gate)
    return dict(zip(runs[chosen].tolist(), shifted[chosen].tolist(), strict=True))


def _is_shifted(rows: Array, sizes: Runs, n: int, gate: float) -> Flags:
    """Return whether the last `n` runs of each row pass the gate of `changes.judge`."""
    left, right = _medians(rows[:, :-n])[:, None], _medians(rows[:, -n:])[:, None]
    difference = np.abs(right - left)[:, 0]
    shifted: Flags = difference >= gate
    some = np.flatnonzero(shifted)
    level = np.where(np.arange(WINDOW) < WINDOW - n, left[some], right[some])
    noise = SIGMA_OF_MAD * _medians(np.abs(rows[some] - level))
    errors = GATE * noise * np.sqrt(1 / (sizes[some] - n) + 1 / n)
    shifted[some] = (difference[some] >= errors) & (difference[some] > 0)
    return shifted


def _medians(rows: Array) -> Array:
    """Return the median of each row, NaN left out."""
    order = np.sort(rows, axis=1)
    sizes = np.isfinite(rows).sum(axis=1)
    at = np.arange(len(rows))
    medians: Array = (order[at, (sizes - 1) // 2] + order[at, sizes // 2]) / 2
    return medians
