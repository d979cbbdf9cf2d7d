"""`measure`, `benchmark` and `schedule` of perfdag.workflows, and the scripts of examples/."""

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hera.workflows import DAG, Steps, Workflow

from perfdag import Entry, Suite
from perfdag.suite.document import BadDocument
from perfdag.suite.load import parse_suite
from perfdag.workflows import benchmark, dump, measure, schedule, templates, workflow
from perfdag.workflows.installation import Installation
from tests.conftest import CommandLine

from .rules import problems

ROOT = Path(__file__).parents[2]
SUITE = str(ROOT / "suites/quick.yaml")
EXAMPLES: dict[str, list[str]] = {
    "compose.py": [SUITE],
    "one_benchmark.py": [],
    "node_pools.py": ["pool=fast", "pool=slow"],
    "nightly.py": ["bench"],
    "nightly_dag.py": [SUITE],
    "upgrade.py": [SUITE, "s3://bench/results"],
}
LS = Entry(benchmark="command", params={"argv": ["echo", "{{workflow.name}} $(HOME)"]})


def child(template: dict[str, Any]) -> dict[str, Any]:
    """The Workflow that a task creates."""
    assert "{{" not in template["resource"]["manifest"], "Argo would replace it"
    document: dict[str, Any] = yaml.safe_load(template["resource"]["manifest"])
    return document


def suite_of(document: dict[str, Any]) -> str:
    [artifact] = document["spec"]["arguments"]["artifacts"]
    return str(artifact["raw"]["data"])


def test_every_script_of_the_examples_is_tested() -> None:
    assert {file.name for file in (ROOT / "examples").glob("*.py")} == set(EXAMPLES)


def test_the_examples_keep_the_rules_and_argo_takes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    documents = []
    for example, arguments in EXAMPLES.items():
        script = str(ROOT / "examples" / example)
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        runpy.run_path(script, run_name="__main__")
        printed = list(yaml.safe_load_all(capsys.readouterr().out))
        assert [problems(each) for each in printed] == [[]] * len(printed), example
        documents += printed
        if arguments:
            monkeypatch.setattr(sys, "argv", [script])
            with pytest.raises(SystemExit, match=f"python examples/{example} "):
                runpy.run_path(script, run_name="__main__")
    if shutil.which("argo") is None:
        pytest.skip("needs the argo command: the examples were NOT linted by Argo")
    kinds = ("WorkflowTemplate", "Workflow", "CronWorkflow")
    installation = templates.objects(Installation(namespace="bench", store="s3://b/r"))
    linted = [each for each in (*installation, *documents) if each["kind"] in kinds]
    for each in linted:
        each["metadata"]["namespace"] = "bench"
    file = tmp_path / "linted.yaml"
    file.write_text(dump(linted))
    argv = ["argo", "lint", "--offline", str(file)]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_suites_stand_in_a_dag_and_in_steps_and_leave_the_workflow_as_it_is() -> None:
    with Workflow(generate_name="x-", entrypoint="all", on_exit="bye") as parent:
        with DAG(name="all"):
            first = measure(LS, name="first")
            first >> measure(SUITE, name="second")
        with Steps(name="others"):
            benchmark("iperf", streams=[1, 2, 4], duration="5s", hosts={"count": 2})
    document = parent.to_dict()
    assert document["spec"].keys() == {"entrypoint", "onExit", "templates"}
    by_name = {each["name"]: each for each in document["spec"]["templates"]}
    assert by_name["all"]["dag"]["tasks"][1]["depends"] == "first"
    assert by_name["others"]["steps"] == [[{"name": "iperf", "template": "iperf"}]]
    made = {name: child(by_name[name]) for name in ("first", "second", "iperf")}
    assert {name: each["spec"]["workflowTemplateRef"] for name, each in made.items()} == {
        "first": {"name": "perfdag"},
        "second": {"name": "perfdag"},
        "iperf": {"name": "perfdag"},
    }
    [source] = parse_suite(suite_of(made["first"])).sources
    assert source.entry.params == LS.params
    assert suite_of(made["second"]) == Path(SUITE).read_text(), "with its comments"
    [source] = parse_suite(suite_of(made["iperf"])).sources
    assert source.entry.params == {"duration": "5s"}
    assert source.entry.hosts.count == 2
    assert yaml.safe_load(suite_of(made["iperf"]))["entries"][0]["permutations"] == {
        "product": {"streams": [1, 2, 4]}
    }


def test_a_task_takes_settings_and_passes_on_what_its_run_is() -> None:
    settings = ["iperf.streams={{workflow.parameters.streams}}"]
    with Workflow(name="x", entrypoint="all") as parent, DAG(name="all"):
        task = measure(SUITE, settings=settings, only=["iperf"])
        assert task.get_parameter("run").value == "{{tasks.measure.outputs.parameters.run}}"
    _, template = parent.to_dict()["spec"]["templates"]
    assert [each["name"] for each in template["outputs"]["parameters"]] == [
        "workflow",
        "run",
        "summary",
    ]
    # Argo puts the value into the manifest before it creates the child.
    manifest = template["resource"]["manifest"].replace("{{workflow.parameters.streams}}", "8")
    [given] = yaml.safe_load(manifest)["spec"]["arguments"]["parameters"]
    assert given["name"] == "options"
    assert json.loads(given["value"]) == {"settings": ["iperf.streams=8"], "only": ["iperf"]}


def test_a_workflow_of_a_suite_is_what_render_prints(cli: CommandLine) -> None:
    printed = cli(["render", SUITE, "--namespace", "bench"]).out
    assert dump([workflow(SUITE, namespace="bench")]) == printed
    given = workflow(SUITE, settings=["priority=7", "iperf.streams=3"])["spec"]
    assert given["priority"] == 7
    assert given["arguments"]["artifacts"][0]["raw"]["data"] == Path(SUITE).read_text()
    with pytest.raises(BadDocument, match="streams"):
        workflow(SUITE, settings=["iperf.streams=many"])
    with pytest.raises(BadDocument, match="nothing"):
        workflow(SUITE, only=["nothing"])


def test_a_bad_suite_makes_no_task() -> None:
    with Workflow(name="x", entrypoint="all"), DAG(name="all") as dag:
        with pytest.raises(BadDocument, match="unknown benchmark 'lss'"):
            measure(Entry(benchmark="lss"))
        with pytest.raises(BadDocument, match="stream"):
            benchmark("iperf", stream=[1, 2])
    assert not dag.tasks


def test_a_schedule_in_one_call_is_what_render_prints(cli: CommandLine) -> None:
    suite = Suite(name="nightly", priority=3, entries=[LS])
    suite.save("nightly.yaml")
    words = ["--schedule", "41 4 * * *", "--namespace", "bench"]
    printed = cli(["render", "nightly.yaml", *words]).out
    assert dump(schedule(suite, "41 4 * * *", namespace="bench")) == printed
    with pytest.raises(ValueError, match="does not run daily"):
        schedule(suite, "0 4 * * 1", namespace="bench")
    _, age, _ = schedule(suite, "0 4 * * 1", namespace="bench", max_age="8d")
    listed = age["spec"]["workflowSpec"]["arguments"]["parameters"]
    assert {"name": "maxage", "value": "691200s"} in listed
