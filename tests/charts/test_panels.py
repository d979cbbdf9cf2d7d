import itertools
import json
import re

import matplotlib
import numpy as np
import pyarrow as pa
import pytest
from matplotlib.collections import FillBetweenPolyCollection, LineCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from perfdag.charts import lines, style
from perfdag.charts.benchmarks import fio, generic, imb, iperf
from perfdag.charts.files import ALONG, to_bytes
from perfdag.charts.series import metrics, of_benchmark, read, runs_words
from perfdag.units import scaled
from tests.charts import rows
from tests.charts.cases import run_picture


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
def test_labels_of_points(points, labels):
    samples = [
        rows.sample("x", params, 1, [rows.throughput(1e9)], shape=shape) for params, shape in points
    ]
    assert [cell.label for cell in read(rows.table(*samples))] == labels


def drawn(module, table: pa.Table) -> dict[str, Figure]:
    return dict(module.figures(table))


def artists(ax, gid: str) -> list:
    return [item for item in ax.get_children() if item.get_gid() == gid]


def texts(figure: Figure) -> str:
    return "\n".join(t.get_text() for t in figure.findobj(matplotlib.text.Text))


@pytest.fixture
def figure() -> Figure:
    """The dots of the plain rows."""
    table = rows.plain()
    cells = read(table)
    return generic.dot_figure(cells, metrics(cells), runs_words(table))


def test_dots_are_the_medians_of_the_measured_samples_without_the_warmup(figure: Figure):
    medians = [line for line in artists(figure.axes[0], "median ") if isinstance(line, Line2D)]
    # streams=2 was disturbed, so its dot is an artist of its own, hollow
    solid, hollow = medians
    assert sorted(solid.get_xdata()) == pytest.approx([10.2e9, 23e9 * 1.02])
    assert list(hollow.get_xdata()) == pytest.approx([18e9 * 1.02])
    assert to_hex(hollow.get_markerfacecolor()) == style.PAPER


def test_bars_reach_from_the_smallest_to_the_largest_of_three_samples(figure: Figure):
    (band,) = [
        artist for artist in artists(figure.axes[0], "band ") if isinstance(artist, LineCollection)
    ]
    ends = [tuple(segment[:, 0]) for segment in band.get_segments()]
    assert ends[0] == pytest.approx((10.1e9, 10.3e9))
    assert "range (min to max) of n=3" in texts(figure)


def test_every_sample_is_a_tick(figure: Figure):
    (ticks,) = artists(figure.axes[0], "samples ")
    assert len(ticks.get_xdata()) == 9


def test_headline_comes_first_and_axis_labels_have_unit_and_direction(figure: Figure):
    assert [ax.get_xlabel() for ax in figure.axes] == [
        "throughput (Gbit/s), higher is better",
        "retransmits, lower is better",
    ]


def test_ticks_are_in_the_scaled_unit(figure: Figure):
    axis = figure.axes[0].xaxis
    assert axis.get_major_formatter()(20e9, 0) == "20"
    assert figure.axes[0].get_xlim()[0] == 0


def test_a_failed_point_is_a_hollow_grey_cross_at_the_axis_with_its_reason(figure: Figure):
    (cross,) = artists(figure.axes[0], "failed")
    assert cross.get_marker() == "X"
    assert cross.get_markerfacecolor() == "none"
    assert to_hex(cross.get_markeredgecolor()) == style.MUTED
    assert list(cross.get_xdata()) == [0.0]
    assert "failed: exit 1: <connection> refused & gone" in texts(figure)
    assert "1 of 4 points without a valid sample" in texts(figure).replace("\n", " ")


def test_title_is_the_finding_and_subtitle_names_run_and_place(figure: Figure):
    title, subtitle = (t.get_text().replace("\n", " ") for t in figure.texts)
    assert title.startswith("Highest throughput: streams=4, 23.46 (23.23 to 23.69) Gbit/s, n=3")
    assert f"run {rows.RUN} on node-1" in subtitle


