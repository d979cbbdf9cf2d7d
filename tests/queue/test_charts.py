"""Queue charts from plain data and from the rows of a real run."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml

from perfdag.charts import queue, queue_scaling, style
from perfdag.charts.series import read
from perfdag.cli import main


def test_throughput_shows_every_workload_with_its_law() -> None:
    gains = {2: (1.98, 1.9, 2.06), 4: (1.95, 1.93, 1.97)}
    latencies = {"p50": {1: 0.1, 2: 0.1, 4: 0.11}, "p95": {4: 0.2}}
    curve = queue.Curve("linear", {1: [10.0, 10.2], 2: [20.0], 4: [39.0]}, (10.0, 0.01, 0.001), 31.4, 0.02, gains, latencies=latencies)
    figure = queue.throughput([curve, queue.Curve("no law", {1: [5.0], 2: [6.0]}), queue.Curve("nothing", {})], "title", "subtitle")
    assert [ax.get_title(loc="left") or ax.get_title() for ax in figure.axes[:2]] == ["linear", "no law"]
    legend = figure.axes[0].get_legend()
    assert legend is not None
    said = [text.get_text() for text in legend.get_texts()]
    assert any("USL: serial 1.0 %" in each and "knee 31" in each for each in said)
    assert "Amdahl: serial 2.0 %" in said
    assert figure.axes[4].get_ylabel() == "gain of a step"
    assert figure.axes[6].get_ylabel().startswith("latency (s)")
    assert [line.get_label() for line in figure.axes[6].lines] == ["p50", "p95"]
    assert style.to_bytes(figure)[0]


def test_spread_names_who_did_the_work() -> None:
    curves = [queue.Curve("media", {}, done={"node-1/card0": 30.0, "node-1/card1": 10.0}), queue.Curve("nothing", {})]
    figure = queue.spread(curves, queue_scaling.evenness(curves[:1]), "")
    assert len(figure.axes) == 1
    assert [text.get_text() for text in figure.axes[0].texts] == ["25.0 %, 10 items", "75.0 %, 30 items"]
    assert queue_scaling.evenness(curves[:1]) == "media: node-1/card0 did 75 % (50 % if even)"
    assert "no data" in str([text.get_text() for text in queue.spread(curves[1:], "", "").axes[0].texts])


def test_following_and_no_data() -> None:
    figure = queue.following([queue.Follow("q", [0, 1, 2], [1, 3, 1], [1, 2, 1])], "title", "")
    assert len(figure.axes) == 1
    assert "no data" in str([text.get_text() for text in queue.following([], "", "").axes[0].texts])
    assert "no data" in str([text.get_text() for text in queue.throughput([], "", "").axes[0].texts])


@pytest.mark.slow
def test_a_suite_ends_in_charts(tmp_path: Path) -> None:
    suite = {
        "name": "queue",
        "entries": [
            {"benchmark": "queue-scaling", "params": {"command": ["sleep", "0.05"], "limit": 2}},
            {"benchmark": "queue-autoscale", "params": {"duration": 12, "low": 2, "high": 8, "item": 0.2, "window": 0.5, "sync": 0.5}},
        ],
    }
    file = tmp_path / "suite.yaml"
    file.write_text(yaml.safe_dump(suite))
    assert main(["run", str(file), "--store", str(tmp_path / "store")]) == 0
    names = {found.name for found in (tmp_path / "store").rglob("*.svg")}
    assert {
        "queue-scaling-throughput.svg",
        "queue-scaling-spread.svg",
        "queue-autoscale-following-1.svg",
        "queue-autoscale-scores.svg",
    } <= names
    rows = pq.read_table(next((tmp_path / "store" / "results").rglob("*.parquet")))
    drawn = [queue_scaling.curve(cell) for cell in read(rows.filter(pc.equal(rows["benchmark"], "queue-scaling")))]
    assert [set(each.latencies["p50"]) for each in drawn] == [{1, 2}]
