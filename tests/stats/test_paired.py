"""Paired comparison: the exact test against brute force, its level and power, the correction for
many series.
"""

import itertools

import numpy as np
import pytest

from perfdag.stats.paired import benjamini_hochberg, blocks, judge, paired, sign_flip_p, within


def brute(d: np.ndarray) -> float:
    sums = [abs(np.dot(signs, d)) for signs in itertools.product((1, -1), repeat=len(d))]
    return sum(s >= abs(d.sum()) - 1e-12 for s in sums) / len(sums)


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
    words = []
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
    assert (result.word, result.cost) == (word, pytest.approx(cost, abs=1e-6))
    assert result.low == pytest.approx(cost - spread, abs=1e-6)
    if word == "inconclusive":
        assert result.why in (
            "about 40 blocks would tell",
            "about 41 blocks would tell",
        )  # 10 of (0.04 against 0.02) squared


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
