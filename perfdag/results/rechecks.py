"""Plans of the runs that measure suspicious points again, in the same night."""

from dataclasses import replace

from perfdag.plan.plan import Batch, Plan, new_run_id
from perfdag.results.runs import load_plan, store_plan
from perfdag.store.base import Store, StoreError

ROUNDS = 2
"""Number of rechecks of a run."""


def recheck_plans(plan: Plan, points: set[str]) -> list[Plan]:
    """Return the plans of ROUNDS rechecks, with one batch for each shape and entry.

    They hold the samples that `plan` has of the points with these ids.
    """
    indices = [i for i, point in enumerate(plan.points) if point.id in points]
    order = [(indices.index(i), repetition) for i, repetition in plan.order if i in indices]
    chosen = [plan.points[i] for i in indices]
    batches = []
    for kind in sorted({(point.shape, point.entry) for point in chosen}):
        mine = [
            position
            for position, (i, _) in enumerate(order)
            if (chosen[i].shape, chosen[i].entry) == kind
        ]
        batches.append(
            Batch(kind[0], mine, sum(chosen[order[position][0]].seconds for position in mine))
        )
    options = {**plan.options, "confirms": plan.run_id}
    one = replace(
        plan, points=chosen, order=order, batches=batches, trigger="confirm", options=options
    )
    return [replace(one, run_id=run_id) for run_id in sorted(new_run_id() for _ in range(ROUNDS))]


def store_rechecks(store: Store, plan: Plan, points: set[str]) -> list[Plan]:
    """Store the plans of the rechecks and name them in the plan of their run.

    Raises StoreError.
    """
    rechecks = recheck_plans(plan, points)
    for again in rechecks:
        store_plan(store, again)
    plan.options["confirmed"] = [again.run_id for again in rechecks]
    store_plan(store, plan)
    return rechecks


def recheck_batches(plan: Plan, rechecks: list[Plan]) -> list[tuple[int, Plan, int]]:
    """Return (number, plan, index in the plan) of each batch of a recheck.

    Numbers continue after the batches of the plan, with one place for each kind and recheck.
    """
    first, kinds = len(plan.batches), plan.kinds()
    return [
        (first + position * len(kinds) + kinds.index(again.kind(batch)), again, index)
        for position, again in enumerate(rechecks)
        for index, batch in enumerate(again.batches)
    ]


def plan_of_batch(store: Store, plan: Plan, number: int) -> tuple[Plan, int]:
    """Return the plan that a batch number of a run belongs to, and the index there.

    Raises StoreError.
    """
    if number < len(plan.batches):
        return plan, number
    rechecks = [load_plan(store, run_id) for run_id in plan.options.get("confirmed", [])]
    for batch, owner, index in recheck_batches(plan, rechecks):
        if batch == number:
            return owner, index
    raise StoreError(f"store {store.root}: run {plan.run_id} has no batch {number}")
