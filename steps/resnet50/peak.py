"""The highest rate that holds a latency bound: bracketing, bisection, validation at the answer. Pure: a probe says valid or not."""

from collections.abc import Callable
from dataclasses import dataclass, field

STEP = 1.5
"""Factor between rates while bracketing: large enough to find the bracket in a few probes, small enough that an overloaded probe
drains its backlog in half its own duration."""
MOST_PROBES = 40


class NoPeak(Exception):
    """No rate could be shown to hold the bound; the text says which were tried."""


@dataclass(frozen=True)
class Probe:
    """One trial: `rate` in 1/s, whether the bound held, and whether it was a validation (full duration) or a search trial."""

    rate: float
    valid: bool
    validation: bool = False


@dataclass
class Peak:
    """The answer: `rate` in 1/s was validated; `above` is the lowest rate that was seen to fail (None: no trial failed)."""

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

    `probe(rate)` is a short trial, `validate(rate)` a full one at the answer; where a full one fails the answer steps down by
    `precision` until one holds. Raises ValueError for a rate or precision that is not positive, NoPeak where no rate from `start` down
    to `lowest` holds, none does in the validation, or the search needs more than 40 trials.
    """
    if not (start > 0 and 0 < precision < 1 and 0 < lowest <= highest):
        raise ValueError(
            f"start {start:g}, lowest {lowest:g} and highest {highest:g} are rates above zero, precision {precision:g} lies in (0, 1)"
        )
    trials: list[Probe] = []

    def held(rate: float, full: bool = False) -> bool:
        if len(trials) >= MOST_PROBES:
            raise NoPeak(f"{MOST_PROBES} trials gave no answer: {_tried(trials)}")
        trials.append(Probe(rate, validate(rate) if full else probe(rate), full))
        return trials[-1].valid

    low, high = _bracket(held, min(max(start, lowest), highest), lowest, highest, trials)
    while high is not None and high / low > 1 + precision:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if held(middle) else (low, middle)
    while not held(low, full=True):
        # the edge itself fails half the time: what held in a short trial may not in a full one
        high, low = low, low / (1 + precision)
        if low < lowest:
            raise NoPeak(f"no rate down to {lowest:g}/s held in a full trial: {_tried(trials)}")
    return Peak(low, high, trials)


def _bracket(held: Callable[[float], bool], start: float, lowest: float, highest: float, trials: list[Probe]) -> tuple[float, float | None]:
    if held(start):
        low = start
        while low < highest:
            above = min(low * STEP, highest)
            if not held(above):
                return low, above
            low = above
        return low, None
    high = start
    while high > lowest:
        below = max(high / STEP, lowest)
        if held(below):
            return below, high
        high = below
    raise NoPeak(f"no rate down to {lowest:g}/s holds the bound: {_tried(trials)}")


def _tried(trials: list[Probe]) -> str:
    return ", ".join(f"{each.rate:.4g}/s {'held' if each.valid else 'failed'}" for each in trials[-6:])
