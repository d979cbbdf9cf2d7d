"""The measuring loop against fake hosts and a fake benchmark: retries, failures as rows, invalid
samples, canaries, precision.
"""

from pathlib import Path
from typing import Any, ClassVar

import pytest

from perfdag.app.local_run import local_hosts, needs_cluster
from perfdag.benchmark import registry
from perfdag.benchmark.contract import Benchmark, Gang, Metric, Output, Params
from perfdag.hosts import disturbance
from perfdag.hosts.disturbance import Moment
from perfdag.outcome import Failed, Infrastructure, Invalid, Measurement, SampleError
from perfdag.plan.plan import Plan, make_plan
from perfdag.results.samples import SampleRecord, read_sample, sample_key
from perfdag.shape import Shape
from perfdag.steps.measure import MeasuringLoop
from perfdag.steps.site import Site
from perfdag.store.base import StoreError
from perfdag.store.folder import FolderStore
from perfdag.suite.load import parse_suite
from perfdag.suite.point import Point


class FakeParams(Params):
    number: int = 0


class FakeBenchmark(Benchmark[FakeParams]):
    """A fake that does what `script` says, sample by sample.

    Clock: starts and stops at once.
    """

    name = "fake"
    metrics = (Metric("figure", "s", "lower", "what the script says", headline=True),)
    Params: ClassVar[type[Params]] = FakeParams
    script: ClassVar[list[Any]] = []

    def seconds(self, params: FakeParams) -> float:
        return 0.01

    def run(self, gang: Gang, params: FakeParams) -> Output:
        step = self.script.pop(0) if self.script else 1.0
        if isinstance(step, BaseException):
            raise step
        return Output({"said": str(step)}, [["fake"]], "fake 1")

    def parse(self, output: Output, params: FakeParams) -> list[Measurement]:
        return [Measurement("figure", float(output.texts["said"]))]


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
    monkeypatch.setattr("perfdag.steps.measure.time.sleep", lambda seconds: None)
    FakeBenchmark.script = []
    return FakeBenchmark


def measure(
    tmp_path: Path, text: str, place: Site | None = None
) -> tuple[Plan, Watcher, FolderStore]:
    plan = make_plan(parse_suite(text))
    watcher, store = Watcher(), FolderStore(str(tmp_path / "store"))
    MeasuringLoop(
        plan, store, place or Site(hosts_for=local_hosts, refuses=needs_cluster), watcher
    ).measure(range(len(plan.order)))
    return plan, watcher, store


ONE = "name: s\nretries: 2\nentries:\n  - benchmark: fake\n"


def test_only_faults_of_the_infrastructure_are_tried_again(
    tmp_path: Path, fake: type[FakeBenchmark]
) -> None:
    fake.script = [Infrastructure("a peer is gone"), Infrastructure("again"), 3.0]
    _, watcher, _ = measure(tmp_path, ONE)
    assert [(part.status, part.attempt, part.rows[0]["value"]) for part in watcher.parts] == [
        ("ok", 3, 3.0)
    ]


def test_after_the_retries_it_is_a_failed_row(tmp_path: Path, fake: type[FakeBenchmark]) -> None:
    fake.script = [Infrastructure("a peer is gone")] * 9
    _, watcher, _ = measure(tmp_path, ONE)
    assert [(part.status, part.attempt, part.error) for part in watcher.parts] == [
        ("failed", 3, "a peer is gone")
    ]


@pytest.mark.parametrize(
    "error", [ValueError("odd"), KeyError("odd"), ZeroDivisionError("odd"), SampleError("odd")]
)
def test_any_fault_of_a_benchmark_is_a_row_and_the_run_goes_on(
    tmp_path: Path, fake: type[FakeBenchmark], error: Exception
) -> None:
    fake.script = [error, 2.0]
    _, watcher, _ = measure(tmp_path, ONE + "    repetitions: 2\n")
    assert [part.status for part in watcher.parts] == ["failed", "ok"]
    assert "odd" in str(watcher.parts[0].error)


def test_a_place_says_what_to_do_and_what_is_true_of_all_its_samples(
    tmp_path: Path, fake: type[FakeBenchmark]
) -> None:
    fake.script = [Failed("no room"), 2.0]
    there = Site(
        hosts_for=local_hosts,
        facts={"volume_reused": True},
        advice=lambda shape, error: f"{error}? make some",
    )
    _, watcher, _ = measure(tmp_path, ONE + "    repetitions: 2\n", there)
    assert [(part.error, part.facts["volume_reused"]) for part in watcher.parts] == [
        ("no room; no room? make some", True),
        (None, True),
    ]


