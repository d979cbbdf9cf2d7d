"""Change points: exactly where they are, robust to spikes and gaps, indifferent to units, cheap."""

import math
import time
import warnings
from itertools import combinations

import numpy as np
import pytest

from perfdag.stats.changes import change_points, count_beyond, split_weights


def noise(n: int, cv: float = 0.02, seed: int = 0) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).normal(0, cv, n))


def test_a_step_is_found_where_it_is_with_its_size() -> None:
    x = noise(40)
    x[30:] *= 0.88
    [change] = change_points(x)
    assert change.index == 30
    assert change.effect == pytest.approx(-0.12, abs=0.02)
    assert change.low < -0.12 < change.high
    assert (change.n_before, change.n_after) == (30, 10)
    assert change.before == pytest.approx(float(np.median(x[:30])))
    assert change.after == pytest.approx(float(np.median(x[30:])))
    assert change.noise == pytest.approx(0.02, rel=0.5)


def test_a_hump_has_two_edges() -> None:
    x = noise(50, seed=1)
    x[20:30] *= 1.15
    assert [c.index for c in change_points(x)] == [20, 30]


def test_one_bad_night_is_no_level() -> None:
    x = noise(40, seed=2)
    x[-1] *= 0.5
    x[20] *= 3
    assert change_points(x) == []


@pytest.mark.parametrize(
    "values", [[], [1.0], [1.0] * 60, [0.0] * 30, list(range(10)), [math.nan] * 40]
)
def test_short_and_constant_series_have_none(values: list[float]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert change_points(values) == []


def test_failed_runs_are_dropped_and_indices_stay_those_of_the_input() -> None:
    x = noise(45, seed=3)
    x[35:] *= 0.85
    x[[3, 17, 30]] = math.nan
    x[36] = math.inf
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [c.index for c in change_points(x)] == [35]


def test_zero_and_negative_values_are_analysed_raw() -> None:
    rng = np.random.default_rng(4)
    x = rng.normal(10, 0.3, 40)
    x[5] = 0.0
    x[30:] += 3
    [change] = change_points(x)
    assert change.index == 30
    assert change.effect == pytest.approx(0.3, abs=0.03)
    [change] = change_points(-x)
    assert change.effect < 0
    mostly_zero = np.zeros(40)
    mostly_zero[[3, 9, 20]] = 5
    assert change_points(mostly_zero) == []


def test_absolute_scale_for_ratios() -> None:
    x = np.random.default_rng(5).normal(0.02, 0.002, 40)
    x[30:] += 0.02
    assert change_points(x, min_effect=0.05, absolute=True) == []
    [change] = change_points(x, min_effect=0.01, absolute=True)
    assert change.effect == pytest.approx(0.02, abs=0.003)


def test_min_effect_is_a_gate() -> None:
    x = noise(60, 0.005, seed=6)
    x[40:] *= 0.96
    assert change_points(x) == []
    assert [c.index for c in change_points(x, min_effect=0.03)] == [40]


def test_unit_does_not_matter_and_the_answer_is_the_same_twice() -> None:
    x = noise(50, seed=7)
    x[33:] *= 1.1
    expected = [c.index for c in change_points(x)]
    assert [c.index for c in change_points(x * 1e9)] == expected
    assert [c.index for c in change_points(x * 1e-9)] == expected
    assert change_points(x) == change_points(x)


def test_the_weights_of_a_split_sum_to_the_two_sample_energy() -> None:
    rng = np.random.default_rng(9)
    x = np.round(rng.normal(0, 3, 20))  # with ties
    order = np.argsort(x)
    energies = (split_weights(np.argsort(order)[None], 1) @ np.diff(x[order]))[0]
    for k in range(1, 18):
        left, right = x[:k], x[k:]
        cross = np.abs(left[:, None] - right[None]).mean()
        within = (
            np.abs(left[:, None] - left[None]).mean() + np.abs(right[:, None] - right[None]).mean()
        )
        assert energies[k - 1] == pytest.approx(k * (20 - k) / 20 * (2 * cross - within))


def test_all_splits_are_counted_one_by_one() -> None:
    rng = np.random.default_rng(10)
    for n, k in ((11, 3), (14, 7), (12, 1)):
        steps = rng.normal(0, 1, (n, n - 1))
        energies = [
            (steps[list(picked)].sum(axis=0) ** 2).sum() for picked in combinations(range(n), k)
        ]
        bar = float(np.median(energies)) + 1e-9
        assert count_beyond(steps, k, bar) == sum(energy >= bar for energy in energies)


def test_cost() -> None:
    series = [noise(60, seed=i) for i in range(50)]
    change_points(series[0])
    start = time.perf_counter()
    for x in series:
        change_points(x)
    assert (time.perf_counter() - start) / len(series) < 0.02  # half a millisecond on a quiet core
