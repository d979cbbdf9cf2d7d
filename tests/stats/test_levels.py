"""The rules of levels one by one, on numbers whose verdict can be seen by eye."""

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from perfdag.stats.evidence import Evidence, Split, best_split, decide_alone, decide_by_mean
from perfdag.stats.levels import Level, drift_of
from perfdag.stats.nodes import outliers
from perfdag.stats.paired import Paired, paired, with_verdicts, within_limit
from perfdag.stats.robust import (
    TooFewSamplesError,
    blocks,
    percentile,
    relative_precision,
    spread,
)
from perfdag.stats.scale import Nights, References, Scale, clipped, two_speeds
from tests.stats.synthetic import levels_of

GATE = math.log1p(0.05)


def noisy(seed: int, nights: int, noise: float) -> np.ndarray:
    return 100 * np.exp(np.random.default_rng(seed).normal(0, noise, nights))


def evidence(x: list[float], rows: dict[int, int]) -> Evidence:
    """Evidence of nights on a scale, with the nights in a row beyond as given."""
    nights = np.array(x)
    none = np.zeros(len(x), np.int64)
    in_a_row = none.copy()
    for night, count in rows.items():
        in_a_row[night] = count
    references = References.of(nights, GATE)
    return Evidence(nights, GATE, 3, references, in_a_row, none > 0, none, none + 1)


def test_any_value_is_beyond_a_level_of_zeros() -> None:
    assert [level.start for level in levels_of([0.0] * 10 + [1e-9] * 3).levels] == [0, 10]


def test_one_measurement_decides_nothing_and_three_of_a_night_do() -> None:
    assert len(levels_of([100.0] * 10 + [200.0]).levels) == 1
    value = np.array([0.0] * 10 + [0.5])
    least = np.array([0.0] * 10 + [0.45])
    references, at = References.of(value, GATE), np.arange(11)
    for lowest, count, decides in ((0.45, 3, True), (0.45, 2, False), (0.0, 3, False)):
        least[-1] = lowest
        nights = Nights(at, value, least, value, np.array([3] * 10 + [count]))
        assert decide_alone(nights, references, GATE, 3)[-1] == decides


def test_a_decision_below_the_smallest_effect_is_refused_and_rests() -> None:
    small = evidence([0.0] * 10 + [0.04] * 8, {12: 3})
    decision = small.decision(after=2)
    assert decision.split is None
    assert np.flatnonzero(decision.suspicious).tolist() == [*range(3, 12), 15, 16, 17]


def test_a_row_begins_anew_after_a_refused_decision() -> None:
    x = [0.0] * 10 + [0.04] * 3 + [1.0] * 3
    assert evidence(x, {12: 3, 13: 4, 14: 5, 15: 6}).decision(after=2).night == 15


def test_a_level_differs_from_the_one_before_by_the_smallest_effect() -> None:
    steps = [
        pair
        for seed in range(60)
        for pair in pairwise(levels_of(noisy(seed, 90, 0.02) * 1.003 ** np.arange(90)).levels)
    ]
    effects = [abs(math.log(after.became / before.reference)) for before, after in steps]
    assert len(effects) > 60
    assert min(effects) >= GATE - 1e-9


def test_a_few_far_nights_are_no_change_of_all() -> None:
    x = np.array([0.0] * 30 + [0.0, 0.2, 0.0, 0.2, 0.0, 0.2, 0.0, 0.2, 0.0] * 6)
    means, _ = decide_by_mean(x, References.of(x, 0.001), GATE, 0.001)
    assert not means.any()


def test_a_young_series_takes_its_noise_from_both_sides() -> None:
    alarms = sum(len(levels_of(noisy(seed, 11, 0.1)).levels) > 1 for seed in range(200))
    assert alarms <= 2


def test_a_mean_that_nearly_decides_makes_a_night_suspicious() -> None:
    x = np.concatenate([np.tile([-0.02, 0.02], 20), np.tile([0.055, 0.06], 12)])
    means, doubts = decide_by_mean(x, References.of(x, 0.02), GATE, 0.02)
    first = int(np.flatnonzero(means)[0])
    assert doubts[first - 1] == 1
    assert means[first - 1] == 0


def test_a_begin_long_before_its_decision_is_found() -> None:
    assert best_split(np.array([0.0] * 60 + [1.0] * 40), 2, 3, 1.0) == Split(60, 60, 60)


def test_the_interval_of_a_date_covers_the_true_night() -> None:
    inside = 0
    for seed in range(200):
        x = np.log(noisy(seed, 60, 0.03)) + np.where(np.arange(60) < 40, 0, 0.06)
        split = best_split(x, 3, 3, 1.0)
        inside += split.first <= 40 <= split.last
    assert inside >= 180


def test_nights_that_follow_each_other_widen_the_error_of_a_mean() -> None:
    alike = np.repeat(np.random.default_rng(3).normal(0, 0.02, 6), 5)
    mixed = np.random.default_rng(3).permutation(alike)
    wide = [References.of(x, GATE) for x in (alike, mixed)]
    shares = [references.wide[-1] / references.noise[-1] for references in wide]
    assert shares[0] > 1.5 > 1.3 > shares[1]
    assert clipped(np.array([[10.0, -10, 1, np.nan]]), np.array([1.0])).tolist() == [[3, -3, 1, 0]]


