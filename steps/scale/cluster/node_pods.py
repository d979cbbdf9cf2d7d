"""The pods that hold resources of the nodes."""

from collections.abc import AsyncIterator

from perfdag.kube.client import Kube, Object


async def pods_on_nodes(kube: Kube) -> AsyncIterator[Object]:
    """Yield the pods of the whole cluster that have a node and have not ended. Raises KubeError."""
    fields = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
    async for pods, _ in kube.pages(await kube.resource("v1", "Pod"), fields=fields):
        for pod in pods:
            yield pod
