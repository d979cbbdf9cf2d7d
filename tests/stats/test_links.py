"""Pairs of nodes: the slow node is named as a node, the slow link as a link, and quiet clusters
name nobody.
"""

from itertools import combinations

import numpy as np
import pytest

from perfdag.stats.links import slow
from perfdag.suite.host_pairs import rounds


def measured(
    rng: np.random.Generator,
    kind: str,
    hosts: int,
    n: int,
    node: int | None = None,
    link: tuple[int, int] | None = None,
    by: float = 0.8,
) -> dict[tuple[str, str], list[float]]:
    result = {}
    for a, b in (pair for round in rounds(kind, hosts) for pair in round):
        level = by if node in (a, b) or (a, b) == link else 1.0
        result[f"n{a}", f"n{b}"] = [
            1e10 * level * float(np.exp(rng.normal(0, 0.01))) for _ in range(n)
        ]
    return result


@pytest.mark.parametrize(
    ("kind", "hosts", "n"),
    [("all", 4, 1), ("all", 8, 1), ("all", 16, 3), ("ring", 8, 1), ("ring", 9, 3)],
)
def test_the_slow_node_is_named_and_not_its_links(kind: str, hosts: int, n: int) -> None:
    rng = np.random.default_rng(5)
    messages = [
        [item.names for item in slow(measured(rng, kind, hosts, n, node=2), True)]
        for _ in range(200)
    ]
    assert sum(item == [("n2",)] for item in messages) >= 190


@pytest.mark.parametrize(
    ("kind", "hosts", "n"),
    [("all", 5, 1), ("all", 8, 1), ("all", 16, 3), ("ring", 8, 1), ("ring", 9, 3)],
)
def test_the_slow_link_is_named_and_not_its_nodes(kind: str, hosts: int, n: int) -> None:
    rng = np.random.default_rng(6)
    messages = [
        [item.names for item in slow(measured(rng, kind, hosts, n, link=(2, 3)), True)]
        for _ in range(200)
    ]
    assert sum(item == [("n2", "n3")] for item in messages) >= 190


@pytest.mark.parametrize(
    ("kind", "hosts", "n"),
    [("all", 4, 1), ("all", 8, 1), ("all", 16, 1), ("ring", 5, 1), ("ring", 16, 2)],
)
def test_a_quiet_cluster_names_nobody(kind: str, hosts: int, n: int) -> None:
    rng = np.random.default_rng(7)
    assert sum(bool(slow(measured(rng, kind, hosts, n), True)) for _ in range(300)) <= 6


def test_latency_is_slow_where_it_is_high_and_effects_have_a_sign() -> None:
    rng = np.random.default_rng(8)
    values = {
        link: [1 / item for item in result]
        for link, result in measured(rng, "all", 6, 2, node=1, by=0.5).items()
    }
    (one,) = slow(values, False)
    assert one.names == ("n1",)
    assert one.effect == pytest.approx(1.0, rel=0.1)
    (other,) = slow(measured(rng, "all", 6, 2, node=1, by=0.5), True)
    assert other.effect == pytest.approx(-0.5, rel=0.1)


def test_a_faster_node_and_three_hosts_name_nobody() -> None:
    rng = np.random.default_rng(9)
    assert slow(measured(rng, "all", 6, 2, node=1, by=2.0), True) == []
    three = {pair: [1.0 if "a" in pair else 0.5] for pair in combinations("abc", 2)}
    assert slow(three, True) == []
