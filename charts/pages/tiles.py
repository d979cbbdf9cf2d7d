"""The first screen of a report: tiles of headline values, their change, verdict and trust."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from perfdag.charts import style
from perfdag.charts.pages.page import text
from perfdag.charts.series import Cell
from perfdag.results.summary import Series
from perfdag.results.trust import WORSE_LEVELS, RunTrust
from perfdag.results.verdicts import OwnVerdict
from perfdag.units import plural, scaled

TILES = 6
"""Headline values on the first screen."""
_CLASSES = {
    "worse": "bad",
    "better": "good",
    "failed": "bad",
    "inconclusive": "noisy",
    "passed": "good",
    "unusable": "bad",
    "noisy": "noisy",
}
_WORDS = ("worse", "better", "differs", "inconclusive", "no difference shown")


@dataclass(frozen=True)
class Change:
    """A series against the previous run: the effect for people, and the verdict on it."""

    effect: str
    word: str


@dataclass(frozen=True)
class Previous:
    """The run before, and the changes of headline series by point and name of the series."""

    run: str
    changes: Mapping[tuple[str, str], Change] = field(default_factory=dict)

    def of(self, series: Series) -> Change | None:
        """Return the change of a series, or None where the run before did not measure it."""
        return self.changes.get((series.point, series.name))


def tiles(
    cells: Sequence[Cell],
    trust: RunTrust,
    verdicts: Sequence[OwnVerdict],
    previous: Previous | None,
) -> str:
    """Return the tiles of a run: verdict, trust, and the headline values that tell most."""
    items = [_verdict(verdicts, previous), _trust(trust)]
    items += [
        _value(cell, series, trust, previous) for cell, series in _tile_values(cells, previous)
    ]
    return f'<div class="tiles">{"".join(items)}</div>\n'


def most_telling(cells: Sequence[Cell], previous: Previous | None) -> str | None:
    """Return the benchmark of the first tile, whose chart belongs on the first screen."""
    first_values = _tile_values(cells, previous)
    return first_values[0][0].state.benchmark if first_values else None


def _tile_values(cells: Sequence[Cell], previous: Previous | None) -> list[tuple[Cell, Series]]:
    """Return the series of the tiles: changed ones, then the best of each headline metric."""
    headlines = [
        (cell, series)
        for cell in cells
        for series in cell.state.series
        if series.headline and series.values
    ]
    changes = [
        pair
        for word in ("worse", "better")
        for pair in headlines
        if previous and (change := previous.of(pair[1])) and change.word == word
    ]
    best: dict[tuple[str, str], tuple[Cell, Series]] = {}
    for cell, series in headlines:
        key = (cell.state.benchmark, series.metric)
        sign = -1 if series.better == "lower" else 1
        if key not in best or sign * series.middle > sign * best[key][1].middle:
            best[key] = (cell, series)
    tile_values: dict[int, tuple[Cell, Series]] = {}
    for pair in [*changes[: TILES - 1], *best.values()]:
        tile_values.setdefault(id(pair[1]), pair)
    return list(tile_values.values())[:TILES]


def _tile(name: str, value: str, under: Sequence[str], kind: str = "", details: str = "") -> str:
    lines = "".join(f"<small>{line}</small>" for line in under if line)
    opening = f'<b class="{kind}">' if kind else "<b>"
    return f"<div><span>{text(name)}</span>{opening}{text(value)}</b>{lines}{details}</div>"


def _value(cell: Cell, series: Series, trust: RunTrust, previous: Previous | None) -> str:
    band, (factor, unit) = series.band, scaled(series.unit, abs(series.middle))
    middle, low, high = (f"{v / factor:.4g}" for v in (series.middle, band.low, band.high))
    spread = f"{low} to {high}, n={band.n}" if band.n > 1 else "n=1"
    about = " ".join(f"{key}={value}" for key, value in series.coords.items())
    lines = [text(f"{cell.label} {about}".strip()), spread]
    if (point := trust.points.get(cell.state.point)) and point.level != "good":
        lines.append(f'<span class="{_CLASSES[point.level]}">{point.level}</span>')
    if previous:
        change = previous.of(series)
        kind = _CLASSES.get(change.word, "muted") if change else "muted"
        words = f"{change.effect}: {change.word}" if change else "not in the previous run"
        lines.append(f'<span class="{kind}">{text(words)}</span>')
    name = style.metric_text(series.metric)
    stat = "" if series.stat == "value" else f" {series.stat}"
    return _tile(f"{cell.state.benchmark}: {name}{stat}", f"{middle} {unit}", lines)


def _verdict(verdicts: Sequence[OwnVerdict], previous: Previous | None) -> str:
    """Return the tile of what the benchmarks say of themselves, and of the changes."""
    lines, value, kind = [], "no verdict", "muted"
    if previous:
        words = [change.word for change in previous.changes.values()]
        counts = [f"{words.count(word)} {word}" for word in _WORDS if word in words]
        value = next((word for word in _WORDS if word in words), "nothing in common")
        kind = _CLASSES.get(value, "")
        lines = [text(", ".join(counts)), text(f"against run {previous.run}")]
    elif not verdicts:
        lines = ["no run before this one"]
    if verdicts:
        own = [verdict.word for verdict in verdicts]
        worst = next(word for word in ("failed", "inconclusive", "passed") if word in own)
        lines.append(f"{plural(len(own), 'verdict')} of benchmarks, {own.count('failed')} failed")
        if worst == "failed" or not previous:
            value, kind = worst, _CLASSES[worst]
    return _tile("Verdict", value, lines, kind)


def _trust(trust: RunTrust) -> str:
    kind = "good" if trust.proven else _CLASSES.get(trust.level, "muted")
    lines = [
        f"{len(points)} of {plural(len(trust.points), 'point')} {level}"
        for level in WORSE_LEVELS
        if (points := trust.of_level(level))
    ]
    details = f"<details><summary>why</summary>{text(trust.text)}</details>"
    return _tile("Trust", trust.level, lines, kind, details)
