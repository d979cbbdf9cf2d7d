"""Why samples are missing, where more than one thing kept them from being measured."""

from typing import Any
from unittest.mock import Mock

import pytest

from perfdag.kube.client import KubeError
from perfdag.plan import Duet, Plan, make_plan
from perfdag.results.collect import gather
from perfdag.results.run_store import put_plan, put_rechecks
from perfdag.results.samples import (
    NOTES,
    MissingReason,
    SampleRecord,
    as_annotation,
    budget_spent,
    from_annotations,
    sample_key,
    write_reason,
)
from perfdag.steps.pods import watchdog
from perfdag.steps.pods.watchdog import end_of, record_end
from perfdag.store.base import FolderStore, Store
from perfdag.suite.load import parse_suite

from .objects import workflow_of
from .test_duet import duet_of
from .test_plan_step import place

SUITE = (
    "name: s\nbudget: 100s\nrepetitions: 3\nisolation: pod\n"
    "entries: [{benchmark: command, params: {argv: ['true']}}]\n"
)
OURS, RETRIED = "u-1 2026-01-02T00:00:00Z", "u-1 2026-01-01T00:00:00Z"
"""What annotations of a Workflow begin with; of the same one before `argo retry`."""
PENDING = "pod of rank 0 never started: Unschedulable: 0/1 nodes are available"
LIMITED = {
    "startedAt": "2026-01-01T00:00:00Z",
    "storedWorkflowTemplateSpec": {"activeDeadlineSeconds": 7200},
}
START = 1767225600.0


def reasons(store: Store, plan: Plan) -> list[tuple[str, str]]:
    return [(row["status"], row["error"]) for row in gather(store, plan)[0].to_pylist()]


@pytest.fixture
def plan() -> Plan:
    return make_plan(parse_suite(SUITE))


@pytest.fixture
def tells(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The Workflow as the last step reads it."""
    workflow = workflow_of(place())
    monkeypatch.setattr(watchdog, "run_with_client", lambda work: workflow)
    return workflow


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
    assert end_of({"metadata": {}} | workflow, now) == message


def test_a_batch_has_its_own_reason_and_the_rest_that_of_the_workflow(
    store: FolderStore, plan: Plan, tells: dict[str, Any]
) -> None:
    write_reason(store, plan.run_id, budget_spent(100, 0))
    under_way = MissingReason("sample", "failed", "in flight", 2, (plan.key(2),), 1, "n")
    write_reason(store, plan.run_id, under_way)  # by a lead whose peer was ended first
    tells["metadata"]["annotations"] = as_annotation(OURS, {0: PENDING, 1: PENDING})
    tells["spec"]["shutdown"] = "Stop"
    record_end(place(), store, plan, "Failed")
    assert reasons(store, plan) == [
        ("skipped", "the budget of 100 s was spent"),
        ("failed", PENDING),
        ("missing", "workflow wf was ended by `argo stop`"),
    ]


@pytest.mark.parametrize(
    ("phase", "text"),
    [("Succeeded", "planned, but no result was stored"), ("Failed", "workflow wf ended Failed")],
)
def test_without_an_api_server_the_phase_is_the_reason(
    store: FolderStore, plan: Plan, monkeypatch: pytest.MonkeyPatch, phase: str, text: str
) -> None:
    unreachable = Mock(side_effect=KubeError(0, "Unreachable", "no"))
    monkeypatch.setattr(watchdog, "run_with_client", unreachable)
    record_end(place(), store, plan, phase)
    assert reasons(store, plan) == [("missing", text)] * 3


def test_a_run_that_it_was_not_let_go_on_with_is_none_of_its(
    store: FolderStore, plan: Plan
) -> None:
    store.put(sample_key(plan.run_id, plan.key(0)), SampleRecord(plan.points[0].id, 1, "ok").dump())
    record_end(place(), store, plan, "Failed")
    assert store.list(f"runs/{plan.run_id}/notes") == []


def test_annotations_fit_into_an_object_and_are_of_this_attempt_at_the_workflow(
    store: FolderStore, plan: Plan, tells: dict[str, Any]
) -> None:
    every = {*range(1000)}
    many = as_annotation(OURS, dict.fromkeys(every, "x" * 5000), every)
    assert len(str(many[NOTES])) < 80_000
    texts, final = from_annotations(OURS, many)
    assert texts.keys() == final == every
    tells["metadata"]["annotations"] = as_annotation(RETRIED, {0: PENDING})
    record_end(place(), store, plan, "Succeeded")
    assert store.list(f"runs/{plan.run_id}/notes") == []


def test_a_reason_is_of_the_recheck_that_its_batch_is_of_and_of_both_variants(
    store: FolderStore, plan: Plan, tells: dict[str, Any]
) -> None:
    put_plan(store, plan)
    [first, _] = put_rechecks(store, plan, {plan.points[0].id})
    tells["metadata"]["annotations"] = as_annotation(OURS, {len(plan.batches): PENDING})
    record_end(place(), store, plan, "Succeeded")
    assert {text for _, text in reasons(store, first)} == {PENDING}
    duet = stored_duet(store)
    tells["metadata"]["annotations"] = as_annotation(OURS, {0: PENDING})
    why = record_end(place(duet.a.run_id), store, duet.a, "Succeeded")
    assert why == "Unschedulable: 0/1 nodes are available", "for `argo get`, with exit code 4"
    for variant in (duet.a, duet.b):
        assert PENDING in {text for _, text in reasons(store, variant)}


def stored_duet(store: Store) -> Duet:
    duet = duet_of()
    for plan in (duet.a, duet.b):
        put_plan(store, plan)
    return duet
