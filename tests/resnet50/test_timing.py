"""Warm-up, the clock's self-check, the largest batch that fits."""

import threading
import time
from collections.abc import Callable

import pytest

from perfdag.steps.resnet50.inference.timing import check_clock, largest_fitting, warm_up


class Fake:
    """A clock that calls advance."""

    def __init__(self, cost: Callable[[int], float]) -> None:
        self.now, self.calls, self._cost = 0.0, 0, cost

    def clock(self) -> float:
        return self.now

    def __call__(self) -> None:
        self.now += self._cost(self.calls)
        self.calls += 1


def test_the_first_batch_is_apart() -> None:
    fake = Fake(lambda call: 7.0 if call == 0 else 0.01)
    warm = warm_up(fake, 60.0, fake.clock)
    assert warm.first == pytest.approx(7.0)
    assert warm.steady == pytest.approx(0.01)
    assert warm.stable
    assert warm.batches == 16


def test_it_goes_on_until_stable() -> None:
    fake = Fake(lambda call: 0.01 + 0.1 * 0.8**call)
    warm = warm_up(fake, 60.0, fake.clock)
    assert warm.stable
    assert warm.batches > 20
    assert warm.steady == pytest.approx(0.01, rel=0.15)


def test_it_gives_up_at_the_limit_and_says_so() -> None:
    fake = Fake(lambda call: 1.0 if call // 5 % 2 else 2.0)
    warm = warm_up(fake, 30.0, fake.clock)
    assert not warm.stable
    assert fake.now < 40


@pytest.mark.parametrize("seconds", [9.5, 25.0, 90.0])
def test_slow_and_steady_is_stable(seconds: float) -> None:
    fake = Fake(lambda call: seconds)
    warm = warm_up(fake, 60.0, fake.clock)
    assert warm.stable
    assert warm.batches <= 7  # no longer than it takes to see
    assert warm.steady == pytest.approx(seconds)


def test_too_few_batches_are_told_from_moving_ones() -> None:
    fake = Fake(lambda call: 1.0 if call < 2 else 50.0)
    warm = warm_up(fake, 60.0, fake.clock)
    assert (warm.stable, warm.few) == (False, True)
    fake = Fake(lambda call: 1.0 if call // 5 % 2 else 2.0)
    assert not warm_up(fake, 30.0, fake.clock).few


def test_a_smoke_test_does_not_stretch() -> None:
    fake = Fake(lambda call: 9.5 + call)
    warm_up(fake, 2.0, fake.clock, stretch=0)
    assert fake.calls == 2


def test_a_gpu_is_kept_busy_until_its_clocks_have_risen() -> None:
    fake = Fake(lambda call: 0.0133 if call < 40 else 0.01)  # steady at each clock
    assert warm_up(fake, 60.0, fake.clock).steady == pytest.approx(0.0133)
    fake = Fake(lambda call: 0.0133 if call < 40 else 0.01)
    assert warm_up(fake, 60.0, fake.clock, least=1.0).steady == pytest.approx(0.01)


class Device:
    """Work that runs on beside the host, as CUDA kernels do: a launch returns at once."""

    def __init__(self, seconds: float, synchronise: bool) -> None:
        self._event, self._seconds, self._synchronise = threading.Event, seconds, synchronise
        self._thread: threading.Thread | None = None
        self._make = threading.Thread

    def infer(self) -> None:
        self._thread = self._make(target=time.sleep, args=(self._seconds,))
        self._thread.start()
        if self._synchronise:
            self._thread.join()

    def busy(self) -> float:
        assert self._thread is not None
        self._thread.join()
        return self._seconds


def test_the_self_check_passes_with_a_synchronisation_and_fails_without() -> None:
    with_it, without = Device(0.01, True), Device(0.01, False)
    assert check_clock(with_it.infer, with_it.busy).honest
    result = check_clock(without.infer, without.busy)
    assert not result.honest
    assert "before the device was done" in result.text()


@pytest.mark.parametrize("fits", [0, 1, 5, 127, 255])
def test_the_largest_batch_that_fits(fits: int) -> None:
    tried: list[int] = []

    def probe(batch: int) -> bool:
        tried.append(batch)
        return batch <= fits

    assert largest_fitting(probe, 256) == fits
    assert len(tried) <= 9
