"""How far the figures of a run can be trusted: good, noisy or unusable, with the reason.

docs/trust.md explains the limits.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from perfdag.benchmark import registry
from perfdag.results.summary import PointState, Series, point_labels
from perfdag.units import plural

Level = Literal["good", "noisy", "unusable"]
WORSE_LEVELS: tuple[Level, ...] = ("unusable", "noisy")
NOISY_SPREAD, UNUSABLE_SPREAD = 0.10, 1.0
"""Spread of a headline figure, relative to its median; of a share (unit 1) absolute."""
CANARY_MOVED = {"cpu": 0.2, "memory": 0.2, "loopback": 0.5, "disk": 1.0}
"""Range of a canary over the rounds of a run, relative to its median, above which it moved."""
DEPENDS_ON = ("cpu",)
"""The canaries of a benchmark that is not installed here."""


@dataclass
class PointTrust:
    """The trust in one point: its level, and the reasons by kind (spread, load, canary cpu ...).

    `spread` is the largest of its headline series, relative to the median.
    """

    level: Level = "good"
    reasons: dict[str, str] = field(default_factory=dict)
    spread: float = 0.0

    def lower(self, level: Level, kind: str, reason: str) -> None:
        """Add a reason to trust the point less."""
        self.reasons[kind] = reason
        if self.level != "unusable":
            self.level = level


@dataclass(frozen=True)
class RunTrust:
    """The trust in a run: that in its worst point.

    `points` has the points that were measured. `skipped` counts the others. `without_spread` counts
    the points that have one value only.
    """

    points: dict[str, PointTrust]
    skipped: int
    without_spread: int

    @property
    def level(self) -> Level:
        levels = {trust.level for trust in self.points.values()}
        if "unusable" in levels or not self.points:
            return "unusable"
        return "noisy" if "noisy" in levels else "good"

    @property
    def proven(self) -> bool:
        """Whether every point of the run has a spread, and it is good."""
        return self.level == "good" and not self.skipped and not self.without_spread

    def of_level(self, level: Level) -> list[PointTrust]:
        """Return the trust in the points of a level."""
        return [trust for trust in self.points.values() if trust.level == level]

    @property
    def text(self) -> str:
        """The level with its reasons, such as `noisy: 2 of 9 points (load before it in 2)`."""
        parts = []
        for level in WORSE_LEVELS:
            if points := self.of_level(level):
                count = f"{level}: {len(points)} of {plural(len(self.points), 'point')}"
                parts.append(f"{count} ({', '.join(_causes(points))})")
        if not parts:
            count = plural(len(self.points), "point")
            parts = [f"good: {count}" if self.points else "unusable: no point was measured"]
        if self.without_spread:
            count = f"{self.without_spread} of {plural(len(self.points), 'point')}"
            parts.append(f"one sample shows no spread ({count})")
        if self.skipped:
            parts.append(f"{self.skipped} skipped")
        return "; ".join(parts)


def trust_in(table: pa.Table, states: Sequence[PointState]) -> RunTrust:
    """Return the trust in the points of a run. `table` has its rows, with those of the canary."""
    moved = _canary_moves(table)
    measured = [state for state in states if state.statuses.keys() - {"skipped"}]
    labels = point_labels(states)
    points = {
        state.point: _point_trust(state, f"{state.entry} {labels[state.point]}".strip(), moved)
        for state in measured
    }
    counts = [[len(series.values) for series in headlines(state)] for state in measured]
    without_spread = sum(max(values, default=0) == 1 for values in counts)
    return RunTrust(points, len(states) - len(measured), without_spread)


def headlines(state: PointState) -> list[Series]:
    """Return the headline series of a point, or its first one where it has none."""
    return [series for series in state.series if series.headline] or state.series[:1]


def relative_spread(series: Series) -> float | None:
    """Return the spread of a series relative to its median, or None where it has none.

    A share has the unit 1, and its spread is absolute.
    """
    band = series.band
    scale = max(abs(series.middle), 1.0) if series.unit == "1" else abs(series.middle)
    return (band.high - band.low) / scale if band.n > 1 and scale else None


def unusable(series: Series) -> bool:
    """Return whether the samples of a series are so far apart that its median says nothing."""
    return (relative_spread(series) or 0.0) > UNUSABLE_SPREAD


def _point_trust(state: PointState, name: str, moved: dict[str, float]) -> PointTrust:
    trust = PointTrust()
    if not state.statuses.get("ok"):
        trust.lower("unusable", "no valid sample", "no valid sample")
        return trust
    for kind in {part.split(" ")[0]: None for mark in state.noise for part in mark.split(", ")}:
        trust.lower("noisy", kind, kind)
    for part in _canaries(state.benchmark):
        if part in moved:
            kind = f"canary {part}"
            trust.lower("noisy", kind, f"{kind} moved by {100 * moved[part]:.0f} %")
    spreads = [(spread, s) for s in headlines(state) if (spread := relative_spread(s)) is not None]
    trust.spread, series = max(spreads, key=lambda item: item[0], default=(0.0, None))
    if series is not None and trust.spread > NOISY_SPREAD:
        level: Level = "unusable" if trust.spread > UNUSABLE_SPREAD else "noisy"
        text = f"spread {100 * trust.spread:,.0f} % of {name} {series.name}"
        trust.lower(level, "spread", text)
    return trust


def _canaries(benchmark: str) -> tuple[str, ...]:
    try:
        return registry.get(benchmark).canaries
    except Exception:  # a benchmark of a package that is not installed here
        return DEPENDS_ON


def _canary_moves(table: pa.Table) -> dict[str, float]:
    """Return the canaries that moved during the run, with their relative range."""
    rows = table.filter(pc.equal(table["benchmark"], "canary"))
    values: dict[str, list[float]] = {}
    for metric, value in zip(rows["metric"].to_pylist(), rows["value"].to_pylist(), strict=True):
        if metric in CANARY_MOVED and value is not None:
            values.setdefault(metric, []).append(value)
    moves = {name: _range(of_canary) for name, of_canary in values.items()}
    return {name: move for name, move in moves.items() if move > CANARY_MOVED[name]}


def _range(values: list[float]) -> float:
    middle = sorted(values)[len(values) // 2]
    return (max(values) - min(values)) / middle if middle else 0.0


def _causes(points: Iterable[PointTrust]) -> list[str]:
    """Return each kind of reason once, of the point with the largest spread, with its count."""
    kinds: dict[str, list[str]] = {}
    for trust in sorted(points, key=lambda trust: -trust.spread):
        for kind, reason in trust.reasons.items():
            kinds.setdefault(kind, []).append(reason)
    return [
        reasons[0] if len(reasons) == 1 else f"{reasons[0]} and {len(reasons) - 1} more"
        for reasons in kinds.values()
    ]
