"""Suites in Python, and results as a table with a column for each parameter."""

import json
import re
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import perfdag
from perfdag.plan import make_plan
from perfdag.suite.load import load_suite

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "suites").glob("*.yaml"))


def sleeps(**keys: object) -> perfdag.Suite:
    entry = perfdag.Entry(
        benchmark="command",
        params={"argv": ["sleep", "0.01"], "expected": 0.01},
        permutations={"product": {"env": [{"N": "1"}, {"N": "2"}]}},
    )
    return perfdag.Suite(name="sleeps", repetitions=2, entries=[entry], **keys)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_suite_read_into_python_has_the_points_of_its_file(file: Path, tmp_path: Path) -> None:
    expected = make_plan(load_suite(file))
    suite = perfdag.Suite.read(file)
    suite.save(tmp_path / "saved.yaml")
    for plan in (suite.plan(), make_plan(load_suite(tmp_path / "saved.yaml"))):
        assert [point.id for point in plan.points] == [point.id for point in expected.points]
        assert (plan.order, plan.shapes) == (expected.order, expected.shapes)
        assert [len(batch.samples) for batch in plan.batches] == [
            len(batch.samples) for batch in expected.batches
        ]


def test_a_suite_runs_and_its_rows_have_a_column_for_each_parameter() -> None:
    run = sleeps().run("results", charts=False)
    assert run.exit_code == 0
    assert "4 ok" in str(run)
    table = perfdag.load("results", run=run.id, metric="wall_time")
    assert table.num_rows == 4
    assert sorted(table["env.N"].to_pylist()) == ["1", "1", "2", "2"]
    assert set(table["argv"].to_pylist()) == {'["sleep","0.01"]'}
    assert set(table["expected"].to_pylist()) == {0.01}
    assert "cpu_time" in perfdag.load("results", run=run.id)["metric"].to_pylist()
    assert all(value >= 0.01 for value in table["value"].to_pylist())


def test_a_table_is_selected_by_suite_time_and_metric() -> None:
    sleeps().run("results", charts=False)
    now = datetime.now(UTC)
    for keys, rows in (
        ({"suite": "sleeps"}, 4),
        ({"metric": ["wall_time", "cpu_time"]}, 8),
        ({"run": "last"}, 4),
        ({"since": "1h"}, 4),
        ({"since": timedelta(hours=1)}, 4),
        ({"since": now - timedelta(hours=1)}, 4),
        ({"since": now + timedelta(hours=1)}, 0),
        ({"since": (now - timedelta(days=1)).date()}, 4),
        ({"since": date(2026, 1, 1).isoformat()}, 4),
    ):
        chosen: dict[str, Any] = {"metric": "wall_time", **keys}
        assert perfdag.load("results", **chosen).num_rows == rows, keys
    assert "canary" in perfdag.load("results", everything=True)["benchmark"].to_pylist()
    with pytest.raises(ValueError, match="neither a date such as"):
        perfdag.load("results", since="lately")
    for wrong, said in (
        (
            {"suite": "sleep"},
            "store results: no suite sleep; did you mean sleeps. there are sleeps",
        ),
        (
            {"metric": ["wall_tme"]},
            "metric wall_tme; did you mean wall_time. there are",
        ),
        ({"run": "lst"}, r"store results: no run lst; newest: 20\d{6}T"),
        ({"store": "typo"}, "store typo has no results"),
    ):
        selection: dict[str, Any] = {"store": "results", **wrong}
        with pytest.raises(perfdag.PerfdagError, match=said):
            perfdag.load(**selection)


def test_a_parameter_with_the_name_of_a_column_has_a_prefix(write_suite: object) -> None:
    text = (
        "name: mixed\nentries:\n"
        "  - {benchmark: imb, params: {benchmark: PingPong}, hosts: {exclusive: true}}\n"
    )
    perfdag.Suite.read(write_suite(text)).run("results", charts=False)  # type: ignore[operator]
    assert perfdag.load("results").num_rows == 0
    table = perfdag.load("results", everything=True)
    skipped = table.filter([status == "skipped" for status in table["status"].to_pylist()])
    assert skipped["benchmark"].to_pylist() == ["imb"]
    assert skipped["param_benchmark"].to_pylist() == ["PingPong"]
    assert skipped["hosts.exclusive"].to_pylist() == [True]
    assert skipped["value"].to_pylist() == [None]


