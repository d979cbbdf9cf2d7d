"""The sentry of a run: notes why measuring pods cannot start, gives up those for which waiting is useless, and ends with the last sample.

A pod whose image is missing, whose volume cannot be mounted or that no node has room for never runs a step of ours, so that nothing
inside it can say so.
"""

import asyncio
import base64
import gzip
import time
from collections.abc import Callable, Iterable
from typing import Any

import orjson

from perfdag.gated import gated
from perfdag.kube import Kube, KubeError, Resource
from perfdag.podspec import HOPELESS, NOTES, STOOD
from perfdag.runs import load_plan, variants
from perfdag.steps.complete import EVERY, all_stored
from perfdag.steps.marks import as_annotations, head, of_annotations
from perfdag.steps.peer import REFUSED, RETRYABLE
from perfdag.steps.place import Here, pending_limit
from perfdag.steps.pods import Pod, is_pulling, is_unpacking, read, selector, told
from perfdag.steps.reasons import InStore

HOPELESS_SECONDS, PULL_SECONDS = 3.0, 20.0
GIVEN_UP = "GivenUp"
_FINAL = {f"main ended with exit code {code}" for code in (2, REFUSED)}
_SAID = {
    f"main ended with exit code {code}" for code in (RETRYABLE, REFUSED)
}  # it noted why itself
_DONE = {"Succeeded", "Failed", "Error", "Skipped", "Omitted"}

Object = dict[str, Any]


def patience(pod: Pod, pending_limit: float) -> float:
    """Seconds a pod's trouble is borne before its gang is given up."""
    if pod.hopeless:
        return HOPELESS_SECONDS
    return min(PULL_SECONDS, pending_limit) if is_pulling(pod.trouble or "") else pending_limit


