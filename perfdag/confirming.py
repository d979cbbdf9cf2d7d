"""Plans of the runs that measure suspect points again in the same night."""

from __future__ import annotations

from dataclasses import replace

from perfdag.plan import Batch, Plan, new_run_id
from perfdag.runs import load_plan
from perfdag.store import Store, StoreError

ROUNDS = 2
"""Runs that measure suspect points again."""


def again(plan: Plan, points: set[str]) -> list[Plan]:
    """Plans of ROUNDS confirming runs: the samples that `plan` has of these points (by id), a batch a shape."""
    kept = [i for i, point in enumerate(plan.points) if point.id in points]
    order = [(kept.index(i), repetition) for i, repetition in plan.order if i in kept]
    chosen = [plan.points[i] for i in kept]
    batches = []
    for shape in sorted({point.shape for point in chosen}):
        mine = [position for position, (i, _) in enumerate(order) if chosen[i].shape == shape]
        batches.append(Batch(shape, mine, sum(chosen[order[position][0]].seconds for position in mine)))
    options = {**plan.options, "confirms": plan.run_id}
    one = replace(plan, points=chosen, order=order, batches=batches, trigger="confirm", options=options)
    return [replace(one, run_id=run_id) for run_id in sorted(new_run_id() for _ in range(ROUNDS))]


def begin(store: Store, plan: Plan, points: set[str]) -> list[Plan]:
    """Store the plans of the confirming runs, and their names in the plan of the run they confirm. Raises StoreError."""
    made = again(plan, points)
    for each in made:
        store.put(f"runs/{each.run_id}/plan.json", each.dump())
    plan.options["confirmed"] = [each.run_id for each in made]
    store.put(f"runs/{plan.run_id}/plan.json", plan.dump())
    return made


def numbers(plan: Plan, confirming: list[Plan]) -> list[tuple[int, Plan, int]]:
    """(number, plan, index in its batches) of the confirming batches: they are counted on after the plan's own, a place for each
    shape and round."""
    first = len(plan.batches)
    return [
        (first + each * len(plan.shapes) + batch.shape, made, index)
        for each, made in enumerate(confirming)
        for index, batch in enumerate(made.batches)
    ]


def assigned(store: Store, plan: Plan, number: int) -> tuple[Plan, int]:
    """The plan that batch `number` of a run belongs to, and its index there: the run's own, or a confirming one. Raises StoreError."""
    if number < len(plan.batches):
        return plan, number
    confirming = [load_plan(store, run_id) for run_id in plan.options.get("confirmed", [])]
    for each, made, index in numbers(plan, confirming):
        if each == number:
            return made, index
    raise StoreError(f"store {store.root}: run {plan.run_id} has no batch {number}")
