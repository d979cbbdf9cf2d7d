"""Charts from their declarations: what is drawn, what is left out, and what the title claims."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from matplotlib.text import Text

from perfdag.analysis.gate import judge_run
from perfdag.analysis.gate_result import Rules
from perfdag.charts import style
from perfdag.charts.draw import cell_texts
from perfdag.charts.pages import screen
from perfdag.charts.pictures import to_bytes
from perfdag.results.summary import points_of
from perfdag.store.base import FolderStore
from tests.charts import rows
from tests.charts.figures import artist, artists, drawn, names, title, words
from tests.charts.rows import sample, table, value
from tests.stats import synthetic
from tests.stats.synthetic import put, run_id


@pytest.mark.parametrize(
    ("benchmark", "points", "labels"),
    [
        pytest.param(
            "fio",
            [
                ({"bs": 4096, "reverse": False}, {"hosts": {"count": 1}}),
                ({"bs": 1 << 20, "reverse": True}, {"hosts": {"count": 2}}),
            ],
            ["4 KiB", "1 MiB, reverse"],
            id="sizes with units, and not what the rest implies",
        ),
        pytest.param(
            "iperf",
            [({"rate": None, "k": 1}, {}), ({"rate": 5 * 10**7, "k": 2}, {})],
            ["k=1", "50 Mbit/s a stream, k=2"],
            id="not what is unset",
        ),
        pytest.param(
            "x",
            [({"mode": None}, {}), ({"mode": False}, {})],
            ["mode=null", "mode=false"],
            id="what is unset where it tells points apart",
        ),
        pytest.param(
            "x",
            [({}, {"hosts": {"count": 1}}), ({}, {"hosts": {"count": 2}})],
            ["1 host", "2 hosts"],
            id="points that differ only in shape",
        ),
    ],
)
def test_labels_of_points(
    benchmark: str, points: list[tuple[dict[str, Any], dict[str, Any]]], labels: list[str]
) -> None:
    samples = [
        rows.sample(benchmark, params, 1, [rows.throughput(1e9)], shape=shape)
        for params, shape in points
    ]
    assert [state.title for state in points_of(rows.table(*samples))] == labels


def of(metric: str, *values: tuple[Any, ...], benchmark: str = "x", unit: str = "s") -> pa.Table:
    """Rows of a metric: parameters and the values of the repetitions."""
    return table(
        *[
            sample(benchmark, params, r, [value(metric, one, unit, headline=True)])
            for params, *own in values
            for r, one in enumerate(own, 1)
        ]
    )


def streams(windows: tuple[int, ...], counts: tuple[int, ...] = (1, 2, 4, 8, 16, 32)) -> pa.Table:
    """Two protocols over numbers of streams, for each window."""
    values = [
        (
            {"streams": count, "window": window, "protocol": protocol},
            *(count * window * rate * (1 + r / 50) for r in (1, 2, 3)),
        )
        for count in counts
        for window in windows
        for protocol, rate in (("tcp", 1e9), ("udp", 5e8))
    ]
    return of("throughput", *values, unit="bit/s")


CLAIMS: list[tuple[str, pa.Table, dict[str, str]]] = [
    (
        "plain",
        rows.plain(),
        {"throughput-by-streams": "throughput at streams=4: 2.3 times that at streams=1"},
    ),
    (
        "swept",
        rows.swept(),
        {"latency-by-message-bytes": "latency: transport=tcp is 1 to 40 times transport=shm"},
    ),
    (
        "fio",
        rows.fio(),
        {
            "iops-by-iodepth": "IOPS: best 259 kIOPS with ",
            "latency-by-iodepth": "p50 latency: best ",
        },
    ),
    (
        "imb",
        rows.imb("PingPong", (2,)),
        {"sizes-by-message-bytes": "PingPong latency: best 2 µs with 0 B"},
    ),
    (
        "iperf",
        rows.iperf_paths(),
        {
            "throughput": "TCP throughput: network.mtu=9000 is 8.2 % above network.mtu=1500",
            "seconds-by-second": "TCP 1 stream throughput in each second: 9.33 Gbit/s to ",
        },
    ),
    (
        "imb",
        rows.imb("Allreduce", (2, 4, 8)),
        {"sizes-by-message-bytes": "Allreduce latency: best 2 µs with 2 ranks, 0 B"},
    ),
    (
        "x",
        streams((1,), (1, 2)),
        {"points": "throughput: protocol=udp is 0.5 times protocol=tcp"},
    ),
    ("x", of("wall_time", ({}, 0.05, 0.05, 0.05)), {}),
    (
        "x",
        of("wall_time", *(({"entry": f"e{late}"}, late) for late in (1.0, 2.0, 4.0))),
        {"points": "wall time: entry=e1.0 1 s, entry=e2.0 2 s, entry=e4.0 4 s"},
    ),
    (
        "x",
        of("rate", *[({"k": k}, 1e9, 4e9, 9e9) for k in (1, 2, 4)], unit="bit/s"),
        {"rate-by-k": "rate: unusable"},
    ),
    (
        "openfoam",
        of(
            "solve_time", *[({"procs": n}, 80 / n + 10) for n in (1, 2, 4, 8)], benchmark="openfoam"
        ),
        {"scaling-by-procs": "56 % of linear scaling at 8 ranks"},
    ),
    (
        "openfoam",
        of(
            "solve_time",
            *[({"procs": n, "size": s}, s / n + 10) for n in (1, 2, 4, 8) for s in (80, 30)],
            ({"procs": None, "size": 80}, 90),
            benchmark="openfoam",
        ),
        {"scaling-by-procs": "36 to 56 % of linear scaling at 8 ranks"},
    ),
    (
        "x",
        of("rate", *[({"k": k, "way": w}, k + w) for k in (1, 9) for w in (1, 2)], unit="1/s"),
        {"points": "rate: k=9 is 3.67 to 5 times k=1"},
    ),
    (
        "x",
        of("rate", *[({"k": k, "j": j}, k + j) for k in (1, 9) for j in (1, 2, 9)], unit="1/s"),
        {"rate-by-j": "rate: k=9 is 1.8 to 5 times k=1"},
    ),
    (
        "x",
        of("wait", *[({"to": f"place {k}"}, k / 10) for k in range(1, 9)]),
        {"points": "wait: best 100 ms with to=place 1"},
    ),
]


@pytest.mark.parametrize(("benchmark", "made", "claims"), CLAIMS)
def test_what_varies_decides_what_is_drawn_and_what_its_title_claims(
    benchmark: str, made: pa.Table, claims: dict[str, str]
) -> None:
    figures = drawn(benchmark, made)
    assert [slug for slug in figures if slug in claims] == list(claims)
    titles = {slug: title(figure).replace("\u00a0", " ") for slug, figure in figures.items()}
    assert all(titles[slug].startswith(claim) for slug, claim in claims.items()), titles
    assert all(len(text) <= 70 for text in titles.values())
    assert len(set(titles.values())) == len(titles), titles


def test_lines_are_medians_with_a_band_and_name_the_points_without_a_value() -> None:
    figure = drawn("plain", rows.plain())["throughput-by-streams"]
    [ax] = figure.axes
    [line] = artists(ax, "line")
    assert list(line.get_xdata()) == [1, 2, 4]
    assert list(line.get_ydata()) == pytest.approx([10.2e9, 18.36e9, 23.46e9])
    assert "no value: streams=8 (failed)" in words(figure)
    assert "spread: range of the samples, n=3" in words(figure)
    assert ax.get_ylabel() == "throughput (Gbit/s)\nhigher is better"


def test_two_swept_numbers_are_heat_maps_and_two_values_are_joined_dots() -> None:
    figures = drawn("x", streams((1, 2, 4, 5)))
    slugs = ["throughput-by-streams-window", "throughput-by-streams-window-2"]
    assert list(figures) == slugs, "no second chart of one slug is lost"
    claims = [title(figure).replace("\u00a0", " ") for figure in figures.values()]
    assert claims[0] == "protocol=tcp throughput: best 166 Gbit/s with streams=32, window=5"
    assert claims[1].startswith("protocol=udp ")
    grid = np.asarray(artist(figures[slugs[0]].axes[0], "median").get_array()).reshape(4, 6)
    assert grid[3, 5] == pytest.approx(160e9 * 1.04)
    with style.narrow():
        assert list(drawn("x", streams((1, 2, 4, 5)))) == slugs
    [dots] = drawn("x", streams((1,), (1, 2))).values()
    assert len(artists(dots.axes[0], "join")) == 2


def test_numbers_of_a_heat_map_have_units_of_their_own_where_one_would_lose_digits() -> None:
    grid = np.array([[3.11e6, 2e9], [np.nan, 5e8]])
    assert cell_texts(grid, "B/s")[0].tolist() == ["3.11\nMB/s", "2\nGB/s"]
    assert cell_texts(grid[:, 1:], "B/s")[:, 0].tolist() == ["2", "0.5"]


def test_a_failure_is_its_reason_and_scaling_has_its_ideal() -> None:
    lost = drawn("x", table(sample("x", {}, 1, [], status="failed", error="no such device")))
    assert "no such device" in words(lost["points"])
    figure = drawn("openfoam", CLAIMS[10][1])["scaling-by-procs"]
    assert list(artist(figure.axes[0], "ideal").get_ydata()) == pytest.approx([90, 45, 22.5, 11.25])


def test_subjects_are_workers_or_numbered_and_marks_are_said() -> None:
    each = [
        {**rows.io("read", v, 1)[0], "subject": n, "headline": False}
        for n, v in (("a", 9e3), ("b", 4e3))
    ]
    whole = rows.io("read", 13e3, 1e-3)
    made = table(*[sample("fio", {"rw": "read"}, r, whole + each) for r in (1, 2)])
    assert names(drawn("fio", made)["workers"].axes[0].get_yticklabels()) == ["a", "b"]
    seconds = [
        {**value("second_throughput", 1e10, "bit/s"), "subject": f"second {n}"} for n in range(5)
    ]
    made = table(sample("iperf", {}, 1, [rows.throughput(1e10), *seconds]))
    [line] = artists(drawn("iperf", made)["seconds-by-second"].axes[0], "line")
    assert list(line.get_xdata()) == [0, 1, 2, 3, 4]
    fast = value("throughput", 1.0, "1/s", headline=True, coords={"fast": True})
    figures = drawn(
        "resnet50", table(*[sample("resnet50", {"batch": n}, 1, [fast]) for n in (1, 2)])
    )
    assert "smoke test: not comparable" in words(next(iter(figures.values())))


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [
        (0.02, 0.04, "passes"),
        (-0.01, 0.07, "inconclusive: about 40 pairs would tell"),
        (0.06, 0.09, "fails"),
    ],
)
def test_overhead_says_its_verdict_in_its_colour(low: float, high: float, message: str) -> None:
    values = [
        value("overhead", (low + high) / 2, "1", stat="mean", headline=True),
        value("overhead_bound", low, "1", stat="low"),
        value("overhead_bound", high, "1", stat="high"),
        value("pairs_needed", 40, "1"),
    ]
    made = table(sample("resnet50-overhead", {"limit": 0.05}, 1, values))
    figure = drawn("resnet50-overhead", made)["overhead"]
    assert message in words(figure)
    colour = {"passes": style.BETTER, "fails": style.WORSE}.get(message, style.UNCLEAR)
    assert artist(figure.axes[0], "mean").get_color() == colour


def test_hosts_that_shared_a_node_and_disturbed_points_are_said() -> None:
    made = [
        {**row, "nodes": ["n1", "n1"]} for row in sample("x", {"k": 1}, 1, [rows.throughput(1)])
    ]
    made += sample("x", {"k": 2}, 1, [rows.throughput(2.0)], noise="steal 4 %")
    text = words(drawn("x", table(made))["points"])
    assert "hosts shared a node" in text
    assert "hollow: disturbed" in text
    hollow = drawn("x", table(made))["points"].axes[0]
    assert len(artist(hollow, "disturbed ").get_xdata()) == 1
    own = of("rate", ({"k": 1}, 1e9, 4e9, 9e9), ({"k": 9}, 2e9, 2e9, 2e9), unit="bit/s")
    apart = drawn("x", own)
    assert list(artist(apart["points"].axes[0], "unusable ").get_xdata()) == [4e9]
    assert "faint: unusable" in words(apart["points"])


def test_a_dollar_sign_in_a_label_is_text() -> None:
    made = table(*[sample("x", {"p": p}, 1, [rows.throughput(1e9)]) for p in ("$a_{b}$", "$")])
    assert b"$a_{b}$" in to_bytes(drawn("x", made)["points"])[0]


@pytest.mark.parametrize(
    "benchmark",
    [
        "command",
        "fio",
        "imb",
        "iperf",
        "openfoam",
        "rdma-latency",
        "resnet50",
        "scale",
        "torchbench",
        "vmi-burst",
    ],
)
def test_skips_alone_are_said(benchmark: str) -> None:
    made = table(sample(benchmark, {}, 1, [], status="skipped", error="not installed"))
    assert "not installed" in words(next(iter(drawn(benchmark, made).values())))


def test_the_band_of_a_history_ends_where_a_change_would_be_seen(tmp_path: Path) -> None:
    store = FolderStore(str(tmp_path))
    for night in range(12):
        values = {"size=1": [100.0 + night % 3]}
        put(store, synthetic.rows(night, values, metric="wall_time", unit="s", better="lower"))
    [line] = judge_run(store, "net", run_id(11), Rules()).series
    texts = " ".join(text.get_text() for text in screen.history(line).findobj(Text))
    assert line.verdict.text == "same (+9.3 % would be seen)"
    assert "band: where equal runs lie (-8.5 % to +9.3 %)" in texts
