"""Charts of queues from plain data and from the rows of a real run."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from perfdag.charts.benchmarks import queue, queue_scaling
from tests.charts.rows import sample, table


def drawn(line: Line2D) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in np.asarray(line.get_xydata())]


def words(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


def title(ax: Axes) -> str:
    return ax.get_title(loc="left") or ax.get_title()


def test_spread_names_who_did_the_work_and_how_evenly() -> None:
    curves = [
        queue.Curve("media", {}, done={"node-1/card0": 30.0, "node-1/card1": 10.0}),
        queue.Curve("nothing", {}),
    ]
    figure = queue.spread(curves, queue_scaling.evenness(curves[:1]), "")
    [ax] = figure.axes
    even, dots = ax.lines
    assert (drawn(dots), dots.get_marker()) == ([(75, 0), (25, 1)], "o")
    assert [x for x, _ in drawn(even)] == [50, 50]
    assert words(ax) == ["75.0 %, 30 items", "25.0 %, 10 items"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["node-1/card0", "node-1/card1"]
    assert title(ax) == "media: Jain's fairness index 0.800 (1: even, 0.5: one did all)"
    assert queue_scaling.evenness(curves[:1]) == "media: node-1/card0 did 75 % (50 % if even)"
    assert words(queue.spread(curves[1:], "", "").axes[0]) == ["no data"]


def counted(metric: str, value: float, subject: str, **coords: Any) -> dict[str, Any]:
    return {
        "metric": metric,
        "value": value,
        "unit": "1",
        "better": "none",
        "coords": coords,
        "subject": subject,
    }


def test_failures_of_failed_samples_are_drawn_and_their_items_are_not() -> None:
    good = [counted("items", 30, "n/card0"), counted("items", 10, "n/card1")]
    broken = [
        counted("items", 99, "n/card0"),
        counted("failures", 2, "n/card1", replicas=1),
        counted("failures", 3, "n/card1", replicas=2),
    ]
    rows = table(
        sample("queue-scaling", {}, 1, good),
        sample("queue-scaling", {}, 2, broken, status="failed", error="at 1 replicas: 2 failed"),
    )
    figures = dict(queue_scaling.figures(rows))
    shares, failures = figures["spread"].axes
    assert (words(shares), words(failures)) == (["75.0 %, 30 items", "25.0 %, 10 items"], ["5"])
    assert (
        len(dict(queue_scaling.figures(table(sample("queue-scaling", {}, 1, good))))["spread"].axes)
        == 1
    )
