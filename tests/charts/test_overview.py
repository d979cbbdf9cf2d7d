import pyarrow as pa
import pytest
from matplotlib.text import Text

from perfdag.charts import style
from perfdag.charts.pages import pick
from tests.charts import rows


def test_a_panel_for_each_benchmark_with_its_first_headline():
    table = pa.concat_tables([rows.plain(), rows.imb("PingPong", (2,)), rows.fio()])
    with style.house():
        figure = pick.overview(table)
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
    figure = pick.overview(rows.plain().slice(0, 0))
    assert [text.get_text() for text in figure.findobj(Text) if text.get_text()] == ["no data"]


@pytest.mark.parametrize("argv", [[], ["root"], ["a", "b", "c", "d"]])
def test_wrong_arguments_get_the_usage(argv, capsys):
    assert pick.main(argv) == 2
    assert "usage:" in capsys.readouterr().err
