"""`perfdag.workflows.measure` and `schedule`, and the scripts of examples/ that use them."""

import base64
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hera.workflows import DAG, CronWorkflow, Parameter, Task, Workflow
from hera.workflows import models as m

from perfdag import Entry, Suite
from perfdag.suite.document import BadDocument
from perfdag.suite.load import parse_suite
from perfdag.workflows import dump, measure, schedule, templates
from perfdag.workflows.templates import Installation

from .rules import problems

ROOT = Path(__file__).parents[2]
STORE, SUITE = "s3://bench/results", str(ROOT / "suites/quick.yaml")
EXAMPLES = {
    "compose.py": [SUITE, STORE],
    "one_benchmark.py": [STORE],
    "node_pools.py": [STORE, "pool=fast", "pool=slow"],
    "nightly.py": [STORE, "bench"],
    "nightly_dag.py": [SUITE, STORE],
}
LS = Entry(benchmark="command", params={"argv": ["ls"]})


def composed(**options: Any) -> dict[str, Any]:
    with Workflow(generate_name="x-", entrypoint="all") as workflow, DAG(name="all"):
        measure(LS, store=STORE, **options)
    document: dict[str, Any] = workflow.to_dict()
    return document


def parameters(document: dict[str, Any]) -> dict[str, str]:
    listed = document["spec"]["arguments"]["parameters"]
    return {each["name"]: each.get("value") for each in listed}


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
    if shutil.which("argo") is None:
        pytest.skip("needs the argo command: the examples were NOT linted by Argo")
    kinds = ("WorkflowTemplate", "Workflow", "CronWorkflow")
    installation = templates.objects(Installation(namespace="bench", store=STORE))
    linted = [each for each in (*installation, *documents) if each["kind"] in kinds]
    for each in linted:
        each["metadata"]["namespace"] = "bench"
    file = tmp_path / "linted.yaml"
    file.write_text(dump(linted))
    argv = ["argo", "lint", "--offline", str(file)]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_workflow_gets_what_a_task_does_not_inherit() -> None:
    for lock, cluster_scope in (("perfdag", False), ("team", True)):
        document = composed(lock_namespace=lock, cluster_scope=cluster_scope)
        installation = Installation(store=STORE, lock_namespace=lock, cluster_scope=cluster_scope)
        [template] = [
            each
            for each in templates.objects(installation)
            if each["metadata"]["name"] == "perfdag" and "spec" in each
        ]
        for key in (
            *("synchronization", "podGC", "ttlStrategy", "activeDeadlineSeconds"),
            *("workflowMetadata", "podMetadata", "serviceAccountName"),
        ):
            assert document["spec"][key] == template["spec"][key]
        assert parameters(document).keys() == parameters(template).keys()
        [dag] = document["spec"]["templates"]
        references = [
            document["spec"]["hooks"]["exit"]["templateRef"],
            dag["dag"]["tasks"][0]["templateRef"],
        ]
        assert [(ref["template"], ref.get("clusterScope", False)) for ref in references] == [
            ("finish", cluster_scope),
            ("run", cluster_scope),
        ]


def test_an_entry_alone_is_a_suite_of_its_name() -> None:
    document = composed()
    assert document["metadata"]["labels"] == {"perfdag/suite": "command"}
    text = base64.b64decode(parameters(document)["suite"]).decode()
    [source] = parse_suite(text).sources
    assert (source.entry.benchmark, source.entry.params) == ("command", {"argv": ["ls"]})


def test_what_the_workflow_has_of_its_own_stays() -> None:
    own = m.Synchronization(mutexes=[m.Mutex(name="mine")])
    with (
        Workflow(
            generate_name="x-",
            entrypoint="all",
            arguments=[Parameter(name="size", value="3")],
            synchronization=own,
            labels={"team": "a"},
            service_account_name="mine",
        ) as workflow,
        DAG(name="all"),
    ):
        measure(LS, store=STORE, name="fast", depends="other")
    document = workflow.to_dict()
    assert parameters(document)["size"] == "3"
    assert parameters(document)["store"] == STORE
    names = [each["name"] for each in document["spec"]["synchronization"]["mutexes"]]
    assert names == ["mine", "perfdag-measuring"]
    assert document["metadata"]["labels"] == {"team": "a", "perfdag/suite": "command"}
    assert document["spec"]["serviceAccountName"] == "mine"
    [task] = document["spec"]["templates"][0]["dag"]["tasks"]
    assert (task["name"], task["depends"]) == ("fast", "other")


def test_a_mistake_is_one_sentence() -> None:
    with pytest.raises(ValueError, match="needs the open `with` block"):
        measure(LS, store=STORE)
    for keys, message in (
        ({"on_exit": "bye"}, "exit handler"),
        ({"arguments": [Parameter(name="store", value="x")]}, "rename them: store"),
    ):
        own = Workflow(name="x", entrypoint="all", **keys)
        with own, DAG(name="all"), pytest.raises(ValueError, match=message):
            measure(LS, store=STORE)
    with Workflow(name="x", entrypoint="all") as workflow, DAG(name="all"):
        with pytest.raises(ValueError, match="pods share no folder"):
            measure(LS, store="./results")
        with pytest.raises(BadDocument, match="unknown benchmark 'lss'"):
            measure(Entry(benchmark="lss"), store=STORE)
        measure(LS, store=STORE)
        with pytest.raises(ValueError, match="one measure"):
            measure(LS, store=STORE)
    assert len(workflow.to_dict()["spec"]["templates"][0]["dag"]["tasks"]) == 1


def test_a_dag_on_a_schedule() -> None:
    workflow = CronWorkflow(name="x", schedules=["@daily"], entrypoint="all")
    with workflow, DAG(name="all"):
        Task(name="before", template="other") >> measure(LS, store=STORE)
    spec = workflow.to_dict()["spec"]["workflowSpec"]
    assert spec["hooks"]["exit"]["templateRef"]["template"] == "finish"
    assert parameters({"spec": spec})["store"] == STORE


def test_a_schedule_in_one_call_is_what_render_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from perfdag.commands.main import main

    suite = Suite(name="nightly", priority=3, entries=[LS])
    suite.save("nightly.yaml")
    words = ["--schedule", "41 4 * * *", "--namespace", "bench", "--store", STORE]
    assert main(["render", "nightly.yaml", *words]) == 0
    documents = schedule(suite, "41 4 * * *", namespace="bench", store=STORE)
    assert dump(documents) == capsys.readouterr().out
    with pytest.raises(ValueError, match="does not run daily"):
        schedule(suite, "0 4 * * 1", namespace="bench")
    _, age, _ = schedule(suite, "0 4 * * 1", namespace="bench", max_age="8d")
    listed = age["spec"]["workflowSpec"]["arguments"]["parameters"]
    assert {"name": "maxage", "value": "691200s"} in listed
