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
        kind = await client.resource("v1", "Pod")
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
        nodes = await client.list(await client.resource("v1", "Node"), labels=f"pool={self.name}")
        return all(
            [each["key"] for each in node["spec"].get("taints") or []] == [self.key]
            for node in nodes
        )

    def clear(self) -> None:
        """Delete all pods at once."""

        async def work(client: Kube) -> None:
            kind = await client.resource("v1", "Pod")
            for space in self.spaces:
                for each in await client.list(kind, space):
                    await client.delete(kind, each["metadata"]["name"], space, grace=0)

        run_with_client(work)


@pytest.fixture(scope="module")
def pool() -> Iterator[Nodes]:
    nodes = Nodes(f"place-{uuid.uuid4().hex[:6]}")

    async def make(client: Kube) -> None:
        await client.resource("kwok.x-k8s.io/v1alpha1", "Stage")
        for space in nodes.spaces:
            await client.create(
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}}
            )
        for each in nodes.bodies():
            await client.create(each)
            await client.patch(
                await client.resource("v1", "Node"),
                each["metadata"]["name"],
                {"status": each["status"]},
                subresource="status",
            )
        deadline = time.monotonic() + 30
        while not await nodes._ready(client):
            assert time.monotonic() < deadline, "nodes that KWOK does not make ready"
            await asyncio.sleep(0.1)
        account = await client.resource("v1", "ServiceAccount")
        while len([space for space in nodes.spaces if await client.list(account, space)]) < 2:
            assert time.monotonic() < deadline, "no service account"
            await asyncio.sleep(0.1)

    async def remove(client: Kube) -> None:
        for each in nodes.bodies():
            await client.delete(await client.resource("v1", "Node"), each["metadata"]["name"])
        for space in nodes.spaces:
            await client.delete(await client.resource("v1", "Namespace"), space)

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


def test_a_step_keeps_away_from_what_is_measured_and_the_other_way_round_where_there_is_room(
    nodes: Nodes,
) -> None:
    """Each time the node that is measured has the most room, which is what the scheduler prefers
    otherwise.
    """
    pytest.importorskip("hera")
    from perfdag.workflows.templates import ASIDE

    plain = nodes.shape(node_selector={"topology.kubernetes.io/zone": "a", "pool": nodes.name})
    full = {
        "containers": [
            {
                "name": "main",
                "image": "none",
                "resources": {"requests": {"cpu": "50", "memory": "200Gi"}},
            }
        ],
        "initContainers": [],
    }

    def step(name: str, **labels: str) -> Object:
        body = pod(
            plain, name, more={"affinity": ASIDE.model_dump(by_alias=True, exclude_none=True)}
        )
        return {**body, "metadata": {"name": name, "labels": labels}}

    def filler(number: int) -> Object:
        body = pod(plain, f"full-{number}", more={**full, "nodeName": f"{nodes.name}-{number}"})
        return {**body, "metadata": {"name": f"full-{number}"}}

    nodes.place((0, filler(1)))
    assert nodes.place((1, pod(plain, "measured", run="theirs")), (0, step("watchdog"))) == [
        "0",
        "1",
    ]
    nodes.clear()
    nodes.place((0, filler(1)))
    assert nodes.place((0, step("early")), (1, pod(plain, "late", run="theirs"))) == ["0", "1"]
    nodes.clear()
    one = nodes.shape(node_selector={"kubernetes.io/hostname": f"{nodes.name}-0"})
    lonely = {
        **step("lonely"),
        "spec": {**step("lonely")["spec"], "nodeSelector": one["node_selector"]},
    }
    assert nodes.place((1, pod(one, "alone")), (0, lonely)) == ["0", "0"], (
        "where there is one node it shares it"
    )


@pytest.mark.parametrize("count", [4, WIDE_GANG + 1])
def test_spread_is_a_node_each_and_no_more_than_there_are(nodes: Nodes, count: int) -> None:
    """A gang of few by anti-affinity; one of many by topologySpread, which lets a node have two
    once all have one: what ran is compared.
    """
    shape = nodes.shape(hosts={"count": count, "placement": "spread"})
    placed = nodes.place(*((0, pod(shape, f"p-{rank}", rank=rank)) for rank in range(4)))
    assert sorted(map(str, placed)) == ["0", "1", "2", "3"]
    assert nodes.place((0, pod(shape, "fifth", rank=4)))[0] is None or count > WIDE_GANG


def test_packed_and_zones(nodes: Nodes) -> None:
    packed = nodes.shape(hosts={"count": 3, "placement": "packed"}, zones=["b"])
    placed = nodes.place(*((0, pod(packed, f"p-{rank}", rank=rank)) for rank in range(3)))
    assert len(set(placed)) == 1
    assert placed[0] in ("2", "3"), "the nodes of zone b"
    assert nodes.place((0, pod(nodes.shape(zones=["c"]), "nowhere", run="y"))) == [None]


def test_zones_of_pairs_and_nodes_of_roles(nodes: Nodes) -> None:
    pairs = nodes.shape(hosts={"count": 2, "pairs": "across-zones"})
    placed = nodes.place(*((0, pod(pairs, f"z-{rank}", rank=rank)) for rank in range(3)))
    assert [ZONES[int(node)] if node else None for node in sorted(placed, key=str)] == [
        "a",
        "b",
        None,
    ], "there are two zones"
    nodes.clear()
    sides = [f"{nodes.name}-{number}" for number in (3, 1)]
    roles = {
        role: {"node_selector": {"kubernetes.io/hostname": name}}
        for role, name in zip(("client", "server"), sides, strict=True)
    }
    shape = nodes.shape(hosts={"count": 2, "roles": roles})
    assert nodes.place(*((0, pod(shape, f"r-{rank}", rank=rank)) for rank in range(2))) == [
        "3",
        "1",
    ]


def test_a_packed_gang_goes_elsewhere_when_a_node_died_under_an_earlier_attempt(
    nodes: Nodes,
) -> None:
    packed = nodes.shape(hosts={"count": 2, "placement": "packed"})
    nodes.place((0, pod(packed, "earlier", more={"nodeName": f"{nodes.name}-0"})))
    elsewhere = nodes.shape(hosts={"count": 2, "placement": "packed"}, zones=["b"])
    placed = nodes.place(
        *((0, pod(elsewhere, f"again-{rank}", rank=rank, attempt=1)) for rank in range(2))
    )
    assert len(set(placed)) == 1
    assert placed[0] in ("2", "3")
