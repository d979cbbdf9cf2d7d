"""Deleting what carries a run's label, until none of it is left: also what was sent and whose answer never came."""

import asyncio
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from perfdag.kube import Kube, KubeError, Resource
from perfdag.steps.scale.templates import RUN_LABEL

PAUSE = 0.3
"""Seconds between two looks."""
IN_EACH = {("ConfigMap", "kube-root-ca.crt"), ("ServiceAccount", "default")}
"""What Kubernetes puts into each namespace."""
NOT_CLOSED, TRIES = "losed", 40
"""What Volcano's webhook says where a queue is to be closed first, and how often what it refused is tried, a pause between: its scheduler must
have seen that the queue is empty."""
Object = dict[str, Any]
Found = tuple[Resource, Object]
PRIMER, SAMPLE = "primer", "sample"
"""What labels of a run's parts end with: `<run>-primer`, `<run>-sample`; sizes of a ladder are `<run>-1`, `<run>-2` ..."""


def belongs(run: str, metadata: Object) -> bool:
    """Whether an object's label is that of a run, or of a part of it."""
    label = (metadata.get("labels") or {}).get(RUN_LABEL) or ""
    return re.fullmatch(rf"{re.escape(run)}(-\d{{1,4}})?(-{PRIMER}|-{SAMPLE})?", label) is not None


async def there(
    kube: Kube,
    run: str,
    resources: Sequence[Resource],
    namespaces: Sequence[str | None],
    *,
    also: Callable[[Object], bool] | None = None,
) -> list[Found]:
    """What is there of a run and of its parts: kind and metadata of the objects with its label, and of those that `also` holds for.

    Namespace None is the whole cluster. Raises KubeError.
    """
    found = []
    for resource in resources:
        for namespace in namespaces:
            for each in await kube.list(resource, namespace, labels="" if also else RUN_LABEL):
                if belongs(run, each["metadata"]) or (also and also(each)):
                    found.append((resource, each["metadata"]))
    return found


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
    """Delete the objects of a run and of its parts, of these kinds, and those that `also` holds for, and wait.

    Returns how many are left after `timeout` seconds. One whose deletion is refused keeps nobody from deleting the others.

    Namespace None is the whole cluster. Raises KubeError; of a refusal when nothing else is left or the time is up, naming the object.
    """
    deadline, tries = time.monotonic() + timeout, 0
    refused: dict[str, KubeError] = {}
    while True:
        left = await there(kube, run, resources, namespaces, also=also)
        over = time.monotonic() > deadline
        still = [
            (each, refused[each[1]["uid"]])
            for each in left
            if refused and each[1]["uid"] in refused
        ]
        tries = tries + 1 if still else 0
        enough = TRIES if any(NOT_CLOSED in str(error) for _, error in still) else 1
        if still and (over or (tries >= enough and len(still) == len(left))):
            raise _named(*still[0], len(left) - 1)
        if not left or over:
            return len(left)
        queue, refused = iter(left), {}

        async def worker(
            queue: Iterator[Found] = queue, refused: dict[str, KubeError] = refused
        ) -> None:
            for each in queue:
                if "deletionTimestamp" not in each[1] and (why := await _refusal(kube, *each)):
                    refused[each[1]["uid"]] = why

        await asyncio.gather(*(worker() for _ in range(max(1, parallel))))
        await asyncio.sleep(PAUSE)


async def _refusal(kube: Kube, resource: Resource, metadata: Object) -> KubeError | None:
    """Delete an object; why that was refused, or None. Raises KubeError of what is not about this object."""
    try:
        await kube.delete(resource, metadata["name"], metadata.get("namespace"))
    except KubeError as error:
        if not 400 <= error.status < 500:
            raise
        if NOT_CLOSED in str(error):
            with suppress(KubeError):  # the next deletion tells
                await close_queue(kube, resource, metadata["name"])
        return error
    return None


def _named(what: Found, error: KubeError, others: int) -> KubeError:
    beside = f" (and {others} more objects are left)" if others else ""
    return KubeError(
        error.status,
        error.reason,
        f"{what[0].kind} {what[1]['name']} was not deleted{beside}: {error}",
    )


async def close_queue(kube: Kube, resource: Resource, name: str) -> None:
    """Ask Volcano to close a queue; raises KubeError where that was asked before, or this Volcano has no Commands."""
    there = await kube.get(resource, name)
    target = {
        "apiVersion": resource.api_version,
        "kind": "Queue",
        "name": name,
        "uid": there["metadata"]["uid"],
        "controller": True,
    }
    command = {
        "apiVersion": "bus.volcano.sh/v1alpha1",
        "kind": "Command",
        "metadata": {"name": f"close-{name}"},
    }
    await kube.create(command | {"action": "CloseQueue", "target": target})


