"""The lead of a gang: measure the samples of one batch, of `perfdag ab` both variants in turn."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence, Set

from perfdag.kube.client import KubeError
from perfdag.outcome import Infrastructure
from perfdag.plan.ab import stored_duet
from perfdag.plan.plan import Plan, TimeLeft
from perfdag.results import missing_reason
from perfdag.results.missing_reason import budget_spent
from perfdag.results.runs import plan_of_batch, variants
from perfdag.results.samples import run_folder, stored_samples
from perfdag.steps.loop.measure import MeasuringLoop, ProgressListener
from perfdag.steps.loop.pools import GangLost, LocalPool
from perfdag.steps.runner import budget
from perfdag.steps.runner.crashes import UnderWay, crashes, fail_crashers
from perfdag.steps.runner.end_reason import record_failed_attempt
from perfdag.steps.runner.gather import GangUnavailable, assembled
from perfdag.steps.runner.limits import check_account
from perfdag.steps.runner.placement import GangPool, forward
from perfdag.steps.runner.pod_context import PodContext
from perfdag.steps.runner.progress import ProgressReporter
from perfdag.store.base import NotStoredError, Store

STOP_SECONDS = 5.0
"""Seconds within which `argo stop` tells all pods of a gang to end."""


def lead(
    context: PodContext, store: Store, plan: Plan, number: int, attempt: int, last: bool
) -> int:
    """Measure batch `number`; return 0, or EXIT_RETRYABLE or EXIT_REFUSED if the gang fell apart.

    Raises StoreError, KubeError.
    """
    plan, index = plan_of_batch(store, plan, number)
    plans = variants(store, plan)
    for variant in plans:
        check_account(context.account, variant, index)
    stored = {variant.run_id: stored_samples(store, variant.run_id) for variant in plans}
    progress = _progress(plans, index, stored)
    if not progress.total:
        return 0
    try:
        lost = Counter[int]()
        for variant in plans:
            lost += crashes(store, variant, index, stored[variant.run_id])
        for variant in plans:
            have = stored[variant.run_id]
            for point, record in fail_crashers(context, store, variant, index, lost, have):
                progress.finished(point, record)
        if progress.done == progress.total:
            return 0
        shape = plan.shape_of(index)
        with assembled(context, plan, shape, number, attempt) as gang:
            forward(context, store, shape, number, gang)
            for variant in plans:
                missing_reason.forget_batch(store, variant.run_id, index)
            claim = shape.volume is not None and shape.volume.batch_claim
            reused = claim and used_before(context, store, number)
            pool = GangPool(context, shape, gang, plan.where.get("nodes"), reused)
            listeners = [
                UnderWay(context, store, variant, index, attempt, progress) for variant in plans
            ]
            try:
                try:
                    measure_batch(store, plans, pool, index, listeners)
                except (KeyboardInterrupt, GangLost):  # a peer is gone
                    # `argo stop` tells the pods of a gang to end one after the other: if it was
                    # that, SIGTERM reaches this pod too, and no reason has to be written
                    time.sleep(STOP_SECONDS)
                    raise
            except SystemExit:  # told to end
                for listener in listeners:
                    listener.forget()
                raise
        return 0
    except (GangUnavailable, GangLost, Infrastructure, KubeError) as error:
        name = f"batch {number}, attempt {attempt}"
        return record_failed_attempt(store, plans, index, name, last, error)


def _progress(
    plans: Sequence[Plan], index: int, stored: Mapping[str, Set[str]]
) -> ProgressReporter:
    """Return the progress over the missing samples of a batch, with the time to the run's end."""
    total, time_left, points = 0, TimeLeft(plans[0], []), set[str]()
    for plan in plans:
        have = stored[plan.run_id]
        left = [each for each in plan.batches[index].samples if plan.key(each) not in have]
        total += len(left)
        points |= {plan.point_at(position).id for position in left}
        later = (each for batch in plan.batches[index + 1 :] for each in batch.samples)
        time_left.add(plan, [*left, *later])
    return ProgressReporter(total, time_left, len(points))


def measure_batch(
    store: Store,
    plans: Sequence[Plan],
    pool: LocalPool,
    index: int,
    listeners: Sequence[ProgressListener],
) -> None:
    """Measure a batch with a listener for each plan. Raises StoreError.

    Write why the rest is missing if the budget ends.
    """
    loops = {
        plan.variant: MeasuringLoop(plan, store, pool, listener)
        for plan, listener in zip(plans, listeners, strict=True)
    }
    deadline = budget.deadline(store, plans[0].run_id, plans[0])
    turns: Sequence[tuple[str | None, list[int]]] = [(None, plans[0].batches[index].samples)]
    if len(plans) > 1:
        turns = stored_duet(*plans).turns(index)
    for variant, samples in turns:
        if not loops[variant].measure(samples, index, deadline):
            for plan in plans:
                missing_reason.write(store, plan.run_id, budget_spent(plan.budget or 0, index))
            return


def used_before(context: PodContext, store: Store, batch: int) -> bool:
    """Return whether an earlier gang used the claim of this batch, and mark it as used.

    Raises StoreError.
    """
    key = f"{run_folder(context.run_id)}/volumes/{context.workflow_uid}-b{batch}"
    try:
        store.get(key)
    except NotStoredError:
        store.put(key, b"used\n")
        return False
    return True
