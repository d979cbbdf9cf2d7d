"""A link that became slow is called worse, and a slow node is named by pairs and by a hunt.

Every pod of the shaped node feels it, so nothing runs beside this.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from perfdag.charts.benchmarks import pairs
from perfdag.kube.client import Kube, run_with_client
from perfdag.results.collect import gather
from perfdag.results.runs import load_plan
from perfdag.store.open import open_store

from .conftest import Namespace

COMMANDS = ("PERFDAG_TEST_SHAPE", "PERFDAG_TEST_UNSHAPE")
LABEL = "perfdag-test-link"
SLOT = "example.com/perfdag-slot"
"""A resource of the nodes that says how many pods of a gang each takes."""
PAIRS = f"""\
name: pairs
pending_limit: 120s
defaults: {{resources: {{{SLOT}: 1}}, hosts: {{count: 5, pairs: all, placement: any}}}}
entries:
  - {{benchmark: iperf, params: {{duration: 1s}}}}
  - {{benchmark: latency, params: {{duration: 1s, request_size: 64KiB, response_size: 64KiB}}}}
  - {{benchmark: imb, repetitions: 3, params: {{min_log: 22, iterations: 20, oversubscribe: true}}}}
"""
"""Messages are large, since the link is shaped by its rate: small ones pass at once."""
HUNT = f"""\
name: hunt
pending_limit: 120s
entries:
  - benchmark: iperf
    resources: {{{SLOT}: 1}}
    hosts: {{count: 8, pairs: hunt, parallel_pairs: 2, placement: any}}
    params: {{duration: 1s}}
"""

pytestmark = [
    pytest.mark.argo,
    pytest.mark.slow,
    pytest.mark.skipif(
        not set(COMMANDS) <= os.environ.keys(),
        reason=f"{' and '.join(COMMANDS)} name no commands that slow and free a node's link",
    ),
]


def change_link(command: str, node: str) -> None:
    """Run the command of an environment variable with the name of a node."""
    argv = ["bash", "-c", os.environ[command], "link", node]
    subprocess.run(argv, check=True, timeout=30)


@pytest.fixture
def pair(bench: Namespace) -> Iterator[list[str]]:
    """Two nodes with a label of their own; the first node has the API server and is left out."""
    nodes = bench.nodes()[1:3]
    if len(nodes) < 2:
        pytest.skip("fewer than three real nodes")

    async def label(client: Kube, value: str | None) -> None:
        kind = await client.resource("v1", "Node")
        for node in nodes:
            await client.patch(kind, node, {"metadata": {"labels": {LABEL: value}}})

    try:
        run_with_client(lambda client: label(client, "yes"))
        yield nodes
    finally:
        run_with_client(lambda client: label(client, None))


def measure(bench: Namespace, suite: str, nodes: list[str]) -> str:
    """Run the suite over both nodes; return the run id."""
    run = bench.measure(suite)
    run.assert_ok()
    rows = [row for row in run.rows if row["headline"]]
    assert len(rows) == 3
    assert all(sorted(row["nodes"]) == nodes and row["same_node"] is False for row in rows)
    return run.id


def test_a_slow_link_is_called_worse_after_one_run_before_and_one_after(
    bench: Namespace, pair: list[str]
) -> None:
    suite = (
        "name: link\npending_limit: 120s\nrepetitions: 3\nentries:\n  - benchmark: iperf\n"
        f"    hosts: {{count: 2}}\n    node_selector: {{{LABEL}: 'yes'}}\n"
        "    params: {duration: 3s}\n"
    )
    before = measure(bench, suite, pair)
    try:
        change_link("PERFDAG_TEST_SHAPE", pair[1])
        after = measure(bench, suite, pair)
    finally:
        change_link("PERFDAG_TEST_UNSHAPE", pair[1])
    argv = [sys.executable, "-m", "perfdag", "compare", before, after, "--store", bench.store]
    compared = subprocess.run(
        [*argv, "--gate"], capture_output=True, text=True, timeout=120, check=False
    )
    assert compared.returncode == 3, compared.stdout + compared.stderr
    lines = compared.stdout.splitlines()
    at = lines.index("iperf throughput between nodes")
    verdict = "\n".join(lines[at + 1 : at + 3])  # below the name: the values, then the verdict
    assert verdict.endswith("worse (noise assumed)"), compared.stdout


@contextlib.contextmanager
def slow_node(bench: Namespace, *others: int) -> Iterator[str]:
    """A node with a slow link that takes one pod of a gang; the other nodes take `others`."""
    *fast, slow = bench.nodes()[:3]
    if len(fast) < 2:
        pytest.skip("fewer than three real nodes")

    async def take(client: Kube, on: bool) -> None:
        kind = await client.resource("v1", "Node")
        for node, pods in zip([*fast, slow], [*others, 1], strict=True):
            slots = {SLOT: str(pods) if on else None}
            status = {"status": {"capacity": slots, "allocatable": slots}}
            await client.patch(kind, node, status, subresource="status")

    run_with_client(lambda client: take(client, True))
    change_link("PERFDAG_TEST_SHAPE", slow)
    try:
        yield slow
    finally:
        change_link("PERFDAG_TEST_UNSHAPE", slow)
        run_with_client(lambda client: take(client, False))


def test_pairs_of_each_benchmark_name_a_slow_node(bench: Namespace) -> None:
    with slow_node(bench, 2, 2) as slow:
        run = bench.measure(PAIRS, timeout=500)
    assert run.exit_code == 0, run.output
    store = open_store(bench.store)
    table, _ = gather(store, load_plan(store, run.id))
    titles = [
        " ".join(text.get_text().split())
        for _, figure in pairs.figures(table)
        for text in figure.texts
        if text.get_gid() == "title"
    ]
    for metric in ("throughput", "transaction rate", "peak bandwidth"):
        [title] = [each for each in titles if f"slow in {metric} between nodes" in each]
        assert title.count("(node-") == 1, title
        assert f"({slow}) (-" in title


def test_a_hunt_names_a_slow_node(bench: Namespace) -> None:
    with slow_node(bench, 4, 3) as slow:
        run = bench.measure(HUNT, timeout=500)
    assert {row["status"] for row in run.rows} == {"ok"}, run.errors()
    scores = {row["value"]: row["subject"] for row in run.rows if row["metric"] == "slowness"}
    [verdict] = [row for row in run.rows if row["metric"] == "verdict"]
    assert f"({slow})" in scores[max(scores)]
    assert verdict["value"] == 0, verdict["note"]
    assert verdict["note"].startswith(f"{scores[max(scores)]} is "), verdict["note"]