async def everything(kube: Kube) -> list[Resource]:
    """All kinds of the cluster that can be listed and deleted by us. Raises KubeError."""
    groups = (await kube.request("GET", "/apis"))["groups"]
    versions = ["v1", *(each["preferredVersion"]["groupVersion"] for each in groups)]
    found = []
    for version in versions:
        path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        with suppress(KubeError):  # an API service that is down serves nothing of ours
            for each in (await kube.request("GET", path))["resources"]:
                if (
                    "/" not in each["name"]
                    and {"list", "delete"} <= set(each["verbs"])
                    and each["kind"] != "Event"
                ):
                    found.append(Resource(version, each["kind"], each["name"], each["namespaced"]))
    return found


async def remove_run(
    kube: Kube,
    run: str,
    namespace: str | None,
    parallel: int,
    timeout: float,
    tell: Callable[[str], None] = lambda text: None,
) -> int:
    """Delete all that carries the label of a run or of a part of it, of any kind, in one namespace or (None) everywhere, with the namespaces
    that were made for it (remove_namespaces).

    Kinds that we may not list are left out. Returns how many objects are left after `timeout` seconds. Raises KubeError.
    """
    there, made, deadline = [], list[str](), time.monotonic() + timeout
    for resource in await everything(kube):
        if namespace and not resource.namespaced:
            continue
        if resource.kind == "Namespace":
            with suppress(KubeError):  # who may not list namespaces made none
                made = [
                    each["metadata"]["name"] for each in await kube.list(resource, labels=RUN_LABEL)
                ]
            continue
        try:
            if any(
                belongs(run, each["metadata"])
                for each in await kube.list(resource, namespace, labels=RUN_LABEL)
            ):
                there.append(resource)
        except KubeError as error:
            if error.status not in (403, 404, 405):
                raise
    left = await remove(kube, run, there, [namespace], parallel, timeout)
    return left or await remove_namespaces(
        kube, run, made, max(0.0, deadline - time.monotonic()), tell
    )


async def remove_namespaces(
    kube: Kube,
    run: str,
    names: Sequence[str],
    timeout: float,
    tell: Callable[[str], None] = lambda text: None,
) -> int:
    """Delete those of the namespaces that were made for a run and hold nothing of anybody else, and wait; why another stays is told.

    Returns how many are left after `timeout` seconds. Raises KubeError.
    """
    going = []
    for name in names:
        try:
            there = await namespace_of(kube, name)
        except KubeError as error:
            if error.status != 403:
                raise
            continue  # who may not see a namespace made none
        if there and belongs(run, there["metadata"]):
            if other := await _other_in(kube, run, name):
                tell(f"the namespace {name}, which was made for this run, stays: {other}")
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
    """What in a namespace is not of the run, or why that is not known; nothing where all is. What another run made may have no label.

    What has owners is judged by those of them that may be listed: it goes when they are gone.
    """
    kinds, there = await everything(kube), list[tuple[str, Object]]()
    for resource in [each for each in kinds if each.namespaced]:
        try:
            there += [
                (resource.kind, each["metadata"]) for each in await kube.list(resource, namespace)
            ]
        except KubeError as error:
            if error.status == 403:
                return f"we may not list {resource.plural} in it"
            if error.status not in (404, 405):
                raise
    listed = {each.kind for each in kinds if each.namespaced}
    for kind, metadata in there:
        owned = any(owner["kind"] in listed for owner in metadata.get("ownerReferences") or [])
        if not (
            owned
            or "deletionTimestamp" in metadata
            or belongs(run, metadata)
            or (kind, metadata["name"]) in IN_EACH
        ):
            return f"{kind} {metadata['name']} is in it"
    return ""


async def namespace_of(kube: Kube, name: str) -> Object | None:
    """A namespace; None where there is none. Raises KubeError."""
    try:
        return await kube.get(await kube.resource("v1", "Namespace"), name)
    except KubeError as error:
        if error.status != 404:
            raise
        return None


async def stays(kube: Kube, name: str) -> bool:
    """Whether a namespace is there and not being deleted; one that we may not see stays. Raises KubeError."""
    try:
        found = await namespace_of(kube, name)
    except KubeError as error:
        if error.status != 403:
            raise
        return True
    return found is not None and "deletionTimestamp" not in found["metadata"]
