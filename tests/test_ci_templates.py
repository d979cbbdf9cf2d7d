"""The templates for GitHub and GitLab: their scripts, run as the CI system runs them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs

import pytest
import yaml

from tests.fakes.files import write_programs
from tests.fakes.http_server import QuietHandler, serving

CI = Path(__file__).parent.parent / "deploy/ci"
ACTION = yaml.safe_load((CI / "action.yml").read_text())
GITLAB = yaml.safe_load((CI / "gitlab.yml").read_text())[".perfdag"]
Notes = list[tuple[str, str | None, str]]


@pytest.fixture
def notes() -> Iterator[tuple[str, Notes]]:
    """The API of GitLab: its address, and (path, token, body) of what was posted."""
    posted: Notes = []

    class Handler(QuietHandler):
        def do_POST(self) -> None:  # noqa: N802
            text = self.rfile.read(int(self.headers["Content-Length"])).decode()
            posted.append((self.path, self.headers["PRIVATE-TOKEN"], parse_qs(text)["body"][0]))
            self.send_response(201)
            self.end_headers()

    with serving(Handler) as url:
        yield f"{url}/api/v4", posted


def write_suite(op: str, program: str = "true") -> None:
    Path("suite.yaml").write_text(
        f"name: ci\nrepetitions: 2\nchecks:\n  - {{metric: wall_time, op: '{op}', value: 0s}}\n"
        f"entries:\n  - {{benchmark: command, params: {{argv: ['{program}']}}}}\n"
    )


def run(script: str, variables: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """Run a script with `perfdag` and a stand-in for `gh` on the path, and shell options of CI."""
    scripts = {
        "perfdag": f'exec {sys.executable} -m perfdag "$@"',
        "gh": 'echo "$GH_TOKEN $*" >>comments; cat "${@: -1}" >>comments',
    }
    programs = write_programs(Path("bin"), scripts, "/bin/bash")
    environment = {**os.environ, **variables, "PATH": f"{programs.resolve()}:{os.environ['PATH']}"}
    argv = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)


def github(**inputs: str) -> "subprocess.CompletedProcess[str]":
    step = ACTION["runs"]["steps"][1]
    values = {name: each.get("default", "") for name, each in ACTION["inputs"].items()} | inputs
    context = {f"inputs.{name}": value for name, value in values.items()}
    context |= {"github.event.pull_request.number": "7", "github.token": "secret"}
    variables = {
        name: context[text.removeprefix("${{ ").removesuffix(" }}")]
        for name, text in step["env"].items()
    }
    return run(step["run"], variables | {"GITHUB_STEP_SUMMARY": "summary"})


@pytest.mark.parametrize(("op", "code", "word"), [(">", 0, "passed"), ("<", 3, "FAILED")])
def test_the_action_runs_checks_and_posts(op: str, code: int, word: str) -> None:
    write_suite(op)
    result = github(suite="suite.yaml", comment="true")
    assert result.returncode == code, result.stderr
    assert f"## ci: gate {word}" in Path("summary").read_text()
    comments = Path("comments").read_text()
    assert comments.startswith("secret pr comment 7 --body-file perfdag-summary.md\n## ci: gate")
    assert Path("perfdag-check.xml").exists()


def test_the_action_comments_only_if_asked_and_keeps_the_code_of_a_failed_sample() -> None:
    write_suite(">", "false")
    result = github(suite="suite.yaml")
    assert result.returncode in (1, 3), result.stderr
    assert "## ci: gate" in Path("summary").read_text()
    assert not Path("comments").exists()


def test_a_bad_suite_ends_the_job_with_its_code() -> None:
    Path("suite.yaml").write_text("name: ci\nentries: []\n")
    for result in (
        github(suite="suite.yaml"),
        run(GITLAB["script"][0], {"PERFDAG_SUITE": "suite.yaml", "PERFDAG_STORE": "results"}),
    ):
        assert result.returncode == 2
        assert "no entries" in result.stderr
    assert not Path("summary").exists()


def test_the_template_runs_checks_and_posts(notes: tuple[str, Notes]) -> None:
    if shutil.which("curl") is None:
        pytest.skip("needs curl: the note on a merge request was NOT posted")
    address, posted = notes
    write_suite("<")
    variables = GITLAB["variables"] | {
        "PERFDAG_SUITE": "suite.yaml",
        "PERFDAG_TOKEN": "secret",
        "CI_API_V4_URL": address,
        "CI_PROJECT_ID": "3",
        "CI_MERGE_REQUEST_IID": "9",
    }
    result = run(GITLAB["script"][0], variables)
    assert result.returncode == 3, result.stderr
    [(path, token, body)] = posted
    assert (path, token) == ("/api/v4/projects/3/merge_requests/9/notes", "secret")
    assert body == Path("perfdag-summary.md").read_text()
    assert "## ci: gate FAILED" in body
    [summary, report] = GITLAB["artifacts"]["paths"]
    assert all(list(Path().glob(pattern)) for pattern in (summary, report))
    assert Path(GITLAB["artifacts"]["reports"]["junit"]).exists()


def test_the_action_installs_the_checkout_that_it_is_in() -> None:
    step = ACTION["runs"]["steps"][0]
    script = step["run"].replace("python3 -m pip install -q", "printf %s")
    output = run(script, {"PACKAGE": "", "GITHUB_ACTION_PATH": str(CI)}).stdout
    assert output == f"perfdag[s3] @ file://{CI.parent.parent}"
    assert run(script, {"PACKAGE": "perfdag==1", "GITHUB_ACTION_PATH": ""}).stdout == "perfdag==1"
