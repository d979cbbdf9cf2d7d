"""The revision of what a run measures: where it comes from, and that it leads to the commit."""

import re
import shlex
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from perfdag.commands.main import main
from perfdag.plan import make_plan
from perfdag.revision import VARIABLES, Revision, revisions_of_entries
from perfdag.suite.load import parse_suite
from tests.conftest import CommandLine
from tests.fakes.files import write_programs

SUITE = """\
name: bench
repetitions: 2
entries:
  - benchmark: command
    name: work
    params: {argv: [./work], metrics: {rate: {regex: '(\\d+)', better: higher}}}
"""


@pytest.fixture(autouse=True)
def _no_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell in which no CI says what it measures."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name in (
        "GIT_AUTHOR_NAME",
        "GIT_AUTHOR_EMAIL",
        "GIT_COMMITTER_NAME",
        "GIT_COMMITTER_EMAIL",
    ):
        monkeypatch.setenv(name, "x")


def git(*arguments: str, folder: Path | str = ".") -> str:
    argv = ["git", "-C", str(folder), *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


def commit(folder: Path | str, files: dict[str, str], text: str = "x") -> str:
    """Write programs, commit them, and return the commit."""
    if not Path(folder, ".git").exists():
        git("init", "-q", str(folder))
    write_programs(Path(folder), files)
    git("add", ".", folder=folder)
    git("commit", "-q", "--allow-empty", "-m", text, folder=folder)
    return git("rev-parse", "HEAD", folder=folder)


def revision_of(argv: str, env: str = "{}") -> Revision | None:
    text = f"{{name: s, entries: [{{benchmark: command, params: {{argv: {argv}, env: {env}}}}}]}}"
    return revisions_of_entries(make_plan(parse_suite(text)).points).get("command")


def test_where_a_revision_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, other = tmp_path / "here", tmp_path / "other"
    monkeypatch.chdir(tmp_path)
    assert revision_of("[ls]") is None
    first, second = commit(here, {"work": ""}), commit(other, {"work": "", "bin/tool": ""})
    monkeypatch.chdir(here)
    assert revision_of("[./work]") == revision_of("[ls]") == Revision(first, str(here))
    path = f"{{PATH: '{other}/bin:/usr/bin'}}"
    assert revision_of(f"[{other}/work]") == revision_of("[tool]", path)
    assert revision_of("[tool]", path) == Revision(second, str(other))
    # a work tree that manages versions of tools, such as pyenv, ignores them
    commit(other, {".gitignore": "bin"})
    git("rm", "-rq", "--cached", "bin", folder=other)
    assert revision_of("[tool]", path) == Revision(first, str(here))
    Path("work").write_text("other")
    assert revision_of("[./work]") == Revision(f"{first} + changes", str(here))
    for name in reversed(VARIABLES):
        monkeypatch.setenv(name, f" v-{name} ")
        assert revision_of("[./work]") == Revision(f"v-{name}")


@pytest.fixture
def a_run_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    days = (f"202611{day:02}T020000Z-1a2b3c4d" for day in range(1, 31))
    for module in ("perfdag.plan", "perfdag.results.run_store"):
        monkeypatch.setattr(f"{module}.new_run_id", lambda: next(days))


@pytest.mark.usefixtures("a_run_a_day")
def test_a_pull_request_answers_for_its_own_change_alone(cli: CommandLine) -> None:
    Path("bench.yaml").write_text(f"checks: [{{metric: rate, op: '>', value: 1}}]\n{SUITE}")

    def measure(figure: int, code: int, *options: str) -> str:
        write_programs(Path(), {"work": f"echo {figure}"})
        return cli(["run", "bench.yaml", "--no-report", *options], code).out

    for _ in range(4):
        measure(300, 0, "--store", "base")
    measure(200, 3, "--store", "base")
    stored = sorted(Path("base").rglob("*"))
    beside = ("--store", "head", "--history", "base")
    out = measure(200, 0, *beside)
    assert "base    worse already, which fails nothing here: work rate -33.3 % since" in out
    assert "RECOVERED" not in out
    out = measure(100, 3, *beside)
    assert "WORSE bench/work rate -50.0 %" in out
    assert "(reported before)" not in out
    assert sorted(Path("base").rglob("*")) == stored
    assert "gate UNCLEAR" not in cli(["check", "last", *beside, "--unclear", "fail"], 3).out


@pytest.mark.usefixtures("a_run_a_day")
def test_an_alert_leads_to_the_commit_that_made_it_slow(cli: CommandLine) -> None:
    Path("bench.yaml").write_text(SUITE)
    Path(".gitignore").write_text("perfdag-results")
    for night in range(4):
        good = commit(".", {"work": "echo 300"}, f"night {night}")
        assert main(["run", "bench.yaml", "--no-report"]) == 0
    commit(".", {"work": "echo 300"}, "innocent")
    slow = commit(".", {"work": "echo 200"}, "slow")
    commit(".", {"README": ""}, "innocent too")
    cli(["run", "bench.yaml", "--no-report"])
    argv = ["check", "last", "--junit", "check.xml", "--markdown", "check.md"]
    alert = cli(argv, 3).out
    head = git("rev-parse", "HEAD")
    assert f"changed revision {good[:10]} -> {head[:10]} (3 commits)\n" in alert
    bisect = re.findall(r"^bisect  (.*)$", alert, re.M)
    assert bisect == [f"git bisect start {head} {good}"]
    subprocess.run(shlex.split(bisect[0]), check=True, capture_output=True)
    found = git("bisect", "run", "sh", "-c", "./work | grep -q 300")
    assert f"{slow} is the first bad commit" in found
    properties = {
        own.get("name"): own.get("value") for own in ElementTree.parse("check.xml").iter("property")
    }
    assert properties["revision"] == head[:10]
    assert f"revision {head[:10]}" in Path("check.md").read_text()
    assert f"bisect  {bisect[0]}" in cli(["history", "bench"]).out
    assert f"{good[:10]}  2 ok" in cli(["ls"]).out
    compared = cli(["compare", good[:7], head[:7]]).out
    assert "A  bench  20261104" in compared
    assert f"differs  revision: {good[:10]} -> {head[:10]} (3 commits)" in compared
