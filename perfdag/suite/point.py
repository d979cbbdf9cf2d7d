"""A point: one benchmark with one set of params on one shape.

Its id is a hash of these, so equal points of two entries are one.
"""

from dataclasses import dataclass, field
from typing import Any

from perfdag.suite.host_pairs import Pair
from perfdag.suite.model import Until


@dataclass(slots=True)
class Point:
    """What is measured.

    `shape` indexes the plan's shapes, `label` holds the values that vary within the entry.

    `seconds` is the expected wall time of a sample and `timeout` its limit, both in seconds.
    """

    id: str
    entry: str
    benchmark: str
    params: dict[str, Any]
    shape: int
    label: str
    repetitions: int
    seconds: float
    timeout: float
    retries: int
    until: Until | None = None
    pair: Pair | None = None
    optional: bool = False

    def key(self, repetition: int) -> str:
        """Return the name of one sample in the store; a warm-up is `<point>-w<n>`."""
        return f"{self.id}-{repetition if repetition > 0 else f'w{-repetition}'}"

    def sample(self, repetition: int) -> str:
        """Return the name of one sample for people. Repetitions below 1 are warm-ups."""
        count = f"{repetition}/{self.rounds}" if repetition > 0 else "warm-up"
        return f"{self.entry} {self.label}".strip() + f" ({count})"

    @property
    def rounds(self) -> int:
        """The most measured samples that this point may get."""
        return self.until.max_repetitions if self.until else self.repetitions

    def tighten(self, other: "Point") -> None:
        """Adopt the stricter of each setting of an equal point, whichever entry came first."""
        self.repetitions = max(self.repetitions, other.repetitions)
        self.timeout = max(self.timeout, other.timeout)
        self.retries = max(self.retries, other.retries)
        self.optional = self.optional and other.optional
        rules = [point.until for point in (self, other) if point.until]
        if rules:
            limit = max(self.repetitions, *(rule.max_repetitions for rule in rules))
            self.until = Until(
                relative_spread=min(rule.relative_spread for rule in rules), max_repetitions=limit
            )


@dataclass
class SuitePoints:
    """All points of a suite, their distinct shapes, and how many equal points were merged."""

    points: list[Point] = field(default_factory=list)
    shapes: list[dict[str, Any]] = field(default_factory=list)
    merged: int = 0
