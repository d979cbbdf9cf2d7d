"""Verdicts on two runs: every word, what it would take, and how often equal runs are called
different.
"""

import numpy as np
import pytest

from perfdag.stats.verdicts import compare, pool


def past(n: int = 20, noise: float = 0.02, seed: int = 0) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).normal(0, noise, n)) * 100


def test_words() -> None:
    quiet = past(noise=0.005)
    assert compare([100] * 5, [90] * 5, quiet, better="higher").word == "worse"
    assert compare([100] * 5, [90] * 5, quiet, better="lower").word == "better"
    assert compare([100] * 5, [90] * 5, quiet, better="none").word == "differs"
    assert compare([100] * 5, [97] * 5, quiet, better="higher").word == "no difference shown"


def test_noisy_series_is_inconclusive_and_says_what_it_would_take() -> None:
    verdict = compare([100] * 5, [85] * 5, past(noise=0.06), better="higher")
    assert verdict.word == "inconclusive"
    assert "runs a side would show it" in verdict.why
    assert verdict.gate is not None
    assert verdict.detectable is not None
    assert 0.05 < verdict.gate < verdict.detectable


def test_number_of_runs_that_it_would_take_is_enough() -> None:
    noise, rng = 0.06, np.random.default_rng(5)
    verdict = compare([100], [85], past(200, noise), better="higher")
    runs = int(verdict.why.split("about ")[1].split()[0])
    before = past(200, noise)
    result = 0
    for _ in range(200):
        a, b = np.exp(rng.normal(0, noise, runs)) * 100, np.exp(rng.normal(0, noise, runs)) * 85
        result += compare(a, b, before, better="higher", runs_a=runs, runs_b=runs).word == "worse"
    assert (
        result >= 80
    )  # at the gate half of the cases are found; the promise is a chance, not certainty


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


def test_the_noisier_noise_counts() -> None:
    quiet = pool(np.log(past(3, 0.01, seed)) for seed in range(10))
    noisy = np.array([60.0, 100.0, 140.0])
    assert compare([100], [80], past(3, 0.01), better="higher", similar=quiet).word == "worse"
    assert compare([100], [80], noisy, better="higher", similar=quiet).word == "inconclusive"
    # Without a pool, repetitions and past runs that differ widely exceed the assumption.
    assert compare([100], [30], [], better="higher").word == "worse"
    assert compare([20, 100, 180], [30] * 3, [], better="higher").word == "inconclusive"
    assert compare([100], [30], [30, 100, 200], better="higher").word == "inconclusive"


def test_zero_and_negative_values() -> None:
    history = np.arange(20) % 3.0
    assert compare([1, 1, 1], [1, 1, 1], history, better="lower").word == "no difference shown"
    assert compare([-1.0], [-1.0], -past(), better="lower").effect == pytest.approx(0.0)
    assert compare([0.0], [0.0], np.zeros(20), better="lower").word == "no difference shown"


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
