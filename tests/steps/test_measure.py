"""The measuring loop against fake hosts and a fake benchmark: retries, failures as rows, invalid
samples, canaries, precision.
"""

import math
import re
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.compute as pc
import pytest

from perfdag.benchmark import registry
from perfdag.benchmark.contract import (
    Benchmark,
    Failed,
    Gang,
    Infrastructure,
    Invalid,
    Measurement,
    Metric,
    Output,
    Params,
    Remark,
    SampleError,
)
from perfdag.hosts import disturbance
from perfdag.hosts.base import Host
from perfdag.hosts.disturbance import Moment
from perfdag.hosts.local import LocalHost
from perfdag.plan import Plan, make_plan
from perfdag.results.collect import gather
from perfdag.results.samples import SampleRecord, read_sample, sample_key, stored_samples
from perfdag.shape import Shape
from perfdag.steps.loop import GangLost, LocalPool, MeasuringLoop, needs_cluster
from perfdag.store.base import FolderStore, StoreError
from perfdag.suite.load import parse_suite
from perfdag.suite.points import Point


class FakeParams(Params):
    number: int = 0


class FakeBenchmark(Benchmark[FakeParams]):
    """A fake that does what `script` says, sample by sample.

    Clock: starts and stops at once.
    """

    name = "fake"
    metrics = (
        Metric("figure", "s", "lower", "what the script says", headline=True, elapsed=False),
        Metric("pause", "s", "lower", "a part of the sample's time"),
    )
    remarks = (Remark("lost a worker", "failed"), Remark("^warning:", "note"))
    script: ClassVar[list[Any]] = []

    def seconds(self, params: FakeParams) -> float:
        return 0.01

    def run(self, gang: Gang, params: FakeParams) -> list[Measurement]:
        step = self.script.pop(0) if self.script else 1.0
        if isinstance(step, BaseException):
            raise step
        if isinstance(step, str):
            gang.output = Output({"stdout": "3", "tool_stderr": step}, [["fake"]], "fake 1")
            return [Measurement("figure", 3.0)]
        if isinstance(step, Measurement):
            return [Measurement("figure", 3.0), step]
        gang.output = Output({"figure": str(step)}, [["fake"]], "fake 1")
        return [Measurement("figure", float(step))]


class Watcher:
    def __init__(self) -> None:
        self.parts: list[SampleRecord] = []
        self.passes: list[str] = []

    def started(self, point: Point, repetition: int) -> None: ...

    def finished(self, point: Point, part: SampleRecord) -> None:
        self.parts.append(part)

    def skipped(self, point: Point, repetition: int, why: str) -> None:
        self.passes.append(why)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeBenchmark]:
    get = registry.get
    instance = FakeBenchmark()
    monkeypatch.setattr(registry, "get", lambda name: instance if name == "fake" else get(name))
    monkeypatch.setattr(registry, "names", lambda: ("fake",))
    monkeypatch.setattr("perfdag.steps.loop.time.sleep", lambda seconds: None)
    FakeBenchmark.script = []
    return FakeBenchmark


HERE = LocalPool()


def measure(store: FolderStore, plan: Plan, samples: int, site: LocalPool = HERE) -> Watcher:
    """Measure the first samples of a plan."""
    watcher = Watcher()
    MeasuringLoop(plan, store, site, watcher).measure(range(samples))
    return watcher


def one_point(entry: str = "") -> Plan:
    """Return the plan of one point of the fake benchmark, with more fields of its entry."""
    return make_plan(parse_suite(f"{ONE}    {entry}\n" if entry else ONE))


ONE = "name: s\nretries: 2\nentries:\n  - benchmark: fake\n"
UNTIL = "until: {relative_spread: 0.01, max_repetitions: 12}"


