"""Charts of openfoam, rdma-bandwidth, rdma-latency and torchbench, on rows from their own
parsers where a recording is there.
"""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from matplotlib.figure import Figure

from perfdag.benchmark.contract import Benchmark, Output
from perfdag.charts.pages.pick import chart
from perfdag.digest import canonical
from perfdag.results.samples import as_row
from perfdag.steps.openfoam.benchmark import OpenFoam
from perfdag.steps.openfoam.params import OpenFoamParams
from perfdag.steps.rdma.bandwidth import BandwidthParams, RdmaBandwidth
from perfdag.steps.rdma.latency import LatencyParams, RdmaLatency
from perfdag.steps.torchbench.benchmark import Torchbench
from perfdag.steps.torchbench.params import TorchbenchParams
from tests.charts.rows import sample, table
from tests.recorded.record import load

RECORDED = Path(__file__).parent.parent / "recorded"


def rows_of(benchmark: Benchmark[Any], output: Output, params: Any) -> list[dict[str, Any]]:
    return [as_row(benchmark, item) for item in benchmark.parse(output, params)]


def drawn(benchmark: str, rows: pa.Table) -> dict[str, Figure]:
    return dict(chart(benchmark)(rows))


def artist(figure: Figure, gid: str) -> Any:
    return next(
        item
        for ax in figure.axes
        for item in (*ax.lines, *ax.containers, *ax.patches)
        if getattr(item, "get_gid", lambda: None)() == gid
    )


def title(figure: Figure) -> str:
    title = next(text.get_text() for text in figure.texts if text.get_gid() == "title")
    return " ".join(title.split())


@pytest.mark.parametrize(
    "benchmark", ["latency", "openfoam", "rdma-bandwidth", "rdma-latency", "torchbench"]
)
def test_only_skips_are_drawn(benchmark: str) -> None:
    skipped = sample(
        benchmark,
        {"procs": 1, "nodes": 1, "batch_size": 1},
        1,
        [],
        status="skipped",
        error="no device",
    )
    assert drawn(benchmark, table(skipped))


def test_openfoam_scaling_has_an_ideal_line_and_efficiency() -> None:
    rows: list[dict[str, Any]] = []
    for procs, nodes, seconds in ((1, 1, 8.0), (2, 1, 4.5), (4, 2, 2.5)):
        for repetition, factor in enumerate((0.98, 1.0, 1.02), start=1):
            params = {"size": "S", "procs": procs, "nodes": nodes, "solver": "PCG"}
            values = [
                {
                    "metric": "solve_time",
                    "value": seconds * factor,
                    "unit": "s",
                    "better": "lower",
                    "headline": True,
                },
                {
                    "metric": "mesh_time",
                    "value": 0.5,
                    "unit": "s",
                    "better": "lower",
                    "headline": False,
                },
            ]
            placed = [f"node-{i}" for i in range(nodes)]
            rows += [
                {**as_row, "nodes": placed}
                for as_row in sample("openfoam", params, repetition, values)
            ]
    figures = drawn("openfoam", table(rows))
    assert set(figures) == {"scaling", "phases"}
    assert (
        title(figures["scaling"])
        == "OpenFOAM: 3.2 times as fast with 4 processes as with 1: 80 % efficient"
    )
    above, below = figures["scaling"].axes
    assert (above.get_xscale(), above.get_yscale()) == ("log", "log")
    assert list(artist(figures["scaling"], "ideal").get_ydata()) == [8.0, 4.0, 2.0]
    assert list(artist(figures["scaling"], "efficiency 2 hosts").get_ydata()) == pytest.approx(
        [0.8]
    )
    assert below.get_xlabel() == "processes"
    assert figures["phases"].axes[0].get_xlim()[0] == 0


def test_openfoam_on_two_kinds_of_nodes_is_two_scalings() -> None:
    rows: list[dict[str, Any]] = []
    for kind, factor in (("old", 3.0), ("new", 1.0)):
        for procs, nodes, seconds in ((1, 1, 8.0), (2, 2, 4.5)):
            params = {"size": "S", "procs": procs, "nodes": nodes}
            value = {
                "metric": "solve_time",
                "value": seconds * factor,
                "unit": "s",
                "better": "lower",
                "headline": True,
            }
            rows += sample(
                "openfoam",
                params,
                1,
                [value],
                shape={"hosts": {"count": nodes}, "node_selector": {"kind": kind}},
            )
    figures = drawn("openfoam", table(rows))
    assert {"scaling", "scaling-2"} <= set(figures)
    for slug, kind in (("scaling", "old"), ("scaling-2", "new")):
        assert (
            title(figures[slug])
            == "OpenFOAM: 1.78 times as fast with 2 processes as with 1: 89 % efficient"
        )
        assert f"kind={kind}" in " ".join(text.get_text() for text in figures[slug].texts)


