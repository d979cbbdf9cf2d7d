"""Pairs of a gang of pods on a real cluster: rounds, placement proved, pairs at once; host-network gangs of one node."""  # noqa: E501

import json
from collections.abc import Iterator

import pytest

from perfdag.kube.client import Object

from .conftest import Namespace, installed

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
PING = """\
name: ping
pending_limit: 90s
entries:
  - benchmark: imb
    hosts: {count: 3, pairs: all, placement: packed}
    params: {benchmark: PingPong, max_log: 10, iterations: 20, oversubscribe: true}
"""
LATENCY = """\
name: latency
pending_limit: 90s
entries:
  - benchmark: latency
    hosts: {count: 3, pairs: all}
    params: {duration: 1s, response_size: 100}
    permutations:
      product: {test: [TCP_RR, TCP_CRR, UDP_RR]}
"""
HUNT = """\
name: hunt
pending_limit: 90s
entries:
  - benchmark: latency
    hosts: {count: 8, pairs: hunt, parallel_pairs: 2, placement: any}
    params: {duration: 1s}
"""
SPREAD = """\
name: spread
pending_limit: 20s
entries:
  - benchmark: iperf
    hosts: {count: 100, pairs: ring, placement: spread}
    params: {duration: 1s}
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


def test_ping_pong_between_all_pairs_of_hosts(bench: Namespace) -> None:
    rows = _measured(bench, PING)
    assert {row["pair"] for row in rows if row["metric"] == "zero_byte_latency"} == {
        "0-1",
        "0-2",
        "1-2",
    }


def test_latency_between_all_pairs_of_three_nodes(bench: Namespace) -> None:
    if len(bench.nodes()) < 3:
        pytest.skip("fewer than three real nodes")
    rows = _measured(bench, LATENCY)
    headlines = [row for row in rows if row["headline"]]
    assert sorted(str(row["pair"]) for row in headlines) == sorted(["0-1", "0-2", "1-2"] * 3)
    assert all(row["same_node"] is False and row["value"] > 10 for row in headlines)
    stats = {row["stat"] for row in rows if row["metric"] == "latency"}
    assert {"p50", "p90", "mean"} <= stats


def test_a_hunt_over_pods_of_all_nodes_scores_each_host(bench: Namespace) -> None:
    """The figures of pods that share two cores are no matter here, so either verdict is right."""
    run = bench.measure(HUNT, timeout=400)
    assert {row["status"] for row in run.rows} == {"ok"}, run.errors()
    rows = run.rows
    scores = {str(row["subject"]): row["value"] for row in rows if row["metric"] == "slowness"}
    assert sorted(name.split()[0] for name in scores) == [str(number) for number in range(8)]
    assert {name.split("(")[1].rstrip(")") for name in scores} <= set(bench.nodes())
    pairs = [row for row in rows if row["metric"] == "transaction_rate" and row["subject"]]
    first = [json.loads(str(row["coords"])) for row in pairs]
    assert sum(coords["round"] == 1 for coords in first) == 4, "each host once in a round"
    assert {coords["pairs_at_once"] for coords in first} <= {1, 2}
    [verdict] = [row for row in rows if row["metric"] == "verdict"]
    slow = verdict["value"] != 1
    assert slow or f"8 hosts cleared in {max(each['round'] for each in first)} rounds" in str(
        verdict
    )


def test_a_node_for_each_where_there_are_too_few_is_skipped_with_the_reason(
    bench: Namespace,
) -> None:
    run = bench.measure(SPREAD)
    assert run.exit_code == 0, "a skip is no failure"
    assert {row["status"] for row in run.rows} == {"skipped"}
    assert "100 nodes are asked for (placement: spread)" in str(run.rows[0]["error"])


@pytest.fixture
def privileged() -> Iterator[Namespace]:
    with installed("privileged") as namespace:
        yield namespace


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
