"""Services between client and server: what is created, what the cluster refuses, and how the
gang reaches them.
"""

import socket
from pathlib import Path
from typing import Any

import orjson
import pytest

from perfdag.benchmark.contract import Infrastructure
from perfdag.hosts.local import LocalHost
from perfdag.kube.client import KubeError, Object
from perfdag.kube.patch import service_ports, services
from perfdag.kube.pods import Pod, read_pod
from perfdag.plan import make_plan
from perfdag.shape import Shape
from perfdag.steps.pods import lead
from perfdag.steps.pods.lead import GangPool, forward
from perfdag.steps.pods.plan import (
    Refusals,
    batch_objects,
    create_for_batches,
)
from perfdag.store.base import FolderStore
from perfdag.suite.load import parse_suite
from tests.fakes.api_server import ApiServer

from .test_plan_step import place

SUITE = "name: s\nentries: [{benchmark: iperf, network: {path: PATH, family: ipv6}}]\n"
TAKEN = (
    'Service "x" is invalid: spec.ports[0].nodePort: Invalid value: 30000: provided port is '
    "already allocated"
)
SINGLE = (
    'Service "x" is invalid: spec.ipFamilies[0]: Invalid value: "IPv6": not configured on this '
    "cluster"
)
FULL = "Internal error occurred: failed to allocate a serviceIP: range is full"
"""The answer of Kubernetes 1.34 if no ServiceCIDR is ready, or if none has an address left."""


def of(path: str, **hosts: Any) -> list[Object]:
    shape = Shape.model_validate({"hosts": {"count": 2} | hosts, "network": {"path": path}})
    return list(services(shape, "run", ("wf", "uid"), 7))


@pytest.mark.parametrize(
    ("objects", "kind", "ranks"),
    [
        (of("pod"), "", []),
        (of("host"), "", []),
        (of("service"), "ClusterIP", ["1"]),
        (of("nodeport"), "NodePort", ["1"]),
        (of("service", count=3, pairs="all"), "ClusterIP", ["0", "1", "2"]),
    ],
)
def test_each_rank_that_may_serve_has_a_service(
    objects: list[Object], kind: str, ranks: list[str]
) -> None:
    assert [each["spec"]["selector"]["perfdag/rank"] for each in objects] == ranks
    assert len({each["metadata"]["name"] for each in objects}) == len(ranks)
    for each in objects:
        spec, rank = each["spec"], each["spec"]["selector"]["perfdag/rank"]
        assert (spec["type"], spec["ipFamilies"]) == (kind, ["IPv4"])
        assert spec["selector"] == {
            "workflows.argoproj.io/workflow": "wf",
            "perfdag/run": "run",
            "perfdag/batch": "7",
            "perfdag/rank": rank,
        }
        for port in spec["ports"]:
            assert 30000 <= port["port"] == port["targetPort"] < 32768
            assert port.get("nodePort") == (port["port"] if kind == "NodePort" else None)
        assert [port["protocol"] for port in spec["ports"]] == ["TCP", "UDP"] * 2


@pytest.fixture
def server() -> ApiServer:
    return ApiServer(namespace="bench")


async def created(
    server: ApiServer, path: str, store: FolderStore, times: int = 1
) -> tuple[Refusals, dict[str, Any]]:
    """What the cluster refuses of a batch, and what the store tells its lead."""
    plan, here = make_plan(parse_suite(SUITE.replace("PATH", path))), place()
    server.on("POST .*/services", lambda request: request.body["spec"].update(clusterIP="fd00::9"))
    refused: Refusals = {}
    for _ in range(times):  # the plan step is repeated where its pod is lost
        objects = {0: batch_objects(plan.shape_of(0), here, 0)}
        async with server.client() as kube:
            refused = await create_for_batches(kube, here, store, objects)
    note = store.get(here.services_key(0)) if not refused else b"{}"
    return refused, orjson.loads(note)


async def test_the_store_tells_the_lead_where_servers_are_reached(
    server: ApiServer, store: FolderStore
) -> None:
    refused, note = await created(server, "service", store, times=2)
    [service] = server.of("Service")
    ports = [port["port"] for port in service["spec"]["ports"]][::2]
    assert (refused, note) == ({}, {"1": {"address": "fd00::9", "ports": ports}})
    assert service["spec"]["ipFamilies"] == ["IPv6"]
    [owner] = service["metadata"]["ownerReferences"]
    assert owner["kind"] == "Lease", "finish deletes the Lease, and the Service goes with it"


