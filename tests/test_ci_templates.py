"""The templates for GitHub, GitLab and Jenkins: their scripts, run as the CI system runs them."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs

import pytest
import yaml

from perfdag import __version__
from perfdag.commands.main import main
from tests.fakes.files import write_programs
from tests.fakes.http_server import QuietHandler, serving
from tests.fakes.process import PERFDAG

CI = Path(__file__).parent.parent / "deploy/ci"
ACTION = yaml.safe_load((CI / "action.yml").read_text())
GITLAB = yaml.safe_load((CI / "gitlab.yml").read_text())[".perfdag"]
JENKINS = (CI / "Jenkinsfile").read_text()
[JENKINS_SCRIPT] = re.findall("sh '''#!/bin/bash -e\n(.*?)'''", JENKINS, re.S)
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


def write_suite(op: str, command: str) -> None:
    Path("suite.yaml").write_text(
        f"name: ci\nrepetitions: 2\nchecks:\n  - {{metric: wall_time, op: '{op}', value: 0s}}\n"
        f"entries:\n  - {{benchmark: command, params: {{argv: [{command}]}}}}\n"
    )


def run(script: str, variables: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """Run a script with `perfdag` and a stand-in for `gh` on the path, and shell options of CI."""
    scripts = {
        "perfdag": f'exec {shlex.join(PERFDAG)} "$@"',
        "gh": 'echo "$GH_TOKEN $*" >>comments; cat "${@: -1}" >>comments',
        "sudo": '"$@"',
        "apt-get": 'echo "$*" >>packages',
    }
    programs = write_programs(Path("bin"), scripts, "/bin/bash")
    environment = {**os.environ, **variables, "PATH": f"{programs.resolve()}:{os.environ['PATH']}"}
    argv = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)


def github(**inputs: str) -> "subprocess.CompletedProcess[str]":
    step = ACTION["runs"]["steps"][-1]
    values = {name: each.get("default", "") for name, each in ACTION["inputs"].items()} | inputs
    context = {f"inputs.{name}": value for name, value in values.items()}
    context |= {"github.event.pull_request.number": "7", "github.token": "secret"}
    variables = {
        name: context[text.removeprefix("${{ ").removesuffix(" }}")]
        for name, text in step["env"].items()
    }
    return run(step["run"], variables | {"GITHUB_STEP_SUMMARY": "summary"})


def jobs(**variables: str) -> Iterator["subprocess.CompletedProcess[str]"]:
    """Run the three templates for a pull request."""
    names = {name: f"PERFDAG_{name.upper()}" for name in ("tools", "store", "suite", "ab")}
    yield github(**variables)
    own = {names[name]: value for name, value in variables.items()} | {"CI_MERGE_REQUEST_IID": "9"}
    script = "\n".join([GITLAB["before_script"][0], *GITLAB["script"]])
    yield run(script, {**GITLAB["variables"], **own})
    settings = dict(re.findall(r"^ +(PERFDAG_\w+) = '(.*?)'", JENKINS, re.M))
    yield run(JENKINS_SCRIPT, {**settings, **own, "CHANGE_ID": "9", "CI_MERGE_REQUEST_IID": ""})


def test_tools_are_installed_and_what_is_missing_then_ends_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    doctor = ["sh", "-c", 'echo "$0 $1 lacks"; exit 1']
    monkeypatch.setattr("tests.test_ci_templates.PERFDAG", doctor)
    for result in jobs(suite="suite.yaml", tools="fio iperf3"):
        assert result.returncode == 1
        assert "doctor suite.yaml lacks" in result.stdout
        assert "install -qq fio iperf3\n" in Path("packages").read_text()
        assert not Path("perfdag-run.json").exists()


def test_the_templates_measure_alike() -> None:
    """So that one of them shows what all do with their variables."""
    scripts = (ACTION["runs"]["steps"][-1]["run"], GITLAB["script"][0], JENKINS_SCRIPT)
    pull_request = r"(?<=-n \")\$(PULL_REQUEST|\{CI_MERGE_REQUEST_IID:-\}|\{CHANGE_ID:-\})(?=\")"
    other_names = re.compile(rf"^ +|PERFDAG_|{pull_request}", re.M)
    alike = [other_names.sub("", script[script.index("set --") :]) for script in scripts]
    assert len({text.partition("checked=$?")[0] for text in alike}) == 1
    assert {text.splitlines()[-1] for text in alike} == {"exit $((checked ? checked : code))"}


def test_a_pull_request_is_judged_by_the_runs_of_its_base_and_is_none_of_them() -> None:
    write_suite(">", "sleep, '0.3'")
    for _ in range(3):
        assert main(["run", "suite.yaml", "--store", "base", "--no-report"]) == 0
    before = {file: file.read_bytes() for file in Path("base").rglob("*") if file.is_file()}
    earlier = ["--store", "perfdag-head", "--history", "base", "--no-report"]
    assert main(["run", "suite.yaml", *earlier]) == 0
    result = github(suite="suite.yaml", store="base", comment="true")
    assert result.returncode == 0, result.stderr
    summary = Path("summary").read_text()
    assert "## ci: gate passed" in summary
    assert "4 runs of history" in summary
    comments = Path("comments").read_text()
    assert comments == f"secret pr comment 7 --body-file perfdag-summary.md\n{summary}"
    assert Path("perfdag-check.xml").exists()
    now = {file: file.read_bytes() for file in Path("base").rglob("*") if file.is_file()}
    assert now == before


def test_a_pull_request_is_measured_in_turn_with_its_base() -> None:
    metrics = "{rate: {regex: '(.+)', better: higher}}"
    Path("suite.yaml").write_text(
        "name: ci\nentries:\n  - benchmark: command\n"
        f"    params: {{argv: ['true'], metrics: {metrics}}}\n"
    )
    a, b = (f"'command.argv=[echo, \"{value}\"]'" for value in ("300", "200"))
    result = github(suite="suite.yaml", ab=f"--a {a} --b {b} --within 5% --blocks 8")
    assert result.returncode == 3, result.stderr
    assert "beyond" in Path("perfdag-summary.md").read_text()
    assert not Path("comments").exists(), "nobody asked"
    assert 'failures="1"' in Path("perfdag-check.xml").read_text()


def test_the_template_runs_checks_posts_and_keeps_the_code_of_a_failed_sample(
    notes: tuple[str, Notes],
) -> None:
    if shutil.which("curl") is None:
        pytest.skip("needs curl: the note on a merge request was NOT posted")
    address, posted = notes
    write_suite(">", "'false'")
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
    pip = '"$RUNNER_TEMP/perfdag/bin/pip" install -q'
    script = step["run"].replace(pip, "printf %s").replace("python3 -m venv", "echo >/dev/null")
    here = {"RUNNER_TEMP": "tmp", "GITHUB_PATH": "path"}
    output = run(script, here | {"PACKAGE": "", "GITHUB_ACTION_PATH": str(CI)}).stdout
    assert output == f"perfdag[s3,mpi] @ file://{CI.parent.parent}"
    output = run(script, here | {"PACKAGE": "perfdag==1", "GITHUB_ACTION_PATH": ""}).stdout
    assert output == "perfdag==1"


def test_a_release_names_its_images_in_the_wheel_the_chart_and_the_manifests() -> None:
    root = CI.parent.parent
    for name in ("perfdag/__init__.py", "deploy/claim.yaml", "deploy/helm/perfdag/Chart.yaml"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, name)
    Path("CHANGELOG.md").write_text(f"## Unreleased\n## {__version__} - today\nnews\n## 0.0.1\n")
    workflow = yaml.safe_load((root / ".github/workflows/release.yaml").read_text())
    [script] = [each["run"] for each in workflow["jobs"]["prepare"]["steps"] if "id" in each]
    variables = {"OWNER": "Someone", "GITHUB_OUTPUT": "out"}
    script = script.replace("make -s generated", "true")
    assert run(script, {**variables, "GITHUB_REF_NAME": "v9"}).returncode, "another version"
    result = run(script, {**variables, "GITHUB_REF_NAME": f"v{__version__}"})
    assert result.returncode == 0, result.stderr
    assert Path("notes.md").read_text() == "news\n"
    images = f"ghcr.io/someone/perfdag-{{name}}:{__version__}"
    assert f'IMAGES = "{images}"' in Path("perfdag/__init__.py").read_text()
    claim = Path("deploy/claim.yaml").read_text()
    assert images.format(name="finish") in claim
    assert "localhost" not in claim
    chart = yaml.safe_load(Path("deploy/helm/perfdag/Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__
