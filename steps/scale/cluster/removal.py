"""Delete all objects with a run's label and wait until they are gone.

So are the namespaces that a run created because they were missing.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress

from perfdag.kube.client import Kube, KubeError, Object, Resource
from perfdag.kube.config import ignore_status
from perfdag.steps.scale.model.templates import PROBE, RUN_LABEL

PAUSE = 0.3
"""Seconds between two looks."""
DEFAULT_OBJECTS = {("ConfigMap", "kube-root-ca.crt"), ("ServiceAccount", "default")}
"""Objects that Kubernetes puts into every namespace."""
Found = tuple[Resource, Object]
PRIMER, SAMPLE = "primer", "sample"
"""Label suffixes: `<run>-primer`, `<run>-sample`, and `-watch-lag` after each of them. Sizes of a
ladder are `<run>-1`, `<run>-2` ..."""


def belongs(run: str, metadata: Object) -> bool:
    """Whether an object's label is that of a run, or of a part of it."""
    label = (metadata.get("labels") or {}).get(RUN_LABEL) or ""
    return (
        re.fullmatch(rf"{re.escape(run)}(-\d{{1,4}})?(-{PRIMER}|-{SAMPLE})?(-{PROBE})?", label)
        is not None
    )


async def objects_of_run(
    kube: Kube,
    run: str,
    resources: Sequence[Resource],
    namespaces: Sequence[str | None],
    *,
    also: Callable[[Object], bool] | None = None,
) -> list[Found]:
    """Return kind and metadata of all objects of a run and its parts.

    `also` selects objects without the label. Namespace None is the whole cluster. Raises KubeError.
    """
    objects = []
    for resource in resources:
        for namespace in namespaces:
            for body in await kube.list(resource, namespace, labels="" if also else RUN_LABEL):
                if belongs(run, body["metadata"]) or (also and also(body)):
                    objects.append((resource, body["metadata"]))
    return objects


async def remove(
    kube: Kube,
    run: str,
    resources: Sequence[Resource],
    namespaces: Sequence[str | None],
    parallel: int,
    timeout: float,
    *,
    also: Callable[[Object], bool] | None = None,
) -> int:
    """Delete the objects of a run and its parts, and return how many are left after `timeout`.

    `also` selects objects without the label. Namespace None is the whole cluster. A refused
    deletion does not stop the others and is raised at the end as a KubeError.
    """
    deadline = time.monotonic() + timeout
    refused: dict[str, KubeError] = {}
    while True:
        left = await objects_of_run(kube, run, resources, namespaces, also=also)
        over = time.monotonic() > deadline
        still = [
            (item, refused[item[1]["uid"]])
            for item in left
            if refused and item[1]["uid"] in refused
        ]
        if still and (over or len(still) == len(left)):
            raise _named(*still[0], len(left) - 1)
        if not left or over:
            return len(left)
        queue, refused = iter(left), {}

        async def worker(
            queue: Iterator[Found] = queue, refused: dict[str, KubeError] = refused
        ) -> None:
            for item in queue:
                if "deletionTimestamp" not in item[1] and (why := await _refusal(kube, *item)):
                    refused[item[1]["uid"]] = why

        await asyncio.gather(*(worker() for _ in range(max(1, parallel))))
        await asyncio.sleep(PAUSE)


async def _refusal(kube: Kube, resource: Resource, metadata: Object) -> KubeError | None:
    """Delete an object and return the error of a refusal. Raises other KubeErrors."""
    try:
        await kube.delete(resource, metadata["name"], metadata.get("namespace"))
    except KubeError as error:
        if not 400 <= error.status < 500:
            raise
        return error
    return None


def _named(what: Found, error: KubeError, others: int) -> KubeError:
    beside = f" (and {others} more objects are left)" if others else ""
    return KubeError(
        error.status,
        error.reason,
        f"{what[0].kind} {what[1]['name']} was not deleted{beside}: {error}",
    )


async def deletable_resources(kube: Kube) -> list[Resource]:
    """All kinds of the cluster that can be listed and deleted by us. Raises KubeError."""
    groups = (await kube.request("GET", "/apis"))["groups"]
    versions = ["v1", *(group["preferredVersion"]["groupVersion"] for group in groups)]
    resources = []
    for version in versions:
        path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        with suppress(KubeError):  # an API service that is down serves nothing of ours
            for kind in (await kube.request("GET", path))["resources"]:
                if (
                    "/" not in kind["name"]
                    and {"list", "delete"} <= set(kind.get("verbs") or ())
                    and kind["kind"] != "Event"
                ):
                    resources.append(
                        Resource(version, kind["kind"], kind["name"], kind["namespaced"])
                    )
    return resources


