"""Apply the manifests of a queue for the time of a validation, and remove what was applied."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfdag.steps.queue.targets import scales

if TYPE_CHECKING:
    from perfdag.kube import Kube


OPTIONAL = {"ServiceMonitor", "ScaledObject"}
"""Kinds of operators that a validation works without."""


@asynccontextmanager
async def deployed(kube: Kube, file: str | None, namespace: str | None, validated: str, say: Callable[[str], None]) -> AsyncIterator[None]:
    """Apply the objects of a YAML file, then delete those that were not there before, last first. Left out, and said so: what would scale
    the Deployment ``validated``, and optional kinds that the cluster does not serve.

    Raises ValueError where the file is no YAML list of objects, KubeError where the cluster refuses one.
    """
    if not file:
        yield
        return
    made: list[dict[str, Any]] = []
    try:
        for body in _objects(file):
            if why := await _left_out(kube, body, validated):
                say(f"not applied: {body['kind']} {body['metadata']['name']}, {why}")
                continue
            if not await _there(kube, body, namespace):
                made.append(body)
            await kube.apply(body, None if "namespace" in body["metadata"] else namespace)
        yield
    finally:
        for body in reversed(made):
            await _delete(kube, body, namespace)


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


async def _left_out(kube: Kube, body: dict[str, Any], validated: str) -> str | None:
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
    return None


async def _there(kube: Kube, body: dict[str, Any], namespace: str | None) -> bool:
    from perfdag.kube import KubeError

    resource = await kube.resource(body["apiVersion"], body["kind"])
    try:
        await kube.get(resource, body["metadata"]["name"], body["metadata"].get("namespace") or namespace)
    except KubeError as error:
        if error.status != 404:
            raise
        return False
    return True


async def _delete(kube: Kube, body: dict[str, Any], namespace: str | None) -> None:
    from perfdag.kube import KubeError

    try:
        resource = await kube.resource(body["apiVersion"], body["kind"])
        await kube.delete(resource, body["metadata"]["name"], body["metadata"].get("namespace") or namespace)
    except KubeError as error:
        if error.status != 404:
            raise
