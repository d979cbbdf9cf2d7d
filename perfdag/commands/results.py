"""`perfdag show`, `report` and `collect`: the results of a stored run."""

import argparse
import re
from dataclasses import asdict, dataclass, replace
from textwrap import shorten
from typing import Any

from perfdag.analysis.alerts import gate_as_dict
from perfdag.commands.check import answer_lines
from perfdag.commands.finish import (
    RunResult,
    finish_run,
    missing_drawing,
    result_of,
    write_card,
)
from perfdag.commands.options import RUN, STORE, CommandError, Verbs, add_verb, option, print_json
from perfdag.commands.runs import read_run
from perfdag.commands.terminal import HIGHLIGHTS, highlighted, text_table
from perfdag.results.collect import collect, gather, write_exports
from perfdag.results.schema import load_rows
from perfdag.results.summary import (
    PointState,
    PointTrust,
    headlines,
    point_labels,
    statuses_text,
    worst_of_points,
)
from perfdag.signals import EXIT_FAILED, EXIT_OK
from perfdag.store.base import open_store
from perfdag.units import plural, scaled

SHOW_EPILOG = """examples:
  perfdag show last
  perfdag show last~1 --json
  perfdag show 20261120T020000Z-1a2b3c4d --store s3://bench/results
"""


def add_show(sub: Verbs) -> None:
    """Register the verb."""
    add_verb(
        sub,
        "show",
        run_show,
        "Show the stored samples of a run as a table. It writes nothing; "
        "`perfdag report` draws the charts.",
        SHOW_EPILOG,
        RUN,
        STORE,
        option("--json", action="store_true", help="print the result as JSON"),
    )


def run_show(args: argparse.Namespace) -> int:
    """Show a run. Return 1 if a sample failed, is invalid or missing."""
    result = show_run(args.store, args.run_id)
    print_json(result_data(result)) if args.json else print(result_text(result))
    return result.exit_code


REPORT_EPILOG = """examples:
  perfdag report last
  perfdag report 20261120T020000Z-1a2b3c4d --store s3://bench/results
"""


def add_report(sub: Verbs) -> None:
    """Register the verb."""
    add_verb(
        sub,
        "report",
        run_report,
        "Collect a run, draw its charts (SVG and PNG), write report.html and print "
        "its path. `perfdag show` prints the table.",
        REPORT_EPILOG,
        RUN,
        STORE,
        option("--card", action="store_true", help="write card.png too, 1200 x 630, for a chat"),
    )


def run_report(args: argparse.Namespace) -> int:
    """Write the report. Return 1 if a sample failed, is invalid or missing."""
    result = report_run(args.store, args.run_id)
    card = [write_card(open_store(args.store), result.plan, result.gate)] if args.card else []
    print("\n".join([str(result.report), *card, *result.exports]))
    return result.exit_code


COLLECT_EPILOG = """examples:
  perfdag collect last
  perfdag collect 20261120T020000Z-1a2b3c4d --store s3://bench/results
"""


def add_collect(sub: Verbs) -> None:
    """Register the verb."""
    add_verb(
        sub,
        "collect",
        run_collect,
        "Write the samples of a run into one Parquet file. The same samples give the same bytes.",
        COLLECT_EPILOG,
        RUN,
        STORE,
    )


def run_collect(args: argparse.Namespace) -> int:
    """Collect a run. Return 1 if a sample failed, is invalid or missing."""
    text, code = collect_run(args.store, args.run_id)
    print(text)
    return code


def collect_run(root: str | None, selector: str) -> tuple[str, int]:
    """Write the Parquet file and the exports of a run. Return what was written and the exit code.

    The code is 1 if a sample failed, is invalid or missing. Raises StoreError.
    """
    store, plan = read_run(root, selector)
    collected = collect(store, plan)
    rows = load_rows(store, suites=[plan.suite], runs=[plan.run_id])
    lines = [f"{plural(collected.rows, 'row')}  {store.url(collected.key)}"]
    if collected.kept:
        lines.append("kept as they were: some of their samples are stored no more")
    lines += [f"also  {export}" for export in write_exports(store, plan.run_id, rows)]
    good = all(status in ("ok", "skipped") for status in collected.statuses)
    return "\n".join(lines), EXIT_OK if good else EXIT_FAILED


def show_run(root: str | None, selector: str) -> RunResult:
    """Return the result of a run from its stored samples, and write nothing. Raises StoreError."""
    store, plan = read_run(root, selector)
    table, collected = gather(store, plan)
    return result_of(store, plan, table, collected)


