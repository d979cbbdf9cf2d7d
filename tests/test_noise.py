"""The noise guard: the canary is small, and what disturbs a sample is said."""

import time

import pytest

from perfdag import noise
from perfdag.noise import Moment


def test_the_canary_takes_at_most_0_3_seconds_and_is_positive() -> None:
    best = 1.0
    for _ in range(3):  # the limit is the canary's own work; a busy machine may add to one of three
        start = time.process_time()
        values = noise.canary()
        best = min(best, time.process_time() - start)
    assert best < 0.3
    assert set(values) == {name for name, _, _ in noise.CANARY_METRICS}
    assert all(value > 0 for value in values.values())


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (Moment(0, 0, 0, 0.5), Moment(1, 1000, 0, 3.0), None),
        (Moment(0, 0, 0, 0.5), Moment(50, 1000, 0, 0.5), "steal 5.0%"),
        (Moment(0, 0, 0, 3.5), Moment(0, 1000, 0, 3.5), "load 3.5 on 2 cores before it"),
        (Moment(0, 0, 0, 3.5), Moment(100, 1000, 0, 3.5), "steal 10.0%, load 3.5 on 2 cores before it"),
    ],
)
def test_disturbed(before: Moment, after: Moment, said: str | None) -> None:
    assert noise.disturbed(before, after, cores=2) == said


def test_a_throttled_cgroup_makes_a_sample_invalid() -> None:
    assert noise.throttled(Moment(0, 0, 1000, 0), Moment(0, 0, 1000, 0)) is None
    assert noise.throttled(Moment(0, 0, 1000, 0), Moment(0, 0, 251000, 0)) == "the CPU quota of its cgroup throttled it for 0.25 s"


def test_this_machine_has_counters() -> None:
    before = noise.moment()
    time.sleep(0.05)
    after = noise.moment()
    assert after.total > before.total
    assert 0 <= noise.steal(before, after) <= 1


def test_a_kill_for_memory_is_told() -> None:
    assert noise.starved(Moment(0, 0, 0, 0, 2), Moment(0, 0, 0, 0, 2)) is None
    assert "OOMKilled" in (noise.starved(Moment(0, 0, 0, 0, 2), Moment(0, 0, 0, 0, 3)) or "")
