"""The result of a run for people (a table and lines) and for programs (JSON)."""

from dataclasses import asdict
from textwrap import shorten
from typing import Any

from perfdag.app.finish import RunResult
from perfdag.app.text_table import text_table
from perfdag.results.summary import PointState, point_labels
from perfdag.results.trust import PointTrust, headlines
from perfdag.results.verdicts import worst_of_points

MAX_REASONS = 10
"""Points whose failures and verdicts the terminal shows; the report has all of them."""


def result_text(result: RunResult) -> str:
    """Return the headline metrics of every point as a table, then counts and addresses."""
    labels = point_labels(result.states)
    words = {verdict.point: verdict.word for verdict, _ in worst_of_points(result.verdicts)}
    headings = ["benchmark", "point", "metric", "median", "spread", "n", "state", "of nominal"]
    rows = [
        (state.entry, labels[state.point], *cells)
        for state in result.states
        for cells in _rows(state, result.trust.points.get(state.point), words.get(state.point, ""))
    ]
    if not any(row[-1] for row in rows):
        headings, rows = headings[:-1], [row[:-1] for row in rows]
    table = text_table(headings, rows, right=(3, 5), width=140)
    return "\n".join([table, *_lines(result)])


def _rows(state: PointState, trust: PointTrust | None, verdict: str) -> list[tuple[str, ...]]:
    """Return metric, median, spread, n, state and nominal of each headline series of a point."""
    statuses = sorted((status, count) for status, count in state.statuses.items() if status != "ok")
    text = ", ".join(f"{count} {status}" for status, count in statuses) or "ok"
    if trust and trust.level != "good" and state.series:
        text += f", {trust.level}"
    if verdict:
        text += f", verdict {verdict}"
    figures = headlines(state)
    if not figures:
        reason = shorten(state.reasons[0], 100, placeholder=" ...") if state.reasons else ""
        return [("-", "-", "-", "0", f"{text}: {reason}", "")]
    return [
        (series.name, *series.text(), str(len(series.values)), text, series.nominal)
        for series in figures
    ]


def _lines(result: RunResult) -> list[str]:
    """Return what stands below the table: counts, noise, failures, precision and addresses."""
    plan, collected = result.plan, result.collected
    statuses = sorted(collected.statuses.items(), key=lambda item: item[0] != "ok")
    counts = ", ".join(f"{count} {status}" for status, count in statuses) or "no samples"
    lines = [
        f"\n{counts}; spread: the range of fewer than 6 samples, "
        "else the 95 % confidence interval of the median"
    ]
    if marks := sorted({mark for state in result.states for mark in state.noise}):
        more = " ..." if len(marks) > 3 else ""
        lines.append(f"noisy samples are kept and marked: {'; '.join(marks[:3])}{more}")
    lines.append(f"trust   {result.trust.text}")
    lines += _verdicts(result)
    lines += _failures(result.states)
    for point in plan.points:
        if point.until is not None and point.id in collected.reached:
            n, precision = collected.reached[point.id]
            text = "no interval yet" if precision is None else f"{precision:.1%}"
            goal = f"{point.until.relative_spread:.1%}"
            lines.append(f"{point.entry} {point.label}: {text} after {n} samples (goal: {goal})")
    if plan.merged:
        lines.append(f"{plan.merged} equal point(s) were merged")
    lines += [f"damaged sample, counted as missing: {name}" for name in collected.damaged]
    lines.append(f"rows    {result.rows}")
    if result.report:
        lines.append(f"report  {result.report}")
    return lines + [f"also    {file}" for file in result.exports]


def _verdicts(result: RunResult) -> list[str]:
    """Return the verdict of each point whose benchmark has one, the failed ones first."""
    lines = [
        f"verdict {verdict.where}: {verdict.text}" + (f" ({count})" if count else "")
        for verdict, count in worst_of_points(result.verdicts)
    ]
    if len(lines) > MAX_REASONS:
        more = f"and {len(lines) - MAX_REASONS} more verdicts; the report has all"
        return [*lines[:MAX_REASONS], more]
    return lines


def _failures(states: list[PointState]) -> list[str]:
    """Return one reason for each point with some failed samples.

    The table itself has the reason of a point without any value.
    """
    labels = point_labels(states)
    partly = [state for state in states if state.reasons and state.series]
    lines = []
    for state in partly[:MAX_REASONS]:
        name = " ".join(filter(None, (state.entry, labels[state.point])))
        lines.append(f"{name}: {shorten(state.reasons[0], 300, placeholder=' ...')}")
    if len(partly) > MAX_REASONS:
        more = len(partly) - MAX_REASONS
        lines.append(f"and {more} more points with failed samples; the report has their reasons")
    return lines


def result_data(result: RunResult) -> dict[str, Any]:
    """Return the result as data for JSON."""
    points = [
        {
            "point": state.point,
            "entry": state.entry,
            "benchmark": state.benchmark,
            "params": state.params,
            "statuses": state.statuses,
            "reasons": state.reasons,
            "noise": state.noise,
            "trust": asdict(result.trust.points[state.point])
            if state.point in result.trust.points
            else None,
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
        for state in result.states
    ]
    return {
        "run_id": result.plan.run_id,
        "suite": result.plan.suite,
        "statuses": result.collected.statuses,
        "rows": result.rows,
        "report": result.report,
        "exports": result.exports,
        "trust": {"level": result.trust.level, "text": result.trust.text},
        "verdicts": [asdict(verdict) for verdict in result.verdicts],
        "points": points,
    }
