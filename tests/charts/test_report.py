"""The report page, and charts as reproducible files."""

import os
import re
import struct
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pyarrow as pa
import pytest
from matplotlib.figure import Figure

from perfdag.charts import pictures, style
from perfdag.charts.pages import report
from perfdag.charts.pictures import Picture, draw_pictures
from perfdag.identity import canonical
from perfdag.results.summary import summarise
from tests.charts import rows
from tests.charts.pages import plan_of, report_of

PLAN = plan_of(suite_text="name: trial # <b>&\n", merged=2)


def words(html: str) -> str:
    """The text of a page without its style and script."""
    bare = re.sub(r"<(style|script)\b.*?</\1>|<[^>]*>", " ", html, flags=re.S)
    return " ".join(unescape(bare).split())


@pytest.fixture(scope="module")
def html() -> str:
    canary = rows.table(*(rows.sample("canary", {}, r, [rows.latency(1e-5 * r)]) for r in (1, 2)))
    return report_of(pa.concat_tables([rows.plain(), rows.swept(), rows.fio(), canary]), PLAN)


def test_the_page_stands_alone_and_its_links_lead_somewhere(html: str) -> None:
    ids = re.findall(r'<[^>]* id="([^"]*)"', html)
    assert len(ids) == len(set(ids))
    assert not re.search(r"<(link|iframe)\b|<[^>]* on\w+=", html)
    assert html.count("<script") == 1
    links = re.findall(r'<[^>]* (?:xlink:)?href="([^"]*)"', html)
    links += re.findall(r"url\((#[^)]+)\)", html)
    within = [link for link in links if not link.startswith("../../site/")]
    assert all(link.startswith("#") and link[1:] in ids for link in within)
    assert all(url.startswith("data:") for url in re.findall(r'<[^>]* src="([^"]*)"', html))
    outside = [
        url
        for url in re.findall(r"(?:https?:)?//[^\s\"'<]+", html)
        if "www.w3.org" not in url and "results/" not in url
    ]
    assert outside == []


@pytest.mark.parametrize(
    "text",
    [
        "20 Nov 2026 02:00 UTC · 7.0 s · node-1 · 2 threads",
        "1 of 11 points failed",
        "12 points: 50 ok, 3 failed, 1 skipped noisy failed skipped",
        "range of the samples; ~: disturbed while it was measured",
        "read IOPS, random read and write, depth 1, steal); 1 skipped",
        "streams=8 3 failed of 3 exit 1: <connection> refused & gone",
        "transport=rdma 1 skipped of 1 no RDMA device",
        "streams=1 throughput 10.2 Gbit/s 10.1 to 10.3 0.98 % 3",
        "95 % interval of the median",
        "streams=2 throughput 18.4 Gbit/s 18.2 to 18.5 0.98 % 3 ~",
        "cpu_model Model <X>",
        "memory_bytes 24 GiB",
        "Suite, with seed 7",
        "name: trial # <b>&",
        "Canary",
    ],
)
def test_the_page_has_summary_failures_values_environment_suite_and_canary(
    text: str, html: str
) -> None:
    assert text in words(html)


def test_missing_and_invalid_are_never_called_ok() -> None:
    gone = "planned, but no result was stored"
    table = rows.table(
        rows.sample("x", {"k": 1}, 1, [], status="missing", error=gone),
        rows.sample("x", {"k": 2}, 1, [rows.throughput(1e9)], status="invalid", error="throttled"),
    )
    text = words(report_of(table))
    assert "2 points: 1 missing, 1 invalid" in text
    assert "k=2 1 invalid of 1 throttled" in text


EVIL = "<script>alert(1)</script>\"'&\x00\x1b]]></pre></style>"


def test_nothing_from_outside_becomes_markup() -> None:
    table = rows.table(
        rows.sample(
            EVIL,
            {"p": EVIL},
            1,
            [rows.throughput(1e9, metric=EVIL, coords={EVIL: EVIL})],
            noise=EVIL,
            entry=EVIL,
        ),
        rows.sample(EVIL, {"p": "x"}, 1, [], status="failed", error=EVIL, entry=EVIL),
    )
    for name in ("env", "nodes", "suite", "run_id", "command", "tool", "unit"):
        field = table.schema.field(name)
        value = canonical({EVIL: EVIL}) if name == "env" else [EVIL] if name == "nodes" else EVIL
        table = table.set_column(
            table.schema.get_field_index(name),
            field,
            pa.array([value] * table.num_rows, field.type),
        )
    html = report_of(table, plan_of(run_id=EVIL, suite=EVIL, suite_text=EVIL))
    assert html.lower().count("<script") == 1, "the page's own"
    assert "\x00" not in html
    assert "\x1b" not in html
    assert "<script>alert(1)</script>" in words(html)


def test_a_file_name_cannot_leave_the_folder() -> None:
    values = {streams: [rows.throughput(streams * 1e9)] for streams in (1, 2)}
    table = rows.table(*(rows.sample("../../x", {"streams": n}, 1, v) for n, v in values.items()))
    assert {picture.benchmark for picture in draw_pictures(summarise(table))} == {"------x"}


def test_write_puts_every_file_once_and_the_report_last() -> None:
    files: dict[str, bytes] = {}
    report.write(summarise(rows.plain()), PLAN, files.__setitem__, "./perfdag-results", False, None)
    names = list(files)
    assert names[:2] == ["plain-throughput-by-streams.svg", "plain-throughput-by-streams.png"]
    assert names[-1] == "report.html"
    assert len(names) == 3
    ET.fromstring(files[names[0]])
    assert files[names[1]].startswith(b"\x89PNG")
    assert files["report.html"].decode().startswith("<!doctype html>")
    assert b'<figure class="wide both">' in files["report.html"], "the only chart takes its row"
    card = report.card_of(summarise(rows.plain()), PLAN, None)
    assert struct.unpack(">II", card[16:24]) == (1200, 630)