def test_openfoam_hosts_that_shared_a_node_are_said_to() -> None:
    rows: list[dict[str, Any]] = []
    for procs, nodes, seconds in ((1, 1, 8.0), (2, 2, 4.5)):
        value = {
            "metric": "solve_time",
            "value": seconds,
            "unit": "s",
            "better": "lower",
            "headline": True,
        }
        outcome = sample(
            "openfoam",
            {"size": "S", "procs": procs, "nodes": nodes},
            1,
            [value],
            shape={"hosts": {"count": nodes}},
        )
        rows += [{**as_row, "nodes": ["node-1"] * nodes} for as_row in outcome]
    figure = drawn("openfoam", table(rows))["scaling"]
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["1 host", "2 hosts on 1 node"]
    assert "2 hosts on 1 node" in " ".join(text.get_text() for text in figure.texts)


def _solved(procs: int, nodes: int, seconds: float, **params: Any) -> list[dict[str, Any]]:
    value = {
        "metric": "solve_time",
        "value": seconds,
        "unit": "s",
        "better": "lower",
        "headline": True,
    }
    shape = {"hosts": {"count": nodes}}
    outcome = sample(
        "openfoam", {"size": "S", "procs": procs, "nodes": nodes, **params}, 1, [value], shape=shape
    )
    return [{**as_row, "nodes": [f"node-{i}" for i in range(nodes)]} for as_row in outcome]


def test_openfoam_scaling_is_of_the_fastest_of_the_most_processes() -> None:
    rows = [*_solved(1, 1, 100), *_solved(2, 1, 55), *_solved(4, 1, 30), *_solved(4, 2, 80)]
    figure = drawn("openfoam", table(rows))["scaling"]
    output = "OpenFOAM: 3.33 times as fast with 4 processes on 1 host as with 1: 83 % efficient"
    assert " ".join(title(figure).split()) == output
    assert artist(figure, "efficiency 1 host").get_ydata()[-1] == pytest.approx(0.833, abs=1e-3)


def test_openfoam_phases_are_of_the_longest_points_and_say_how_many() -> None:
    rows = [
        as_row for i in range(20) for as_row in _solved(1, 1, 10.0 + i, tolerance=10.0 ** -(i + 1))
    ]
    figure = drawn("openfoam", table(rows))["phases"]
    assert "29 s, n=1, the longest" in title(figure)
    assert "the 16 longest of 20 points" in " ".join(text.get_text() for text in figure.texts)
    widths = [patch.get_width() for patch in figure.axes[0].patches if patch.get_width()]
    assert widths == [10.0 + i for i in range(4, 20)]
    few = drawn("openfoam", table(rows[:3]))["phases"]
    assert "longest of" not in " ".join(text.get_text() for text in few.texts)


def test_openfoam_steps_are_of_the_runs_that_slow_down_most() -> None:
    rows = []
    for i in range(14):
        step = {"metric": "step_time", "stat": "mean", "unit": "s", "better": "lower"}
        steps = [
            {**step, "value": value, "coords": {"step": at}}
            for at, value in ((1, 1.0), (2, 1.0 + i))
        ]
        solve = {
            "metric": "solve_time",
            "value": 2.0 + i,
            "unit": "s",
            "better": "lower",
            "headline": True,
        }
        rows += sample(
            "openfoam",
            {"size": "S", "procs": 1, "nodes": 1, "tolerance": 10.0 ** -(i + 1)},
            1,
            [solve, *steps],
        )
    figure = drawn("openfoam", table(rows))["steps"]
    assert "steps took 14 times as long" in title(figure)
    assert "the 12 most uneven of 14 points" in " ".join(text.get_text() for text in figure.texts)
    ends = [
        line.get_ydata()[-1]
        for line in figure.axes[0].lines
        if (line.get_gid() or "").startswith("median")
    ]
    assert ends == [1.0 + i for i in range(2, 14)]