def report_run(root: str | None, selector: str) -> RunResult:
    """Collect a run, and write its charts and report. Raises StoreError, CommandError."""
    if missing := missing_drawing():
        raise CommandError(missing)
    store, plan = read_run(root, selector)
    return finish_run(store, plan)


HEADINGS = ("point", "metric", "median", "spread", "unit", "n", "of nominal", "state")
FAILURE = re.compile("failed|invalid|missing")
MAX_REASONS = 10
"""Points whose failures and verdicts the terminal shows; the report has all of them."""


@dataclass(frozen=True)
class _Row:
    """A line of the table: metric, median, spread, unit, n and nominal, then the state."""

    point: str
    cells: tuple[str, ...]
    state: str


def result_text(result: RunResult) -> str:
    """Return a table of headline metrics for each entry, then counts and addresses."""
    labels = point_labels(result.states)
    verdict_words = {verdict.point: verdict.word for verdict, _ in worst_of_points(result.verdicts)}
    entries: dict[str, list[_Row]] = {}
    units = _units(result.states)
    for state in result.states:
        trust = result.trust.points.get(state.point)
        text = _state_text(state, trust, verdict_words.get(state.point, ""))
        rows = entries.setdefault(state.entry, [])
        rows += [_Row(labels[state.point], cells, text) for cells in _cells(state, units)]
    tables = [f"{_table(entry, rows)}\n" for entry, rows in entries.items()]
    return "\n".join([*tables, *_lines(result)])


def _units(states: list[PointState]) -> dict[tuple[str, str], tuple[float, str]]:
    """Return the factor and name of the unit of each metric of an entry."""
    largest: dict[tuple[str, str, str], float] = {}
    for state in states:
        for series in headlines(state):
            key = (state.entry, series.metric, series.unit)
            if series.values:
                largest[key] = max(largest.get(key, 0.0), abs(series.middle))
    return {key[:2]: scaled(key[2], value) for key, value in largest.items()}


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
            f"{value / factor:.4g}" for value in (series.band.low, series.middle, series.band.high)
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


def _table(entry: str, rows: list[_Row]) -> str:
    """Return the table of an entry. A point is named once, and an empty column is left out."""
    entry, rows = _with_one_nominal(entry, rows)
    cells, styles, point = [], [], ""
    for row in rows:
        name = row.point if row.point != point else ""
        point = row.point
        cells.append((name, *row.cells, row.state))
        styles.append(HIGHLIGHTS["failed"] if FAILURE.search(row.state) else "")
    columns = [i for i in range(len(HEADINGS)) if any(line[i] for line in cells)]
    return text_table(
        [HEADINGS[i] for i in columns],
        [[line[i] for i in columns] for line in cells],
        right=[at for at, i in enumerate(columns) if HEADINGS[i] in ("median", "n")],
        styles=styles,
        title=entry,
    )


def _with_one_nominal(entry: str, rows: list[_Row]) -> tuple[str, list[_Row]]:
    """Move a nominal figure that all points share from the cells to the name of the entry."""
    figures = {row.cells[-1].partition(" of ")[2] for row in rows if row.cells[-1]}
    if len(figures) != 1:
        return entry, rows
    (figure,) = figures
    shorter = [
        replace(row, cells=(*row.cells[:-1], row.cells[-1].removesuffix(f" of {figure}")))
        for row in rows
    ]
    return f"{entry} (nominal: {figure})", shorter


def _lines(result: RunResult) -> list[str]:
    """Return what stands below the table: counts, noise, failures, precision and addresses."""
    plan, collected = result.plan, result.collected
    lines = [
        f"{statuses_text(collected.statuses) or 'no samples'}; spread: the range of fewer than 6 "
        "samples, else the 95 % confidence interval of the median"
    ]
    if marks := sorted({mark for state in result.states for mark in state.noise}):
        more = " ..." if len(marks) > 3 else ""
        lines.append(f"noisy samples are kept and marked: {'; '.join(marks[:3])}{more}")
    lines.append(f"trust   {result.trust.text}")
    lines += _verdicts(result)
    if result.gate and not result.gated:
        lines += answer_lines(result.gate)
    lines += _failures(result.states)
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
        for verdict, count in worst_of_points(result.verdicts)
    ]
    if len(lines) > MAX_REASONS:
        more = f"and {plural(len(lines) - MAX_REASONS, 'more verdict')}; the report has all"
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
        lines.append(
            f"and {plural(more, 'more point')} with failed samples; the report has the reasons"
        )
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
        "answer": gate_as_dict(result.gate) if result.gate else None,
        "trust": {"level": result.trust.level, "text": result.trust.text},
        "verdicts": [asdict(verdict) for verdict in result.verdicts],
        "points": points,
    }
