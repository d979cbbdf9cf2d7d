"""A node with a slow link is named by pairs and by a hunt.

Every pod of the shaped node feels it, so nothing runs beside this.
"""

import contextlib
import os
import subprocess
from collections.abc import Iterator

import pytest

from perfdag.charts.benchmarks import pair_figures
from perfdag.kube.client import Kube, run_with_client
from perfdag.results.collect import gather
from perfdag.results.run_store import report_key, stored_plan
from perfdag.results.summary import points_of
from perfdag.store.s3 import open_store

from .conftest import Namespace

COMMANDS = ("PERFDAG_TEST_SHAPE", "PERFDAG_TEST_UNSHAPE")
SLOT = "example.com/perfdag-slot"
"""A resource of the nodes that says how many pods of a gang each takes."""
PAIRS = f"""\
name: pairs
pending_limit: 120s
defaults: {{resources: {{{SLOT}: 1}}, hosts: {{count: 5, pairs: all, placement: any}}}}
entries:
  - {{benchmark: iperf, params: {{duration: 1s}}}}
  - {{benchmark: latency, params: {{duration: 1s, request_size: 64KiB, response_size: 64KiB}}}}
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


@contextlib.contextmanager
def slow_node(bench: Namespace, *others: int) -> Iterator[str]:
    """A node with a slow link that takes one pod of a gang; the other nodes take `others`."""
    *fast, slow = bench.nodes()[:3]
    if len(fast) < 2:
        pytest.skip("fewer than three real nodes")

    async def take(client: Kube, on: bool) -> None:
        for node, pods in zip([*fast, slow], [*others, 1], strict=True):
            slots = {SLOT: str(pods) if on else None}
            status = {"status": {"capacity": slots, "allocatable": slots}}
            await client.patch("v1/Node", node, status, subresource="status")

    run_with_client(lambda client: take(client, True))
    change_link("PERFDAG_TEST_SHAPE", slow)
    try:
        yield slow
    finally:
        change_link("PERFDAG_TEST_UNSHAPE", slow)
        run_with_client(lambda client: take(client, False))


def test_pairs_name_a_slow_node(bench: Namespace) -> None:
    with slow_node(bench, 2, 2) as slow:
        run = bench.measure(PAIRS, timeout=500)
    assert run.exit_code == 0, run.output
    store = open_store(bench.store)
    table, _ = gather(store, stored_plan(store, run.id))
    titles = [
        " ".join(text.get_text().split())
        for _, figure in pair_figures(points_of(table), table)
        for text in figure.texts
        if text.get_gid() == "title"
    ]
    for metric in ("throughput", "transaction rate"):
        [title] = [each for each in titles if f"Slow in {metric} between nodes" in each]
        assert title.count("(node-") == 1, title
        assert f"({slow}) (-" in title
    report = store.get(report_key(run.id)).decode()
    assert f"({slow}) is slow: " in report.partition("<h2")[0]


def test_a_hunt_names_a_slow_node(bench: Namespace) -> None:
    with slow_node(bench, 4, 3) as slow:
        run = bench.measure(HUNT, timeout=500)
    assert {row["status"] for row in run.rows} == {"ok"}, run.errors()
    scores = {row["value"]: row["subject"] for row in run.rows if row["metric"] == "slowness"}
    [verdict] = [row for row in run.rows if row["metric"] == "verdict"]
    assert f"({slow})" in scores[max(scores)]
    assert verdict["value"] == 0, verdict["note"]
    assert verdict["note"].startswith(f"{scores[max(scores)]} is "), verdict["note"]
