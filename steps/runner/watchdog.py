"""The watchdog of a run: notes why measuring pods do not start, and gives up those that never will.

A pod with a missing image, without a node or without its volume runs no step, so nothing inside it
can tell why its samples are missing.
"""

import asyncio
import time
from collections.abc import Callable, Iterable

from perfdag.kube.argo import inputs_of, nodes_of, template_of
from perfdag.kube.client import Kube, KubeError, Resource
from perfdag.kube.labels import UNRECOVERABLE, WATCHDOG_DONE
from perfdag.kube.objects import Object
from perfdag.kube.pods import Pod, is_pulling, is_unpacking, read_pod, selector, with_events
from perfdag.plan.gated import gated
from perfdag.results import missing_reason
from perfdag.results.runs import load_plan, variants
from perfdag.steps.runner.completion import EVERY, all_stored
from perfdag.steps.runner.end_reason import BatchReasons
from perfdag.steps.runner.peer import REFUSED, RETRYABLE
from perfdag.steps.runner.pod_context import PodContext, pending_limit
from perfdag.steps.runner.step_state import owner, unrecoverable_annotation, unrecoverable_batches

HOPELESS_SECONDS, PULL_SECONDS = 3.0, 20.0

GIVEN_UP = "GivenUp"

_FINAL = {f"main ended with exit code {code}" for code in (2, REFUSED)}

_EXPLAINED = {f"main ended with exit code {code}" for code in (RETRYABLE, REFUSED)}
"""Ends for which the lead wrote the reason itself."""

_DONE = {"Succeeded", "Failed", "Error", "Skipped", "Omitted"}


def patience(pod: Pod, pending_limit: float) -> float:
    """Return for how many seconds a pod may have its trouble before its gang is given up."""
    if pod.hopeless:
        return HOPELESS_SECONDS
    return min(PULL_SECONDS, pending_limit) if is_pulling(pod.trouble or "") else pending_limit


