"""Two variants of a suite without a cluster: one gang measures both in turn."""

import pytest

from perfdag.plan import Duet, Plan, TimeLeft, duet_on_cluster, prepare_duet, stored_duet
from perfdag.results.run_store import stored_plan, variants
from perfdag.results.samples import SampleRecord, read_sample, sample_key, stored_samples
from perfdag.steps.loop import LocalPool
from perfdag.steps.pods import lead
from perfdag.steps.pods.lead import ProgressReporter
from perfdag.store.base import FolderStore
from perfdag.suite.document import BadDocument
from perfdag.suite.load import parse_suite

SUITE = """\
name: s
entries:
  - {benchmark: command, name: one, params: {argv: ['true'], expected: 0.1}}
"""


def duet_of(
    text: str = SUITE, a: tuple[str, ...] = (), b: tuple[str, ...] = ("one.env.X=x",)
) -> Duet:
    return duet_on_cluster(
        prepare_duet(
            parse_suite(text, settings=list(a)), parse_suite(text, settings=list(b)), ("a", "b"), 8
        )
    )


def test_points_of_equal_shapes_share_their_pods_for_all_blocks() -> None:
    text = (
        SUITE + "  - {benchmark: command, name: two, hosts: {count: 2}, params: {argv: ['true']}}\n"
    )
    result = duet_of(text)
    assert [len(each.batches) for each in (result.a, result.b)] == [2, 2]
    for plan in (result.a, result.b):
        assert sorted(position for batch in plan.batches for position in batch.samples) == list(
            range(len(plan.order))
        )
        assert plan.options.cluster is True


@pytest.mark.parametrize(
    ("b", "keys"),
    [
        ("one.hosts.count=2", "hosts"),
        ("one.network.host=true", "network"),
        ("one.image=x", "image"),
    ],
)
def test_variants_that_need_other_pods_are_refused(b: str, keys: str) -> None:
    with pytest.raises(
        BadDocument, match=f"entry one: A and B differ in {keys}, but the same pods"
    ):
        duet_of(b=(b,))


def _measure(store: FolderStore, duet: Duet) -> None:
    for plan in (duet.a, duet.b):
        store.put(f"runs/{plan.run_id}/plan.json", plan.dump())
    lead.measure_batch(store, [duet.a, duet.b], LocalPool(), 0, ProgressReporter(32, TimeLeft(), 0))


def _parts(store: FolderStore, plan: Plan) -> list[SampleRecord]:
    names = sorted(
        name for name in stored_samples(store, plan.run_id) if not name.startswith("canary")
    )
    return [read_sample(store.get(sample_key(plan.run_id, name))) for name in names]


def test_a_spent_budget_is_the_reason_of_both_variants(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lead, "clock_deadline", lambda *_: 0.0)
    duet = duet_of(f"budget: 1000s\n{SUITE}")
    _measure(store, duet)
    for plan in (duet.a, duet.b):
        assert _parts(store, plan) == []
        assert b"the budget of 1000 s was spent" in store.get(
            f"runs/{plan.run_id}/notes/budget-0.json"
        )


def test_the_order_is_of_the_run_unless_the_suite_gives_a_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def of(run_id: str, text: str = SUITE) -> Duet:
        monkeypatch.setattr("perfdag.plan.new_run_id", lambda: run_id)
        return duet_of(text)

    ids = [f"20261120T02000{i}Z-1a2b3c4d" for i in range(8)]
    orders = {tuple(of(each).blocks) for each in ids}
    assert len(orders) > 4
    assert {tuple(sorted(each)) for each in orders} == {("ABBA",) * 4 + ("BAAB",) * 4}
    assert len({of(each).a.seed for each in ids}) == 8
    assert of(ids[0]).blocks == of(ids[0]).blocks == stored_duet(of(ids[0]).b, of(ids[0]).a).blocks
    assert len({tuple(of(each, f"seed: 0\n{SUITE}").blocks) for each in ids}) == 1


def test_the_stored_plans_are_one_duel(store: FolderStore) -> None:
    result = duet_of()
    for plan in (result.a, result.b):
        store.put(f"runs/{plan.run_id}/plan.json", plan.dump())
    again = stored_duet(*variants(store, stored_plan(store, result.b.run_id)))
    assert (again.a.run_id, again.b.run_id, again.blocks) == (
        result.a.run_id,
        result.b.run_id,
        result.blocks,
    )
