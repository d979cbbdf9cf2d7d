"""Nightly analysis of made-up series: how often it is wrong, and how soon it finds a step."""

from collections.abc import Callable

import numpy as np

from perfdag.stats.changes import change_points
from perfdag.stats.verdicts import compare, pool

RECENT, SAME = 7, 5
NIGHTS = 81


def lognormal(cv: float) -> Callable[[np.random.Generator, int], np.ndarray]:
    """Independent run medians with a coefficient of variation."""
    return lambda rng, n: np.exp(rng.normal(0, cv, n))


def spiky(rng: np.random.Generator, n: int) -> np.ndarray:
    """CV 2 % and one night in twenty slow by an exponential 15 %."""
    slow = (rng.random(n) < 0.05) * rng.exponential(0.15, n)
    values: np.ndarray = np.exp(rng.normal(0, 0.02, n) - slow)
    return values


def autoregressive(rng: np.random.Generator, n: int) -> np.ndarray:
    """AR(1) with coefficient 0.5 and a CV of 2 %."""
    shocks = rng.normal(0, 0.02 * np.sqrt(1 - 0.25), n)
    x = np.zeros(n)
    x[0] = rng.normal(0, 0.02)
    for i in range(1, n):
        x[i] = 0.5 * x[i - 1] + shocks[i]
    return np.exp(x)


def two_speeds(rng: np.random.Generator, n: int) -> np.ndarray:
    """Each night on one of two kinds of node, 4 % apart, CV 1 % on each."""
    values: np.ndarray = np.exp(rng.normal(0, 0.01, n) + 0.04 * (rng.random(n) < 0.5))
    return values


def heavy_tails(rng: np.random.Generator, n: int) -> np.ndarray:
    """Student's t with 2 degrees of freedom, scaled by 2 %: one run in 25 lies off by 9 %."""
    values: np.ndarray = np.exp(0.02 * rng.standard_t(2, n))
    return values


MODELS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "lognormal CV 2 %": lognormal(0.02),
    "lognormal CV 5 %": lognormal(0.05),
    "lognormal CV 20 %": lognormal(0.20),
    "CV 2 % + 5 % slow spikes": spiky,
    "AR(1) 0.5, CV 2 %": autoregressive,
    "two node speeds, 4 % apart": two_speeds,
    "t with 2 degrees of freedom": heavy_tails,
}
OUTLIERS = ("CV 2 % + 5 % slow spikes", "t with 2 degrees of freedom")
"""Models with outliers, for which more wrong verdicts are allowed."""


def verdicts(model: str, past: int, pairs: int, series: int = 1, factor: float = 1.0) -> list[str]:
    """Return the verdicts on pairs of runs whose true levels have a ratio of `factor`.

    The series has `past` runs before the pair, and so have `series` - 1 series like it.
    """
    rng = np.random.default_rng(sum(model.encode()) + past)
    words = []
    for _ in range(pairs):
        runs = [MODELS[model](rng, past + 2) for _ in range(series)]
        similar = pool(np.log(x[:-1]) for x in runs)
        a, b = runs[0][-2:-1], runs[0][-1:] * factor
        words.append(compare(a, b, runs[0][:-1], better="higher", similar=similar).word)
    return words


def alarms(values: np.ndarray, name: str, first: int, min_effect: float = 0.05) -> list[int]:
    """Nights (from `first` on) on which an analysis of the runs so far tells of a new change for the worse (lower).

    As the gate does it: the whole history anew each night, so that a change that was told keeps its place; changes in the last 7 runs,
    not within 5 runs of one already told.
    """
    messages: list[int] = []
    nights = []
    for n in range(first, len(values) + 1):
        for change in change_points(values[:n], name, min_effect=min_effect):
            if (
                change.effect < 0
                and change.index >= n - RECENT
                and all(abs(change.index - known) > SAME for known in messages)
            ):
                messages.append(change.index)
                nights.append(n)
    return nights


def false_alarms(
    model: str, series: int, nights: int = NIGHTS, min_effect: float = 0.05, before: int = 30
) -> tuple[int, int]:
    """Return (alarms, series-nights) over series without a change, from night `before` + 1 on."""
    rng = np.random.default_rng(sum(model.encode()))
    total = 0
    for i in range(series):
        values = MODELS[model](rng, before + nights)
        total += len(alarms(values, f"{model}{i}", before + 1, min_effect))
    return total, series * nights


def nights_to_find(
    step: float,
    cv: float,
    series: int,
    within: int = 10,
    min_effect: float = 0.05,
    before: int = 30,
) -> np.ndarray:
    """Return for each series the night after the step on which it was told of, 99 where not within `within` nights."""
    rng = np.random.default_rng(int(step * 1000) + int(cv * 10000))
    result = []
    for i in range(series):
        values = np.exp(rng.normal(0, cv, before + within))
        values[before:] *= 1 - step
        nights = [n - before for n in alarms(values, f"step{i}", before + 1, min_effect)]
        result.append(nights[0] if nights else 99)
    return np.array(result)