GONE = Infrastructure("a peer is gone")
OTHER_WAY = Invalid("tcp was asked, shm was used", {"stdout": "x"}, [Measurement("figure", 9.0)])
PARTLY = Failed("2 requests failed", {}, [Measurement("figure", 2.0, subject="node-1")])
NO_ROW = Failed("half a report", {}, [Measurement("figure", float("nan"))])


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        pytest.param(
            [GONE, Infrastructure("again"), 3.0],
            [("ok", 3, "None", {None: 3.0})],
            id="faults of the infrastructure are tried again",
        ),
        pytest.param(
            [GONE] * 3,
            [("failed", 3, "a peer is gone", {})],
            id="after the retries it is a failed row",
        ),
        *(
            pytest.param(
                [error, 2.0],
                [("failed", 1, "odd", {}), ("ok", 1, "None", {None: 2.0})],
                id=f"{type(error).__name__} of a benchmark is a row, and the run goes on",
            )
            for error in (
                ValueError("odd"),
                KeyError("odd"),
                ZeroDivisionError("odd"),
                SampleError("odd"),
            )
        ),
        pytest.param(
            [OTHER_WAY],
            [("invalid", 1, "tcp was asked, shm was used", {None: 9.0})],
            id="an invalid sample keeps its values and says why",
        ),
        pytest.param(
            [PARTLY, Failed("no output")],
            [("failed", 1, "2 requests failed", {"node-1": 2.0}), ("failed", 1, "no output", {})],
            id="a failed sample keeps what was read all the same",
        ),
        pytest.param(
            [NO_ROW, 2.0],
            [("failed", 1, "half a report; ", {}), ("ok", 1, "None", {None: 2.0})],
            id="what a failed sample read and is no row costs nothing more",
        ),
        pytest.param(
            [math.nan], [("failed", 1, "cannot be nan", {})], id="a value that is no number fails"
        ),
    ],
)
def test_what_a_benchmark_raises_decides_the_row(
    store: FolderStore,
    fake: type[FakeBenchmark],
    script: list[Any],
    expected: list[tuple[str, int, str, dict[str | None, float]]],
) -> None:
    fake.script = list(script)
    watcher = measure(store, one_point(f"repetitions: {len(expected)}"), len(expected))
    assert len(watcher.parts) == len(expected)
    for part, (status, attempt, error, figures) in zip(watcher.parts, expected, strict=True):
        assert (part.status, part.attempt) == (status, attempt)
        assert error in str(part.error)
        assert {row.get("subject"): row["value"] for row in part.rows} == figures
        assert (part.texts == {"stdout": "x"}) == (status == "invalid")


def test_what_is_true_of_all_samples_of_a_pool_is_in_their_facts(
    store: FolderStore, fake: type[FakeBenchmark]
) -> None:
    fake.script = [Failed("no room"), 2.0]
    there = LocalPool(facts={"volume_reused": True})
    watcher = measure(store, one_point("repetitions: 2"), 2, there)
    assert [(part.error, part.facts["volume_reused"]) for part in watcher.parts] == [
        ("no room", True),
        (None, True),
    ]


@pytest.mark.parametrize(
    ("throttled_us", "misplaced", "error"),
    [
        (500_000, None, "the CPU quota of its cgroup throttled it for 0.50 s"),
        (0, "spread was asked, one node was used", "spread was asked, one node was used"),
    ],
)
def test_a_sample_that_was_throttled_or_misplaced_is_invalid_and_keeps_its_value(
    store: FolderStore,
    fake: type[FakeBenchmark],
    monkeypatch: pytest.MonkeyPatch,
    throttled_us: int,
    misplaced: str | None,
    error: str,
) -> None:
    counters = iter(range(10**6))
    moment = lambda: Moment(0, 1, throttled_us * next(counters))  # noqa: E731
    monkeypatch.setattr(disturbance, "moment", moment)
    place = LocalPool()
    monkeypatch.setattr(place, "mismatch", lambda hosts: misplaced)
    (part,) = measure(store, one_point(), 1, place).parts
    assert (part.status, part.error, part.rows[0]["value"]) == ("invalid", error, 1.0)


