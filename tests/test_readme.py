"""The README is true: its commands run, its suite can be planned, its table is the one that perfdag prints."""

import json
import re
import shlex
import shutil
import time
from pathlib import Path

import pytest

from perfdag import suite
from perfdag.cli import main, parser
from perfdag.cli.benchmarks import describe, markdown
from perfdag.plan import make_plan

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
COMMANDS = [re.split(r"#| \| ", line)[0].strip() for line in re.findall(r"^    (?:\S+=\S+ )?(perfdag .*)$", README, re.M)]
LOCAL = [line for line in COMMANDS if line.split()[1] in {"plan", "benchmarks", "doctor"} and "--cluster" not in line]


def test_there_are_commands_to_check() -> None:
    assert len(COMMANDS) >= 5


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_one_that_perfdag_takes(command: str) -> None:
    words = shlex.split(command)[1:]
    assert parser(words[0]).parse_args(words).run


@pytest.mark.parametrize("command", LOCAL)
def test_commands_that_need_nothing_run(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    words = shlex.split(command)[1:]
    assert main(words) in ((0, 1) if words[0] == "doctor" else (0,))


def test_the_dry_run_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for command in COMMANDS:
        if "--dry-run" in command:
            assert main(shlex.split(command)[1:]) == 0


def test_the_example_suite_can_be_planned() -> None:
    text = re.search(r"```yaml\n(.*?)```", README, re.S)
    assert text is not None
    plan = make_plan(suite.loads(text[1]))
    assert len(plan.points) == 9, "2 x 4 - 1 + 1 of iperf, and one of imb"


def test_the_table_of_benchmarks_is_current() -> None:
    from perfdag import benchmark

    table = re.search(r"<!-- benchmarks:.*?-->\n(.*?)<!-- /benchmarks -->", README, re.S)
    assert table is not None
    own = [name for name in benchmark.names() if benchmark.get(name).__module__.startswith("perfdag.")]
    assert table[1].strip() == markdown([describe(name) for name in own]), "perfdag benchmarks --markdown"


def test_the_commands_on_a_store_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Those under "Did it get slower?" as they stand, on two real runs of a suite that is called as the README's."""
    chapter = README.split("## Did it get slower?")[1].split("\n## ")[0]
    commands = {line.split()[1]: shlex.split(line)[1:] for line in re.findall(r"^    (perfdag .*)$", chapter, re.M)}
    monkeypatch.chdir(tmp_path)
    Path("quick.yaml").write_text(
        "name: quick\nrepetitions: 3\nentries:\n  - {benchmark: command, name: iperf, params: {argv: [sleep, '0.01'], expected: 0.01}}\n"
    )
    for _ in range(2):
        assert main(["run", "quick.yaml", "--no-report"]) == 0
        time.sleep(1.0)  # a run's id has its second, and the second run is to be the later one
    first, last = sorted(path.name for path in Path("perfdag-results/runs").iterdir())
    for verb, expected in (
        ("compare", [f"A  quick  {first}", f"B  quick  {last}", "iperf wall_time"]),
        ("history", ["quick: 2 runs", "iperf wall_time"]),
        ("check", [f"gate passed  quick  {last}"]),
        ("baseline", ["baseline v1.0: 1 run(s) of quick"]),
    ):
        capsys.readouterr()
        assert main(commands[verb]) == 0
        said = capsys.readouterr().out
        assert all(each in said for each in expected), said
    assert json.loads(Path("perfdag-results/baselines.json").read_text())["v1.0"]["quick"]["runs"] == [last]


def test_links_and_pictures_are_there() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_duckdb_line_reads_a_real_run(tmp_path: Path, write_suite: object, monkeypatch: pytest.MonkeyPatch) -> None:
    duckdb = pytest.importorskip("duckdb")
    query = re.search(r"```sql\n(.*?)```", README, re.S)
    assert query is not None
    monkeypatch.chdir(tmp_path)
    assert main(["run", str(write_suite.sleeps(2, 3)), "--no-report"]) == 0  # type: ignore[operator,attr-defined]
    rows = duckdb.sql(query[1].rstrip().rstrip(";")).fetchall()
    measured = [row for row in rows if row[0] == "command"]
    assert sum(row[-1] for row in measured) == 6


def test_the_quick_suite_is_what_the_readme_says() -> None:
    plan = make_plan(suite.load(ROOT / "suites/quick.yaml"))
    assert len({point.benchmark for point in plan.points}) >= 3
    assert len(plan.points) >= 10
    assert all(point.repetitions >= 3 for point in plan.points)
    assert plan.seconds() <= 45


@pytest.mark.skipif(shutil.which("iperf3") is None, reason="iperf3 is not installed")
def test_a_real_iperf_point_from_the_quick_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = [
        "run",
        str(ROOT / "suites/quick.yaml"),
        "--only",
        "iperf/streams=2",
        "--set",
        "repetitions=1",
        "--store",
        str(tmp_path / "store"),
    ]
    assert main(arguments) == 0
    page = next((tmp_path / "store").glob("runs/*/report.html")).read_text()
    assert "Gbit/s" in page or "Mbit/s" in page
    assert len(page) < 3_000_000
