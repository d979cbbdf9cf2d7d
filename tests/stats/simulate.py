"""Made-up series: how often verdicts and alerts are wrong, and how soon a step is found."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from perfdag.stats.levels import fold_levels
from perfdag.stats.verdicts import compare, pool


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
    words: list[str] = []
    for _ in range(pairs):
        runs = [MODELS[model](rng, past + 2) for _ in range(series)]
        similar = pool(np.log(x[:-1]) for x in runs)
        a, b = runs[0][-2:-1], runs[0][-1:] * factor
        words.append(compare(a, b, runs[0][:-1], better="higher", similar=similar).word)
    return words


def moving(rng: np.random.Generator, n: int) -> np.ndarray:
    """A suite that moves between two nodes 8 % apart about every 30 runs and stays, CV 2 %."""
    slow = np.cumsum(rng.random(n) < 1 / 30) % 2
    values: np.ndarray = np.exp(rng.normal(0, 0.02, n)) * np.where(slow, 0.92, 1.0)
    return values


MOVING = "moves between nodes 8 % apart"
ALL_MODELS = MODELS | {MOVING: moving}


@dataclass
class Alerts:
    """Alerts for the worse by rule, nights with an open alert, and all nights of the series."""

    three_runs: int = 0
    permutations: int = 0
    red: int = 0
    nights: int = 0


def false_alerts(model: str, series: int, nights: int, min_effect: float = 0.05) -> Alerts:
    """Fold series without a change, from their first run on."""
    rng = np.random.default_rng(sum(model.encode()))
    result = Alerts(nights=series * nights)
    for _ in range(series):
        values = ALL_MODELS[model](rng, nights)
        levels = fold_levels(values, better="higher", min_effect=min_effect)
        opened = nights
        for event in levels.events:
            if event.kind == "regressed":
                result.three_runs += event.rule == "three runs"
                result.permutations += event.rule == "permutations"
                opened = min(opened, event.run)
            if event.kind == "recovered":
                result.red, opened = result.red + event.run - opened, nights
        result.red += nights - opened
    return result


def nights_to_find(
    step: float,
    cv: float,
    series: int,
    min_effect: float = 0.05,
    before: int = 30,
    after: int = 30,
) -> np.ndarray:
    """Return the night after the step on which each alert opened, 99 where not or where it was
    lost.

    An alert is lost where the series counts as recovered within `after` nights.
    """
    rng = np.random.default_rng(int(step * 1000) + int(cv * 10000))
    result = []
    for _ in range(series):
        values = np.exp(rng.normal(0, cv, before + after))
        values[before:] *= 1 - step
        levels = fold_levels(values, better="higher", min_effect=min_effect)
        opened = [event.run - before + 1 for event in levels.alerts]
        result.append(opened[0] if opened and opened[0] > 0 else 99)
    return np.array(result)
