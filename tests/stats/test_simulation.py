"""The promises of the detector, by simulation: false alarms, power, equal runs. Seeds are fixed."""

import numpy as np
import pytest

from perfdag.stats.nodes import outliers
from tests.stats.simulate import MODELS, false_alarms, nights_to_find

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("model", list(MODELS))
def test_false_alarms_are_at_most_three_in_a_thousand_series_nights(model: str) -> None:
    alarms, nights = false_alarms(model, series=60)
    assert nights == 60 * 81
    assert alarms / nights <= 0.003


def test_a_step_of_seven_percent_at_cv_two_is_found_within_ten_runs() -> None:
    found = nights_to_find(0.07, 0.02, 200)
    assert (found <= 10).mean() >= 0.95


def test_a_step_of_ten_percent_at_cv_two_is_found_within_three_runs() -> None:
    found = nights_to_find(0.10, 0.02, 200, within=3)
    assert (found <= 3).mean() >= 0.95


def test_a_step_of_five_percent_is_found_where_the_smallest_effect_is_three() -> None:
    found = nights_to_find(0.05, 0.02, 200, min_effect=0.03)
    assert (found <= 10).mean() >= 0.95
    alarms, nights = false_alarms("lognormal CV 2 %", series=60, min_effect=0.03)
    assert alarms / nights <= 0.003


def test_of_twelve_nodes_the_slow_one_is_named() -> None:
    rng = np.random.default_rng(1)

    def nodes(slow: bool) -> dict[str, np.ndarray]:
        levels = np.exp(rng.normal(0, 0.005, 12))
        levels[5] *= 0.92 if slow else 1.0
        return {f"n{i}": level * np.exp(rng.normal(0, 0.02, 15)) for i, level in enumerate(levels)}

    assert sum([o.node for o in outliers(nodes(True))] == ["n5"] for _ in range(1000)) >= 950
    assert sum(bool(outliers(nodes(False))) for _ in range(1000)) <= 10
