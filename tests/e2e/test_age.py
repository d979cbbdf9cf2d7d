"""The check of a schedule's age on a real cluster."""

import pytest

from perfdag.kube.argo import nodes_of
from perfdag.kube.client import Object, run_with_client
from perfdag.workflows import age

from .conftest import Namespace

pytestmark = [pytest.mark.argo, pytest.mark.slow]
ARGO = "argoproj.io/v1alpha1"


def test_a_suite_without_a_run_fails_the_check(bench: Namespace) -> None:
    spec = age.cron(bench.name, "never", 3600)["spec"]["workflowSpec"]
    body = {
        "apiVersion": ARGO,
        "kind": "Workflow",
        "metadata": {"generateName": "age-"},
        "spec": spec,
    }
    name = run_with_client(lambda client: client.create(body, bench.name))["metadata"]["name"]

    def ended() -> Object | None:
        workflows = {item["metadata"]["name"]: item for item in bench.objects("Workflow", ARGO)}
        return workflows[name] if (workflows[name].get("status") or {}).get("finishedAt") else None

    workflow = bench.until(ended, 180, "end of the check")
    assert workflow["status"]["phase"] == "Failed"
    assert [
        node["outputs"]["exitCode"]
        for node in nodes_of(workflow).values()
        if node.get("type") == "Pod"
    ] == ["2"]
