"""What a cluster cannot have at all, told from what is only full."""

from typing import Any

import pytest

from perfdag.kube.client import Kube
from perfdag.kube.patch import ZONE
from perfdag.shape import Shape
from perfdag.steps.pods.cluster import has_class, requirements, unmet
from tests.fakes.api_server import ApiServer


def node(
    name: str, allocatable: dict[str, str] | None = None, *, simulated: bool = False
) -> dict[str, Any]:
    notes = {"kwok.x-k8s.io/node": "fake"} if simulated else {}
    return {
        "metadata": {"name": name, "annotations": notes},
        "status": {"allocatable": {"cpu": "8", "hugepages-2Mi": "0"} | (allocatable or {})},
    }


def shape(**fields: Any) -> Shape:
    return Shape.model_validate(fields)


async def unable(requested: Shape, nodes: list[dict[str, Any]]) -> str | None:
    """Return why a cluster of these nodes, whose default storage class is fast, never runs it."""
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    fast = {"kind": "StorageClass", "metadata": {"name": "fast", "annotations": default}}
    server = cluster({"apiVersion": STORAGE, **fast}, nodes=nodes)
    return (await unmet(server, [requested], "bench")).get(0)


HELD = {
    "rdma/hca": "4",
    "hugepages-1Gi": "2Gi",
    "example.com/part": "500m",
    "example.com/many": "1k",
}
NODES = [node("a", {"hugepages-1Gi": "1Gi"}), node("b", HELD)]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"resources": {"nvidia.com/gpu": 1}}, "no node has nvidia.com/gpu"),
        ({"hugepages": {"hugepages-2Mi": "1Gi"}}, "no node has hugepages-2Mi"),
        (
            {"hosts": {"count": 3, "placement": "spread"}},
            "3 nodes needed (placement: spread), 2 fit",
        ),
        (
            {"volume": {"storage_class": "slow"}},
            "there is no storage class slow; there are: by-hand, fast",
        ),
        ({"resources": {"example.com/part": 1}}, "no node has example.com/part"),
        ({"resources": {"hugepages-16Mi": "1Gi"}}, "no node has hugepages-16Mi"),
        (
            {"resources": {"rdma/hca": 9}},
            "a pod asks for rdma/hca: 9, the most that a node has is 4",
        ),
        (
            {"hugepages": {"hugepages-1Gi": "4Gi"}},
            "a pod asks for hugepages-1Gi: 4Gi, the most that a node has is 2Gi",
        ),
        ({"hugepages": {"hugepages-1Gi": "2048Mi"}}, None),
        ({"resources": {"rdma/hca": 4}}, None),
        ({"resources": {"example.com/many": 9}}, None),
        ({"resources": {"cpu": 500}}, None),
        ({"hosts": {"count": 3}}, None),
        ({"volume": {"storage_class": "fast"}}, None),
        ({"volume": {}}, None),
        (
            {"volume": {"claim_template": {"storageClassName": "slow"}}},
            "there is no storage class slow; there are: by-hand, fast",
        ),
        ({"volume": {"claim_template": {"storageClassName": ""}}}, None),
        ({"volume": {"claim": "mine", "storage_class": "slow"}}, None),
    ],
)
async def test_only_what_no_waiting_brings_is_lacking(
    fields: dict[str, Any], why: str | None
) -> None:
    assert await unable(shape(**fields), NODES) == why


ZONED = [
    node("a-1", {"pool": "a", ZONE: "a"}),
    node("a-2", {"pool": "b", ZONE: "a"}),
    node("b-1", {"pool": "b", ZONE: "b"}),
    node("none"),
]
for each in ZONED:
    each["metadata"]["labels"] = each["status"]["allocatable"]


def of_roles(placement: str, **pools: str) -> dict[str, Any]:
    roles = {role: {"node_selector": {"pool": pool}} for role, pool in pools.items()}
    return {"hosts": {"count": 2, "placement": placement, "roles": roles}}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"hosts": {"count": 2, "pairs": "across-zones"}}, None),
        (
            {"hosts": {"count": 3, "pairs": "across-zones"}},
            "3 zones needed (pairs: across-zones), 2 fit",
        ),
        (
            {"hosts": {"count": 2, "pairs": "across-zones"}, "node_selector": {"pool": "a"}},
            "2 zones needed (pairs: across-zones), 1 fits",
        ),
        (of_roles("spread", client="a", server="b"), None),
        (
            of_roles("any", client="a", server="x") | {"node_selector": {"cpu": "8"}},
            "no node takes the server (hosts.roles.server: cpu=8, pool=x)",
        ),
        (of_roles("any", client="a", server="a"), None),
        (
            of_roles("spread", client="a", server="a"),
            "2 nodes needed (placement: spread), 1 fits",
        ),
    ],
)
async def test_zones_and_roles_need_labelled_nodes(fields: dict[str, Any], why: str | None) -> None:
    assert await unable(shape(**fields), ZONED) == why
    assert await unmet(cluster(refused="/nodes", nodes=ZONED), [shape(**fields)], "bench") == {}


