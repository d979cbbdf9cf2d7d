"""Release what a finished run no longer needs: shared claims, PodGroups, the SSH key Secret.

The Workflow owns them, and is deleted days later: a nightly suite would hold the claims of many nights.
"""

import sys
from collections.abc import Iterable
from dataclasses import replace

from perfdag.kube.argo import inputs_of, nodes_of, template_of
from perfdag.kube.client import Kube, KubeError, run_with_client
from perfdag.kube.objects import Object
from perfdag.plan.plan import Plan
from perfdag.results.confirming import ROUNDS
from perfdag.steps.runner.plan import batch_objects, secret_name, shape_of
from perfdag.steps.runner.pod_context import PodContext

Named = tuple[str, str, str]
"""API, kind and name of an object of the Workflow's namespace."""


def delete(here: PodContext, plan: Plan, phase: str) -> None:
    """Delete them; `phase` is Argo's. Print what the API server refuses: it goes with the Workflow.

    The objects of failed batches stay: `argo retry` measures these again, and creates no object.
    """

    async def work(kube: Kube) -> None:
        found = spent(here, plan)
        if phase != "Succeeded":
            workflow = await kube.get(
                await kube.resource("argoproj.io/v1alpha1", "Workflow"),
                here.workflow,
                here.namespace,
            )
            found = of_batches(here, plan, measured(workflow))
        for api, kind, name in found:
            await kube.delete(await kube.resource(api, kind), name, here.namespace)

    try:
        run_with_client(work)
    except KubeError as error:
        text = f"claims, PodGroups and the key pair of this run stay until its workflow is deleted: {error}"
        print(text, file=sys.stderr)  # noqa: T201


def spent(here: PodContext, plan: Plan) -> list[Named]:
    """Return the objects of a run that succeeded, in all of its Workflows."""
    every = range(len(plan.batches) + ROUNDS * len(plan.shapes))
    found = []
    for uid in (here.workflow_uid, *plan.where.get("before", {})):
        found += [
            *of_batches(replace(here, workflow_uid=uid), plan, every),
            ("v1", "Secret", secret_name(uid)),
        ]
    return found


def measured(workflow: Object) -> set[int]:
    """Return the batches whose gangs succeeded: Argo does not create these again."""
    gangs = [
        each
        for each in nodes_of(workflow).values()
        if template_of(each) in ("gang", "duel") and each.get("phase") == "Succeeded"
    ]
    return {int(number) for gang in gangs if (number := inputs_of(gang).get("batch"))}


def of_batches(here: PodContext, plan: Plan, numbers: Iterable[int]) -> list[Named]:
    """Return what the plan step created for these batches alone, in the Workflow of `here`."""
    made = [
        each
        for number in sorted(numbers)
        for each in batch_objects(shape_of(plan, number), here, plan, number)
    ]
    return [(each["apiVersion"], each["kind"], each["metadata"]["name"]) for each in made]