def test_an_invalid_sample_keeps_its_values_and_says_why(
    tmp_path: Path, fake: type[FakeBenchmark]
) -> None:
    fake.script = [
        Invalid("tcp was asked, shm was used", {"said": "x"}, [Measurement("figure", 9.0)])
    ]
    _, watcher, _ = measure(tmp_path, ONE)
    part = watcher.parts[0]
    assert (part.status, part.error, part.rows[0]["value"], part.texts) == (
        "invalid",
        "tcp was asked, shm was used",
        9.0,
        {"said": "x"},
    )


def test_a_failed_sample_keeps_what_was_read_all_the_same(
    tmp_path: Path, fake: type[FakeBenchmark]
) -> None:
    fake.script = [
        Failed("2 requests failed", {}, [Measurement("figure", 2.0, subject="node-1")]),
        Failed("no output"),
    ]
    _, watcher, _ = measure(tmp_path, ONE + "    repetitions: 2\n")
    assert [part.status for part in watcher.parts] == ["failed", "failed"]
    assert [[(each["subject"], each["value"]) for each in part.rows] for part in watcher.parts] == [
        [("node-1", 2.0)],
        [],
    ]


def test_what_a_failed_sample_read_and_is_no_row_costs_nothing_more(
    tmp_path: Path, fake: type[FakeBenchmark]
) -> None:
    fake.script = [Failed("half a report", {}, [Measurement("figure", float("nan"))]), 2.0]
    _, watcher, _ = measure(tmp_path, ONE + "    repetitions: 2\n")
    assert [(part.status, len(part.rows)) for part in watcher.parts] == [("failed", 0), ("ok", 1)]
    assert str(watcher.parts[0].error).startswith("half a report; ")


def test_a_value_that_is_no_number_fails(tmp_path: Path, fake: type[FakeBenchmark]) -> None:
    fake.script = ["nan"]
    _, watcher, _ = measure(tmp_path, ONE)
    assert watcher.parts[0].status == "failed"
    assert "not a number" in str(watcher.parts[0].error)


def test_a_throttled_sample_is_invalid(
    tmp_path: Path, fake: type[FakeBenchmark], monkeypatch: pytest.MonkeyPatch
) -> None:
    throttled = iter(range(0, 10**9, 500_000))
    monkeypatch.setattr(disturbance, "moment", lambda: Moment(0, 1, next(throttled)))
    _, watcher, _ = measure(tmp_path, ONE)
    assert watcher.parts[0].status == "invalid"
    assert "throttled it for 0.50 s" in str(watcher.parts[0].error)


def test_hosts_that_are_not_placed_as_asked_make_it_invalid(
    tmp_path: Path, fake: type[FakeBenchmark]
) -> None:
    place = Site(
        hosts_for=local_hosts,
        misplacement=lambda shape, hosts: "spread was asked, one node was used",
    )
    _, watcher, _ = measure(tmp_path, ONE, place)
    assert (watcher.parts[0].status, watcher.parts[0].error) == (
        "invalid",
        "spread was asked, one node was used",
    )
    assert watcher.parts[0].rows[0]["value"] == 1.0


def test_a_canary_frames_each_round(tmp_path: Path, fake: type[FakeBenchmark]) -> None:
    plan, _, store = measure(tmp_path, ONE + "    repetitions: 3\n")
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
    tmp_path: Path, fake: type[FakeBenchmark]
) -> None:
    plan, store = make_plan(parse_suite(ONE + "    repetitions: 3\n")), FolderStore(str(tmp_path))
    times = iter([0.0, 99.0])
    lead = MeasuringLoop(plan, store, Site(hosts_for=local_hosts), Watcher(), lambda: next(times))
    assert not lead.measure(range(3), deadline=10.0)
    names = [key.rpartition("/")[2] for key in store.list(f"runs/{plan.run_id}/parts")]
    assert sorted(name.startswith("canary") for name in names) == [False, True, True]


def test_a_sample_that_cannot_be_stored_ends_the_run_before_the_next(
    tmp_path: Path, fake: type[FakeBenchmark]
) -> None:
    class FailingStore(FolderStore):
        def put(self, key: str, data: bytes) -> None:
            if "/parts/" in key and "canary" not in key:
                raise StoreError("gone")
            super().put(key, data)

    plan = make_plan(parse_suite(ONE + "    repetitions: 3\n"))
    lead = MeasuringLoop(plan, FailingStore(str(tmp_path)), Site(hosts_for=local_hosts), Watcher())
    fake.script = [1.0, 2.0, 3.0]
    with pytest.raises(StoreError):
        lead.measure(range(3))
    assert fake.script == [2.0, 3.0]


