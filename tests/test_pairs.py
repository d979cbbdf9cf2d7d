"""Pairs of a gang's hosts: rounds, plan, placement, samples at once, and the hunt."""

import threading
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from perfdag.analysis.medians import MonthlyRollup, point_names
from perfdag.benchmark.contract import Failed, Gang, Measurement
from perfdag.hosts.local import LocalHost
from perfdag.plan import Plan, concurrent_groups, make_plan, read_plan
from perfdag.results.collect import collect, gather
from perfdag.results.samples import SampleRecord
from perfdag.runs.finish import finish_run
from perfdag.shape import Shape
from perfdag.steps.hunt import ROUNDS, Hunt
from perfdag.steps.loop import (
    GangLost,
    LocalPool,
    MeasuringLoop,
    by_number,
    missing_overlap,
    needs_cluster,
)
from perfdag.steps.pods.lead import pool_of
from perfdag.store.base import FolderStore
from perfdag.suite.document import BadDocument
from perfdag.suite.load import parse_suite
from perfdag.suite.pairs import rounds
from perfdag.suite.points import Point

from .steps.test_measure import FakeBenchmark, Watcher, fake as fake
from .steps.test_plan_step import place

TEXT = "name: s\nretries: 0\n{more}entries:\n  - benchmark: {name}\n    hosts: {hosts}\n"


def planned(hosts: str, more: str = "", name: str = "iperf") -> Plan:
    return make_plan(parse_suite(TEXT.format(hosts=hosts, more=more, name=name)))


def refusal(hosts: str, more: str = "", name: str = "iperf") -> str:
    with pytest.raises(BadDocument) as error:
        planned(hosts, more, name)
    return str(error.value)


