"""A submission found again on the cluster by its run's label, where no run.json tells of it."""

import time
from typing import Any

from perfdag.kube import Kube, KubeError, Resource
from perfdag.steps.scale.chains import CHAINS, NO_PODS
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
            if resource.namespaced and await kube.list(resource, namespace, labels=_ours(run)):
                found.append(resource)
        except KubeError as error:
            if error.status not in (403, 404, 405):
                raise
    if not found:
        where = f"in the namespace {namespace}" if namespace else "on this cluster"
        raise KubeError(
            404, "NoRun", f"nothing of run {run} is {where}", "the id is said when a run starts; give --namespace where it may be"
        )
    return found


def workload_of(run: str, kinds: list[Resource]) -> Resource:
    """The kind that is measured. Raises SettingsError where that cannot be told."""
    known = [each for each in kinds if each.kind in CHAINS] or [each for each in kinds if each.kind not in NO_PODS] or kinds
    if len(known) > 1:
        names = ", ".join(each.kind for each in known)
        raise SettingsError(f"run {run} created {names}; which is measured is in its run.json: take a sample with -o and its folder")
    return known[0]


async def attach(kube: Kube, run: str, kinds: list[Resource], namespace: str | None) -> RunFile:
    """What the run created and is still there. What was refused is not known, and an object counts as sent when it was due.

    Raises KubeError, SettingsError.
    """
    workload = workload_of(run, kinds)
    bodies = sorted(await kube.list(workload, namespace, labels=_ours(run)), key=_index)
    if not bodies:
        raise KubeError(404, "NoRun", f"nothing of run {run} is left")
    shift = time.time_ns() - time.monotonic_ns()
    items = [_submission(body, shift) for body in bodies]
    namespaces = list(dict.fromkeys(item.namespace for item in items))
    project = namespaces[0].removeprefix("runai-")
    members = members_of({**bodies[0], "apiVersion": workload.api_version, "kind": workload.kind})
    others = [(each.api_version, each.kind) for each in kinds if each != workload]
    file = RunFile(run, workload.api_version, workload.kind, namespaces, project, members or 1, members, True, items, {}, others)
    file.attached = True
    return file


def _ours(run: str) -> str:
    return f"{RUN_LABEL}={run},{INDEX_LABEL}"


def _index(body: dict[str, Any]) -> int:
    return int(body["metadata"]["labels"][INDEX_LABEL])


def _submission(body: dict[str, Any], shift: int) -> Submission:
    metadata = body["metadata"]
    due = (metadata.get("annotations") or {}).get(SUBMIT_ANNOTATION) or metadata["creationTimestamp"]
    at = unix_ns(due) - shift
    return Submission(_index(body), metadata["name"], metadata["namespace"], at, at, at, metadata["uid"])
