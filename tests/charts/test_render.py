import os
import subprocess
import sys
import xml.etree.ElementTree as ET

import pyarrow as pa
import pytest

from perfdag.charts import style
from perfdag.charts.benchmarks import generic
from perfdag.charts.pages import pick
from tests.charts import rows


def test_render_writes_svg_and_png_into_a_folder(tmp_path):
    names = pick.render(rows.plain(), tmp_path / "new")
    assert names == ["plain-points.svg", "plain-points.png"]
    ET.fromstring((tmp_path / "new/plain-points.svg").read_bytes())
    assert (tmp_path / "new/plain-points.png").read_bytes().startswith(b"\x89PNG")


def test_render_hands_files_to_a_callback():
    got = {}
    names = pick.render(rows.plain(), got.__setitem__)
    assert names == list(got)


def test_a_benchmark_with_warm_up_alone_has_no_data():
    table = rows.plain()
    warm_up = pa.array(["warmup"] * table.num_rows, table.schema.field("phase").type)
    table = table.set_column(table.schema.get_field_index("phase"), "phase", warm_up)
    (picture,) = pick.draw(table)
    assert b"no data" in picture.svg


def test_drawing_twice_gives_equal_bytes():
    assert list(pick.draw(rows.iperf())) == list(pick.draw(rows.iperf()))


def test_processes_draw_equal_bytes():
    code = (
        "import hashlib; from perfdag.charts.pages import pick; from tests.charts import rows; "
        "print([hashlib.sha256(made.svg + made.png).hexdigest() for made in pick.draw(rows.fio((1, 2, 4)))])"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in "123"
    ]
    output = {item.communicate()[0] for item in running}
    assert {item.returncode for item in running} == {0}
    assert len(output) == 1


def test_other_rows_give_other_bytes():
    (a,) = pick.draw(rows.plain())
    (b,) = pick.draw(rows.plain().slice(0, 8))
    assert a.svg != b.svg
    assert a.png != b.png


def test_files_hold_no_date():
    (outcome,) = pick.draw(rows.plain())
    assert b"dc:date" not in outcome.svg
    assert b"Date" not in outcome.png


def test_dictionary_encoded_rows_draw_the_same():
    table = rows.plain()
    encoded = table.set_column(
        table.schema.get_field_index("benchmark"),
        "benchmark",
        table["benchmark"].combine_chunks().dictionary_encode(),
    )
    assert list(pick.draw(encoded)) == list(pick.draw(table))


@pytest.mark.parametrize("name", ["nothing-of-that-name", "style", "../x", "series"])
def test_a_benchmark_without_a_chart_gets_the_generic_one(name):
    assert pick.chart(name) is generic.figures


@pytest.mark.parametrize("name", ["iperf", "fio", "imb"])
def test_a_benchmark_with_a_chart_gets_it(name):
    assert pick.chart(name).__module__ == f"perfdag.charts.benchmarks.{name}"


def test_a_chart_that_fails_is_a_picture_that_says_so(monkeypatch):
    def broken(_):
        yield "first", style.no_data("drawn before the fault")
        raise RuntimeError("no such column")

    monkeypatch.setattr(pick, "chart", lambda name: broken)
    outcome = list(pick.draw(rows.plain()))
    assert [picture.slug for picture in outcome] == ["first", "error"]
    assert b"RuntimeError: no such column" in outcome[1].svg


def test_the_canary_has_no_chart():
    canary = rows.table(rows.sample("canary", {}, 0, [rows.latency(1e-5)]))
    assert list(pick.draw(canary)) == []


def test_style_does_not_leak_into_the_process():
    import matplotlib

    before = dict(matplotlib.rcParams)
    list(pick.draw(rows.plain()))
    assert dict(matplotlib.rcParams) == before
