"""KubeVirt's histograms beside our times: where they agree, and what is said where they do not."""

import math
from typing import Any

import pytest

from perfdag.kube.prometheus import Prometheus
from perfdag.steps.scale.figures.percentiles import Summary
from perfdag.steps.scale.figures.transition_times import names, transition_times

RUNNING = {5.0: 20.0, 10.0: 98.0, 20.0: 100.0, math.inf: 100.0}
"""Of 100 VMIs, the p50 is in 5 to 10 s, and the p95 too."""


def ours(p50: float, p95: float, *, ok: int = 100, bar: float = 0.05) -> Summary:
    stage = "creation_to_running"
    return Summary(stage, "created", ok, 0, 0, 0, p50, p95, None, p50, p50, p95, bar, 0)


@pytest.fixture
def histograms(monkeypatch: pytest.MonkeyPatch) -> dict[float, dict[float, float]]:
    """Buckets of creation to Running by time, as Prometheus answers them."""
    at: dict[float, dict[float, float]] = {0.0: {}, 105.0: RUNNING}

    async def query(self: Any, queries: Any, path: str) -> dict[str, Any]:
        assert path == "query"
        return {
            name: {
                "result": [
                    {"metric": {"le": "+Inf" if math.isinf(le) else f"{le:g}"}, "value": [0, n]}
                    for le, n in at[float(query["time"])].items()
                    if 'phase="Running"' in query["query"]
                ]
            }
            for name, query in queries.items()
        }

    monkeypatch.setattr(Prometheus, "query", query)
    return at


@pytest.mark.parametrize(
    ("summary", "notes"),
    [
        (ours(6.5, 9.4), []),
        (ours(10.9, 9.4), []),
        (ours(4.1, 9.4), []),
        (ours(11.1, 9.4), ["the p50 of creation to running in 5 to 10 s", "measured 11.1 s"]),
        (ours(3.9, 9.4), ["the p50 of creation to running in 5 to 10 s", "measured 3.9 s"]),
        (ours(11.1, 9.4, bar=0.2), []),
        (ours(6.5, 30.0), ["the p95 of creation to running in 5 to 10 s"]),
        (ours(6.5, 19.0, ok=96), []),
        (ours(99.0, 99.0, ok=50), ["has 100 VMIs, and 50 are of this run", "not compared"]),
    ],
    ids=[
        "in the bucket",
        "a second above",
        "a second below",
        "too high",
        "too low",
        "within the error bar",
        "one percentile of two",
        "four other VMIs shift the p95 to the next bucket",
        "other VMIs",
    ],
)
async def test_only_what_a_bucket_cannot_explain_is_said(
    summary: Summary, notes: list[str], histograms: dict[float, dict[float, float]]
) -> None:
    times = await transition_times(Prometheus("http://x"), 0.0, 100.0, 5.0, [summary])
    assert len(times.notes) == bool(notes)
    assert all(text in times.notes[0] for text in notes)
    assert times.figures["virt_creation_to_running_p50_s"] == pytest.approx(5 + 5 * 30 / 78)
    assert times.figures["virt_creation_to_running_p99_s"] is None, "it needs more than 100 VMIs"
    assert times.figures.keys() == names()


async def test_a_histogram_that_fell_and_a_window_without_scrapes_have_no_figures(
    histograms: dict[float, dict[float, float]],
) -> None:
    histograms[0.0] = {**RUNNING, 10.0: 99.0}
    histograms[105.0] = {**RUNNING, math.inf: 101.0}
    for start, gap in ((0.0, 5.0), (95.0, 10.0)):
        times = await transition_times(Prometheus("http://x"), start, 100.0, gap, [ours(99, 99)])
        assert times.notes == []
        assert set(times.figures.values()) == {None}
