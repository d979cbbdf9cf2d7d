"""The step after the batches of a gated run: plan rechecks of suspicious points."""

from pathlib import Path

from perfdag.analysis.gate import check, unattended_rules
from perfdag.kube.client import run_with_client
from perfdag.plan.plan import Plan
from perfdag.results import missing_reason
from perfdag.results.collect import collect
from perfdag.results.missing_reason import MissingReason
from perfdag.results.runs import (
    load_plan,
    plan_of_batch,
    recheck_batches,
    store_plan,
    store_rechecks,
)
from perfdag.results.samples import stored_samples
from perfdag.steps.runner.batch_objects import batch_objects, create_for_batches, shape_of
from perfdag.steps.runner.plan import item, write_outputs
from perfdag.steps.runner.pod_context import PodContext
from perfdag.store.base import Store
from perfdag.suite.model import checks_of


def step(context: PodContext, out: Path) -> list[str]:
    """Collect the run and plan rechecks of its suspicious points; return those points.

    Writes what Argo fans out over below `out`. Points are named by entry and label. Raises
    BadDocument, StoreError, KubeError.
    """
    store = context.open()
    plan = load_plan(store, context.run_id)
    if plan.options.confirmed:  # a resumed run keeps its plan
        rechecks = resumed(store, plan)
    else:
        collect(store, plan)
        rules = unattended_rules(store, checks_of(plan.suite_text))
        suspects = check(store, plan.suite, plan.run_id, rules).suspects
        points = {line.info.point for line in suspects}
        rechecks = store_rechecks(store, plan, points) if points else []
    left = batches_left(store, plan, rechecks)
    objects = {number: batch_objects(shape_of(plan, number), context, number) for number in left}
    refusals = run_with_client(lambda kube: create_for_batches(kube, context, store, plan, objects))
    for number, (status, text) in refusals.items():
        member, index = plan_of_batch(store, plan, number)
        missing_reason.write(store, member.run_id, MissingReason("batch", status, text, index))
    batches = [
        item(number, again, index, refusals)
        for number, again, index in recheck_batches(plan, rechecks)
        if number in objects
    ]
    write_outputs(out, {"batches": batches})
    points_again = rechecks[0].points if rechecks else []
    return [f"{point.entry} {point.label}".strip() for point in points_again]


def resumed(store: Store, plan: Plan) -> list[Plan]:
    """Return the rechecks of a resumed run, without earlier reasons and in its Workflow.

    Raises StoreError.
    """
    rechecks = [load_plan(store, run_id) for run_id in plan.options.confirmed]
    for member in rechecks:
        member.where = plan.where
        missing_reason.forget_all(store, member.run_id)
        store_plan(store, member)
    return rechecks


def batches_left(store: Store, plan: Plan, rechecks: list[Plan]) -> list[int]:
    """Return the batches of rechecks with missing samples, in the order of the rechecks."""
    stored = {member.run_id: stored_samples(store, member.run_id) for member in rechecks}
    return [
        number
        for number, member, index in recheck_batches(plan, rechecks)
        if any(
            member.key(position) not in stored[member.run_id]
            for position in member.batches[index].samples
        )
    ]
