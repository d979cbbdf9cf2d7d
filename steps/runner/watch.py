"""Watch a run: look at its pods until the last batch ends, and write what the watchdog decides."""

import asyncio
import time
from collections.abc import Callable, Sequence

from perfdag.kube.client import Kube, KubeError, Object, Resource
from perfdag.kube.patch import ROLE, RUN, UNRECOVERABLE, WATCHDOG_DONE
from perfdag.kube.pods import WORKFLOW, Pod, nodes_of, read_pod, template_of, with_events
from perfdag.plan.plan import Plan, gated
from perfdag.results import missing_reason
from perfdag.results.runs import load_plan, variants
from perfdag.results.samples import stored_samples
from perfdag.steps.runner.end_reason import BatchReasons
from perfdag.steps.runner.pod_context import PodContext, pending_limit
from perfdag.steps.runner.step_state import owner, unrecoverable_annotation, unrecoverable_batches
from perfdag.steps.runner.watchdog import GIVEN_UP, LOOK_SECONDS, Watchdog
from perfdag.store.base import Store, StoreError

_DONE = {"Succeeded", "Failed", "Error", "Skipped", "Omitted"}
SHORTEST_DELAY = 0.5
"""Least seconds between two counts of the samples."""
_KILLED_EXECUTOR: Object = {
    "name": "wait",
    "image": "",
    "imageID": "",
    "ready": False,
    "restartCount": 0,
    "state": {"terminated": {"exitCode": 137, "reason": "NodeLost"}},
}
"""Argo's own container in a pod that is given up: else Argo waits 10 min for its report."""
_COUNT_COST = 20
"""Seconds between two counts for each second that a count takes."""


def finished(workflow: Object) -> bool:
    """Return whether the Workflow or all its batches are over, rechecks included.

    The DAG of the batches may be a task of another Workflow.
    """
    if _ended_early(workflow):
        return True
    fans, rechecks = _phases(workflow, "batches"), _phases(workflow, "recheck")
    if not fans or not rechecks or not _DONE.issuperset([*fans, *rechecks]):
        return False
    # the batches of a recheck are a second fan, whose node may not exist yet
    return "Succeeded" not in rechecks or len(fans) > 1


def _ended_early(workflow: Object) -> bool:
    """Return whether the Workflow is over, or is being stopped."""
    phase = (workflow.get("status") or {}).get("phase")
    return phase in _DONE or bool(workflow["spec"].get("shutdown"))


def failed(workflow: Object) -> bool:
    """Return whether `argo retry` would measure batches again, or plan rechecks.

    The Workflow was stopped or ran out of time, a batch failed, or the step recheck did.
    """
    fans, rechecks = _phases(workflow, "batches"), _phases(workflow, "recheck")
    # the phases of that step include its attempts: the last one may have succeeded
    lost = [] if "Succeeded" in rechecks else rechecks
    phases = [(workflow.get("status") or {}).get("phase"), *fans, *lost]
    return bool(workflow["spec"].get("shutdown")) or not {"Failed", "Error"}.isdisjoint(phases)


def _phases(workflow: Object, template: str) -> list[str | None]:
    nodes = nodes_of(workflow).values()
    return [node.get("phase") for node in nodes if template_of(node) == template]


async def watch_run(context: PodContext, pending: str) -> bool:
    """Watch the run until its last batch ends. Return True if no batch failed.

    The watch ends when the last sample is stored, unless the gate may add rechecks. So the
    watchdog does not end after the measuring pods, which would cost the controller a look of 10 s.
    If batches failed, the watchdog has to fail too: `argo retry` keeps pods that succeeded, and
    nobody would watch the pods of the retry. The watchdog does not mount a claim, which only one
    node may have. It waits while the API server is out of reach. Raises StoreError.
    """
    limit = pending_limit(pending)
    async with Kube() as kube:
        if context.claimed:
            return await watch_pods(kube, context, limit, None)
        store = context.open()
        plan = load_plan(store, context.run_id)
        plans = variants(store, plan)
        watch = watch_pods(kube, context, limit, BatchReasons(plan, store))
        watches = [asyncio.create_task(watch)]
        if not gated(plan):
            watches.append(asyncio.create_task(all_stored(store, plans)))
        done, others = await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            task.cancel()
        results = [task.result() for task in done]
        return any(results)


