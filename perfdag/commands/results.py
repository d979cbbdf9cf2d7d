"""The result of a run: `perfdag show`, `report`, `open` and `collect`, and what ends every run."""

import argparse
import logging
import tempfile
import webbrowser
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from perfdag.analysis import alerts
from perfdag.analysis.alerts import GateResult
from perfdag.commands.options import (
    EXIT_FAILED,
    EXIT_OK,
    JSON,
    RUN,
    STORE,
    CommandError,
    Verbs,
    add_verb,
    option,
    print_json,
)
from perfdag.commands.result_text import RunResult
from perfdag.commands.runs import read_run
from perfdag.plan.plan import Plan, gated
from perfdag.results.collect import collect, gather, write_exports
from perfdag.results.runs import report_key, runs_with_rows
from perfdag.results.summary import Summary, summarise
from perfdag.store.base import NotStoredError, Store
from perfdag.store.folder import FolderStore
from perfdag.suite.model import checks_of
from perfdag.units import plural

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
        JSON,
    )


def run_show(args: argparse.Namespace) -> int:
    """Show a run from its stored samples, and write nothing. Return its exit code."""
    runs, plan = read_run(args.store, args.run_id)
    table, collected = gather(runs.store, plan)
    summary, url = summarise(table), runs.store.url(collected.key)
    result = RunResult(plan, summary, collected, url, gate=judge(runs.store, plan, summary))
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
    runs, plan = read_run(args.store, args.run_id)
    store, result = runs.store, draw_report(runs.store, plan)
    print(result.report)
    if args.card:
        from perfdag.charts.pages.report import card_of

        key = f"runs/{plan.run_id}/card.png"
        store.put(key, card_of(result.summary, plan, result.gate))
        print(store.url(key))
    for export in result.exports:
        print(export)
    return result.exit_code


OPEN_EPILOG = """examples:
  perfdag open last
  perfdag open 20261120T020000Z-1a2b3c4d --store s3://bench/results
"""


def add_open(sub: Verbs) -> None:
    """Register the verb."""
    add_verb(
        sub,
        "open",
        run_open,
        "Open the report of a run in a browser and print its path. It is drawn if the run "
        "has none. A report in S3 is copied to a temporary file.",
        OPEN_EPILOG,
        RUN,
        STORE,
    )


def run_open(args: argparse.Namespace) -> int:
    """Open the report of a run in a browser and print its path. Raises CommandError, StoreError."""
    runs, plan = read_run(args.store, args.run_id)
    store, key = runs.store, report_key(plan.run_id)
    try:
        data = store.get(key)
    except NotStoredError:
        if not runs.known[plan.run_id]:  # it may be under way
            raise CommandError(
                f"run {plan.run_id} has no report; draw it: perfdag report {plan.run_id}"
            ) from None
        draw_report(store, plan)
        data = store.get(key)
    if isinstance(store, FolderStore):
        path = Path(store.url(key)).resolve()
    else:
        path = Path(tempfile.mkdtemp(prefix="perfdag-")) / f"{plan.run_id}.html"
        path.write_bytes(data)
    webbrowser.open(path.as_uri())
    print(path)  # of use where there is no browser
    return EXIT_OK


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
    runs, plan = read_run(args.store, args.run_id)
    store = runs.store
    table, collected = collect(store, plan)
    print(f"{plural(collected.rows, 'row')}  {store.url(collected.key)}")
    if collected.kept:
        print("kept as they were: some of their samples are stored no more")
    for export in write_exports(store, plan.run_id, table):
        print(f"also  {export}")
    good = summarise(table).statuses.keys() <= {"ok", "skipped"}
    return EXIT_OK if good else EXIT_FAILED


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
    end of the run: its gate, if it has one, goes to the webhook, and as JUnit XML beside the
    report. Raises StoreError.
    """
    table, collected = collect(store, plan)
    summary = summarise(table)
    gate = judge(store, plan, summary)
    if recheck and gate and gate.suspects:
        recheck(gate)
        gate = judge(store, plan, summary)
    page, told = None, True
    if charts and (missing := missing_drawing()):
        logger.warning(f"perfdag: no report: {missing.replace('RUN', plan.run_id)}")
    elif charts:
        page = write_report(store, plan, summary, gate)
    files = write_exports(store, plan.run_id, table)
    if publishes and gate and gated(plan):
        from perfdag.commands.check import publish

        told = publish(store, gate)
        store.put(f"runs/{plan.run_id}/check.xml", alerts.junit(gate))
    rows = store.url(collected.key)
    return RunResult(plan, summary, collected, rows, page, files, gate, gated(plan), told)


def judge(store: Store, plan: Plan, summary: Summary) -> GateResult | None:
    """Return the answers about a collected run, or None for a variant of `perfdag ab`."""
    if plan.trigger == "ab":
        return None
    if not plan.where and not gated(plan) and len(runs_with_rows(store, plan.suite)) == 1:
        # Nothing is to be compared with. A run on a cluster may have nodes that differ.
        report = store.url(report_key(plan.run_id))
        return GateResult(plan.run_id, plan.suite, report, runs=1, store=store.root)
    from perfdag.analysis.gate import check, unattended_rules
    from perfdag.analysis.selection import SelectionError

    try:
        rules = unattended_rules(store, checks_of(plan.suite_text))
        return check(store, plan.suite, plan.run_id, rules, summary)
    except SelectionError as error:
        logger.warning(f"perfdag: no verdict: {error}")
        return None


def draw_report(store: Store, plan: Plan) -> RunResult:
    """Collect a run, and write its charts and report. Raises CommandError without matplotlib."""
    if missing := missing_drawing():
        raise CommandError(missing)
    return finish_run(store, plan)


def missing_drawing() -> str | None:
    """Return why this machine cannot draw, or None. An image for pods has no matplotlib."""
    if find_spec("matplotlib"):
        return None
    return "matplotlib is not installed here: run `perfdag report RUN` where it is"


def write_report(
    store: Store,
    plan: Plan,
    summary: Summary,
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
    report_page.write(summary, plan, put, store.root, links if has_site else {}, gate)
    return store.url(report_key(plan.run_id))
