"""The noise guard: the canary is small, and what disturbs a sample is said."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perfdag.benchmark.contract import Failed, SampleError
from perfdag.hosts import disturbance, facts
from perfdag.hosts.base import CommandResult
from perfdag.hosts.disturbance import Moment, canary as measure_canary
from perfdag.hosts.local import LocalHost
from perfdag.results.schema import load_rows
from perfdag.store.base import FolderStore
from tests.fakes.files import write_files

BEFORE = Moment(0, 0, 1000, 2)
HELD_BACK = "the CPU quota of its cgroup throttled it for 0.25 s"


@pytest.mark.parametrize(
    ("after", "load", "expected"),
    [
        pytest.param(Moment(0, 1000, 1000, 2), 0, (None, None, None), id="quiet"),
        pytest.param(Moment(1, 1000, 1000, 2), 3, (None, None, None), id="nearly quiet"),
        pytest.param(
            Moment(0, 1000, 251000, 2, at=20),
            0,
            (HELD_BACK, None, "throttled for 250 ms by the CPU quota of its cgroup"),
            id="throttled",
        ),
        pytest.param(
            Moment(0, 1000, 6000, 2, at=2.0),
            0,
            (None, None, "throttled for 5 ms by the CPU quota of its cgroup"),
            id="throttled for a moment: a mark, and the value stays",
        ),
        pytest.param(Moment(0, 1000, 1000, 3), 0, (None, "OOMKilled", None), id="killed"),
        pytest.param(Moment(50, 1000, 1000, 2), 0, (None, None, "steal 5.0%"), id="steal"),
        pytest.param(
            Moment(100, 1000, 1000, 2),
            4,
            (None, None, "steal 10.0%, load 4 on 2 cores before it"),
            id="steal and load",
        ),
    ],
)
def test_what_disturbed_a_sample(
    after: Moment, load: int, expected: tuple[str | None, ...]
) -> None:
    throttled, starved, noise = disturbance.effects(BEFORE, after, load, cores=2)
    assert (throttled, starved and starved[:9], noise) == expected


@pytest.mark.parametrize(
    ("peers", "throttled", "starved"),
    [
        pytest.param(
            [["throttled_usec 500000\noom_kill 0\n", "throttled_usec 900000\noom_kill 0\n"]],
            "on node-2: the CPU quota of its cgroup throttled it for 0.40 s",
            None,
            id="its quota holds it back",
        ),
        pytest.param(
            [
                [Failed("ssh broke")],
                ["throttled_time 5\noom_kill 1\n", "throttled_time 5\noom_kill 2\n"],
            ],
            None,
            "on node-2: OOMKilled",
            id="killed",
        ),
        pytest.param([["oom_kill 1\n", Failed("ssh broke")]], None, None, id="silent"),
    ],
)
def test_what_happened_to_a_peer(
    peers: list[list[str | SampleError]], throttled: str | None, starved: str | None
) -> None:
    guard = disturbance.Guard({})
    guard.include([LocalHost(), *(Peer(*prints) for prints in peers)])  # type: ignore[list-item]
    seen = guard.end(cores=2)
    assert (seen.throttled, seen.starved and seen.starved[:20]) == (throttled, starved)


def test_what_the_cgroup_of_a_peer_does_not_show_is_named() -> None:
    guard = disturbance.Guard({})
    guard.include([Peer(""), Peer("throttled_usec 5\noom_kill 0\n"), Peer("oom_kill 1\n")])  # type: ignore[list-item]
    absent = ["throttling by a CPU quota", "kills for a memory limit", "throttling by a CPU quota"]
    assert guard.unseen() == [*facts.unseen(), *(f"{what} on node-2" for what in absent)]


def test_the_canary_takes_at_most_0_3_seconds_and_is_positive() -> None:
    best, wall = 1.0, 9.0
    for _ in range(5):  # the limit is the canary's own work; a busy machine may add to most of five
        begun, start = time.perf_counter(), time.process_time()
        values = measure_canary()
        best, wall = min(best, time.process_time() - start), min(wall, time.perf_counter() - begun)
    assert best < 0.3
    # what it waits for the disk and for its turn; twice, for a machine whose cores are all taken
    assert wall < 0.6
    assert {*values, "steal"} == set(disturbance.CANARY_METRICS)
    assert all(value and value > 0 for value in values.values())


def test_tasks_that_run_are_load() -> None:
    spinning = [
        subprocess.Popen(["nice", "-n", "19", "sh", "-c", "while :; do :; done"]) for _ in range(40)
    ]
    try:
        end = time.monotonic() + 30
        while disturbance.runnable() < 40 and time.monotonic() < end:
            time.sleep(0.1)
        assert disturbance.runnable() >= 40
    finally:
        for each in spinning:
            each.kill()
        for each in spinning:
            each.wait()


@pytest.mark.parametrize(("tasks", "noisy"), [(16, True), (15, False)])
def test_a_sample_is_disturbed_by_the_load_at_its_begin(
    monkeypatch: pytest.MonkeyPatch, tasks: int, noisy: bool
) -> None:
    """Of ten cores, 15 tasks leave enough; the sample before was the load that has ended."""
    monkeypatch.setattr(disturbance, "runnable", lambda: tasks)
    assert ("load" in (disturbance.Guard({}).end(10).noise or "")) == noisy


def test_the_counters_are_those_of_our_own_cgroup_and_of_those_above_it(tmp_path: Path) -> None:
    second = write_files(
        tmp_path / "2",
        {
            "proc/self/cgroup": "0::/user.slice/job\n",
            "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
            "sys/fs/cgroup/cpu.stat": "usage_usec 9\n",
            "sys/fs/cgroup/user.slice/cpu.stat": "usage_usec 5\nthrottled_usec 300\n",
            "sys/fs/cgroup/user.slice/job/cpu.stat": "usage_usec 5\nthrottled_usec 20\n",
            "sys/fs/cgroup/user.slice/memory.events": "oom 7\noom_kill 7\n",
            "sys/fs/cgroup/user.slice/job/memory.events": "oom 3\noom_kill 2\noom_group_kill 0\n",
        },
    )
    first = write_files(
        tmp_path / "1",
        {
            "proc/self/cgroup": "4:memory:/jobs/a\n1:cpu,cpuacct:/jobs/a\n0::/\n",
            "sys/fs/cgroup/cpu/cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n",
            "sys/fs/cgroup/cpu/jobs/a/cpu.stat": "nr_periods 9\nnr_throttled 3\nthrottled_time 320000\n",  # noqa: E501
            "sys/fs/cgroup/memory/jobs/a/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",  # noqa: E501
        },
    )
    assert facts.pressure(second) == (320, 2), "a kill beside us in user.slice is not ours"
    assert facts.pressure(first) == (320, 2)
    assert facts.pressure(tmp_path / "none") == (0, 0)


@pytest.fixture
def quota_of_a_fifth() -> Iterator[Path]:
    """A cgroup (version 1) whose processes together get a fifth of one CPU."""
    folder = Path(f"/sys/fs/cgroup/cpu/perfdag-test-{os.getpid()}")
    try:
        folder.mkdir()
        (folder / "cpu.cfs_period_us").write_text("100000")
        (folder / "cpu.cfs_quota_us").write_text("20000")
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        yield folder
    finally:
        folder.rmdir()


def test_a_quota_of_our_own_cgroup_makes_samples_invalid(
    write_suite: Any, tmp_path: Path, quota_of_a_fifth: Path
) -> None:
    # Four processes want more than a fifth of a CPU, also beside the load of other programs.
    busy = (
        "import os, time; os.fork(); os.fork(); end = time.process_time() + 0.1\n"
        "while time.process_time() < end: pass\n"
        "try:\n    while True: os.wait()\nexcept ChildProcessError: pass"
    )
    suite = write_suite(
        f"name: busy\nentries:\n  - {{benchmark: command, params: {{argv: [{sys.executable}, "
        f"-c, {json.dumps(busy)}]}}}}\n"
    )
    inside = (
        f"import os, sys; open('{quota_of_a_fifth}/cgroup.procs', 'w').write(str(os.getpid())); "
        f"from perfdag.commands.main import main; sys.exit(main(sys.argv[1:]))"
    )
    words = ["run", str(suite), "--store", str(tmp_path / "store"), "--no-report"]
    argv = [sys.executable, "-c", inside, *words]
    assert subprocess.run(argv, capture_output=True, check=False).returncode == 1
    rows = load_rows(FolderStore(str(tmp_path / "store"))).to_pylist()
    measured = [row for row in rows if row["benchmark"] == "command"]
    assert {row["status"] for row in measured} == {"invalid"}
    assert "the CPU quota of its cgroup throttled it" in measured[0]["error"]


class Peer:
    """Another host of a gang, which prints these counters one after the other."""

    name = "node-2"

    def __init__(self, *outputs: str | SampleError) -> None:
        self.outputs = list(outputs)

    def run(self, argv: list[str], timeout: float) -> CommandResult:
        output = self.outputs.pop(0)
        if isinstance(output, SampleError):
            raise output
        # 1: cat does not find the files of the other version
        return CommandResult(argv, 1, output, "", 0.0)
