"""Why samples of a run on Argo are missing: what its Workflow tells the last step.

The watchdog notes why pods did not start or ended early, as an annotation of the Workflow. A lead
writes into the store what only it knows: the samples under way, a spent budget, a lost peer.
"""

import logging
import time
from datetime import datetime

from perfdag.kube.client import Kube, KubeError, Object, run_with_client
from perfdag.plan.plan import Plan
from perfdag.results.runs import plan_of_batch, stored_plan, variants
from perfdag.results.samples import (
    MissingReason,
    from_annotations,
    stored_reasons,
    stored_samples,
    write_reason,
)
from perfdag.steps.pods.context import PodContext, owner
from perfdag.store.base import Store
from perfdag.units import short_seconds

logger = logging.getLogger(__name__)


def record_end(context: PodContext, store: Store, plan: Plan, phase: str) -> bool:
    """Write why batches failed and what ended the Workflow, for the run and its rechecks.

    `phase` is Argo's. A run that belongs to another Workflow gets no reason, except where it has no
    sample yet. The variants of `ab` share their pods: both runs get the reasons. Return whether the
    cluster could run the suite at all: False if the pods of every batch failed to start. Raises
    StoreError.
    """
    measured = bool(stored_samples(store, plan.run_id))
    if measured and plan.where.get("workflow_uid") != context.workflow_uid:
        return True
    reason = None
    try:
        workflow = run_with_client(lambda kube: _workflow(kube, context))
        annotations = workflow["metadata"].get("annotations") or {}
        texts = from_annotations(owner(workflow), annotations)
        reason = end_of(workflow, time.time())
    except KubeError as error:  # only the reasons are lost, not the samples
        texts = {}
        logger.info(f"cannot read why batches failed; their rows have no reason: {error}")
    for number, text in texts.items():
        member, index = plan_of_batch(store, plan, number)
        for variant in variants(store, member):
            batch_reason = MissingReason("batch", "failed", text, index)
            write_reason(store, variant.run_id, batch_reason)
    kinds = {each.kind for each in stored_reasons(store, plan.run_id)}
    could_run = measured or reason is not None or kinds != {"batch"}
    if phase == "Succeeded":
        return could_run
    text = f"workflow {context.workflow} {reason or f'ended {phase}'}"
    rechecks = [stored_plan(store, run_id) for run_id in plan.options.rechecks]
    for member in [*variants(store, plan), *rechecks]:
        write_reason(store, member.run_id, MissingReason("workflow", "missing", text))
    return could_run


async def _workflow(kube: Kube, context: PodContext) -> Object:
    kind = await kube.resource("argoproj.io/v1alpha1", "Workflow")
    return await kube.get(kind, context.workflow, context.namespace)


def end_of(workflow: Object, now: float) -> str | None:
    """Return what ended a Workflow from outside, None where nothing did; `now` in s since 1970."""
    status = workflow.get("status") or {}
    shutdown = workflow["spec"].get("shutdown")
    if shutdown:
        return f"was ended by `argo {shutdown.lower()}`"
    stored = status.get("storedWorkflowTemplateSpec") or {}
    limit = workflow["spec"].get("activeDeadlineSeconds") or stored.get("activeDeadlineSeconds")
    began = status.get("startedAt")
    if limit and began and now - datetime.fromisoformat(began).timestamp() >= limit:
        return f"was ended by its deadline of {short_seconds(limit)} (install --deadline)"
    return None
