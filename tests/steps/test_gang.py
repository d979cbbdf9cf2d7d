"""The order of a batch's samples on its first try and on a retry."""

from perfdag.plan import make_plan
from perfdag.steps.gang import in_turn
from perfdag.suite import loads

SLEEPS = "name: s\nentries:\n  - {benchmark: command, params: {argv: ['true']}, permutations: {product: {exit_code: [0, 1, 2, 3, 4]}}}\n"
PAIRS = "name: p\nentries:\n  - benchmark: iperf\n    hosts: {count: 4, pairs: all, parallel_pairs: 2}\n    params: {duration: 1s}\n"


def test_a_first_attempt_keeps_the_order_of_the_plan() -> None:
    plan = make_plan(loads(SLEEPS))
    assert in_turn(plan, [3, 1, 4, 0, 2], [4, 0, 2], 0) == [3, 1, 4, 0, 2]


def test_a_retry_measures_what_was_under_way_last() -> None:
    plan = make_plan(loads(SLEEPS))
    assert in_turn(plan, [3, 1, 4, 0, 2], [4, 0, 2], 1) == [3, 1, 0, 2, 4]
    assert in_turn(plan, [3, 1, 4, 0, 2], [2], 2) == [3, 1, 4, 0, 2]


def test_a_retry_keeps_pairs_together_that_are_measured_at_once() -> None:
    plan = make_plan(loads(PAIRS))
    samples = plan.batches[0].samples
    again = in_turn(plan, samples, samples, 1)
    assert again == [*samples[2:], *samples[:2]]
    assert sorted(again) == sorted(samples)