def test_each_dot_has_its_value_and_a_disturbed_one_a_mark(figure: Figure):
    assert "10.2 (10.1 to 10.3) Gbit/s, n=3" in texts(figure)
    assert "18.36 (18.18 to 18.54) Gbit/s, n=3 ~" in texts(figure)


@pytest.mark.parametrize(
    ("module", "table", "slug", "words"),
    [
        (generic, rows.plain(), "throughput-by-streams", "23.46 (23.23 to 23.69) Gbit/s, n=3"),
        (generic, rows.plain(), "throughput-by-streams", "~: a sample was disturbed"),
        (fio, rows.fio(), "iops-by-iodepth", "interval of the median (95 % or more) of n=6"),
        (iperf, rows.iperf(), "udp", "lost fraction"),
        (iperf, rows.iperf(), "udp", "1 Gbit/s, n=1"),
        (iperf, rows.iperf(), "udp", "none, one sample, of n=1"),
        (
            iperf,
            rows.iperf(),
            "tcp-throughput-by-streams",
            "bound by a core, not the network: protocol=tcp streams=8",
        ),
    ],
)
def test_a_picture_says(module, table, slug, words):
    assert words in texts(drawn(module, table)[slug]).replace("\n", " ")


@pytest.mark.parametrize("module", [generic, iperf, fio, imb])
def test_a_benchmark_where_all_failed_is_drawn_with_its_reason(module):
    params = {"protocol": "tcp", "rw": "read", "benchmark": "PingPong"}
    table = rows.table(rows.sample("x", params, 1, [], status="failed", error="disk is <full>"))
    figures = list(drawn(module, table).values())
    assert any("disk is <full>" in texts(figure) for figure in figures)


def test_a_point_with_only_invalid_values_is_not_drawn_as_a_value():
    table = rows.table(
        rows.sample(
            "x", {}, 1, [rows.throughput(5e9)], status="invalid", error="asked two nodes, got one"
        )
    )
    figure = drawn(generic, table)["points"]
    assert not artists(figure.axes[0], "median ")
    assert len(artists(figure.axes[0], "failed")) == 1


def test_a_metric_over_sizes_has_a_log2_axis_with_size_labels_and_log_latency():
    figure = drawn(generic, rows.swept())["latency-by-message-bytes"]
    (ax,) = figure.axes
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert ax.xaxis.get_transform().base == 2
    labels = [ax.xaxis.get_major_formatter()(tick) for tick in ax.xaxis.get_major_locator()()]
    assert labels[0] == "0\nB"
    assert "1\nMiB" in labels
    assert ax.yaxis.get_major_formatter()(1e-5, 0) == "10 us"


def test_one_line_and_one_band_a_series_with_the_data_of_the_medians():
    (ax,) = drawn(generic, rows.swept())["latency-by-message-bytes"].axes
    (line,) = artists(ax, "median transport=tcp")
    assert len(line.get_xdata()) == 24
    assert line.get_ydata()[-1] == pytest.approx(8e-6 * 1.04 + 2**22 * 1e-9)
    # a size of zero stands left of the smallest
    assert line.get_xdata()[0] == 0.5
    assert len(artists(ax, "median transport=shm")) == 1


def test_a_band_of_seven_samples_is_the_order_statistic_interval():
    (ax,) = drawn(generic, rows.swept())["latency-by-message-bytes"].axes
    (band,) = artists(ax, "band transport=tcp")
    assert isinstance(band, FillBetweenPolyCollection)
    ys = [y for x, y in band.get_paths()[0].vertices if x == 1.0]
    assert (min(ys), max(ys)) == pytest.approx((8e-6 * 1.01 + 1e-9, 8e-6 * 1.07 + 1e-9))
    assert "interval of the median (95 % or more) of n=7" in texts(ax.figure)


