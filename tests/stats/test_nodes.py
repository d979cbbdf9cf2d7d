"""The slow node is named, and nobody else."""

import numpy as np
import pytest

from perfdag.stats.nodes import outliers
from perfdag.stats.variability import detectable, variability_of


def cluster(
    rng: np.random.Generator, slow: float | None, between: float, within: float, n: int
) -> dict[str, np.ndarray]:
    levels = np.exp(rng.normal(0, between, 12))
    if slow is not None:
        levels[7] *= 1 - slow
    return {f"n{i}": level * np.exp(rng.normal(0, within, n)) for i, level in enumerate(levels)}


@pytest.mark.parametrize(
    ("between", "within", "n"),
    [(0.0, 0.02, 10), (0.005, 0.02, 20), (0.01, 0.01, 5), (0.005, 0.03, 30)],
)
def test_of_twelve_nodes_the_one_eight_percent_slow_is_named(
    between: float, within: float, n: int
) -> None:
    rng = np.random.default_rng(11)
    named = [outliers(cluster(rng, 0.08, between, within, n)) for _ in range(300)]
    assert sum([o.node for o in result] == ["n7"] for result in named) >= 285
    clean = [outliers(cluster(rng, None, between, within, n)) for _ in range(600)]
    assert sum(bool(result) for result in clean) <= 6


def test_pairs_name_the_slow_partner_only() -> None:
    rng = np.random.default_rng(12)
    values: dict[str, list[float]] = {f"n{i}": [] for i in range(8)}
    for i in range(8):
        for j in range(i):
            value = float(np.exp(rng.normal(0, 0.01))) * (0.85 if 3 in (i, j) else 1.0)
            values[f"n{i}"].append(value)
            values[f"n{j}"].append(value)
    assert [o.node for o in outliers(values)] == ["n3"]


def test_few_nodes_or_values_name_nobody() -> None:
    assert outliers({"a": [1, 1, 1], "b": [1, 1, 1], "c": [0.5, 0.5, 0.5]}) == []
    assert outliers({name: [1.0, 1.0] for name in "abcd"}) == []


def test_detectable_effect_matches_the_simulated_table() -> None:
    # 20 runs before and k after, alpha 1 %, power 90 %: two-sample t tests simulated.
    assert detectable(0.01, after=3) == pytest.approx(0.026, abs=0.001)
    assert detectable(0.02, after=3) == pytest.approx(0.052, abs=0.002)
    assert detectable(0.02, after=5) == pytest.approx(0.042, abs=0.002)
    assert detectable(0.05, after=3) == pytest.approx(0.136, abs=0.004)
    assert detectable(0.10, after=3) == pytest.approx(0.29, abs=0.01)


def test_noise_is_told_apart() -> None:
    rng = np.random.default_rng(13)
    runs = [np.exp(rng.normal(level, 0.01, 5)) for level in rng.normal(0, 0.03, 60)]
    noise = variability_of(
        runs, {f"n{i}": np.exp(rng.normal(0.02 * (i % 2), 0.001, 5)) for i in range(6)}
    )
    assert noise.within == pytest.approx(0.01, rel=0.2)
    assert noise.between == pytest.approx(0.03, rel=0.4)
    assert noise.nodes == pytest.approx(0.0148, rel=0.2)
    assert noise.repetitions == 3
    assert not noise.informational
    assert variability_of([[1.0]], {}).between is None
