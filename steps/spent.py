"""What batches had of the cluster and need no more when a run ends: the claims that their pods shared, PodGroups, the run's key pair.

All else goes with the Workflow that owns it, days later: a suite that runs each night would hold the claims of many nights.
"""

import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from perfdag.confirming import ROUNDS
from perfdag.kube import Kube, KubeError, run
from perfdag.plan import Plan
from perfdag.steps.place import Here
from perfdag.steps.plan import batch_objects, secret_name, shape_of
from perfdag.steps.sentry import inputs_of, nodes_of, template_of

Object = dict[str, Any]
Named = tuple[str, str, str]
"""API, kind and name of an object of the Workflow's namespace."""


def delete(here: Here, plan: Plan, phase: str) -> None:
    """Delete it; `phase` is Argo's word for the Workflow. What the API server refuses is said, and goes with the Workflow.

    Of a run that failed what batches need that failed stays: `argo retry` measures them again, and makes none of it anew.
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
        run(work)
    except KubeError as error:
        text = f"claims, PodGroups and the key pair of this run stay until its workflow is deleted: {error}"
        print(text, file=sys.stderr)  # noqa: T201


def spent(here: Here, plan: Plan) -> list[Named]:
    """What a run had that is over, in all of its Workflows."""
    every = range(len(plan.batches) + ROUNDS * len(plan.shapes))
    found = []
    for uid in (here.workflow_uid, *plan.where.get("before", {})):
        found += [
            *of_batches(replace(here, workflow_uid=uid), plan, every),
            ("v1", "Secret", secret_name(uid)),
        ]
    return found


def measured(workflow: Object) -> set[int]:
    """The batches whose pods ended well, which Argo does not make again."""
    gangs = [
        each
        for each in nodes_of(workflow).values()
        if template_of(each) in ("gang", "duel") and each.get("phase") == "Succeeded"
    ]
    return {int(number) for gang in gangs if (number := inputs_of(gang).get("batch"))}


def of_batches(here: Here, plan: Plan, numbers: Iterable[int]) -> list[Named]:
    """What plan made for these batches alone, in the Workflow of `here`."""
    made = [
        each
        for number in sorted(numbers)
        for each in batch_objects(shape_of(plan, number), here, plan, number)
    ]
    return [(each["apiVersion"], each["kind"], each["metadata"]["name"]) for each in made]