def test_a_line_without_samples_is_a_named_cross_at_the_axis():
    (ax,) = drawn(generic, rows.swept())["latency-by-message-bytes"].axes
    (cross,) = artists(ax, "failed")
    assert list(cross.get_ydata()) == [0.0]
    assert [t.get_text() for t in artists(ax, "failed name")] == ["transport=rdma: skipped"]


def test_names_at_line_ends_do_not_overlap():
    figure = drawn(generic, rows.swept())["latency-by-message-bytes"]
    figure.draw_without_rendering()
    boxes = [
        item.get_window_extent()
        for item in [*artists(figure.axes[0], "direct"), *artists(figure.axes[0], "failed name")]
    ]
    assert len(boxes) == 3
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


@pytest.mark.parametrize(
    ("module", "table"),
    [
        (generic, rows.plain()),
        (generic, rows.swept()),
        (fio, rows.fio()),
        (imb, rows.imb()),
        (iperf, rows.iperf()),
    ],
)
def test_no_text_leaves_the_picture_and_no_labels_of_an_axis_overlap(module, table):
    for slug, figure in module.figures(table):
        figure.draw_without_rendering()
        for text in figure.findobj(matplotlib.text.Text):
            if text.get_text() and text.get_visible():
                box = text.get_window_extent()
                ticks = {
                    t for ax in figure.axes for t in [*ax.get_xticklabels(), *ax.get_yticklabels()]
                }
                if text not in ticks:
                    assert box.x0 >= -1, (slug, text.get_text())
                    assert box.x1 <= figure.bbox.x1 + 1, (slug, text.get_text())
                    assert box.y1 <= figure.bbox.y1 + 1, (slug, text.get_text())
        for ax in figure.axes:
            low, high = sorted(ax.get_xlim())
            shown = [
                t.get_window_extent()
                for t in ax.get_xticklabels()
                if t.get_text() and low <= t.get_position()[0] <= high
            ]
            assert not any(a.overlaps(b) for a, b in itertools.pairwise(shown)), slug


def test_fio_depth_curve_has_iops_over_p99_with_the_depth_at_each_point():
    (ax,) = drawn(fio, rows.fio())["queue-depth"].axes
    assert ax.get_yscale() == "log"
    (curve,) = [line for line in ax.lines if (line.get_gid() or "").startswith("median")]
    rates = [20e3 * depth**0.6 * 1.07 for depth in (1, 4, 16, 64)]
    assert list(curve.get_xdata()) == pytest.approx(rates)
    assert [t.get_text() for t in ax.texts] == ["1", "4", "16", "64"]
    assert "No knee up to 64 in flight" in " ".join(t.get_text() for t in ax.figure.texts)


def test_the_knee_of_a_depth_curve_is_marked_and_named():
    samples = []
    for depth in (1, 2, 4, 8, 16, 32):
        rate = min(20e3 * depth, 160e3)  # a device of eight places: beyond, I/Os only wait
        samples += [
            rows.sample(
                "fio", {"rw": "randread", "iodepth": depth}, r, rows.io("read", rate, depth / rate)
            )
            for r in (1, 2, 3)
        ]
    figure = drawn(fio, rows.table(*samples))["queue-depth"]
    (ring,) = [line for line in figure.axes[0].lines if (line.get_gid() or "").startswith("knee")]
    assert list(ring.get_xdata()) == [160e3]
    assert "Knee at 8 in flight: 160 k/s at p99 200 us" in " ".join(
        " ".join(t.get_text() for t in figure.texts).split()
    )


