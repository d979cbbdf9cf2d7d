"""Verdicts on two runs: every word, what it would take, and how often equal runs are called different."""

import numpy as np
import pytest

from perfdag.stats.verdicts import compare


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


def test_without_history_there_is_no_verdict() -> None:
    verdict = compare([100] * 5, [50] * 5, past(14), better="higher")
    assert verdict.word == "inconclusive"
    assert "1 more past runs (has 14 of 15)" in verdict.why
    assert verdict.floor is None
    assert verdict.effect == pytest.approx(-0.5)


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
