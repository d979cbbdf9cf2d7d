"""Why a Workflow that did not succeed left samples unmeasured, for those that nothing else tells of."""

import time
from datetime import datetime
from typing import Any

from perfdag.kube import Kube, KubeError, run
from perfdag.notes import write_note
from perfdag.plan import Plan
from perfdag.runs import load_plan, variants
from perfdag.samples import stored_samples
from perfdag.steps.place import Here
from perfdag.store import Store
from perfdag.units import short_seconds

Object = dict[str, Any]


def tell(here: Here, store: Store, plan: Plan, phase: str) -> None:
    """Note it for the run's samples, and for those of the runs that confirm it; not of a run that this Workflow was not let go on with.

    `phase` is Argo's. Raises StoreError.
    """
    if phase == "Succeeded" or (
        plan.where.get("workflow_uid") != here.workflow_uid and stored_samples(store, plan.run_id)
    ):
        return

    async def read(kube: Kube) -> Object:
        return await kube.get(
            await kube.resource("argoproj.io/v1alpha1", "Workflow"), here.workflow, here.namespace
        )

    try:
        reason = why(run(read), time.time())
    except KubeError:
        reason = None
    for each in [
        *variants(store, plan),
        *(load_plan(store, run_id) for run_id in plan.options.get("confirmed", [])),
    ]:
        # the last by its name: what is noted of a batch says more
        write_note(
            store,
            each.run_id,
            "workflow",
            "missing",
            f"workflow {here.workflow} {reason or f'ended {phase}'}",
        )


def why(workflow: Object, now: float) -> str | None:
    """What ended a Workflow early, `now` in seconds since 1970; None where nothing did from outside."""
    status = workflow.get("status") or {}
    shutdown = workflow["spec"].get("shutdown")
    if shutdown:
        return f"was ended by `argo {shutdown.lower()}`"
    limit = workflow["spec"].get("activeDeadlineSeconds") or (
        status.get("storedWorkflowTemplateSpec") or {}
    ).get("activeDeadlineSeconds")
    began = status.get("startedAt")
    if (
        limit
        and began
        and now - datetime.fromisoformat(began.replace("Z", "+00:00")).timestamp() >= limit
    ):
        return f"was ended by its deadline of {short_seconds(limit)} (install --deadline)"
    return None
