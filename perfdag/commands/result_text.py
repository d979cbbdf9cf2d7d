"""The result of a run: its exit code, its data, and its text for a terminal."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from textwrap import shorten
from typing import Any

from perfdag.analysis.alerts import GateResult, answer_lines, gate_as_dict, gate_lines
from perfdag.analysis.banner import Judged, banner
from perfdag.analysis.history import Series as Line
from perfdag.commands.terminal import HIGHLIGHTS, fitted, highlighted, spark, styled, text_table
from perfdag.plan.plan import Plan
from perfdag.results.collect import CollectionResult
from perfdag.results.summary import (
    PointState,
    PointTrust,
    Summary,
    headlines,
    statuses_text,
    worst_of_points,
)
from perfdag.signals import EXIT_FAILED, EXIT_GATE, EXIT_OK, EXIT_REACH
from perfdag.units import digits, plural, scaled


@dataclass(frozen=True)
class RunResult:
    """A collected run: its samples by status, its points, and the addresses of its files."""

    plan: Plan
    summary: Summary
    collected: CollectionResult
    rows: str
    report: str | None = None
    exports: Sequence[str] = ()
    gate: GateResult | None = None
    """The answers about the series of the run, and its checks. None where there is no history."""
    gated: bool = False
    """Whether the gate of the whole run, which knows the acknowledgements, decides on verdicts."""
    told: bool = True
    """Whether the webhook took the messages of the gate."""

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.plan.run_id

    @property
    def exit_code(self) -> int:
        """The exit code of the verb that measured or collected the run."""
        if not self.told:
            return EXIT_REACH
        if self.gated:
            failed = self.gate is not None and self.gate.failed
        else:
            failed = any(verdict.word == "failed" for verdict in self.summary.verdicts)
        if failed:
            return EXIT_GATE
        statuses = self.summary.statuses.keys()
        return EXIT_FAILED if "ok" not in statuses or statuses - {"ok", "skipped"} else EXIT_OK

    def __str__(self) -> str:
        return result_text(self)

    def data(self) -> dict[str, Any]:
        """Return the result as data for JSON."""
        answer = gate_as_dict(self.gate) if self.gate else None
        trust, verdicts = self.summary.trust, self.summary.verdicts
        points = [
            {
                "point": state.point,
                "entry": state.entry,
                "benchmark": state.benchmark,
                "params": state.params,
                "statuses": state.statuses,
                "reasons": state.reasons,
                "noise": state.noise,
                "trust": asdict(own) if (own := trust.points.get(state.point)) else None,
                "metrics": [
                    {
                        "metric": series.metric,
                        "stat": series.stat,
                        "coords": series.coords,
                        "unit": series.unit,
                        "better": series.better,
                        "headline": series.headline,
                        "median": series.middle,
                        "low": series.band.low,
                        "high": series.band.high,
                        "spread": series.band.kind,
                        "n": len(series.values),
                        "nominal": series.nominal,
                    }
                    for series in state.series
                ],
            }
            for state in self.summary.points
        ]
        return {
            "run_id": self.plan.run_id,
            "suite": self.plan.suite,
            "statuses": self.summary.statuses,
            "rows": self.rows,
            "report": self.report,
            "exports": self.exports,
            "answer": answer,
            "trust": {"level": trust.level, "text": trust.text},
            "verdicts": [asdict(verdict) for verdict in verdicts],
            "points": points,
        }


HEADINGS = ("point", "metric", "median", "spread", "unit", "n", "of nominal", "runs", "state")
FAILURE = re.compile("failed|invalid|missing")
MAX_REASONS = 10
"""Points whose failures and verdicts the terminal shows; the report has all of them."""


Rows = list[tuple[str, ...]]
"""Cells as HEADINGS names them."""


def result_text(result: RunResult) -> str:
    """Return a table of headline metrics for each entry, then counts, addresses and the answer."""
    summary = result.summary
    verdicts = {verdict.point: verdict.word for verdict, _ in worst_of_points(summary.verdicts)}
    histories = {line.info.series_id: line.value.tolist() for line in _gate_series(result)}
    entries: dict[str, Rows] = {}
    units = _units(summary.points)
    for state in summary.points:
        trust = summary.trust.points.get(state.point)
        text = _state_text(state, trust, verdicts.get(state.point, ""))
        cells = _cells(state, units, histories)
        rows = [(state.label, *own, text) for own in cells]
        # A point is named once.
        entries.setdefault(state.entry, []).extend(rows[:1] + [("", *row[1:]) for row in rows[1:]])
    tables = [f"{_table(entry, rows)}\n" for entry, rows in entries.items()]
    gate = [highlighted(gate_lines(result.gate))] if result.gate and result.gated else []
    return "\n".join([*tables, *_lines(result), *gate, _answer(result)])


def _gate_series(result: RunResult) -> list[Line]:
    return result.gate.series if result.gate and result.gate.runs > 1 else []


def _answer(result: RunResult) -> str:
    """Return the sentence of the first screen of the report, in the colour of its word."""
    said, gate = banner(Judged(result.summary, result.gate)), result.gate
    text = said.sentence + (f" ({gate.counted})" if gate and gate.runs > 1 else "")
    return styled([(fitted(text), HIGHLIGHTS.get(said.word, "bold"))])


def _units(states: list[PointState]) -> dict[tuple[str, str], tuple[float, str]]:
    """Return the factor and name of the unit of each metric of an entry."""
    largest: dict[tuple[str, str, str], float] = {}
    for state in states:
        for series in headlines(state):
            key = (state.entry, series.metric, series.unit)
            largest[key] = max(largest.get(key, 0.0), abs(series.middle))
    return {key[:2]: scaled(key[2], value, key[1]) for key, value in largest.items()}


def _cells(
    state: PointState,
    units: dict[tuple[str, str], tuple[float, str]],
    histories: dict[str, list[float]],
) -> list[tuple[str, ...]]:
    """Return metric, median, spread, unit, n, nominal and last runs of each headline series."""
    cells: list[tuple[str, ...]] = []
    for series in headlines(state):
        own = str(len(series.values)), series.nominal, spark(histories.get(series.series_id, ()))
        factor, unit = units[state.entry, series.metric]
        low, middle, high = (
            digits(value / factor) for value in (series.band.low, series.middle, series.band.high)
        )
        cells.append((series.name, middle, f"{low} to {high}", unit, *own))
    return cells or [("", "-", "", "", "0", "", "")]


def _state_text(state: PointState, trust: PointTrust | None, verdict: str) -> str:
    """Return the samples by status, the trust, the verdict, and why there is no value."""
    statuses = sorted((status, count) for status, count in state.statuses.items() if status != "ok")
    text = ", ".join(f"{count} {status}" for status, count in statuses) or "ok"
    if trust and trust.level != "good" and state.series:
        text += f", {trust.level}"
    if verdict:
        text += f", verdict {verdict}"
    if not state.series and state.reasons:
        text += f": {shorten(state.reasons[0], 300, placeholder=' ...')}"
    return text


def _table(entry: str, rows: Rows) -> str:
    """Return the table of an entry, without the columns that are empty."""
    columns = [i for i in range(len(HEADINGS)) if any(row[i] for row in rows)]
    return text_table(
        [HEADINGS[i] for i in columns],
        [[row[i] for i in columns] for row in rows],
        right=[at for at, i in enumerate(columns) if HEADINGS[i] in ("median", "n")],
        styles=[HIGHLIGHTS["failed"] if FAILURE.search(row[-1]) else "" for row in rows],
        title=entry,
    )


def _lines(result: RunResult) -> list[str]:
    """Return what stands below the table: counts, noise, failures, precision and addresses."""
    plan, collected = result.plan, result.collected
    statuses = statuses_text(result.summary.statuses) or "no samples"
    spread = "range of n < 6, else 95 % interval of the median"
    lines = [f"{statuses}; spread: {spread}", f"trust   {result.summary.trust.text}"]
    lines += _verdicts(result)
    if result.gate and not result.gated:
        lines += answer_lines(result.gate)
    lines += _failures(result.summary)
    for point in plan.points:
        if point.until is not None and point.id in collected.reached:
            n, precision = collected.reached[point.id]
            text = "no interval yet" if precision is None else f"{precision:.1%}"
            goal = f"{point.until.relative_spread:.1%}"
            lines.append(
                f"{point.entry} {point.label}: {text} after {plural(n, 'sample')} (goal: {goal})"
            )
    if plan.merged:
        lines.append(f"{plural(plan.merged, 'equal point')} merged")
    lines += [f"damaged sample, counted as missing: {name}" for name in collected.damaged]
    lines = [highlighted(lines)]
    lines.append(f"rows    {result.rows}")
    if result.report:
        lines.append(f"report  {result.report}")
    return lines + [f"also    {file}" for file in result.exports]


def _verdicts(result: RunResult) -> list[str]:
    """Return the verdict of each point whose benchmark has one, the failed ones first."""
    lines = [
        f"verdict {verdict.where}: {verdict.text}" + (f" ({count})" if count else "")
        for verdict, count in worst_of_points(result.summary.verdicts)
    ]
    return _at_most(lines, "more verdicts; the report has all")


def _failures(summary: Summary) -> list[str]:
    """Return one reason for each point with some failed samples.

    The table itself has the reason of a point without any value.
    """
    partly = [state for state in summary.points if state.reasons and state.series]
    lines = []
    for state in partly:
        lines.append(f"{state.name}: {shorten(state.reasons[0], 300, placeholder=' ...')}")
    return _at_most(lines, "more points with failed samples; the report has the reasons")


def _at_most(lines: list[str], more: str) -> list[str]:
    if len(lines) <= MAX_REASONS:
        return lines
    return [*lines[:MAX_REASONS], f"and {len(lines) - MAX_REASONS} {more}"]