def test_a_canary_frames_each_round(store: FolderStore, fake: type[FakeBenchmark]) -> None:
    plan = one_point("repetitions: 3")
    measure(store, plan, 3)
    canaries = [
        read_sample(store.get(key))
        for key in store.list(f"runs/{plan.run_id}/parts")
        if "canary" in key
    ]
    assert len(canaries) == 4, "one before each of three rounds, one after the last"
    assert {row["metric"] for row in canaries[0].rows} == {
        "cpu",
        "memory",
        "loopback",
        "disk",
        "steal",
    }


def test_a_round_that_a_budget_ends_is_framed_too(
    store: FolderStore, fake: type[FakeBenchmark], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = one_point("repetitions: 3")
    pool = LocalPool()
    clock = [0.0]
    monkeypatch.setattr(pool, "mismatch", lambda *_: clock.append(99.0))
    monkeypatch.setattr("perfdag.steps.loop.time.monotonic", lambda: clock[-1])
    assert not MeasuringLoop(plan, store, pool, Watcher()).measure(range(3), deadline=10.0)
    names = [key.rpartition("/")[2] for key in store.list(f"runs/{plan.run_id}/parts")]
    assert sorted(name.startswith("canary") for name in names) == [False, True, True]


def test_a_sample_that_cannot_be_stored_ends_the_run_before_the_next(
    store: FolderStore, fake: type[FakeBenchmark]
) -> None:
    class FailingStore(FolderStore):
        def put(self, key: str, data: bytes) -> None:
            if "/parts/" in key and "canary" not in key:
                raise StoreError("gone")
            super().put(key, data)

    fake.script = [1.0, 2.0, 3.0]
    with pytest.raises(StoreError):
        measure(FailingStore(store.root), one_point("repetitions: 3"), 3)
    assert fake.script == [2.0, 3.0]


def test_a_second_lead_measures_only_what_is_not_stored(
    store: FolderStore, fake: type[FakeBenchmark]
) -> None:
    plan = one_point("repetitions: 3")
    measure(store, plan, 3)
    store.delete(f"runs/{plan.run_id}/parts/{plan.key(1)}.json")
    again = measure(store, plan, 3)
    assert [part.repetition for part in again.parts] == [2]
    assert again.passes == ["stored before"] * 2


def test_until_is_resumed_with_what_was_measured_before(
    store: FolderStore, fake: type[FakeBenchmark]
) -> None:
    plan = one_point(UNTIL)
    fake.script = [1.0] * 4
    measure(store, plan, 4)
    again = measure(store, plan, 12)
    assert len(again.parts) == 2, "four before and two now are six equal values: precise"
    assert again.passes == ["stored before"] * 4 + ["precise enough"] * 6


def test_until_measures_again_what_it_cannot_read_back(
    store: FolderStore, fake: type[FakeBenchmark]
) -> None:
    plan = one_point(UNTIL)
    measure(store, plan, 4)
    store.put(sample_key(plan.run_id, plan.key(1)), b'{"schema": 1, "poi')
    assert [part.repetition for part in measure(store, plan, 12).parts] == [2, 5, 6]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"network": {"host": False}}, "network.host: false"),
        ({"network": {"name": "net"}}, "network.name"),
        ({"network": {"mtu": 9000}}, "network.mtu"),
        ({"hosts": {"count": 2, "placement": "spread"}}, "hosts.placement: spread"),
        ({"hosts": {"exclusive": True}}, "hosts.exclusive"),
        ({"resources": {"rdma/hca": 1}}, "resources: rdma/hca"),
        ({"resources": {"cpu": 64, "memory": "1Ti", "nvidia.com/gpu": 1}}, None),
        ({"volume": {}}, "a volume"),
        ({"node_selector": {"a": "b"}}, "node_selector"),
        ({"privileges": ["mtu"]}, "privileges"),
        ({"scheduler": "volcano"}, "scheduler: volcano"),
        ({"runtime_class": "kata"}, "runtime_class"),
        ({"network": {"host": True}, "hosts": {"count": 2}, "image": "iperf"}, None),
    ],
)
def test_what_one_machine_cannot_give_is_skipped_with_the_reason(
    fields: dict[str, Any], named: str | None
) -> None:
    reason = needs_cluster(Shape.model_validate(fields))
    assert (reason is None) == (named is None)
    assert named is None or re.fullmatch(rf"{named}.*: needs a cluster .*", reason or "")


