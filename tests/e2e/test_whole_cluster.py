"""What other runs on the cluster would feel too, so nothing runs beside these: a cordoned node, a killed controller, Multus, a node taken whole."""

import json
import os
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from perfdag.kube.client import Kube, run_with_client

from .conftest import Namespace, sleeps

NETWORK = ("NetworkAttachmentDefinition", "k8s.cni.cncf.io/v1")

pytestmark = [pytest.mark.argo, pytest.mark.slow]


def test_a_batch_waits_for_its_cordoned_node(bench: Namespace, tmp_path: Path) -> None:
    node = bench.nodes()[-1]
    shape = f"    node_selector: {{kubernetes.io/hostname: {node}}}\n"
    suite = sleeps(tmp_path, points=6, extra="batch_time: 3s\n", shape=shape)
    name = bench.submit(suite)
    run_id = bench.run_id(name)
    assert bench.pod(name, 0)["spec"]["nodeName"] == node

    async def cordon(client: Kube, on: bool) -> None:
        await client.patch(
            await client.resource("v1", "Node"), node, {"spec": {"unschedulable": on}}
        )

    run_with_client(lambda client: cordon(client, True))
    try:
        bench.until(
            lambda: "unschedulable" in bench.perfdag("status", name).stdout,
            90,
            "pod that waits for the node",
        )
    finally:
        run_with_client(lambda client: cordon(client, False))
    assert bench.watch(name).returncode == 0
    bench.assert_complete(run_id, 6)


@pytest.mark.skipif(
    not {"PERFDAG_TEST_CUT", "PERFDAG_TEST_HEAL"} <= os.environ.keys(),
    reason="PERFDAG_TEST_CUT and PERFDAG_TEST_HEAL name no commands that cut a node off and back",
)
def test_a_run_goes_on_without_a_node_that_is_lost(bench: Namespace, tmp_path: Path) -> None:
    def link(variable: str, node: str) -> None:
        argv = ["bash", "-c", os.environ[variable], "link", node]
        subprocess.run(argv, check=True, capture_output=True, timeout=30)

    suite = sleeps(tmp_path, points=8, seconds=4.0)
    suite.write_text(suite.read_text().replace("{count: 2}", "{count: 2, placement: spread}"))
    name = bench.submit(suite)
    run_id = bench.run_id(name)
    used = {bench.pod(name, rank)["spec"]["nodeName"] for rank in (0, 1)}
    bench.under_way(run_id)
    lost = max(used)  # the first node has the API server
    link("PERFDAG_TEST_CUT", lost)
    try:
        # Kubernetes calls a node NotReady after 50 s; pods are given up 60 s later.
        bench.until(lambda: "1" in bench.attempts(name), 240, "second gang")
        bench.until(
            lambda: (
                f"node {lost} was lost" in bench.perfdag("status", name).stdout
                or len(bench.stored(run_id)) == 8
            ),
            60,
            "reason, or all samples",
        )
    finally:
        link("PERFDAG_TEST_HEAL", lost)
    ended = bench.watch(name)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    bench.assert_complete(run_id, 8)


@pytest.mark.skipif(
    "PERFDAG_TEST_RESTART" not in os.environ,
    reason="PERFDAG_TEST_RESTART names no command that kills and restarts Argo",
)
def test_a_killed_controller_loses_nothing(bench: Namespace, tmp_path: Path) -> None:
    name = bench.submit(sleeps(tmp_path, points=12, extra="batch_time: 8s\n"))
    run_id = bench.run_id(name)
    bench.until(lambda: len(bench.stored(run_id)) >= 2, 120, "sample in the store")
    subprocess.run(
        ["bash", "-c", os.environ["PERFDAG_TEST_RESTART"]],
        check=True,
        capture_output=True,
        timeout=200,
    )
    said = bench.watch(name, timeout=400)
    assert said.returncode == 0, said.stdout + said.stderr
    bench.assert_complete(run_id, 12)
    assert len({row["batch"] for row in bench.rows(run_id)}) > 1, (
        "the controller had nothing left to do"
    )


@pytest.mark.skipif(
    "PERFDAG_TEST_NETWORK" not in os.environ,
    reason="PERFDAG_TEST_NETWORK names no Multus network (namespace/name)",
)
def test_what_multus_added_is_what_is_measured(bench: Namespace, tmp_path: Path) -> None:
    network, suite = os.environ["PERFDAG_TEST_NETWORK"], tmp_path / "multus.yaml"
    suite.write_text(
        "name: multus\npending_limit: 90s\nentries:\n"
        f"  - {{benchmark: iperf, network: {{name: {network}}}, params: {{duration: 5s}}}}\n"
        f"  - {{benchmark: iperf, name: absent, network: {{name: {bench.name}/absent}}, params: {{duration: 1s}}}}\n"
    )
    name = bench.submit(suite)
    told = [
        bench.pod(name, rank)["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"]
        for rank in (0, 1)
    ]
    added = {
        address
        for status in told
        for each in json.loads(status)
        if each.get("interface") == "net1"
        for address in each["ips"]
    }
    ended = bench.watch(name)
    rows = {row["entry"]: row for row in bench.rows(bench.run_id(name))}
    assert ended.returncode == 0, ended.stdout + ended.stderr
    facts = json.loads(rows["iperf"]["env"])["sample"]
    assert {facts["client_address"], facts["server_address"]} <= added
    assert rows["absent"]["status"] == "skipped"
    assert "no such NetworkAttachmentDefinition" in rows["absent"]["error"]