def test_a_journal_is_in_the_store_until_its_sample_is(
    tmp_path: Path, fake: type[FakeBenchmark], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of a lead that was killed stays: its folder has another name."""
    store = FolderStore(str(tmp_path / "store"))

    def run(self: FakeBenchmark, gang: Gang, params: FakeParams) -> Output:
        assert gang.journal
        gang.journal("r2/run.json", b"so far")
        if self.script:
            raise self.script.pop()
        return Output({"said": "1"})

    monkeypatch.setattr(FakeBenchmark, "run", run)
    plan = make_plan(parse_suite(ONE))
    folder = f"runs/{plan.run_id}/journal"
    store.put(f"{folder}/{plan.key(0)}.r1/run.json", b"of a killed lead")
    fake.script = [KeyboardInterrupt()]
    loop = MeasuringLoop(plan, store, Site(hosts_for=local_hosts), Watcher())
    with pytest.raises(KeyboardInterrupt):
        loop.measure([0])
    assert store.get(f"{folder}/{plan.key(0)}.r2/run.json") == b"so far"
    MeasuringLoop(plan, store, Site(hosts_for=local_hosts), Watcher()).measure([0])
    assert store.list(folder) == [f"{folder}/{plan.key(0)}.r1/run.json"]


def test_a_second_lead_measures_only_what_is_not_stored(
    tmp_path: Path, fake: type[FakeBenchmark]
) -> None:
    plan, _, store = measure(tmp_path, ONE + "    repetitions: 3\n")
    store.delete(f"runs/{plan.run_id}/parts/{plan.key(1)}.json")
    again = Watcher()
    MeasuringLoop(plan, store, Site(hosts_for=local_hosts), again).measure(range(3))
    assert [part.repetition for part in again.parts] == [2]
    assert again.passes == ["stored before"] * 2


def test_until_is_resumed_with_what_was_measured_before(
    tmp_path: Path, fake: type[FakeBenchmark]
) -> None:
    text = ONE + "    until: {relative_spread: 0.01, max_repetitions: 12}\n"
    plan = make_plan(parse_suite(text))
    store = FolderStore(str(tmp_path / "store"))
    fake.script = [1.0] * 4
    MeasuringLoop(plan, store, Site(hosts_for=local_hosts), Watcher()).measure(range(4))
    again = Watcher()
    MeasuringLoop(plan, store, Site(hosts_for=local_hosts), again).measure(range(12))
    assert len(again.parts) == 2, "four before and two now are six equal values: precise"
    assert again.passes == ["stored before"] * 4 + ["precise enough"] * 6


def test_until_measures_again_what_it_cannot_read_back(
    tmp_path: Path, fake: type[FakeBenchmark]
) -> None:
    plan = make_plan(parse_suite(ONE + "    until: {relative_spread: 0.01, max_repetitions: 12}\n"))
    store = FolderStore(str(tmp_path / "store"))
    MeasuringLoop(plan, store, Site(hosts_for=local_hosts), Watcher()).measure(range(4))
    store.put(sample_key(plan.run_id, plan.key(1)), b'{"schema": 1, "poi')
    again = Watcher()
    MeasuringLoop(plan, store, Site(hosts_for=local_hosts), again).measure(range(12))
    assert [part.repetition for part in again.parts] == [2, 5, 6]


@pytest.mark.parametrize(
    "asked",
    [
        {"network": {"host": False}},
        {"network": {"name": "net"}},
        {"network": {"mtu": 9000}},
        {"hosts": {"count": 2, "placement": "spread"}},
        {"hosts": {"exclusive": True}},
        {"resources": {"nvidia.com/gpu": 1}},
        {"volume": {}},
        {"node_selector": {"a": "b"}},
        {"privileges": ["mtu"]},
        {"scheduler": "volcano"},
        {"runtime_class": "kata"},
    ],
)
def test_what_one_machine_cannot_give_is_skipped_with_the_reason(asked: dict[str, Any]) -> None:
    reason = needs_cluster(Shape.model_validate(asked))
    assert reason is not None
    assert "needs a cluster" in reason
    assert next(iter(asked)).rstrip("s") in reason or next(iter(asked)) in reason


def test_a_plain_shape_runs_here() -> None:
    assert (
        needs_cluster(
            Shape.model_validate(
                {"network": {"host": True}, "hosts": {"count": 2}, "image": "iperf"}
            )
        )
        is None
    )
