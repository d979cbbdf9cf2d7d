"""Apply the manifests of a queue for a validation, then delete the applied objects."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from perfdag.kube.client import Kube, KubeError
from perfdag.kube.errors import ignore_status
from perfdag.steps.queue.validate.deployment import job_of, mapping_at, scales, starts

POLL_SECONDS = 0.5
OPTIONAL = {"ServiceMonitor", "ScaledObject", "ScaledJob"}
"""Kinds of operators that a validation does not need."""


POD_GRACE = 30
"""Kubernetes' default termination grace in seconds."""
MARGIN = 60.0
"""Seconds that deletion may take beyond the grace of the pods."""


@asynccontextmanager
async def deployed(
    kube: Kube,
    file: str | None,
    namespace: str | None,
    validated: str,
    report: Callable[[str], None],
) -> AsyncIterator[None]:
    """Apply the objects of a YAML file, then delete them in reverse order and wait.

    The wait lasts for the grace of the pods and MARGIN. Remaining objects are reported.
    These objects are reported and not applied: existing ones, scalers of the Deployment
    `validated`, and
    optional kinds that the cluster does not serve.
    Raises ValueError if the file holds no objects, or if an object of an earlier validation does
    not go.
    Raises KubeError if the cluster refuses an object.
    """
    if not file:
        yield
        return
    bodies, applied = _objects(file), list[dict[str, Any]]()
    seconds = max(map(longest_grace, bodies), default=0) + MARGIN
    try:
        for body in bodies:
            why = await _reason_to_skip(kube, body, validated)
            if not why and await _exists(kube, body, namespace, seconds, report):
                why = "which exists already and stays unchanged"
            if why:
                report(f"not applied: {_named(body)}, {why}")
                continue
            applied.append(body)
            await kube.apply(body, None if "namespace" in body["metadata"] else namespace)
        yield
    finally:
        if applied:
            report(f"deleting the {len(applied)} objects that were applied")
        await _remove(kube, list(reversed(applied)), namespace, seconds, report)


async def _remove(
    kube: Kube,
    bodies: list[dict[str, Any]],
    namespace: str | None,
    seconds: float,
    report: Callable[[str], None],
) -> None:
    """Delete all objects, even if some fail, and wait. Raises the first KubeError at the end."""
    refused: list[KubeError] = []
    for body in bodies:
        try:
            await _delete(kube, body, namespace)
        except KubeError as error:
            refused.append(error)
    if refused:
        raise refused[0]
    if left := await _wait_gone(kube, bodies, namespace, seconds):
        report(f"not gone {seconds:g} s after they were deleted: {', '.join(map(_named, left))}")


async def _wait_gone(
    kube: Kube, bodies: list[dict[str, Any]], namespace: str | None, seconds: float
) -> list[dict[str, Any]]:
    """Wait until the objects are gone; return those that remain after `seconds`."""
    end = time.monotonic() + seconds
    left = []
    for body in bodies:
        while await _read(kube, body, namespace):
            if time.monotonic() > end:
                left.append(body)
                break
            await asyncio.sleep(POLL_SECONDS)
    return left


def _named(body: dict[str, Any]) -> str:
    return f"{body['kind']} {body['metadata']['name']}"


def longest_grace(body: dict[str, Any]) -> int:
    """Return the termination grace of an object's pods in seconds, 0 without pods."""
    job = job_of(body) or mapping_at(body, "spec")
    pod = mapping_at(body, "spec") if body["kind"] == "Pod" else mapping_at(job, "template", "spec")
    if not pod:  # the template of another kind may be anything
        return 0
    seconds = pod.get("terminationGracePeriodSeconds")
    return seconds if isinstance(seconds, int) else POD_GRACE  # the API server refuses other types


def _objects(file: str) -> list[dict[str, Any]]:
    import yaml

    try:
        bodies = [body for body in yaml.safe_load_all(Path(file).read_text()) if body]
    except yaml.YAMLError as error:
        raise ValueError(f"{file} is no YAML: {str(error).splitlines()[0]}") from None
    for body in bodies:
        if not isinstance(body, dict) or not {"apiVersion", "kind", "metadata"} <= set(body):
            raise ValueError(
                f"{file} holds a document that is no Kubernetes object; render a file of "
                "queues with: perfdag queue manifests"
            )
        if not isinstance(mapping_at(body, "metadata").get("name"), str):
            raise ValueError(
                f"{file}: a {body['kind']} has no metadata.name; objects that are removed "
                "afterwards need a name"
            )
    return bodies


async def _reason_to_skip(kube: Kube, body: dict[str, Any], validated: str) -> str | None:
    """Return the reason not to apply an object, None if it may be applied."""
    if scales(body, validated) or starts(body, validated):
        return f"which would scale {validated} while it is validated"
    if body["kind"] in OPTIONAL:
        try:
            await kube.resource(body["apiVersion"], body["kind"])
        except KubeError as error:
            if error.reason != "NoKind":
                raise
            return "which the cluster does not serve"
    return None


async def _exists(
    kube: Kube,
    body: dict[str, Any],
    namespace: str | None,
    seconds: float,
    report: Callable[[str], None],
) -> bool:
    """Tell whether an object exists and stays; wait for one that is being deleted.

    Raises ValueError if that one does not go.
    """
    existing = await _read(kube, body, namespace)
    if not existing or not existing["metadata"].get("deletionTimestamp"):
        return existing is not None
    report(f"waiting for {_named(body)}, which is being deleted, to be gone")
    if await _wait_gone(kube, [body], namespace, seconds):
        raise ValueError(
            f"{_named(body)} is being deleted and not gone after {seconds:g} s: remove "
            "what blocks its deletion, then validate again"
        )
    return False


async def _read(kube: Kube, body: dict[str, Any], namespace: str | None) -> dict[str, Any] | None:
    """Return the object of the cluster, None if there is none."""
    resource = await kube.resource(body["apiVersion"], body["kind"])
    with ignore_status(404):
        return await kube.get(
            resource, body["metadata"]["name"], body["metadata"].get("namespace") or namespace
        )
    return None


async def _delete(kube: Kube, body: dict[str, Any], namespace: str | None) -> None:
    with ignore_status(404):
        resource = await kube.resource(body["apiVersion"], body["kind"])
        await kube.delete(
            resource, body["metadata"]["name"], body["metadata"].get("namespace") or namespace
        )