class Sentry:
    """What was seen and said; `look` is called again and again. `limit`: the suite's pending_limit in seconds. `put` keeps why the samples
    of a batch that have no part have none."""

    def __init__(self, limit: float, put: Callable[[int, str], None]) -> None:
        self._limit, self._put = limit, put
        self._since: dict[str, float] = {}
        self._silent: dict[str, float] = {}
        self._noted: dict[int, tuple[int, str]] = {}
        self._refusals: dict[str, str] = {}
        self.hopeless: set[int] = set()
        """Batches that another attempt cannot mend."""
        self._given_up: set[tuple[int, int]] = set()
        """Attempts at a batch that were ended, also those that another may mend."""
        self._ended: dict[str, str] = {}
        self.believed: set[int] = set()
        """Those of a sentry that stood here before: what it gave up is noted."""
        self._newest: dict[int, int] = {}
        self._nodes: dict[int, int] = {}
        self._unmade: set[tuple[int, int]] = set()
        self.stood: set[int] = set()
        """Batches all pods of whose newest attempt ran at the last look: what was noted of them is over."""

    def look(self, pods: list[Pod], now: float) -> list[Pod]:
        """Note troubles; the pods to give up (all of their gang). `now` is on a monotonic clock, in seconds."""
        doomed: set[tuple[int, int]] = set()
        self._compare(pods)
        for pod in pods:
            if pod.batch is None or pod.trouble is None or pod.phase == "Succeeded":
                if (
                    pod.phase != "Pending"
                ):  # between two tries to pull its image a pod has no trouble for a moment
                    self._since.pop(pod.uid, None)
                elif pod.batch is not None and pod.attempt == self._newest[pod.batch]:
                    self._speechless(pod, pod.batch, now)
                continue
            since, old = self._since.setdefault(pod.uid, now), pod.attempt < self._newest[pod.batch]
            if pod.phase == "Pending":
                waited = max(now - since, self._age(pod))
                if not old and waited >= min(HOPELESS_SECONDS, self._limit):
                    self.note(
                        pod.batch,
                        f"pod of rank {pod.rank} never started: {pod.trouble}",
                        pod.attempt,
                    )
                if waited >= (
                    HOPELESS_SECONDS if pod.batch in self.hopeless else patience(pod, self._limit)
                ):
                    if not old and not is_unpacking(pod.trouble):
                        self.hopeless.add(pod.batch)  # it is not worth waiting for again
                    doomed.add((pod.batch, pod.attempt))
            elif self._is_given_up(pod.batch, pod.attempt) and pod.trouble.startswith(
                ("DeadlineExceeded", GIVEN_UP)
            ):
                continue  # ended by us: why is noted already
            else:
                if pod.hopeless or pod.trouble in _FINAL:
                    self.hopeless.add(pod.batch)
                    doomed.add((pod.batch, pod.attempt))  # its peers would wait for it
                if not old and pod.trouble not in _SAID and self._ended.get(pod.uid) != pod.trouble:
                    self.note(pod.batch, f"pod of rank {pod.rank}: {pod.trouble}", pod.attempt)
                    self._ended[pod.uid] = (
                        pod.trouble
                    )  # pods of one batch would take turns in what is noted
        self._given_up |= doomed
        return [
            pod
            for pod in pods
            if pod.batch is not None
            and (pod.batch, pod.attempt) in doomed
            and pod.phase in ("Pending", "Running")
        ]

    def _compare(self, pods: Iterable[Pod]) -> None:
        """Find the newest attempt at each batch, what is said of older ones is over, and whether it stands. `argo retry` counts anew."""
        self._newest = dict(self._nodes)
        gangs: dict[tuple[int, int], list[Pod]] = {}
        for pod in pods:
            if pod.batch is not None:
                self._newest[pod.batch] = max(pod.attempt, self._newest.get(pod.batch, 0))
                gangs.setdefault((pod.batch, pod.attempt), []).append(pod)
        run = {
            gang
            for gang, made in gangs.items()
            if all(pod.phase in ("Running", "Succeeded") and not pod.trouble for pod in made)
        }
        self.stood = {
            batch for batch, attempt in run - self._unmade if attempt == self._newest[batch]
        }
        for batch in self.stood:
            self._noted.pop(batch, None)

    def _age(self, pod: Pod) -> float:
        """Seconds since a pod without room was made, and a little: Argo counts the same limit from there, and after its own end would try
        again. 0 for troubles of a node's own, which begin later."""
        trouble = pod.trouble or ""
        if not pod.created or pod.hopeless or is_pulling(trouble) or is_unpacking(trouble):
            return 0.0
        return time.time() - pod.created + min(2 * EVERY, self._limit / 2)

    def _is_given_up(self, batch: int, attempt: int) -> bool:
        return batch in self.hopeless | self.believed or (batch, attempt) in self._given_up

    def _speechless(self, pod: Pod, batch: int, now: float) -> None:
        """Note a pod that has waited for nearly all of its time with no word of why."""
        waited = now - self._silent.setdefault(pod.uid, now)
        if (
            waited >= max(self._limit - 2 * EVERY, self._limit / 2)
            and self._noted.get(batch, (None,))[0] != pod.attempt
        ):
            where = pod.node or "no node"
            self.note(
                batch,
                f"pod of rank {pod.rank} has not started after {waited:.0f} s on {where}, and no event says why",
                pod.attempt,
            )

    def refused(self, nodes: dict[str, Object], now: float) -> None:
        """Note pods that were never made: the API server calls them invalid, or a quota, an admission rule or a webhook refused them.

        One that Argo asks for again (a quota may be free soon) is Pending, any other is an Error that no node ever hosted. What is
        invalid or forbidden stays so; a quota that was not free for all of the limit is not waited for again.
        """
        made = {uid: found for uid, node in nodes.items() if (found := _rank_of(node))}
        self._nodes, self._unmade = {}, set()
        for batch, attempt, _ in made.values():
            self._nodes[batch] = max(attempt, self._nodes.get(batch, 0))
        for uid, (batch, attempt, rank) in made.items():
            message, phase = nodes[uid].get("message") or "", nodes[uid].get("phase")
            unmade = (
                phase == "Error"
                and message
                and not nodes[uid].get("hostNodeName")
                and not message.startswith("pod deleted")
            )
            if unmade or (phase == "Pending" and ("forbidden" in message or "denied" in message)):
                self._unmade.add((batch, attempt))
                if attempt == self._nodes[batch] and self._refusals.get(uid) != message:
                    self.note(batch, f"pod of rank {rank} was refused: {message}", attempt)
                    self._refusals[uid] = (
                        message  # it stays in the status: pods of one batch would take turns in what is noted
                    )
                final = "is invalid" in message or "is forbidden" in message
                if (
                    final
                    if unmade
                    else now - self._since.setdefault(uid, now)
                    >= max(self._limit - 2 * EVERY, self._limit / 2)
                ):
                    self.hopeless.add(batch)

    def note(self, batch: int, reason: str, attempt: int = 0) -> None:
        """Say why the samples of a batch have no part; once for each reason and attempt, since the lead of a gang that stands takes it away."""
        kind = "image" if "ErrImagePull" in reason else reason
        if self._noted.get(batch) != (attempt, kind):
            print(f"batch {batch}: {reason}", flush=True)  # noqa: T201
            self._put(batch, reason)
            self._noted[batch] = (
                attempt,
                kind,
            )  # last: what a store that was away did not take is noted again


