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
Object = dict[str, Any]
PRIMER, SAMPLE = "primer", "sample"
"""What labels of a run's parts end with: `<run>-primer`, `<run>-sample`; sizes of a ladder are `<run>-1`, `<run>-2` ..."""


def belongs(run: str, metadata: Object) -> bool:
    """Whether an object's label is that of a run, or of a part of it."""
    label = (metadata.get("labels") or {}).get(RUN_LABEL) or ""
    return re.fullmatch(rf"{re.escape(run)}(-\d{{1,4}})?(-{PRIMER}|-{SAMPLE})?", label) is not None


async def there(
    kube: Kube, run: str, resources: Sequence[Resource], namespaces: Sequence[str | None], *, also: Callable[[Object], bool] | None = None
) -> list[tuple[Resource, Object]]:
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

    Returns how many are left after `timeout` seconds.

    Namespace None is the whole cluster. Raises KubeError.
    """
    deadline = time.monotonic() + timeout
    while True:
        left = await there(kube, run, resources, namespaces, also=also)
        if not left or time.monotonic() > deadline:
            return len(left)
        queue = iter(left)

        async def worker(queue: Iterator[tuple[Resource, Object]] = queue) -> None:
            for resource, metadata in queue:
                if "deletionTimestamp" not in metadata:
                    await kube.delete(resource, metadata["name"], metadata.get("namespace"))

        await asyncio.gather(*(worker() for _ in range(max(1, parallel))))
        await asyncio.sleep(PAUSE)


async def everything(kube: Kube) -> list[Resource]:
    """All kinds of the cluster that can be listed and deleted by us. Raises KubeError."""
    groups = (await kube.request("GET", "/apis"))["groups"]
    versions = ["v1", *(each["preferredVersion"]["groupVersion"] for each in groups)]
    found = []
    for version in versions:
        path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        with suppress(KubeError):  # an API service that is down serves nothing of ours
            for each in (await kube.request("GET", path))["resources"]:
                if "/" not in each["name"] and {"list", "delete"} <= set(each["verbs"]) and each["kind"] != "Event":
                    found.append(Resource(version, each["kind"], each["name"], each["namespaced"]))
    return found


async def remove_run(kube: Kube, run: str, namespace: str | None, parallel: int, timeout: float) -> int:
    """Delete all that carries the label of a run or of a part of it, of any kind, in one namespace or (None) everywhere, namespaces too.

    Kinds that we may not list are left out. Returns how many objects are left after `timeout` seconds. Raises KubeError.
    """
    there = []
    for resource in await everything(kube):
        if namespace and not resource.namespaced:
            continue
        try:
            if any(belongs(run, each["metadata"]) for each in await kube.list(resource, namespace, labels=RUN_LABEL)):
                there.append(resource)
        except KubeError as error:
            if error.status not in (403, 404, 405):
                raise
    return await remove(kube, run, there, [namespace], parallel, timeout)
