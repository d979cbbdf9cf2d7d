"""The result of a run: `perfdag show`, `report` and `collect`, and what ends every run."""

import argparse
import logging
import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from textwrap import shorten
from typing import Any

import pyarrow as pa

from perfdag.analysis import alerts
from perfdag.analysis.alerts import GateResult, gate_as_dict
from perfdag.analysis.gate import check, unattended_rules
from perfdag.analysis.selection import SelectionError
from perfdag.commands.check import answer_lines, gate_text, publish
from perfdag.commands.options import RUN, STORE, CommandError, Verbs, add_verb, option, print_json
from perfdag.commands.runs import read_run
from perfdag.commands.terminal import HIGHLIGHTS, highlighted, text_table
from perfdag.plan.plan import Plan, gated
from perfdag.results.collect import CollectionResult, collect, gather, write_exports
from perfdag.results.summary import (
    OwnVerdict,
    PointState,
    PointTrust,
    RunTrust,
    add_nominal,
    headlines,
    own_verdicts,
    point_labels,
    statuses_text,
    summarise,
    trust_in,
    worst_of_points,
)
from perfdag.signals import EXIT_FAILED, EXIT_GATE, EXIT_OK, EXIT_REACH
from perfdag.store.base import Store
from perfdag.suite.model import checks_of
from perfdag.units import plural, scaled

logger = logging.getLogger(__name__)

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
    """Show a run from its stored samples, and write nothing. Return its exit code."""
    store, plan = read_run(args.store, args.run_id)
    result = result_of(store, plan, *gather(store, plan))
    print_json(result.data()) if args.json else print(result)
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
    """Collect a run, and write its charts and report. Return its exit code."""
    if missing := missing_drawing():
        raise CommandError(missing)
    store, plan = read_run(args.store, args.run_id)
    result = finish_run(store, plan)
    print(result.report)
    if args.card:
        from perfdag.charts.pages.report import card_of

        key = f"runs/{plan.run_id}/card.png"
        store.put(key, card_of(result.table, plan, result.gate))
        print(store.url(key))
    for export in result.exports:
        print(export)
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
    """Write the Parquet file and the exports of a run. Return 1 if a sample is not ok."""
    store, plan = read_run(args.store, args.run_id)
    table, collected = collect(store, plan)
    print(f"{plural(collected.rows, 'row')}  {store.url(collected.key)}")
    if collected.kept:
        print("kept as they were: some of their samples are stored no more")
    for export in write_exports(store, plan.run_id, table):
        print(f"also  {export}")
    good = all(status in ("ok", "skipped") for status in collected.statuses)
    return EXIT_OK if good else EXIT_FAILED