def test_openfoam_of_a_recording_draws_its_phases() -> None:
    stdout = (RECORDED / "openfoam/xs-2-procs.stdout").read_text()
    output = Output(
        {"stdout": stdout, "timing": "mesh_s=0.2\ndecompose_s=0.3\n"}, facts={"addresses": 1}
    )
    params = OpenFoamParams(size="XS", procs=2)
    figures = drawn(
        "openfoam",
        table(
            sample(
                "openfoam", params.model_dump(mode="json"), 1, rows_of(OpenFoam(), output, params)
            )
        ),
    )
    assert set(figures) == {"points", "phases", "steps"}
    (line,) = [
        line
        for line in figures["steps"].axes[0].lines
        if (line.get_gid() or "").startswith("median")
    ]
    assert list(line.get_xdata()) == list(range(1, 21))
    assert "times as long as the fastest of a run" in title(figures["steps"])


def test_rdma_bandwidth_over_sizes() -> None:
    client = (RECORDED / "perftest/constructed-write-bw-all-26.04.txt").read_text()
    params = BandwidthParams()
    values = rows_of(RdmaBandwidth(), Output({"client0": client}), params)
    figure = drawn(
        "rdma-bandwidth", table(sample("rdma-bandwidth", params.model_dump(mode="json"), 1, values))
    )["sizes"]
    assert len(figure.axes) == 2
    mean = artist(figure, "median mean")
    assert list(mean.get_xdata()) == [2**power for power in range(1, 24)]
    assert mean.get_ydata()[-1] == pytest.approx(97.5e9)
    assert figure.axes[0].get_xscale() == "log"
    assert "97.5 Gbit/s" in title(figure)


def test_rdma_latency_over_sizes() -> None:
    client = (RECORDED / "perftest/constructed-read-lat-all-26.04.txt").read_text()
    params = LatencyParams(mode="read")
    values = rows_of(RdmaLatency(), Output({"client0": client}), params)
    figure = drawn(
        "rdma-latency", table(sample("rdma-latency", params.model_dump(mode="json"), 1, values))
    )["sizes"]
    assert figure.axes[0].get_yscale() == "log"
    assert {line.get_gid() for line in figure.axes[0].lines} >= {
        "median p50",
        "median min",
        "median p99",
        "median p99.9",
    }
    assert "1.62 us" in title(figure)


def _latencies(params: dict[str, Any], stat: str, base: float) -> list[dict[str, Any]]:
    values = [
        {
            "metric": "lowest_latency",
            "value": base,
            "unit": "s",
            "better": "lower",
            "headline": True,
            "coords": {"message_bytes": 2},
        }
    ]
    latency = {"metric": "latency", "unit": "s", "better": "lower", "stat": stat}
    values += [
        {**latency, "value": base + size * 1e-9, "coords": {"message_bytes": size}}
        for size in (2, 4, 8)
    ]
    return sample("rdma-latency", params, 1, values)


def test_rdma_latency_of_timed_and_untimed_points() -> None:
    timed, whole = (
        _latencies({"mtu": 1024, "duration": 10.0}, "mean", 1e-6),
        _latencies({"mtu": 4096}, "p50", 2e-6),
    )
    figure = drawn("rdma-latency", table(timed, whole))["sizes"]
    names = [
        line.get_gid()
        for line in figure.axes[0].lines
        if (line.get_gid() or "").startswith("median")
    ]
    assert len(names) == 2
    assert [name.rpartition(" ")[2] for name in names] == ["(mean)", "(p50)"]
    assert "2 us" in title(figure), "the best of those that have a typical latency"
    assert "mtu=4096" in title(figure)
    alone = drawn("rdma-latency", table(timed))["sizes"]
    assert [
        line.get_gid() for line in alone.axes[0].lines if line.get_gid() == "median rdma-latency"
    ]
    assert "1 us" in title(alone)


def test_rdma_points_that_are_not_drawn_are_counted_and_the_best_is_drawn() -> None:
    rows = [
        as_row
        for base in range(15, 0, -1)
        for as_row in _latencies({"gid_index": base}, "p50", base * 1e-6)
    ]
    figure = drawn("rdma-latency", table(rows))["sizes"]
    names = [
        line.get_gid()
        for line in figure.axes[0].lines
        if (line.get_gid() or "").startswith("median")
    ]
    assert len(names) == 12
    assert names[-1] == "median gid_index=1", "the fastest of all is the last of fifteen"
    assert "12 of 15 points, the best among them" in " ".join(
        text.get_text() for text in figure.texts
    )
    assert title(figure) == "RDMA latency: lowest 1 us, n=1 at 2 B (gid_index=1)"


