"""ResNet-50's benchmarks in pods: LoadGen against the stub, alone and as two copies in pods of one
node.

The stub runs in the small image `loadgen`, which `images/build base loadgen` makes.
"""

import pytest

from .conftest import IMAGES, Namespace

pytestmark = [pytest.mark.argo, pytest.mark.slow]
STUB = """\
name: stub
pending_limit: 180s
defaults:
  image: loadgen
  params: {system: stub, scenario: single-stream, stub: {base: 5ms}, min_queries: 100, min_duration: 12s}
entries:
  - benchmark: resnet50
  - benchmark: resnet50-interference
    hosts: {count: 2, placement: packed}
    params: {copies: 2}
"""  # noqa: E501


def test_loadgen_measures_a_stub_in_a_pod_and_two_copies_in_pods_of_one_node(
    bench: Namespace,
) -> None:
    image = IMAGES.replace("{name}", "loadgen")
    if image not in str([node["status"].get("images") for node in bench.objects("Node")]):
        pytest.skip(f"NOT RUN: no node has {image}")
    run = bench.measure(STUB, timeout=900)
    run.assert_ok()  # copies that overlap too little are invalid
    [median] = [
        row["value"]
        for row in run.rows
        if (row["benchmark"], row["metric"], row["stat"]) == ("resnet50", "latency", "p50")
    ]
    assert 0.005 <= median < 0.05
    beside = [row for row in run.rows if row["benchmark"] == "resnet50-interference"]
    kept = [row["value"] for row in beside if row["metric"] == "rate_kept"]
    # Copies that share no lock get in each other's way no more than other work of the node does.
    assert min(kept) > 0.5
    assert {row["same_node"] for row in beside} == {True}
