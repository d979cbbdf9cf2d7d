"""Why samples of a run on Argo are missing: what the watchdog sees, and what ended the Workflow.

The watchdog decides alone which gangs end early. What it learned is on the Workflow, where Argo
reads which batches no retry can repair, and the last step why pods did not start or ended early. A
lead writes into the store what only it knows: the samples under way and a spent budget.

It lists the pods once a second and keeps little between two looks, so a lost event, an API server
that is away or a watchdog that Argo creates again loses nothing but time.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import orjson

from perfdag.identity import grouped
from perfdag.kube.client import (
    Kube,
    KubeError,
    Object,
    annotations_of,
    run_with_client,
    status_of,
)
from perfdag.kube.patch import ROLE, RUN, STOPPED, WATCHDOG
from perfdag.kube.pods import (
    WORKFLOW,
    WORKFLOWS,
    Pod,
    is_pulling,
    is_unpacking,
    nodes_of,
    parameters_of,
    read_pod,
    refusal,
    template_of,
    with_events,
)
from perfdag.plan import Plan
from perfdag.redaction import logger
from perfdag.results.run_store import plan_of_batch, stored_plan, variants
from perfdag.results.samples import (
    MissingReason,
    as_annotation,
    forget_reasons,
    from_annotations,
    stored_reasons,
    stored_samples,
    write_reason,
)
from perfdag.steps.pods.context import EXIT_RETRYABLE, PodContext
from perfdag.store.base import Store
from perfdag.units import plural, short_seconds

LOOK_SECONDS = 1.0
"""Seconds between two looks at the pods."""
UNRECOVERABLE_SECONDS = 3.0
"""Seconds for which a pod may have a lasting trouble."""
PULL_SECONDS = 20.0
"""Seconds for which a pod may have trouble with pulling its image."""
ENDED_SECONDS = 3.0
"""Seconds that the others of a gang have to end by themselves once a pod of it has ended."""

NEVER_STARTED = " never started: "
"""Words of a reason before its cause."""
SHORT = 160
"""Characters of a reason that `argo get` shows."""
GIVEN_UP = "GivenUp"
"""Reason in the status of a pod that the watchdog failed."""
_RETRYABLE = f"main ended with exit code {EXIT_RETRYABLE}"
"""The end of a pod whose gang fell apart: the reason of the pod that did it goes before."""

Attempt = tuple[int, int]
"""The numbers of a batch and of an attempt at it, which a gang measures."""


@dataclass(frozen=True)
class PodNode:
    """The node of a measuring pod in the Workflow. Its pod may have been refused, and not exist."""

    uid: str
    batch: int
    attempt: int
    rank: str | None
    phase: str
    message: str
    has_pod: bool


def pod_nodes(nodes: Mapping[str, Object]) -> Iterator[PodNode]:
    """Return the nodes of measuring pods among those of a Workflow."""
    for uid, node in nodes.items():
        inputs = parameters_of(node)
        batch = str(inputs.get("batch", ""))
        if node.get("type") == "Pod" and batch.isdigit():
            yield PodNode(
                uid=uid,
                batch=int(batch),
                attempt=int(inputs.get("attempt") or 0),
                rank=inputs.get("rank"),
                phase=node.get("phase") or "",
                message=node.get("message") or "",
                has_pod=bool(node.get("hostNodeName")),
            )


def owner(workflow: Object) -> str:
    """Return the owner of annotations: the uid of the Workflow and the start of this attempt."""
    uid = workflow["metadata"].get("uid", "")
    return f"{uid} {status_of(workflow).get('startedAt') or ''}"


class Watchdog:
    """Decides from what was observed of the pods of a run; called once a look.

    `limit` is the suite's pending_limit in seconds. `reasons` has why the samples of a batch are
    missing, and `unrecoverable` the batches that no retry can repair: they begin with those of the
    watchdog before this one.
    """

    def __init__(
        self, limit: float, reasons: Mapping[int, str] = {}, unrecoverable: Iterable[int] = ()
    ) -> None:
        self._limit = limit
        self.reasons = dict(reasons)
        self.unrecoverable = set(unrecoverable)
        self._since: dict[str, float] = {}
        self._noted: dict[str, str] = {}
        self._newest: dict[int, int] = {}

    def look(self, argo_nodes: Mapping[str, Object], pods: list[Pod], now: float) -> list[Pod]:
        """Note troubles; return the pods to give up, whole gangs.

        `argo_nodes` are those of the Workflow. `now` is monotonic, in seconds.
        """
        of_batches = (pod for pod in pods if pod.batch is not None)
        gangs = grouped(of_batches, key=lambda pod: (pod.batch or 0, pod.attempt))
        nodes = list(pod_nodes(argo_nodes))
        self._begin_attempts([*gangs, *((node.batch, node.attempt) for node in nodes)])
        refused = set[Attempt]()
        doomed = set[Attempt]()
        for node in nodes:
            if self._is_refused(node, now):
                refused.add((node.batch, node.attempt))
            if node.phase in ("Failed", "Error") and self._has_ended(node.uid, now):
                doomed.add((node.batch, node.attempt))
        for (batch, attempt), gang in gangs.items():
            # all are looked at, since each may have a trouble to note
            given_up = [pod for pod in gang if self._gives_up(pod, batch, now)]
            if given_up:
                doomed.add((batch, attempt))
            runs = all(pod.phase in ("Running", "Succeeded") and not pod.trouble for pod in gang)
            if runs and attempt == self._newest[batch] and (batch, attempt) not in refused:
                self.reasons.pop(batch, None)  # what it waited for is outdated
        return [
            pod
            for doomed_attempt in sorted(doomed & gangs.keys())
            for pod in gangs[doomed_attempt]
            if pod.phase in ("Pending", "Running")
        ]

    def _begin_attempts(self, attempts: Iterable[Attempt]) -> None:
        """Remember the newest attempt at each batch; the reasons of earlier ones are outdated."""
        newest = dict(sorted(attempts))
        for batch, attempt in self._newest.items():
            if attempt < newest.get(batch, attempt):
                self.reasons.pop(batch, None)
        self._newest = newest

    def stop(self, pods: Iterable[Pod]) -> list[Pod]:
        """Give up what is under way for good, and return its pods.

        Argo skips the other batches. It could shut the Workflow down, but 4.1 then often fails to
        run the last step, where a batch waits for its turn.
        """
        active = [pod for pod in pods if pod.phase in ("Pending", "Running")]
        self.unrecoverable |= {pod.batch for pod in active if pod.batch is not None}
        return active

    def _has_ended(self, uid: str, now: float) -> bool:
        """Return whether a pod that has ended did so ENDED_SECONDS ago: its gang waits for it."""
        return now - self._since.setdefault(uid, now) >= ENDED_SECONDS

    def _gives_up(self, pod: Pod, batch: int, now: float) -> bool:
        """Note the trouble of a pod; return whether its gang is to be given up."""
        if pod.phase == "Pending":
            return self._is_over_time(pod, batch, now)
        if not pod.trouble or pod.phase == "Succeeded":
            return False
        if pod.unrecoverable:
            self.unrecoverable.add(batch)
        end, _, cause = pod.trouble.partition(": ")
        # the reason of a pod that the watchdog ended is noted already
        reason = "" if end in (GIVEN_UP, "DeadlineExceeded") else pod.trouble
        if end == _RETRYABLE:
            # another pod of the gang may have said more
            reason = "" if batch in self.reasons else cause
        if reason:
            text = f"pod of rank {pod.rank}: {reason}"
            if pod.ended_at:  # else the node is lost, and nobody knows what its pod measured
                place = f"attempt {pod.attempt + 1} on {pod.node} at {pod.ended_at}"
                text = f"its batch ended early ({place}): {text}"
            self._note(batch, pod.attempt, pod.uid, pod.trouble, text)
        # its peers, or Argo, would wait for it
        return (
            pod.unrecoverable
            or pod.abandoned
            or (pod.phase == "Failed" and self._has_ended(pod.uid, now))
        )

    def _is_over_time(self, pod: Pod, batch: int, now: float) -> bool:
        """Note the trouble of a pending pod; return whether its gang is to be given up."""
        age = time.time() - pod.created if pod.created else 0.0
        if pod.trouble is None:
            if age >= self._limit:  # Argo is about to end it
                text = (
                    f"pod of rank {pod.rank} has not started after {age:.0f} s "
                    f"on {pod.node or 'no node'}, and no event says why"
                )
                self._note(batch, pod.attempt, pod.uid, "silent", text)
            return False
        pulling = is_pulling(pod.trouble)
        unpacking = is_unpacking(pod.trouble)
        waited = now - self._since.setdefault(pod.uid, now)
        limit = self._limit
        if pod.unrecoverable or batch in self.unrecoverable:
            limit = UNRECOVERABLE_SECONDS
        elif pulling:
            limit = min(PULL_SECONDS, limit)
        elif not unpacking:  # Argo counts the same limit from the creation, and would retry
            waited = max(waited, age)
        if waited >= min(UNRECOVERABLE_SECONDS, limit):
            text = f"pod of rank {pod.rank}{NEVER_STARTED}{pod.trouble}"
            self._note(batch, pod.attempt, pod.uid, "image" if pulling else pod.trouble, text)
        if waited < limit:
            return False
        if pod.attempt == self._newest[batch] and not unpacking:
            self.unrecoverable.add(batch)  # a retry would only wait again
        return True

    def _is_refused(self, node: PodNode, now: float) -> bool:
        """Return whether the API server refused a pod (a quota, a policy, a webhook), and note it.

        Argo keeps a pod Pending that it asks for again (a quota may be free soon); any other is an
        Error without a node, which Argo does not retry. A quota that was not free for the whole
        limit is not waited for again.
        """
        denied = "forbidden" in node.message or "denied" in node.message
        waits = node.phase == "Pending" and denied
        existed = node.has_pod or not node.message or node.message.startswith("pod deleted")
        if not waits and (node.phase != "Error" or existed):
            return False
        text = f"pod of rank {node.rank} was refused: {refusal(node.message)}"
        self._note(node.batch, node.attempt, node.uid, node.message, text)
        if waits and now - self._since.setdefault(node.uid, now) >= self._limit:
            self.unrecoverable.add(node.batch)
        return True

    def _note(self, batch: int, attempt: int, uid: str, kind: str, text: str) -> None:
        """Note why the samples of a batch are missing, once for each pod and kind of reason.

        So two pods of a batch do not overwrite each other's reason at every look.
        """
        if attempt == self._newest[batch] and self._noted.get(uid) != kind:
            print(f"batch {batch}: {text}", flush=True)  # noqa: T201
            self._noted[uid] = kind
            self.reasons[batch] = text


_DONE = {"Succeeded", "Failed", "Error", "Skipped", "Omitted"}
_KILLED_EXECUTOR: Object = {
    "name": "wait",
    "image": "",
    "imageID": "",
    "ready": False,
    "restartCount": 0,
    "state": {"terminated": {"exitCode": 137, "reason": "NodeLost"}},
}
"""Argo's own container in a pod that is given up: else Argo waits 10 min for its report."""


