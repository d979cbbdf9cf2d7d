"""The promises of the detector, by simulation: false alarms, power, nodes. Seeds are fixed; benchmarks/detector.py has the larger numbers."""

import numpy as np
import pyarrow as pa
import pytest

from perfdag.regress.nodes import node_outliers
from perfdag.regress.run_medians import medians_of_rows
from perfdag.regress.tuning import Tuning
from perfdag.results.schema import SAMPLES
from perfdag.stats.nodes import outliers
from tests.stats.simulate import MODELS, OUTLIERS, false_alarms, nights_to_find, verdicts
from tests.stats.synthetic import rows

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("model", list(MODELS))
def test_false_alarms_are_at_most_three_in_a_thousand_series_nights(model: str) -> None:
    alarms, nights = false_alarms(model, series=30)
    assert nights == 30 * 81
    assert alarms / nights <= 0.003


def test_a_step_of_seven_percent_at_cv_two_is_found_within_ten_runs() -> None:
    result = nights_to_find(0.07, 0.02, 100)
    assert (result <= 10).mean() >= 0.95


def test_a_step_of_ten_percent_at_cv_two_is_found_within_three_runs() -> None:
    result = nights_to_find(0.10, 0.02, 200, within=3)
    assert (result <= 3).mean() >= 0.95


def test_a_step_of_five_percent_is_found_where_the_smallest_effect_is_three() -> None:
    result = nights_to_find(0.05, 0.02, 100, min_effect=0.03)
    assert (result <= 10).mean() >= 0.95
    alarms, nights = false_alarms("lognormal CV 2 %", series=30, min_effect=0.03)
    assert alarms / nights <= 0.003


@pytest.mark.parametrize(("past", "series"), [(0, 1), (5, 1), (15, 1), (1, 10)])
@pytest.mark.parametrize("model", list(MODELS))
def test_few_runs_give_few_wrong_verdicts(model: str, past: int, series: int) -> None:
    words = verdicts(model, past, 300, series)
    wrong = sum(word in ("better", "worse") for word in words)
    assert wrong <= (27 if model in OUTLIERS else 9)  # three standard errors above 6 % and 1 %


def test_few_runs_find_what_everybody_sees() -> None:
    for model in MODELS:
        assert verdicts(model, 0, 200, factor=0.2).count("worse") >= 194
    assert verdicts("lognormal CV 5 %", 2, 200, 10, 0.7).count("worse") >= 176


def test_of_twelve_nodes_the_slow_one_is_named() -> None:
    rng = np.random.default_rng(1)

    def nodes(slow: bool) -> dict[str, np.ndarray]:
        levels = np.exp(rng.normal(0, 0.005, 12))
        levels[5] *= 0.92 if slow else 1.0
        return {f"n{i}": level * np.exp(rng.normal(0, 0.02, 15)) for i, level in enumerate(levels)}

    assert sum([o.node for o in outliers(nodes(True))] == ["n5"] for _ in range(150)) >= 142
    assert sum(bool(outliers(nodes(False))) for _ in range(150)) <= 2


TWENTY = medians_of_rows(
    pa.Table.from_pylist(rows(0, {f"streams={i}": [1e10] for i in range(20)}), schema=SAMPLES),
    "net",
)


def who(
    rng: np.random.Generator,
    runs: int,
    within: float,
    between: float,
    slow: int = 0,
    by: float = 0.0,
) -> set[str]:
    """The nodes that are named over 20 points on 12 nodes, of which n7 is slow in the first `slow` points."""
    series, nodes, nights, values = [], [], [], []
    for i, info in enumerate(TWENTY.series):
        levels = np.exp(rng.normal(0, between, 12))
        levels[7] *= 1 - by if i < slow else 1.0
        for node, level in enumerate(levels):
            values += (level * np.exp(rng.normal(0, within, runs))).tolist()
            series += [info.series_id] * runs
            nodes += [[f"n{node}"]] * runs
            nights += [f"run-{12 * night + node:04}" for night in range(runs)]
    table = pa.table({"series_id": series, "run_id": nights, "value": values, "nodes": nodes})
    return {outlier.outlier.node for outlier in node_outliers(TWENTY, table, Tuning())}


@pytest.mark.parametrize(
    ("runs", "within", "between"),
    [(5, 0.02, 0.0), (3, 0.02, 0.005), (15, 0.03, 0.01), (5, 0.05, 0.0)],
)
def test_of_twenty_clean_series_on_twelve_nodes_nobody_is_named(
    runs: int, within: float, between: float
) -> None:
    rng = np.random.default_rng(3)
    assert sum(bool(who(rng, runs, within, between)) for _ in range(15)) == 0


@pytest.mark.parametrize(("slow", "by"), [(20, 0.08), (3, 0.08), (1, 0.12)])
def test_of_twenty_series_the_slow_node_is_named_also_where_one_alone_shows_it(
    slow: int, by: float
) -> None:
    rng = np.random.default_rng(4)
    assert sum(who(rng, 15, 0.02, 0.005, slow, by) == {"n7"} for _ in range(10)) >= 9
