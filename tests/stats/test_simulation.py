"""The promises of the detector, by simulation: false alarms, power, nodes.

Seeds are fixed; benchmarks/detector.py has the larger numbers.
"""

import numpy as np
import pyarrow as pa
import pytest

from perfdag.regress.nodes import node_outliers
from perfdag.regress.run_medians import medians_of_rows
from perfdag.regress.tuning import Tuning
from perfdag.results.schema import SAMPLES
from tests.stats.simulate import MODELS, OUTLIERS, false_alerts, nights_to_find, verdicts
from tests.stats.synthetic import rows

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("model", list(MODELS))
def test_false_alerts_are_at_most_three_in_a_thousand_series_nights(model: str) -> None:
    alerts = false_alerts(model, series=30, nights=110)
    assert alerts.nights == 3300
    assert alerts.three_runs <= 5  # 0.03 % in the long run are 1; young series have more
    assert alerts.three_runs + alerts.permutations <= 20  # 0.3 % are 10, plus three deviations
    assert alerts.red <= 0.1 * alerts.nights


@pytest.mark.parametrize(
    ("step", "cv", "min_effect", "within"),
    [
        (0.35, 0.02, 0.05, 3),
        (0.10, 0.02, 0.05, 3),
        (0.07, 0.02, 0.05, 10),
        (0.05, 0.02, 0.03, 10),
    ],
)
def test_a_step_is_found_in_time_and_its_alert_stays_open(
    step: float, cv: float, min_effect: float, within: int
) -> None:
    nights = nights_to_find(step, cv, 100, min_effect)
    assert (nights <= within).sum() >= (98 if step == 0.35 else 87)
    assert (nights < 99).sum() >= (99 if step == 0.35 else 90), "alerts that stay open"


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
    """The nodes that are named over 20 points on 12 nodes, of which n7 is slow in the first
    `slow` points.
    """
    series, nodes, nights, values = [], [], [], []
    for i, info in enumerate(TWENTY.series):
        levels = np.exp(rng.normal(0, between, 12))
        levels[7] *= 1 - by if i < slow else 1.0
        for node, level in enumerate(levels):
            values += (level * np.exp(rng.normal(0, within, runs))).tolist()
            series += [info.series_id] * runs
            nodes += [[f"n{node}"]] * runs
            nights += [f"run-{12 * night + node:04}" for night in range(runs)]
    env = ["{}"] * len(values)
    columns = {"series_id": series, "run_id": nights, "value": values, "nodes": nodes, "env": env}
    table = pa.table(columns)
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
