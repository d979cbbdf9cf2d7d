"""Why samples have no part, where more than one thing kept them from being measured."""

import contextlib
from typing import Any
from unittest.mock import Mock

import pytest

from perfdag.hosts.local import LocalHost
from perfdag.kube.pods import Pod
from perfdag.plan.plan import Plan, make_plan
from perfdag.results.collect import gather
from perfdag.results.missing_reason import (
    MissingReason,
    as_annotation,
    budget_spent,
    from_annotations,
    write,
)
from perfdag.steps.pods import finish, lead
from perfdag.steps.pods.finish import BatchReasons, copy_annotation
from perfdag.steps.pods.gather import Hosts
from perfdag.steps.pods.watchdog import Watchdog, watch_pods
from perfdag.store.base import Store
from perfdag.store.folder import FolderStore
from perfdag.suite.load import parse_suite
from tests.fakes.api_server import ApiServer, Request

from .objects import gang_pod, workflow_of
from .test_duet import duet_of
from .test_plan_step import place

SUITE = (
    "name: s\nbudget: 100s\nrepetitions: 3\n"
    "entries: [{benchmark: command, params: {argv: ['true']}}]\n"
)
OWNER = "u-1 2026-01-02T00:00:00Z"
PENDING = "pod of rank 0 never started: Unschedulable: 0/1 nodes are available"


def reasons(store: Store, plan: Plan) -> set[tuple[str, str]]:
    return {(row["status"], row["error"]) for row in gather(store, plan)[0].to_pylist()}


@pytest.fixture
def plan() -> Plan:
    return make_plan(parse_suite(SUITE))


@pytest.fixture
def complete_gangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every gang stands at once."""
    hosts = Hosts([LocalHost()], {})
    monkeypatch.setattr(lead, "assembled", lambda *_: contextlib.nullcontext(hosts))


@pytest.mark.usefixtures("complete_gangs")
def test_a_gang_that_stood_in_the_end_is_not_what_its_pods_once_waited_for(
    store: FolderStore, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, plan.run_id, MissingReason("batch", "failed", PENDING, 0))
    monkeypatch.setattr(lead, "clock_deadline", lambda *_: 0.0)
    assert lead.lead(place(), store, plan, 0, 0, True) == 0
    assert reasons(store, plan) == {("skipped", "the budget of 100 s was spent")}


@pytest.mark.usefixtures("complete_gangs")
def test_a_run_that_is_stopped_says_so_of_a_batch_that_had_to_wait(
    store: FolderStore, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, plan.run_id, MissingReason("batch", "failed", PENDING, 0))

    monkeypatch.setattr(lead, "measure_batch", Mock(side_effect=SystemExit(75)))
    with pytest.raises(SystemExit):
        lead.lead(place(), store, plan, 0, 0, True)
    monkeypatch.setattr(
        finish, "run_with_client", lambda work: {"metadata": {}, "spec": {"shutdown": "Stop"}}
    )
    finish.record_workflow_end(place(), store, plan, "Failed")
    assert reasons(store, plan) == {("missing", "workflow wf was ended by `argo stop`")}


def test_a_spent_budget_is_what_a_watchdog_without_a_store_cannot_know(
    store: FolderStore, plan: Plan
) -> None:
    """Its notes come to the store with the last step, after those of the leads."""
    write(store, plan.run_id, budget_spent(100, 0))
    write(store, plan.run_id, MissingReason("batch", "failed", PENDING, 0))
    assert reasons(store, plan) == {("skipped", "the budget of 100 s was spent")}


@pytest.mark.usefixtures("complete_gangs")
def test_a_gang_that_stands_takes_away_what_was_noted_of_both_variants(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = duet_of()
    for plan in (result.a, result.b):
        store.put(f"runs/{plan.run_id}/plan.json", plan.dump())
        write(store, plan.run_id, MissingReason("batch", "failed", PENDING, 0))
    monkeypatch.setattr(lead, "measure_batch", lambda *_: None)
    assert lead.lead(place(result.a.run_id), store, result.a, 0, 0, False) == 0
    assert [store.list(f"runs/{plan.run_id}/notes") for plan in (result.a, result.b)] == [[], []]


@pytest.mark.usefixtures("complete_gangs")
def test_what_ends_the_next_gang_too_is_noted_again(
    store: FolderStore, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lead, "measure_batch", lambda *_: None)
    watchdog = Watchdog(60.0, BatchReasons(plan, store))
    oom = "OOMKilled: container main passed its memory limit of 1Gi"
    seen = []
    for attempt in (0, 1):
        lead.lead(place(), store, plan, 0, attempt, False)
        assert reasons(store, plan) == {("missing", "planned, but no result was stored")}
        seen.append(Pod(f"p{attempt}", 0, attempt, 0, "Failed", None, None, oom, uid=f"u{attempt}"))
        watchdog.look(seen, 5.0 * attempt)
        assert reasons(store, plan) == {("failed", f"pod of rank 0: {oom}")}
    assert watchdog.look(seen, 30.0) == []


@pytest.mark.parametrize("stands", [True, False])
async def test_what_a_watchdog_without_a_store_noted_is_over_when_the_gang_stands(
    store: FolderStore, plan: Plan, monkeypatch: pytest.MonkeyPatch, stands: bool
) -> None:
    """The notes of the lead, which has the store, are newer."""
    write(store, plan.run_id, MissingReason("batch", "failed", "the peer on node-1 is gone", 0))
    # of a watchdog that was here before, and of this one
    workflow = workflow_of(place(), as_annotation(OWNER, {0: PENDING, 1: PENDING}))
    last = ["Running", "Running" if stands else "Pending"]
    looks = [["Pending"], ["Pending", "Pending"], last, last]  # it is over when the fourth is read

    full = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/1 nodes are available",
    }
    status: dict[str, dict[str, Any]] = {
        "Pending": {"phase": "Pending", "conditions": [full]},
        "Running": {"phase": "Running"},
    }

    def pods(_: Request) -> dict[str, Any]:
        items = [
            gang_pod(status[phase], rank, attempt=1, uid=f"u{rank}")
            for rank, phase in enumerate(looks.pop(0))
        ]
        if not looks:
            server.of("Workflow")[0]["status"]["phase"] = "Failed"
        return {"metadata": {}, "items": items}

    server = ApiServer(workflow)
    server.on("GET .*/pods", pods)
    monkeypatch.setattr("perfdag.steps.pods.watchdog.LOOK_SECONDS", 0.01)
    monkeypatch.setattr("perfdag.steps.pods.watchdog.UNRECOVERABLE_SECONDS", 0.0)
    await watch_pods(server.client(), place(), 60.0, None)
    [workflow] = server.of("Workflow")
    left = from_annotations(OWNER, workflow["metadata"]["annotations"])
    assert left.keys() == ({1} if stands else {0, 1})
    workflow["metadata"]["annotations"] = as_annotation(
        OWNER, {k: v for k, v in left.items() if not k}
    )
    monkeypatch.setattr("perfdag.steps.pods.finish.run_with_client", lambda work: workflow)
    copy_annotation(place(), store, plan)
    assert reasons(store, plan) == {
        ("failed", "the peer on node-1 is gone" if stands else PENDING.replace("rank 0", "rank 1"))
    }
