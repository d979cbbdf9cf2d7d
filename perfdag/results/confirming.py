"""Plans of confirming runs, which measure suspect points again in the same night."""

from dataclasses import replace

from perfdag.plan.plan import Batch, Plan, new_run_id
from perfdag.results.runs import load_plan, store_plan
from perfdag.store.base import Store, StoreError

ROUNDS = 2
"""Number of confirming runs."""


def confirming_plans(plan: Plan, points: set[str]) -> list[Plan]:
    """Return the plans of ROUNDS confirming runs, with one batch per shape.

    They hold the samples that `plan` has of the points with these ids.
    """
    indices = [i for i, point in enumerate(plan.points) if point.id in points]
    order = [(indices.index(i), repetition) for i, repetition in plan.order if i in indices]
    chosen = [plan.points[i] for i in indices]
    batches = []
    for shape in sorted({point.shape for point in chosen}):
        mine = [position for position, (i, _) in enumerate(order) if chosen[i].shape == shape]
        batches.append(
            Batch(shape, mine, sum(chosen[order[position][0]].seconds for position in mine))
        )
    options = {**plan.options, "confirms": plan.run_id}
    one = replace(
        plan, points=chosen, order=order, batches=batches, trigger="confirm", options=options
    )
    return [replace(one, run_id=run_id) for run_id in sorted(new_run_id() for _ in range(ROUNDS))]


def store_confirming_plans(store: Store, plan: Plan, points: set[str]) -> list[Plan]:
    """Store the plans of the confirming runs and name them in the plan they confirm.

    Raises StoreError.
    """
    confirming = confirming_plans(plan, points)
    for confirming_plan in confirming:
        store_plan(store, confirming_plan)
    plan.options["confirmed"] = [confirming_plan.run_id for confirming_plan in confirming]
    store_plan(store, plan)
    return confirming


def confirming_batches(plan: Plan, confirming: list[Plan]) -> list[tuple[int, Plan, int]]:
    """Return (number, plan, index in the plan) of each confirming batch.

    Numbers continue after the batches of the plan, with one place per shape and round.
    """
    first = len(plan.batches)
    return [
        (first + position * len(plan.shapes) + batch.shape, confirming_plan, index)
        for position, confirming_plan in enumerate(confirming)
        for index, batch in enumerate(confirming_plan.batches)
    ]


def plan_of_batch(store: Store, plan: Plan, number: int) -> tuple[Plan, int]:
    """Return the plan that a batch number of a run belongs to, and the index there.

    Raises StoreError.
    """
    if number < len(plan.batches):
        return plan, number
    confirming = [load_plan(store, run_id) for run_id in plan.options.get("confirmed", [])]
    for batch, owner, index in confirming_batches(plan, confirming):
        if batch == number:
            return owner, index
    raise StoreError(f"store {store.root}: run {plan.run_id} has no batch {number}")
