"""What the pods of a run write on its Workflow, for Argo to decide by.

Argo passes neither exit code nor message of a failed DAG to its retryStrategy. So a step records
its state, and the watchdog the batches that no retry can repair. `argo resubmit` copies
annotations: each begins with the uid of its Workflow. `argo retry` keeps the Workflow: the batches
begin with the start of the attempt too. The state of a step stays until the step's next pod begins.
"""

import sys
from collections.abc import Callable, Collection

from perfdag.kube.client import Kube, KubeError, Object, run_with_client
from perfdag.kube.patch import STEP, STEP_BEGAN, STEP_ENDED, STEP_REFUSED, UNRECOVERABLE
from perfdag.steps.runner.pod_context import PodContext
from perfdag.store.base import AddressError, DamagedError, NotStoredError
from perfdag.suite.document import BadDocument

_BAD_INPUT = (BadDocument, AddressError, DamagedError, NotStoredError)
"""Errors of exit code 2: the run never starts."""


def owner(workflow: Object) -> str:
    """Return the owner of annotations: the uid of the Workflow and the start of this attempt."""
    started = (workflow.get("status") or {}).get("startedAt") or ""
    return f"{workflow['metadata'].get('uid', '')} {started}"


def unrecoverable_batches(workflow: Object) -> set[int]:
    """Return the batches that no retry can repair; none where the annotation has another owner."""
    value = (workflow["metadata"].get("annotations") or {}).get(UNRECOVERABLE, "")
    batches = value.removeprefix(owner(workflow)) if value.startswith(owner(workflow)) else ""
    return {int(batch) for batch in batches.split(",") if batch}


def unrecoverable_annotation(owner: str, batches: Collection[int]) -> dict[str, str]:
    """Return that annotation, for the Workflow and attempt `owner`; empty where there are none."""
    return {UNRECOVERABLE: f"{owner},{','.join(map(str, sorted(batches)))},"} if batches else {}


def step(context: PodContext, name: str, work: Callable[[], int]) -> int:
    """Run a step and return its exit code; record its state on the Workflow.

    A step that fails by itself would fail again. One that is evicted or killed records no end, and
    Argo runs it again.
    """
    _record(context, name, STEP_BEGAN)
    try:
        code = work()
    except Exception as error:
        _record(context, name, STEP_REFUSED if isinstance(error, _BAD_INPUT) else STEP_ENDED)
        raise
    if code:
        _record(context, name, STEP_ENDED)
    return code


def _record(context: PodContext, name: str, state: str) -> None:
    async def patch(kube: Kube) -> None:
        kind = await kube.resource("argoproj.io/v1alpha1", "Workflow")
        body = {"metadata": {"annotations": {STEP: f"{context.workflow_uid} {name} {state}"}}}
        await kube.patch(kind, context.workflow, body, context.namespace)

    try:
        run_with_client(patch)
    except KubeError as error:  # without the record Argo repeats the step only where it ended early
        text = f"cannot record on the workflow that {name} {state}: {error}"
        print(text, file=sys.stderr)  # noqa: T201