def test_a_wrong_parameter_names_its_place() -> None:
    entry = perfdag.Entry(benchmark="command", params={"argv": ["true"], "expectd": 1})
    suite = perfdag.Suite(name="wrong", entries=[entry])
    with pytest.raises(
        perfdag.BadDocument, match=r"entries\[0\]\.params\.expectd.*did you mean expected"
    ):
        suite.plan()
    with pytest.raises(perfdag.PerfdagError):
        suite.save("wrong.yaml")
    assert not Path("wrong.yaml").exists()


def test_the_examples_of_the_page_on_scripts_run(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/scripts.md").read_text(), re.S)
    code = "\n".join(blocks)
    exec(
        compile(
            code.replace('"perfdag-results")', '"perfdag-results", charts=False)', 1),
            "scripts.md",
            "exec",
        ),
        {},
    )
    output = capsys.readouterr().out
    assert "3 points" in output
    assert re.search(
        r"^sleeps env.SIZE=1 wall_time (same|better|worse|unclear|cannot tell)", output, re.M
    )
    assert "no run 20200101" in output
    assert "9 ok" in output
    assert re.search(r"^env.SIZE\n1 +0\.", output, re.M)


def test_the_notebook_goes_from_a_store_to_a_chart_in_ten_cells() -> None:
    sleeps().run("perfdag-results", charts=False)
    notebook = json.loads((ROOT / "examples/results.ipynb").read_text())
    assert len(notebook["cells"]) <= 10
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    assert (names["entry"], names["metric"], names["unit"]) == ("command", "wall_time", "s")
    assert names["varied"] == ["env.N"]
    assert names["labels"] == ["1", "2"]
    assert "command" in Path("chart.svg").read_text()


def test_a_call_of_the_library_leaves_signals_logging_and_the_command_line_alone() -> None:
    code = """
import logging, signal, sys, perfdag
handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
stop = ["sh", "-c", "kill -INT $PPID; sleep 9"]
entry = perfdag.Entry(benchmark="command", params={"argv": stop})
try:
    perfdag.Suite(name="stopped", entries=[entry]).run("results")
except KeyboardInterrupt as interrupt:
    print(interrupt)
print(handlers == {number: signal.getsignal(number) for number in handlers})
print(logging.getLogger("perfdag").handlers, [n for n in sys.modules if "perfdag.commands" in n])
"""
    stopped, *left = subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()
    assert re.fullmatch(r"interrupted; .* perfdag run --resume \S+ --store results", stopped)
    assert left == ["True", "[] []"]


def test_what_a_script_can_mend_is_a_perfdag_error(tmp_path: Path) -> None:
    run = sleeps().run("results", charts=False)
    (tmp_path / "file").touch()
    for error, call in (
        (perfdag.SelectionError, lambda: perfdag.check("20200101", "results")),
        (perfdag.SelectionError, lambda: perfdag.compare(run.id, "20200101", "results")),
        (perfdag.StoreError, lambda: sleeps().run(tmp_path / "file")),
        (perfdag.BadDocument, lambda: sleeps().plan(only=["nothing"])),
    ):
        with pytest.raises(error) as raised:
            call()
        assert isinstance(raised.value, perfdag.PerfdagError)


def test_the_stub_of_the_package_has_every_public_name() -> None:
    names = re.findall(r" as (\w+)", (ROOT / "perfdag/__init__.pyi").read_text())
    assert sorted(names) == sorted(vars(perfdag)["_HOMES"])
    assert all(getattr(perfdag, name).__name__ == name for name in names)


def test_importing_the_package_imports_nothing_else() -> None:
    code = (
        "import sys, perfdag; print([n for n in sys.modules if n.startswith('perfdag.')], "
        "'pydantic' in sys.modules)"
    )
    output = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert output.split() == ["[]", "False"]
    with pytest.raises(AttributeError, match="no attribute 'sweet'"):
        perfdag.sweet  # type: ignore[attr-defined]  # noqa: B018
