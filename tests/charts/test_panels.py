"""The artists of figures: dots, lines, bands, crosses, axes, words, and the panels of a chart."""

import itertools
import json
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text

from perfdag.charts import style
from perfdag.charts.benchmarks import generic
from perfdag.charts.files import to_bytes
from perfdag.charts.series import metrics, read, runs_words
from perfdag.units import scaled
from tests.charts import rows
from tests.charts.figures import (
    artist,
    artists,
    drawn,
    medians,
    names,
    words,
)


@pytest.mark.parametrize(
    ("points", "labels"),
    [
        pytest.param(
            [
                ({"bs": 4096, "reverse": False}, {"hosts": {"count": 1}}),
                ({"bs": 1 << 20, "reverse": True}, {"hosts": {"count": 2}}),
            ],
            ["bs=4KiB", "bs=1MiB reverse"],
            id="sizes with units, and not what the rest implies",
        ),
        pytest.param(
            [({"rate": None, "k": 1}, {}), ({"rate": 5 * 10**7, "k": 2}, {})],
            ["k=1", "k=2 rate=50Mbit/s"],
            id="not what is unset",
        ),
        pytest.param(
            [({"mode": None}, {}), ({"mode": False}, {})],
            ["mode=null", "mode=false"],
            id="what is unset where it tells points apart",
        ),
        pytest.param(
            [({}, {"hosts": {"count": 1}}), ({}, {"hosts": {"count": 2}})],
            ["hosts.count=1", "hosts.count=2"],
            id="points that differ only in shape",
        ),
    ],
)
def test_labels_of_points(
    points: list[tuple[dict[str, Any], dict[str, Any]]], labels: list[str]
) -> None:
    samples = [
        rows.sample("x", params, 1, [rows.throughput(1e9)], shape=shape) for params, shape in points
    ]
    assert [cell.label for cell in read(rows.table(*samples))] == labels


@pytest.fixture
def figure() -> Figure:
    """The dots of the plain rows."""
    table = rows.plain()
    cells = read(table)
    return generic.dot_figure(cells, metrics(cells), runs_words(table))


def test_dots_are_medians_with_a_range_and_a_tick_of_each_measured_sample(figure: Figure) -> None:
    ax = figure.axes[0]
    solid, hollow = medians(ax)
    assert sorted(solid.get_xdata()) == pytest.approx([10.2e9, 23e9 * 1.02])
    assert list(hollow.get_xdata()) == pytest.approx([18e9 * 1.02]), "that of disturbed samples"
    assert to_hex(hollow.get_markerfacecolor()) == style.PAPER
    [band] = [item for item in artists(ax, "band ") if hasattr(item, "get_segments")]
    assert tuple(band.get_segments()[0][:, 0]) == pytest.approx((10.1e9, 10.3e9))
    assert len(artist(ax, "samples ").get_xdata()) == 9, "without the warm-up"


@pytest.mark.parametrize(
    "text",
    [
        "Highest throughput: streams=4, 23.46 (23.23 to 23.69) Gbit/s, n=3",
        f"run {rows.RUN} on node-1",
        "range (min to max) of n=3",
        "10.2 (10.1 to 10.3) Gbit/s, n=3",
        "18.36 (18.18 to 18.54) Gbit/s, n=3 ~",
        "failed: exit 1: <connection> refused & gone",
        "1 of 4 points without a valid sample",
    ],
)
def test_a_dot_chart_has_its_result_place_values_and_failures_in_words(
    text: str, figure: Figure
) -> None:
    assert text in words(figure)


@pytest.mark.parametrize(
    ("benchmark", "table", "slug", "text"),
    [
        ("generic", rows.plain(), "throughput-by-streams", "23.46 (23.23 to 23.69) Gbit/s, n=3"),
        ("generic", rows.plain(), "throughput-by-streams", "~: a sample was disturbed"),
        ("fio", rows.fio(), "iops-by-iodepth", "interval of the median (95 % or more) of n=6"),
        ("iperf", rows.iperf(), "udp", "lost fraction"),
        ("iperf", rows.iperf(), "udp", "1 Gbit/s, n=1"),
        ("iperf", rows.iperf(), "udp", "none, one sample, of n=1"),
        (
            "iperf",
            rows.iperf(),
            "tcp-throughput-by-streams",
            "bound by a core, not the network: protocol=tcp streams=8",
        ),
    ],
)
def test_words_of_a_picture(benchmark: str, table: pa.Table, slug: str, text: str) -> None:
    assert text in words(drawn(benchmark, table)[slug])


