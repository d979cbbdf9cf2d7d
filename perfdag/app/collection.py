"""Collect and report a stored run."""

from collections.abc import Callable

from perfdag.app.errors import CommandError
from perfdag.app.finish import RunResult, finish_run, missing_drawing, result_of
from perfdag.app.runs import read_run
from perfdag.results import exports
from perfdag.results.collect import collect, gather
from perfdag.results.schema import load_rows
from perfdag.signals import EXIT_FAILED, EXIT_OK
from perfdag.units import plural


def collect_run(root: str | None, selector: str, report: Callable[[str], None]) -> tuple[str, int]:
    """Write the Parquet file and the exports of a run. Return what was written and the exit code.

    The code is 1 if a sample failed, is invalid or missing. Raises StoreError.
    """
    store, plan = read_run(root, selector, report)
    collected = collect(store, plan)
    rows = load_rows(store, suites=[plan.suite], runs=[plan.run_id])
    lines = [f"{plural(collected.rows, 'row')}  {store.url(collected.key)}"]
    if collected.kept:
        lines.append("kept as they were: some of their samples are stored no more")
    lines += [f"also  {export}" for export in exports.write(store, plan.run_id, rows)]
    good = all(status in ("ok", "skipped") for status in collected.statuses)
    return "\n".join(lines), EXIT_OK if good else EXIT_FAILED


def show_run(root: str | None, selector: str, report: Callable[[str], None]) -> RunResult:
    """Return the result of a run from its stored samples, and write nothing. Raises StoreError."""
    store, plan = read_run(root, selector, report)
    table, collected = gather(store, plan)
    return result_of(store, plan, table, collected)


def report_run(root: str | None, selector: str, report: Callable[[str], None]) -> RunResult:
    """Collect a run, and write its charts and report. Raises StoreError, CommandError."""
    if missing := missing_drawing():
        raise CommandError(missing)
    store, plan = read_run(root, selector, report)
    return finish_run(store, plan, report)
