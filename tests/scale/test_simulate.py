"""Simulated nodes and systems: what `perfdag scale nodes` and `simulate` create."""

import time
from typing import Any

import pytest

from perfdag.kube.client import Kube, KubeError
from perfdag.steps.scale.cluster import nodes as kwok_nodes
from perfdag.steps.scale.figures.rows import Clocks, Row, on_simulated, rows_of
from perfdag.steps.scale.model.stages import Record
from tests.fakes.api_server import ApiServer

from .test_completion import submissions_of

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


@pytest.mark.parametrize("ours", [False, True], ids=["without our label", "with our label"])
async def test_a_real_node_of_that_name_is_neither_changed_nor_deleted(
    ours: bool, cluster: ApiServer, kube: Kube
) -> None:
    cluster.add(node("perfdag-sim-0", 2, simulated=ours))
    with pytest.raises(KubeError, match="perfdag-sim-0 was not created by perfdag"):
        await kwok_nodes.make_nodes(kube, 1, 8)
    await kwok_nodes.make_nodes(kube, 2, 8, prefix="other-")
    assert await kwok_nodes.remove_nodes(kube) == 2
    (kept,) = cluster.of("Node")
    assert kept["status"]["allocatable"] == {GPU: "2"}


async def test_those_that_were_asked_for_are_waited_for_and_no_others(
    cluster: ApiServer, kube: Kube
) -> None:
    for name in ("perfdag-sim-0", "perfdag-sim-7", "other-0"):
        cluster.add(node(name, 8, simulated=True))
    assert await kwok_nodes.nodes_ready(kube, 1, 0.1)
    assert not await kwok_nodes.nodes_ready(kube, 2, 0.1)
    assert await kwok_nodes.nodes_ready(kube, 1, 0.1, prefix="other-")


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
        rows_of(
            submissions_of("a"),
            {"a": pod},
            Clocks(0),
            run="r",
            kind="Pod",
            until_ns=now,
            simulated=fake,
        )
    )
    assert {row.simulated for row in rows} == {message}
    assert on_simulated(rows) is message
    assert on_simulated([]) is False, "what never had a node is on none"