@pytest.mark.parametrize("benchmark", ["generic", "iperf", "fio", "imb"])
def test_a_benchmark_where_all_failed_is_drawn_with_its_reason(benchmark: str) -> None:
    params = {"protocol": "tcp", "rw": "read", "benchmark": "PingPong"}
    table = rows.table(rows.sample("x", params, 1, [], status="failed", error="disk is <full>"))
    assert any("disk is <full>" in words(figure) for figure in drawn(benchmark, table).values())


def test_a_point_with_only_invalid_values_is_not_drawn_as_a_value() -> None:
    value = [rows.throughput(5e9)]
    table = rows.table(rows.sample("x", {}, 1, value, status="invalid", error="one node, not two"))
    [ax, *_] = drawn("generic", table)["points"].axes
    assert not artists(ax, "median ")
    assert artist(ax, "failed")


@pytest.fixture
def sizes() -> Axes:
    """The lines of latency over sizes."""
    [ax] = drawn("generic", rows.swept())["latency-by-message-bytes"].axes
    return ax


def test_a_metric_over_sizes_has_a_log2_axis_with_size_labels_and_log_latency(sizes: Axes) -> None:
    assert (sizes.get_xscale(), sizes.get_yscale()) == ("log", "log")
    axis: Any = sizes.xaxis
    assert axis.get_transform().base == 2
    labels = [axis.get_major_formatter()(tick) for tick in axis.get_major_locator()()]
    assert labels[0] == "0\nB"
    assert "1\nMiB" in labels
    assert sizes.yaxis.get_major_formatter()(1e-5, 0) == "10 us"


def test_a_line_has_the_medians_and_a_band_of_the_order_statistic_interval(sizes: Axes) -> None:
    line = artist(sizes, "median transport=tcp")
    assert len(line.get_xdata()) == 24
    assert line.get_ydata()[-1] == pytest.approx(8e-6 * 1.04 + 2**22 * 1e-9)
    assert line.get_xdata()[0] == 0.5, "a size of zero stands left of the smallest"
    assert artist(sizes, "median transport=shm")
    band = artist(sizes, "band transport=tcp")
    ends = [y for x, y in band.get_paths()[0].vertices if x == 1.0]
    assert (min(ends), max(ends)) == pytest.approx((8e-6 * 1.01 + 1e-9, 8e-6 * 1.07 + 1e-9))
    assert "interval of the median (95 % or more) of n=7" in words(sizes.figure)  # type: ignore[arg-type]


def test_a_line_without_samples_is_a_named_cross_at_the_axis(sizes: Axes) -> None:
    assert list(artist(sizes, "failed").get_ydata()) == [0.0]
    assert names(artists(sizes, "failed name")) == ["transport=rdma: skipped"]


@pytest.mark.parametrize(
    ("benchmark", "table"),
    [
        ("generic", rows.plain()),
        ("generic", rows.swept()),
        ("fio", rows.fio()),
        ("imb", rows.imb()),
        ("iperf", rows.iperf()),
    ],
)
def test_no_text_leaves_the_picture_and_no_labels_of_an_axis_overlap(
    benchmark: str, table: pa.Table
) -> None:
    for slug, figure in drawn(benchmark, table).items():
        figure.draw_without_rendering()
        axes = figure.axes
        ticks = {tick for ax in axes for tick in [*ax.get_xticklabels(), *ax.get_yticklabels()]}
        for text in figure.findobj(Text):
            if isinstance(text, Text) and text.get_text() and text.get_visible():
                box = text.get_window_extent()
                inside = box.x0 >= -1 and max(box.x1 - figure.bbox.x1, box.y1 - figure.bbox.y1) <= 1
                assert inside or text in ticks, (slug, text.get_text())
        for ax in axes:
            low, high = sorted(ax.get_xlim())
            shown = [
                tick.get_window_extent()
                for tick in ax.get_xticklabels()
                if tick.get_text() and low <= tick.get_position()[0] <= high
            ]
            assert not any(a.overlaps(b) for a, b in itertools.pairwise(shown)), slug


