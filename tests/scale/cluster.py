"""What the cluster tests share: how much is left."""

from perfdag.kube.client import Kube


async def left(kube: Kube, api_version: str, kind: str, namespace: str) -> int:
    return len(await kube.list(await kube.resource(api_version, kind), namespace))
