"""Pairs of a gang of pods on a real cluster: rounds, placement proved, pairs at once; host-network gangs of one node."""  # noqa: E501

import pytest

from perfdag.kube.client import Object

from .conftest import Namespace

pytestmark = [pytest.mark.argo, pytest.mark.slow]
PAIRS = """\
name: pairs
pending_limit: 90s
entries:
  - benchmark: iperf
    hosts: {count: 4, pairs: all, placement: packed}
    params: {duration: 1s}
  - benchmark: iperf
    name: at-once
    hosts: {count: 4, pairs: ring, parallel_pairs: 2, placement: packed}
    params: {duration: 2s}
"""
HOST = """\
name: host
pending_limit: 60s
entries:
  - benchmark: iperf
    hosts: {placement: packed}
    network: {host: true}
    params: {duration: 1s}
  - benchmark: rdma-bandwidth
    hosts: {placement: packed}
    network: {host: true}
    params: {mode: read, sizes: [65536]}
  - benchmark: rdma-latency
    hosts: {placement: packed}
    network: {host: true}
    params: {mode: read, sizes: [2]}
"""


def _measured(bench: Namespace, suite: str) -> list[Object]:
    """The rows of a suite whose samples are all ok."""
    run = bench.measure(suite, timeout=400)
    run.assert_ok()
    return run.rows


def test_every_pair_of_a_gang_is_measured_and_placed(bench: Namespace) -> None:
    rows = _measured(bench, PAIRS)
    result = {(row["entry"], row["pair"]) for row in rows}
    assert {pair for entry, pair in result if entry == "iperf"} == {
        "0-1",
        "0-2",
        "0-3",
        "1-2",
        "1-3",
        "2-3",
    }
    assert {pair for entry, pair in result if entry == "at-once"} == {"0-1", "1-2", "2-3", "0-3"}
    assert {row["same_node"] for row in rows} == {True}
    assert {len(row["nodes"]) for row in rows} == {2}
    assert {
        '"pairs_at_once":2' in str(row["env"]) for row in rows if row["entry"] == "at-once"
    } == {True}
    assert len({row["batch"] for row in rows}) == 2, "the pairs of a shape share a gang"


def test_host_network_pods_of_one_node_have_ports_of_their_own(privileged: Namespace) -> None:
    rows = privileged.measure(HOST).rows
    result = {(row["entry"], row["status"]) for row in rows}
    assert result == {
        ("iperf", "ok"),
        ("rdma-bandwidth", "skipped"),
        ("rdma-latency", "skipped"),
    }, [row["error"] for row in rows]
    for row in rows:
        assert row["same_node"] is True
        assert row["status"] == "ok" or "no RDMA device" in str(row["error"])