def reads(
    benchmark_params: dict[str, Any], rate: float, late: float, times: int = 1, hosts: int = 0
) -> list[list[dict[str, Any]]]:
    """Samples of random reads of fio."""
    params, values = {"rw": "randread", **benchmark_params}, rows.io("read", rate, late)
    shape = {"hosts": {"count": hosts}} if hosts else {}
    return [
        rows.sample("fio", params, number, values, shape=shape) for number in range(1, times + 1)
    ]


def test_fio_depth_curve_has_iops_over_p99_with_the_depth_at_each_point() -> None:
    figures = drawn("fio", rows.fio())
    [ax] = figures["queue-depth"].axes
    assert ax.get_yscale() == "log"
    [curve] = medians(ax)
    rates = [20e3 * depth**0.6 * 1.07 for depth in (1, 4, 16, 64)]
    assert list(curve.get_xdata()) == pytest.approx(rates)
    assert names(ax.texts) == ["1", "4", "16", "64"]
    assert "No knee up to 64 in flight" in words(figures["queue-depth"])
    assert not {"latency", "workers"} & figures.keys(), "two percentiles, and no workers"


def test_the_knee_of_a_depth_curve_is_marked_and_named() -> None:
    samples = []
    for depth in (1, 2, 4, 8, 16, 32):
        rate = min(20e3 * depth, 160e3)  # a device of eight places: beyond, I/Os only wait
        samples += reads({"iodepth": depth}, rate, depth / rate, times=3)
    figure = drawn("fio", rows.table(*samples))["queue-depth"]
    [ring] = artists(figure.axes[0], "knee")
    assert list(ring.get_xdata()) == [160e3]
    assert "Knee at 8 in flight: 160 k/s at p99 200 us" in words(figure)


def test_the_depth_of_a_curve_is_of_all_jobs_and_hosts() -> None:
    samples = [
        sample
        for depth in (1, 2, 4)
        for sample in reads({"iodepth": depth, "numjobs": 4}, 1e3 * depth, 1e-3, times=2, hosts=2)
    ]
    figure = drawn("fio", rows.table(*samples))["queue-depth"]
    assert names(figure.axes[0].texts) == ["8", "16", "32"]
    assert "iodepth x numjobs x hosts" in words(figure)
    assert "No knee up to 32 in flight" in words(figure)


def test_fio_at_two_depths_has_dots_alone_with_a_latency_panel_for_each_direction() -> None:
    figures = drawn("fio", rows.fio((1, 4)))
    assert list(figures) == ["points"]
    labels = [ax.get_xlabel().split(" (")[0] for ax in figures["points"].axes]
    assert labels == ["IOPS", "bandwidth", "read latency", "write latency"]


def test_the_distribution_of_fio_s_latency_has_its_tail_in_decades() -> None:
    figure = drawn("fio", rows.fio_grid())["latency"]
    [ax] = figure.axes
    assert ax.get_xscale() == "log"
    ticks = ["p50", "p90", "p95", "p99", "p99.9", "p99.99"]
    assert names(ax.get_yticklabels()) == ticks
    assert len(artists(ax, "median ")) == 6, "the longest tails, as the subtitle says"
    assert "the 6 longest tails of 16" in words(figure)
    line = artist(ax, "median bs=4KiB iodepth=1 rw=randread")
    late = 80e-6 * (1 + 1 / 16) * (1 + 4096 / 65536) * 1.04
    assert list(line.get_xdata()) == pytest.approx([late * k for k in (1, 1.6, 3, 9, 20)])
    assert list(line.get_ydata()) == pytest.approx([0.30103, 1, 2, 3, 4])


def test_fio_names_the_worker_that_is_slower_than_the_others() -> None:
    values = {"node-1": 9e3, "node-2": 4e3, "node-3": 10e3}
    of_all = rows.io("read", sum(values.values()), 1e-3)
    each = [
        {**rows.io("read", value, 1)[0], "subject": node, "headline": False}
        for node, value in values.items()
    ]
    samples = [rows.sample("fio", {"rw": "randread"}, number, of_all + each) for number in (1, 2)]
    figure = drawn("fio", rows.table(*samples))["workers"]
    assert "Slowest worker: node-2, at 0.44 of the median one" in words(figure)
    assert names(figure.axes[0].get_yticklabels()) == ["node-2", "node-1", "node-3"]