def test_a_run_of_many_points_stays_below_a_megabyte_and_says_what_is_left_out() -> None:
    many = [
        rows.sample(
            f"b{k % 7}",
            {"k": k, "long": "x" * 60},
            r,
            [rows.latency(1e-6 * k + 1e-7, coords={"c": c}) for c in ("a", "b")],
        )
        for k in range(1, 700)
        for r in (1, 2)
    ]
    table = rows.table(*many)
    pictures = [
        Picture(
            f"b{k}",
            f"points-{i}",
            "t",
            b"<svg viewBox='0 0 1 1'>" + b"<!-- -->" * 30000 + b"</svg>",
            b"x" * (10**6 if i else 100),
        )
        for k in range(7)
        for i in range(6)
    ]
    html = report_of(table, PLAN, pictures)
    assert len(html.encode()) < 1_000_000
    assert "Chart left out for its size: b6-points-5.svg beside this file." in html
    assert html.count('<img alt="t" src="data:image/png;base64,') == 7, "a smaller PNG stands in"


def test_dictionary_encoded_rows_give_the_same_page() -> None:
    table = rows.plain()
    text = pa.dictionary(pa.int32(), pa.string())
    fields = [pa.field(f.name, text if f.type == pa.string() else f.type) for f in table.schema]
    assert report_of(table.cast(pa.schema(fields)), PLAN) == report_of(table, PLAN)


def test_a_benchmark_with_warm_up_alone_has_no_data() -> None:
    table = rows.plain()
    warm_up = pa.array(["warmup"] * table.num_rows, table.schema.field("phase").type)
    table = table.set_column(table.schema.get_field_index("phase"), "phase", warm_up)
    (picture,) = draw_pictures(summarise(table))
    assert b"no data" in picture.svg


def test_the_head_names_the_revision_that_was_measured() -> None:
    table = rows.plain()
    commit = pa.array(["0123456789abcdef0123456789abcdef01234567"] * table.num_rows)
    at = table.schema.get_field_index("revision")
    page = report_of(table.set_column(at, table.schema.field(at), commit))
    assert "revision 0123456789" in page
    assert "0123456789a" not in page.partition("</header>")[0]
    assert "revision" not in report_of(table).partition("</header>")[0]


def test_a_command_is_named_without_the_scratch_folder_of_its_sample() -> None:
    table = rows.fio((1,))
    commands = [
        f"fio --directory=/tmp/perfdag-6mncgl{k}v/perfdag-fio-112de38{k}-0" for k in range(7)
    ]
    column = pa.array([commands[n % 7] for n in range(table.num_rows)])
    at = table.schema.get_field_index("command")
    html = report_of(table.set_column(at, "command", column))
    assert html.count("fio --directory=SCRATCH") == 1
    assert "112de38" not in html
    assert "<code>ramp</code>" in html, "the paragraph of the clock"


DRAWN = """import hashlib
from perfdag.charts.pictures import draw_pictures
from perfdag.results.summary import summarise
from tests.charts import rows
pictures = draw_pictures(summarise(rows.fio((1, 2))))
digests = [hashlib.sha256(drawn.svg + drawn.png).hexdigest() for drawn in pictures]
"""


def test_processes_draw_equal_bytes_whatever_the_user_set_for_matplotlib(tmp_path: Path) -> None:
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nfigure.figsize: 3.75, 3\n")
    env = {**os.environ, "PYTHONHASHSEED": "1", "MPLBACKEND": "module://matplotlib_inline.backend"}
    argv = [sys.executable, "-c", f"{DRAWN}print(digests)"]
    here = dict[str, list[str]]()
    exec(DRAWN, here)
    assert subprocess.check_output(argv, env=env, text=True) == f"{here['digests']}\n"
    (tmp_path / "matplotlibrc").write_bytes("# grün\n".encode("latin-1"))
    assert "PerfdagError: no charts, because matplotlib cannot read your" in (
        subprocess.run(argv, env=env, stderr=subprocess.PIPE, text=True).stderr
    )


def test_the_data_of_the_site_needs_no_matplotlib() -> None:
    hidden = """import importlib.machinery, sys
find = importlib.machinery.PathFinder.find_spec
importlib.machinery.PathFinder.find_spec = lambda name, *rest: (
    None if name == "matplotlib" else find(name, *rest)
)
import perfdag.charts.pages.site
"""
    subprocess.run([sys.executable, "-c", hidden], check=True)


def test_a_chart_that_fails_is_a_picture_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> Iterator[tuple[str, Figure]]:
        yield "first", style.no_data("drawn before the fault")
        raise RuntimeError("no such column")

    monkeypatch.setattr(pictures, "figures", broken)
    outcome = list(draw_pictures(summarise(rows.plain())))
    assert [picture.slug for picture in outcome] == ["first", "error"]
    assert b"RuntimeError: no such column" in outcome[1].svg


def test_a_metric_of_two_units_has_no_chart_since_one_axis_cannot_show_both() -> None:
    kinds = {"boot": "s", "load": "B/s"}
    samples = [
        rows.sample("import", {"name": name, "n": n}, 1, [rows.value("value", n, unit)], entry=name)
        for name, unit in kinds.items()
        for n in (1.0, 2.0)
    ]
    assert list(draw_pictures(summarise(rows.table(*samples[:2]))))
    assert not list(draw_pictures(summarise(rows.table(*samples))))
