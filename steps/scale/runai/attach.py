"""Find a submission on the cluster by its run's label, without a run.json."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from perfdag.kube.client import Kube, KubeError, Resource
from perfdag.steps.scale.cluster.removal import deletable_resources
from perfdag.steps.scale.measure.generator import Submission
from perfdag.steps.scale.model.chains import CHAINS, has_no_pods
from perfdag.steps.scale.model.pod_specs import members_of
from perfdag.steps.scale.model.stages import unix_ns
from perfdag.steps.scale.model.templates import INDEX_LABEL, RUN_LABEL, SUBMIT_ANNOTATION
from perfdag.steps.scale.runai.run_file import RunFile
from perfdag.steps.scale.runai.settings import SettingsError


async def find(kube: Kube, run: str, namespace: str | None) -> list[Resource]:
    """Return the kinds of which the run created objects, in one namespace or (None) in all.

    Kinds that may not be listed are skipped. Raises KubeError (404) if there are none.
    """
    kinds = []
    for resource in await deletable_resources(kube):
        try:
            if resource.namespaced and await _created_by_run(kube, resource, run, namespace):
                kinds.append(resource)
        except KubeError as error:
            if error.status not in (403, 404, 405):
                raise
    if not kinds:
        where = f"in the namespace {namespace}" if namespace else "on this cluster"
        raise KubeError(
            404,
            "NoRun",
            f"nothing of run {run} is {where}",
            "a run prints its id when it starts; give its --namespace",
        )
    return kinds


def workload_of(run: str, kinds: list[Resource]) -> Resource:
    """Return the kind that is measured. Raises SettingsError if it is ambiguous."""
    known = (
        [resource for resource in kinds if resource.kind in CHAINS]
        or [resource for resource in kinds if not has_no_pods(resource.api_version, resource.kind)]
        or kinds
    )
    if len(known) > 1:
        names = ", ".join(resource.kind for resource in known)
        raise SettingsError(
            f"run {run} created {names}, and only its run.json tells which is measured: take a "
            "sample with -o and its folder"
        )
    return known[0]


async def attach(kube: Kube, run: str, kinds: list[Resource], namespace: str | None) -> RunFile:
    """Return the objects that the run created and that still exist.

    Refused creations are unknown, and an object counts as sent when it was due. Raises KubeError,
    SettingsError.
    """
    workload = workload_of(run, kinds)
    bodies = sorted(await _created_by_run(kube, workload, run, namespace), key=_index)
    if not bodies:
        raise KubeError(404, "NoRun", f"nothing of run {run} is left")
    shift = time.time_ns() - time.monotonic_ns()
    items = [_submission(body, shift) for body in bodies]
    namespaces = list(dict.fromkeys(item.namespace for item in items))
    project = namespaces[0].removeprefix("runai-")
    members = members_of({**bodies[0], "apiVersion": workload.api_version, "kind": workload.kind})
    others = [(resource.api_version, resource.kind) for resource in kinds if resource != workload]
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
    """Return a reader of all submissions seen so far, in this sample and in earlier ones (`known`).

    Deleted objects stay in the result. The function and its reader raise KubeError (404 if nothing
    was ever seen) and SettingsError.
    """
    seen, kinds = known, [] if known else await find(kube, run, namespace)

    async def read() -> RunFile:
        nonlocal seen
        try:
            if seen:  # keep the kinds: of the remaining ones, another would pass for the workload
                resources = [
                    await kube.resource(*kind)
                    for kind in ((seen.api_version, seen.kind), *seen.others)
                ]
                seen = _merge(seen, await attach(kube, run, resources, namespace))
            else:
                seen = await attach(kube, run, kinds, namespace)
        except KubeError as error:
            if error.status != 404 or not seen:
                raise
        return seen

    return read


def _merge(seen: RunFile, now: RunFile) -> RunFile:
    uids = {item.uid for item in seen.submissions}
    items = [*seen.submissions, *(item for item in now.submissions if item.uid not in uids)]
    namespaces = list(dict.fromkeys([*seen.namespaces, *now.namespaces]))
    return replace(
        seen, namespaces=namespaces, submissions=sorted(items, key=lambda item: item.index)
    )


async def _created_by_run(
    kube: Kube, resource: Resource, run: str, namespace: str | None
) -> list[dict[str, Any]]:
    """Return the objects that the run itself created.

    Controllers may copy labels to the objects they own, as KubeVirt does for launcher pods.
    """
    bodies = await kube.list(resource, namespace, labels=f"{RUN_LABEL}={run},{INDEX_LABEL}")
    return [
        body
        for body in bodies
        if not any(
            owner.get("controller") for owner in body["metadata"].get("ownerReferences") or ()
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