def finished(workflow: Object, pods: Iterable[Pod]) -> bool:
    """Return whether the Workflow is over or no pod is left to watch, those of rechecks included.

    A batch is over once a lead of it ended well, which a pod says before Argo looks at it: so the
    watchdog ends together with the last pods, and costs the controller no look of its own, which
    takes 10 s. After `argo retry` it waits for the controller, since Argo 4.1 may never see that
    the batches are over. The DAG of the batches may be a task of another Workflow.
    """
    if _ended_early(workflow):
        return True
    nodes = nodes_of(workflow).values()
    fans = _fans(workflow)
    if not fans:
        return False
    began = status_of(workflow).get("startedAt") or ""
    retried = any((node.get("finishedAt") or began) < began for node in nodes)
    measured = set[int]() if retried else _measured(workflow, pods)
    if not all(fan.get("phase") in _DONE or _batches(fan) <= measured for fan in fans):
        return False
    rechecks = {node.get("phase") for node in nodes if template_of(node) == "recheck"}
    if not rechecks:
        # the plan step of a run that may have rechecks says so
        return not any(parameters_of(node, "outputs").get("gated") == "true" for node in nodes)
    # the batches of a recheck are a second fan, whose node may not exist yet
    return rechecks <= _DONE and ("Succeeded" not in rechecks or len(fans) > 1)