def test_the_depth_of_a_curve_is_of_all_jobs_and_hosts():
    samples = []
    for depth in (1, 2, 4):
        params = {"rw": "randread", "iodepth": depth, "numjobs": 4}
        samples += [
            rows.sample(
                "fio", params, r, rows.io("read", 1e3 * depth, 1e-3), shape={"hosts": {"count": 2}}
            )
            for r in (1, 2)
        ]
    figure = drawn(fio, rows.table(*samples))["queue-depth"]
    assert [t.get_text() for t in figure.axes[0].texts] == ["8", "16", "32"]
    assert "iodepth x numjobs x hosts" in texts(figure)
    assert "No knee up to 32 in flight" in texts(figure)


def test_curves_that_are_not_drawn_are_counted_and_not_in_the_title():
    samples = []
    for jobs in range(1, 9):
        for depth in (1, 2, 4):
            rate = 1e3 * jobs * depth
            samples.append(
                rows.sample(
                    "fio",
                    {"rw": "randread", "iodepth": depth, "numjobs": jobs},
                    1,
                    rows.io("read", rate, 1e-3),
                )
            )
    figure = drawn(fio, rows.table(*samples))["queue-depth"]
    assert (
        len([line for line in figure.axes[0].lines if (line.get_gid() or "").startswith("median ")])
        == 6
    )
    assert "first 6 of 8 curves" in texts(figure)
    assert "and 3 more" in texts(figure).replace("\n", " "), (
        "of the six, three are told in the title"
    )
    assert "first" not in texts(drawn(fio, rows.fio())["queue-depth"])


def test_fio_has_a_latency_panel_for_each_direction():
    figure = drawn(fio, rows.fio((1, 4)))["points"]
    assert [ax.get_xlabel().split(" (")[0] for ax in figure.axes] == [
        "IOPS",
        "bandwidth",
        "read latency",
        "write latency",
    ]


def test_two_queue_depths_make_no_curve():
    assert list(drawn(fio, rows.fio((1, 4)))) == ["points"]


def test_imb_collective_with_three_rank_counts_has_a_heatmap_of_the_medians():
    ax = drawn(imb, rows.imb())["allreduce-ranks"].axes[0]
    (mesh,) = artists(ax, "median")
    grid = np.asarray(mesh.get_array())
    assert grid.shape == (3, 20)
    assert grid[2, 0] == pytest.approx(8e-6)
    assert grid[0, -1] == pytest.approx(2e-6 + 2**20 * 1e-9 * 2)
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "1 host x 2",
        "1 host x 4",
        "1 host x 8",
    ]


def collective(mpi: str, hosts: int, ranks: int, late: float, nodes: int | None = None):
    values = [
        rows.latency(late, stat="mean", coords={"message_bytes": size}, headline=False)
        for size in (0, 64, 4096)
    ]
    params = {
        "benchmark": "Allreduce",
        "ranks": ranks,
        "ranks_per_host": ranks // hosts,
        "mpi": mpi,
    }
    outcome = rows.sample("imb", params, 1, values, shape={"hosts": {"count": hosts}})
    return [
        {**row, "nodes": [f"node-{k % (nodes or hosts)}" for k in range(hosts)]} for row in outcome
    ]


def test_imb_hosts_that_shared_a_node_are_not_called_nodes():
    samples = [
        collective("intel", hosts, ranks, 1e-6 * ranks, nodes)
        for hosts, ranks, nodes in ((1, 2, 1), (2, 2, 1), (4, 4, 2), (2, 8, 2))
    ]
    ax = drawn(imb, rows.table(*samples))["allreduce-ranks"].axes[0]
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "1 host x 2",
        "2 hosts on 1 node x 1",
        "2 hosts x 4",
        "4 hosts on 2 nodes x 1",
    ]
    assert "node" not in ax.get_ylabel()


