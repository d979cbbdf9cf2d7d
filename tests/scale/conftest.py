"""A cluster with KWOK for the tests that need one: a client, simulated nodes, a namespace, and
how much is left in it.
"""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncIterator

import pytest

from perfdag.kube.client import Kube, KubeError
from perfdag.steps.scale import cluster


@pytest.fixture(autouse=True)
def progress(caplog: pytest.LogCaptureFixture) -> None:
    """Log progress too."""
    caplog.set_level(logging.INFO, "perfdag")


@pytest.fixture
async def kube() -> AsyncIterator[Kube]:
    """A client of the cluster that KUBECONFIG names, which must have KWOK with Stages."""
    async with Kube() as client:
        try:
            await client.path("kwok.x-k8s.io/v1alpha1/Stage")
        except KubeError as error:
            pytest.skip(f"no KWOK with Stages on this cluster: {error}")
        yield client


@pytest.fixture
async def nodes(kube: Kube) -> None:
    """Simulated nodes: 8 GPUs each; those of an earlier test are used again."""
    await cluster.make_nodes(kube, 20, 8)
    assert await cluster.ready_nodes(kube, 20) >= 20


@pytest.fixture
async def namespace(kube: Kube) -> AsyncIterator[str]:
    name = f"perfdag-test-{uuid.uuid4().hex[:8]}"
    await kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    for _ in range(100):
        with contextlib.suppress(KubeError):
            await kube.get("v1/ServiceAccount", "default", name)
            break
        await asyncio.sleep(0.05)
    yield name
    await kube.delete("v1/Namespace", name)


async def left(kube: Kube, api_version: str, kind: str, namespace: str) -> int:
    return len(await kube.list(f"{api_version}/{kind}", namespace))
