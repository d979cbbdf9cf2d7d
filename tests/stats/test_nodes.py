"""The slow node or link is named, and nobody else."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from perfdag.stats.nodes import outliers, slow_parts
from perfdag.suite.pairs import rounds


def cluster(
    rng: np.random.Generator, slow: float | None, between: float, within: float, n: int
) -> dict[str, np.ndarray]:
    levels = np.exp(rng.normal(0, between, 12))
    if slow is not None:
        levels[7] *= 1 - slow
    return {f"n{i}": level * np.exp(rng.normal(0, within, n)) for i, level in enumerate(levels)}


@pytest.mark.parametrize(
    ("between", "within", "n"),
    [(0.0, 0.02, 10), (0.005, 0.02, 20), (0.01, 0.01, 5), (0.005, 0.03, 30)],
)
def test_of_twelve_nodes_the_one_eight_percent_slow_is_named(
    between: float, within: float, n: int
) -> None:
    rng = np.random.default_rng(11)
    named = [outliers(cluster(rng, 0.08, between, within, n)) for _ in range(120)]
    assert sum([o.node for o in result] == ["n7"] for result in named) >= 114
    clean = [outliers(cluster(rng, None, between, within, n)) for _ in range(300)]
    assert sum(bool(result) for result in clean) <= 3


def test_few_nodes_or_values_name_nobody() -> None:
    assert outliers({"a": [1, 1, 1], "b": [1, 1, 1], "c": [0.5, 0.5, 0.5]}) == []
    assert outliers({name: [1.0, 1.0] for name in "abcd"}) == []


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
    ("seed", "fault", "slow"),
    [(5, {"node": 2}, ("node", "n2")), (6, {"link": (2, 3)}, ("link", "n2 - n3"))],
)
@pytest.mark.parametrize(
    ("kind", "hosts", "n"),
    [("all", 5, 1), ("all", 8, 1), ("all", 16, 3), ("ring", 8, 1), ("ring", 9, 3)],
)
def test_the_slow_node_or_link_is_named_and_nothing_beside_it(
    kind: str, hosts: int, n: int, seed: int, fault: dict[str, Any], slow: tuple[str, str]
) -> None:
    rng = np.random.default_rng(seed)
    results = [slow_parts(measured(rng, kind, hosts, n, **fault), True) for _ in range(80)]
    named = [[(part.kind, part.name) for part in result] for result in results]
    assert sum(parts == [slow] for parts in named) >= 76


@pytest.mark.parametrize(
    ("kind", "hosts", "n"),
    [("all", 4, 1), ("all", 8, 1), ("all", 16, 1), ("ring", 5, 1), ("ring", 16, 2)],
)
def test_a_quiet_cluster_names_nobody(kind: str, hosts: int, n: int) -> None:
    rng = np.random.default_rng(7)
    assert sum(bool(slow_parts(measured(rng, kind, hosts, n), True)) for _ in range(150)) <= 3


def test_latency_is_slow_where_it_is_high_and_effects_have_a_sign() -> None:
    rng = np.random.default_rng(8)
    values = {
        link: [1 / item for item in result]
        for link, result in measured(rng, "all", 6, 2, node=1, by=0.5).items()
    }
    assert [part.text[:9] for part in slow_parts(values, False)] == ["node n1 ("]
    assert slow_parts(values, False)[0].effect == pytest.approx(1.0, rel=0.1)
    (part,) = slow_parts(measured(rng, "all", 6, 2, node=1, by=0.5), True)
    assert part.effect == pytest.approx(-0.5, rel=0.1)


def test_a_faster_node_and_three_hosts_name_nobody() -> None:
    rng = np.random.default_rng(9)
    assert not slow_parts(measured(rng, "all", 6, 2, node=1, by=2.0), True)
    three = {pair: [1.0 if "a" in pair else 0.5] for pair in combinations("abc", 2)}
    assert not slow_parts(three, True)