async def watch_pods(
    kube: Kube,
    context: PodContext,
    limit: float,
    write: Callable[[int, str], None] | None,
) -> bool:
    """Look at the pods until the last batch is over; return True if no batch failed.

    Without `write` the reasons become an annotation of the Workflow, which the last step reads.
    """
    pods = await kube.resource("v1", "Pod")
    workflows = await kube.resource("argoproj.io/v1alpha1", "Workflow")
    reasons: dict[int, str] = {}
    watchdog = Watchdog(limit, write or (lambda batch, text: reasons.update({batch: text})))

    async def annotate(annotations: Object) -> None:
        body = {"metadata": {"annotations": annotations}}
        await kube.patch(workflows, context.workflow, body, context.namespace)

    while True:
        try:
            # the Workflow last: pods that `argo stop` ended are those of a Workflow with a shutdown
            run_pods = await _pods_of(kube, pods, context)
            workflow = await kube.get(workflows, context.workflow, context.namespace)
            before = workflow["metadata"].get("annotations") or {}
            earlier = missing_reason.from_annotations(owner(workflow), before)
            if finished(workflow):
                # nobody else clears it
                last: Object = {UNRECOVERABLE: None} if UNRECOVERABLE in before else {}
                last |= {WATCHDOG_DONE: context.workflow_uid} if failed(workflow) else {}
                if not _ended_early(workflow):  # else Argo killed the pods
                    watchdog.look(run_pods, time.monotonic())
                    last |= missing_reason.as_annotation(owner(workflow), earlier | reasons)
                if last:
                    await annotate(last)
                return not failed(workflow)
            watchdog.earlier = unrecoverable_batches(workflow)
            watchdog.note_refusals(nodes_of(workflow), time.monotonic())
            doomed = watchdog.look(run_pods, time.monotonic())
            merged = (earlier | reasons).items()
            reasons = {batch: text for batch, text in merged if batch not in watchdog.complete}
            # what an earlier attempt left has to go: retries read it
            names = (UNRECOVERABLE, WATCHDOG_DONE, missing_reason.NOTES)
            update: Object = {name: None for name in names if name in before}
            unrecoverable = watchdog.unrecoverable | watchdog.earlier
            update |= unrecoverable_annotation(owner(workflow), unrecoverable)
            update |= missing_reason.as_annotation(owner(workflow), reasons)
            if not update.items() <= before.items():
                await annotate(update)  # before the pods end: then Argo decides about a retry
            await _give_up(kube, pods, context, doomed)
        except KubeError as error:
            if error.status in (401, 403, 404):
                raise
            print(f"waiting for the API server: {error}", flush=True)  # noqa: T201
        await asyncio.sleep(LOOK_SECONDS)


async def _pods_of(kube: Kube, kind: Resource, context: PodContext) -> list[Pod]:
    labels = f"{WORKFLOW}={context.workflow},{RUN}={context.run_id},{ROLE}=measure"
    pods = await kube.list(kind, context.namespace, labels=labels)
    return await with_events(kube, context.namespace, [read_pod(pod) for pod in pods])


async def _give_up(kube: Kube, kind: Resource, context: PodContext, doomed: list[Pod]) -> None:
    """End pods so that Argo calls them failed: it creates a deleted Pending pod again.

    The message of a pod that never started is that of its node in the Workflow.
    """
    for pod in doomed:
        if pod.phase == "Pending" or pod.abandoned or not pod.node:
            where = f"on {pod.node}: " if pod.node and not pod.abandoned else ""
            message = f"{where}{pod.trouble or ''}"[:1000]
            status: Object = {"phase": "Failed", "reason": GIVEN_UP, "message": message}
            if pod.abandoned:  # no kubelet would end it, and Argo would wait for it
                status["containerStatuses"] = [_KILLED_EXECUTOR]
            body: Object = {"status": status}
            await kube.patch(kind, pod.name, body, context.namespace, subresource="status")
        else:
            body = {"spec": {"activeDeadlineSeconds": 1}}
            await kube.patch(kind, pod.name, body, context.namespace)


# -- the last sample -------------------------------------------------------------------------------


def count_missing(store: Store, plans: Sequence[Plan]) -> int:
    """Return how many samples of runs are not stored. Raises StoreError."""
    stored = [stored_samples(store, plan.run_id) for plan in plans]
    return sum(
        plan.key(position) not in known
        for plan, known in zip(plans, stored, strict=True)
        for position in range(len(plan.order))
    )


def poll_delay(left: int, took: float, unchanged: float) -> float:
    """Return the seconds until the next count of the samples, of which `left` are missing.

    A count costs the store a listing. Many missing samples, a long listing (`took` seconds) and a
    long time without a new sample (`unchanged` seconds) each make the counts rarer.
    """
    of_left = min(0.2 * left, 10 * LOOK_SECONDS)
    return max(SHORTEST_DELAY, _COUNT_COST * took, of_left, min(0.05 * unchanged, LOOK_SECONDS))


async def all_stored(store: Store, plans: Sequence[Plan]) -> bool:
    """Wait until every sample of these runs is stored, and return True.

    Waits while the store is out of reach, without holding up the watch of the pods.
    """
    last, changed = -1, time.monotonic()
    while True:
        began = time.monotonic()
        try:
            left = await asyncio.to_thread(count_missing, store, plans)
        except StoreError as error:
            print(f"waiting for the store: {error}", flush=True)  # noqa: T201
            await asyncio.sleep(LOOK_SECONDS)
            continue
        if not left:
            return True
        now = time.monotonic()
        if left != last:
            last, changed = left, now
        await asyncio.sleep(poll_delay(left, now - began, now - changed))