class Watchdog:
    """What was observed of a run's pods; the caller calls `look` and `refused` again and again.

    `limit` is the suite's pending_limit in seconds. `write` keeps the reason of a batch.
    """

    def __init__(self, limit: float, write: Callable[[int, str], None]) -> None:
        self._limit, self._write = limit, write
        self._since: dict[str, float] = {}
        self._silent: dict[str, float] = {}
        self._noted: dict[int, tuple[int, str]] = {}
        self._refusals: dict[str, str] = {}
        self.hopeless: set[int] = set()
        """Batches that no retry can repair."""
        self._given_up: set[tuple[int, int]] = set()
        """Attempts at a batch that were ended, also those that a retry may repair."""
        self._ended: dict[str, str] = {}
        self.believed: set[int] = set()
        """Unrecoverable batches of the watchdog before this one, which noted why."""
        self._newest: dict[int, int] = {}
        self._nodes: dict[int, int] = {}
        self._unmade: set[tuple[int, int]] = set()
        self.complete: set[int] = set()
        """Batches whose newest gang was complete at the last look: their reasons are out of date."""

    def look(self, pods: list[Pod], now: float) -> list[Pod]:
        """Note troubles; return the pods to give up, whole gangs. `now` is monotonic, in seconds."""
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
            elif self._ended_by_trouble(pod, pod.batch, pod.trouble, now):
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
        if is_newest and waited >= min(HOPELESS_SECONDS, self._limit):
            self.note(batch, f"pod of rank {pod.rank} never started: {pod.trouble}", pod.attempt)
        limit = HOPELESS_SECONDS if batch in self.hopeless else patience(pod, self._limit)
        if waited < limit:
            return False
        if is_newest and not is_unpacking(pod.trouble or ""):
            self.hopeless.add(batch)  # a retry would only wait again
        return True

    def _ended_by_trouble(self, pod: Pod, batch: int, trouble: str, now: float) -> bool:
        """Note the trouble of a pod that ran; return whether its gang is to be given up."""
        self._since.setdefault(pod.uid, now)
        ended_by_us = trouble.startswith(("DeadlineExceeded", GIVEN_UP))
        if ended_by_us and self._is_given_up(batch, pod.attempt):
            return False  # the reason is noted already
        is_newest, final = pod.attempt == self._newest[batch], pod.hopeless or trouble in _FINAL
        if final:
            self.hopeless.add(batch)
        if is_newest and trouble not in _EXPLAINED and self._ended.get(pod.uid) != trouble:
            self.note(batch, f"pod of rank {pod.rank}: {trouble}", pod.attempt)
            self._ended[pod.uid] = trouble  # else the pods of a batch overwrite each other's reason
        return final  # its peers would wait for it

    def _compare(self, pods: Iterable[Pod]) -> None:
        """Find the newest attempt at each batch, and whether its gang is complete.

        `argo retry` counts attempts from 0 again.
        """
        self._newest = dict(self._nodes)
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
        complete = running - self._unmade
        self.complete = {batch for batch, attempt in complete if attempt == self._newest[batch]}
        for batch in self.complete:
            self._noted.pop(batch, None)

    def _age(self, pod: Pod) -> float:
        """Return the seconds since an unschedulable pod was created, and a little more.

        Argo counts the same limit from the creation, and would retry after it. 0 for troubles of a
        node, which begin later.
        """
        trouble = pod.trouble or ""
        if not pod.created or pod.hopeless or is_pulling(trouble) or is_unpacking(trouble):
            return 0.0
        return time.time() - pod.created + min(2 * EVERY, self._limit / 2)

    def _is_given_up(self, batch: int, attempt: int) -> bool:
        return batch in self.hopeless | self.believed or (batch, attempt) in self._given_up

    def _nearly_limit(self) -> float:
        """Return the seconds after which Argo is about to give a pod up."""
        return max(self._limit - 2 * EVERY, self._limit / 2)

    def _note_silent(self, pod: Pod, batch: int, now: float) -> None:
        """Note a pod that waited for nearly all of its time while nothing told why."""
        waited = now - self._silent.setdefault(pod.uid, now)
        if waited >= self._nearly_limit() and self._noted.get(batch, (None,))[0] != pod.attempt:
            state = f"has not started after {waited:.0f} s on {pod.node or 'no node'}"
            self.note(batch, f"pod of rank {pod.rank} {state}, and no event says why", pod.attempt)

    def refused(self, nodes: dict[str, Object], now: float) -> None:
        """Note pods that the API server refused: an invalid pod, a quota, a policy or a webhook.

        Argo keeps a pod Pending that it asks for again (a quota may be free soon); any other is an
        Error without a node. Invalid and forbidden pods stay so. A quota that was not free for the
        whole limit is not waited for again.
        """
        pods = {uid: place for uid, node in nodes.items() if (place := _rank_of(node))}
        self._nodes, self._unmade = {}, set()
        for batch, attempt, _ in pods.values():
            self._nodes[batch] = max(attempt, self._nodes.get(batch, 0))
        for uid, (batch, attempt, rank) in pods.items():
            message, phase = nodes[uid].get("message") or "", nodes[uid].get("phase")
            placed = nodes[uid].get("hostNodeName") or message.startswith("pod deleted")
            unmade = phase == "Error" and message and not placed
            waiting = phase == "Pending" and ("forbidden" in message or "denied" in message)
            if not unmade and not waiting:
                continue
            self._unmade.add((batch, attempt))
            if attempt == self._nodes[batch] and self._refusals.get(uid) != message:
                self.note(batch, f"pod of rank {rank} was refused: {message}", attempt)
                self._refusals[uid] = message  # else pods of a batch overwrite each other's reason
            if unmade:
                final = "is invalid" in message or "is forbidden" in message
            else:
                final = now - self._since.setdefault(uid, now) >= self._nearly_limit()
            if final:
                self.hopeless.add(batch)

    def note(self, batch: int, reason: str, attempt: int = 0) -> None:
        """Write why the samples of a batch are missing, once for each reason and attempt.

        The lead of a complete gang removes it.
        """
        kind = "image" if "ErrImagePull" in reason else reason
        if self._noted.get(batch) != (attempt, kind):
            print(f"batch {batch}: {reason}", flush=True)  # noqa: T201
            self._write(batch, reason)
            self._noted[batch] = attempt, kind  # last: a failed write is tried again


def _rank_of(node: Object) -> tuple[int, int, str | None] | None:
    """Return the batch, the attempt and the rank of a measuring pod's node; None of others."""
    inputs = inputs_of(node)
    if node.get("type") != "Pod" or not str(inputs.get("batch", "")).isdigit():
        return None
    return int(inputs["batch"]), int(inputs.get("attempt") or 0), inputs.get("rank")


def finished(workflow: Object) -> bool:
    """Return whether all batches are over, those that confirm too, or the Workflow is.

    The DAG of the batches may be a task of another Workflow.
    """
    status = workflow.get("status") or {}
    if status.get("phase") in _DONE or workflow["spec"].get("shutdown"):
        return True
    fans, suspects = _phases(workflow, "batches"), _phases(workflow, "suspect")
    if not fans or not suspects or not _DONE.issuperset([*fans, *suspects]):
        return False
    # confirming batches are a second fan, whose node may not exist yet
    return "Succeeded" not in suspects or len(fans) > 1


def failed(workflow: Object) -> bool:
    """Return whether `argo retry` would measure batches again, or plan some that confirm.

    The Workflow was stopped or ran out of time, a batch failed, or the step that confirms did.
    """
    fans, suspects = _phases(workflow, "batches"), _phases(workflow, "suspect")
    # the phases of that step include its attempts: the last one may have succeeded
    confirming = [] if "Succeeded" in suspects else suspects
    phases = [(workflow.get("status") or {}).get("phase"), *fans, *confirming]
    return bool(workflow["spec"].get("shutdown")) or not {"Failed", "Error"}.isdisjoint(phases)


