"""What a run says while it goes, and the times that it expects and learns."""

import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from perfdag.plan import SAMPLE_OVERHEAD, Plan, TimeLeft, make_plan
from perfdag.results.collect import collect
from perfdag.results.run_store import ANY, with_learned_times
from perfdag.results.samples import SampleRecord, sample_key
from perfdag.steps.loop import PRECISE
from perfdag.steps.pods import lead
from perfdag.steps.pods.lead import ProgressReporter
from perfdag.store.base import FolderStore, StoreError
from perfdag.suite.load import parse_suite
from perfdag.terminal import Progress
from perfdag.units import short_seconds
from tests.conftest import CommandLine
from tests.fakes.terminal import on_a_terminal

SUITE = """name: shown
repetitions: 2
entries:
  - {benchmark: command, name: nap, params: {argv: [sleep, '0.8'], expected: 0.8}}
  - {benchmark: command, name: bad, params: {argv: ['false'], expected: 0.01}}
"""


def command(tmp_path: Path) -> list[str]:
    (tmp_path / "suite.yaml").write_text(SUITE)
    return [
        "run",
        str(tmp_path / "suite.yaml"),
        "--store",
        str(tmp_path / "store"),
        "--no-report",
    ]


def test_a_terminal_has_a_line_a_point_and_a_bar_and_only_failures_scroll(tmp_path: Path) -> None:
    output = on_a_terminal(command(tmp_path), "stderr", 120, 1)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output)
    assert re.search(r"\u2501 +\d/4 +about [\d.]+ (ms|s) left +nap \((1|2)/2\)", shown)
    assert "\x1b[2K" in output, "the lines are written over"
    assert re.search(r"nap +1/2 +[\d.]+ m?s\s", shown)
    assert re.search(r"bad +\d/2 +- +\d not ok", shown)
    scrolled = [line.strip() for line in re.findall(r"\[\d/4\][^\r\n]*", shown)]
    assert len(scrolled) == 2
    assert all(" bad " in line and " failed: " in line for line in scrolled)
    assert "\x1b[1;31m[" in output, "a failure is coloured"


def test_elsewhere_each_sample_has_a_plain_line(tmp_path: Path, cli: CommandLine) -> None:
    errors = cli(command(tmp_path), 1).err
    assert "\x1b" not in errors
    lines = [line for line in errors.splitlines() if line.startswith("[")]
    assert [line[:5] for line in lines] == ["[1/4]", "[2/4]", "[3/4]", "[4/4]"]
    naps = [line for line in lines if re.search(r" nap .*ok [\d.]+( \(.+\))? m?s$", line)]
    assert len(naps) == sum(" bad " in line and " failed: " in line for line in lines) == 2


def test_a_log_says_that_a_long_sample_has_begun(caplog: pytest.LogCaptureFixture) -> None:
    text = (
        "name: s\nentries:\n  - {benchmark: command, params: {argv: [ls], expected: 29.0}, "
        "permutations: {product: {expected: [29.0, 600.0]}}}\n"
    )
    plan = make_plan(parse_suite(text))
    progress: Any = Progress(plan)
    short, long = sorted(plan.points, key=lambda point: point.seconds)
    progress.started(short, 1)
    assert caplog.messages == []
    progress.started(long, 1)
    assert re.fullmatch(r"\[1/2\] .+ begins, about 10 min \d s", caplog.messages[0])


TWO_ENTRIES = """name: s
repetitions: 2
entries:
  - {benchmark: command, name: fast, params: {argv: [ls], expected: 1}}
  - {benchmark: command, name: slow, params: {argv: [ls, -l], expected: 5}}
"""
START = datetime(2026, 11, 1, tzinfo=UTC)


def planned(day: int = 9) -> Plan:
    return make_plan(parse_suite(TWO_ENTRIES), run_id=f"202611{day:02}T000000Z-00000000")


def store_run(
    store: FolderStore, day: int, seconds: float, cluster: str | None = None, status: str = "ok"
) -> None:
    """Store a run in which each sample of `slow` took `seconds`."""
    plan = planned(day)
    plan.where = {"cluster": cluster} if cluster else {}
    for position, (index, repetition) in enumerate(plan.order):
        if plan.points[index].entry == "slow":
            start = START + timedelta(days=day, minutes=position)
            end = start + timedelta(seconds=seconds)
            record = SampleRecord(
                plan.points[index].id, repetition, status,
                started_at=start.isoformat(), finished_at=end.isoformat(),
            )  # fmt: skip
            store.put(sample_key(plan.run_id, plan.key(position)), record.dump())
    collect(store, plan)


