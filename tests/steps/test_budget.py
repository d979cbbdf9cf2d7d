"""The budget of a run on a cluster: what its clock counts, and what it does not."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from perfdag.plan import Plan, TimeLeft, make_plan
from perfdag.results.run_store import recheck_plans
from perfdag.results.samples import stored_samples
from perfdag.steps.loop import LocalPool
from perfdag.steps.pods import lead
from perfdag.steps.pods.context import clock_deadline, end_clock, from_environment
from perfdag.steps.pods.lead import ProgressReporter
from perfdag.store.base import FolderStore
from perfdag.suite.load import parse_suite

SUITE = (
    "name: s\nbudget: 30m\nentries: [{benchmark: command, repetitions: 2, params: {argv: "
    "['true'], expected: 0.1}}]\n"
)


@pytest.fixture
def plan() -> Plan:
    """A run whose Workflow waited an hour for the lock of another."""
    created = (datetime.now(UTC) - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    place = from_environment(
        {
            "PERFDAG_WORKFLOW_CREATED": created,
            "PERFDAG_WORKFLOW_UID": "u",
            "PERFDAG_STORE": "s3://b",
        }
    )
    return make_plan(parse_suite(SUITE), run_id=place.run_id)


def measure(store: FolderStore, plan: Plan) -> int:
    """Measure the batch of a plan; return how many samples are stored."""
    lead.measure_batch(store, [plan], LocalPool(), 0, ProgressReporter(2, TimeLeft(), 0))
    return len(
        [name for name in stored_samples(store, plan.run_id) if not name.startswith("canary")]
    )


def test_waiting_for_the_lock_is_not_counted(store: FolderStore, plan: Plan) -> None:
    assert measure(store, plan) == 2


def test_a_spent_budget_skips_all_but_rechecks_and_a_run_that_ended_has_all_of_it_again(
    store: FolderStore, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as half_an_hour_ago:
        half_an_hour_ago.setattr(time, "time", lambda now=time.time: now() - 1801)
        clock_deadline(store, plan)
    recheck = recheck_plans(plan, {plan.points[0].id})[0]
    assert measure(store, recheck) == 2, "rechecks have a clock of their own"
    assert measure(store, plan) == 0
    assert b"the budget of 1800 s was spent" in store.get(f"runs/{plan.run_id}/notes/budget-0.json")
    end_clock(store, plan.run_id)  # `argo retry` runs no plan step again
    assert measure(store, plan) == 2
