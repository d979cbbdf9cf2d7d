"""Where client and server are, and how one reaches the other: roles, zones, Services, node
ports, and no CPU quota.
"""

from collections.abc import Iterator

import orjson
import pytest

from perfdag.kube.client import Kube, run_with_client
from perfdag.kube.patch import ZONE

from .conftest import Namespace, installed

pytestmark = [pytest.mark.argo, pytest.mark.slow]
SIDE = "perfdag-e2e/side"
SUITE = """\
name: paths
pending_limit: 120s
entries:
  - benchmark: iperf
    name: paths
    params: {duration: 1s}
    permutations: {product: {network.path: [pod, service, nodeport, host]}}
  - benchmark: iperf
    name: datagrams
    params: {duration: 1s, protocol: udp, rate: 10Mbit/s}
    permutations: {product: {network.path: [service, nodeport]}}
  - benchmark: latency
    name: transactions
    params: {duration: 1s}
    permutations: {product: {network.path: [service, nodeport], test: [TCP_RR, TCP_CRR, UDP_RR]}}
  - benchmark: iperf
    name: zones
    hosts: {count: 3, pairs: across-zones}
    network: {path: service}
    params: {duration: 1s}
  - benchmark: iperf
    name: roles
    hosts: &roles
      roles:
        client: {node_selector: {perfdag-e2e/side: right}}
        server: {node_selector: {perfdag-e2e/side: left}}
    params: {duration: 1s}
  - benchmark: iperf
    name: nobody
    hosts: {roles: {client: {node_selector: {perfdag-e2e/side: nowhere}}}}
  - benchmark: iperf
    name: six
    network: {path: service, family: ipv6}
  - benchmark: command
    name: quota
    resources: {memory: 512Mi, requests: {cpu: 100m}}
    params: {argv: [sh, -c, "grep -Eqs '^(max|-1)' /sys/fs/cgroup/cpu.max /sys/fs/cgroup/cpu/cpu.cfs_quota_us"]}
"""  # noqa: E501


@pytest.fixture
def zoned() -> Iterator[tuple[Namespace, list[str]]]:
    """Three nodes, each in a zone of its own in the opposite order of their names; two have a
    side.
    """
    with installed("privileged") as namespace:
        ready = {
            node["metadata"]["name"]
            for node in namespace.objects("Node")
            for condition in node["status"]["conditions"]
            if condition["type"] == "Ready" and condition["status"] == "True"
        }
        names = [name for name in namespace.nodes() if name in ready][:3]
        if len(names) < 3:
            pytest.skip("fewer than three real nodes")
        sides = ("left", "right", None)
        zones = ("z-3", "z-2", "z-1")

        async def label(client: Kube, remove: bool) -> None:
            kind = "v1/Node"
            for name, zone, side in zip(names, zones, sides, strict=True):
                labels = {ZONE: None if remove else zone, SIDE: None if remove else side}
                await client.patch(kind, name, {"metadata": {"labels": labels}})

        run_with_client(lambda client: label(client, False))
        try:
            yield namespace, names
        finally:
            run_with_client(lambda client: label(client, True))


def test_paths_roles_and_zones(zoned: tuple[Namespace, list[str]]) -> None:
    bench, (left, right, third) = zoned
    run = bench.measure(SUITE, timeout=900)
    rows = [row for row in run.rows if row["headline"] or row["error"]]
    by_entry: dict[str, list[dict[str, object]]] = {}
    for row in rows:
        by_entry.setdefault(str(row["entry"]), []).append(row)
    errors = run.errors()

    assert {row["status"] for row in by_entry["nobody"] + by_entry["six"]} == {"skipped"}, errors
    assert "no node takes the client (hosts.roles.client: perfdag-e2e/side=nowhere)" in str(
        by_entry["nobody"][0]["error"]
    )
    assert "no Service of type ClusterIP for network.path" in str(by_entry["six"][0]["error"])
    good = {"paths": 4, "datagrams": 2, "transactions": 6, "zones": 3, "roles": 1, "quota": 1}
    assert {entry: len(by_entry[entry]) for entry in good} == good, errors
    assert {row["status"] for entry in good for row in by_entry[entry]} == {"ok"}, errors
    assert run.exit_code == 0

    reached = {
        orjson.loads(str(row["shape"]))["network"]["path"]: orjson.loads(str(row["env"]))["sample"]
        for row in by_entry["paths"]
    }
    addresses = [reached[path]["server_address"] for path in ("pod", "service", "nodeport")]
    assert len(set(addresses)) == 3, "the pod, its Service and its node"
    assert [row["nodes"] for row in by_entry["roles"]] == [[right, left]]
    pairs = {str(row["pair"]): row["nodes"] for row in by_entry["zones"]}
    assert pairs == {"0-1": [third, right], "0-2": [third, left], "1-2": [right, left]}
    assert bench.objects("Service") == [], "finish deletes their Leases"
