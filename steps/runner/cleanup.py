"""Release what a finished run no longer needs: shared claims, PodGroups, the SSH key Secret.

The Workflow owns them, but is deleted days later: a nightly suite would hold the claims of many
nights.
"""

import sys
from collections.abc import Iterable
from dataclasses import replace

from perfdag.kube.argo import inputs_of, nodes_of, template_of
from perfdag.kube.client import Kube, KubeError, run_with_client
from perfdag.kube.objects import Object
from perfdag.plan.plan import Plan
from perfdag.results.confirming import ROUNDS
from perfdag.steps.runner.batch_objects import batch_objects, secret_name, shape_of
from perfdag.steps.runner.pod_context import PodContext

ObjectName = tuple[str, str, str]
"""API, kind and name of an object in the namespace of the Workflow."""


def release(context: PodContext, plan: Plan, phase: str) -> None:
    """Delete what the finished run no longer needs; `phase` is Argo's.

    The objects of failed batches stay: `argo retry` measures these again, and creates no object.
    Print what the API server refuses to delete: it goes with the Workflow.
    """

    async def work(kube: Kube) -> None:
        names = releasable(context, plan)
        if phase != "Succeeded":
            kind = await kube.resource("argoproj.io/v1alpha1", "Workflow")
            workflow = await kube.get(kind, context.workflow, context.namespace)
            names = of_batches(context, plan, measured_batches(workflow))
        for api, kind_name, name in names:
            await kube.delete(await kube.resource(api, kind_name), name, context.namespace)

    try:
        run_with_client(work)
    except KubeError as error:
        text = "claims, PodGroups and the key pair of this run stay until its workflow is deleted"
        print(f"{text}: {error}", file=sys.stderr)  # noqa: T201


def releasable(context: PodContext, plan: Plan) -> list[ObjectName]:
    """Return the objects of a run that succeeded, in all of its Workflows."""
    numbers = range(len(plan.batches) + ROUNDS * len(plan.shapes))
    names = []
    for uid in (context.workflow_uid, *plan.where.get("before", {})):
        names += of_batches(replace(context, workflow_uid=uid), plan, numbers)
        names.append(("v1", "Secret", secret_name(uid)))
    return names


def measured_batches(workflow: Object) -> set[int]:
    """Return the batches whose gangs succeeded: Argo does not create these again."""
    gangs = [
        node
        for node in nodes_of(workflow).values()
        if template_of(node) in ("gang", "duet") and node.get("phase") == "Succeeded"
    ]
    return {int(number) for gang in gangs if (number := inputs_of(gang).get("batch"))}


def of_batches(context: PodContext, plan: Plan, numbers: Iterable[int]) -> list[ObjectName]:
    """Return what the plan step created for these batches alone, in the Workflow of `context`."""
    return [
        (body["apiVersion"], body["kind"], body["metadata"]["name"])
        for number in sorted(numbers)
        for body in batch_objects(shape_of(plan, number), context, plan, number)
    ]
