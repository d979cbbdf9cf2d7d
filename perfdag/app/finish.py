"""The end of a run, on a machine or a cluster: collect, export, draw, report."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec

import pyarrow as pa

from perfdag.app.context import add_context
from perfdag.exit_codes import EXIT_FAILED, EXIT_GATE, EXIT_OK
from perfdag.plan.plan import Plan
from perfdag.results import exports
from perfdag.results.collect import CollectionResult, collect
from perfdag.results.nominal import add_nominal
from perfdag.results.schema import load_rows
from perfdag.results.summary import PointState, summarise
from perfdag.results.trust import RunTrust, trust_in
from perfdag.results.verdicts import OwnVerdict, own_verdicts
from perfdag.store.base import Store


@dataclass(frozen=True)
class RunResult:
    """A collected run: its samples by status, its points, and the addresses of its files."""

    plan: Plan
    collected: CollectionResult
    states: list[PointState]
    rows: str
    report: str | None
    exports: list[str]
    trust: RunTrust
    verdicts: list[OwnVerdict]
    gated: bool = False
    """Whether the gate of the whole run, which knows the acknowledgements, decides on verdicts."""

    @property
    def exit_code(self) -> int:
        """The exit code of the verb that measured or collected the run."""
        if not self.gated and any(verdict.word == "failed" for verdict in self.verdicts):
            return EXIT_GATE
        return EXIT_FAILED if self.collected.statuses.keys() - {"ok", "skipped"} else EXIT_OK


def finish_run(
    store: Store,
    plan: Plan,
    report: Callable[[str], None],
    *,
    charts: bool = True,
    history: bool = False,
    gated: bool = False,
) -> RunResult:
    """Collect a run, write its charts and report, and return the result.

    With `history`, add the page of the suite's history once three runs are stored. With
    `gated`, the benchmarks' own verdicts do not decide the exit code. Raises StoreError.
    """
    add_context(store, plan, report)
    collected = collect(store, plan)
    table = load_rows(store, suites=[plan.suite], runs=[plan.run_id])
    page = None
    if charts and (missing := missing_drawing()):
        report(f"perfdag: no report: {missing.replace('RUN', plan.run_id)}")
    elif charts:
        page = write_report(store, plan, table, report, history=history)
    files = exports.write(store, plan.run_id, table)
    result = result_of(store, plan, table, collected)
    return replace(result, report=page, exports=files, gated=gated)


def result_of(store: Store, plan: Plan, table: pa.Table, collected: CollectionResult) -> RunResult:
    """Return the result of a run from its rows."""
    states = summarise(table)
    add_nominal(table, states)
    trust, verdicts = trust_in(table, states), own_verdicts(table)
    return RunResult(plan, collected, states, store.url(collected.key), None, [], trust, verdicts)


def missing_drawing() -> str | None:
    """Return why this machine cannot draw, or None. An image for pods has no matplotlib."""
    if find_spec("matplotlib"):
        return None
    return "matplotlib is not installed here: run `perfdag report RUN` where it is"


def write_report(
    store: Store,
    plan: Plan,
    table: pa.Table,
    report: Callable[[str], None],
    *,
    history: bool = False,
) -> str:
    """Write the charts and report.html of a run, then its history page; return the report's URL.

    A history page that cannot be drawn is reported and left out. Raises StoreError.
    """
    # Both import matplotlib, which takes a second that a run without a report does not need.
    from perfdag.app import history_page
    from perfdag.charts.pages import report as report_page

    def put(name: str, data: bytes) -> None:
        store.put(f"runs/{plan.run_id}/{name}", data)

    previous = None
    try:
        previous = history_page.changes_since_previous(store, plan)
    except Exception as error:  # the report has all the rest
        report(f"perfdag: no comparison with the previous run: {type(error).__name__}: {error}")
    medians = history_page.past(store, plan) if history else None
    links = {"History of the suite": history_page.NAME} if medians else {}
    report_page.write(table, plan, put, store.root, links, previous)
    if medians:
        try:
            history_page.write_page(store, plan, medians)
        except Exception as error:  # the gate of the run must follow, whatever failed here
            report(f"perfdag: the history page is missing: {type(error).__name__}: {error}")
            report_page.write(table, plan, put, store.root, {}, previous)
    return store.url(f"runs/{plan.run_id}/report.html")