@pytest.fixture
def network(bench: Namespace) -> Iterator[str]:
    """The name of a network that Multus would add; where there is no Multus only its kind is made, and nothing reads the annotation."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    kind = {
        "plural": "network-attachment-definitions",
        "singular": "network-attachment-definition",
        "kind": NETWORK[0],
    }
    versions = [
        {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    ]
    called = "network-attachment-definitions.k8s.cni.cncf.io"
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": called},
    }
    if bench.has(*NETWORK):
        pytest.skip("Multus is here: its networks have configurations of their own")
    run_with_client(
        lambda client: client.create(
            {
                **crd,
                "spec": {
                    "group": "k8s.cni.cncf.io",
                    "scope": "Namespaced",
                    "names": kind,
                    "versions": versions,
                },
            }
        )
    )
    try:
        bench.until(lambda: bench.has(*NETWORK), 30, "kind of Multus")
        body = {"apiVersion": NETWORK[1], "kind": NETWORK[0], "metadata": {"name": "extra"}}
        run_with_client(lambda client: client.create(body, bench.name))
        yield f"{bench.name}/extra"
    finally:
        bench.delete("CustomResourceDefinition", called, "apiextensions.k8s.io/v1")


def test_a_network_of_multus_is_asked_for_and_its_interface_measured(
    bench: Namespace, network: str, tmp_path: Path
) -> None:
    suite = tmp_path / "multus.yaml"
    suite.write_text(
        "name: multus\npending_limit: 90s\nentries:\n"
        f"  - {{benchmark: iperf, network: {{name: {network}, interface: eth0}}, params: {{duration: 1s}}}}\n"
    )
    name = bench.submit(suite)
    pod = bench.pod(name, 1)
    assert pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"] == network
    ended = bench.watch(name)
    rows = bench.rows(bench.run_id(name))
    assert ended.returncode == 0, [row["error"] for row in rows if row["error"]]
    assert {row["status"] for row in rows} == {"ok"}


def test_batches_on_either_network_are_measured_in_the_plans_order(
    bench: Namespace, network: str, tmp_path: Path
) -> None:
    suite = tmp_path / "either.yaml"
    suite.write_text(
        "name: either\npending_limit: 90s\nrepetitions: 3\nentries:\n"
        f"  - {{benchmark: command, name: fast, network: {{name: {network}, interface: eth0}}, params: {{argv: [sleep, '0.1']}}}}\n"
        "  - {benchmark: command, name: plain, params: {argv: [sleep, '0.1']}}\n"
    )
    name = bench.submit(suite)
    ended = bench.watch(name)
    rows = sorted(
        (row for row in bench.rows(bench.run_id(name)) if row["headline"]),
        key=lambda row: row["started_at"],
    )
    assert ended.returncode == 0, [row["error"] for row in rows if row["error"]]
    assert [row["batch"] for row in rows] == list(range(6))
    turns = [row["entry"] for row in rows]
    assert all({*turns[first : first + 2]} == {"fast", "plain"} for first in range(0, 6, 2)), turns


def test_a_guaranteed_pod_and_gangs_that_have_the_node_for_themselves(
    bench: Namespace, tmp_path: Path
) -> None:
    suite = tmp_path / "alone.yaml"
    shape = "hosts: {exclusive: true}, resources: {cpu: 1, memory: 300Mi}, volume: {kind: emptyDir, size: 64MiB}"
    suite.write_text(
        "name: alone\npending_limit: 90s\nbatch_time: 1s\nentries:\n"
        f"  - {{benchmark: command, name: one, {shape}, params: {{argv: [sleep, '1'], expected: 1}}}}\n"
        f"  - {{benchmark: command, name: two, {shape}, params: {{argv: [sleep, '1.1'], expected: 1}}}}\n"
    )
    name = bench.submit(suite)
    pod = bench.pod(name, 0)
    assert pod["status"]["qosClass"] == "Guaranteed"
    assert any("emptyDir" in each for each in pod["spec"]["volumes"] if each["name"] == "measured")
    ended = bench.watch(name)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = sorted(bench.rows(bench.run_id(name)), key=lambda row: row["started_at"])
    assert [row["status"] for row in rows] == ["ok", "ok"]
    assert all(before["finished_at"] <= after["started_at"] for before, after in pairwise(rows))