def _rank_of(node: Object) -> tuple[int, int, str | None] | None:
    """The batch, the attempt at it and the rank of a measuring pod's node; None of others."""
    given = inputs_of(node)
    if node.get("type") != "Pod" or not str(given.get("batch", "")).isdigit():
        return None
    return int(given["batch"]), int(given.get("attempt") or 0), given.get("rank")


def nodes_of(workflow: Object) -> dict[str, Object]:
    """The nodes of a Workflow's status, compressed ones too."""
    status = workflow.get("status") or {}
    if status.get("compressedNodes"):
        unpacked: dict[str, Object] = orjson.loads(
            gzip.decompress(base64.b64decode(status["compressedNodes"]))
        )
        return unpacked
    return status.get("nodes") or {}


def inputs_of(node: Object) -> Object:
    """The parameters that a node was given, by name."""
    return {
        each["name"]: each.get("value")
        for each in (node.get("inputs") or {}).get("parameters") or []
    }


def template_of(node: Object) -> str | None:
    """The template that a node was made from: one of the workflow's own, or one that a task of another workflow refers to."""
    return node.get("templateName") or (node.get("templateRef") or {}).get("template")


def finished(workflow: Object) -> bool:
    """Whether all batches are over, those that confirm too, or the workflow is. Their DAG may be a task of another workflow's."""
    status = workflow.get("status") or {}
    if status.get("phase") in _DONE or workflow["spec"].get("shutdown"):
        return True
    nodes = list(nodes_of(workflow).values())
    fans = [node.get("phase") for node in nodes if template_of(node) == "batches"]
    suspects = [node.get("phase") for node in nodes if template_of(node) == "suspect"]
    if not fans or not suspects or not _DONE.issuperset([*fans, *suspects]):
        return False
    # what it found suspicious is measured in a second fan, whose node may not be there yet
    return "Succeeded" not in suspects or len(fans) > 1


def failed(workflow: Object) -> bool:
    """Whether there are batches that `argo retry` would measure again: the workflow was stopped, ran out of time, or a batch failed; or
    batches that it may plan, since what looks for suspicious points failed."""
    status = workflow.get("status") or {}
    nodes = list(nodes_of(workflow).values())
    fans = [node.get("phase") for node in nodes if template_of(node) == "batches"]
    suspects = [
        node.get("phase") for node in nodes if template_of(node) == "suspect"
    ]  # its attempts too, the last of which may do
    ended = [status.get("phase"), *fans, *([] if "Succeeded" in suspects else suspects)]
    return bool(workflow["spec"].get("shutdown")) or not {"Failed", "Error"}.isdisjoint(ended)


