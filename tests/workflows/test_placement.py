"""Where the real scheduler puts pods of the real patches, on simulated nodes: exclusive, spread,
packed, zones, tolerations.
"""

import asyncio
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from perfdag.kube.client import Kube, KubeError, Object, run_with_client
from perfdag.kube.patch import WIDE_GANG

from .pods import pod

pytestmark = pytest.mark.cluster
ZONES = ("a", "a", "b", "b")


class Nodes:
    """Four nodes of a pool of their own, two in each zone, tainted so that nobody else uses
    them.
    """

    def __init__(self, name: str) -> None:
        self.name, self.key = name, f"{name}/own"
        self.spaces = [name, f"{name}-other"]

    def bodies(self) -> list[Object]:
        bodies = []
        for number, zone in enumerate(ZONES):
            labels = {
                "pool": self.name,
                "kubernetes.io/hostname": f"{self.name}-{number}",
                "topology.kubernetes.io/zone": zone,
            }
            room = {"cpu": "64", "memory": "256Gi", "pods": "110"}
            bodies.append(
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {
                        "name": f"{self.name}-{number}",
                        "labels": labels,
                        "annotations": {"kwok.x-k8s.io/node": "fake"},
                    },
                    "spec": {"taints": [{"key": self.key, "effect": "NoSchedule"}]},
                    "status": {"allocatable": room, "capacity": room},
                }
            )
        return bodies

    def shape(self, **keys: Any) -> Object:
        """A shape on these nodes alone."""
        return {
            "node_selector": {"pool": self.name},
            "tolerations": [{"key": self.key, "operator": "Exists"}],
            **keys,
        }

    def place(self, *pods: tuple[int, Object]) -> list[str | None]:
        """Create pods, each in one of the two namespaces, one after the other is placed; their
        nodes as numbers, None for one without room.
        """

        async def place_all(client: Kube) -> list[str | None]:
            return [await self._placed(client, body, self.spaces[space]) for space, body in pods]

        return run_with_client(place_all)

    async def _placed(self, client: Kube, body: Object, space: str) -> str | None:
        kind = "v1/Pod"
        await client.create(body, space)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            result = await client.get(kind, body["metadata"]["name"], space)
            if node := result["spec"].get("nodeName"):
                return str(node).rpartition("-")[2]
            conditions = [
                each
                for each in (result.get("status") or {}).get("conditions") or []
                if each["type"] == "PodScheduled"
            ]
            if conditions and conditions[0]["status"] == "False" and await self._ready(client):
                return None
            await asyncio.sleep(0.05)
        raise AssertionError(f"the scheduler did not look at {body['metadata']['name']}")

    async def _ready(self, client: Kube) -> bool:
        """Whether no node of ours is tainted but by us: a busy KWOK beats late, and what the
        scheduler said then is not of our pods.
        """
        nodes = await client.list("v1/Node", labels=f"pool={self.name}")
        return all(
            [each["key"] for each in node["spec"].get("taints") or []] == [self.key]
            for node in nodes
        )

    def clear(self) -> None:
        """Delete all pods at once."""

        async def work(client: Kube) -> None:
            kind = "v1/Pod"
            for space in self.spaces:
                for each in await client.list(kind, space):
                    await client.delete(kind, each["metadata"]["name"], space, grace=0)

        run_with_client(work)


@pytest.fixture(scope="module")
def pool() -> Iterator[Nodes]:
    nodes = Nodes(f"place-{uuid.uuid4().hex[:6]}")

    async def make(client: Kube) -> None:
        await client.path("kwok.x-k8s.io/v1alpha1/Stage")
        for space in nodes.spaces:
            await client.create(
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}}
            )
        for each in nodes.bodies():
            await client.create(each)
            await client.patch(
                "v1/Node",
                each["metadata"]["name"],
                {"status": each["status"]},
                subresource="status",
            )
        deadline = time.monotonic() + 30
        while not await nodes._ready(client):
            assert time.monotonic() < deadline, "nodes that KWOK does not make ready"
            await asyncio.sleep(0.1)
        account = "v1/ServiceAccount"
        while len([space for space in nodes.spaces if await client.list(account, space)]) < 2:
            assert time.monotonic() < deadline, "no service account"
            await asyncio.sleep(0.1)

    async def remove(client: Kube) -> None:
        for each in nodes.bodies():
            await client.delete("v1/Node", each["metadata"]["name"])
        for space in nodes.spaces:
            await client.delete("v1/Namespace", space)

    try:
        run_with_client(make)
    except KubeError as error:
        pytest.skip(f"no simulated nodes here: {error}")
    yield nodes
    nodes.clear()
    run_with_client(remove)


@pytest.fixture
def nodes(pool: Nodes) -> Iterator[Nodes]:
    yield pool
    pool.clear()


def test_an_exclusive_batch_shares_no_node_with_a_measuring_pod_of_any_run_or_namespace(
    nodes: Nodes,
) -> None:
    usual, alone = nodes.shape(), nodes.shape(hosts={"count": 2, "exclusive": True})
    foreign = [
        (
            1,
            pod(
                usual,
                f"foreign-{number}",
                run=f"theirs-{number}",
                more={"nodeName": f"{nodes.name}-{number}"},
            ),
        )
        for number in range(2)
    ]
    nodes.place(*foreign)
    own = [(0, pod(alone, f"own-{rank}", run="ours", batch=1, rank=rank)) for rank in range(2)]
    placed = nodes.place(*own)
    assert set(placed) <= {"2", "3"}, "where the other namespace's pods are not"
    other = pod(alone, "next", run="ours", batch=2)
    free = {"2", "3"} - set(placed)
    assert nodes.place((0, other)) == ([free.pop()] if free else [None]), (
        "another batch of the same run is another gang"
    )
    nodes.clear()
    nodes.place((0, pod(alone, "first", run="ours", batch=1, more={"nodeName": f"{nodes.name}-0"})))
    newcomer = nodes.shape(
        node_selector={"pool": nodes.name, "kubernetes.io/hostname": f"{nodes.name}-0"}
    )
    assert nodes.place((1, pod(newcomer, "newcomer", run="theirs"))) == [None], (
        "nor does a usual pod come to where one is alone"
    )


@pytest.mark.parametrize("count", [4, WIDE_GANG + 1])
def test_spread_is_a_node_each_and_no_more_than_there_are(nodes: Nodes, count: int) -> None:
    """A gang of few by anti-affinity; one of many by topologySpread."""
    shape = nodes.shape(hosts={"count": count, "placement": "spread"})
    placed = nodes.place(*((0, pod(shape, f"p-{rank}", rank=rank)) for rank in range(4)))
    assert sorted(map(str, placed)) == ["0", "1", "2", "3"]
    assert nodes.place((0, pod(shape, "fifth", rank=4)))[0] is None
