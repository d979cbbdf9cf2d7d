"""What a Workflow that did not succeed says of the samples that it left."""

from typing import Any
from unittest.mock import Mock

import pytest

from perfdag.kube.client import KubeError
from perfdag.plan.plan import Plan, make_plan
from perfdag.results.collect import gather
from perfdag.results.missing_reason import MissingReason, write
from perfdag.results.runs import sample_key
from perfdag.results.samples import SampleRecord
from perfdag.steps.pods import finish
from perfdag.store.folder import FolderStore
from perfdag.suite.load import parse_suite

from .test_plan_step import place

SUITE = (
    "name: s\nrepetitions: 3\nisolation: pod\n"
    "entries: [{benchmark: command, params: {argv: ['true']}}]\n"
)
LIMITED = {
    "startedAt": "2026-01-01T00:00:00Z",
    "storedWorkflowTemplateSpec": {"activeDeadlineSeconds": 7200},
}
START = 1767225600.0


@pytest.fixture
def plan() -> Plan:
    return make_plan(parse_suite(SUITE))


@pytest.mark.parametrize(
    ("workflow", "now", "message"),
    [
        ({"spec": {"shutdown": "Stop"}}, START, "was ended by `argo stop`"),
        (
            {"spec": {}, "status": LIMITED},
            START + 7200,
            "was ended by its deadline of 2 h 0 min (install --deadline)",
        ),
        (
            {"spec": {"activeDeadlineSeconds": 60}, "status": LIMITED},
            START + 60,
            "was ended by its deadline of 1 min 0 s (install --deadline)",
        ),
        ({"spec": {}, "status": LIMITED}, START + 7199, None),
        ({"spec": {}}, START, None),
    ],
)
def test_what_ended_a_workflow(workflow: dict[str, Any], now: float, message: str | None) -> None:
    assert finish.end_of(workflow, now) == message


def test_what_has_no_part_and_no_other_reason_was_left_by_its_workflow(
    store: FolderStore, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreachable = Mock(side_effect=KubeError(0, "Unreachable", "no"))
    monkeypatch.setattr(finish, "run_with_client", unreachable)
    finish.record_workflow_end(place(), store, plan, "Succeeded")
    assert gather(store, plan)[0]["error"].to_pylist() == ["planned, but no result was stored"] * 3
    finish.record_workflow_end(place(), store, plan, "Failed")
    assert gather(store, plan)[0]["error"].to_pylist() == ["workflow wf ended Failed"] * 3
    write(store, plan.run_id, MissingReason("batch", "skipped", "no node has a GPU", 1))
    store.put(sample_key(plan.run_id, plan.key(0)), SampleRecord(plan.points[0].id, 1, "ok").dump())
    rows = gather(store, plan)[0].to_pylist()
    assert [(row["status"], row["error"]) for row in rows] == [
        ("ok", None),
        ("skipped", "no node has a GPU"),
        ("missing", "workflow wf ended Failed"),
    ]


def test_a_run_that_it_was_not_let_go_on_with_is_none_of_its(
    store: FolderStore, plan: Plan
) -> None:
    store.put(sample_key(plan.run_id, plan.key(0)), SampleRecord(plan.points[0].id, 1, "ok").dump())
    finish.record_workflow_end(place(), store, plan, "Failed")
    assert store.list(f"runs/{plan.run_id}/notes") == []
