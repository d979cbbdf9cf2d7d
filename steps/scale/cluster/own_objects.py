"""Create cluster-wide objects of a run, and delete them at the end."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from perfdag.kube.client import Kube, KubeError, Object


@asynccontextmanager
async def own_objects(kube: Kube, bodies: Sequence[Object]) -> AsyncIterator[None]:
    """Create objects, and delete them at the end. `scale delete --run` deletes what is left.

    Raises KubeError if one of them is refused.
    """
    try:
        for body in bodies:
            await kube.create(body)
        yield
    finally:
        for body in bodies:
            with suppress(KubeError):
                resource = await kube.resource(body["apiVersion"], body["kind"])
                await kube.delete(resource, body["metadata"]["name"])
