"""The end of a run, on a machine or a cluster: collect, export, draw, report."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pyarrow as pa

from perfdag.exit_codes import EXIT_FAILED, EXIT_GATE, EXIT_OK
from perfdag.plan.plan import Plan
from perfdag.regress.acks import unattended_rules
from perfdag.regress.changes import percent
from perfdag.regress.comparison import compare_selections
from perfdag.regress.selection import Selection
from perfdag.regress.tuning import Tuning
from perfdag.results import exports
from perfdag.results.collect import CollectionResult, collect
from perfdag.results.nominal import add_nominal
from perfdag.results.result_files import stored_runs
from perfdag.results.runs import find_run
from perfdag.results.schema import load_rows
from perfdag.results.summary import PointState, summarise
from perfdag.results.trust import RunTrust, trust_in
from perfdag.results.verdicts import OwnVerdict, own_verdicts
from perfdag.store.base import NotStoredError, Store
from perfdag.suite.checks import checks_of

if TYPE_CHECKING:
    from perfdag.charts.pages.tiles import Previous


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
        statuses = self.collected.statuses.keys()
        return EXIT_FAILED if "ok" not in statuses or statuses - {"ok", "skipped"} else EXIT_OK


def finish_run(
    store: Store,
    plan: Plan,
    report: Callable[[str], None],
    *,
    charts: bool = True,
    gated: bool = False,
) -> RunResult:
    """Collect a run, write its charts and report, and return the result.

    With `gated`, the benchmarks' own verdicts do not decide the exit code. Raises StoreError.
    """
    collected = collect(store, plan)
    table = load_rows(store, suites=[plan.suite], runs=[plan.run_id])
    page = None
    if charts and (missing := missing_drawing()):
        report(f"perfdag: no report: {missing.replace('RUN', plan.run_id)}")
    elif charts:
        page = write_report(store, plan, table, report)
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


def write_report(store: Store, plan: Plan, table: pa.Table, report: Callable[[str], None]) -> str:
    """Write the charts and report.html of a run; return the report's URL. Raises StoreError."""
    # It imports matplotlib, which takes a second that a run without a report does not need.
    from perfdag.charts.pages import report as report_page

    def put(name: str, data: bytes) -> None:
        store.put(f"runs/{plan.run_id}/{name}", data)

    previous = None
    try:
        previous = _changes_since_previous(store, plan)
    except Exception as error:  # the report has all the rest
        report(f"perfdag: no comparison with the previous run: {type(error).__name__}: {error}")
    links = {"History of the suite": f"../../site/history.html?suite={plan.suite}"}
    has_site = bool(store.list(f"site/data/{plan.suite}"))
    report_page.write(table, plan, put, store.root, links if has_site else {}, previous)
    return store.url(f"runs/{plan.run_id}/report.html")


def _changes_since_previous(store: Store, plan: Plan) -> "Previous | None":
    """Return the changes of the headline series since the whole run before, or None without one.

    Raises StoreError, SelectionError.
    """
    from perfdag.charts.pages.tiles import Change, Previous

    if plan.trigger in ("ab", "confirm"):
        return None
    older = {run: suite for run, suite in stored_runs(store, plan.suite) if run < plan.run_id}
    try:
        run = find_run(store, "last", older)
    except NotStoredError:
        return None
    rules = unattended_rules(store, checks_of(plan.suite_text))
    sides = [Selection(name, plan.suite, (name,)) for name in (run, plan.run_id)]
    tuning = Tuning(rules.checks, plan.where.get("cluster"))
    comparison = compare_selections((store, sides[0]), (store, sides[1]), tuning, everything=False)
    changes = {
        (row.info.point, row.info.name): Change(
            percent(row.verdict.effect, row.verdict.absolute), row.verdict.word
        )
        for row in comparison.rows
    }
    return Previous(run, changes)