def test_imb_has_a_heatmap_for_each_setting_and_a_row_for_each_number_of_nodes_and_ranks():
    samples = [
        collective("intel", hosts, ranks, hosts * 1e-6 + ranks * 1e-9)
        for hosts, ranks in ((1, 4), (2, 4), (4, 8))
    ]
    samples += [
        collective("openmpi", hosts, ranks, hosts * 1e-3 + ranks * 1e-9)
        for hosts, ranks in ((1, 4), (2, 4), (4, 8))
    ]
    figures = drawn(imb, rows.table(*samples))
    assert list(figures) == ["allreduce", "allreduce-ranks", "allreduce-ranks-2"]
    for slug, unit, output in (
        ("allreduce-ranks", 1e-6, "intel"),
        ("allreduce-ranks-2", 1e-3, "openmpi"),
    ):
        ax = figures[slug].axes[0]
        assert [label.get_text() for label in ax.get_yticklabels()] == [
            "1 host x 4",
            "2 hosts x 2",
            "4 hosts x 2",
        ]
        (mesh,) = artists(ax, "median")
        assert list(np.asarray(mesh.get_array())[:, 0]) == pytest.approx(
            [unit + 4e-9, 2 * unit + 4e-9, 4 * unit + 8e-9]
        )
        assert f"mpi={output}" in texts(figures[slug])


def test_imb_pingpong_has_latency_over_bandwidth_on_one_size_axis():
    latency, bandwidth = drawn(imb, rows.imb("PingPong", (2,)))["pingpong"].axes
    assert (latency.get_yscale(), bandwidth.get_yscale()) == ("log", "linear")
    assert latency.get_xlim() == bandwidth.get_xlim()
    assert bandwidth.get_ylabel() == "bandwidth (MB/s)\nhigher is better"


def test_iperf_draws_protocols_apart_and_throughput_over_streams():
    figures = drawn(iperf, rows.iperf())
    assert list(figures) == [
        "tcp-throughput-by-streams",
        "tcp-retransmits-by-streams",
        "udp",
    ]
    lines_drawn = [
        line
        for line in figures["tcp-throughput-by-streams"].axes[0].lines
        if (line.get_gid() or "").startswith("median")
    ]
    assert [list(line.get_xdata()) for line in lines_drawn] == [[1, 2, 4, 8]] * 2


def test_many_points_go_on_to_further_figures_and_the_rest_is_named():
    table = rows.table(
        *(rows.sample("x", {"k": f"k{k}"}, 1, [rows.throughput(1e9 + k)]) for k in range(200))
    )
    figures = drawn(generic, table)
    assert list(figures) == [f"points-{k}" for k in range(1, 7)]
    assert "first 144 of 200 points, the others are in the rows" in texts(
        figures["points-1"]
    ).replace("\n", " ")


def test_a_dollar_sign_in_a_label_is_text():
    table = rows.table(
        rows.sample("x", {"p": "$a_{b}$"}, 1, [rows.throughput(1e9)]),
        rows.sample("x", {"p": "$"}, 1, []),
    )
    for _, figure in generic.figures(table):
        svg, _ = to_bytes(figure)
        assert b"$a_{b}$" in svg


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
def test_scaled(unit, largest, expected):
    assert scaled(unit, largest) == expected


def test_a_legend_replaces_the_names_of_more_than_five_lines():
    with style.house():
        _, (ax,) = style.figure()
        series = [s for c in read(of_benchmark(rows.swept(), "swept")) for s in c.series("latency")]
        outcome = [
            lines.Line(f"line {k}", {float(s.coords["message_bytes"]): s for s in series[:24]})
            for k in range(6)
        ]
        lines.panel(ax, outcome, metric="latency", x_label="size")
    assert len(ax.get_legend().get_texts()) == 6
    assert not artists(ax, "direct")


def test_fio_has_a_panel_for_each_pattern_and_block_size_on_the_same_axes():
    figure = drawn(fio, rows.fio_grid())["queue-depth"]
    assert [ax.get_title(loc="left") or ax.get_title() for ax in figure.axes] == [
        "randread, 4 KiB",
        "randread, 64 KiB",
        "randwrite, 4 KiB",
        "randwrite, 64 KiB",
    ]
    assert (
        len({ax.get_xlim() for ax in figure.axes})
        == len({ax.get_ylim() for ax in figure.axes})
        == 1
    )
    for ax in figure.axes:
        (line,) = artists(ax, "median ")
        assert len(line.get_xdata()) == 4
        assert [t.get_text() for t in ax.texts] == ["1", "4", "16", "64"]
        assert len(artists(ax, "knee ")) == 1


