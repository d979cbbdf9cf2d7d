"""Apply the manifests of a queue for the time of a validation, and remove what was applied."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfdag.steps.queue.deployment import scales, starts, within

if TYPE_CHECKING:
    from perfdag.kube import Kube


LOOK_SECONDS = 0.5
OPTIONAL = {"ServiceMonitor", "ScaledObject"}
"""Kinds of operators that a validation works without."""


POD_GRACE = 30
"""Seconds of termination grace that a pod has which names none."""
MARGIN = 60.0
"""How long objects may take to be gone beyond the grace of their pods: that runs out only where a pod does not end by itself."""


@asynccontextmanager
async def deployed(
    kube: Kube, file: str | None, namespace: str | None, validated: str, say: Callable[[str], None]
) -> AsyncIterator[None]:
    """Apply the objects of a YAML file, then delete them, last first, and wait until they are gone, as long as the grace of their pods and
    MARGIN; what is not gone then is said. Left out, and said so: what is there already, what would scale the Deployment ``validated``,
    and optional kinds that the cluster does not serve.

    Raises ValueError where the file is no YAML list of objects, or one of a validation before does not go; KubeError where the cluster
    refuses one.
    """
    if not file:
        yield
        return
    bodies, made = _objects(file), list[dict[str, Any]]()
    seconds = max(map(_grace, bodies), default=0) + MARGIN
    try:
        for body in bodies:
            why = await _left_out(kube, body, validated)
            if not why and await _stays(kube, body, namespace, seconds, say):
                why = "which is there already and stays as it is"
            if why:
                say(f"not applied: {_named(body)}, {why}")
                continue
            made.append(body)
            await kube.apply(body, None if "namespace" in body["metadata"] else namespace)
        yield
    finally:
        if made:
            say(f"deleting the {len(made)} objects that were applied")
        await _remove(kube, list(reversed(made)), namespace, seconds, say)


async def _remove(
    kube: Kube,
    bodies: list[dict[str, Any]],
    namespace: str | None,
    seconds: float,
    say: Callable[[str], None],
) -> None:
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
    if left := await _left(kube, bodies, namespace, seconds):
        say(f"not gone {seconds:g} s after they were deleted: {', '.join(map(_named, left))}")


async def _left(
    kube: Kube, bodies: list[dict[str, Any]], namespace: str | None, seconds: float
) -> list[dict[str, Any]]:
    """Wait until they are gone; returns those that were not in so many seconds."""
    end = time.monotonic() + seconds
    left = []
    for body in bodies:
        while await _there(kube, body, namespace):
            if time.monotonic() > end:
                left.append(body)
                break
            await asyncio.sleep(LOOK_SECONDS)
    return left


def _named(body: dict[str, Any]) -> str:
    return f"{body['kind']} {body['metadata']['name']}"


def _grace(body: dict[str, Any]) -> int:
    """Seconds that its pods may take to end, 0 for what has none."""
    job = within(body, "spec", "jobTemplate", "spec") or within(body, "spec")
    pod = within(body, "spec") if body["kind"] == "Pod" else within(job, "template", "spec")
    if not pod:  # of other kinds a template may be anything
        return 0
    seconds = pod.get("terminationGracePeriodSeconds")
    return (
        seconds if isinstance(seconds, int) else POD_GRACE
    )  # what is no number the API server refuses


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
        if not isinstance(within(body, "metadata").get("name"), str):
            raise ValueError(
                f"{file}: a {body['kind']} has no metadata.name; what is removed afterwards must be known by its name"
            )
    return bodies


async def _left_out(kube: Kube, body: dict[str, Any], validated: str) -> str | None:
    """Why an object is not applied wherever it is; None where it is."""
    from perfdag.kube import KubeError

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


async def _stays(
    kube: Kube,
    body: dict[str, Any],
    namespace: str | None,
    seconds: float,
    say: Callable[[str], None],
) -> bool:
    """Whether it is there; one that a validation before deleted is waited for. Raises ValueError where that does not go."""
    found = await _there(kube, body, namespace)
    if not found or not found["metadata"].get("deletionTimestamp"):
        return found is not None
    say(f"waiting for {_named(body)}, which is being deleted, to be gone")
    if await _left(kube, [body], namespace, seconds):
        raise ValueError(
            f"{_named(body)} is being deleted and not gone after {seconds:g} s: see what holds it, then validate again"
        )
    return False


async def _there(kube: Kube, body: dict[str, Any], namespace: str | None) -> dict[str, Any] | None:
    """The object as the cluster has it; None: it has none."""
    from perfdag.kube import KubeError

    resource = await kube.resource(body["apiVersion"], body["kind"])
    try:
        return await kube.get(
            resource, body["metadata"]["name"], body["metadata"].get("namespace") or namespace
        )
    except KubeError as error:
        if error.status != 404:
            raise
        return None


async def _delete(kube: Kube, body: dict[str, Any], namespace: str | None) -> None:
    from perfdag.kube import KubeError

    try:
        resource = await kube.resource(body["apiVersion"], body["kind"])
        await kube.delete(
            resource, body["metadata"]["name"], body["metadata"].get("namespace") or namespace
        )
    except KubeError as error:
        if error.status != 404:
            raise