async def test_node_ports_of_others_are_passed_over(server: ApiServer, store: FolderStore) -> None:
    server.fail("POST .*/services", 422, TAKEN, times=2)
    first = service_ports("uid 0 1", True)
    refused, note = await created(server, "nodeport", store)
    [service] = server.of("Service")
    assert refused == {}
    assert service["spec"]["ports"] != first
    assert note["1"]["ports"] == [port["nodePort"] for port in service["spec"]["ports"]][::2]


@pytest.mark.parametrize(
    ("path", "status", "message", "reason"),
    [
        ("service", 500, FULL, "no Service of type ClusterIP for network.path: " + FULL),
        ("nodeport", 500, FULL, "no Service of type NodePort for network.path: " + FULL),
        ("service", 422, SINGLE, "not configured on this cluster"),
        ("nodeport", 422, TAKEN, "no Service of type NodePort for network.path: "),
    ],
)
async def test_a_path_that_the_cluster_cannot_have_is_skipped(
    server: ApiServer, store: FolderStore, path: str, status: int, message: str, reason: str
) -> None:
    server.fail("POST .*/services", status, message)
    refused, _ = await created(server, path, store)
    [(number, (kind, text))] = refused.items()
    assert (number, kind) == (0, "skipped")
    assert reason in text
    assert text.endswith("; let it have one, or measure network.path: pod or host")
    assert "\n" not in text


async def test_a_server_that_is_away_is_not_a_path_that_cannot_be(
    server: ApiServer, store: FolderStore
) -> None:
    server.fail("POST .*/services", 503, "etcd is away")
    with pytest.raises(KubeError, match="etcd is away"):
        await created(server, "service", store)


def free_ports() -> list[int]:
    with socket.socket() as one, socket.socket() as two:
        one.bind(("", 0))
        two.bind(("", 0))
        return [one.getsockname()[1], two.getsockname()[1]]


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


def gang(path: str, store: FolderStore, address: str, node: str) -> GangPool:
    """Two hosts; the Service of the second one has an address that is the server's own."""
    shape = Shape.model_validate({"hosts": {"count": 2}, "network": {"path": path}})
    note = {str(rank): {"address": address, "ports": free_ports()} for rank in (1,)}
    store.put(place().services_key(0), orjson.dumps(note))
    pods = {
        rank: Pod(str(rank), 0, 0, rank, "Running", "n", "127.0.0.2", node_address=node)
        for rank in range(2)
    }
    hosts = [LocalHost("127.0.0.1", "a"), LocalHost("127.0.0.2", "b")]
    return GangPool(shape=shape, pods=pods, hosts=hosts)


@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize(
    ("path", "address", "node"),
    [("service", "127.0.0.2", "x"), ("nodeport", "x", "127.0.0.2")],
)
def test_a_gang_waits_until_its_services_forward(
    store: FolderStore, path: str, address: str, node: str
) -> None:
    there = gang(path, store, address, node)
    forward(place(), store, 0, there)
    client, server = there.hosts
    assert client.target == client.address == "127.0.0.1", "no Service forwards to the client"
    assert server.target == "127.0.0.2"
    assert server.forwarding is not None
    first, second = server.forwarding.ports
    assert [server.free_port() for _ in range(3)] == [first, second, first]


@pytest.mark.usefixtures("importable")
def test_a_service_that_does_not_forward_is_named(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lead, "CONNECT_PATIENCE", 3.0)
    there = gang("service", store, "127.0.0.3", "x")
    with pytest.raises(Infrastructure, match=r"network\.path: service: a reaches no server at 127"):
        forward(place(), store, 0, there)


def test_the_address_of_a_node_is_of_the_measured_family() -> None:
    status = {"hostIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}
    pod = {"metadata": {"name": "p"}, "spec": {}, "status": status}
    assert [read_pod(pod, family).node_address for family in ("ipv4", "ipv6")] == [
        "10.0.0.1",
        "fd00::1",
    ]