def test_the_distribution_of_fio_s_latency_has_its_tail_in_decades():
    table = rows.fio_grid()
    figure = drawn(fio, table)["latency"]
    (ax,) = figure.axes
    assert ax.get_xscale() == "log"
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "p50",
        "p90",
        "p95",
        "p99",
        "p99.9",
        "p99.99",
    ]
    lines_drawn = [
        item for item in ax.get_children() if (item.get_gid() or "").startswith("median ")
    ]
    assert len(lines_drawn) == 6, "the longest tails, as the subtitle says"
    assert "the 6 longest tails of 16" in texts(figure)
    first = next(
        item for item in lines_drawn if item.get_gid() == "median bs=4KiB iodepth=1 rw=randread"
    )
    late = 80e-6 * (1 + 1 / 16) * (1 + 4096 / 65536) * 1.04
    assert list(first.get_xdata()) == pytest.approx([late * k for k in (1, 1.6, 3, 9, 20)])
    assert list(first.get_ydata()) == pytest.approx([0.30103, 1, 2, 3, 4])


def test_trims_and_writes_are_lines_of_their_own():
    outcome = []
    for depth in (1, 4, 16):
        values = [*rows.io("trim", 1e3 * depth, 1e-3), *rows.io("write", 1e4 * depth, 1e-4)]
        for direction, late in (("trim", 1e-3), ("write", 1e-4)):
            coords = {"direction": direction}
            values += [
                {
                    "metric": "completion_latency",
                    "value": late * k,
                    "unit": "s",
                    "better": "lower",
                    "stat": f"p{p}",
                    "coords": coords,
                }
                for p, k in ((50, 1), (90, 2), (99, 3))
            ]
        outcome.append(
            rows.sample(
                "fio",
                {"rw": "trimwrite", "bs": 4096, "iodepth": depth, "direct": depth > 1},
                1,
                values,
            )
        )
    figures = drawn(fio, rows.table(*outcome))
    (ax,) = figures["latency"].axes
    for line in (
        item for item in ax.get_children() if (item.get_gid() or "").startswith("median ")
    ):
        assert list(line.get_xdata()) == sorted(line.get_xdata()), line.get_gid()
        assert len(line.get_xdata()) == 3
    depths = figures.get("queue-depth")
    assert depths is None or {ax.get_title(loc="left") for ax in depths.axes} == {
        "trimwrite (trim), 4 KiB",
        "trimwrite (write), 4 KiB",
    }


def test_fewer_than_three_percentiles_are_no_distribution():
    assert "latency" not in drawn(fio, rows.fio())


def test_iperf_by_path_has_a_panel_for_each_mtu_and_number_of_streams():
    figures = drawn(iperf, rows.iperf_paths())
    figure = figures["tcp-paths"]
    assert [ax.get_title(loc="left") or ax.get_title() for ax in figure.axes] == [
        "MTU 1500, 1 stream",
        "MTU 1500, 4 streams",
        "MTU 9000, 1 stream",
        "MTU 9000, 4 streams",
    ]
    assert len({ax.get_xlim() for ax in figure.axes}) == 1
    for ax in figure.axes:
        assert [label.get_text() for label in ax.get_yticklabels()] == [
            "default network",
            "network.host",
        ]
        (medians,) = [artist for artist in artists(ax, "median ") if isinstance(artist, Line2D)]
        assert len(medians.get_xdata()) == 2
    assert "tcp-paths" not in drawn(iperf, rows.iperf()), (
        "one point for each number of streams and direction is no grid"
    )


