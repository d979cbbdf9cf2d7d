"""The budget of a run on a cluster: what its clock counts, and what it does not."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from perfdag.hosts.local import LocalHost
from perfdag.plan.plan import Plan, make_plan
from perfdag.results.confirming import confirming_plans
from perfdag.results.samples import stored_samples
from perfdag.steps.measure import Site
from perfdag.steps.runner import budget, gang
from perfdag.steps.runner.pod_context import from_environment
from perfdag.steps.runner.progress import ProgressReporter
from perfdag.store.folder import FolderStore
from perfdag.suite.load import parse_suite

SUITE = (
    "name: s\nbudget: 30m\nentries: [{benchmark: command, repetitions: 2, params: {argv: "
    "['true'], expected: 0.1}}]\n"
)


@pytest.fixture
def queued(tmp_path: Path) -> tuple[FolderStore, Plan]:
    """A run whose Workflow waited an hour for the lock of another."""
    created = (datetime.now(UTC) - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    place = from_environment(
        {
            "PERFDAG_WORKFLOW_CREATED": created,
            "PERFDAG_WORKFLOW_UID": "u",
            "PERFDAG_STORE": "s3://b",
        }
    )
    return FolderStore(str(tmp_path)), make_plan(parse_suite(SUITE), run_id=place.run_id)


def measured(store: FolderStore, plan: Plan) -> int:
    gang.measure_batch(
        store,
        plan,
        Site(hosts_for=lambda _: [LocalHost()]),
        0,
        plan.batches[0].samples,
        ProgressReporter(2),
    )
    return len(
        [name for name in stored_samples(store, plan.run_id) if not name.startswith("canary")]
    )


def test_waiting_for_the_lock_is_not_counted(queued: tuple[FolderStore, Plan]) -> None:
    store, plan = queued
    budget.begin(store, plan.run_id)
    assert measured(store, plan) == 2


def test_a_spent_budget_skips_and_a_run_that_ended_has_all_of_it_again(
    queued: tuple[FolderStore, Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, plan = queued
    monkeypatch.setattr(budget.time, "time", lambda now=time.time: now() - 1801)
    budget.begin(store, plan.run_id)
    monkeypatch.undo()
    assert measured(store, plan) == 0
    assert b"the budget of 1800 s was spent" in store.get(f"runs/{plan.run_id}/notes/budget-0.json")
    budget.end(store, plan.run_id)  # `argo retry` runs no plan step again
    assert measured(store, plan) == 2


def test_what_confirms_a_night_has_a_clock_of_its_own(
    queued: tuple[FolderStore, Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, plan = queued
    monkeypatch.setattr(budget.time, "time", lambda now=time.time: now() - 1801)
    budget.begin(store, plan.run_id)  # the night used all of its budget
    monkeypatch.undo()
    confirming = confirming_plans(plan, {plan.points[0].id})[0]
    assert measured(store, confirming) == 2
