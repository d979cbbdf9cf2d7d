"""ResNet-50's benchmarks in pods: LoadGen against the stub, alone and as two copies in pods of one
node, and the real model where its image is.

The stub runs in the small image `loadgen`, the model in `resnet50`, which holds PyTorch:
`images/build base loadgen`, `images/build base resnet50`, and load them into the node.
"""

from typing import Any

import pytest

from perfdag.kube.client import Kube, run_with_client

from .conftest import IMAGES, Namespace

pytestmark = [pytest.mark.argo, pytest.mark.slow]
STUB = """\
name: stub
pending_limit: 180s
defaults:
  image: loadgen
  params: {system: stub, scenario: single-stream, stub: {base: 5ms}, min_queries: 100, min_duration: 8s}
entries:
  - benchmark: resnet50
  - benchmark: resnet50-interference
    hosts: {count: 2, placement: packed}
    params: {copies: 2}
"""  # noqa: E501
MODEL = """\
name: model
pending_limit: 180s
entries:
  - benchmark: resnet50
    params: {scenario: offline, fast: true, threads: 1, samples: 4}
"""


def _needs(name: str) -> None:
    """Skip where no real node has the image, and say how it comes there."""
    image = IMAGES.replace("{name}", name)

    async def nodes(client: Kube) -> list[dict[str, Any]]:
        return await client.list(await client.resource("v1", "Node"))

    there = {
        each
        for node in run_with_client(nodes)
        for held in node["status"].get("images") or []
        for each in held.get("names") or []
    }
    if image not in there:
        pytest.skip(
            f"NOT RUN: no node has {image}: images/build base {name}, and load it into the node"
        )


def _rows(bench: Namespace, suite: str) -> list[dict[str, Any]]:
    run = bench.measure(suite, timeout=900)
    run.assert_ok()
    return run.rows


def test_loadgen_measures_a_stub_in_a_pod_and_two_copies_in_pods_of_one_node(
    bench: Namespace,
) -> None:
    _needs("loadgen")
    rows = _rows(bench, STUB)
    [median] = [
        row["value"]
        for row in rows
        if (row["benchmark"], row["metric"], row["stat"]) == ("resnet50", "latency", "p50")
    ]
    assert 0.005 <= median < 0.05
    beside = [row for row in rows if row["benchmark"] == "resnet50-interference"]
    result = {
        row["metric"]: row["value"]
        for row in beside
        if row["metric"] in ("overlap", "rate_kept", "fairness")
    }
    assert result["overlap"] > 0.8
    assert (
        result["rate_kept"] > 0.5
    )  # copies that share no lock get in each other's way no more than other work of the node does
    assert result["fairness"] > 0.8
    assert {row["same_node"] for row in beside} == {True}


def test_the_real_model_runs_in_a_pod(bench: Namespace) -> None:
    _needs("resnet50")
    [rate] = [row for row in _rows(bench, MODEL) if row["metric"] == "throughput"]
    assert rate["value"] > 0
    assert "not comparable" in str(rate["coords"])
