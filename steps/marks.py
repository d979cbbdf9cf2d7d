"""What a run's pods say on its Workflow for Argo to decide by: of a DAG that failed Argo tells its retryStrategy no exit code and no message.

`argo resubmit` copies annotations: what they say begins with the uid of the Workflow it belongs to. `argo retry` keeps the Workflow: what is said
of batches begins with the start of this go too; that of a step stands until the step's next pod says that it began.
"""

import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

import orjson

from perfdag import kube
from perfdag.kube import Kube, KubeError
from perfdag.podspec import BEGAN, ENDED, HOPELESS, NOTES, STEP
from perfdag.steps.place import Here

NOTE_LENGTH, NOTES_BYTES = 400, 60_000

Object = dict[str, Any]


def head(workflow: dict[str, Any]) -> str:
    """What marks of a Workflow begin with: its uid, and the start of this go at it, which `argo retry` sets anew."""
    return f"{workflow['metadata'].get('uid', '')} {(workflow.get('status') or {}).get('startedAt') or ''}"


def of_annotations(workflow: Object) -> tuple[set[int], dict[int, str]]:
    """The batches that a Workflow's annotations call hopeless, and their notes; none where they are another Workflow's or of another go."""
    said, of = workflow["metadata"].get("annotations") or {}, head(workflow)
    batches, notes = (
        said.get(name, "").removeprefix(of) if said.get(name, "").startswith(of) else ""
        for name in (HOPELESS, NOTES)
    )
    found = {int(batch): str(reason) for batch, reason in orjson.loads(notes or "{}").items()}
    return {int(each) for each in batches.split(",") if each}, found


def as_annotations(of: str, hopeless: Collection[int], notes: Mapping[int, str]) -> dict[str, str]:
    """Those annotations, `of` the Workflow with that head; notes are cut, and left out where they are too many for an object."""
    made = {HOPELESS: f"{of},{','.join(map(str, sorted(hopeless)))},"} if hopeless else {}
    kept: dict[str, str] = {}
    for batch, reason in sorted(notes.items()):
        kept[str(batch)] = reason[:NOTE_LENGTH]
        if len(orjson.dumps(kept)) > NOTES_BYTES:
            del kept[str(batch)]
            break
    return made | ({NOTES: f"{of}{orjson.dumps(kept).decode()}"} if kept else {})


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
    except (
        KubeError
    ) as error:  # then it is as if it had never begun: tried again only where it ended soon
        print(f"the workflow does not say that {name} {state}: {error}", file=sys.stderr)  # noqa: T201
