"""README and docs are true: commands run, suites can be planned, the table of benchmarks is
current.
"""

import json
import re
import shlex
import time
from pathlib import Path

import pyarrow as pa
import pytest

from perfdag.commands.main import main, parser
from perfdag.plan import make_plan
from perfdag.results.collect import write_rows
from perfdag.store.base import FolderStore
from perfdag.suite.load import load_suite
from tests.charts import rows
from tests.conftest import CommandLine, SuiteWriter

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = {
    page: page.read_text()
    for page in (
        ROOT / "README.md",
        *sorted((ROOT / "docs").rglob("*.md")),
        ROOT / "CONTRIBUTING.md",
    )
    if page.name != "cli.md"  # it has the help of each command, examples included
}
ON_A_CLUSTER = [
    "perfdag install --namespace bench --store s3://bench/results"
    " --images 'registry.example/bench/perfdag-{name}:1.0'",
    "perfdag submit suites/quick.yaml --namespace bench --watch",
    "perfdag status last --namespace bench",
    "perfdag rm last --namespace bench",
]
"""Commands of README and docs/cluster.md that tests/e2e/test_readme_commands.py executes."""


def commands_of(text: str) -> list[str]:
    """Return the commands in the code of a page, with their continuation lines."""
    lines = re.findall(r"^ {4,}(?:\S+=\S+ )?(perfdag (?:.*\\\n)*.*)$", text, re.M)
    whole = [line.replace("\\\n", " ") for line in lines if " ... " not in line]
    return [re.split(r"  +#| \| |; | && | > ", line)[0] for line in whole]


COMMANDS = list(dict.fromkeys(each for text in PAGES.values() for each in commands_of(text)))
IN_README = commands_of(README)
LOCAL = [
    line
    for line in [*IN_README, *commands_of(PAGES[ROOT / "docs/suites.md"])]
    if line.split()[1] in {"plan", "benchmarks", "doctor"} or "--dry-run" in line
]
ON_A_STORE = [
    line
    for line in IN_README
    if line.split()[1] in {"compare", "history", "check", "baseline", "site"}
]


def test_what_contributing_points_to_is_defined_there() -> None:
    named = re.findall(r"`([\w.]+)` in `([\w/]+\.py)`", PAGES[ROOT / "CONTRIBUTING.md"])
    assert len(named) > 5
    for name, file in named:
        text = (ROOT / "perfdag" / file).read_text()
        for part in name.split("."):
            assert re.search(rf"^ *(class |(async )?def )?{part}\b *[(:=]", text, re.M), (
                name,
                file,
            )


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_one_that_perfdag_takes(command: str) -> None:
    words = shlex.split(command)[1:]
    assert parser(words[0]).parse_args(words).run


@pytest.mark.parametrize("command", LOCAL)
def test_commands_that_need_nothing_run(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    words = shlex.split(command)[1:]
    assert main(words) in ((0, 1) if words[0] == "doctor" else (0,))


def test_the_commands_on_a_store_answer(cli: CommandLine) -> None:
    """Those of the README as they stand, on two real runs of a suite that is called as its."""
    Path("quick.yaml").write_text(
        "name: quick\nrepetitions: 3\nentries:\n"
        "  - {benchmark: command, name: iperf, params: {argv: [sleep, '0.01'], expected: "
        "0.01}}\n"
    )
    assert main(["run", "quick.yaml", "--no-report"]) == 0
    time.sleep(1.0)  # a run's id has its second, and the second run is to be the later one
    assert main(["run", "quick.yaml", "--no-report"]) == 0
    first, last = sorted(path.name for path in Path("perfdag-results/runs").iterdir())
    expected = {
        "compare": [f"A  quick  {first}", f"B  quick  {last}", "iperf wall time"],
        "history": ["quick: 2 runs", "iperf wall time"],
        "check": [f"gate passed  quick  {last}"],
        "baseline": ["baseline v1.0: 1 run of quick"],
        "site": ["perfdag-results/site/index.html"],
    }
    assert {line.split()[1] for line in ON_A_STORE} == set(expected)
    for line in ON_A_STORE:
        words = shlex.split(line)[1:]
        output = cli(words).out
        assert all(each in output for each in expected[words[0]]), output
    assert json.loads(Path("perfdag-results/baselines.json").read_text())["v1.0"]["quick"][
        "runs"
    ] == [last]


def test_a_command_is_measured_and_its_report_opened(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert main(["run", "--", "sleep", "0.1"]) == 0
    assert "wall time" in capsys.readouterr().out
    assert main(["open", "last"]) == 0
    assert [Path(url.removeprefix("file://")).name for url in opened] == ["report.html"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_pictures_are_there(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)[)#]", PAGES[page]):
        assert (page.parent / target).exists(), target


def test_each_line_of_the_duckdb_query_is_one_series(write_suite: SuiteWriter) -> None:
    import duckdb

    assert main(["run", str(write_suite.sleeps(2, 3)), "--no-report"]) == 0
    store = FolderStore("perfdag-results")
    fio = rows.fio((1, 4))
    write_rows(store, "trial", rows.RUN, fio)
    at = fio.schema.get_field_index("trigger")
    again = fio.set_column(at, "trigger", pa.array(["recheck"] * fio.num_rows))
    write_rows(store, "trial", f"20270101{rows.RUN[8:]}", again)
    query = re.search(r"```sql\n(.*?);\n```", PAGES[ROOT / "docs/results.md"], re.S)
    assert query is not None
    text = query[1].replace("count(*)", "count(*) AS n, count(DISTINCT series_id)")
    answer = duckdb.sql(text)
    assert answer is not None
    found = answer.to_arrow_table().to_pylist()
    assert {line["count(DISTINCT series_id)"] for line in found} == {1}
    assert len({line["series_id"] for line in found}) == len(found)
    assert sum(line["n"] for line in found if line["metric"] == "wall_time") == 6
    of_fio = [line["n"] for line in found if line["entry"] == "fio"]
    assert sum(of_fio) == fio["subject"].null_count, "no re-measurement, and no single job"
    assert not [line for line in found if line["entry"] == "canary"]


def test_the_quick_suite_is_what_the_readme_says() -> None:
    plan = make_plan(load_suite(ROOT / "suites/quick.yaml"))
    assert len({point.benchmark for point in plan.points}) >= 3
    assert len(plan.points) >= 10
    assert all(point.repetitions >= 3 for point in plan.points)
    assert plan.seconds() <= 45
