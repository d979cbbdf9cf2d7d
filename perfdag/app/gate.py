"""Check a run: its gate, its alerts, and the runs that confirm it."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from perfdag.app.errors import CommandError
from perfdag.app.local_run import measure_plan, only_process
from perfdag.app.runs import explain_last
from perfdag.app.terminal.text_table import highlighted
from perfdag.exit_codes import EXIT_GATE, EXIT_OK, EXIT_REACH
from perfdag.plan.gated import gated
from perfdag.plan.plan import Plan
from perfdag.regress import publish
from perfdag.regress.acks import read_acks, read_checks, unattended_rules
from perfdag.regress.alert_records import Alert
from perfdag.regress.changes import percent
from perfdag.regress.confirm import check_night
from perfdag.regress.gate import store_record
from perfdag.regress.result import GateResult, Rules, gate_as_dict, worst
from perfdag.regress.rollup import read_run_medians
from perfdag.regress.selection import select_one
from perfdag.results.collect import collect
from perfdag.results.confirming import store_confirming_plans
from perfdag.results.runs import load_plan
from perfdag.store.base import Store, StoreError
from perfdag.store.open import open_store
from perfdag.suite.checks import checks_of
from perfdag.units import short_seconds


@dataclass(frozen=True)
class GateOutcome:
    """The gate of a run. `local` tells whether --confirm can measure its points again here."""

    gate: GateResult
    webhook_reached: bool
    local: bool = False

    @property
    def exit_code(self) -> int:
        """4 if the webhook did not accept a message, 3 if the gate fails, else 0."""
        if not self.webhook_reached:
            return EXIT_REACH
        return EXIT_GATE if self.gate.failed else EXIT_OK

    def data(self) -> dict[str, Any]:
        """Return the gate as plain data."""
        return gate_as_dict(self.gate)

    def junit(self) -> bytes:
        """Return the gate as JUnit XML."""
        return publish.junit(self.gate)

    def markdown(self) -> str:
        """Return the gate as Markdown."""
        return publish.markdown(self.gate)

    def text(self) -> str:
        """Return the gate as text: alerts, checks that fail, suspicious points, counts."""
        gate, lines = self.gate, []
        for alert in worst(gate.alerts):
            lines += [
                gate.message(alert),
                *([] if alert.fresh else ["        (reported before)"]),
                "",
            ]
        lines += [
            f"{result.state:8}{result.group}: {result.name}: {result.text}"
            for result in gate.cases
            if result.state in ("failed", "absent")
        ]
        if gate.confirming_runs:
            lines.append(f"measured again the same night: {', '.join(gate.confirming_runs)}")
        elif gate.suspects:
            suspects = [f"{point.name} {percent(point.effect)}" for point in gate.suspects]
            hint = " (--confirm measures them again)" if self.local else ""
            lines.append(f"suspicious tonight: {', '.join(suspects)}{hint}")
        lines += [f"damaged, left out: {key}" for key in gate.damaged]
        lines.append(f"{publish.counts(gate)}; runs of history: {gate.runs}")
        lines.append(f"gate {'FAILED' if gate.failed else 'passed'}  {gate.suite}  {gate.run}")
        return highlighted(lines)


def check_run(
    selector: str,
    *,
    root: str | None,
    suite: str | None,
    acks_file: str | None,
    confirm: bool,
    webhook: str | None,
    report: Callable[[str], None],
) -> GateOutcome:
    """Check the run that `selector` selects, send its alerts and record them in the store.

    `confirm` measures suspicious points twice more on this machine first. `report` receives lines
    of progress. Raises CommandError, SelectionError, BadDocument, StoreError.
    """
    store = open_store(root)
    run_id, suite = select_one(store, selector, suite)
    explain_last(store, selector, run_id, report)
    local = _is_local(store, run_id)
    if confirm and not local:
        raise CommandError(
            f"run {run_id} was measured on a cluster; this machine cannot add samples to it. "
            "A scheduled run measures its suspicious points again by itself; "
            "for any other run: perfdag submit SUITE --only ENTRY"
        )
    acks, file = read_acks(acks_file, store)
    rules = Rules(read_checks(store, run_id), acks, file)
    gate = check_night(store, suite, run_id, rules)
    if confirm and gate.suspects and not gate.confirming_runs:
        _measure_again(store, gate, report)
        gate = check_night(store, suite, run_id, rules)
    return _publish(store, gate, webhook, report, local=local)


def check_after_run(store: Store, plan: Plan, report: Callable[[str], None]) -> GateOutcome | None:
    """Check a run as its last step. Return None if the run asks for no gate.

    A scheduled run asks for one, and so does a whole run of a suite with `checks`. The gate is
    stored as JUnit XML and Markdown beside the report. Raises StoreError.
    """
    if not gated(plan):
        return None
    rules = unattended_rules(store, checks_of(plan.suite_text))
    gate = check_night(store, plan.suite, plan.run_id, rules)
    outcome = _publish(store, gate, os.environ.get("PERFDAG_WEBHOOK"), report)
    store.put(f"runs/{plan.run_id}/check.xml", outcome.junit())
    store.put(f"runs/{plan.run_id}/check.md", outcome.markdown().encode())
    return outcome


def check_age(
    selector: str,
    root: str | None,
    suite: str | None,
    limit: float,
    webhook: str | None,
    report: Callable[[str], None],
) -> tuple[str, int]:
    """Return the age of a run as a line, and the exit code.

    The code is 0, 3 if the run began more than `limit` seconds ago, or 4 if the webhook did not
    accept the message. Raises CommandError, SelectionError, StoreError.
    """
    store = open_store(root)
    run_id, suite = select_one(store, selector, suite)
    starts = [run.when for run in read_run_medians(store, suite).runs if run.run_id == run_id]
    if not starts:
        raise CommandError(f"run {run_id} has no readable rows")
    age = (datetime.now(UTC) - starts[0]).total_seconds()
    line = f"{suite}: run {run_id} began {short_seconds(age)} ago"
    if age <= limit:
        return line, EXIT_OK
    title = f"STALE {line}; at most {short_seconds(limit)} is allowed"
    alert = Alert("stale", title, title, [run_id], run_id)
    reached = _send(webhook, GateResult(run_id, suite, "", alerts=[alert]), report)
    return title, EXIT_GATE if reached else EXIT_REACH


def _is_local(store: Store, run_id: str) -> bool:
    """Return whether `perfdag run` measured a run, which is assumed without a readable plan."""
    try:
        return not load_plan(store, run_id).where
    except StoreError:
        return True


def _measure_again(store: Store, gate: GateResult, report: Callable[[str], None]) -> None:
    """Measure the suspicious points twice more, as runs of their own. Raises StoreError."""
    points = {suspect.point for suspect in gate.suspects}
    for plan in store_confirming_plans(store, load_plan(store, gate.run), points):
        names = ", ".join(suspect.name for suspect in gate.suspects)
        report(f"confirm {plan.run_id}: {names}")
        with only_process(plan):
            measure_plan(plan, store, report)
            collect(store, plan)


def _publish(
    store: Store,
    gate: GateResult,
    webhook: str | None,
    report: Callable[[str], None],
    *,
    local: bool = False,
) -> GateOutcome:
    """Send the alerts of a gate and record which were sent. Raises StoreError."""
    outcome = GateOutcome(gate, _send(webhook, gate, report), local)
    store_record(store, gate)
    return outcome


def _send(webhook: str | None, gate: GateResult, report: Callable[[str], None]) -> bool:
    """Send the alerts of a gate to the webhook, if there is one. Return whether it took them."""
    try:
        if webhook:
            publish.send(webhook, gate, gate.alerts)
    except publish.WebhookError as error:
        report(f"perfdag check: {error}")
        return False
    return True