@dataclass(frozen=True)
class RunResult:
    """A collected run: its samples by status, its points, and the addresses of its files."""

    plan: Plan
    table: pa.Table
    collected: CollectionResult
    states: list[PointState]
    rows: str
    report: str | None
    exports: list[str]
    trust: RunTrust
    verdicts: list[OwnVerdict]
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
            failed = any(verdict.word == "failed" for verdict in self.verdicts)
        if failed:
            return EXIT_GATE
        statuses = self.collected.statuses.keys()
        return EXIT_FAILED if "ok" not in statuses or statuses - {"ok", "skipped"} else EXIT_OK

    def __str__(self) -> str:
        return result_text(self)

    def data(self) -> dict[str, Any]:
        """Return the result as data for JSON."""
        answer = gate_as_dict(self.gate) if self.gate else None
        points = [
            {
                "point": state.point,
                "entry": state.entry,
                "benchmark": state.benchmark,
                "params": state.params,
                "statuses": state.statuses,
                "reasons": state.reasons,
                "noise": state.noise,
                "trust": asdict(self.trust.points[state.point])
                if state.point in self.trust.points
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
            for state in self.states
        ]
        return {
            "run_id": self.plan.run_id,
            "suite": self.plan.suite,
            "statuses": self.collected.statuses,
            "rows": self.rows,
            "report": self.report,
            "exports": self.exports,
            "answer": answer,
            "trust": {"level": self.trust.level, "text": self.trust.text},
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
            "points": points,
            **({"gate": answer} if self.gated and answer else {}),
        }


def finish_run(
    store: Store,
    plan: Plan,
    *,
    charts: bool = True,
    publishes: bool = False,
    recheck: Callable[[GateResult], None] | None = None,
) -> RunResult:
    """Collect a run, judge it, write its charts and report, and return the result.

    `recheck` measures the suspicious points again before the verdict. With `publishes` this is the
    end of the run: its gate, if it has one, goes to the webhook, and as JUnit XML and Markdown
    beside the report. Raises StoreError.
    """
    table, collected = collect(store, plan)
    gate = judge(store, plan)
    if recheck and gate and gate.suspects:
        recheck(gate)
        gate = judge(store, plan)
    page, told = None, True
    if charts and (missing := missing_drawing()):
        logger.warning(f"perfdag: no report: {missing.replace('RUN', plan.run_id)}")
    elif charts:
        page = write_report(store, plan, table, gate)
    files = write_exports(store, plan.run_id, table)
    if publishes and gate and gated(plan):
        told = publish(store, gate, os.environ.get("PERFDAG_WEBHOOK"))
        store.put(f"runs/{plan.run_id}/check.xml", alerts.junit(gate))
        store.put(f"runs/{plan.run_id}/check.md", alerts.markdown(gate).encode())
    return replace(
        result_of(store, plan, table, collected),
        report=page,
        exports=files,
        gate=gate,
        gated=gated(plan),
        told=told,
    )


def judge(store: Store, plan: Plan) -> GateResult | None:
    """Return the answers about a collected run, or None for a variant of `perfdag ab`."""
    if plan.trigger == "ab":
        return None
    try:
        rules = unattended_rules(store, checks_of(plan.suite_text))
        return check(store, plan.suite, plan.run_id, rules)
    except SelectionError as error:
        logger.warning(f"perfdag: no verdict: {error}")
        return None


def result_of(store: Store, plan: Plan, table: pa.Table, collected: CollectionResult) -> RunResult:
    """Return the result of a run from its rows."""
    states = summarise(table)
    add_nominal(table, states)
    trust, verdicts = trust_in(table, states), own_verdicts(table)
    return RunResult(
        plan, table, collected, states, store.url(collected.key), None, [], trust, verdicts
    )


def missing_drawing() -> str | None:
    """Return why this machine cannot draw, or None. An image for pods has no matplotlib."""
    if find_spec("matplotlib"):
        return None
    return "matplotlib is not installed here: run `perfdag report RUN` where it is"


def write_report(
    store: Store,
    plan: Plan,
    table: pa.Table,
    gate: GateResult | None,
) -> str:
    """Write the charts and report.html of a run with the answers of its gate.

    Return the report's URL. Raises StoreError.
    """
    # It imports matplotlib, which takes a second that a run without a report does not need.
    from perfdag.charts.pages import report as report_page

    def put(name: str, data: bytes) -> None:
        store.put(f"runs/{plan.run_id}/{name}", data)

    links = {"History of the suite": f"../../site/history.html?suite={plan.suite}"}
    has_site = bool(store.list(f"site/data/{plan.suite}"))
    report_page.write(table, plan, put, store.root, links if has_site else {}, gate)
    return store.url(f"runs/{plan.run_id}/report.html")


HEADINGS = ("point", "metric", "median", "spread", "unit", "n", "of nominal", "state")
FAILURE = re.compile("failed|invalid|missing")
MAX_REASONS = 10
"""Points whose failures and verdicts the terminal shows; the report has all of them."""


Rows = list[tuple[str, ...]]
"""Cells as HEADINGS names them."""


def result_text(result: RunResult) -> str:
    """Return a table of headline metrics for each entry, then counts, addresses and the gate."""
    labels = point_labels(result.states)
    verdict_words = {verdict.point: verdict.word for verdict, _ in worst_of_points(result.verdicts)}
    entries: dict[str, Rows] = {}
    units = _units(result.states)
    for state in result.states:
        trust = result.trust.points.get(state.point)
        text = _state_text(state, trust, verdict_words.get(state.point, ""))
        rows = [(labels[state.point], *cells, text) for cells in _cells(state, units)]
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
    return _at_most(lines, "more verdicts; the report has all")


def _failures(states: list[PointState]) -> list[str]:
    """Return one reason for each point with some failed samples.

    The table itself has the reason of a point without any value.
    """
    labels = point_labels(states)
    partly = [state for state in states if state.reasons and state.series]
    lines = []
    for state in partly:
        name = " ".join(filter(None, (state.entry, labels[state.point])))
        lines.append(f"{name}: {shorten(state.reasons[0], 300, placeholder=' ...')}")
    return _at_most(lines, "more points with failed samples; the report has the reasons")


def _at_most(lines: list[str], more: str) -> list[str]:
    if len(lines) <= MAX_REASONS:
        return lines
    return [*lines[:MAX_REASONS], f"and {len(lines) - MAX_REASONS} {more}"]
