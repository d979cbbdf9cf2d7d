"""Verdicts on two runs and on pairs, and the robust statistics below them."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

from perfdag.stats.paired import benjamini_hochberg, blocks, judge, paired, sign_flip_p, within
from perfdag.stats.percentiles import TooFewSamplesError, nearest_rank, needed, percentile
from perfdag.stats.robust import median, median_ranks, noise_floor, robust_sigma, scale_for, spread
from perfdag.stats.student import student_t
from perfdag.stats.verdicts import compare, pool


def past(n: int = 20, noise: float = 0.02, seed: int = 0) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).normal(0, noise, n)) * 100


@pytest.mark.parametrize(
    ("a", "b", "history", "better", "word"),
    [
        ([100] * 5, [90] * 5, past(noise=0.005), "higher", "worse"),
        ([100] * 5, [90] * 5, past(noise=0.005), "lower", "better"),
        ([100] * 5, [90] * 5, past(noise=0.005), "none", "differs"),
        ([100] * 5, [97] * 5, past(noise=0.005), "higher", "no difference shown"),
        ([1, 1, 1], [1, 1, 1], np.arange(20) % 3.0, "lower", "no difference shown"),
        ([-1.0], [-1.0], -past(), "lower", "no difference shown"),
        ([0.0], [0.0], np.zeros(20), "lower", "no difference shown"),
        # without a pool, repetitions and past runs that differ widely exceed the assumption
        ([100], [30], [], "higher", "worse"),
        ([20, 100, 180], [30] * 3, [], "higher", "inconclusive"),
        ([100], [30], [30, 100, 200], "higher", "inconclusive"),
    ],
)
def test_words(a: list[float], b: list[float], history: Any, better: str, word: str) -> None:
    assert compare(a, b, history, better=better).word == word


def test_noisy_series_is_inconclusive_and_says_what_it_would_take() -> None:
    verdict = compare([100] * 5, [85] * 5, past(noise=0.06), better="higher")
    assert verdict.word == "inconclusive"
    assert "runs a side would show it" in verdict.why
    assert verdict.gate is not None
    assert verdict.detectable is not None
    assert 0.05 < verdict.gate < verdict.detectable


@pytest.mark.parametrize(
    ("b", "runs", "series", "source", "word"),
    [
        (16, 0, 1, "assumed", "worse"),  # -84 % needs no history
        (30, 0, 1, "assumed", "worse"),
        (70, 0, 1, "assumed", "inconclusive"),
        (97, 0, 1, "assumed", "no difference shown"),
        (70, 2, 10, "pooled over 10 series, 10 degrees of freedom", "worse"),
        (70, 2, 9, "assumed", "inconclusive"),  # nine degrees of freedom
        (90, 11, 1, "pooled over 1 series, 10 degrees of freedom", "worse"),
        (90, 15, 1, "of 15 past runs", "worse"),
    ],
)
def test_verdict_uses_the_noise_there_is(
    b: float, runs: int, series: int, source: str, word: str
) -> None:
    histories = [past(runs, 0.01, seed) for seed in range(series)]
    similar = pool(np.log(x) for x in histories)
    verdict = compare([99, 100, 101], [b] * 3, histories[0], better="higher", similar=similar)
    assert (verdict.source, verdict.word) == (source, word)
    assert source in verdict.why
    assert verdict.effect == pytest.approx(b / 100 - 1)


@pytest.mark.parametrize(
    ("history", "word"), [(past(3, 0.01), "worse"), ([60.0, 100.0, 140.0], "inconclusive")]
)
def test_the_noisier_noise_counts(history: Any, word: str) -> None:
    quiet = pool(np.log(past(3, 0.01, seed)) for seed in range(10))
    assert compare([100], [80], history, better="higher", similar=quiet).word == word


def test_a_side_without_a_value_is_refused() -> None:
    with pytest.raises(ValueError, match="no value"):
        compare([], [1.0], past(), better="higher")


@pytest.mark.parametrize(("n", "target"), [(15, 0.012), (20, 0.008), (30, 0.005)])
def test_equal_runs_are_rarely_called_different(n: int, target: float) -> None:
    rng = np.random.default_rng(n)
    x = np.exp(rng.normal(0, 0.02, (3000, n + 2)))
    called = sum(
        compare(r[:1], r[1:2], r[2:], better="higher").word in ("better", "worse") for r in x
    )
    assert called / len(x) <= target


def test_the_detectable_effect_is_found_nine_times_in_ten() -> None:
    rng = np.random.default_rng(9)
    history = past(200, 0.02)
    effect = compare([100], [100], history, better="higher").detectable
    assert effect is not None
    result = sum(
        compare(
            [np.exp(rng.normal(0, 0.02))],
            [np.exp(rng.normal(0, 0.02)) * (1 + effect)],
            history,
            better="higher",
        ).word
        == "better"
        for _ in range(1000)
    )
    assert 860 <= result <= 940


def brute(d: np.ndarray) -> float:
    sums = [abs(np.dot(signs, d)) for signs in itertools.product((1, -1), repeat=len(d))]
    return float(np.mean([total >= abs(d.sum()) - 1e-12 for total in sums]))


@pytest.mark.parametrize("n", [1, 2, 5, 8, 11])
def test_sign_flip_counts_every_assignment(n: int) -> None:
    rng = np.random.default_rng(n)
    for _ in range(20):
        d = rng.normal(0.3, 1, n)
        assert sign_flip_p(d) == pytest.approx(brute(d))
        d = np.round(d)  # ties
        assert sign_flip_p(d) == pytest.approx(brute(d) if d.any() else 1.0)


def test_sign_flip_bounds() -> None:
    assert sign_flip_p([1.0] * 10) == pytest.approx(2 / 1024)
    assert sign_flip_p([0.0] * 10) == 1.0
    assert sign_flip_p([]) == 1.0
    assert 0 < sign_flip_p(np.random.default_rng(0).normal(1, 1, 40)) < 1e-3
    with pytest.raises(ValueError, match="at most 40"):
        sign_flip_p(np.ones(41))


def test_blocks_are_balanced_within_and_random_between() -> None:
    order = blocks(50, seed=1)
    assert sorted(order) == ["ABBA"] * 25 + ["BAAB"] * 25
    assert {blocks(9, seed).count("ABBA") for seed in range(20)} == {4, 5}
    assert order == blocks(50, seed=1)
    assert order != blocks(50, seed=2)


def test_benjamini_hochberg_on_the_example_of_the_paper() -> None:
    # Benjamini and Hochberg 1995, section 3.2: the four smallest of fifteen are rejected at q =
    # 0.05.
    p = [
        0.0001,
        0.0004,
        0.0019,
        0.0095,
        0.0201,
        0.0278,
        0.0298,
        0.0344,
        0.0459,
        0.3240,
        0.4262,
        0.5719,
        0.6528,
        0.7590,
        1.0,
    ]
    assert benjamini_hochberg(p) == [True] * 4 + [False] * 11
    assert benjamini_hochberg([]) == []


def simulate(
    rng: np.random.Generator, effect: float, cv: float, runs: int, better: str = "higher"
) -> list[str]:
    words: list[str] = []
    for _ in range(runs):
        # ten blocks, two values a side in each, a common drift
        drift = np.exp(rng.normal(0, 0.05, (10, 1)))
        a = np.median(drift * np.exp(rng.normal(0, cv, (10, 2))), axis=1)
        b = np.median(drift * np.exp(rng.normal(0, cv, (10, 2))), axis=1) * (1 + effect)
        words.append(judge([paired(a, b, better=better, min_effect=0.03)])[0].word)
    return words


def test_level_and_power() -> None:
    rng = np.random.default_rng(4)
    equal = simulate(rng, 0.0, 0.02, 500)
    assert sum(w in ("better", "worse") for w in equal) <= 5
    slower = simulate(rng, -0.06, 0.02, 300)
    assert slower.count("worse") >= 285
    assert "better" not in slower


def test_too_few_blocks_say_how_many_it_takes() -> None:
    result = judge([paired([1.0] * 5, [2.0] * 5, better="higher")])[0]
    assert (result.word, result.why) == (
        "inconclusive",
        "5 blocks: an exact p of 1 % needs at least 8",
    )


def test_a_tight_interval_shows_no_difference_and_a_wide_one_is_inconclusive() -> None:
    rng = np.random.default_rng(6)
    one = np.ones(10)
    tight = judge([paired(one, np.exp(rng.normal(0, 0.005, 10)), better="higher")])[0]
    wide = judge([paired(one, np.exp(rng.normal(0, 0.2, 10)), better="higher")])[0]
    assert tight.word == "no difference shown"
    assert wide.word == "inconclusive"
    assert "blocks would narrow" in wide.why


def test_blocks_with_a_failed_side_are_dropped() -> None:
    assert paired([1.0, np.nan, 1.0], [2.0, 2.0, 2.0], better="higher").blocks == 2
    with pytest.raises(ValueError, match="no block"):
        paired([np.nan], [1.0], better="higher")
    with pytest.raises(ValueError, match="1 blocks of A and 2 of B"):
        paired([1.0], [1.0, 2.0], better="higher")


@pytest.mark.parametrize(
    ("cost", "spread", "better", "word"),
    [
        (0.03, 0.01, "lower", "passes"),
        (0.03, 0.01, "higher", "passes"),
        (-0.2, 0.01, "lower", "passes"),
        (0.08, 0.01, "lower", "fails"),
        (0.08, 0.01, "higher", "fails"),
        (0.03, 0.04, "lower", "inconclusive"),
        (0.03, 0.04, "higher", "inconclusive"),
    ],
)
def test_a_cost_is_held_against_a_limit(cost: float, spread: float, better: str, word: str) -> None:
    times = (
        1 + cost + spread * np.tile([-1.0, -0.5, 0.0, 0.5, 1.0], 2)
    )  # of the same work, A's being 1
    result = within(
        paired(np.ones(10), times if better == "lower" else 1 / times, better=better), 0.05
    )
    assert result is not None
    assert result.word == word
    assert result.cost == pytest.approx(cost, abs=1e-6)
    assert result.low == pytest.approx(cost - spread, abs=1e-6)
    # 10 of (0.04 against 0.02) squared
    assert word != "inconclusive" or result.why.startswith(("about 40 blocks", "about 41 blocks"))


@pytest.mark.parametrize(
    ("a", "b", "better", "word", "why"),
    [
        ([100] * 10, [0] * 3 + [98] * 7, "higher", "inconclusive", "about 9999 blocks would tell"),
        ([100] * 10, [0] * 6 + [98] * 4, "higher", "inconclusive", "about 9999 blocks would tell"),
        ([100] * 10, [0] * 10, "higher", "fails", "10 blocks"),
        ([0] + [1] * 9, [1.08] * 10, "lower", "fails", "10 blocks"),
        (
            [0] + [1] * 9,
            [1.0505] * 10,
            "lower",
            "fails",
            "10 blocks",
        ),  # 4.9 % of the median of both
        ([0] * 10, [3] * 10, "lower", "inconclusive", "A's median is 0: there is no share of it"),
        ([0] * 10, [0] * 10, "lower", "passes", "10 blocks"),
    ],
)
def test_a_cost_over_values_that_touch_zero(
    a: list[float], b: list[float], better: str, word: str, why: str
) -> None:
    result = within(paired(a, b, better=better), 0.05)
    assert result is not None
    assert (result.word, result.why) == (word, why)


def test_too_few_blocks_and_metrics_of_no_direction_are_held_against_nothing() -> None:
    few = within(paired([1.0] * 5, [1.01] * 5, better="lower"), 0.05)
    assert few is not None
    assert (few.word, few.why) == ("inconclusive", "5 blocks allow no interval")
    assert within(paired([1.0] * 9, [1.0] * 9, better="none"), 0.05) is None


def test_spread_is_a_range_below_six_values_and_an_interval_from_six() -> None:
    five = spread([3, 1, 2, 5, 4])
    assert (five.low, five.high, five.kind, five.coverage, five.n) == (1, 5, "range", None, 5)
    six = spread([1, 2, 3, 4, 5, 6])
    assert (six.low, six.high, six.kind) == (1, 6, "interval")
    assert six.coverage == pytest.approx(1 - 2 / 64)
    assert "97 % interval" in six.text()
    assert spread([]).kind == "none"
    assert spread([7.0]).text() == "range, n=1"


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


@pytest.mark.parametrize(
    ("values", "kind", "unit"),
    [
        ([1.0, 2.0], "log", 1.0),
        ([0.0, 2.0, 4.0], "relative", 2.0),
        ([-3.0, -1.0], "relative", 2.0),
        # the median is zero: the mean size is the next best unit
        ([0.0, 0.0, 0.0, 8.0], "relative", 2.0),
        ([0.0, 0.0], "relative", 1.0),
    ],
)
def test_scale_follows_the_values(values: list[float], kind: str, unit: float) -> None:
    scale = scale_for(values)
    assert (scale.kind, scale.unit) == (kind, unit)
    assert scale_for(values, absolute=True).kind == "absolute"


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