def test_iperf_second_by_second_shows_the_dip():
    figure = drawn(iperf, rows.iperf_paths())["tcp-seconds"]
    (ax,) = figure.axes
    assert ax.get_xscale() == "linear"
    drawn_lines = [
        item for item in ax.get_children() if (item.get_gid() or "").startswith("median ")
    ]
    assert len(drawn_lines) == 6
    dipped = drawn_lines[0]
    assert dipped.get_gid() == "median network.mtu=9000 streams=4", "the unsteadiest first"
    assert list(dipped.get_xdata()) == list(range(1, 11))
    values = list(dipped.get_ydata())
    assert values[4] == pytest.approx(min(values))
    assert values[4] / values[3] == pytest.approx(0.5 / 1.008)
    assert "the 6 unsteadiest of 8 points" in texts(figure)
    assert "tcp-seconds" not in drawn(iperf, rows.iperf()), "no seconds, no figure"


def test_imb_says_zero_byte_latency_and_half_bandwidth_on_each_line():
    figure = drawn(imb, rows.pingpong())["pingpong"]
    latency, bandwidth = figure.axes
    assert [t.get_text() for t in latency.texts if t.get_gid() == "zero-byte"] == [
        "0.424 us",
        "14.84 us",
    ]
    rings = [
        line
        for line in bandwidth.get_lines()
        if (line.get_gid() or "").startswith("half-bandwidth")
    ]
    assert [float(ring.get_xdata()[0]) for ring in rings] == [4096, 65536]
    for ring, start, peak in zip(rings, (0.4e-6, 14e-6), (9e9, 3e9), strict=True):
        size = float(ring.get_xdata()[0])
        assert float(ring.get_ydata()[0]) == pytest.approx(size / ((start + size / peak) * 1.06)), (
            "on the line"
        )
    assert "ring: first size at half of the peak" in texts(figure)


def test_fio_names_the_worker_that_is_slower_than_the_others():
    values = {"node-1": 9e3, "node-2": 4e3, "node-3": 10e3}
    of_all = rows.io("read", sum(values.values()), 1e-3)
    each = [
        {**row, "subject": node, "headline": False, "value": value}
        for node, value in values.items()
        for row in rows.io("read", 1, 1)[:1]
    ]
    table = rows.table(
        *(
            rows.sample("fio", {"rw": "randread"}, repetition, of_all + each)
            for repetition in (1, 2)
        )
    )
    figure = drawn(fio, table)["workers"]
    assert "Slowest worker: node-2, at 0.44 of the median one" in texts(figure)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [
        "node-2",
        "node-1",
        "node-3",
    ]
    assert "workers" not in drawn(fio, rows.fio())


def test_a_legend_of_long_names_stays_within_the_figure() -> None:
    output = [
        {
            "metric": "stage_latency",
            "value": 0.01 * k,
            "unit": "s",
            "better": "lower",
            "headline": True,
            "stat": stat,
            "coords": coords,
        }
        for k, (stat, coords) in enumerate(
            (
                (stat, {"count": 6, "from": "submitted", "to": to})
                for to in ("created", "pending")
                for stat in ("p50", "mean", "max")
            ),
            1,
        )
    ]
    figure = generic.dot_figure(
        read(rows.table(rows.sample("vmi-steady", {}, 1, output))), ("stage_latency",), "here"
    )
    to_bytes(figure)
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert len(legend.get_texts()) == 6
    extent = legend.get_window_extent()
    assert (extent.x0 >= 0, extent.x1 <= figure.bbox.x1) == (True, True)


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
    [figure] = drawn(generic, sweep_rows(1, 2)).values()
    [ax] = figure.axes
    assert (ax.get_xscale(), ax.get_xlabel()) == ("log", "streams")
    medians = {line.get_label(): line for line in ax.lines if line.get_gid()}
    assert set(medians) == {
        f"protocol={protocol} window={window}" for window in (1, 2) for protocol in ("tcp", "udp")
    }
    line = medians["protocol=tcp window=2"]
    assert list(line.get_xdata()) == [1, 2, 4, 8, 16, 32]
    assert list(line.get_ydata()) == pytest.approx([2e9 * n * 1.04 for n in line.get_xdata()])


