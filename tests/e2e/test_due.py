"""The watch over a schedule on a real cluster: red where a night is late, and only there."""

import pytest

from perfdag import kube
from perfdag.steps.sentry import nodes_of
from perfdag.workflows import due
from perfdag.workflows.templates import Installation

from .conftest import Namespace, Object

pytestmark = [pytest.mark.argo, pytest.mark.slow]
ARGO = "argoproj.io/v1alpha1"


def look(bench: Namespace, template: str, suite: str, hours: str) -> str:
    told = [{"name": "suitename", "value": suite}, {"name": "hours", "value": hours}]
    spec = {"workflowTemplateRef": {"name": template}, "arguments": {"parameters": told}}
    body = {
        "apiVersion": ARGO,
        "kind": "Workflow",
        "metadata": {"generateName": f"due-{suite}-"},
        "spec": spec,
    }
    return str(kube.run(lambda client: client.create(body, bench.name))["metadata"]["name"])


def test_a_late_night_is_red_and_a_pod_that_never_started_is_none(bench: Namespace) -> None:
    nowhere = Installation(
        namespace=bench.name,
        store=bench.store,
        images="localhost/nowhere-{name}:1",
        pull_policy="Never",
        pending_limit=15,
    )
    waits = due.template(nowhere)
    waits["metadata"]["name"] = "due-waits"
    kube.run(lambda client: client.apply(waits))
    wanted = {
        look(bench, due.NAME, "late", "-1"): ("Failed", "Skipped"),
        look(bench, due.NAME, "early", "1000"): ("Succeeded", "Omitted"),
        look(bench, "due-waits", "waits", "0"): ("Succeeded", "Succeeded"),
    }

    def ended() -> list[Object] | None:
        found = [
            each for each in bench.objects("Workflow", ARGO) if each["metadata"]["name"] in wanted
        ]
        return (
            found if all((each.get("status") or {}).get("finishedAt") for each in found) else None
        )

    made = bench.until(ended, 180, "end of all looks")
    last = {
        each["metadata"]["name"]: next(
            (
                node["phase"]
                for node in nodes_of(each).values()
                if node["displayName"] == "not-looked"
            ),
            None,
        )
        for each in made
    }
    assert {
        each["metadata"]["name"]: (each["status"]["phase"], last[each["metadata"]["name"]])
        for each in made
    } == wanted
    pods = [each for each in made if each["metadata"]["name"].startswith("due-late")]
    looks = [node for node in nodes_of(pods[0]).values() if node.get("type") == "Pod"]
    assert [node["outputs"]["exitCode"] for node in looks] == ["3"], (
        "another pod would say the same"
    )