def expected(plan: Plan) -> dict[str, float]:
    return {point.entry: point.seconds for point in plan.points}


@pytest.mark.parametrize(
    ("runs", "cluster", "slow"),
    [
        ([], None, 5.0),
        ([(180, None, "ok")], None, 180.0),
        ([(180, None, "ok"), (60, None, "ok"), (61, None, "ok")], None, 61.0),
        ([(180, "blue", "ok")], None, 5.0),
        ([(180, "blue", "ok"), (60, "green", "ok")], "blue", 5.0),
        ([(180, "blue", "ok"), (60, "green", "ok")], ANY, 60.0),
        ([(180, None, "failed")], None, 5.0),
    ],
)
def test_the_expected_time_is_that_of_past_samples_on_the_cluster(
    tmp_path: Path, runs: list[tuple[float, str | None, str]], cluster: str | None, slow: float
) -> None:
    store = FolderStore(str(tmp_path))
    for day, run in enumerate(runs, 1):
        store_run(store, day, *run)
    learned = with_learned_times(store, planned(20), cluster)
    assert expected(learned) == {"fast": 1.0, "slow": slow}
    assert [point.id for point in learned.points] == [point.id for point in planned(20).points]


class Unreachable(FolderStore):
    def list(self, prefix: str) -> list[str]:
        raise StoreError("out of reach")


def test_a_store_out_of_reach_or_damaged_leaves_the_estimates(tmp_path: Path) -> None:
    declared = {"fast": 1.0, "slow": 5.0}
    assert expected(with_learned_times(Unreachable(str(tmp_path)), planned(), None)) == declared
    store = FolderStore(str(tmp_path))
    store.put("results/s/2026-11/20261101T000000Z-00000000.parquet", b"no parquet")
    assert expected(with_learned_times(store, planned(), None)) == declared


def test_plan_prints_the_learned_time(tmp_path: Path, cli: CommandLine) -> None:
    store_run(FolderStore(str(tmp_path / "store")), 1, 180)
    (tmp_path / "s.yaml").write_text(f"{TWO_ENTRIES}store: {tmp_path}/store\n")
    expected = short_seconds(2 * (1 + 180) + 4 * SAMPLE_OVERHEAD)
    assert f"expected {expected}" in cli(["plan", str(tmp_path / "s.yaml")]).out


def test_the_time_left_follows_the_entry() -> None:
    plan = planned()
    fast, slow = sorted(plan.points, key=lambda point: point.seconds)
    one, five = 1 + SAMPLE_OVERHEAD, 5 + SAMPLE_OVERHEAD
    left = TimeLeft()
    left.add(plan, range(len(plan.order)))
    assert left.seconds() == pytest.approx(2 * one + 2 * five)
    assert left.seconds(slow, 2.0) == pytest.approx(2 * one + 2 * five - 2)
    assert left.seconds(slow, 2 * five) == pytest.approx(2 * one + five), "a late one ends now"
    left.done(slow, 1, 3 * five)
    assert left.seconds() == pytest.approx(2 * one + 3 * five)
    left.done(fast, 1, one)
    assert left.seconds() == pytest.approx(one + 3 * five), "each entry by its own samples"
    left.done(slow, 2)
    assert left.seconds() == pytest.approx(one)


def test_a_lead_prints_the_time_left_and_status_reads_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = planned()
    left = TimeLeft()
    left.add(plan, range(len(plan.order)))
    progress = ProgressReporter(2, left, 1)
    point = plan.points[0]
    progress.started(point, 1)
    progress.finished(point, SampleRecord(point.id, 1, "ok"))
    assert capsys.readouterr().out.strip().startswith(f"1/2 ok {point.entry}")


def test_a_lead_reports_no_progress_shortly_before_the_end_until_argo_looks_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, clock = tmp_path / "progress", iter(range(1000))
    monkeypatch.setenv("ARGO_PROGRESS_FILE", str(file))
    monkeypatch.setattr(lead, "SUMMARY", str(tmp_path / "summary"))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    progress = ProgressReporter(100, TimeLeft(), 0)  # each sample takes a second
    reported = {file.read_text()}
    for repetition in range(100):
        progress.skipped(planned().points[0], repetition, PRECISE)
        reported.add(file.read_text())
    done = sorted(int(text.split("/")[0]) for text in reported)
    assert done == [*range(71), *range(97, 101)]
