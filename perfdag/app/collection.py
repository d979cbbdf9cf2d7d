"""Collect and report a stored run."""

from collections.abc import Callable

from perfdag.app.finish import RunResult, finish_run
from perfdag.exit_codes import EXIT_FAILED, EXIT_OK
from perfdag.results import exports
from perfdag.results.collect import collect
from perfdag.results.runs import load_plan
from perfdag.results.schema import load_rows
from perfdag.store.open import open_store


def collect_run(root: str | None, run_id: str) -> tuple[str, int]:
    """Write the Parquet file and the exports of a run. Return what was written and the exit code.

    The code is 1 if a sample failed, is invalid or missing. Raises StoreError.
    """
    store = open_store(root)
    plan = load_plan(store, run_id)
    collected = collect(store, plan)
    rows = load_rows(store, suites=[plan.suite], runs=[plan.run_id])
    lines = [f"{collected.rows} rows  {store.url(collected.key)}"]
    lines += [f"also  {export}" for export in exports.write(store, plan.run_id, rows)]
    good = all(status in ("ok", "skipped") for status in collected.statuses)
    return "\n".join(lines), EXIT_OK if good else EXIT_FAILED


def report_run(root: str | None, run_id: str, report: Callable[[str], None]) -> RunResult:
    """Collect a run, and write its charts and report. Raises StoreError."""
    store = open_store(root)
    return finish_run(store, load_plan(store, run_id), report)
