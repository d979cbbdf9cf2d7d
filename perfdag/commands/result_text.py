"""The result of a run on a terminal: a table of headline metrics, and what is said of them."""

import re
from collections.abc import Container
from textwrap import shorten
from typing import TYPE_CHECKING

from perfdag.analysis.alerts import GateResult, gate_counts, worst
from perfdag.analysis.verdict import RANK
from perfdag.commands.terminal import HIGHLIGHTS, highlighted, text_table
from perfdag.results.summary import (
    PointState,
    PointTrust,
    Summary,
    headlines,
    statuses_text,
    worst_of_points,
)
from perfdag.units import digits, plural, scaled

if TYPE_CHECKING:
    from perfdag.commands.results import RunResult

HEADINGS = ("point", "metric", "median", "spread", "unit", "n", "of nominal", "state")
FAILURE = re.compile("failed|invalid|missing")
MAX_REASONS = 10
"""Points whose failures and verdicts the terminal shows; the report has all of them."""


Rows = list[tuple[str, ...]]
"""Cells as HEADINGS names them."""


def result_text(result: "RunResult") -> str:
    """Return a table of headline metrics for each entry, then counts, addresses and the gate."""
    summary = result.summary
    verdicts = {verdict.point: verdict.word for verdict, _ in worst_of_points(summary.verdicts)}
    entries: dict[str, Rows] = {}
    units = _units(summary.points)
    for state in summary.points:
        trust = summary.trust.points.get(state.point)
        text = _state_text(state, trust, verdicts.get(state.point, ""))
        rows = [(summary.labels[state.point], *cells, text) for cells in _cells(state, units)]
        # A point is named once.
        entries.setdefault(state.entry, []).extend(rows[:1] + [("", *row[1:]) for row in rows[1:]])
    tables = [f"{_table(entry, rows)}\n" for entry, rows in entries.items()]
    gate = [gate_text(result.gate)] if result.gate and result.gated else []
    return "\n".join([*tables, *_lines(result), *gate])


def _units(states: list[PointState]) -> dict[tuple[str, str], tuple[float, str]]:
    """Return the factor and name of the unit of each metric of an entry."""
    largest: dict[tuple[str, str, str], float] = {}
    for state in states:
        for series in headlines(state):
            key = (state.entry, series.metric, series.unit)
            if series.values:
                largest[key] = max(largest.get(key, 0.0), abs(series.middle))
    return {key[:2]: scaled(key[2], value, key[1]) for key, value in largest.items()}


def _cells(
    state: PointState, units: dict[tuple[str, str], tuple[float, str]]
) -> list[tuple[str, ...]]:
    """Return metric, median, spread, unit, n and nominal of each headline series of a point."""
    cells: list[tuple[str, ...]] = []
    for series in headlines(state):
        n, nominal = str(len(series.values)), series.nominal
        if not series.values:
            cells.append((series.name, "-", "", "", n, nominal))
            continue
        factor, unit = units[state.entry, series.metric]
        low, middle, high = (
            digits(value / factor) for value in (series.band.low, series.middle, series.band.high)
        )
        cells.append((series.name, middle, f"{low} to {high}", unit, n, nominal))
    return cells or [("", "-", "", "", "0", "")]


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


def _lines(result: "RunResult") -> list[str]:
    """Return what stands below the table: counts, noise, failures, precision and addresses."""
    plan, collected = result.plan, result.collected
    statuses = statuses_text(result.summary.statuses) or "no samples"
    spread = "the range of fewer than 6 samples, else the 95 % confidence interval of the median"
    lines = [f"{statuses}; spread: {spread}"]
    if marks := sorted({mark for state in result.summary.points for mark in state.noise}):
        more = " ..." if len(marks) > 3 else ""
        lines.append(f"noisy samples are kept and marked: {'; '.join(marks[:3])}{more}")
    lines.append(f"trust   {result.summary.trust.text}")
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


def _verdicts(result: "RunResult") -> list[str]:
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
        name = " ".join(filter(None, (state.entry, summary.labels[state.point])))
        lines.append(f"{name}: {shorten(state.reasons[0], 300, placeholder=' ...')}")
    return _at_most(lines, "more points with failed samples; the report has the reasons")


def _at_most(lines: list[str], more: str) -> list[str]:
    if len(lines) <= MAX_REASONS:
        return lines
    return [*lines[:MAX_REASONS], f"and {len(lines) - MAX_REASONS} {more}"]


MOST_LINES = 10
"""Series that the terminal names; the report has all of them."""


def gate_text(gate: GateResult) -> str:
    """Return a gate as text: alerts, checks that fail, suspicious points, counts."""
    lines = []
    for alert in worst(gate.alerts):
        lines += [gate.message(alert), *([] if alert.fresh else ["        (reported before)"]), ""]
    lines += [
        f"{result.state:8}{result.group}: {result.name}: {result.text}"
        for result in gate.cases
        if result.state in ("failed", "absent") and result.group != "change"
    ]
    lines += answer_lines(gate, told={key for alert in gate.alerts for key in alert.keys})
    lines += [f"damaged, left out: {key}" for key in gate.damaged]
    lines.append(f"checks  {gate_counts(gate)}")
    lines.append(f"gate {'FAILED' if gate.failed else 'passed'}  {gate.suite}  {gate.run}")
    return highlighted(lines)


def answer_lines(gate: GateResult, told: Container[str] = ()) -> list[str]:
    """Return the answer about a run, then each headline series that is not the same as before.

    Series whose ids are in `told` are left out.
    """
    if gate.runs == 1:
        return ["answer  first run: there is none before it to compare with"]
    if not gate.series:
        return []
    history = plural(gate.runs, "run")
    lines = [f"answer  {gate.word}: {gate.counted} ({history} of history)"]
    lines += [
        f"  {line.name}: {line.answer.text}"
        for line in sorted(gate.headlines, key=lambda line: RANK.index(line.answer.word))
        if line.answer.word != "same" and line.info.series_id not in told
    ][:MOST_LINES]
    if gate.rechecks:
        lines.append(f"measured again right after it: {', '.join(gate.rechecks)}")
    return lines