def unmeasured(workflow: Object, pods: Iterable[Pod]) -> list[int]:
    """Return the batches that no lead has measured."""
    planned = {batch for fan in _fans(workflow) for batch in _batches(fan)}
    return sorted(planned - _measured(workflow, pods))


def _fans(workflow: Object) -> list[Object]:
    return [node for node in nodes_of(workflow).values() if template_of(node) == "batches"]


def _measured(workflow: Object, pods: Iterable[Pod]) -> set[int]:
    """Return the batches of which a lead ended well."""
    leads = [node for node in pod_nodes(nodes_of(workflow)) if node.rank == "0"]
    by_node = {lead.batch for lead in leads if lead.phase == "Succeeded"}
    ended = [pod for pod in pods if pod.rank == 0 and pod.ended_at and not pod.trouble]
    return by_node | {pod.batch for pod in ended if pod.batch is not None}


def _batches(fan: Object) -> set[int]:
    """Return the numbers of the batches of a fan that the cluster does not refuse."""
    return {
        int(item["n"])
        for item in orjson.loads(parameters_of(fan).get("batches") or "[]")
        if item["n"]
    }


def _ended_early(workflow: Object) -> bool:
    """Return whether the Workflow is over, or is being stopped."""
    return status_of(workflow).get("phase") in _DONE or bool(workflow["spec"].get("shutdown"))


