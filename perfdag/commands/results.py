"""`perfdag show`, `report`, `open` and `collect`: the result of a run."""

import argparse
import logging
import tempfile
import webbrowser
from pathlib import Path

from perfdag.commands.options import (
    EXIT_FAILED,
    EXIT_INPUT,
    EXIT_OK,
    JSON,
    RUN,
    STORE,
    CommandError,
    option,
    print_json,
    verb,
)
from perfdag.results.collect import collect, gather, write_exports
from perfdag.results.runs import report_key
from perfdag.results.selections import read_run
from perfdag.results.summary import summarise
from perfdag.runs.finish import RunResult, finish_run, judge
from perfdag.store.base import FolderStore, NotStoredError
from perfdag.units import plural

logger = logging.getLogger(__name__)


@verb(
    "show",
    "Show the stored samples of a run as a table. It writes nothing; "
    "`perfdag report` draws the charts.",
    """
    examples:
      perfdag show last
      perfdag show last~1 --json
      perfdag show 20261120T020000Z-1a2b3c4d --store s3://bench/results
    """,
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


@verb(
    "report",
    "Collect a run, draw its charts (SVG and PNG), write report.html and print "
    "its path. `perfdag show` prints the table.",
    """
    examples:
      perfdag report last
      perfdag report 20261120T020000Z-1a2b3c4d --store s3://bench/results
    """,
    RUN,
    STORE,
    option("--card", action="store_true", help="write card.png too, 1200 x 630, for a chat"),
)
def run_report(args: argparse.Namespace) -> int:
    """Collect a run, and write its charts and report. Return its exit code."""
    runs, plan = read_run(args.store, args.run_id)
    store, result = runs.store, finish_run(runs.store, plan)
    if result.report is None:
        return EXIT_INPUT
    print(result.report)
    if args.card:
        from perfdag.charts.pages.report import card_of

        key = f"runs/{plan.run_id}/card.png"
        store.put(key, card_of(result.summary, plan, result.gate))
        print(store.url(key))
    for export in result.exports:
        print(export)
    return result.exit_code


@verb(
    "open",
    "Open the report of a run in a browser and print its path. It is drawn if the run "
    "has none. A report in S3 is copied to a temporary file.",
    """
    examples:
      perfdag open last
      perfdag open 20261120T020000Z-1a2b3c4d --store s3://bench/results
    """,
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
        if finish_run(store, plan).report is None:
            return EXIT_INPUT
        data = store.get(key)
    if isinstance(store, FolderStore):
        path = Path(store.url(key)).resolve()
    else:
        path = Path(tempfile.mkdtemp(prefix="perfdag-")) / f"{plan.run_id}.html"
        path.write_bytes(data)
    webbrowser.open(path.as_uri())
    print(path)  # of use where there is no browser
    return EXIT_OK


@verb(
    "collect",
    "Write the samples of a run into one Parquet file. The same samples give the same bytes.",
    """
    examples:
      perfdag collect last
      perfdag collect 20261120T020000Z-1a2b3c4d --store s3://bench/results
    """,
    RUN,
    STORE,
)
def run_collect(args: argparse.Namespace) -> int:
    """Write the Parquet file and the exports of a run. Return 1 if a sample is not ok."""
    runs, plan = read_run(args.store, args.run_id)
    store = runs.store
    table, collected = collect(store, plan)
    print(f"{plural(table.num_rows, 'row')}  {store.url(collected.key)}")
    if collected.kept:
        print("kept as they were: some of their samples are stored no more")
    for export in write_exports(store, plan.run_id, table):
        print(f"also  {export}")
    good = summarise(table).statuses.keys() <= {"ok", "skipped"}
    return EXIT_OK if good else EXIT_FAILED
