"""The first step of a run on a cluster: make the plan, and create what its batches need."""

from collections.abc import Mapping
from pathlib import Path

from perfdag.kube.client import Kube, KubeError, Object, run_with_client
from perfdag.kube.permits import check_permits
from perfdag.kube.pod_patch import priority_class
from perfdag.plan.placement import place_hosts
from perfdag.plan.plan import Plan, make_plan, read_plan
from perfdag.results import missing_reason
from perfdag.results.durations import with_learned_times
from perfdag.results.missing_reason import MissingReason
from perfdag.results.runs import resume_obstacle, store_plan, variants
from perfdag.results.samples import delete_damaged_samples, run_folder, stored_samples
from perfdag.shape import Shape
from perfdag.steps.runner import budget
from perfdag.steps.runner.batch_objects import (
    Refusals,
    batch_objects,
    create,
    create_for_batches,
    secret,
)
from perfdag.steps.runner.cluster_facts import cluster_facts, cluster_name
from perfdag.steps.runner.credentials import PeerError
from perfdag.steps.runner.feasibility import has_class, unmet
from perfdag.steps.runner.limits import refuse
from perfdag.steps.runner.parameters import options, suite_text
from perfdag.steps.runner.plan_outputs import outputs, write_outputs
from perfdag.steps.runner.pod_context import PodContext
from perfdag.store.base import DamagedError, NotStoredError, Store


def plan_of(context: PodContext, store: Store, environment: Mapping[str, str]) -> Plan:
    """Return the stored plan of the run, or make one from the suite.

    A run that was submitted or is resumed has a stored plan. Raises BadDocument, StoreError.
    """
    from perfdag.suite.load import parse_suite  # imports numpy, which a stored plan does not need

    try:
        return read_plan(store.get(f"{run_folder(context.run_id)}/plan.json"))
    except NotStoredError:
        pass
    except ValueError as error:
        raise DamagedError(f"plan.json of {context.run_id} is damaged: {error}") from None
    chosen = options(environment)
    trigger = context.trigger or "manual"
    if trigger not in ("manual", "cron"):
        raise refuse(f"trigger {trigger!r}: manual or cron")
    suite = parse_suite(suite_text(environment, store), settings=chosen.settings)
    plan = make_plan(suite, only=chosen.only, run_id=context.run_id, trigger=trigger)
    return place_hosts(plan)


def step(context: PodContext, out: Path, environment: Mapping[str, str]) -> Plan:
    """Run the step: make the plan, create objects, and write the output parameters below `out`.

    Where the cluster refuses the run as a whole, its rows say why. Raises BadDocument, StoreError,
    KubeError, PeerError.
    """
    store = context.open()
    plan = plan_of(context, store, environment)
    plans = variants(store, plan)
    for variant in plans:
        check_permits(variant, context.permits, context.images, context.allowed)
    if any(stored_samples(store, variant.run_id) for variant in plans) and (
        why := resume_obstacle(plan, run_with_client(cluster_name), context.store)
    ):
        raise refuse(why)  # before anything of that run is changed
    for variant in plans:
        missing_reason.forget_all(store, variant.run_id)
    parameters = outputs(plan, context, batches_left(store, plans))
    _put(store, plans)  # before the cluster may refuse: then rows say why
    budget.begin(store, plan.run_id)
    priority = priority_class(plan.options.get("priority", 0))
    try:
        facts, refusals = run_with_client(
            lambda kube: _prepare(kube, context, store, plan, parameters["batches"])
        )
        has_priority = run_with_client(lambda kube: has_class(kube, priority))
    except (KubeError, PeerError) as error:
        for variant in plans:
            reason = MissingReason("plan", "failed", str(error))
            missing_reason.write(store, variant.run_id, reason)
        raise
    for variant in plans:
        variant.where = where(facts, variant.where)
        variant.points = with_learned_times(store, variant, facts["cluster"]).points
        for number, (status, text) in refusals.items():
            reason = MissingReason("batch", status, text, number)
            missing_reason.write(store, variant.run_id, reason)
    _put(store, plans)
    if not has_priority:  # the API server refuses a pod that names a missing PriorityClass
        for shape in parameters["shapes"]:
            del shape["patch"]["priorityClassName"]
    parameters["batches"] = [each for each in parameters["batches"] if each not in refusals]
    write_outputs(out, parameters)
    return plan


def where(now: Object, before: Object) -> Object:
    """Return the facts of a run that goes on, `before` those of its plan until now.

    The facts of earlier Workflows stay, by uid, for the samples that these measured. A Workflow
    that is retried may find other nodes: the earlier nodes stay too. So does the name of a cluster
    that may not be read any more.
    """
    earlier, uid = dict(before.get("before", {})), before.get("workflow_uid")
    now = {**now, "cluster": now["cluster"] or before.get("cluster")}
    if uid == now["workflow_uid"] and before.get("nodes") and now.get("nodes"):
        now = {**now, "nodes": {**before["nodes"], **now["nodes"]}}
    elif uid and uid != now["workflow_uid"]:
        earlier[uid] = {name: value for name, value in before.items() if name != "before"}
    return {**now, "before": earlier} if earlier else now


def _put(store: Store, plans: list[Plan]) -> None:
    for plan in plans:
        store_plan(store, plan)


def batches_left(store: Store, plans: list[Plan]) -> list[int]:
    """Return the batches with missing samples, and remove damaged samples. Raises StoreError."""
    left = set[int]()
    for plan in plans:
        delete_damaged_samples(store, plan.run_id)
        stored = stored_samples(store, plan.run_id)
        left |= {
            number
            for number, batch in enumerate(plan.batches)
            if any(plan.key(position) not in stored for position in batch.samples)
        }
    return sorted(left)


async def _prepare(
    kube: Kube, context: PodContext, store: Store, plan: Plan, batches: list[int]
) -> tuple[Object, Refusals]:
    """Create the objects of the batches `left`; return facts of the cluster and what it refuses."""
    await create(kube, context, plan, [secret(context)])
    shapes = [Shape.model_validate(shape) for shape in plan.shapes]
    infeasible = await unmet(kube, shapes, context.namespace)
    refusals: Refusals = {
        number: ("skipped", infeasible[shape])
        for number in batches
        if (shape := plan.batches[number].shape) in infeasible
    }
    objects = {
        number: batch_objects(plan.shape_of(number), context, number)
        for number in batches
        if number not in refusals
    }
    refusals |= await create_for_batches(kube, context, store, plan, objects)
    facts = {**await cluster_facts(kube), "network_policy": context.network_policy}
    return {
        **facts,
        "workflow": context.workflow,
        "workflow_uid": context.workflow_uid,
        "namespace": context.namespace,
    }, refusals