OWN = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
TAINT = {"key": "team", "value": "a", "effect": "NoExecute"}
CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("taints", "labels", "fields", "fits"),
    [
        ([], {}, {}, True),
        ([OWN], {}, {}, False),
        ([OWN], {}, {"tolerations": [{"operator": "Exists"}]}, True),
        ([TAINT], {}, {"tolerations": [{"key": "team", "value": "b"}]}, False),
        ([TAINT], {}, {"tolerations": [{"key": "team", "value": "a"}]}, True),
        ([TAINT | {"effect": "PreferNoSchedule"}], {}, {}, True),
        ([CORDON], {}, {}, True),
        ([], {}, {"node_selector": {"disk": "fast"}}, False),
        ([], {"disk": "fast"}, {"node_selector": {"disk": "fast"}}, True),
        ([], {"disk": "fast"}, {"avoid_nodes": ["disk"]}, False),
        ([], {"disk": "fast"}, {"avoid_nodes": ["pool"]}, True),
        ([], {}, {"zones": ["z"]}, False),
        ([], {"topology.kubernetes.io/zone": "z"}, {"zones": ["z"]}, True),
    ],
)
async def test_only_nodes_that_take_the_pods_count(
    taints: list[dict[str, str]], labels: dict[str, str], fields: dict[str, Any], fits: bool
) -> None:
    nodes = [node("a"), node("b")]
    for each in nodes:
        each["metadata"]["labels"], each["spec"] = labels, {"taints": taints}
    spread = shape(hosts={"count": 2, "placement": "spread"}, **fields)
    assert (await unable(spread, nodes) is None) == fits


async def test_devices_that_are_unwell_now_are_waited_for() -> None:
    unwell = node("a", {"nvidia.com/gpu": "7"})
    unwell["status"]["capacity"] = {"nvidia.com/gpu": "8"}
    assert await unable(shape(resources={"nvidia.com/gpu": 8}), [unwell]) is None
    assert (
        await unable(shape(resources={"nvidia.com/gpu": 9}), [unwell])
        == "a pod asks for nvidia.com/gpu: 9, the most that a node has is 8"
    )


async def test_simulated_nodes_are_no_room() -> None:
    nodes = [*NODES, node("fake", {"nvidia.com/gpu": "8"}, simulated=True)]
    assert (
        await unable(shape(resources={"nvidia.com/gpu": 1}), nodes) == "no node has nvidia.com/gpu"
    )


MULTUS, STORAGE = "k8s.cni.cncf.io/v1", "storage.k8s.io/v1"


def cluster(
    *objects: dict[str, Any],
    refused: str = "",
    absent: tuple[str, ...] = ("NetworkAttachmentDefinition",),
    nodes: list[dict[str, Any]] = NODES,
) -> Kube:
    """Return a client of an API server of few objects, which forbids to read some kinds."""
    volume = {
        "kind": "PersistentVolume",
        "metadata": {"name": "v"},
        "spec": {"storageClassName": "by-hand"},
    }
    server = ApiServer(
        *({"kind": "Node", **each} for each in nodes), volume, *objects, absent=absent
    )
    if refused:
        server.fail(refused, 403)
    return server.client()


def network(name: str, namespace: str = "b") -> Kube:
    """Return a client of a cluster with one network."""
    return cluster(
        {
            "apiVersion": MULTUS,
            "kind": "NetworkAttachmentDefinition",
            "metadata": {"name": name, "namespace": namespace},
        },
        absent=(),
    )


GPU, BY_HAND, NET = (
    shape(resources={"nvidia.com/gpu": 1}),
    shape(volume={"storage_class": "by-hand"}),
    shape(network={"name": "b/net"}),
)


async def test_a_network_is_lacking_without_multus_and_without_its_definition() -> None:
    assert "no Multus" in (await unmet(cluster(), [shape(), NET], "bench"))[1]
    assert (await unmet(network("other"), [NET], "bench"))[0].endswith(
        "there is no such NetworkAttachmentDefinition in namespace b"
    )
    two = shape(network={"name": "b/net", "also": ["b/gone"]})
    assert "network b/gone: there is no such" in (await unmet(network("net"), [two], "bench"))[0]
    assert (
        await unmet(network("net"), [NET, shape(network={"name": "x", "default": True})], "bench")
        == {}
    )


async def test_nodes_that_are_added_on_demand_are_waited_for() -> None:
    assert await unmet(cluster(), [GPU, BY_HAND], "bench") == {0: "no node has nvidia.com/gpu"}
    status = {
        "kind": "ConfigMap",
        "metadata": {"name": "cluster-autoscaler-status", "namespace": "kube-system"},
    }
    assert await unmet(cluster(status), [GPU], "bench") == {}
    karpenter = ApiServer(*({"kind": "Node", **each} for each in NODES))
    karpenter.on("GET /apis/karpenter.sh$", lambda _: {"kind": "APIGroup"})
    assert await unmet(karpenter.client(), [GPU], "bench") == {}


async def test_what_may_not_be_read_skips_nothing() -> None:
    gone = shape(volume={"storage_class": "gone"})
    assert await unmet(cluster(refused="/nodes|/storageclasses"), [GPU, gone], "bench") == {}
    assert 0 in await unmet(cluster(), [gone], "bench")


async def test_a_class_that_is_listed_is_there_whoever_reads_volumes() -> None:
    named = {"apiVersion": STORAGE, "kind": "StorageClass", "metadata": {"name": "fast"}}
    slow, fast = shape(volume={"storage_class": "slow"}), shape(volume={"storage_class": "fast"})
    api = cluster(named, refused="/persistentvolumes")
    required = await requirements(api, [slow, fast], "bench")
    assert [[each.met for each in of_shape] for of_shape in required] == [[None], [True]]


@pytest.mark.parametrize(("status", "there"), [(None, True), (403, False), (404, False)])
async def test_a_priority_class_is_counted_on_only_where_it_is_seen(
    status: int | None, there: bool
) -> None:
    server = ApiServer(
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "perfdag"},
        }
    )
    if status:
        server.fail("GET /apis/scheduling.k8s.io/v1/priorityclasses/perfdag$", status)
    assert await has_class(server.client(), "perfdag") is there
