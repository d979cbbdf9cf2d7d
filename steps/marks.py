"""What a run's pods say on its Workflow for Argo to decide by: of a DAG that failed Argo tells its retryStrategy no exit code and no message.

`argo resubmit` copies annotations: what they say begins with the uid of the Workflow it belongs to. `argo retry` keeps the Workflow: what is said
of batches begins with the start of this go too; that of a step stands until the step's next pod says that it began.
"""

import sys
from collections.abc import Callable
from typing import Any

from perfdag import kube
from perfdag.kube import Kube, KubeError
from perfdag.podspec import BEGAN, ENDED, STEP
from perfdag.steps.place import Here


def head(workflow: dict[str, Any]) -> str:
    """What marks of a Workflow begin with: its uid, and the start of this go at it, which `argo retry` sets anew."""
    return f"{workflow['metadata'].get('uid', '')} {(workflow.get('status') or {}).get('startedAt') or ''}"


def step(here: Here, name: str, work: Callable[[], int]) -> int:
    """Do a step's work and return its exit code; say on the Workflow that it is under way, and that it ended by itself where it failed, since
    another pod would fail the same. One that is evicted or killed says no more, and is made anew.
    """
    _say(here, name, BEGAN)
    try:
        code = work()
    except Exception:
        _say(here, name, ENDED)
        raise
    if code:
        _say(here, name, ENDED)
    return code


def _say(here: Here, name: str, state: str) -> None:
    async def work(client: Kube) -> None:
        kind = await client.resource("argoproj.io/v1alpha1", "Workflow")
        said = {"metadata": {"annotations": {STEP: f"{here.workflow_uid} {name} {state}"}}}
        await client.patch(kind, here.workflow, said, here.namespace)

    try:
        kube.run(work)
    except KubeError as error:  # then it is as if it had never begun: tried again only where it ended soon
        print(f"the workflow does not say that {name} {state}: {error}", file=sys.stderr)  # noqa: T201
