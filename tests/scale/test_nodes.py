"""Nodes: simulated ones that are there already, those whose taints keep our pods away, and a cluster that may not be asked for them."""

import time
from typing import Any

import orjson
import pytest

from perfdag.kube.client import Kube, KubeError
from perfdag.steps.scale.cluster import kwok_nodes
from perfdag.steps.scale.figures.moments import Clocks
from perfdag.steps.scale.figures.rows import Row, on_simulated, rows_of
from perfdag.steps.scale.model import nodes
from perfdag.steps.scale.model.records import Record
from perfdag.steps.scale.model.templates import load
from perfdag.steps.scale.scenarios import gpus
from perfdag.steps.scale.scenarios.base import ScenarioUnavailableError
from tests.fakes.api_server import ApiServer

from .test_completion import sent

GPU = "nvidia.com/gpu"


def node(
    name: str, count: int, *taints: tuple[str, str], simulated: bool = False
) -> dict[str, Any]:
    status = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {GPU: str(count)}}
    spec = {"taints": [{"key": key, "effect": effect} for key, effect in taints]}
    labels = {kwok_nodes.LABEL: "true"} if simulated else {}
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
        "status": status,
    }


@pytest.fixture
def cluster() -> ApiServer:
    return ApiServer()


@pytest.fixture
def kube(cluster: ApiServer) -> Kube:
    return cluster.client()


async def test_nodes_that_are_there_get_the_gpus_that_are_asked_for(
    cluster: ApiServer, kube: Kube
) -> None:
    assert await kwok_nodes.make_nodes(kube, 2, 4) == (2, 0)
    assert await kwok_nodes.make_nodes(kube, 3, 8) == (1, 2)
    assert await kwok_nodes.make_nodes(kube, 3, 8) == (0, 0)
    assert [
        (item["status"]["allocatable"][GPU], item["status"]["capacity"][GPU])
        for item in cluster.of("Node")
    ] == [("8", "8")] * 3
    assert await kwok_nodes.make_nodes(kube, 1, 0) == (0, 1)
    none, other, _ = cluster.of("Node")
    assert GPU not in none["status"]["allocatable"] | none["status"]["capacity"]
    assert "nvidia.com/gpu.present" not in none["metadata"]["labels"]
    assert other["metadata"]["labels"]["nvidia.com/gpu.present"] == "true"


async def test_a_node_of_that_name_that_is_not_ours_is_left_alone(
    cluster: ApiServer, kube: Kube
) -> None:
    cluster.add(node("perfdag-sim-0", 2))
    with pytest.raises(KubeError, match="perfdag-sim-0 was not created by perfdag"):
        await kwok_nodes.make_nodes(kube, 1, 8)
    assert cluster.of("Node")[0]["status"]["allocatable"] == {GPU: "2"}


async def test_those_that_were_asked_for_are_waited_for_and_no_others(
    cluster: ApiServer, kube: Kube
) -> None:
    for name in ("perfdag-sim-0", "perfdag-sim-7", "other-0"):
        cluster.add(node(name, 8, simulated=True))
    assert await kwok_nodes.nodes_ready(kube, 1, 0.1)
    assert not await kwok_nodes.nodes_ready(kube, 2, 0.1)
    assert await kwok_nodes.nodes_ready(kube, 1, 0.1, prefix="other-")


async def test_gpus_behind_taints_that_our_pods_do_not_tolerate_are_not_free(
    cluster: ApiServer, kube: Kube
) -> None:
    cluster.add(node("usual", 4, (GPU, "NoSchedule"), ("soft", "PreferNoSchedule")))
    cluster.add(node("played", 8, (nodes.NODE_ANNOTATION, "NoSchedule")))
    cluster.add(node("others", 8, (GPU, "NoSchedule"), ("team", "NoExecute")))
    assert await gpus.free_gpus(kube) == {"usual": 4, "played": 8}
    for name in ("usual", "played"):
        del cluster.objects[f"/api/v1/nodes/{name}"]
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
    cluster: ApiServer, kube: Kube
) -> None:
    cluster.fail("/nodes", 403)
    assert await kwok_nodes.simulated_nodes(kube) == (
        None,
        "whether nodes are simulated is unknown: no permission to list nodes",
    )
    cluster.fail("/nodes", 409)
    nodes, why = await kwok_nodes.simulated_nodes(kube)
    assert nodes is None
    assert why.startswith("whether nodes are simulated is unknown: ")
    assert "may not" not in why


@pytest.mark.parametrize(("fake", "message"), [(None, None), ({"n"}, True), (set(), False)])
def test_rows_say_whether_their_nodes_were_simulated(
    fake: set[str] | None, message: bool | None
) -> None:
    pod, now = Record("Pod", "a", "a", "ns", ""), time.monotonic_ns()
    pod.put("scheduled", received_ns=now)
    pod.node = "n"
    rows: list[Row] = list(
        rows_of(sent("a"), {"a": pod}, Clocks(0), run="r", kind="Pod", until_ns=now, simulated=fake)
    )
    assert {row.simulated for row in rows} == {message}
    assert on_simulated(rows) is message
    assert on_simulated([]) is False, "what never had a node is on none"
