"""Apply the manifests of a queue for the time of a validation, and remove what was applied."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdag.kube import Kube


@asynccontextmanager
async def deployed(kube: Kube, file: str | None, namespace: str | None) -> AsyncIterator[None]:
    """Apply the objects of a YAML file, then delete those that were not there before, last first.

    Raises ValueError where the file is no YAML list of objects, KubeError where the cluster refuses one.
    """
    if not file:
        yield
        return
    made: list[dict[str, Any]] = []
    try:
        for body in _objects(file):
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
            raise ValueError(f"{file} holds something that is no Kubernetes object")
    return bodies


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