@dataclass
class Standstill:
    """Tells when a run has not gone on for `limit` seconds: it holds the lock of all that measure.

    A run goes on while a step or a batch of it begins or ends, or a sample ends.
    """

    limit: float
    _state: list[tuple[str | None, str | None]] = field(default_factory=list)
    _since: float = 0.0

    def lasts(self, workflow: Object, now: float) -> bool:
        """Return whether the run stands still at `now`, in monotonic seconds."""
        parts = [status_of(workflow), *nodes_of(workflow).values()]
        state = [(part.get("phase"), part.get("progress")) for part in parts]
        if state != self._state:
            self._state = state
            self._since = now
        return now - self._since >= self.limit


async def watch_pods(kube: Kube, context: PodContext, limit: float, stall: float) -> list[int]:
    """Look at the pods until the last batch is over, also while the API server is out of reach.

    `limit` is the suite's pending_limit in seconds, and `stall` the seconds after which a run that
    stands still is stopped. Return the batches that were not measured. Raises KubeError.
    """
    labels = f"{WORKFLOW}={context.workflow},{RUN}={context.run_id},{ROLE}=measure"
    watchdog: Watchdog | None = None
    standstill = Standstill(stall)
    ending = ""
    while True:
        try:
            # the Workflow last: pods that `argo stop` ended are those of a Workflow with a shutdown
            listed = await kube.list("v1/Pod", context.namespace, labels=labels)
            run_pods = await with_events(kube, context.namespace, map(read_pod, listed))
            workflow = await kube.get(WORKFLOWS, context.workflow, context.namespace)
            if watchdog is None:
                watchdog = Watchdog(limit, *_earlier_notes(workflow))
            doomed: list[Pod] = []
            if not _ended_early(workflow):  # else Argo ended the pods
                doomed = watchdog.look(nodes_of(workflow), run_pods, time.monotonic())
            over = finished(workflow, run_pods)
            shutdown = False
            if not over and standstill.lasts(workflow, time.monotonic()):
                shutdown = bool(ending)  # its pods are not why
                ending = f"{STOPPED}: it did not go on for {short_seconds(stall)}"
                doomed = watchdog.stop(run_pods)
                standstill.limit = limit
            if shutdown or await _parent_ended(kube, workflow):
                await _patch_workflow(kube, context, {"spec": {"shutdown": "Stop"}})
            # what was final has to go at the end: `argo retry` would read it
            final = set[int]() if over else watchdog.unrecoverable
            notes = as_annotation(owner(workflow), watchdog.reasons, final)
            notes[WATCHDOG] = f"{owner(workflow)} {ending or 'ended'}" if over or ending else None
            annotations = annotations_of(workflow)
            if notes != {name: annotations.get(name) for name in notes}:
                # before the pods end: then Argo decides about a retry
                await _patch_workflow(kube, context, {"metadata": {"annotations": notes}})
            if over:
                return unmeasured(workflow, run_pods)
            await _give_up(kube, context, doomed)
        except KubeError as error:
            if error.status in (401, 403, 404):
                raise
            print(f"waiting for the API server: {error}", flush=True)  # noqa: T201
        await asyncio.sleep(LOOK_SECONDS)


def _earlier_notes(workflow: Object) -> tuple[dict[int, str], set[int]]:
    """Return the reasons and the final batches that a watchdog left on the Workflow."""
    return from_annotations(owner(workflow), annotations_of(workflow))


async def _patch_workflow(kube: Kube, context: PodContext, body: Object) -> None:
    await kube.patch(WORKFLOWS, context.workflow, body, context.namespace)


async def _parent_ended(kube: Kube, workflow: Object) -> bool:
    """Return whether the Workflow whose task `measure()` made this one is over, or being stopped.

    Argo ends the pod of that task, and leaves what the pod created.
    """
    metadata = workflow["metadata"]
    for parent in metadata.get("ownerReferences") or []:
        if parent["kind"] == "Workflow" and not workflow["spec"].get("shutdown"):
            return _ended_early(await kube.get(WORKFLOWS, parent["name"], metadata["namespace"]))
    return False


