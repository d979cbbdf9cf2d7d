"""A cluster with KWOK for the tests that need one: a client, simulated nodes, a namespace."""

import asyncio
import contextlib
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import yaml

from perfdag.kube.client import Kube, KubeError
from perfdag.kube.config import load_config
from perfdag.steps.scale.cluster import nodes as kwok_nodes
from tests.fakes.proxy import Proxy


@pytest.fixture
async def kube() -> AsyncIterator[Kube]:
    """A client of the cluster that KUBECONFIG names, which must have KWOK with Stages."""
    async with Kube() as client:
        try:
            await client.resource("kwok.x-k8s.io/v1alpha1", "Stage")
        except KubeError as error:
            pytest.skip(f"no KWOK with Stages on this cluster: {error}")
        yield client


@pytest.fixture
async def nodes(kube: Kube) -> None:
    """Simulated nodes: 8 GPUs each; those of an earlier test are used again."""
    await kwok_nodes.make_nodes(kube, 20, 8)
    assert await kwok_nodes.nodes_ready(kube, 20)


@pytest.fixture
async def namespace(kube: Kube) -> AsyncIterator[str]:
    name = f"perfdag-test-{uuid.uuid4().hex[:8]}"
    await kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    for _ in range(100):
        with contextlib.suppress(KubeError):
            await kube.get(await kube.resource("v1", "ServiceAccount"), "default", name)
            break
        await asyncio.sleep(0.05)
    yield name
    await kube.delete(await kube.resource("v1", "Namespace"), name)


@pytest.fixture
def through_proxy(kube: Kube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy before the API server, which KUBECONFIG names from now on."""
    host, _, port = load_config().server.removeprefix("https://").partition(":")
    with contextlib.closing(Proxy((host, int(port)))) as proxy:
        settings = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
        settings["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{proxy.port}"
        path = tmp_path / "through-proxy"
        path.write_text(yaml.safe_dump(settings))
        monkeypatch.setenv("KUBECONFIG", str(path))
        yield proxy