def _phases(workflow: Object, template: str) -> list[str | None]:
    nodes = nodes_of(workflow).values()
    return [node.get("phase") for node in nodes if template_of(node) == template]


async def watch_run(here: PodContext, pending: str) -> bool:
    """Watch the run until its last batch ends. Return True if no batch failed.

    Where no sample may be measured again, it ends with the last stored sample: the controller looks
    at a Workflow every 10 s, and a watchdog that ends after the measuring pods costs one more look.
    Where batches failed the watchdog has to fail too: `argo retry` keeps what succeeded, and nobody
    would give up the pods of the retry. It does not mount a claim, which one node alone may have.
    It waits for an API server out of reach. Raises StoreError.
    """
    limit = pending_limit(pending)
    async with Kube() as kube:
        if here.claimed:
            return await watch_workflow(kube, here, limit, None)
        store = here.open()
        plan = load_plan(store, here.run_id)
        plans = variants(store, plan)
        watches = [
            asyncio.create_task(watch_workflow(kube, here, limit, BatchReasons(plan, store)))
        ]
        if not gated(plan):
            watches.append(asyncio.create_task(all_stored(store, plans)))
        done, others = await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            task.cancel()
        results = [task.result() for task in done]
        return any(results)


async def watch_workflow(
    kube: Kube, here: PodContext, limit: float, write: Callable[[int, str], None] | None
) -> bool:
    """Look until the last batch is over; return whether none failed.

    Without `write` the reasons become an annotation of the Workflow, for the last step.
    """
    pods = await kube.resource("v1", "Pod")
    workflows = await kube.resource("argoproj.io/v1alpha1", "Workflow")
    reasons: dict[int, str] = {}
    watchdog = Watchdog(limit, write or (lambda batch, text: reasons.update({batch: text})))

    async def annotate(annotations: Object) -> None:
        body = {"metadata": {"annotations": annotations}}
        await kube.patch(workflows, here.workflow, body, here.namespace)

    while True:
        try:
            workflow = await kube.get(workflows, here.workflow, here.namespace)
            before = workflow["metadata"].get("annotations") or {}
            if finished(workflow):
                # nobody else clears it
                last: Object = {UNRECOVERABLE: None} if UNRECOVERABLE in before else {}
                last |= {WATCHDOG_DONE: here.workflow_uid} if failed(workflow) else {}
                if last:
                    await annotate(last)
                return not failed(workflow)
            watchdog.believed = unrecoverable_batches(workflow)
            earlier = missing_reason.from_annotations(owner(workflow), before)
            watchdog.refused(nodes_of(workflow), time.monotonic())
            doomed = watchdog.look(await _pods_of(kube, pods, here), time.monotonic())
            merged = (earlier | reasons).items()
            reasons = {batch: text for batch, text in merged if batch not in watchdog.complete}
            # what an earlier attempt left has to go: retries read it
            names = (UNRECOVERABLE, WATCHDOG_DONE, missing_reason.NOTES)
            update: Object = {name: None for name in names if name in before}
            unrecoverable = watchdog.hopeless | watchdog.believed
            update |= unrecoverable_annotation(owner(workflow), unrecoverable)
            update |= missing_reason.as_annotation(owner(workflow), reasons)
            if not update.items() <= before.items():
                await annotate(update)  # before the pods end: then Argo decides about a retry
            await _give_up(kube, pods, here, doomed)
        except KubeError as error:
            if error.status in (401, 403, 404):
                raise
            print(f"waiting for the API server: {error}", flush=True)  # noqa: T201
        await asyncio.sleep(EVERY)


async def _pods_of(kube: Kube, kind: Resource, here: PodContext) -> list[Pod]:
    labels = selector(here.run_id, here.workflow)
    pods = await kube.list(kind, here.namespace, labels=labels)
    return await with_events(kube, here.namespace, [read_pod(pod) for pod in pods])


async def _give_up(kube: Kube, kind: Resource, here: PodContext, doomed: list[Pod]) -> None:
    """End pods so that Argo calls them failed: it creates a deleted Pending pod again."""
    for pod in doomed:
        if pod.node:
            body: Object = {"spec": {"activeDeadlineSeconds": 1}}
            await kube.patch(kind, pod.name, body, here.namespace)
        else:  # no kubelet would end it, and each retry would wait for the whole pendingTimeout
            message = (pod.trouble or "")[:1000]
            body = {"status": {"phase": "Failed", "reason": GIVEN_UP, "message": message}}
            await kube.patch(kind, pod.name, body, here.namespace, subresource="status")
