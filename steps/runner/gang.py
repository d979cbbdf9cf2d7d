"""The lead of a gang: measure the samples of one batch."""

from collections.abc import Sequence

from perfdag.kube.client import KubeError
from perfdag.outcome import Infrastructure
from perfdag.plan.plan import Plan
from perfdag.plan.time_left import TimeLeft
from perfdag.results import missing_reason
from perfdag.results.confirming import plan_of_batch
from perfdag.results.missing_reason import budget_spent
from perfdag.results.samples import run_folder, stored_samples
from perfdag.steps.measure import MeasuringLoop
from perfdag.steps.runner import budget
from perfdag.steps.runner.end_reason import record_failed_attempt
from perfdag.steps.runner.gather import GangUnavailable, assembled
from perfdag.steps.runner.limits import check_account
from perfdag.steps.runner.placement import forward, site_of
from perfdag.steps.runner.pod_context import PodContext
from perfdag.steps.runner.progress import ProgressReporter
from perfdag.steps.runner.quarantine import known_crashes, skip_crashers, suspects_last
from perfdag.steps.site import GangLost, Site
from perfdag.store.base import NotStoredError, Store


def lead(
    context: PodContext, store: Store, plan: Plan, number: int, attempt: int, last: bool
) -> int:
    """Measure batch `number`; return 0, or EXIT_RETRYABLE or EXIT_REFUSED if the gang fell apart.

    Raises StoreError, KubeError.
    """
    plan, index = plan_of_batch(store, plan, number)
    check_account(context.account, plan, index)
    batch = plan.batches[index]
    stored = stored_samples(store, plan.run_id)
    left = [position for position in batch.samples if plan.key(position) not in stored]
    later = (position for later in plan.batches[index + 1 :] for position in later.samples)
    progress = ProgressReporter(len(left), TimeLeft(plan, [*left, *later]))
    if not left:
        return 0
    try:
        crashes = known_crashes(context, store, number, attempt)
        skipped = skip_crashers(context, store, plan, index, crashes)
        for position, record in skipped.items():
            progress.finished(plan.point_at(position), record)
        left = [position for position in left if position not in skipped]
        if not left:
            return 0
        shape = plan.shape_of(index)
        with assembled(context, plan, shape, number, attempt) as gang:
            forward(context, store, shape, number, gang)
            missing_reason.forget_batch(store, plan.run_id, index)
            claim = shape.volume is not None and shape.volume.batch_claim
            reused = claim and used_before(context, store, number)
            site = site_of(context, shape, gang, plan.where.get("nodes"), reused)
            ordered = suspects_last(plan, batch.samples, left, attempt, crashes)
            measure_batch(store, plan, site, index, ordered, progress)
        return 0
    except (GangUnavailable, GangLost, Infrastructure, KubeError) as error:
        name = f"batch {number}, attempt {attempt}"
        return record_failed_attempt(store, [plan], index, name, last, error)


def measure_batch(
    store: Store,
    plan: Plan,
    site: Site,
    index: int,
    samples: Sequence[int],
    progress: ProgressReporter,
) -> None:
    """Measure samples of a batch; write why the rest is missing if the budget ends.

    Raises StoreError.
    """
    loop = MeasuringLoop(plan, store, site, progress)
    if not loop.measure(samples, index, budget.deadline(store, plan.run_id, plan)):
        missing_reason.write(store, plan.run_id, budget_spent(plan.budget or 0, index))


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
