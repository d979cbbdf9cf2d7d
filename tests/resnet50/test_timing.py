"""Warm-up, the clock's self-check, the largest batch that fits."""

from collections.abc import Callable
from typing import Any
from unittest.mock import ANY

import pytest

from perfdag.steps.resnet50.warmup import largest_fitting, warm_up


class Fake:
    """A clock that calls advance."""

    def __init__(self, cost: Callable[[int], float]) -> None:
        self.now, self.calls, self._cost = 0.0, 0, cost

    def clock(self) -> float:
        return self.now

    def __call__(self) -> None:
        self.now += self._cost(self.calls)
        self.calls += 1


def alternating(call: int) -> float:
    return 1.0 if call // 5 % 2 else 2.0


def rising_clock(call: int) -> float:
    """A GPU whose clock rises after 40 batches; the batches are steady before and after."""
    return 0.0133 if call < 40 else 0.01


@pytest.mark.parametrize(
    ("cost", "limit", "options", "stable", "few", "batches", "steady"),
    [
        pytest.param(
            lambda call: 0.01 if call else 7.0,
            60.0,
            {},
            True,
            False,
            (16, 16),
            pytest.approx(0.01),
            id="the first batch is apart",
        ),
        pytest.param(
            lambda call: 0.01 + 0.1 * 0.8**call,
            60.0,
            {},
            True,
            False,
            (21, 200),
            pytest.approx(0.01, rel=0.15),
            id="it goes on until it is stable",
        ),
        pytest.param(
            alternating, 30.0, {}, False, False, (1, 24), ANY, id="it gives up at the limit"
        ),
        *(
            pytest.param(
                lambda _, seconds=seconds: seconds,
                60.0,
                {},
                True,
                False,
                (1, 7),  # no longer than it takes to see
                pytest.approx(seconds),
                id=f"slow and steady: {seconds} s",
            )
            for seconds in (9.5, 25.0, 90.0)
        ),
        pytest.param(
            lambda call: 1.0 if call < 2 else 50.0,
            60.0,
            {},
            False,
            True,
            (1, 7),
            ANY,
            id="too few batches are not moving ones",
        ),
        pytest.param(
            lambda call: 9.5 + call,
            2.0,
            {"stretch": 0},
            ANY,
            ANY,
            (2, 2),
            ANY,
            id="a smoke test does not stretch",
        ),
        pytest.param(
            rising_clock,
            60.0,
            {},
            True,
            False,
            (1, 40),
            pytest.approx(0.0133),
            id="steady before the clock has risen",
        ),
        pytest.param(
            rising_clock,
            60.0,
            {"least": 1.0},
            True,
            False,
            (41, 200),
            pytest.approx(0.01),
            id="kept busy until the clock has risen",
        ),
    ],
)
def test_a_warm_up_lasts_until_its_batches_are_steady(
    cost: Callable[[int], float],
    limit: float,
    options: dict[str, Any],
    stable: Any,
    few: Any,
    batches: tuple[int, int],
    steady: Any,
) -> None:
    """`batches`: the least and the most of them."""
    fake = Fake(cost)
    warm = warm_up(fake, limit, fake.clock, **options)
    assert warm.first == pytest.approx(cost(0))
    assert (warm.stable, warm.few, warm.steady) == (stable, few, steady)
    assert batches[0] <= warm.batches <= batches[1]
    assert fake.calls == warm.batches


@pytest.mark.parametrize("fits", [0, 1, 5, 127, 255])
def test_the_largest_batch_that_fits(fits: int) -> None:
    tried: list[int] = []

    def probe(batch: int) -> bool:
        tried.append(batch)
        return batch <= fits

    assert largest_fitting(probe, 256) == fits
    assert len(tried) <= 9
