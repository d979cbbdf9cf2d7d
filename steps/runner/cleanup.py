"""Release what a finished run no longer needs: shared claims, PodGroups, the SSH key Secret.

Leases own them, and Kubernetes deletes them with their Lease. The Workflow owns the Leases, but is
deleted days later: a nightly suite would hold the claims of many nights.
"""

import sys
from collections.abc import Iterable

from perfdag.kube.argo import inputs_of, nodes_of, template_of
from perfdag.kube.client import Kube, KubeError, Object, run_with_client
from perfdag.plan.plan import Plan
from perfdag.results.confirming import ROUNDS
from perfdag.steps.runner.batch_objects import ARGO, LEASES, batch_objects, lease_name, shape_of
from perfdag.steps.runner.pod_context import PodContext


def release(context: PodContext, plan: Plan, phase: str) -> None:
    """Delete what the finished run no longer needs; `phase` is Argo's.

    The objects of failed batches stay: `argo retry` measures these again, and creates no object.
    Print what the API server refuses to delete: it goes with the Workflow.
    """

    async def work(kube: Kube) -> None:
        names = releasable(context, plan)
        if phase != "Succeeded":
            workflows = await kube.resource(ARGO, "Workflow")
            workflow = await kube.get(workflows, context.workflow, context.namespace)
            batches = measured_batches(workflow)
            names = leases_of_batches(context, plan, batches, context.workflow_uid)
        leases = await kube.resource(LEASES, "Lease")
        for name in names:
            await kube.delete(leases, name, context.namespace)

    try:
        run_with_client(work)
    except KubeError as error:
        text = "claims, PodGroups and the key pair of this run stay until its workflow is deleted"
        print(f"{text}: {error}", file=sys.stderr)  # noqa: T201


def releasable(context: PodContext, plan: Plan) -> list[str]:
    """Return the Leases of a run that succeeded, in all of its Workflows."""
    numbers = range(len(plan.batches) + ROUNDS * len(plan.shapes))
    return [
        name
        for uid in (context.workflow_uid, *plan.where.get("before", {}))
        for name in (*leases_of_batches(context, plan, numbers, uid), lease_name(uid))
    ]


def measured_batches(workflow: Object) -> set[int]:
    """Return the batches whose gangs succeeded: Argo does not create these again."""
    gangs = [
        node
        for node in nodes_of(workflow).values()
        if template_of(node) == "gang" and node.get("phase") == "Succeeded"
    ]
    return {int(number) for gang in gangs if (number := inputs_of(gang).get("batch"))}


def leases_of_batches(
    context: PodContext, plan: Plan, numbers: Iterable[int], workflow_uid: str
) -> list[str]:
    """Return the Leases of those of these batches for which the plan step created objects."""
    return [
        lease_name(workflow_uid, number)
        for number in sorted(numbers)
        if batch_objects(shape_of(plan, number), context, number)
    ]
