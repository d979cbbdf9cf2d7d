"""README and docs are true: commands run, suites can be planned, the table of benchmarks is
current.
"""

import itertools
import json
import re
import shlex
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from perfdag.commands.main import main, parser
from perfdag.hosts.base import CommandResult
from perfdag.hosts.local import LocalHost
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


CHANGES_BY_RUN = (
    (r"\d{8}T\d{6}Z-\w+", "RUN"),
    (r"\b[0-9a-f]{10,40}\b", "REVISION"),
    (r"\d{4}-\d\d-\d\d", "DAY"),
    (r"[+-]?\d[\d.]*(e-\d+)?", "N"),
    (r"N (ms|s)\b", "N UNIT"),
    (r"(?i:\b(w|work|task)\b)", "NAME"),
    (r"\bok\b.*|(?i:\b(worse|better|same|cannot tell)\b.*)|\S*/report.html ", ""),
    (r"\s+", " "),
)


def form_of(line: str) -> str:
    """Return a printed line without what differs between runs and machines."""
    for pattern, name in CHANGES_BY_RUN:
        line = re.sub(pattern, name, line)
    return line.strip()


def write_program(seconds: float, name: str = "work") -> None:
    """Write a program and commit it, as the pages have it."""
    Path(name).write_text(f"#!/bin/sh\n# sleep {seconds}\n")
    subprocess.run(
        f"chmod +x {name} && git init -q . && git add {name} && "
        f"git -c user.name=a -c user.email=a@b.example commit -qm {seconds}",
        shell=True,
        check=True,
    )


def test_the_output_on_the_pages_is_what_is_printed(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a run, `ab`, `history` and `check` print of a program that became slower.

    The program ends at once, and its time is made from its text, so that none is noisy.
    """
    deviations = itertools.cycle((1.0, 1.01, 0.99, 1.02))
    run_here = LocalHost.run

    def run_steadily(self: LocalHost, argv: list[str], **options: Any) -> CommandResult:
        finished = run_here(self, argv, **options)
        if not argv[0].endswith("work"):
            return finished
        seconds = float(Path(argv[0]).read_text().split()[-1])
        return replace(finished, seconds=seconds * next(deviations))

    monkeypatch.setattr(LocalHost, "run", run_steadily)
    write_program(0.1, "old-work")
    write_program(0.1)
    params = "repetitions: 6\nentries: [{benchmark: command, name: work, params: {argv: [./work]}}]"
    Path("w.yaml").write_text(f"name: w\n{params}\n")
    run = ["run", "w.yaml", "--no-report"]
    printed = [cli(run).out for _ in range(5)]
    write_program(0.16)
    printed += [cli(run).out, cli(["check", "last"], 3).out, cli(["history", "w"]).out]
    monkeypatch.setenv("COLUMNS", "80")
    variants = ["--a", "work.argv=[./old-work]", "--b", "work.argv=[./work]"]
    printed += [cli(["ab", "w.yaml", *variants]).out]
    printed_forms = {form_of(line) for text in printed for line in text.splitlines()}
    for page in ("README.md", "docs/first-run.md", "docs/regressions.md"):
        for block in re.findall(r"^```text\n(.*?)```", PAGES[ROOT / page], re.M | re.S):
            lines = block.replace("...\n", "\n").splitlines()
            # What is said of trust, and so of a first run, depends on how busy this machine is.
            forms = {form_of(line) for line in lines if not re.match("trust|.*first run", line)}
            assert forms <= {*printed_forms, ""}, page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_pictures_are_there(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)[)#]", PAGES[page]):
        assert (page.parent / target).exists(), target


def test_the_recipes_for_sql_pandas_and_polars_give_the_same_series(
    write_suite: SuiteWriter,
) -> None:
    import duckdb

    assert main(["run", str(write_suite.sleeps(2, 3)), "--no-report"]) == 0
    assert main(["run", "--no-report", "--", "false"]) == 1  # of which no row has a value
    store = FolderStore("perfdag-results")
    fio = rows.fio((1, 4))
    at = fio.schema.get_field_index("trigger")
    for year, trigger in ((2026, "manual"), (2027, "recheck"), (2028, "ab"), (2029, "import")):
        same = fio.set_column(at, "trigger", pa.array([trigger] * fio.num_rows))
        write_rows(store, trigger, f"{year}0101{rows.RUN[8:]}", same)
    page = PAGES[ROOT / "docs/results.md"]
    [query] = re.findall(r"```sql\n(.*?);\n```", page, re.S)
    in_sql = duckdb.sql(query.replace("count(*)", "count(*) AS count, median(value) AS median"))
    assert in_sql is not None
    lines = in_sql.to_arrow_table().to_pylist()
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.S):
        exec(block, names)
    in_pandas = names["series"].reset_index().to_dict("records")
    in_polars = names["lines"].to_dicts()
    of_sql, of_pandas, of_polars = (
        {line["series_id"]: (line["count"], line["median"]) for line in table}
        for table in (lines, in_pandas, in_polars)
    )
    assert of_sql == of_pandas == of_polars
    assert len(of_sql) == len(lines) == len(in_pandas) == len(in_polars), "a line is a series"
    assert sum(line["count"] for line in lines if line["metric"] == "wall_time") == 6
    of_fio = [line for line in lines if line["entry"] == "fio"]
    measured = 2 * fio["subject"].null_count  # by hand and imported; no re-measurement, no ab
    assert sum(line["count"] for line in of_fio) == measured
    depth_1 = [line for line in of_fio if (line["metric"], line["count"]) == ("iops", 12)]
    assert min(line["median"] for line in depth_1) == pytest.approx(21_400)
    assert not [line for line in lines if line["entry"] == "canary"]


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_the_metrics_that_all_files_of_an_audit_have_are_found_as_the_page_says() -> None:
    for run, metrics in {"a": "xyz", "b": "vxy", "c": "xvzy"}.items():
        Path(run).mkdir()
        values = json.dumps({"Values": {metric: {"value": 1} for metric in metrics}})
        Path(run, "perf-audit-results.json").write_text(values)
    [line] = re.findall(r"^ {4}(jq .*)$", PAGES[ROOT / "docs/from-perfscale.md"], re.M)
    assert subprocess.check_output(line, shell=True, text=True) == "x,y\n"


def test_the_quick_suite_is_what_the_readme_says() -> None:
    plan = make_plan(load_suite(ROOT / "suites/quick.yaml"))
    assert len({point.benchmark for point in plan.points}) >= 3
    assert len(plan.points) >= 10
    assert all(point.repetitions >= 3 for point in plan.points)
    assert plan.seconds() <= 45
