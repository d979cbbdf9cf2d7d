"""Peak search: against queueing theory in virtual time, and its edges."""

import math

import pytest

from perfdag.stats.peak import MOST_PROBES, NoPeak, find_peak
from tests.resnet50.queues import late_share, md1_peak, md1_wait_cdf

SERVICE, BOUND = 0.001, 0.0075


def test_theory_itself_agrees_with_a_simulated_queue() -> None:
    rate = md1_peak(BOUND, SERVICE)
    assert md1_wait_cdf(0.0, 500, SERVICE) == pytest.approx(0.5)
    assert late_share(rate, SERVICE, BOUND, 4_000_000, seed=1) == pytest.approx(0.01, rel=0.1)


@pytest.mark.parametrize("start", [50.0, 700.0, 5000.0])
def test_search_lands_within_three_percent_of_theory(start: float) -> None:
    def holds(rate: float) -> bool:
        return late_share(rate, SERVICE, BOUND, 400_000, seed=7) <= 0.01

    result = find_peak(holds, holds, start)
    assert result.rate == pytest.approx(md1_peak(BOUND, SERVICE), rel=0.03)
    assert result.above is not None
    assert result.above / result.rate <= 1.0101
    full = {probe.rate: probe.valid for probe in result.probes if probe.validation}
    assert (full[result.rate], full[result.above]) == (True, False)


@pytest.mark.parametrize("short", [60.0, 97.0, 110.0, 180.0])
def test_short_trials_that_erred_are_corrected_by_full_ones(short: float) -> None:
    result = find_peak(lambda rate: rate <= short, lambda rate: rate <= 100, 50.0)
    assert 99 <= result.rate <= 100
    assert result.above is not None
    assert 100 < result.above <= result.rate * 1.0101


def test_where_short_trials_were_right_two_full_ones_do() -> None:
    result = find_peak(lambda rate: rate <= 100, lambda rate: rate <= 100, 50.0)
    assert [probe.valid for probe in result.probes if probe.validation] == [True, False]


@pytest.mark.parametrize(
    ("short", "full", "start", "options", "message"),
    [
        (0.0, 0.0, 50.0, {"lowest": 1.0}, "no rate down to 1/s"),
        (10.0, 0.0, 50.0, {"lowest": 1.0}, "no rate down to 1/s"),
        (10.0, math.inf, 1.0, {"precision": 1e-9}, f"{MOST_PROBES} trials"),
    ],
)
def test_a_search_without_an_answer_ends(
    short: float, full: float, start: float, options: dict[str, float], message: str
) -> None:
    with pytest.raises(NoPeak, match=message):
        find_peak(lambda rate: rate < short, lambda rate: rate < full, start, **options)


def test_every_rate_holds_up_to_the_highest() -> None:
    result = find_peak(lambda rate: True, lambda rate: True, 50.0, highest=200.0)
    assert (result.rate, result.above) == (200.0, None)
