"""The step between measuring and the end of a gated run: plan the runs that confirm suspicious points."""

from pathlib import Path

import orjson

from perfdag.kube.client import run_with_client
from perfdag.plan.plan import Plan
from perfdag.regress.acks import unattended_rules
from perfdag.regress.gate import check
from perfdag.results import missing_reason
from perfdag.results.collect import collect
from perfdag.results.confirming import confirming_batches, plan_of_batch, store_confirming_plans
from perfdag.results.missing_reason import MissingReason
from perfdag.results.runs import load_plan
from perfdag.results.samples import run_folder, stored_samples
from perfdag.steps.runner.plan import FANS, batch_objects, create_each, shape_of
from perfdag.steps.runner.pod_context import PodContext
from perfdag.store.base import Store
from perfdag.suite.checks import checks_of


def step(here: PodContext, out: Path) -> list[str]:
    """Collect the run and plan the runs that confirm its suspicious points; return those points.

    Writes the numbers of their batches below `out`. Points are named by entry and label. Raises
    BadDocument, StoreError, KubeError.
    """
    store = here.open()
    plan = load_plan(store, here.run_id)
    if "confirmed" in plan.options:  # a resumed run keeps its plan
        confirming = planned(store, plan)
    else:
        collect(store, plan)
        found = check(
            store, plan.suite, plan.run_id, unattended_rules(store, checks_of(plan.suite_text))
        ).confirm
        confirming = (
            store_confirming_plans(store, plan, {each.point for each in found}) if found else []
        )
    made = outputs(store, plan, confirming)
    wanted = {
        number: batch_objects(shape_of(plan, number), here, plan, number)
        for name in FANS
        for number in made[name]
    }
    for number, (status, reason) in run_with_client(
        lambda kube: create_each(kube, here, plan, wanted)
    ).items():
        again, index = plan_of_batch(store, plan, number)
        missing_reason.write(store, again.run_id, MissingReason("batch", status, reason, index))
        made = {name: [each for each in left if each != number] for name, left in made.items()}
    out.mkdir(parents=True, exist_ok=True)
    for name, value in made.items():
        (out / name).write_text(orjson.dumps(value).decode())
    return (
        [f"{point.entry} {point.label}".strip() for point in confirming[0].points]
        if confirming
        else []
    )


def planned(store: Store, plan: Plan) -> list[Plan]:
    """Return the confirming runs of a resumed run, without reasons of before and in its Workflow.

    Raises StoreError.
    """
    confirming = [load_plan(store, run_id) for run_id in plan.options["confirmed"]]
    for member in confirming:
        member.where = plan.where
        missing_reason.forget_all(store, member.run_id)
        store.put(f"{run_folder(member.run_id)}/plan.json", member.dump())
    return confirming


def outputs(store: Store, plan: Plan, confirming: list[Plan]) -> dict[str, list[int]]:
    """Return the batches that Argo fans out over, in the order of the confirming runs."""
    stored = {each.run_id: stored_samples(store, each.run_id) for each in confirming}
    left = [
        number
        for number, made, index in confirming_batches(plan, confirming)
        if any(
            made.key(position) not in stored[made.run_id]
            for position in made.batches[index].samples
        )
    ]
    return {"batches": left, "duels": []}
