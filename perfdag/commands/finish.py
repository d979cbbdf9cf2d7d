"""The end of a run, on a machine or a cluster: collect, export, draw, report."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec

import pyarrow as pa

from perfdag.analysis.alerts import GateResult
from perfdag.analysis.gate import check, unattended_rules
from perfdag.analysis.selection import SelectionError
from perfdag.plan.plan import Plan, gated
from perfdag.results.collect import CollectionResult, collect, write_exports
from perfdag.results.schema import load_rows
from perfdag.results.summary import (
    OwnVerdict,
    PointState,
    RunTrust,
    add_nominal,
    own_verdicts,
    summarise,
    trust_in,
)
from perfdag.signals import EXIT_FAILED, EXIT_GATE, EXIT_OK
from perfdag.store.base import Store
from perfdag.suite.model import checks_of

logger = logging.getLogger(__name__)


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
    gate: GateResult | None = None
    """The answers about the series of the run, and its checks. None where there is no history."""
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
    *,
    charts: bool = True,
    recheck: Callable[[GateResult], None] | None = None,
) -> RunResult:
    """Collect a run, judge it, write its charts and report, and return the result.

    `recheck` measures the suspicious points again before the verdict. Raises StoreError.
    """
    collected = collect(store, plan)
    gate = judge(store, plan)
    if recheck and gate and gate.suspects:
        recheck(gate)
        gate = judge(store, plan)
    table = load_rows(store, suites=[plan.suite], runs=[plan.run_id])
    page = None
    if charts and (missing := missing_drawing()):
        logger.warning(f"perfdag: no report: {missing.replace('RUN', plan.run_id)}")
    elif charts:
        page = write_report(store, plan, table, gate)
    files = write_exports(store, plan.run_id, table)
    result = result_of(store, plan, table, collected)
    return replace(result, report=page, exports=files, gate=gate, gated=gated(plan))


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


def write_card(store: Store, plan: Plan, gate: GateResult | None) -> str:
    """Write card.png of a collected run. Return its URL. Raises StoreError."""
    from perfdag.charts.pages.report import card_of

    table, key = load_rows(store, suites=[plan.suite], runs=[plan.run_id]), "card.png"
    store.put(f"runs/{plan.run_id}/{key}", card_of(table, plan, gate))
    return store.url(f"runs/{plan.run_id}/{key}")