async def stand(here: Here, pending: str) -> bool:
    """Stand until the last batch is over, or until every sample is stored where none may be measured again; whether all went well. Raises
    StoreError.

    Where batches failed, so that the run does anyway, the sentry has to fail too: `argo retry` keeps what ended well, and nobody would give
    up what is hopeless there.
    An API server out of reach is waited for. The controller looks at a workflow every 10 s: a sentry that ended after the measuring pods
    would cost a run one more look. A claim is not mounted here, since it may be one that one node at a time can have: the lead's.
    """
    limit = pending_limit(pending)
    async with Kube() as kube:
        if here.claimed:
            return await _guard(kube, here, limit, None)
        store = here.open()
        plan = load_plan(store, here.run_id)
        plans = variants(store, plan)
        standing: list[asyncio.Task[bool]] = [
            asyncio.create_task(_guard(kube, here, limit, InStore(plan, store)))
        ]
        if not gated(plan):
            standing.append(asyncio.create_task(all_stored(store, plans)))
        done, others = await asyncio.wait(standing, return_when=asyncio.FIRST_COMPLETED)
        for each in others:
            each.cancel()
        ended = [each.result() for each in done]
        return any(ended)


async def _guard(
    kube: Kube, here: Here, limit: float, put: Callable[[int, str], None] | None
) -> bool:
    """Look until the last batch is over; whether none failed. Where `put` is None notes are annotations of the Workflow, for the last step."""
    pods = await kube.resource("v1", "Pod")
    workflows = await kube.resource("argoproj.io/v1alpha1", "Workflow")
    notes: dict[int, str] = {}
    sentry = Sentry(limit, put or (lambda batch, reason: notes.update({batch: reason})))
    while True:
        try:
            workflow = await kube.get(workflows, here.workflow, here.namespace)
            before = workflow["metadata"].get("annotations") or {}
            if finished(workflow):
                over: Object = (
                    {HOPELESS: None} if HOPELESS in before else {}
                )  # where there is no other sentry nobody clears this
                over |= {STOOD: here.workflow_uid} if failed(workflow) else {}
                if over:
                    await kube.patch(
                        workflows,
                        here.workflow,
                        {"metadata": {"annotations": over}},
                        here.namespace,
                    )
                return not failed(workflow)
            sentry.believed, noted = of_annotations(workflow)
            sentry.refused(nodes_of(workflow), time.monotonic())
            doomed = sentry.look(await _seen(kube, pods, here), time.monotonic())
            hopeless = sentry.hopeless | sentry.believed
            said: Object = {
                name: None for name in (HOPELESS, STOOD, NOTES) if name in before
            }  # of an earlier go: retries read them
            notes = {
                batch: reason
                for batch, reason in (noted | notes).items()
                if batch not in sentry.stood
            }
            said |= as_annotations(head(workflow), hopeless, notes)
            if not said.items() <= before.items():
                # before its pods end: then Argo decides whether there is another attempt
                await kube.patch(
                    workflows, here.workflow, {"metadata": {"annotations": said}}, here.namespace
                )
            await _give_up(kube, pods, here, doomed)
        except KubeError as error:
            if error.status in (401, 403, 404):
                raise
            print(f"waiting for the API server: {error}", flush=True)  # noqa: T201
        await asyncio.sleep(EVERY)


async def _seen(kube: Kube, kind: Resource, here: Here) -> list[Pod]:
    listed = await kube.list(kind, here.namespace, labels=selector(here.run_id, here.workflow))
    return await told(kube, here.namespace, [read(each) for each in listed])


async def _give_up(kube: Kube, kind: Resource, here: Here, doomed: list[Pod]) -> None:
    for pod in doomed:
        # Argo makes a pod anew that is deleted while it is Pending; one past its deadline, or whose phase is Failed, it takes for failed
        if pod.node:
            await kube.patch(kind, pod.name, {"spec": {"activeDeadlineSeconds": 1}}, here.namespace)
        else:  # no kubelet is there to end it, and each retry would wait for all of pendingTimeout again
            over = {"phase": "Failed", "reason": GIVEN_UP, "message": (pod.trouble or "")[:1000]}
            await kube.patch(kind, pod.name, {"status": over}, here.namespace, subresource="status")
