"""Nodes: simulated ones that are there already, those whose taints keep our pods away, and a cluster that may not be asked for them."""

import time
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from aiohttp import web

from perfdag.kube.client import Kube, KubeError
from perfdag.steps.scale.cluster import kwok
from perfdag.steps.scale.figures.moments import Clocks
from perfdag.steps.scale.figures.rows import Row, on_simulated, rows_of
from perfdag.steps.scale.model import nodes
from perfdag.steps.scale.model.records import Record
from perfdag.steps.scale.model.templates import load
from perfdag.steps.scale.scenarios import gpus
from perfdag.steps.scale.scenarios.base import ScenarioUnavailableError

from .api import client
from .test_completion import sent

GPU = "nvidia.com/gpu"


class Cluster:
    """An API server of nodes and no pods; merge patches are carried out, `status` only where it is the subresource."""

    def __init__(self) -> None:
        self.nodes: dict[str, Any] = {}
        self.refuse = 0

    def add(self, name: str, count: int, *taints: tuple[str, str], simulated: bool = False) -> None:
        status = {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {GPU: str(count)},
        }
        spec = {"taints": [{"key": key, "effect": effect} for key, effect in taints]}
        labels = {kwok.LABEL: "true"} if simulated else {}
        self.nodes[name] = {
            "metadata": {"name": name, "labels": labels},
            "spec": spec,
            "status": status,
        }

    async def handle(self, request: web.Request) -> web.Response:
        if request.path == "/api/v1":
            names = (("nodes", "Node", False), ("pods", "Pod", True))
            found = [
                {"name": name, "kind": kind, "namespaced": namespaced}
                for name, kind, namespaced in names
            ]
            return web.json_response({"resources": found})
        if self.refuse:
            return web.json_response(refusal("Forbidden"), status=self.refuse)
        if request.path == "/api/v1/pods":
            return web.json_response({"metadata": {}, "items": []})
        if request.method == "GET" and request.path == "/api/v1/nodes":
            return web.json_response({"metadata": {}, "items": list(self.nodes.values())})
        _, _, path = request.path.partition("/api/v1/nodes")
        name, _, part = path.removeprefix("/").partition("/")
        if request.method == "POST":
            body = orjson.loads(await request.read())
            if (name := body["metadata"]["name"]) in self.nodes:
                return web.json_response(refusal("AlreadyExists"), status=409)
            self.nodes[name] = body
        elif request.method == "PATCH":
            patch = orjson.loads(await request.read())
            merge(
                self.nodes[name],
                {
                    key: value
                    for key, value in patch.items()
                    if (key == "status") == (part == "status")
                },
            )
        return web.json_response(self.nodes[name])


def refusal(reason: str) -> dict[str, str]:
    return {"kind": "Status", "reason": reason, "message": f"nodes: {reason}"}


def merge(into: dict[str, Any], patch: dict[str, Any]) -> None:
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict):
            merge(into.setdefault(key, {}), value)
        else:
            into[key] = value


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
async def kube(cluster: Cluster) -> AsyncIterator[Kube]:
    async with client(cluster.handle) as found:
        yield found


async def test_nodes_that_are_there_get_the_gpus_that_are_asked_for(
    cluster: Cluster, kube: Kube
) -> None:
    assert await kwok.make_nodes(kube, 2, 4) == (2, 0)
    assert await kwok.make_nodes(kube, 3, 8) == (1, 2)
    assert await kwok.make_nodes(kube, 3, 8) == (0, 0)
    assert [
        (each["status"]["allocatable"][GPU], each["status"]["capacity"][GPU])
        for each in cluster.nodes.values()
    ] == [("8", "8")] * 3
    assert await kwok.make_nodes(kube, 1, 0) == (0, 1)
    none = cluster.nodes["perfdag-sim-0"]
    assert GPU not in none["status"]["allocatable"] | none["status"]["capacity"]
    assert "nvidia.com/gpu.present" not in none["metadata"]["labels"]
    assert cluster.nodes["perfdag-sim-1"]["metadata"]["labels"]["nvidia.com/gpu.present"] == "true"


async def test_a_node_of_that_name_that_is_not_ours_is_left_alone(
    cluster: Cluster, kube: Kube
) -> None:
    cluster.add("perfdag-sim-0", 2)
    with pytest.raises(KubeError, match="perfdag-sim-0 was not made by perfdag"):
        await kwok.make_nodes(kube, 1, 8)
    assert cluster.nodes["perfdag-sim-0"]["status"]["allocatable"] == {GPU: "2"}


async def test_those_that_were_asked_for_are_waited_for_and_no_others(
    cluster: Cluster, kube: Kube
) -> None:
    for name in ("perfdag-sim-0", "perfdag-sim-7", "other-0"):
        cluster.add(name, 8, simulated=True)
    assert await kwok.nodes_ready(kube, 1, 0.1)
    assert not await kwok.nodes_ready(kube, 2, 0.1)
    assert await kwok.nodes_ready(kube, 1, 0.1, prefix="other-")


async def test_gpus_behind_taints_that_our_pods_do_not_tolerate_are_not_free(
    cluster: Cluster, kube: Kube
) -> None:
    cluster.add("usual", 4, (GPU, "NoSchedule"), ("soft", "PreferNoSchedule"))
    cluster.add("played", 8, (nodes.NODE_ANNOTATION, "NoSchedule"))
    cluster.add("others", 8, (GPU, "NoSchedule"), ("team", "NoExecute"))
    assert await gpus.free_gpus(kube) == {"usual": 4, "played": 8}
    del cluster.nodes["usual"], cluster.nodes["played"]
    with pytest.raises(
        ScenarioUnavailableError,
        match="1 nodes with GPUs have taints that our pods do not tolerate: team",
    ):
        await gpus.free_gpus(kube)


@pytest.mark.parametrize("name", ["pod", "job", "pytorchjob"])
def test_pods_of_our_templates_tolerate_what_is_said_of_them(name: str) -> None:
    body = load(name, "r").documents[-1].body.decode()
    specs = body.count('"containers"')
    tolerations = [{"key": key, "operator": "Exists"} for key in nodes.TOLERATED]
    assert body.count('"tolerations":' + orjson.dumps(tolerations).decode()) == specs > 0


async def test_where_nodes_may_not_be_listed_it_is_not_known_which_are_simulated(
    cluster: Cluster, kube: Kube
) -> None:
    cluster.refuse = 403
    assert await kwok.simulated_nodes(kube) == (
        None,
        "whether nodes are simulated is not known: we may not list nodes",
    )
    cluster.refuse = 409
    nodes, why = await kwok.simulated_nodes(kube)
    assert nodes is None
    assert why.startswith("whether nodes are simulated is not known: ")
    assert "may not" not in why


@pytest.mark.parametrize(("fake", "told"), [(None, None), ({"n"}, True), (set(), False)])
def test_rows_say_whether_their_nodes_were_simulated(
    fake: set[str] | None, told: bool | None
) -> None:
    pod, now = Record("Pod", "a", "a", "ns", ""), time.monotonic_ns()
    pod.put("scheduled", received_ns=now)
    pod.node = "n"
    rows: list[Row] = list(
        rows_of(sent("a"), {"a": pod}, Clocks(0), run="r", kind="Pod", until_ns=now, simulated=fake)
    )
    assert {row.simulated for row in rows} == {told}
    assert on_simulated(rows) is told
    assert on_simulated([]) is False, "what never had a node is on none"
