"""Spread, scales and percentiles: coverage by simulation, refusals, zero and negative values."""

import math

import numpy as np
import pytest

from perfdag.stats.percentiles import TooFewSamplesError, nearest_rank, needed, percentile
from perfdag.stats.robust import median, median_ranks, noise_floor, robust_sigma, scale_for, spread
from perfdag.stats.student import student_t


def test_spread_is_a_range_below_six_values_and_an_interval_from_six() -> None:
    five = spread([3, 1, 2, 5, 4])
    assert (five.low, five.high, five.kind, five.coverage, five.n) == (1, 5, "range", None, 5)
    six = spread([1, 2, 3, 4, 5, 6])
    assert (six.low, six.high, six.kind) == (1, 6, "interval")
    assert six.coverage == pytest.approx(1 - 2 / 64)
    assert "97 % interval" in six.words()
    assert spread([]).kind == "none"
    assert spread([7.0]).words() == "range, n=1"


def test_spread_drops_failed_samples() -> None:
    assert spread([1.0, math.nan, 3.0]).n == 2
    assert median([math.nan, 2.0, 4.0]) == 3.0
    assert math.isnan(median([]))


@pytest.mark.parametrize("n", [6, 7, 10, 25, 200, 1500])
def test_interval_covers_the_median_as_often_as_it_says(n: int) -> None:
    rng = np.random.default_rng(n)
    x = np.sort(rng.lognormal(0, 0.5, (4000, n)), axis=1)
    ranks = median_ranks(n)
    assert ranks is not None
    low, high, coverage = ranks
    seen = ((x[:, low - 1] <= 1.0) & (x[:, high - 1] >= 1.0)).mean()
    assert coverage >= 0.945
    assert abs(seen - coverage) < 0.012


def test_robust_sigma_estimates_sigma_and_ignores_spikes() -> None:
    x = np.random.default_rng(1).normal(0, 2.0, 4000)
    assert robust_sigma(x) == pytest.approx(2.0, rel=0.05)
    x[:200] = 1e6
    assert robust_sigma(x) == pytest.approx(2.0, rel=0.12)
    assert math.isnan(robust_sigma([1.0]))


def test_noise_floor_is_relative() -> None:
    x = np.exp(np.random.default_rng(2).normal(5, 0.02, 4000))
    assert noise_floor(x) == pytest.approx(0.02, rel=0.06)
    assert noise_floor(x * 1e9) == pytest.approx(noise_floor(x))


def test_scale_follows_the_values() -> None:
    assert scale_for([1.0, 2.0]).kind == "log"
    assert scale_for([0.0, 2.0, 4.0]).kind == "relative"
    assert scale_for([0.0, 2.0, 4.0]).unit == 2.0
    assert scale_for([-3.0, -1.0]).unit == 2.0
    assert (
        scale_for([0.0, 0.0, 0.0, 8.0]).unit == 2.0
    )  # the median is zero: the mean size is the next best unit
    assert scale_for([0.0, 0.0]).unit == 1.0
    assert scale_for([0.5, 0.6], absolute=True).kind == "absolute"


def test_scale_turns_differences_back_into_effects() -> None:
    log = scale_for([1.0, 2.0])
    assert log.effect(float(np.diff(log.apply([10.0, 11.0]))[0])) == pytest.approx(0.1)
    assert log.effect(log.gate(0.05)) == pytest.approx(0.05)


def test_percentile_is_nearest_rank() -> None:
    values = list(range(1, 101))
    assert nearest_rank(values, 0.95) == 95
    assert nearest_rank(values, 0.07) == 7  # 0.07 * 100 is 7.000000000000001
    assert nearest_rank(values, 1.0) == 100
    with pytest.raises(ValueError, match="with one value"):
        nearest_rank([], 0.5)


@pytest.mark.parametrize(("p", "n"), [(0.95, 90), (0.99, 459), (0.999, 4603)])
def test_percentiles_are_refused_below_the_samples_they_need(p: float, n: int) -> None:
    assert needed(p) == n
    with pytest.raises(TooFewSamplesError, match=f"needs {n} samples, there are {n - 1}"):
        percentile(range(n - 1), p)
    assert percentile(range(n), p).n == n


@pytest.mark.parametrize("p", [0.5, 0.95, 0.99])
def test_percentile_interval_covers(p: float) -> None:
    rng = np.random.default_rng(3)
    truth = -math.log(1 - p)
    hits = 0
    for _ in range(600):
        result = percentile(rng.exponential(1.0, 1000), p)
        hits += result.low <= truth <= result.high
    assert hits / 600 >= 0.93


@pytest.mark.parametrize(
    ("p", "freedom", "quantile"),
    [
        (0.975, 0, 12.7062),
        (0.975, 1, 12.7062),
        (0.975, 4, 2.7764),
        (0.975, 15, 2.1314),
        (0.9975, 10, 3.5814),
        (0.9975, 30, 3.0298),
        (0.995, 40, 2.7045),
        (0.975, 120, 1.9799),
    ],
)
def test_students_t_is_the_published_table(p: float, freedom: int, quantile: float) -> None:
    assert student_t(p, freedom) == pytest.approx(quantile, rel=1e-4)
