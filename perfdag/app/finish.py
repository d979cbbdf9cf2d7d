"""The end of every run, on a machine or a cluster: collect, charts, report, the table, the exit code."""

import sys
from textwrap import shorten
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdag.plan.plan import Plan
    from perfdag.results.collect import Collected
    from perfdag.results.summary import PointState
    from perfdag.store.base import Store

REASONS = 10
"""Points whose reasons the terminal has; the report has all."""


def finish(
    store: "Store",
    plan: "Plan",
    *,
    report: bool = True,
    history: bool = False,
    gates: bool = True,
    as_json: bool = False,
) -> int:
    """Collect and report a run, print its table (or JSON), and return 0, 1, or 3 for a benchmark's own gate. Raises StoreError.

    `history`: with the page of the suite's history beside the report, from three runs on. `gates`: False where the gate of the whole run
    follows, which knows what is acknowledged.
    """
    from perfdag.exit_codes import EXIT_FAILED, EXIT_GATE, EXIT_OK
    from perfdag.regress.gate import own_gates
    from perfdag.results import exports
    from perfdag.results.collect import collect
    from perfdag.results.schema import load
    from perfdag.results.summary import summarise

    collected = collect(store, plan)
    table = load(store, suites=[plan.suite], runs=[plan.run_id])
    page = write_report(store, plan, table, history=history) if report else None
    files = exports.write(store, plan.run_id, table)
    states = summarise(table)
    bad = {
        status: count
        for status, count in collected.statuses.items()
        if status not in ("ok", "skipped")
    }
    if as_json:
        _print_json(store, plan, collected, states, page, files)
    else:
        print_table(states)
        _print_counts(store, plan, collected, states, page)
        for each in files:
            print(f"also    {each}")
    broken = [each for each in own_gates(table) if each.state != "ok"] if gates else []
    for case in broken:
        print(f"gate    {case.name}: {case.text}", file=sys.stderr)
    return EXIT_GATE if broken else EXIT_FAILED if bad else EXIT_OK


def write_report(store: "Store", plan: "Plan", table: Any, *, history: bool = False) -> str:
    """Write charts and report.html of a run, then the page of its history; returns where the report is. Raises StoreError."""
    from perfdag.app.history_page import NAME, past, write_page
    from perfdag.charts.pages.report import write

    def put(name: str, data: bytes) -> None:
        store.put(f"runs/{plan.run_id}/{name}", data)

    shown = past(store, plan) if history else None
    write(table, plan, put, store.root, {"History of the suite": NAME} if shown else {})
    if shown:
        try:
            write_page(store, plan, shown)
        except (
            Exception
        ) as error:  # whatever it is, the run has its report, and its gate must follow
            print(
                f"perfdag: no page of the history: {type(error).__name__}: {error}", file=sys.stderr
            )
            write(table, plan, put, store.root)
    return store.url(f"runs/{plan.run_id}/report.html")


def print_table(states: "list[PointState]") -> None:
    """Headline metrics of every point, with median, spread, n and state, on stdout."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from perfdag.results.summary import point_labels

    labels = point_labels(states)
    console = Console(width=None if sys.stdout.isatty() else 140)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("benchmark", "point", "metric", "median", "spread", "n", "state"):
        table.add_column(
            name, justify="right" if name in ("median", "n") else "left", overflow="fold"
        )
    for state in states:
        state_text = (
            ", ".join(
                f"{count} {status}"
                for status, count in sorted(state.statuses.items())
                if status != "ok"
            )
            or "ok"
        )
        if state.noise:
            state_text += ", noisy"
        shown = [each for each in state.series if each.headline] or state.series[:1]
        for each in shown:
            middle, band = each.text()
            cells = (
                state.entry,
                labels[state.point],
                each.name,
                middle,
                f"{band}",
                str(len(each.values)),
                state_text,
            )
            table.add_row(*(Text(cell) for cell in cells))
        if not shown:
            reason = shorten(state.reasons[0], 100, placeholder=" ...") if state.reasons else ""
            table.add_row(
                *(
                    Text(cell)
                    for cell in (
                        state.entry,
                        labels[state.point],
                        "-",
                        "-",
                        "-",
                        "0",
                        f"{state_text}: {reason}",
                    )
                )
            )
    console.print(table)


def _print_counts(
    store: "Store",
    plan: "Plan",
    collected: "Collected",
    states: "list[PointState]",
    page: str | None,
) -> None:
    counts = ", ".join(
        f"{count} {status}"
        for status, count in sorted(collected.statuses.items(), key=lambda each: each[0] != "ok")
    )
    print(
        f"\n{counts or 'no samples'}; spread is the range of fewer than 6 samples, else the 95 % interval of the median"
    )
    if any(state.noise for state in states):
        marks = sorted({mark for state in states for mark in state.noise})
        print(
            f"noisy samples are kept and marked: {'; '.join(marks[:3])}{' ...' if len(marks) > 3 else ''}"
        )
    _print_reasons(states)
    for point in plan.points:
        if point.until is not None and point.id in collected.reached:
            n, reached = collected.reached[point.id]
            said = f"{reached:.1%}" if reached is not None else "no interval yet"
            print(
                f"{point.entry} {point.label}: {said} after {n} samples (asked: {point.until.relative_spread:.1%})"
            )
    if plan.merged:
        print(f"{plan.merged} equal point(s) were merged")
    for name in collected.damaged:
        print(f"damaged part, counted as missing: {name}")
    print(f"rows    {store.url(collected.key)}")
    if page:
        print(f"report  {page}")


def _print_reasons(states: "list[PointState]") -> None:
    """Why samples of points that have values all the same gave none: one reason a point. Of points without any the table has it."""
    from perfdag.results.summary import point_labels

    labels = point_labels(states)
    partly = [state for state in states if state.reasons and state.series]
    for state in partly[:REASONS]:
        name = " ".join(filter(None, (state.entry, labels[state.point])))
        print(f"{name}: {shorten(state.reasons[0], 300, placeholder=' ...')}")
    if len(partly) > REASONS:
        print(
            f"and {len(partly) - REASONS} more points with failed samples; the report has their reasons"
        )


def _print_json(
    store: "Store",
    plan: "Plan",
    collected: "Collected",
    states: "list[PointState]",
    page: str | None,
    files: list[str],
) -> None:
    import orjson

    points = [
        {
            "point": state.point,
            "entry": state.entry,
            "benchmark": state.benchmark,
            "params": state.params,
            "statuses": state.statuses,
            "reasons": state.reasons,
            "noise": state.noise,
            "metrics": [
                {
                    "metric": each.metric,
                    "stat": each.stat,
                    "coords": each.coords,
                    "unit": each.unit,
                    "better": each.better,
                    "headline": each.headline,
                    "median": each.middle,
                    "low": each.band.low,
                    "high": each.band.high,
                    "spread": each.band.kind,
                    "n": len(each.values),
                }
                for each in state.series
            ],
        }
        for state in states
    ]
    result = {
        "run_id": plan.run_id,
        "suite": plan.suite,
        "statuses": collected.statuses,
        "rows": store.url(collected.key),
        "report": page,
        "exports": files,
        "points": points,
    }
    print(orjson.dumps(result, option=orjson.OPT_INDENT_2).decode())
