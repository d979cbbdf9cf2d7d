"""`hosts.pairs: hunt`: the slow host among many is named, others are not, and the verdict
explains it.
"""

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfdag.app.finish import finish_run
from perfdag.benchmark.contract import Gang, Output
from perfdag.outcome import Failed
from perfdag.plan.plan import Plan, make_plan
from perfdag.stats.hunt import ROUNDS, Hunt
from perfdag.steps.measure import MeasuringLoop
from perfdag.steps.site import GangLost, Site
from perfdag.store.folder import FolderStore
from perfdag.suite.load import parse_suite

from .steps.test_measure import FakeBenchmark, Watcher
from .steps.test_measure import fake as fake
from .test_pairs import Node, rows
from .test_pairs import pairwise as pairwise


def sweep(hosts: int, seed: int, slow: dict[int, float], dead: int | None = None) -> Hunt:
    rng, hunt = np.random.default_rng(seed), Hunt(hosts, seed)
    while pairs := hunt.pairs():
        used = [host for pair in pairs for host in pair]
        assert len(set(used)) == len(used), "no host is twice in a round"
        hunt.record(
            pairs,
            [
                None
                if dead in pair
                else min(slow.get(host, 1.0) for host in pair) * float(np.exp(rng.normal(0, 0.05)))
                for pair in pairs
            ],
        )
    assert hunt.rounds <= ROUNDS
    return hunt


@pytest.mark.parametrize("hosts", [9, 100, 400])
def test_the_slow_host_is_named_and_no_other(hosts: int) -> None:
    for seed in range(10):
        (slow,) = sweep(hosts, seed, {seed % hosts: 0.7}).slow
        assert slow.host == seed % hosts
        assert slow.slowness == pytest.approx(0.3, abs=0.08)
        assert sweep(hosts, seed, {}).slow == []


def test_several_slow_hosts_are_named_the_slowest_first() -> None:
    hunt = sweep(100, 1, {4: 0.8, 50: 0.5, 99: 0.65})
    assert [slow.host for slow in hunt.slow] == [50, 99, 4]
    assert hunt.slowness(50) > hunt.slowness(4) > hunt.slowness(7)


def test_a_host_that_cannot_be_measured_is_neither_cleared_nor_slow() -> None:
    hunt = sweep(20, 2, {}, dead=3)
    assert (hunt.slow, hunt.unknown) == ([], [3])


SUITE = "name: s\nretries: 0\nentries:\n  - benchmark: fake\n    hosts: {count: 16, pairs: hunt}\n"


class FleetNode(Node):
    def facts(self) -> dict[str, Any]:
        return {"host": self.name, "kernel": "6.1" if self.name == "node-07" else "6.8"}


@pytest.fixture
def fleet(pairwise: type[FakeBenchmark], monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Sixteen nodes, of which node-07 takes a third longer."""

    def run(self: FakeBenchmark, gang: Gang, params: Any) -> Output:
        names = [host.name for host in gang.hosts]
        noise = zlib.crc32("".join(names).encode()) % 100 / 5000
        return Output({"said": str((4 / 3 if "node-07" in names else 1.0) + noise)}, [["fake"]])

    monkeypatch.setattr(pairwise, "run", run)
    monkeypatch.setattr("perfdag.hosts.disturbance.READINGS", 1)
    return make_plan(parse_suite(SUITE))


def measured(tmp_path: Path, plan: Plan, **site: Any) -> tuple[FolderStore, Watcher]:
    nodes = [FleetNode(f"node-{number:02}") for number in range(16)]
    store, watcher = FolderStore(str(tmp_path / "store")), Watcher()
    place = Site(hosts_for=lambda shape: nodes, **site)
    MeasuringLoop(plan, store, place, watcher).measure(range(len(plan.order)))
    return store, watcher


def test_a_hunt_names_the_slow_node_with_the_facts_in_which_it_differs(
    tmp_path: Path, fleet: Plan
) -> None:
    store, _ = measured(tmp_path, fleet)
    result = finish_run(store, fleet, print, charts=False)
    (verdict,) = result.verdicts
    assert (verdict.word, verdict.rule, result.exit_code) == ("failed", "no slow host", 3)
    assert verdict.note.startswith("node-07 is 2")
    assert verdict.note.endswith("% slow (kernel 6.1 (others 6.8))")
    table = rows(store, fleet)
    assert {row["status"] for row in table} == {"ok"}
    pairs = [row for row in table if row["subject"] and " - " in row["subject"]]
    at_once = [row for row in pairs if '"pairs_at_once":8' in row["coords"]]
    alone = [row for row in pairs if '"pairs_at_once":1' in row["coords"]]
    assert len(at_once) + len(alone) == len(pairs)
    assert sum("node-07" in row["subject"] for row in alone) == 9, "confirmed alone"
    scores = {row["subject"]: row["value"] for row in table if row["metric"] == "slowness"}
    assert len(scores) == 16
    assert max(scores, key=lambda name: scores[name]) == "node-07"
    (whole,) = [row for row in table if row["headline"]]
    assert whole["value"] == pytest.approx(1.01, abs=0.02)


def test_a_hunt_that_can_measure_no_pair_fails_as_its_pairs_do(
    tmp_path: Path, fleet: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*given: Any) -> Output:
        raise Failed("the switch is off")

    monkeypatch.setattr(FakeBenchmark, "run", run)
    _, watcher = measured(tmp_path, fleet)
    assert [(part.status, part.error) for part in watcher.parts] == [
        ("failed", "the switch is off")
    ]
    with pytest.raises(GangLost, match="the peer on node-03 is gone"):
        measured(tmp_path / "gone", fleet, lost=lambda: "the peer on node-03 is gone")
