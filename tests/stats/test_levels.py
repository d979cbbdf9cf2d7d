"""Change points, and the fold that makes levels and alerts of them."""

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from perfdag.stats.changes import change_points, count_beyond, split_weights
from perfdag.stats.levels import Levels, fold_levels


def series(*parts: tuple[int, float], cv: float = 0.02, seed: int = 0) -> np.ndarray:
    """Runs at levels: (how many, level)."""
    levels = np.concatenate([np.full(n, level) for n, level in parts])
    values: np.ndarray = noise(levels.size, cv, seed) * levels
    return values


def states(values: np.ndarray, better: str = "higher", **more: Any) -> list[str]:
    """The state after each run."""
    return [fold_levels(values[: n + 1], better=better, **more).state for n in range(values.size)]


def kinds(levels: Levels) -> list[tuple[str, int, int]]:
    """Kind, first run of the level and run that decided, of each event."""
    return [(event.kind, event.change.index, event.run) for event in levels.events]


@pytest.mark.parametrize("before", [8, 9, 30])
def test_a_large_step_opens_on_the_third_run_and_never_closes(before: int) -> None:
    values = series((before, 1.0), (40, 1.33))
    result = states(values, better="lower")
    assert result[:7] == ["too little history"] * 7
    assert result[before - 1] == "ok"
    assert result[before : before + 2] == ["ok", "watching"]
    assert set(result[before + 2 :]) == {"regressed"}
    levels = fold_levels(values, better="lower")
    assert [event.change.index for event in levels.alerts] == [before]
    assert levels.start == before


def test_what_was_decided_never_changes() -> None:
    values = series((20, 1.0), (15, 0.85), (20, 1.0), (20, 0.7), (10, 0.6))
    whole = kinds(fold_levels(values, better="higher"))
    for n in range(values.size):
        part = kinds(fold_levels(values[:n], better="higher"))
        assert part == [event for event in whole if event[2] < n]
    assert whole[0] == ("regressed", 20, 22)


def test_recovery_takes_three_runs_at_the_level_before() -> None:
    values = series((20, 1.0), (10, 0.8), (2, 1.0), (1, 0.8), (5, 1.0))
    result = states(values)
    assert result[22:35] == ["regressed"] * 13
    assert result[35:] == ["recovered", "ok", "ok"]
    better_than_before = series((20, 1.0), (10, 0.8), (5, 1.3))
    assert states(better_than_before)[32] == "recovered"
    half_way = series((20, 1.0), (10, 0.6), (30, 0.85))
    assert states(half_way)[-1] == "regressed"


def test_a_second_step_is_a_second_alert_and_both_end_together() -> None:
    values = series((20, 1.0), (10, 0.8), (10, 0.6), (5, 1.0))
    assert len(fold_levels(values[:40], better="higher").alerts) == 2
    levels = fold_levels(values, better="higher")
    assert [kind for kind, _, _ in kinds(levels)] == ["regressed", "regressed", "recovered"]
    assert levels.alerts == ()


def test_an_accepted_level_ends_the_alert_and_is_the_base() -> None:
    values = series((20, 1.0), (20, 0.8), (5, 0.5))
    assert states(values[:30], accepted=[20])[-1] == "ok"
    assert states(values[:25], accepted=[20])[-1] == "accepted"
    levels = fold_levels(values, better="higher", accepted=[20])
    assert kinds(levels) == [("regressed", 40, 42)]
    later = fold_levels(values[:30], better="higher", accepted=[25])
    assert (kinds(later), later.alerts) == ([("regressed", 20, 22)], ())
    # Nothing was measured since: the series is gone, and accepted so.
    gone = np.append(values[:30], [np.nan] * 3)
    assert fold_levels(gone, better="higher", accepted=[31]).alerts == ()
    assert fold_levels(gone, better="higher").state == "regressed"


def test_an_improvement_is_the_new_base() -> None:
    values = series((20, 1.0), (10, 1.5), (4, 1.0))
    levels = fold_levels(values, better="higher")
    assert kinds(levels) == [("moved", 20, 22), ("regressed", 30, 32)]
    no_direction = fold_levels(values, better="none")
    assert {kind for kind, _, _ in kinds(no_direction)} == {"moved"}


def test_two_bad_nights_are_no_level() -> None:
    values = series((30, 1.0), (2, 0.5), (10, 1.0), (2, 0.5), (10, 1.0))
    assert kinds(fold_levels(values, better="higher")) == []


def test_a_noisy_series_alerts_only_by_three_runs() -> None:
    values = series((60, 1.0), (60, 0.75), cv=0.2, seed=3)
    levels = fold_levels(values, better="higher")
    assert {event.rule for event in levels.events} == {"permutations"}
    assert levels.alerts == ()
    drop = series((60, 1.0), (3, 0.16), cv=0.12, seed=3)
    assert len(fold_levels(drop, better="higher").alerts) == 1


def test_absolute_effects_gaps_and_degenerate_series() -> None:
    loss = np.random.default_rng(5).normal(0.02, 0.002, 40)
    loss[30:] += 0.02
    for min_effect, result in ((0.05, 0), (0.01, 1)):
        levels = fold_levels(loss, better="lower", min_effect=min_effect, absolute=True)
        assert len(levels.alerts) == result
    gaps = np.insert(series((10, 1.0), (4, 0.7)), [3, 11], np.nan)
    assert kinds(fold_levels(gaps, better="higher")) == [("regressed", 11, 14)]
    for values in ([], [1.0], [1.0] * 60, [0.0] * 30, [np.nan] * 20):
        assert fold_levels(values, better="higher").events == ()


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


def changed(n: int, *changes: tuple[Any, float], cv: float = 0.02, seed: int = 0) -> np.ndarray:
    """Noise of which runs are multiplied: (their indices, the factor)."""
    values = noise(n, cv, seed)
    for runs, factor in changes:
        values[runs] *= factor
    return values


SMALL_STEP = changed(60, (slice(40, None), 0.96), cv=0.005, seed=6)


@pytest.mark.parametrize(
    ("values", "options", "indices"),
    [
        pytest.param(changed(50, (slice(20, 30), 1.15), seed=1), {}, [20, 30], id="both edges"),
        pytest.param(changed(40, (-1, 0.5), (20, 3.0), seed=2), {}, [], id="no single night"),
        pytest.param(
            changed(45, (slice(35, None), 0.85), ([3, 17, 30], math.nan), (36, math.inf), seed=3),
            {},
            [35],
            id="indices of the input where runs failed",
        ),
        pytest.param(SMALL_STEP, {}, [], id="nothing below 5 %"),
        pytest.param(SMALL_STEP, {"min_effect": 0.03}, [40], id="what exceeds a smaller effect"),
        *(([value] * count, {}, []) for value, count in ((1.0, 0), (1.0, 1), (1.0, 60), (0.0, 30))),
        ([*range(10)], {}, []),
        ([math.nan] * 40, {}, []),
    ],
)
def test_change_points_are(values: Any, options: dict[str, Any], indices: list[int]) -> None:
    assert [change.index for change in change_points(values, **options)] == indices


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
