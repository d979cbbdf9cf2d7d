"""The last step of a run on a cluster: collect, report, release, check."""

import logging

from perfdag.charts.pages.site import write_after_run
from perfdag.commands import ab as ab_cluster
from perfdag.commands import ab as ab_outcome
from perfdag.commands.check import publish_gate
from perfdag.commands.finish import finish_run
from perfdag.commands.options import CommandError, print_now
from perfdag.commands.results import result_text
from perfdag.kube.client import Kube, KubeError, run_with_client
from perfdag.kube.patch import RUN, SUITE
from perfdag.plan.plan import Plan
from perfdag.results.collect import collect
from perfdag.results.runs import load_plan
from perfdag.signals import EXIT_REACH
from perfdag.steps.runner import batch_objects, budget, end_reason, step_state
from perfdag.steps.runner.pod_context import PodContext, from_environment
from perfdag.store.base import NotStoredError, Store

logger = logging.getLogger(__name__)


def finish_step(phase: str) -> int:
    """Finish the run whose Workflow is in `phase`, and return the run's exit code.

    The Workflow records that the step runs, so
    that it can be repeated if its pod is lost. Raises CommandError, StoreError.
    """
    context = from_environment()
    return step_state.step(context, "finish", lambda: _finish(context, phase))


def _finish(context: PodContext, phase: str) -> int:
    store = context.open()
    try:
        plan = load_plan(store, context.run_id)
    except NotStoredError:
        # If the plan step refused the suite, its own exit code is the run's.
        message = f"run {context.run_id}: it has no plan, so there is nothing to collect"
        raise CommandError(message, EXIT_REACH) from None
    budget.end(store, plan.run_id)
    _record_end(context, store, plan, phase)
    if plan.trigger == "ab":
        result = ab_cluster.finish_variants(store, plan)
        print_now(ab_outcome.outcome_text(result))
        _release(context, store, plan, phase)
        return result.exit_code
    for run_id in plan.options.confirmed:
        budget.end(store, run_id)
        collect(store, load_plan(store, run_id))
    run = finish_run(store, plan)
    print_now(result_text(run))
    _release(context, store, plan, phase)
    gate = publish_gate(store, run)
    write_after_run(store, plan.suite)
    if gate is None:
        return run.exit_code
    print_now(gate.text())
    return gate.exit_code or run.exit_code


def _record_end(context: PodContext, store: Store, plan: Plan, phase: str) -> None:
    """Store why the run and its batches ended, so that absent samples have a reason."""
    if context.claimed:
        try:
            end_reason.copy_annotation(context, store, plan)
        except KubeError as error:  # only the reasons are lost, not the samples
            logger.info(f"cannot read why batches failed; their rows have no reason: {error}")
    end_reason.record_workflow_end(context, store, plan, phase)


def _release(context: PodContext, store: Store, plan: Plan, phase: str) -> None:
    """Label the Workflow and delete what the run no longer needs."""
    label_workflow(context, plan, store)
    batch_objects.release(context, plan, phase)


def label_workflow(context: PodContext, plan: Plan, store: Store) -> None:
    """Put the report's address, the run id and the suite on the run's Workflow.

    `perfdag submit` sets the labels at once; a Workflow that was created otherwise gets them here.
    An error of the API server is reported.
    """
    annotations = {
        "perfdag/run": plan.run_id,
        "perfdag/report": store.url(f"runs/{plan.run_id}/report.html"),
    }
    labels = {RUN: plan.run_id, SUITE: plan.suite}
    patch = {"metadata": {"annotations": annotations, "labels": labels}}

    async def patch_workflow(kube: Kube) -> None:
        kind = await kube.resource("argoproj.io/v1alpha1", "Workflow")
        await kube.patch(kind, context.workflow, patch, context.namespace)

    try:
        run_with_client(patch_workflow)
    except KubeError as error:
        logger.info(f"the Workflow has no annotation with its report: {error}")
