"""Charts from made rows: they say the finding, the spread, and what failed."""

from typing import Any

import pyarrow as pa
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from perfdag.charts import style
from perfdag.charts.benchmarks import resnet50, resnet50_interference, resnet50_overhead
from perfdag.charts.files import to_bytes
from tests.charts.rows import sample, table


def words(figure: Figure) -> str:
    """All text of a figure."""
    texts = [text.get_text() for text in figure.texts]
    for ax in figure.axes:
        texts += [
            text.get_text()
            for text in [
                *ax.texts,
                *ax.get_xticklabels(),
                *ax.get_yticklabels(),
                ax.xaxis.label,
                ax.yaxis.label,
            ]
        ]
    return " ".join(" ".join(texts).split())


def value(metric: str, number: float, unit: str, **more: Any) -> dict[str, Any]:
    return {
        "metric": metric,
        "value": number,
        "unit": unit,
        "better": "higher" if unit == "1/s" else "lower",
        **more,
    }


def drawn(module: Any, rows: pa.Table) -> dict[str, Figure]:
    with style.house():
        values = dict(module.figures(rows))
        for figure in values.values():
            to_bytes(figure)
    return values


def test_server_shows_percentiles_and_the_point_that_failed() -> None:
    good = [
        value("latency", 0.001 * i, "s", stat=stat)
        for i, stat in enumerate(("p50", "p90", "p99"), 1)
    ]
    rows = table(
        sample(
            "resnet50",
            {"scenario": "server", "batch": 8, "latency_bound": 0.015},
            1,
            [value("tail_latency", 0.003, "s", stat="p99"), *good],
        ),
        sample(
            "resnet50",
            {"scenario": "server", "batch": 1, "latency_bound": 0.015},
            1,
            [],
            status="invalid",
            error="LoadGen says INVALID",
        ),
    )
    message = words(drawn(resnet50, rows)["server-latency"])
    assert "published for a Tesla T4, unverified: batch 1 10 ms, batch 8 15 ms" in message
    assert "LoadGen says INVALID" in message
    assert "dotted: the bound" in message
    assert "latency (ms), lower is better" in message


def phases(compute: float = 0.060, **coords: Any) -> list[dict[str, Any]]:
    times = {"preprocess": 0.3, "copy": 0.030, "compute": compute, "postprocess": 0.010}
    return [
        value("phase_time", seconds, "s", stat="p50", coords={"phase": phase, **coords})
        for phase, seconds in times.items()
    ]


def widths(axes: Axes) -> list[float]:
    return [bar.get_width() for bar in axes.patches if isinstance(bar, Rectangle)]


def test_phases_are_a_sample_each_and_what_the_clock_does_not_see_stands_apart() -> None:
    figure = drawn(
        resnet50, table(sample("resnet50", {"scenario": "offline", "batch": 8}, 1, phases()))
    )["phases"]
    assert "Compute is 60 % of what is timed" in words(figure)
    timed, apart = figure.axes
    assert [axes.get_title(loc="left") for axes in (timed, apart)] == [
        "timed",
        "outside\nthe clock",
    ]
    assert widths(timed) == pytest.approx([0.030 / 8, 0.060 / 8, 0.010 / 8])
    assert widths(apart) == pytest.approx([0.3 / 8])
    assert timed.get_xlim()[1] < 0.015


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [
        (0.02, 0.04, "passes"),
        (-0.01, 0.07, "inconclusive: about 40 pairs would tell"),
        (0.06, 0.09, "fails"),
    ],
)
def test_overhead_says_its_verdict(low: float, high: float, message: str) -> None:
    values = [
        value("overhead", (low + high) / 2, "1", stat="mean", headline=True),
        value("overhead_bound", low, "1", stat="low"),
        value("overhead_bound", high, "1", stat="high"),
        value("pairs_needed", 40, "1"),
    ]
    result = drawn(
        resnet50_overhead, table(sample("resnet50-overhead", {"limit": 0.05}, 1, values))
    )
    assert message in words(result["overhead"])
    colour = {"passes": style.BETTER, "fails": style.WORSE}.get(message, style.UNCLEAR)
    assert result["overhead"].axes[0].lines[0].get_color() == colour


@pytest.mark.parametrize(
    ("scenario", "headings", "finding"),
    [
        ("server", "p99 inflation", "p99 of each of 2 copies is 2.50 times that alone"),
        (
            "single-stream",
            "p90 inflation p99 inflation",
            "each of 2 copies keeps 40 to 60 % of its rate; all together do 1.00 times one alone",
        ),
    ],
)
def test_interference_is_a_matrix_of_copies(scenario: str, headings: str, finding: str) -> None:
    inflated = [value(f"{name}_inflation", 2.5, "1") for name in ("tail", "p99")]
    values = [
        value("rate_kept", 0.5, "1", stat="p50"),
        value("fairness", 0.99, "1"),
        value("aggregate", 1.0, "1"),
    ]
    params = {"copies": 2, "scenario": scenario}
    rows = sample("resnet50-interference", params, 1, values)
    for number, kept in enumerate((0.4, 0.6)):
        late = value("valid", number, "1", coords={"when": "together"})
        for item in sample(
            "resnet50-interference", params, 1, [value("rate_kept", kept, "1"), *inflated, late]
        ):
            rows.append({**item, "subject": f"copy {number}"})
    message = words(drawn(resnet50_interference, table(rows))["matrix"])
    assert finding in message
    assert "copy 1" in message
    assert "fairness (Jain) 0.990; LoadGen says INVALID together of copy 0;" in message
    assert f"together {headings} copy" in message


def test_one_invalid_sample_does_not_move_the_medians_of_the_valid() -> None:
    rows = []
    for repetition, status, kept in ((1, "ok", 0.9), (2, "invalid", 0.1)):
        error = None if status == "ok" else "the copies ran at once for 46 % of the time only"
        result = sample(
            "resnet50-interference",
            {"copies": 2},
            repetition,
            [value("rate_kept", kept, "1")],
            status=status,
            error=error,
        )
        rows += [
            {**measurement, "subject": f"copy {number}"}
            for measurement in result
            for number in range(2)
        ]
    assert "each of 2 copies keeps 90 % of its rate" in words(
        drawn(resnet50_interference, table(rows))["matrix"]
    )
    message = words(
        drawn(resnet50_interference, table([row for row in rows if row["status"] == "invalid"]))[
            "matrix"
        ]
    )
    assert "each of 2 copies keeps 10 % of its rate" in message
    assert "no valid sample: invalid: the copies ran at once" in message


@pytest.mark.parametrize("module", [resnet50, resnet50_overhead, resnet50_interference])
def test_failures_are_pictures_too(module: Any) -> None:
    name = module.__name__.rpartition(".")[2].replace("_", "-")
    failed = table(
        sample(
            name,
            {"scenario": "offline"},
            1,
            [],
            status="failed",
            error="batch 512 does not fit: the largest that fits is 300",
        )
    )
    assert any("does not fit" in words(figure) for figure in drawn(module, failed).values())