async def remove_run(
    kube: Kube,
    run: str,
    namespace: str | None,
    parallel: int,
    timeout: float,
    log: Callable[[str], None] = lambda text: None,
) -> int:
    """Delete all objects of a run and its parts, of any kind, and the run's own namespaces.

    Kinds that may not be listed are skipped. Returns how many objects are left after `timeout`
    seconds. Raises KubeError.
    """
    resources, namespaces, deadline = [], list[str](), time.monotonic() + timeout
    for resource in await deletable_resources(kube):
        if namespace and not resource.namespaced:
            continue
        if resource.kind == "Namespace":
            with suppress(KubeError):  # who may not list namespaces made none
                namespaces = [
                    body["metadata"]["name"] for body in await kube.list(resource, labels=RUN_LABEL)
                ]
            continue
        with ignore_status(403, 404, 405):
            if any(
                belongs(run, body["metadata"])
                for body in await kube.list(resource, namespace, labels=RUN_LABEL)
            ):
                resources.append(resource)
    left = await remove(kube, run, resources, [namespace], parallel, timeout)
    return left or await remove_namespaces(
        kube, run, namespaces, max(0.0, deadline - time.monotonic()), log
    )


async def remove_namespaces(
    kube: Kube,
    run: str,
    names: Sequence[str],
    timeout: float,
    log: Callable[[str], None] = lambda text: None,
) -> int:
    """Delete the run's own namespaces, except those that hold other objects, and wait.

    Returns how many are left after `timeout` seconds. Raises KubeError.
    """
    going = []
    for name in names:
        namespace = None
        with ignore_status(403):  # who may not see a namespace made none
            namespace = await namespace_of(kube, name)
        if namespace and belongs(run, namespace["metadata"]):
            if other := await _other_in(kube, run, name):
                log(f"the namespace {name}, which was made for this run, stays: {other}")
            else:
                going.append(name)
    namespaces = await kube.resource("v1", "Namespace")
    for name in going:
        await kube.delete(namespaces, name)
    deadline = time.monotonic() + timeout
    while left := [name for name in going if await namespace_of(kube, name)]:
        if time.monotonic() >= deadline:
            break
        await asyncio.sleep(0.2)
    return len(left)


async def _other_in(kube: Kube, run: str, namespace: str) -> str:
    """Describe an object in a namespace that is not the run's, or return an empty string.

    Objects with a listed owner are skipped, because they go with it.
    """
    kinds, objects = await deletable_resources(kube), list[tuple[str, Object]]()
    for resource in [resource for resource in kinds if resource.namespaced]:
        try:
            objects += [
                (resource.kind, body["metadata"]) for body in await kube.list(resource, namespace)
            ]
        except KubeError as error:
            if error.status == 403:
                return f"we may not list {resource.plural} in it"
            if error.status not in (404, 405):
                raise
    listed = {resource.kind for resource in kinds if resource.namespaced}
    for kind, metadata in objects:
        owned = any(owner["kind"] in listed for owner in metadata.get("ownerReferences") or [])
        if not (
            owned
            or "deletionTimestamp" in metadata
            or belongs(run, metadata)
            or (kind, metadata["name"]) in DEFAULT_OBJECTS
        ):
            return f"{kind} {metadata['name']} is in it"
    return ""


async def namespace_of(kube: Kube, name: str) -> Object | None:
    """Return a namespace, or None if it does not exist. Raises KubeError."""
    with ignore_status(404):
        return await kube.get(await kube.resource("v1", "Namespace"), name)
    return None


async def namespace_stays(kube: Kube, name: str) -> bool:
    """Return whether a namespace exists and is not being deleted. Raises KubeError."""
    with ignore_status(403):
        body = await namespace_of(kube, name)
        return body is not None and "deletionTimestamp" not in body["metadata"]
    return True


DELETION_PATIENCE = 120.0
"""Seconds to wait for a namespace of an earlier run to be gone."""


@asynccontextmanager
async def own_namespaces(kube: Kube, names: Sequence[str], run: str) -> AsyncIterator[None]:
    """Create missing namespaces, and delete these at the end. Raises KubeError."""
    created: list[str] = []
    try:
        for name in names:
            if await ensure_namespace(kube, name, run):
                created.append(name)
        yield
    finally:
        namespaces = await kube.resource("v1", "Namespace")
        for name in created:
            with suppress(KubeError):
                await kube.delete(namespaces, name)


async def ensure_namespace(
    kube: Kube, name: str, run: str, patience: float = DELETION_PATIENCE
) -> bool:
    """Create a namespace if it is missing, and return whether it was created.

    Waits up to `patience` seconds for a namespace that is being deleted. Raises KubeError.
    """
    deadline = time.monotonic() + patience
    while namespace := await namespace_of(kube, name):
        if not namespace["metadata"].get("deletionTimestamp"):
            return False
        if time.monotonic() >= deadline:
            why = [
                condition["message"]
                for condition in namespace["status"].get("conditions") or []
                if condition["status"] == "True"
            ]
            text = f"namespace {name} is still being deleted after {patience:g} s"
            text += f": {'; '.join(why)}" if why else ""
            raise KubeError(
                0,
                "Terminating",
                " ".join(text.split()),
                "wait for it, fix what blocks it, or use another namespace",
            )
        await asyncio.sleep(0.2)
    try:
        await kube.create(
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": name, "labels": {RUN_LABEL: run}},
            }
        )
    except KubeError as error:
        if error.reason != "AlreadyExists":
            raise
        return False  # another run created it, and deletes it
    accounts = await kube.resource("v1", "ServiceAccount")
    for _ in range(100):  # pods are refused until the controller has created the account
        with suppress(KubeError):
            await kube.get(accounts, "default", name)
            break
        await asyncio.sleep(0.05)
    return True
