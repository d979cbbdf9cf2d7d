"""Check a run: its gate, and the messages about it."""

import os
from collections.abc import Callable, Container
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from perfdag.app.errors import CommandError
from perfdag.app.finish import RunResult
from perfdag.app.runs import explain_last
from perfdag.app.terminal.text_table import highlighted
from perfdag.regress import publish
from perfdag.regress.acks import read_acks, read_checks
from perfdag.regress.alert_records import Alert
from perfdag.regress.gate import check, store_record
from perfdag.regress.result import GateResult, Rules, gate_as_dict, worst
from perfdag.regress.rollup import read_run_medians
from perfdag.regress.selection import select_one
from perfdag.regress.verdict import RANK
from perfdag.signals import EXIT_GATE, EXIT_OK, EXIT_REACH
from perfdag.store.base import Store
from perfdag.store.open import open_store
from perfdag.units import plural, short_seconds

MOST_LINES = 10
"""Series that the terminal names; the report has all of them."""


@dataclass(frozen=True)
class GateOutcome:
    """The gate of a run, and whether the webhook took its messages."""

    gate: GateResult
    webhook_reached: bool

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
            if result.state in ("failed", "absent") and result.group != "change"
        ]
        lines += answer_lines(gate, told={key for alert in gate.alerts for key in alert.keys})
        lines += [f"damaged, left out: {key}" for key in gate.damaged]
        lines.append(f"checks  {publish.counts(gate)}")
        lines.append(f"gate {'FAILED' if gate.failed else 'passed'}  {gate.suite}  {gate.run}")
        return highlighted(lines)


def answer_lines(gate: GateResult, told: Container[str] = ()) -> list[str]:
    """Return the answer about a run, then each headline series that is not the same as before.

    Series whose ids are in `told` are left out.
    """
    if not gate.series:
        return []
    if gate.runs == 1:
        return ["answer  first run: there is none before it to compare with"]
    history = plural(gate.runs, "run")
    lines = [f"answer  {gate.word}: {gate.counted} ({history} of history)"]
    lines += [
        f"  {line.name}: {line.answer.text}"
        for line in sorted(gate.headlines, key=lambda line: RANK.index(line.answer.word))
        if line.answer.word != "same" and line.info.series_id not in told
    ][:MOST_LINES]
    if gate.rechecks:
        lines.append(f"measured again right after it: {', '.join(gate.rechecks)}")
    return lines


def check_run(
    selector: str,
    *,
    root: str | None,
    suite: str | None,
    acks_file: str | None,
    webhook: str | None,
    report: Callable[[str], None],
) -> GateOutcome:
    """Check the run that `selector` selects, send its alerts and record them in the store.

    `report` receives lines of progress. Raises SelectionError, BadDocument, StoreError.
    """
    store = open_store(root)
    run_id, suite = select_one(store, selector, suite)
    explain_last(store, selector, run_id, report)
    acks, file = read_acks(acks_file, store)
    rules = Rules(read_checks(store, run_id), acks, file)
    return _publish(store, check(store, suite, run_id, rules), webhook, report)


def publish_gate(
    store: Store, result: RunResult, report: Callable[[str], None]
) -> GateOutcome | None:
    """Publish the gate of a run as its last step. Return None if the run asks for no gate.

    A scheduled run asks for one, and so does a whole run of a suite with `checks`. The gate is
    stored as JUnit XML and Markdown beside the report. Raises StoreError.
    """
    if not result.gated or result.gate is None:
        return None
    outcome = _publish(store, result.gate, os.environ.get("PERFDAG_WEBHOOK"), report)
    run = f"runs/{result.plan.run_id}"
    store.put(f"{run}/check.xml", outcome.junit())
    store.put(f"{run}/check.md", outcome.markdown().encode())
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


def _publish(
    store: Store,
    gate: GateResult,
    webhook: str | None,
    report: Callable[[str], None],
) -> GateOutcome:
    """Send the alerts of a gate and record which were sent. Raises StoreError."""
    outcome = GateOutcome(gate, _send(webhook, gate, report))
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
