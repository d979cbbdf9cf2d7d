"""What other runs on the cluster would feel too, so nothing runs beside it: a node
taken whole.
"""

from collections.abc import Iterator
from itertools import combinations

import pytest

from perfdag.kube.client import Kube, run_with_client

from .conftest import Namespace, installed

pytestmark = [pytest.mark.argo, pytest.mark.slow]


@pytest.fixture
def zones(bench: Namespace) -> Iterator[list[str]]:
    """All nodes but the first, each in a zone of its own: perfdag-0, perfdag-1 and so on."""
    nodes = bench.nodes()[1:]
    if len(nodes) < 2:
        pytest.skip("fewer than three real nodes")

    async def label(client: Kube, on: bool) -> None:
        kind = "v1/Node"
        for number, node in enumerate(nodes):
            value = f"perfdag-{number}" if on else None
            await client.patch(
                kind, node, {"metadata": {"labels": {"topology.kubernetes.io/zone": value}}}
            )

    run_with_client(lambda client: label(client, True))
    yield nodes
    run_with_client(lambda client: label(client, False))


@pytest.fixture
def two_at_once() -> Iterator[Namespace]:
    """An installation that measures two batches at a time."""
    with installed("restricted", "--parallel-batches", "2") as namespace:
        yield namespace


def test_batches_at_once_have_a_node_each_in_their_zones(
    two_at_once: Namespace, zones: list[str]
) -> None:
    shape = (
        "hosts: {exclusive: true}, zones: [perfdag-0, perfdag-1], "
        "resources: {cpu: 1, memory: 300Mi}, volume: {kind: emptyDir, size: 64MiB}"
    )
    name = two_at_once.submit(
        "name: alone\npending_limit: 90s\nisolation: pod\nrepetitions: 2\nentries:\n"
        f"  - {{benchmark: command, name: one, {shape}, params: {{argv: [sleep, '6'], "
        f"expected: 6}}}}\n"
        f"  - {{benchmark: command, name: two, {shape}, params: {{argv: [sleep, '6.1'], "
        f"expected: 6}}}}\n"
    )
    pod = two_at_once.pod(name, 0)
    assert pod["status"]["qosClass"] == "Guaranteed"
    assert any("emptyDir" in each for each in pod["spec"]["volumes"] if each["name"] == "measured")
    run = two_at_once.finish(name)
    run.assert_ok()
    rows = [row for row in run.rows if row["headline"]]
    assert len(rows) == 4
    assert len({row["batch"] for row in rows}) == 4, "a pod for every sample"
    assert {node for row in rows for node in row["nodes"]} <= set(zones[:2])
    overlaps = [
        (one, two)
        for one, two in combinations(rows, 2)
        if one["started_at"] < two["finished_at"] and two["started_at"] < one["finished_at"]
    ]
    assert overlaps, "no two batches at once"
    assert all(one["nodes"] != two["nodes"] for one, two in overlaps), "two batches on a node"
