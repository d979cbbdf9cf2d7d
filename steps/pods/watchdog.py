"""The watchdog: why measuring pods do not start, and which of them never will."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence

from perfdag.kube.client import Kube, KubeError, Object, Resource
from perfdag.kube.patch import ROLE, RUN, UNRECOVERABLE, WATCHDOG_DONE
from perfdag.kube.pods import (
    WORKFLOW,
    Pod,
    inputs_of,
    is_pulling,
    is_unpacking,
    nodes_of,
    read_pod,
    refused,
    template_of,
    with_events,
)
from perfdag.plan.plan import Plan, gated
from perfdag.results import missing_reason
from perfdag.results.runs import load_plan, variants
from perfdag.results.samples import stored_samples
from perfdag.steps.pods.context import (
    EXIT_REFUSED,
    EXIT_RETRYABLE,
    PodContext,
    owner,
    pending_limit,
    unrecoverable_annotation,
    unrecoverable_batches,
)
from perfdag.steps.pods.finish import BatchReasons
from perfdag.store.base import Store, StoreError

LOOK_SECONDS = 3.0
"""Seconds between two looks at the pods."""
UNRECOVERABLE_SECONDS, PULL_SECONDS = 3.0, 20.0
"""Seconds for which a pod may have a lasting trouble, and one of pulling its image."""

GIVEN_UP = "GivenUp"
"""Reason in the status of a pod that the watchdog failed."""

_FINAL = {f"main ended with exit code {code}" for code in (2, EXIT_REFUSED)}

_EXPLAINED = {f"main ended with exit code {code}" for code in (EXIT_RETRYABLE, EXIT_REFUSED)}
"""Ends whose reason the lead recorded itself."""


def patience(pod: Pod, pending_limit: float) -> float:
    """Return for how many seconds a pod may have its trouble before its gang is given up."""
    if pod.unrecoverable:
        return UNRECOVERABLE_SECONDS
    return min(PULL_SECONDS, pending_limit) if is_pulling(pod.trouble or "") else pending_limit


class Watchdog:
    """Decides from what was observed of the pods of a run; called once a look.

    `limit` is the suite's pending_limit in seconds. `write` records the reason of a batch.
    """

    def __init__(
        self,
        limit: float,
        write: Callable[[int, str], None],
    ) -> None:
        self._limit, self._write = limit, write
        self._since: dict[str, float] = {}
        self._silent: dict[str, float] = {}
        self._noted: dict[int, tuple[int, str]] = {}
        self._refusals: dict[str, str] = {}
        self.unrecoverable: set[int] = set()
        """Batches that no retry can repair."""
        self._given_up: set[tuple[int, int]] = set()
        """Attempts at a batch that were ended, also those that a retry may repair."""
        self._reasons: dict[str, str] = {}
        self.earlier: set[int] = set()
        """Unrecoverable batches of the watchdog before this one, which recorded why."""
        self._newest: dict[int, int] = {}
        self._newest_by_argo: dict[int, int] = {}
        self._not_created: set[tuple[int, int]] = set()
        self.complete: set[int] = set()
        """Batches whose newest gang was complete at the last look: their reasons are outdated."""

    def look(self, pods: list[Pod], now: float) -> list[Pod]:
        """Note troubles; return the pods to give up, whole gangs.

        `now` is monotonic, in seconds.
        """
        doomed: set[tuple[int, int]] = set()
        self._compare(pods)
        for pod in pods:
            if pod.batch is None or pod.trouble is None or pod.phase == "Succeeded":
                if pod.phase != "Pending":  # between two pulls of an image a pod has no trouble
                    self._since.pop(pod.uid, None)
                elif pod.batch is not None and pod.attempt == self._newest[pod.batch]:
                    self._note_silent(pod, pod.batch, now)
            elif pod.phase == "Pending":
                if self._is_over_time(pod, pod.batch, now):
                    doomed.add((pod.batch, pod.attempt))
            elif self._handle_started_pod(pod, pod.batch, pod.trouble, now):
                doomed.add((pod.batch, pod.attempt))
        self._given_up |= doomed
        gangs = [
            pod for pod in pods if pod.batch is not None and (pod.batch, pod.attempt) in doomed
        ]
        return [pod for pod in gangs if pod.phase in ("Pending", "Running")]

    def _is_over_time(self, pod: Pod, batch: int, now: float) -> bool:
        """Note the trouble of a pending pod; return whether its gang is to be given up."""
        is_newest = pod.attempt == self._newest[batch]
        waited = max(now - self._since.setdefault(pod.uid, now), self._age(pod))
        if is_newest and waited >= min(UNRECOVERABLE_SECONDS, self._limit):
            self.note(batch, f"pod of rank {pod.rank} never started: {pod.trouble}", pod.attempt)
        limit = UNRECOVERABLE_SECONDS if batch in self.unrecoverable else patience(pod, self._limit)
        if waited < limit:
            return False
        if is_newest and not is_unpacking(pod.trouble or ""):
            self.unrecoverable.add(batch)  # a retry would only wait again
        return True

    def _handle_started_pod(self, pod: Pod, batch: int, trouble: str, now: float) -> bool:
        """Note the trouble of a started pod, also of one whose node is lost.

        Return whether its gang is to be given up.
        """
        self._since.setdefault(pod.uid, now)
        ended_by_us = trouble.startswith(("DeadlineExceeded", GIVEN_UP))
        if ended_by_us and self._is_given_up(batch, pod.attempt):
            return False  # the reason is noted already
        is_newest, end = pod.attempt == self._newest[batch], trouble.partition(": ")[0]
        final = pod.unrecoverable or end in _FINAL
        if final:
            self.unrecoverable.add(batch)
        if is_newest and end not in _EXPLAINED and self._reasons.get(pod.uid) != trouble:
            text = f"pod of rank {pod.rank}: {trouble}"
            if pod.ended_at:  # else the node is lost, and nobody knows what its pod measured
                place = f"attempt {pod.attempt + 1} on {pod.node} at {pod.ended_at}"
                text = f"its batch ended early ({place}): {text}"
            self.note(batch, text, pod.attempt)
            # Without it, the pods of a batch would overwrite each other's reason.
            self._reasons[pod.uid] = trouble
        return final or pod.abandoned  # its peers, or Argo, would wait for it

    def _compare(self, pods: Iterable[Pod]) -> None:
        """Find the newest attempt at each batch, and whether its gang is complete.

        `argo retry` counts attempts from 0 again.
        """
        self._newest = dict(self._newest_by_argo)
        gangs: dict[tuple[int, int], list[Pod]] = {}
        for pod in pods:
            if pod.batch is not None:
                self._newest[pod.batch] = max(pod.attempt, self._newest.get(pod.batch, 0))
                gangs.setdefault((pod.batch, pod.attempt), []).append(pod)
        running = {
            attempt
            for attempt, gang in gangs.items()
            if all(pod.phase in ("Running", "Succeeded") and not pod.trouble for pod in gang)
        }
        complete = running - self._not_created
        self.complete = {batch for batch, attempt in complete if attempt == self._newest[batch]}
        for batch in self.complete:
            self._noted.pop(batch, None)

    def _age(self, pod: Pod) -> float:
        """Return the seconds since an unschedulable pod was created, and a little more.

        Argo counts the same limit from the creation, and would retry after it. 0 for troubles of a
        node, which begin later.
        """
        trouble = pod.trouble or ""
        if not pod.created or pod.unrecoverable or is_pulling(trouble) or is_unpacking(trouble):
            return 0.0
        return time.time() - pod.created + min(2 * LOOK_SECONDS, self._limit / 2)

    def _is_given_up(self, batch: int, attempt: int) -> bool:
        return batch in self.unrecoverable | self.earlier or (batch, attempt) in self._given_up

    def _nearly_limit(self) -> float:
        """Return the seconds after which Argo is about to give a pod up."""
        return max(self._limit - 2 * LOOK_SECONDS, self._limit / 2)

    def _note_silent(self, pod: Pod, batch: int, now: float) -> None:
        """Note a pod that waited for nearly all of its time while nothing told why."""
        waited = now - self._silent.setdefault(pod.uid, now)
        if waited >= self._nearly_limit() and self._noted.get(batch, (None,))[0] != pod.attempt:
            state = f"has not started after {waited:.0f} s on {pod.node or 'no node'}"
            self.note(batch, f"pod of rank {pod.rank} {state}, and no event says why", pod.attempt)

    def note_refusals(self, argo_nodes: dict[str, Object], now: float) -> None:
        """Note pods that the API server refused: an invalid pod, a quota, a policy or a webhook.

        Argo keeps a pod Pending that it asks for again (a quota may be free soon); any other is an
        Error without a node. Invalid and forbidden pods stay so. A quota that was not free for the
        whole limit is not waited for again.
        """
        pods = {uid: pod for uid, node in argo_nodes.items() if (pod := _pod_of(node))}
        self._newest_by_argo, self._not_created = {}, set()
        for batch, attempt, _ in pods.values():
            self._newest_by_argo[batch] = max(attempt, self._newest_by_argo.get(batch, 0))
        for uid, (batch, attempt, rank) in pods.items():
            message, phase = argo_nodes[uid].get("message") or "", argo_nodes[uid].get("phase")
            placed = argo_nodes[uid].get("hostNodeName") or message.startswith("pod deleted")
            not_created = phase == "Error" and message and not placed
            waiting = phase == "Pending" and ("forbidden" in message or "denied" in message)
            if not not_created and not waiting:
                continue
            self._not_created.add((batch, attempt))
            if attempt == self._newest_by_argo[batch] and self._refusals.get(uid) != message:
                self.note(batch, f"pod of rank {rank} was refused: {refused(message)}", attempt)
                self._refusals[uid] = message  # else pods of a batch overwrite each other's reason
            if not_created:
                final = "is invalid" in message or "is forbidden" in message
            else:
                final = now - self._since.setdefault(uid, now) >= self._nearly_limit()
            if final:
                self.unrecoverable.add(batch)

    def note(self, batch: int, reason: str, attempt: int = 0) -> None:
        """Write why the samples of a batch are missing, once for each reason and attempt.

        The lead of a complete gang removes it.
        """
        kind = "image" if "ImagePullBackOff" in reason else reason
        if self._noted.get(batch) != (attempt, kind):
            print(f"batch {batch}: {reason}", flush=True)  # noqa: T201
            self._write(batch, reason)
            self._noted[batch] = attempt, kind  # last: a failed write is tried again


def _pod_of(node: Object) -> tuple[int, int, str | None] | None:
    """Return the batch, the attempt and the rank of a measuring pod's node; None of others."""
    inputs = inputs_of(node)
    if node.get("type") != "Pod" or not str(inputs.get("batch", "")).isdigit():
        return None
    return int(inputs["batch"]), int(inputs.get("attempt") or 0), inputs.get("rank")


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
            status: Object = {"phase": "Failed", "reason": GIVEN_UP, "message": pod.trouble or ""}
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