def test_more_lines_than_colours_are_panels_of_one_parameter() -> None:
    [figure] = drawn(generic, sweep_rows(1, 2, 4, 5)).values()
    assert [ax.get_xlabel() for ax in figure.axes] == [
        f"streams (window={w})" for w in (1, 2, 4, 5)
    ]
    names = [line.get_label() for line in figure.axes[3].lines if line.get_gid()]
    assert names == ["protocol=tcp", "protocol=udp"]


def test_two_values_of_a_parameter_are_dots() -> None:
    table = sweep_rows(1)
    kept = [
        value in (1, 2)
        for value in (json.loads(text)["streams"] for text in table["params"].to_pylist())
    ]
    assert list(drawn(generic, table.filter(kept))) == ["points"]


def test_a_panel_for_each_benchmark_with_its_first_headline():
    table = pa.concat_tables([rows.plain(), rows.imb("PingPong", (2,)), rows.fio()])
    with style.house():
        figure = run_picture.run_picture(table)
        figure.draw_without_rendering()
    plain, imb, fio = figure.axes
    assert (plain.get_xlabel(), plain.get_ylabel()) == (
        "plain: streams",
        "throughput (Gbit/s)\nhigher is better",
    )
    assert (imb.get_xscale(), imb.get_yscale(), imb.get_xlabel()) == (
        "log",
        "log",
        "imb PingPong: message bytes",
    )
    assert fio.get_xlabel() == "fio: iodepth"
    output = "\n".join(text.get_text() for text in figure.findobj(Text)).replace("\n", " ")
    assert (
        "Suite trial: 11 points of 3 benchmarks. Samples: 39 ok, 4 failed. 2 points of 11 "
        "have no valid sample. "
        "Trust: unusable." in output
    )


def test_no_rows_say_no_data():
    figure = run_picture.run_picture(rows.plain().slice(0, 0))
    assert [text.get_text() for text in figure.findobj(Text) if text.get_text()] == ["no data"]


@pytest.mark.parametrize("argv", [[], ["root"], ["a", "b", "c", "d"]])
def test_wrong_arguments_get_the_usage(argv, capsys):
    assert run_picture.main(argv) == 2
    assert "usage:" in capsys.readouterr().err


def test_every_mark_of_a_line_shows_its_values() -> None:
    fig, (ax,) = style.figure()
    ax.plot([1, 2, float("nan")], [0.001, 0.002, 0.003], marker="o", label="read")
    unit = style.value_axis(ax.yaxis, "s", 0.003)
    ax.set(xlabel="depth", ylabel=style.axis_label("latency", unit, "lower"))
    svg, _ = to_bytes(fig)
    assert re.findall(r"<title>(.*?)</title>", svg.decode()) == [
        "read: latency (ms) 1, depth 1",
        "read: latency (ms) 2, depth 2",
    ]


def test_a_curve_without_marks_shows_values_that_are_in_sight() -> None:
    fig, (ax,) = style.figure()
    ax.step(range(200), [k / 100 for k in range(200)], where="post", label="pod\nrunning")
    ax.set(xlabel="seconds since the stage before", ylabel="share", ylim=(0, 1))
    plain = to_bytes(fig)
    texts = re.findall(r"<title>(.*?)</title>", plain[0].decode())
    assert len(texts) == ALONG
    assert texts[0] == "pod running: share 0, seconds since the stage before 0"
    assert texts[-1] == "pod running: share 1, seconds since the stage before 100"
    assert to_bytes(fig) == plain