def test_a_level_of_two_speeds_moves_as_its_mean_does() -> None:
    values = [100.0, 130.0] * 15 + [156.0, 120.0, 156.0, 156.0, 120.0, 156.0] * 4
    before, after = levels_of(values).levels
    assert after.became / before.reference == pytest.approx(1.26, abs=0.02), "a median has 1.36"


def test_the_next_level_is_another_and_a_later_one_of_few_nights_may_be_the_same() -> None:
    about = {
        "scale": Scale("log", 100.0),
        "unit": "",
        "min_effect": 0.05,
        "noise": 0.1,
        "reference": 100.0,
    }
    first = Level(0, 2, first=0, last=0, nights=30, ends=30, **about)  # type: ignore[arg-type]
    other = Level(30, 32, first=30, last=30, became=107.0, decided_by=3, **about)  # type: ignore[arg-type]
    assert first.side_of(other) == 1
    other.start = 40
    assert first.side_of(other) == 0


def test_noise_is_no_drift_and_neither_is_a_slope_below_the_smallest_effect() -> None:
    assert not any(drift_of(levels_of(noisy(seed, 60, 0.1))) for seed in range(60))
    assert drift_of(levels_of([100 + 0.05 * night for night in range(60)])) is None
    assert drift_of(levels_of([100 + 0.2 * night for night in range(60)])) is not None


def test_two_speeds_have_a_fifth_of_the_values_each() -> None:
    assert two_speeds(np.array([0.0] * 17 + [1.0] * 3), GATE) is None
    assert two_speeds(np.array([0.0] * 16 + [1.0] * 4), GATE) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("scale", "before", "after", "change", "leaps"),
    [
        (Scale("log"), 100.0, 60.0, -0.4, False),
        (Scale("relative"), -10.0, -8.0, 0.2, False),
        (Scale("relative"), 0.0, -1.0, -math.inf, True),
        (Scale("rest"), 0.999, 0.997, -0.002002, True),
        (Scale("absolute"), 0.1, 0.9, 0.8, False),
    ],
)
def test_a_change_on_a_scale(
    scale: Scale, before: float, after: float, change: float, leaps: bool
) -> None:
    assert scale.change(before, after) == pytest.approx(change, rel=1e-3)
    assert scale.leaps(before, after) == leaps


def test_an_availability_is_judged_as_its_outage() -> None:
    assert len(levels_of([0.999] * 10 + [0.99] * 3, fraction=True).levels) == 2


def test_the_evidence_against_a_node_has_the_noise_of_few_samples() -> None:
    """Residuals around a median of three samples are too small by a third in variance."""
    nodes = {name: [99.9, 100.0, 100.1] for name in "abc"} | {"d": [199.8, 200.0, 200.2]}
    [outlier] = outliers(nodes)
    residual = math.log(100.1 / 100)
    shrink = math.sqrt(12 / 8)
    error = 1.4826 * residual * shrink * math.sqrt(math.pi / 2 * (1 / 3 + 1 / 9))
    assert outlier.sigmas == pytest.approx(math.log(2) / error, rel=0.01)


def test_nodes_that_differ_anyway_name_nobody() -> None:
    levels = {"a": 100.0, "b": 104.0, "c": 96.0, "d": 103.0, "e": 97.0, "f": 108.0}
    assert (
        outliers({name: [level - 0.01, level, level + 0.01] for name, level in levels.items()})
        == []
    )


def test_an_odd_duet_has_one_block_more_of_either_kind() -> None:
    more = {Counter(blocks(9, seed)).most_common(1)[0][0] for seed in range(20)}
    assert more == {"ABBA", "BAAB"}


def test_precision_is_half_the_interval_and_a_percentile_needs_its_samples() -> None:
    values = [float(value) for value in range(95, 106)]
    band = spread(values)
    assert relative_precision(values) == (band.high - band.low) / 2 / 100
    with pytest.raises(TooFewSamplesError, match="p95 needs 90 samples, there are 89"):
        percentile(range(89), 0.95)
    assert percentile(range(90), 0.95) == 85


def duet(a: float, b: float, better: str) -> Paired:
    blocks = np.linspace(0.999, 1.001, 8)
    return paired(a * blocks, b * blocks, better=better)


def test_shares_of_a_median_below_zero_keep_their_sign() -> None:
    assert duet(-10.0, -8.0, "higher").effect == pytest.approx(2 / 9, rel=0.01)


def test_a_rate_that_falls_by_two_fifths_costs_two_thirds_more_time() -> None:
    bound = within_limit(duet(100.0, 60.0, "higher"), 0.5)
    assert bound is not None
    assert bound.kind == "beyond"
    assert bound.share == pytest.approx(2 / 3, rel=0.01)


def test_each_look_at_a_duet_costs_evidence() -> None:
    result = duet(100.0, 80.0, "lower")
    assert result.p == 2 / 2**8
    assert [with_verdicts([result], looks)[0].kind for looks in (1, 2)] == ["better", "unclear"]
