"""Apply the manifests of a queue for the time of a validation, and remove what was applied."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfdag.steps.queue.targets import scales

if TYPE_CHECKING:
    from perfdag.kube import Kube


OPTIONAL = {"ServiceMonitor", "ScaledObject"}
"""Kinds of operators that a validation works without."""


GONE_SECONDS = 60.0
"""How long an object that is deleted may take to be gone."""


@asynccontextmanager
async def deployed(kube: Kube, file: str | None, namespace: str | None, validated: str, say: Callable[[str], None]) -> AsyncIterator[None]:
    """Apply the objects of a YAML file, then delete them, last first, and wait until they are gone. Left out, and said so: what is there
    already, what would scale the Deployment ``validated``, and optional kinds that the cluster does not serve.

    Raises ValueError where the file is no YAML list of objects, KubeError where the cluster refuses one.
    """
    if not file:
        yield
        return
    made: list[dict[str, Any]] = []
    try:
        for body in _objects(file):
            if why := await _left_out(kube, body, namespace, validated):
                say(f"not applied: {body['kind']} {body['metadata']['name']}, {why}")
                continue
            made.append(body)
            await kube.apply(body, None if "namespace" in body["metadata"] else namespace)
        yield
    finally:
        await _remove(kube, list(reversed(made)), namespace)


async def _remove(kube: Kube, bodies: list[dict[str, Any]], namespace: str | None) -> None:
    """Delete each, whatever becomes of the others, and wait; raises the first KubeError at the end."""
    from perfdag.kube import KubeError

    refused: list[KubeError] = []
    for body in bodies:
        try:
            await _delete(kube, body, namespace)
        except KubeError as error:
            refused.append(error)
    if refused:
        raise refused[0]
    await _gone(kube, bodies, namespace)


async def _gone(kube: Kube, bodies: list[dict[str, Any]], namespace: str | None) -> None:
    end = time.monotonic() + GONE_SECONDS
    for body in bodies:
        while await _there(kube, body, namespace) and time.monotonic() < end:
            await asyncio.sleep(0.5)


def _objects(file: str) -> list[dict[str, Any]]:
    import yaml

    try:
        bodies = [body for body in yaml.safe_load_all(Path(file).read_text()) if body]
    except yaml.YAMLError as error:
        raise ValueError(f"{file} is no YAML: {str(error).splitlines()[0]}") from None
    for body in bodies:
        if not isinstance(body, dict) or not {"apiVersion", "kind", "metadata"} <= set(body):
            raise ValueError(
                f"{file} holds something that is no Kubernetes object; a file of queues is rendered by: perfdag queue manifests"
            )
    return bodies


async def _left_out(kube: Kube, body: dict[str, Any], namespace: str | None, validated: str) -> str | None:
    """Why an object is not applied; None where it is."""
    from perfdag.kube import KubeError

    if scales(body, validated):
        return f"which would scale {validated} while it is validated"
    if body["kind"] in OPTIONAL:
        try:
            await kube.resource(body["apiVersion"], body["kind"])
        except KubeError as error:
            if error.reason != "NoKind":
                raise
            return "which the cluster does not serve"
    found = await _there(kube, body, namespace)
    if found and found["metadata"].get("deletionTimestamp"):  # of a validation before
        await _gone(kube, [body], namespace)
        found = await _there(kube, body, namespace)
    return "which is there already and stays as it is" if found else None


async def _there(kube: Kube, body: dict[str, Any], namespace: str | None) -> dict[str, Any] | None:
    """The object as the cluster has it; None: it has none."""
    from perfdag.kube import KubeError

    resource = await kube.resource(body["apiVersion"], body["kind"])
    try:
        return await kube.get(resource, body["metadata"]["name"], body["metadata"].get("namespace") or namespace)
    except KubeError as error:
        if error.status != 404:
            raise
        return None


async def _delete(kube: Kube, body: dict[str, Any], namespace: str | None) -> None:
    from perfdag.kube import KubeError

    try:
        resource = await kube.resource(body["apiVersion"], body["kind"])
        await kube.delete(resource, body["metadata"]["name"], body["metadata"].get("namespace") or namespace)
    except KubeError as error:
        if error.status != 404:
            raise