def collective(
    mpi: str, hosts: int, ranks: int, late: float, nodes: int | None = None
) -> list[dict[str, Any]]:
    values = [
        rows.latency(late, stat="mean", coords={"message_bytes": size}, headline=False)
        for size in (0, 64, 4096)
    ]
    params = {"benchmark": "Allreduce", "ranks": ranks, "ranks_per_host": ranks // hosts}
    outcome = rows.sample(
        "imb", params | {"mpi": mpi}, 1, values, shape={"hosts": {"count": hosts}}
    )
    placed = [f"node-{host % (nodes or hosts)}" for host in range(hosts)]
    return [{**row, "nodes": placed} for row in outcome]


def heatmap(figure: Figure) -> tuple[list[str], np.ndarray]:
    """The labels of the rows of a heat map, and its medians."""
    ax = figure.axes[0]
    return names(ax.get_yticklabels()), np.asarray(artist(ax, "median").get_array())


def test_imb_collective_with_three_rank_counts_has_a_heatmap_of_the_medians() -> None:
    labels, grid = heatmap(drawn("imb", rows.imb())["allreduce-ranks"])
    assert grid.shape == (3, 20)
    assert grid[2, 0] == pytest.approx(8e-6)
    assert grid[0, -1] == pytest.approx(2e-6 + 2**20 * 1e-9 * 2)
    assert labels == ["1 host x 2", "1 host x 4", "1 host x 8"]


def test_imb_has_a_heatmap_for_each_setting_and_a_row_for_each_number_of_nodes_and_ranks() -> None:
    units = {"intel": 1e-6, "openmpi": 1e-3}
    samples = [
        collective(mpi, hosts, ranks, hosts * unit + ranks * 1e-9)
        for mpi, unit in units.items()
        for hosts, ranks in ((1, 4), (2, 4), (4, 8))
    ]
    figures = drawn("imb", rows.table(*samples))
    assert list(figures) == ["allreduce", "allreduce-ranks", "allreduce-ranks-2"]
    for slug, (mpi, unit) in zip(list(figures)[1:], units.items(), strict=True):
        labels, grid = heatmap(figures[slug])
        assert labels == ["1 host x 4", "2 hosts x 2", "4 hosts x 2"]
        expected = [unit + 4e-9, 2 * unit + 4e-9, 4 * unit + 8e-9]
        assert list(grid[:, 0]) == pytest.approx(expected)
        assert f"mpi={mpi}" in words(figures[slug])


def test_imb_has_zero_byte_latency_and_half_bandwidth_on_each_line() -> None:
    figure = drawn("imb", rows.pingpong())["pingpong"]
    latency, bandwidth = figure.axes
    assert names(artists(latency, "zero-byte")) == ["0.424 us", "14.84 us"]
    rings = artists(bandwidth, "half-bandwidth")
    assert [float(ring.get_xdata()[0]) for ring in rings] == [4096, 65536]
    for ring, start, peak in zip(rings, (0.4e-6, 14e-6), (9e9, 3e9), strict=True):
        size = float(ring.get_xdata()[0])
        on_the_line = size / ((start + size / peak) * 1.06)
        assert float(ring.get_ydata()[0]) == pytest.approx(on_the_line)
    assert "ring: first size at half of the peak" in words(figure)


def test_iperf_draws_protocols_apart_and_throughput_over_streams() -> None:
    figures = drawn("iperf", rows.iperf())
    slugs = ["tcp-throughput-by-streams", "tcp-retransmits-by-streams", "udp"]
    assert list(figures) == slugs, "no grid of paths, and no seconds"
    curves = medians(figures["tcp-throughput-by-streams"].axes[0])
    assert [list(line.get_xdata()) for line in curves] == [[1, 2, 4, 8]] * 2


def test_iperf_second_by_second_shows_the_dip() -> None:
    figure = drawn("iperf", rows.iperf_paths())["tcp-seconds"]
    [ax] = figure.axes
    assert ax.get_xscale() == "linear"
    curves = artists(ax, "median ")
    assert len(curves) == 6
    first = curves[0]
    assert first.get_gid() == "median network.mtu=9000 streams=4", "the unsteadiest first"
    assert list(first.get_xdata()) == list(range(1, 11))
    values = list(first.get_ydata())
    assert values[4] == pytest.approx(min(values))
    assert values[4] / values[3] == pytest.approx(0.5 / 1.008)
    assert "the 6 unsteadiest of 8 points" in words(figure)


def test_many_points_go_on_to_further_figures_and_the_rest_is_named() -> None:
    samples = [
        rows.sample("x", {"k": f"k{number}"}, 1, [rows.throughput(1e9 + number)])
        for number in range(200)
    ]
    figures = drawn("generic", rows.table(*samples))
    assert list(figures) == [f"points-{number}" for number in range(1, 7)]
    text = "first 144 of 200 points, the others are in the rows"
    assert text in words(figures["points-1"])


def test_a_dollar_sign_in_a_label_is_text() -> None:
    table = rows.table(
        rows.sample("x", {"p": "$a_{b}$"}, 1, [rows.throughput(1e9)]),
        rows.sample("x", {"p": "$"}, 1, []),
    )
    for figure in drawn("generic", table).values():
        assert b"$a_{b}$" in to_bytes(figure)[0]


@pytest.mark.parametrize(
    ("unit", "largest", "expected"),
    [
        ("bit/s", 2.3e10, (1e9, "Gbit/s")),
        ("s", 3e-5, (1e-6, "us")),
        ("s", 90.0, (1.0, "s")),
        ("B", 3 << 20, (1 << 20, "MiB")),
        ("1/s", 4e4, (1e3, "k/s")),
        ("1", 0.3, (1.0, "")),
        ("V", 3.0, (1.0, "V")),
        ("s", float("nan"), (1e-6, "us")),
    ],
)
def test_scaled(unit: str, largest: float, expected: tuple[float, str]) -> None:
    assert scaled(unit, largest) == expected


def sweep_rows(*windows: int) -> pa.Table:
    """Return two protocols over six numbers of streams, for each window."""
    return rows.table(
        *[
            rows.sample(
                "x",
                {"streams": streams, "window": window, "protocol": protocol},
                repetition,
                [rows.throughput(streams * window * rate * (1 + repetition / 50))],
            )
            for streams in (1, 2, 4, 8, 16, 32)
            for window in windows
            for protocol, rate in (("tcp", 1e9), ("udp", 5e8))
            for repetition in (1, 2, 3)
        ]
    )


def test_a_swept_parameter_is_a_log_axis_and_the_others_are_lines() -> None:
    [figure] = drawn("generic", sweep_rows(1, 2)).values()
    [ax] = figure.axes
    assert (ax.get_xscale(), ax.get_xlabel()) == ("log", "streams")
    by_label = {line.get_label(): line for line in ax.lines if line.get_gid()}
    assert set(by_label) == {
        f"protocol={protocol} window={window}" for window in (1, 2) for protocol in ("tcp", "udp")
    }
    line: Any = by_label["protocol=tcp window=2"]
    assert list(line.get_xdata()) == [1, 2, 4, 8, 16, 32]
    assert list(line.get_ydata()) == pytest.approx([2e9 * n * 1.04 for n in line.get_xdata()])


def test_more_lines_than_colours_are_panels_of_one_parameter() -> None:
    [figure] = drawn("generic", sweep_rows(1, 2, 4, 5)).values()
    labels = [f"streams (window={window})" for window in (1, 2, 4, 5)]
    assert [ax.get_xlabel() for ax in figure.axes] == labels
    shown = [line.get_label() for line in figure.axes[3].lines if line.get_gid()]
    assert shown == ["protocol=tcp", "protocol=udp"]


def test_two_values_of_a_parameter_are_dots() -> None:
    table = sweep_rows(1)
    kept = [json.loads(text)["streams"] in (1, 2) for text in table["params"].to_pylist()]
    assert list(drawn("generic", table.filter(kept))) == ["points"]


def marks(figure: Figure) -> list[str]:
    """The texts under the mouse of a figure as SVG."""
    return re.findall(r"<title>(.*?)</title>", to_bytes(figure)[0].decode())


def test_every_mark_of_a_line_shows_its_values() -> None:
    figure, [ax] = style.figure()
    ax.plot([1, 2, float("nan")], [0.001, 0.002, 0.003], marker="o", label="read")
    unit = style.value_axis(ax.yaxis, "s", 0.003)
    ax.set(xlabel="depth", ylabel=style.axis_label("latency", unit, "lower"))
    assert marks(figure) == ["read: latency (ms) 1, depth 1", "read: latency (ms) 2, depth 2"]
