"""A submission found again on the cluster by its run's label, where no run.json tells of it."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from perfdag.kube import Kube, KubeError, Resource
from perfdag.steps.scale.chains import CHAINS, without_pods
from perfdag.steps.scale.files import RunFile
from perfdag.steps.scale.generator import Submission
from perfdag.steps.scale.removal import everything
from perfdag.steps.scale.runai import SettingsError
from perfdag.steps.scale.stages import unix_ns
from perfdag.steps.scale.templates import INDEX_LABEL, RUN_LABEL, SUBMIT_ANNOTATION, members_of


async def find(kube: Kube, run: str, namespace: str | None) -> list[Resource]:
    """Kinds of which the run created objects, in one namespace or (None) everywhere; those that we may not list are left out.

    Raises KubeError (404) where there are none.
    """
    found = []
    for resource in await everything(kube):
        try:
            if resource.namespaced and await _made(kube, resource, run, namespace):
                found.append(resource)
        except KubeError as error:
            if error.status not in (403, 404, 405):
                raise
    if not found:
        where = f"in the namespace {namespace}" if namespace else "on this cluster"
        raise KubeError(
            404,
            "NoRun",
            f"nothing of run {run} is {where}",
            "the id is said when a run starts; give --namespace where it may be",
        )
    return found


def workload_of(run: str, kinds: list[Resource]) -> Resource:
    """The kind that is measured. Raises SettingsError where that cannot be told."""
    known = (
        [each for each in kinds if each.kind in CHAINS]
        or [each for each in kinds if not without_pods(each.api_version, each.kind)]
        or kinds
    )
    if len(known) > 1:
        names = ", ".join(each.kind for each in known)
        raise SettingsError(
            f"run {run} created {names}; which is measured is in its run.json: take a sample with -o and its folder"
        )
    return known[0]


async def attach(kube: Kube, run: str, kinds: list[Resource], namespace: str | None) -> RunFile:
    """What the run created and is still there. What was refused is not known, and an object counts as sent when it was due.

    Raises KubeError, SettingsError.
    """
    workload = workload_of(run, kinds)
    bodies = sorted(await _made(kube, workload, run, namespace), key=_index)
    if not bodies:
        raise KubeError(404, "NoRun", f"nothing of run {run} is left")
    shift = time.time_ns() - time.monotonic_ns()
    items = [_submission(body, shift) for body in bodies]
    namespaces = list(dict.fromkeys(item.namespace for item in items))
    project = namespaces[0].removeprefix("runai-")
    members = members_of({**bodies[0], "apiVersion": workload.api_version, "kind": workload.kind})
    others = [(each.api_version, each.kind) for each in kinds if each != workload]
    file = RunFile(
        run,
        workload.api_version,
        workload.kind,
        namespaces,
        project,
        members or 1,
        members,
        True,
        items,
        {},
        others,
    )
    file.attached = True
    return file


async def follow(
    kube: Kube, run: str, namespace: str | None, known: RunFile | None
) -> Callable[[], Awaitable[RunFile]]:
    """What reads all that was ever seen of a run, in this sample and the earlier ones (`known`): what is gone was submitted all the same.

    It, and what it returns, raise KubeError (404 where nothing was ever seen) and SettingsError.
    """
    seen, kinds = known, [] if known else await find(kube, run, namespace)

    async def read() -> RunFile:
        nonlocal seen
        try:
            if seen:  # the kinds stay as they were: of those that are left another would be taken for the workload
                there = [
                    await kube.resource(*each)
                    for each in ((seen.api_version, seen.kind), *seen.others)
                ]
                seen = _joined(seen, await attach(kube, run, there, namespace))
            else:
                seen = await attach(kube, run, kinds, namespace)
        except KubeError as error:
            if error.status != 404 or not seen:
                raise
        return seen

    return read


def _joined(seen: RunFile, now: RunFile) -> RunFile:
    uids = {each.uid for each in seen.submissions}
    items = [*seen.submissions, *(each for each in now.submissions if each.uid not in uids)]
    namespaces = list(dict.fromkeys([*seen.namespaces, *now.namespaces]))
    return replace(
        seen, namespaces=namespaces, submissions=sorted(items, key=lambda each: each.index)
    )


async def _made(
    kube: Kube, resource: Resource, run: str, namespace: str | None
) -> list[dict[str, Any]]:
    """What the run itself created: a controller may give its object's labels to what it makes of it (KubeVirt does to launcher pods)."""
    found = await kube.list(resource, namespace, labels=f"{RUN_LABEL}={run},{INDEX_LABEL}")
    return [
        each
        for each in found
        if not any(
            owner.get("controller") for owner in each["metadata"].get("ownerReferences") or ()
        )
    ]


def _index(body: dict[str, Any]) -> int:
    return int(body["metadata"]["labels"][INDEX_LABEL])


def _submission(body: dict[str, Any], shift: int) -> Submission:
    metadata = body["metadata"]
    due = (metadata.get("annotations") or {}).get(SUBMIT_ANNOTATION) or metadata[
        "creationTimestamp"
    ]
    at = unix_ns(due) - shift
    return Submission(
        _index(body), metadata["name"], metadata["namespace"], at, at, at, metadata["uid"]
    )