def test_what_a_tool_says_on_stderr_fails_a_sample_or_stands_beside_it(
    fake: type[FakeBenchmark], tmp_path: Path
) -> None:
    fake.script = ["job 3\n  lost a worker to signal 6\n", "warning: slow clock\n", "\n"]
    parts = measure(
        FolderStore(str(tmp_path)), make_plan(parse_suite(f"repetitions: 3\n{ONE}")), 3
    ).parts
    assert [part.status for part in parts] == ["failed", "ok", "ok"]
    assert parts[0].error == "fake 1 says: lost a worker to signal 6"
    assert parts[0].rows[0]["value"] == 3
    assert parts[1].facts == {"stderr": "not empty", "notes": ["warning: slow clock"]}
    assert parts[2].facts == {"stderr": "empty"}


def test_no_time_within_a_sample_is_longer_than_the_sample(
    fake: type[FakeBenchmark], tmp_path: Path
) -> None:
    fake.script = [Measurement("pause", 1e-3), Measurement("pause", 60.0)]
    parts = measure(
        FolderStore(str(tmp_path)), make_plan(parse_suite(f"repetitions: 2\n{ONE}")), 2
    ).parts
    assert [part.status for part in parts] == ["ok", "invalid"]
    assert "pause is 60 s, but the whole sample took" in str(parts[1].error)


class LosingPool(LocalPool):
    """A pool whose peer is gone."""

    def lost(self) -> str | None:
        return "node-2 is gone"


def test_a_tool_that_fails_because_a_node_died_is_no_failed_sample(
    store: FolderStore, fake: type[FakeBenchmark]
) -> None:
    plan = one_point()
    fake.script = [Failed("connection reset")]
    with pytest.raises(GangLost, match=r"node-2 is gone \(connection reset\)"):
        measure(store, plan, 1, LosingPool())
    assert plan.key(0) not in stored_samples(store, plan.run_id)


class TwoHosts(LocalPool):
    def hosts_for(self, shape: Shape) -> list[Host]:
        return [NamedHost(name="node-1"), NamedHost(name="node-2")]


class NamedHost(LocalHost):
    def facts(self) -> dict[str, Any]:
        return {"kernel": f"6.1 of {self.name}"}


def test_a_sample_has_the_facts_of_each_of_its_hosts(
    store: FolderStore, fake: type[FakeBenchmark]
) -> None:
    (part,) = measure(store, one_point(), 1, TwoHosts()).parts
    assert part.env == {
        "kernel": "6.1 of node-1",
        "peers": {"node-2": {"kernel": "6.1 of node-2"}},
    }


def test_a_warm_up_does_not_count_for_until(store: FolderStore, fake: type[FakeBenchmark]) -> None:
    plan = make_plan(parse_suite(f"warmup: 1\n{ONE}    {UNTIL}\n"))
    watcher = measure(store, plan, len(plan.order))
    measured = [part.repetition for part in watcher.parts if part.repetition > 0]
    assert measured == [1, 2, 3, 4, 5, 6], (
        "six equal values are precise, a cold one beside five not"
    )


def test_a_lost_repetition_has_a_row_although_its_point_is_precise(
    store: FolderStore, fake: type[FakeBenchmark]
) -> None:
    plan = one_point(f"{UNTIL}\n    repetitions: 7")
    measure(store, plan, len(plan.order))
    store.delete(sample_key(plan.run_id, plan.key(1)))
    table, _ = gather(store, plan)
    rows = table.filter(pc.equal(table["entry"], "fake")).to_pylist()
    states = [(row["repetition"], row["status"]) for row in rows]
    assert sorted(states) == [
        (number, "missing" if number == 2 else "ok") for number in range(1, 8)
    ], "the repetitions that `until` spared have none"
