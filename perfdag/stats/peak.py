"""Find the highest rate that holds a latency bound, by bracketing and bisection.

Short trials search, and full trials near their answer decide. A probe is valid or not.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

STEP = 1.5
"""Factor between rates while bracketing.

It is large enough for few probes, and small enough that an overloaded probe drains its backlog
in half its own duration."""
MOST_PROBES = 40


class NoPeak(Exception):
    """No rate held the bound; the text lists the trials."""


@dataclass(frozen=True)
class Probe:
    """A trial at `rate` (1/s): whether it met the bound, and whether it had full duration."""

    rate: float
    valid: bool
    validation: bool = False


@dataclass
class Peak:
    """The highest `rate` (1/s) that passed a full trial, and the lowest that failed one, if any."""

    rate: float
    above: float | None
    probes: list[Probe] = field(default_factory=list)


def find_peak(
    probe: Callable[[float], bool],
    validate: Callable[[float], bool],
    start: float,
    *,
    precision: float = 0.01,
    lowest: float = 1e-3,
    highest: float = 1e7,
) -> Peak:
    """Return the highest rate (1/s) for which `validate` holds, to a relative `precision`.

    `probe(rate)` is a short trial, `validate(rate)` a full one. Short trials narrow the range but
    err in both directions. Full trials bracket the answer: it passed, and a rate at most
    `precision` above it failed. Raises NoPeak if no rate from `start` down to `lowest` holds, or
    after 40 trials.
    """
    trials: list[Probe] = []

    def sustains(rate: float, full: bool = False) -> bool:
        if len(trials) >= MOST_PROBES:
            raise NoPeak(f"{MOST_PROBES} trials gave no answer: {_tried(trials)}")
        trials.append(Probe(rate, validate(rate) if full else probe(rate), full))
        return trials[-1].valid

    def edge(
        sustains: Callable[[float], bool], start: float, step: float
    ) -> tuple[float, float | None]:
        bracket = _bracket(sustains, min(max(start, lowest), highest), step, lowest, highest)
        if bracket is None:
            raise NoPeak(f"no rate down to {lowest:g}/s holds the bound: {_tried(trials)}")
        low, high = bracket
        while high is not None and high / low > (1 + precision) * (1 + 1e-9):
            middle = (low * high) ** 0.5
            low, high = (middle, high) if sustains(middle) else (low, middle)
        return low, high

    near, _ = edge(sustains, start, STEP)
    return Peak(*edge(lambda rate: sustains(rate, full=True), near, 1 + precision), trials)


def _bracket(
    sustains: Callable[[float], bool], start: float, step: float, lowest: float, highest: float
) -> tuple[float, float | None] | None:
    """Return a rate that holds and the next one that does not, by steps that grow up to STEP.

    The second is None if `highest` holds. Return None if no rate holds.
    """
    rate, up = start, sustains(start)
    while rate < highest if up else rate > lowest:
        beyond = min(rate * step, highest) if up else max(rate / step, lowest)
        if sustains(beyond) != up:
            return (rate, beyond) if up else (beyond, rate)
        rate, step = beyond, min(step * step, STEP)
    return (rate, None) if up else None


def _tried(trials: list[Probe]) -> str:
    return ", ".join(
        f"{trial.rate:.4g}/s {'held' if trial.valid else 'failed'}" for trial in trials[-6:]
    )
