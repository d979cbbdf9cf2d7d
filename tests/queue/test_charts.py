"""Charts of queues from plain data and from the rows of a real run."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from perfdag.charts.benchmarks import queue, queue_scaling
from perfdag.charts.files import to_bytes
from perfdag.charts.series import read
from perfdag.cli import main
from tests.charts.rows import sample, table


def test_throughput_shows_every_workload_with_its_law() -> None:
    gains = {2: (1.98, 1.9, 2.06), 4: (1.95, 1.93, 1.97)}
    latencies = {"p50": {1: 0.1, 2: 0.1, 4: 0.11}, "p95": {4: 0.2}}
    curve = queue.Curve(
        "linear",
        {1: [10.0, 10.2], 2: [20.0], 4: [39.0]},
        (10.0, 0.01, 0.001),
        0.02,
        gains,
        latencies=latencies,
    )
    figure = queue.throughput(
        [curve, queue.Curve("no law", {1: [5.0], 2: [6.0]}), queue.Curve("nothing", {})],
        "title",
        "subtitle",
    )
    assert [title(ax) for ax in figure.axes[:2]] == ["linear", "no law"]
    legend = figure.axes[0].get_legend()
    assert legend is not None
    labels = [text.get_text() for text in legend.get_texts()]
    assert any("USL: serial 1.0 %" in item for item in labels)
    assert "Amdahl: serial 2.0 %" in labels
    assert figure.axes[4].get_ylabel() == "gain of a step"
    assert figure.axes[6].get_ylabel().startswith("latency (s)")
    assert [line.get_label() for line in figure.axes[6].lines] == ["p50", "p95"]
    assert to_bytes(figure)[0]


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


def test_spread_shows_what_failed_beside_it_where_anything_did() -> None:
    bad = queue.Curve(
        "media",
        {},
        done={"node-1/card0": 30.0, "node-1/card1": 30.0},
        failed={"node-1/card2": 9.0, "node-1/card0": 1.0},
    )
    only = queue.Curve("broken", {}, failed={"node-2": 4.0})
    figure = queue.spread([bad, queue.Curve("one", {}, done={"node-1": 5.0}), only], "", "")
    shares, failures, alone, none, without, lost = figure.axes
    assert [label.get_text() for label in shares.get_yticklabels()] == [
        "node-1/card0",
        "node-1/card1",
        "node-1/card2",
    ]
    assert words(shares) == ["50.0 %, 30 items", "50.0 %, 30 items", "0.0 %, 0 items"]
    assert "index 0.667 (" in title(shares).replace(
        "\n", " "
    )  # the card that only failed has a share of nothing
    assert [spot for spot in drawn(failures.lines[0]) if spot[0] > 0] == [(1, 0), (9, 2)]
    assert words(failures) == ["1", "9"]
    assert (title(alone), words(alone), words(none)) == ("one", ["100.0 %, 5 items"], [])
    assert (title(without), words(without), words(lost)) == (
        "broken",
        ["no valid repetition"],
        ["4"],
    )
    assert lost.get_xlabel() == "failed requests"
    assert len(queue.spread([only], "", "").axes) == 1
    assert queue_scaling.evenness([bad, only]) == (
        "media: node-1/card0 did 50 % (33 % if even), 9 of 10 failures on node-1/card2; "
        "broken: 4 of 4 failures on node-2"
    )
    assert to_bytes(figure)[0]


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


@pytest.mark.slow
def test_a_suite_ends_in_charts(tmp_path: Path) -> None:
    suite = {
        "name": "queue",
        "entries": [
            {"benchmark": "queue-scaling", "params": {"command": ["sleep", "0.05"], "limit": 2}},
        ],
    }
    file = tmp_path / "suite.yaml"
    file.write_text(yaml.safe_dump(suite))
    assert main(["run", str(file), "--store", str(tmp_path / "store")]) == 0
    names = {path.name for path in (tmp_path / "store").rglob("*.svg")}
    assert {
        "queue-scaling-throughput.svg",
        "queue-scaling-spread.svg",
    } <= names
    rows = pq.read_table(next((tmp_path / "store" / "results").rglob("*.parquet")))
    curves = [
        queue_scaling.curve(cell)
        for cell in read(rows.filter(pc.equal(rows["benchmark"], "queue-scaling")))
    ]
    assert [set(item.latencies["p50"]) for item in curves] == [{1, 2}]
