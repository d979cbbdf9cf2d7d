"""The detector beside apache-otava's, which pins numpy and so has an environment of its own:
`make otava`.
"""

import importlib.util

import numpy as np
import pytest

from perfdag.stats.changes import change_points


@pytest.mark.skipif(
    importlib.util.find_spec("otava") is None,
    reason="apache-otava is not in this environment: make otava",
)
def test_otava_finds_the_same_steps_on_clean_series() -> None:
    from otava.analysis import compute_change_points  # type: ignore[import-not-found, unused-ignore]

    rng = np.random.default_rng(2)
    for _ in range(40):
        values = np.exp(rng.normal(0, 0.01, 60))
        start = int(rng.integers(12, 45))
        values[start:] *= 1 + float(rng.choice([-0.15, 0.2]))
        theirs, _ = compute_change_points(
            values.tolist(), window_len=50, max_pvalue=0.001, min_magnitude=0.05
        )
        assert [c.index for c in change_points(values)] == [c.index for c in theirs] == [start]
