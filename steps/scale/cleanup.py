"""Delete all objects with a run's label and wait until they are gone.

So are the namespaces that a run created because they were missing.
"""

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from perfdag.kube.client import Kube, KubeError, Object, Resource
from perfdag.kube.config import ignore_status
from perfdag.steps.scale.objects import RUN_LABEL
from perfdag.steps.scale.watch import PROBE

PRIMER, SAMPLE = "primer", "sample"
"""Label suffixes of what runs before the measurement, and of what a sample makes. Sizes of a ladder
are `<run>-1`, `<run>-2` ..."""
PARALLEL = 20
"""Deletions in flight."""
POLL_S = 0.3
NAMESPACE_TIMEOUT_S = 120.0
"""How long a namespace of an earlier run may take to be gone."""
_DEFAULT_OBJECTS = {("ConfigMap", "kube-root-ca.crt"), ("ServiceAccount", "default")}
"""Objects that Kubernetes puts into every namespace."""
logger = logging.getLogger(__name__)
Found = tuple[Resource, Object]


def belongs(run: str, metadata: Object) -> bool:
    """Whether an object's label is that of a run, or of a part of it."""
    label = (metadata.get("labels") or {}).get(RUN_LABEL) or ""
    part = rf"{re.escape(run)}(-\d{{1,4}})?(-{PRIMER}|-{SAMPLE})?(-{PROBE})?"
    return re.fullmatch(part, label) is not None


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
    return [
        (resource, body["metadata"])
        for resource in resources
        for namespace in namespaces
        for body in await kube.list(resource, namespace, labels="" if also else RUN_LABEL)
        if belongs(run, body["metadata"]) or (also and also(body))
    ]


async def remove(
    kube: Kube,
    run: str,
    resources: Sequence[Resource],
    namespaces: Sequence[str | None],
    timeout: float,
    *,
    also: Callable[[Object], bool] | None = None,
) -> int:
    """Delete the objects of a run and its parts, and return how many are left after `timeout`.

    `also` selects objects without the label. Namespace None is the whole cluster. A refused
    deletion does not stop the others and is raised at the end as a KubeError.
    """
    deadline, slots = time.monotonic() + timeout, asyncio.Semaphore(PARALLEL)

    async def refusal(resource: Resource, metadata: Object) -> KubeError | None:
        if "deletionTimestamp" in metadata:
            return None
        try:
            async with slots:
                await kube.delete(resource, metadata["name"], metadata.get("namespace"))
        except KubeError as error:
            if not 400 <= error.status < 500:
                raise
            text = f"{resource.kind} {metadata['name']} was not deleted: {error}"
            return KubeError(error.status, error.reason, text)
        return None

    refused: list[KubeError] = []
    while left := await objects_of_run(kube, run, resources, namespaces, also=also):
        over = time.monotonic() > deadline
        if refused and (over or len(refused) == len(left)):
            raise refused[0]
        if over:
            break
        refused = [why for why in await asyncio.gather(*(refusal(*item) for item in left)) if why]
        await asyncio.sleep(POLL_S)
    return len(left)


async def _deletable_resources(kube: Kube) -> list[Resource]:
    """All kinds of the cluster that can be listed and deleted by us. Raises KubeError."""
    groups = (await kube.request("GET", "/apis"))["groups"]
    versions = ["v1", *(group["preferredVersion"]["groupVersion"] for group in groups)]
    resources = []
    for version in versions:
        path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        with suppress(KubeError):  # an API service that is down serves nothing of ours
            resources += [
                Resource(version, kind["kind"], kind["name"], kind["namespaced"])
                for kind in (await kube.request("GET", path))["resources"]
                if "/" not in kind["name"]
                and {"list", "delete"} <= set(kind.get("verbs") or ())
                and kind["kind"] != "Event"
            ]
    return resources


async def remove_run(kube: Kube, run: str, namespace: str | None, timeout: float) -> int:
    """Delete all objects of a run and its parts, of any kind, and the run's own namespaces.

    Kinds that may not be listed are skipped. Returns how many objects are left after `timeout`
    seconds. Raises KubeError.
    """
    resources, namespaces, deadline = [], list[str](), time.monotonic() + timeout
    for resource in await _deletable_resources(kube):
        if namespace and not resource.namespaced:
            continue
        with ignore_status(403, 404, 405):
            bodies = await kube.list(resource, namespace, labels=RUN_LABEL)
            ours = [body["metadata"] for body in bodies if belongs(run, body["metadata"])]
            if ours and resource.kind == "Namespace":
                namespaces = [metadata["name"] for metadata in ours]
            elif ours:
                resources.append(resource)
    left = await remove(kube, run, resources, [namespace], timeout)
    return left or await remove_namespaces(
        kube, run, namespaces, max(0.0, deadline - time.monotonic())
    )


async def remove_namespaces(kube: Kube, run: str, names: Sequence[str], timeout: float) -> int:
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
                logger.warning(f"the namespace {name}, which was made for this run, stays: {other}")
            else:
                going.append(name)
    namespaces = await kube.resource("v1", "Namespace")
    for name in going:
        await kube.delete(namespaces, name)
    deadline = time.monotonic() + timeout
    while left := [name for name in going if await namespace_of(kube, name)]:
        if time.monotonic() >= deadline:
            break
        await asyncio.sleep(POLL_S)
    return len(left)


async def _other_in(kube: Kube, run: str, namespace: str) -> str:
    """Describe an object in a namespace that is not the run's, or return an empty string.

    Objects with a listed owner are skipped, because they go with it.
    """
    kinds = [kind for kind in await _deletable_resources(kube) if kind.namespaced]
    listed = {kind.kind for kind in kinds}
    for resource in kinds:
        bodies = list[Object]()
        try:
            bodies = await kube.list(resource, namespace)
        except KubeError as error:
            if error.status == 403:
                return f"we may not list {resource.plural} in it"
            if error.status not in (404, 405):
                raise
        for metadata in [body["metadata"] for body in bodies]:
            if not (
                any(owner["kind"] in listed for owner in metadata.get("ownerReferences") or [])
                or "deletionTimestamp" in metadata
                or belongs(run, metadata)
                or (resource.kind, metadata["name"]) in _DEFAULT_OBJECTS
            ):
                return f"{resource.kind} {metadata['name']} is in it"
    return ""


async def namespace_of(kube: Kube, name: str) -> Object | None:
    """Return a namespace, or None if it does not exist. Raises KubeError."""
    with ignore_status(404):
        return await kube.get(await kube.resource("v1", "Namespace"), name)
    return None


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
    kube: Kube, name: str, run: str, timeout: float = NAMESPACE_TIMEOUT_S
) -> bool:
    """Create a namespace if it is missing, and return whether it was created.

    Waits up to `timeout` seconds for a namespace that is being deleted. Raises KubeError.
    """
    deadline = time.monotonic() + timeout
    while namespace := await namespace_of(kube, name):
        if not namespace["metadata"].get("deletionTimestamp"):
            return False
        if time.monotonic() >= deadline:
            conditions = namespace["status"].get("conditions") or []
            why = "; ".join(item["message"] for item in conditions if item["status"] == "True")
            text = f"namespace {name} is still being deleted after {timeout:g} s"
            hint = "wait for it, fix what blocks it, or use another namespace"
            raise KubeError(0, "Terminating", f"{text}: {why}" if why else text, hint)
        await asyncio.sleep(POLL_S)
    metadata = {"name": name, "labels": {RUN_LABEL: run}}
    try:
        await kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
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
