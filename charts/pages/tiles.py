"""The first screen of a report: tiles of the answer, trust and headline values."""

from collections.abc import Sequence

from perfdag.analysis.alerts import GateResult
from perfdag.analysis.verdict import Answer
from perfdag.charts import style
from perfdag.charts.pages.page import CLASSES, text
from perfdag.charts.series import Cell
from perfdag.results.summary import WORSE_LEVELS, OwnVerdict, RunTrust, Series, unusable
from perfdag.units import plural, scaled

TILES = 6
"""Headline values on the first screen."""
DECIDING = 3
"""Series that the tile of the answer names."""


class Answers:
    """What the gate of a run says of its series, and how far its points can be trusted."""

    def __init__(self, gate: GateResult | None, trust: RunTrust) -> None:
        self.gate, self.trust = gate, trust
        self.lines = {line.info.series_id: line for line in gate.series} if gate else {}

    def of(self, series: Series) -> Answer | None:
        """Return the answer about a series, or None for a first run."""
        line = self.lines.get(series.series_id)
        return line.answer if line and self.gate and self.gate.runs > 1 else None


def tiles(cells: Sequence[Cell], verdicts: Sequence[OwnVerdict], answers: Answers) -> str:
    """Return the tiles of a run: the answer, trust, and the headline values that tell most."""
    items = [_answer(cells, verdicts, answers), _trust(answers.trust)]
    items += [_value(cell, series, answers) for cell, series in _tile_values(cells, answers)]
    return f'<div class="tiles">{"".join(items)}</div>\n'


def most_telling(cells: Sequence[Cell], answers: Answers) -> str | None:
    """Return the benchmark of the first tile, whose chart belongs on the first screen."""
    first_values = _tile_values(cells, answers)
    return first_values[0][0].state.benchmark if first_values else None


def _tile_values(cells: Sequence[Cell], answers: Answers) -> list[tuple[Cell, Series]]:
    """Return the series of the tiles: changed ones, then the best of each headline metric.

    A value that cannot be trusted comes last.
    """
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
        if (answer := answers.of(pair[1])) and answer.word == word
    ]
    best: dict[tuple[str, str], tuple[Cell, Series]] = {}
    for cell, series in headlines:
        key = (cell.state.benchmark, series.metric)
        sign = -1 if series.better == "lower" else 1
        rank = (not unusable(series), sign * series.middle)
        if key not in best or rank > (not unusable(best[key][1]), sign * best[key][1].middle):
            best[key] = (cell, series)
    tile_values: dict[int, tuple[Cell, Series]] = {}
    usable_first = sorted(best.values(), key=lambda pair: unusable(pair[1]))
    for pair in [*changes[: TILES - 1], *usable_first]:
        tile_values.setdefault(id(pair[1]), pair)
    return list(tile_values.values())[:TILES]


def _tile(name: str, value: str, under: Sequence[str], kind: str = "", details: str = "") -> str:
    lines = "".join(f"<small>{line}</small>" for line in under if line)
    opening = f'<b class="{kind}">' if kind else "<b>"
    return f"<div><span>{text(name)}</span>{opening}{text(value)}</b>{lines}{details}</div>"


def _value(cell: Cell, series: Series, answers: Answers) -> str:
    band, (factor, unit) = series.band, scaled(series.unit, abs(series.middle))
    middle, low, high = (f"{v / factor:.4g}" for v in (series.middle, band.low, band.high))
    spread = f"{low} to {high} {unit}, n={band.n}" if band.n > 1 else "n=1"
    about = " ".join(f"{key}={value}" for key, value in series.coords.items())
    lines = [text(f"{cell.label} {about}".strip()), spread]
    shown, kind = f"{middle} {unit}", ""
    if unusable(series):
        shown, kind = "unusable", "muted"
    elif (point := answers.trust.points.get(cell.state.point)) and point.level != "good":
        lines.append('<span class="noisy">noisy</span>')
    if answer := answers.of(series):
        colour = CLASSES.get(answer.word, "muted")
        lines.append(f'<span class="{colour}">{text(answer.text)}</span>')
    name = style.metric_text(series.metric)
    stat = "" if series.stat == "value" else f" {series.stat}"
    return _tile(f"{cell.state.benchmark}: {name}{stat}", shown, lines, kind)


def _answer(cells: Sequence[Cell], verdicts: Sequence[OwnVerdict], answers: Answers) -> str:
    """Return the tile of the answer about the run, with what decided it."""
    gate, lines = answers.gate, []
    lost = [cell for cell in cells if cell.why and "skipped" not in cell.state.statuses]
    failed = [verdict for verdict in verdicts if verdict.word == "failed"]
    value, kind = "first run", "muted"
    if gate and gate.runs > 1 and gate.word:
        value, kind = gate.word, CLASSES.get(gate.word, "muted")
        deciding = [line for line in gate.headlines if line.answer.word == value]
        if value != "same":
            lines += [text(f"{line.name}: {line.answer.text}") for line in deciding[:DECIDING]]
        lines.append(text(f"{gate.counted}, {plural(gate.runs, 'run')} of history"))
    if lost:
        value, kind = "failed", "bad"
        where = f'<a href="#problems">{len(lost)} of {plural(len(cells), "point")} failed</a>'
        lines.insert(0, f"{where}: {text(lost[0].label)}: {text(lost[0].why)}")
    if failed:
        value, kind = "failed", "bad"
        lines.insert(0, text(f"{failed[0].where}: {failed[0].text}"))
    elif verdicts:
        lines.append(f"{plural(len(verdicts), 'verdict')} of benchmarks, none failed")
    if gate and gate.alerts and any(alert.gates for alert in gate.alerts) and value != "failed":
        titles = [alert.title for alert in gate.alerts if alert.gates and alert.kind != "worse"]
        lines[:0] = [text(title) for title in titles[:DECIDING]]
        if titles:
            value, kind = "failed", "bad"
    return _tile("Verdict", value, lines, kind)


def _trust(trust: RunTrust) -> str:
    kind = "good" if trust.proven else CLASSES.get(trust.level, "muted")
    lines = [
        f"{len(points)} of {plural(len(trust.points), 'point')} {level}"
        for level in WORSE_LEVELS
        if (points := trust.of_level(level))
    ]
    details = f"<details><summary>why</summary>{text(trust.text)}</details>"
    return _tile("Trust", trust.level, lines, kind, details)