def test_latency_has_rates_above_percentiles() -> None:
    rows: list[dict[str, Any]] = []
    for name in ("tcp-rr", "udp-rr"):
        benchmark, params, output = load(f"latency/{name}")
        rows += sample(
            "latency", params.model_dump(mode="json"), 1, rows_of(benchmark, output, params)
        )
    figure = drawn("latency", table(rows))["points"]
    assert [len(ax.get_yticklabels()) for ax in figure.axes] == [2, 2]
    legend = figure.axes[1].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["p50", "p90", "p99"]
    assert title(figure).startswith("Highest transaction rate: ")


def test_torchbench_over_batch_sizes() -> None:
    rows: list[dict[str, Any]] = []
    for batch in (1, 2):
        params = TorchbenchParams(model="alexnet", batch_size=batch)
        stdout = (RECORDED / f"torchbench/alexnet-eval-{batch}.stdout").read_text()
        rows += sample(
            "torchbench",
            params.model_dump(mode="json"),
            1,
            rows_of(Torchbench(), Output({"stdout": stdout}), params),
        )
    figures = drawn("torchbench", table(rows))
    assert set(figures) == {"points", "batches"}
    line = artist(figures["batches"], "median alexnet eval cpu")
    assert list(line.get_xdata()) == [1, 2]


def test_torchbench_marks_a_line_of_disturbed_samples_and_has_whole_batch_sizes() -> None:
    rows: list[dict[str, Any]] = []
    for batch, noise in ((1, None), (2, "load 4 on 2 cores before it")):
        params = TorchbenchParams(model="alexnet", batch_size=batch).model_dump(mode="json")
        value = {
            "metric": "samples_rate",
            "value": 10.0 * batch,
            "unit": "1/s",
            "better": "higher",
            "headline": False,
        }
        rows += sample("torchbench", params, 1, [value], noise=noise)
    figure = drawn("torchbench", table(rows))["batches"]
    assert artist(figure, "median alexnet eval cpu ~")
    assert "~: a sample was disturbed" in " ".join(text.get_text() for text in figure.texts)
    assert "cpu: 20 /s" in title(figure)
    assert {float(at) for at in figure.axes[0].get_xticks()} <= {0.0, 1.0, 2.0, 3.0}


def test_torchbench_names_the_precision_that_was_used_unasked() -> None:
    rows: list[dict[str, Any]] = []
    for batch in (1, 2):
        params = TorchbenchParams(model="alexnet", device="cuda", batch_size=batch).model_dump(
            mode="json"
        )
        value = {
            "metric": "samples_rate",
            "value": 10.0 * batch,
            "unit": "1/s",
            "better": "higher",
            "headline": False,
        }
        rows += [
            {**as_row, "env": canonical({"sample": {"precision": "fp16"}})}
            for as_row in sample("torchbench", params, 1, [value])
        ]
    figures = drawn("torchbench", table(rows))
    assert artist(figures["batches"], "median alexnet eval cuda fp16")
    assert any(
        "in fp16" in label.get_text() for label in figures["points"].axes[0].get_yticklabels()
    )


def test_torchbench_on_two_kinds_of_nodes_is_two_lines() -> None:
    rows: list[dict[str, Any]] = []
    for kind, factor in (("old", 1.0), ("new", 2.0)):
        for batch in (1, 2):
            params = TorchbenchParams(model="alexnet", batch_size=batch).model_dump(mode="json")
            value = {
                "metric": "samples_rate",
                "value": 10.0 * batch * factor,
                "unit": "1/s",
                "better": "higher",
                "headline": False,
            }
            rows += sample(
                "torchbench", params, 1, [value], shape={"node_selector": {"kind": kind}}
            )
    figure = drawn("torchbench", table(rows))["batches"]
    result = {
        line.get_gid(): list(line.get_ydata())
        for line in figure.axes[0].lines
        if (line.get_gid() or "").startswith("median")
    }
    assert result == {
        "median alexnet eval cpu node_selector.kind=old": [10, 20],
        "median alexnet eval cpu node_selector.kind=new": [20, 40],
    }
