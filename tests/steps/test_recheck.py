"""Confirming runs on a cluster: numbers that Argo fans out over lead every pod to the right
samples.
"""

import pytest

from perfdag.plan import Plan, make_plan
from perfdag.results.run_store import (
    ROUNDS,
    plan_of_batch,
    put_rechecks,
    recheck_batches,
    recheck_plans,
    stored_plan,
)
from perfdag.results.samples import MissingReason, SampleRecord, sample_key, write_reason
from perfdag.steps.pods.plan import missing_batches, outputs, resumed
from perfdag.store.base import FolderStore
from perfdag.suite.load import parse_suite

from .test_plan_step import place

SUITE = """\
name: s
repetitions: 3
warmup: 1
entries:
  - {benchmark: command, name: one, params: {argv: ['true']}}
  - {benchmark: command, name: other, params: {argv: ['false']}}
  - {benchmark: command, name: pair, hosts: {count: 2}, params: {argv: ['true']}}
  - {benchmark: command, name: net, network: {name: bench/net}, params: {argv: ['true']}}
"""


@pytest.fixture
def plan(store: FolderStore) -> Plan:
    """A stored plan."""
    plan = make_plan(parse_suite(SUITE), run_id=place().run_id, trigger="cron")
    store.put(f"runs/{plan.run_id}/plan.json", plan.dump())
    return plan


def of(plan: Plan, *entries: str) -> set[str]:
    return {point.id for point in plan.points if point.entry in entries}


def test_only_the_suspicious_points_are_planned_again_with_all_their_samples(plan: Plan) -> None:
    rechecks = recheck_plans(plan, of(plan, "one", "pair"))
    assert len({each.run_id for each in rechecks}) == ROUNDS
    for each in rechecks:
        assert each.run_id > plan.run_id
        assert sorted(point.entry for point in each.points) == ["one", "pair"]
        assert len(each.order) == 2 * (3 + 1)
        assert sorted(position for batch in each.batches for position in batch.samples) == list(
            range(len(each.order))
        )
        for batch in each.batches:
            assert {each.point_at(position).shape for position in batch.samples} == {batch.shape}
        assert each.trigger == "recheck"


def test_numbers_lead_to_batches_and_their_shapes(store: FolderStore, plan: Plan) -> None:
    rechecks = put_rechecks(store, plan, of(plan, "other", "net"))
    plan = stored_plan(store, plan.run_id)
    assert plan.options.rechecks == [each.run_id for each in rechecks]
    parameters = outputs(plan, place())
    result = recheck_batches(plan, rechecks)
    assert len(result) == ROUNDS * 2
    for number, run, index in result:
        actual, at = plan_of_batch(store, plan, number)
        assert (actual.run_id, at) == (run.run_id, index)
        shape = run.batches[index].shape
        kind = parameters["kinds"][int(parameters["kindof"][number])]
        assert kind["pods"] == str(plan.shapes[shape].hosts.count)
    assert plan_of_batch(store, plan, 1)[0].run_id == plan.run_id


def test_what_is_stored_is_not_measured_again_and_the_rest_in_the_order_of_its_runs(
    store: FolderStore, plan: Plan
) -> None:
    rechecks = put_rechecks(store, plan, of(plan, "one", "net"))
    result = recheck_batches(plan, rechecks)
    assert [run.run_id for _, run, _ in result] == [
        each.run_id for each in rechecks for _ in each.batches
    ]
    assert [*missing_batches(store, result)] == [number for number, *_ in result]
    done = rechecks[0]
    for position in range(len(done.order)):
        store.put(sample_key(done.run_id, done.key(position)), SampleRecord("x", 1, "ok").dump())
    rest = {number: (member, at) for number, member, at in result if member is not done}
    assert missing_batches(store, result) == rest


def test_what_goes_on_in_another_workflow_has_the_facts_of_both(
    store: FolderStore, plan: Plan
) -> None:
    plan.where = {"workflow_uid": "a"}
    runs = put_rechecks(store, plan, of(plan, "one"))
    plan.where = {"workflow_uid": "b", "before": {"a": {"workflow_uid": "a"}}}
    write_reason(store, runs[0].run_id, MissingReason("batch", "failed", "there was no room", 0))
    assert [each.run_id for each in resumed(store, plan)] == [each.run_id for each in runs]
    assert [stored_plan(store, each.run_id).where for each in runs] == [plan.where] * ROUNDS
    assert store.list(f"runs/{runs[0].run_id}/notes") == [], (
        "why an earlier Workflow did not measure it is no reason of this one"
    )
