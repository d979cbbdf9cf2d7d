"""Write why samples of a run on Argo are missing: from the lead, the watchdog and the last step.

perfdag.results.missing_reason defines the record and its channels. This module decides whose run
a reason belongs to: that of both variants of `ab`, or a recheck.
"""

import time
from collections.abc import Sequence
from datetime import datetime

from perfdag.kube.client import Kube, KubeError, Object, run_with_client
from perfdag.plan.plan import Plan
from perfdag.results import missing_reason
from perfdag.results.missing_reason import MissingReason
from perfdag.results.runs import load_plan, plan_of_batch, variants
from perfdag.results.samples import stored_samples
from perfdag.steps.pods.context import EXIT_REFUSED, EXIT_RETRYABLE, PodContext, owner
from perfdag.store.base import Store
from perfdag.units import short_seconds


class BatchReasons:
    """The reasons of a run's batches, in its store."""

    def __init__(self, plan: Plan, store: Store) -> None:
        self._plan, self._store = plan, store

    def __call__(self, batch: int, text: str) -> None:
        """Write why the samples of a batch are missing. Raises StoreError.

        The variants of `ab` share their pods: both runs get the reason. A recheck may be
        planned while the watchdog runs: the plan is read again.
        """
        plan, index = self._owner(batch)
        for variant in variants(self._store, plan):
            reason = MissingReason("batch", "failed", text, index)
            missing_reason.write(self._store, variant.run_id, reason)

    def _owner(self, batch: int) -> tuple[Plan, int]:
        """Return the plan of a batch of this run, or of one of its rechecks, and its index."""
        if batch >= len(self._plan.batches) and not self._plan.options.rechecks:
            self._plan = load_plan(self._store, self._plan.run_id)
        return plan_of_batch(self._store, self._plan, batch)


def record_failed_attempt(
    store: Store, plans: Sequence[Plan], index: int, name: str, last: bool, error: Exception
) -> int:
    """Write why an attempt at batch `index` of the plans ended early; `name` is for the log.

    Return EXIT_RETRYABLE, or EXIT_REFUSED if the pod lacks rights. Raises StoreError, and any other
    KubeError.
    """
    refused = isinstance(error, KubeError)
    if isinstance(error, KubeError) and error.status != 403:
        raise error
    print(f"{name}: {error}", flush=True)  # noqa: T201
    reason = MissingReason("batch", "failed", str(error), index)
    for plan in plans:
        missing_reason.write(store, plan.run_id, reason)
    if last:
        print(f"{name}: this was the last attempt; the rows have the reason", flush=True)  # noqa: T201
    return EXIT_REFUSED if refused else EXIT_RETRYABLE


def copy_annotation(context: PodContext, store: Store, plan: Plan) -> None:
    """Copy the reasons of a watchdog without a store into the store.

    Raises StoreError, KubeError.
    """
    workflow = run_with_client(lambda kube: _workflow(kube, context))
    annotations = workflow["metadata"].get("annotations") or {}
    write = BatchReasons(plan, store)
    for batch, text in missing_reason.from_annotations(owner(workflow), annotations).items():
        write(batch, text)


def record_workflow_end(context: PodContext, store: Store, plan: Plan, phase: str) -> None:
    """Write that the Workflow did not succeed, for the run's samples and its rechecks.

    `phase` is Argo's. A run that belongs to another Workflow gets no reason, except where it has no
    sample yet. Raises StoreError.
    """
    foreign = plan.where.get("workflow_uid") != context.workflow_uid
    if phase == "Succeeded" or (foreign and stored_samples(store, plan.run_id)):
        return
    try:
        reason = end_of(run_with_client(lambda kube: _workflow(kube, context)), time.time())
    except KubeError:
        reason = None
    text = f"workflow {context.workflow} {reason or f'ended {phase}'}"
    rechecks = [load_plan(store, run_id) for run_id in plan.options.rechecks]
    for member in [*variants(store, plan), *rechecks]:
        missing_reason.write(store, member.run_id, MissingReason("workflow", "missing", text))


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
