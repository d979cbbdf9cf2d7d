"""A link that became slow is called worse after one run before and one after. Every pod of the shaped node feels it, so nothing runs beside this."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfdag.kube.client import Kube, run_with_client

from .conftest import Namespace

COMMANDS = ("PERFDAG_TEST_SHAPE", "PERFDAG_TEST_UNSHAPE")
LABEL = "perfdag-test-link"

pytestmark = [
    pytest.mark.argo,
    pytest.mark.slow,
    pytest.mark.skipif(
        not set(COMMANDS) <= os.environ.keys(),
        reason=f"{' and '.join(COMMANDS)} name no commands that slow the link of a node and free it",
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


def measure(bench: Namespace, suite: Path, nodes: list[str]) -> str:
    """Run the suite over both nodes; return the run id."""
    name = bench.submit(suite)
    run_id = bench.run_id(name)
    end = bench.watch(name)
    assert end.returncode == 0, end.stdout + end.stderr
    rows = [row for row in bench.rows(run_id) if row["headline"]]
    assert [row["status"] for row in rows] == ["ok"] * 3, [row["error"] for row in rows]
    assert all(sorted(row["nodes"]) == nodes and row["same_node"] is False for row in rows)
    return run_id


def test_a_slow_link_is_called_worse_after_one_run_before_and_one_after(
    bench: Namespace, pair: list[str], tmp_path: Path
) -> None:
    suite = tmp_path / "link.yaml"
    suite.write_text(
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
