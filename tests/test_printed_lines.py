"""What is printed to be pasted does what it says, whatever the names of series and stores."""

import csv
import html
import json
import os
import re
import shlex
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from perfdag.results.run_store import RunStore, put_plan, stored_plan
from perfdag.steps.loop import MeasuringLoop
from perfdag.store.base import FolderStore
from tests.conftest import CommandLine
from tests.fakes.files import write_programs

NAMES = (
    *("test_sort[1000]", "!neg[!a]", 'it\'s "hi"', "{a} #1, b: [c", "back\\slash"),
    *("x*y", "p?q", "time_x('float64', 10)", "test[ü-日本]", "- x", "null", "%h & $(id)"),
)
STORE = "my store's"


def write_history(file: str, names: tuple[str, ...]) -> None:
    with Path(file).open("w", newline="") as out:
        lines = csv.writer(out)
        lines.writerow(["time", "series", "value", "unit", "better"])
        for name in names:
            lines.writerows(
                [f"2026-01-{day:02}", name, 10 if day < 12 else 13, "s", "lower"]
                for day in range(1, 21)
            )


@pytest.mark.parametrize("name", NAMES)
def test_every_line_of_an_alert_can_be_pasted(name: str, cli: CommandLine) -> None:
    write_history("old.csv", (name,))
    imported = cli(["import", "history", "old.csv", "--store", STORE]).out
    [shown] = re.findall(r"; perfdag (history .*) shows them", imported)
    assert name in cli(shlex.split(shown)).out
    alert = cli(["check", "last", "--store", STORE], 3).out
    [compare] = re.findall(r"   perfdag (compare .*)$", alert, re.M)
    assert name in cli(shlex.split(compare)).out
    assert name in cli(["history", "old", "--only", f"{name} value", "--store", STORE]).out
    [accept] = re.findall(r"^accept  in acks.yaml: (.*)$", alert, re.M)
    Path("acks.yaml").write_text(f"acks:\n  - {accept}\n")
    cli(["check", "last", "--store", STORE])


def test_the_name_of_a_series_is_no_glob_for_another(cli: CommandLine) -> None:
    write_history("old.csv", ("x*y", "xzy"))
    cli(["import", "history", "old.csv", "--store", STORE])
    run = "20260112T000000Z"
    Path("acks.yaml").write_text(f"acks: [{{series: 'x*y value', run: {run}, reason: new}}]\n")
    alert = cli(["check", "last", "--store", STORE], 3).out
    assert "WORSE old/xzy +" in alert
    assert "x*y" not in alert


SUITE = """\
name: pasted
entries:
  - benchmark: command
    params: {argv: [cat, figure], metrics: {delay: {regex: "(.+)", unit: s, better: lower}}}
"""


def measure(cli: CommandLine, figure: float, *options: str, code: int = 0) -> str:
    """Run the suite with a figure. Return the id of the run."""
    Path("figure").write_text(str(figure))
    Path("pasted.yaml").write_text(SUITE)
    run = ["run", "pasted.yaml", "--store", STORE, "--json", *options]
    return str(json.loads(cli(run, code).out)["run_id"])


def pasted(cli: CommandLine, text: str, verb: str, code: int = 0) -> str:
    """Run the one command of a verb that a text names, in backquotes or at the end of its line."""
    [(quoted, last)] = re.findall(rf"`perfdag ({verb} [^`]*)`|perfdag ({verb} .*)$", text, re.M)
    done = cli(shlex.split(quoted or last), code)
    return f"{done.out}\n{done.err}"


def test_what_messages_about_stored_runs_name_can_be_pasted(cli: CommandLine) -> None:
    where = ["--store", STORE]
    measure(cli, 1, "--no-report")
    run = measure(cli, 1, "--no-report")
    store = FolderStore(STORE)
    [rows] = [key for key in store.list("results") if run in key]
    store.put(rows, b"junk")
    store.delete("rollups")
    assert run in pasted(cli, cli(["history", "pasted", *where]).err, "collect")
    store.delete(rows)
    assert run in pasted(cli, cli(["check", run, *where], 2).err, "collect")


def test_a_run_of_the_future_is_removed_by_what_its_note_says(cli: CommandLine) -> None:
    run = measure(cli, 1, "--no-report")
    store = FolderStore(STORE)
    future = f"2999{run[4:]}"
    put_plan(store, replace(stored_plan(store, run), run_id=future))
    note = cli(["check", "last", "--store", STORE]).err
    assert f"{future} is of the future" in note
    assert future in pasted(cli, note, "rm")
    assert "future" not in cli(["check", "last", "--store", STORE]).err


def test_an_interrupted_run_and_duet_go_on_with_what_is_printed(
    monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    measure(cli, 1, "--no-report")
    variants = ["--a", "command.env.X=1", "--b", "command.env.X=2", "--blocks", "8"]
    where = ["pasted.yaml", "--store", STORE]
    for verb, more in (("run", ["--no-report"]), ("ab", variants)):
        with monkeypatch.context() as patch:
            patch.setattr(MeasuringLoop, "measure", Mock(side_effect=KeyboardInterrupt))
            stopped = cli([verb, *where, *more], 130)
        assert "delay" in pasted(cli, stopped.err, verb)
    known = RunStore(FolderStore(STORE)).suites_by_run
    [a] = [run for run in known if run.endswith("a") and f"{run[:-1]}b" in known]
    shown = cli(["check", a, "--store", STORE], 2).err
    assert "delay" in pasted(cli, shown.replace("`perfdag ab`", "ab"), "ab")


def test_a_head_is_compared_with_its_base_by_what_its_report_says(cli: CommandLine) -> None:
    for _ in range(4):
        measure(cli, 1, "--no-report")
    head = "head's"
    run = ["run", "pasted.yaml", "--store", head, "--history", STORE]
    Path("figure").write_text("3")
    alert = cli(run, 0).out
    alert = cli(["check", "last", "--store", head, "--history", STORE], 3).out
    page = next(Path(head).glob("runs/*/report.html")).read_text()
    [command] = re.findall(r"<code>perfdag (compare .*?)</code>", page)
    assert "delay" in cli(shlex.split(html.unescape(command))).out
    assert f"perfdag {html.unescape(command)}" in alert


def test_a_command_for_a_suite_is_measured_as_the_error_says(
    monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    programs = write_programs(Path("bin"), {"it's": "echo $1"})
    monkeypatch.setenv("PATH", f"{programs.resolve()}:{os.environ['PATH']}")
    for words in (["it's"], ["it's", "--option", "a b"]):
        refused = cli(["run", *words], 2).err
        [command] = re.findall(r"perfdag (run -- .*)", refused)
        assert cli(shlex.split(command)).out.startswith("command\n")