async def _give_up(kube: Kube, context: PodContext, doomed: list[Pod]) -> None:
    """End pods so that Argo calls them failed: it creates a deleted Pending pod again.

    The message of a pod that never started is that of its node in the Workflow.
    """
    for pod in doomed:
        if pod.phase == "Pending" and pod.node and not (pod.trouble or pod.abandoned):
            continue  # it starts: Argo would wait for its executor, and a later look ends it
        body: Object = {"spec": {"activeDeadlineSeconds": 1}}
        subresource = ""
        if pod.abandoned or pod.phase == "Pending":
            status: Object = {"phase": "Failed", "reason": GIVEN_UP, "message": pod.trouble or ""}
            if pod.abandoned:  # no kubelet would end it, and Argo would wait for it
                status["containerStatuses"] = [_KILLED_EXECUTOR]
            body = {"status": status}
            subresource = "status"
        await kube.patch("v1/Pod", pod.name, body, context.namespace, subresource=subresource)


# -- the last step --------------------------------------------------------------------------------


def record_end(context: PodContext, store: Store, plan: Plan, phase: str) -> str | None:
    """Write why batches failed and what ended the Workflow, for the run and its rechecks.

    `phase` is Argo's. A run that belongs to another Workflow gets no reason, except where it has no
    sample yet. The variants of `ab` share their pods: both runs get the reasons. Return why the
    cluster could not run the suite at all, where the pods of every batch failed to start, or None.
    Raises StoreError.
    """
    measured = bool(stored_samples(store, plan.run_id))
    if measured and plan.where.get("workflow_uid") != context.workflow_uid:
        return None
    texts, ended = _read_end(context)
    for number, text in texts.items():
        member, index = plan_of_batch(store, plan, number)
        for variant in variants(store, member):
            write_reason(store, variant.run_id, MissingReason("batch", "failed", text, index))
    stored = stored_reasons(store, plan.run_id)
    reasons = [reason for reason in stored if reason.kind != "workflow"]  # as before `argo retry`
    if phase != "Succeeded":
        text = f"workflow {context.workflow} {ended or f'ended {phase}'}"
        rechecks = [stored_plan(store, run_id) for run_id in plan.options.rechecks]
        for member in [*variants(store, plan), *rechecks]:
            if ended:  # with it those of samples under way, whatever their pods noted first
                for reason in stored_reasons(store, member.run_id):
                    if reason.kind == "sample":
                        forget_reasons(store, member.run_id, reason.name)
            write_reason(store, member.run_id, MissingReason("workflow", "missing", text))
    if measured or ended or {reason.kind for reason in reasons} != {"batch"}:
        return None
    # Argo shows it: the cause without the pod that it is of, which differs from batch to batch
    causes = list(dict.fromkeys(reason.text.rpartition(NEVER_STARTED)[2] for reason in reasons))
    cause = causes[0][:SHORT]
    if len(causes) > 1:
        cause += f" (and {plural(len(causes) - 1, 'other reason')})"
    return cause


def _read_end(context: PodContext) -> tuple[dict[int, str], str | None]:
    """Return why batches failed, by number, and what ended the Workflow from outside."""
    try:
        workflow = run_with_client(
            lambda kube: kube.get(WORKFLOWS, context.workflow, context.namespace)
        )
    except KubeError as error:  # only the reasons are lost, not the samples
        logger.info(f"cannot read why batches failed; their rows have no reason: {error}")
        return {}, None
    reasons, _ = _earlier_notes(workflow)
    return reasons, end_of(workflow, time.time())


def end_of(workflow: Object, now: float) -> str | None:
    """Return what ended a Workflow from outside, None where nothing did; `now` in s since 1970."""
    status = status_of(workflow)
    shutdown = workflow["spec"].get("shutdown")
    annotation = annotations_of(workflow).get(WATCHDOG) or ""
    stopped = annotation.removeprefix(f"{owner(workflow)} ")
    if stopped.startswith(STOPPED):
        return stopped
    if shutdown:
        return f"was ended by `argo {shutdown.lower()}`"
    stored = status.get("storedWorkflowTemplateSpec") or {}
    limit = workflow["spec"].get("activeDeadlineSeconds") or stored.get("activeDeadlineSeconds")
    began = status.get("startedAt")
    if limit and began and now - datetime.fromisoformat(began).timestamp() >= limit:
        return f"was ended by its deadline of {short_seconds(limit)} (install --deadline)"
    return None