@given(st.integers(2, 40), st.sampled_from(["all", "ring"]))
def test_rounds_are_disjoint_and_together_hold_every_pair_once(hosts: int, kind: str) -> None:
    by_round = rounds(kind, hosts)
    for each in by_round:
        used = [host for pair in each for host in pair]
        assert len(set(used)) == len(used)
    pairs = [pair for each in by_round for pair in each]
    expected = hosts * (hosts - 1) // 2 if kind == "all" else hosts if hosts > 2 else 1
    assert len(set(pairs)) == len(pairs) == expected
    assert all(0 <= a < b < hosts for a, b in pairs)
    if kind == "all":
        assert len(by_round) == hosts - 1 + hosts % 2, (
            "a 1-factorisation, with one host idle in each round where their number is odd"
        )
        assert {len(each) for each in by_round} == {hosts // 2}
    elif hosts > 2:
        assert {tuple(sorted((i, (i + 1) % hosts))) for i in range(hosts)} == set(pairs)


@given(st.integers(4, 20), st.integers(0, 5), st.data())
def test_random_pairs_are_distinct_seeded_and_cover_hosts_evenly(
    hosts: int, seed: int, data: st.DataObject
) -> None:
    expected = data.draw(st.integers(1, hosts * (hosts - 1) // 2))
    by_round = rounds(f"random {expected}", hosts, seed)
    pairs = [pair for each in by_round for pair in each]
    assert len(set(pairs)) == len(pairs) == expected
    assert by_round == rounds(f"random {expected}", hosts, seed)
    counts = [sum(host in pair for pair in pairs) for host in range(hosts)]
    assert max(counts) - min(counts) <= 1 + hosts % 2


def test_each_pair_is_a_point_of_one_shape_in_rounds() -> None:
    plan = planned("{count: 6, pairs: all}", "repetitions: 2\n")
    assert len(plan.points) == len({point.id for point in plan.points}) == 15
    assert {point.shape for point in plan.points} == {0}
    assert {point.label for point in plan.points} >= {"pair=0-5", "pair=2-3"}
    for start in range(0, 30, 3):  # wherever a round begins, its three disjoint pairs follow
        result = [plan.points[index].pair for index, _ in plan.order[start : start + 3]]
        assert len({host for pair in result if pair for host in (pair.first, pair.second)}) == 6
    assert len(plan.batches) == 1
    assert read_plan(plan.dump()) == plan


def test_hours_count_what_runs_at_once() -> None:
    alone, four = (
        planned("{count: 64, pairs: all}"),
        planned("{count: 64, pairs: all, parallel_pairs: 4}"),
    )
    assert alone.seconds() == pytest.approx(2016 * 10.4)
    assert four.seconds() == pytest.approx(63 * 8 * 10.4)


def test_a_batch_never_parts_pairs_that_run_at_once() -> None:
    plan = planned("{count: 8, pairs: all, parallel_pairs: 4}", "batch_time: 25s\n")
    assert [len(batch.samples) for batch in plan.batches] == [8, 8, 8, 4]
    assert [
        len(batch.samples)
        for batch in planned(
            "{count: 8, pairs: ring, parallel_pairs: 3}", "isolation: pod\n"
        ).batches
    ] == [
        3,
        1,
        3,
        1,
    ]
    groups = concurrent_groups(plan.points, plan.order, range(28))
    assert [len(group) for group in groups] == [4] * 7


def test_pairs_across_zones_are_numbered_by_zone() -> None:
    plan = planned("{count: 3, pairs: across-zones}")
    assert {point.label for point in plan.points} == {"pair=0-1", "pair=0-2", "pair=1-2"}
    shape = plan.shape_of(0)
    facts = {"a": {"zone": "z2"}, "b": {"zone": "z1"}}
    zones = pool_of(place(), shape, {}, nodes=facts).zones
    assert [host.name for host in by_number([LocalHost(name="a"), LocalHost(name="b")], zones)] == [
        "b",
        "a",
    ]
    assert not pool_of(place(), shape.pair(), {}, nodes=facts).zones
    assert "across-zones: needs a cluster" in str(needs_cluster(shape))


@pytest.mark.parametrize(
    ("hosts", "name", "says"),
    [
        ("{count: 1, pairs: all}", "iperf", "pairs need a count of 2 hosts or more, not 1"),
        ("{count: 4, pairs: random 7}", "iperf", "7 random pairs were asked for, 4 hosts have 6"),
        ("{count: 4, pairs: all, parallel_pairs: 3}", "iperf", "4 hosts have 2 disjoint pairs"),
        ("{count: 7, pairs: hunt}", "iperf", "a hunt needs a count of 8 hosts or more, not 7"),
        ("{count: 4, parallel_pairs: 2}", "iperf", "parallel_pairs belongs to pairs"),
        ("{count: 4096, pairs: all}", "iperf", "4096 hosts have more than 100,000 pairs; use ring"),
        (
            "{count: 4, pairs: all}\n    params: {argv: ['true']}",
            "command",
            "command does not measure between two hosts",
        ),
    ],
)
def test_pairs_that_cannot_be_are_refused_when_planning(hosts: str, name: str, says: str) -> None:
    assert says in refusal(hosts, name=name)


@pytest.fixture
def pairwise(fake: type[FakeBenchmark], monkeypatch: pytest.MonkeyPatch) -> type[FakeBenchmark]:
    monkeypatch.setattr(fake, "network", "pairs")
    return fake


class Nodes(LocalPool):
    """Nodes of a cluster."""

    def __init__(self, hosts: Sequence[Any]) -> None:
        super().__init__()
        self.hosts = hosts

    def hosts_for(self, shape: Shape) -> Sequence[Any]:
        return self.hosts

    def check(self, point: Point, shape: Shape) -> None: ...


def lead(
    tmp_path: Path, plan: Plan, nodes: list[str]
) -> tuple[MeasuringLoop, FolderStore, list[Any]]:
    hosts = [LocalHost(name=name) for name in nodes]
    store = FolderStore(str(tmp_path / "store"))
    watcher = Watcher()
    return (
        MeasuringLoop(plan, store, Nodes(hosts), watcher),
        store,
        watcher.parts,
    )


def rows(store: FolderStore, plan: Plan) -> list[dict[str, Any]]:
    return [row for row in gather(store, plan)[0].to_pylist() if row["benchmark"] != "canary"]


def test_hosts_are_numbered_by_their_nodes(tmp_path: Path, pairwise: type[FakeBenchmark]) -> None:
    plan = planned("{count: 3, pairs: all, placement: any}", name="fake")
    measuring, store, _ = lead(tmp_path, plan, list("caa"))
    measuring.measure(range(3))
    assert {row["pair"]: (row["nodes"], row["same_node"]) for row in rows(store, plan)} == {
        "0-1": (["a", "a"], True),
        "0-2": (["a", "c"], False),
        "1-2": (["a", "c"], False),
    }


def test_pairs_at_once_overlap_and_say_so(
    tmp_path: Path, pairwise: type[FakeBenchmark], monkeypatch: pytest.MonkeyPatch
) -> None:
    meeting = threading.Barrier(2, timeout=10)
    original = FakeBenchmark.run
    monkeypatch.setattr(
        FakeBenchmark,
        "run",
        lambda *arguments: (meeting.wait(), time.monotonic(), original(*arguments))[2],
    )
    plan = planned("{count: 4, pairs: all, parallel_pairs: 2}", name="fake")
    measuring, store, parts = lead(tmp_path, plan, list("abcd"))
    monkeypatch.setattr(
        "perfdag.steps.loop.OVERLAP", 0.0
    )  # they meet, so they were there at once; they are too short to share half
    measuring.measure(range(6))
    assert [part.status for part in parts] == ["ok"] * 6
    assert {part.facts["pairs_at_once"] for part in parts} == {2}
    assert {row["status"] for row in rows(store, plan)} == {"ok"}


def test_a_sample_without_its_companion_is_invalid(
    tmp_path: Path, pairwise: type[FakeBenchmark]
) -> None:
    pairwise.script = [Failed("the switch is off"), 1.0]
    plan = planned("{count: 4, pairs: ring, parallel_pairs: 2}", name="fake")
    measuring, _, parts = lead(tmp_path, plan, list("abcd"))
    measuring.measure(range(2))
    assert sorted(part.status for part in parts) == ["failed", "invalid"]
    assert any(
        "2 pairs were to be measured at once, but another of them was failed: the switch is off"
        in str(p.error)
        for p in parts
    )


@pytest.mark.parametrize(
    ("seconds", "at_once"), [((0, 10), True), ((4, 10), True), ((8, 10), False), ((11, 12), False)]
)
def test_pairs_share_half_of_the_longest_sample(seconds: tuple[int, int], at_once: bool) -> None:
    records = [
        SampleRecord("x", 1, "ok", started_at=day(start), finished_at=day(end))
        for start, end in ((0, 10), seconds)
    ]
    assert (missing_overlap(records) is None) == at_once


def day(second: int) -> str:
    return f"2026-01-02T03:04:{second:02}+00:00"


def test_samples_one_after_the_other_are_not_at_once(
    tmp_path: Path, pairwise: type[FakeBenchmark], monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = threading.Lock()
    original = FakeBenchmark.run

    def waiting(*arguments: Any) -> Any:
        with turn:
            time.sleep(0.1)
            return original(*arguments)

    monkeypatch.setattr(FakeBenchmark, "run", waiting)
    monkeypatch.setattr("perfdag.steps.loop.OVERLAP", 1.0)
    plan = planned("{count: 4, pairs: ring, parallel_pairs: 2}", name="fake")
    measuring, _, parts = lead(tmp_path, plan, list("abcd"))
    measuring.measure(range(2))
    assert "invalid" in {part.status for part in parts}


def test_a_missing_pair_is_measured_with_its_company_again(
    tmp_path: Path, pairwise: type[FakeBenchmark]
) -> None:
    plan = planned("{count: 4, pairs: ring, parallel_pairs: 2}", name="fake")
    measuring, store, _ = lead(tmp_path, plan, list("abcd"))
    measuring.measure(range(4))
    gone = plan.key(1)
    kept = store.get(f"runs/{plan.run_id}/parts/{plan.key(0)}.json")
    store.delete(f"runs/{plan.run_id}/parts/{gone}.json")
    again, store, parts = lead(tmp_path, plan, list("abcd"))
    pairwise.script = [1.0] * 4
    again.measure(range(4))
    assert len(pairwise.script) == 2, "its company ran too"
    assert len(parts) == 1
    assert store.get(f"runs/{plan.run_id}/parts/{plan.key(0)}.json") == kept
    assert len(rows(store, plan)) == 4


def test_the_history_of_pairs_tells_them_apart(
    tmp_path: Path, pairwise: type[FakeBenchmark]
) -> None:
    plan = planned("{count: 3, pairs: all}", name="fake")
    measuring, store, _ = lead(tmp_path, plan, list("abc"))
    measuring.measure(range(3))
    collect(store, plan)
    month = MonthlyRollup()
    month.add(gather(store, plan)[0])
    series = [info for info in month.series.values() if info.benchmark == "fake"]
    assert sorted(own.label for own in point_names(series).values()) == [
        "hosts 0-1",
        "hosts 0-2",
        "hosts 1-2",
    ]


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
        slow = sweep(hosts, seed, {seed % hosts: 0.7}).slow
        assert slow == {seed % hosts: pytest.approx(0.3, abs=0.08)}
        assert not sweep(hosts, seed, {}).slow


def test_several_slow_hosts_are_named_the_slowest_first() -> None:
    hunt = sweep(100, 1, {4: 0.8, 50: 0.5, 99: 0.65})
    assert [*hunt.slow] == [50, 99, 4]
    assert hunt.slowness(50) > hunt.slowness(4) > hunt.slowness(7)


def test_a_host_that_cannot_be_measured_is_neither_cleared_nor_slow() -> None:
    hunt = sweep(20, 2, {}, dead=3)
    assert (hunt.slow, hunt.unknown) == ({}, [3])


SUITE = "name: s\nretries: 0\nentries:\n  - benchmark: fake\n    hosts: {count: 16, pairs: hunt}\n"


class FleetNode(LocalHost):
    def facts(self) -> dict[str, Any]:
        return {"host": self.name, "kernel": "6.1" if self.name == "node-07" else "6.8"}


@pytest.fixture
def fleet(pairwise: type[FakeBenchmark], monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Sixteen nodes, of which node-07 takes a third longer."""

    def run(self: FakeBenchmark, gang: Gang, params: Any) -> list[Measurement]:
        names = [host.name for host in gang.hosts]
        noise = zlib.crc32("".join(names).encode()) % 100 / 5000
        return [Measurement("figure", (4 / 3 if "node-07" in names else 1.0) + noise)]

    monkeypatch.setattr(pairwise, "run", run)
    monkeypatch.setattr("perfdag.hosts.disturbance.READINGS", 1)
    return make_plan(parse_suite(SUITE))


def measured(
    tmp_path: Path, plan: Plan, lost: Callable[[], str | None] = lambda: None
) -> tuple[FolderStore, Watcher]:
    nodes = [FleetNode(name=f"node-{number:02}") for number in range(16)]
    store, watcher = FolderStore(str(tmp_path / "store")), Watcher()
    place = Nodes(nodes)
    place.lost = lost  # type: ignore[method-assign]
    MeasuringLoop(plan, store, place, watcher).measure(range(len(plan.order)))
    return store, watcher


def test_a_hunt_names_the_slow_node_with_the_facts_in_which_it_differs(
    tmp_path: Path, fleet: Plan
) -> None:
    store, _ = measured(tmp_path, fleet)
    result = finish_run(store, fleet, charts=False)
    (verdict,) = result.summary.verdicts
    assert (verdict.kind, verdict.rule, result.exit_code) == ("failed", "no slow host", 3)
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
    def run(*arguments: Any) -> list[Measurement]:
        raise Failed("the switch is off")

    monkeypatch.setattr(FakeBenchmark, "run", run)
    _, watcher = measured(tmp_path, fleet)
    assert [(part.status, part.error) for part in watcher.parts] == [
        ("failed", "the switch is off")
    ]
    with pytest.raises(GangLost, match="the peer on node-03 is gone"):
        measured(tmp_path / "gone", fleet, lost=lambda: "the peer on node-03 is gone")
