"""What a run was found to be: the cases that were checked, the alerts they raise, and what the run is held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from perfdag.alerts import Alert, Kind
from perfdag.checks import Check
from perfdag.findings import Accepted, Finding, Suspicion, day_of


@dataclass(frozen=True)
class Case:
    """One thing that was checked, as a JUnit test case: `state` ok, failed (a gate), absent (its data), unsure or skipped (as its samples)."""

    group: str
    name: str
    state: Literal["ok", "failed", "absent", "unsure", "skipped"]
    text: str


@dataclass
class Gate:
    """What a run was found to be. `confirm` names points worth measuring again the same night, `confirmed` the runs that did.

    `store` is its address.
    """

    run: str
    suite: str
    report: str
    cases: list[Case] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    confirm: list[Suspicion] = field(default_factory=list)
    confirmed: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    runs: int = 0
    store: str = ""

    @property
    def failed(self) -> bool:
        """Whether the gate is shut: a regression nobody accepted, a threshold, or absent data."""
        return any(each.gates for each in self.alerts) or any(
            each.state in ("failed", "absent") for each in self.cases
        )


@dataclass(frozen=True)
class Rules:
    """What a run is held against: the suite's checks and acknowledgements.

    `acks_wrong`: what is wrong with a file of acknowledgements that is not used.
    """

    checks: Sequence[Check] = ()
    accepted: Sequence[Accepted] = ()
    acks_file: str = "acks.yaml"
    acks_wrong: str = ""


Lost = tuple[str, str, str]
"""What an alert about several series says of each: its name, the key it is known by, what is wrong."""


def raise_alert(
    gate: Gate, rules: Rules, kind: Kind, title: str, lost: Sequence[Lost], do: str, rule: str = ""
) -> None:
    """Word one alert about several series, the first six by name."""
    shown = [f"{name}: {why}"[:300] for name, _, why in lost[:6]] + (
        [f"and {len(lost) - 6} more"] if len(lost) > 6 else []
    )
    lines = [
        title,
        *(f"what    {each}" for each in shown),
        *([f"rule    {rule}"] if rule else []),
        f"do      {do}",
    ]
    lines.append(
        f"accept  in {rules.acks_file}: {{series: '{lost[0][0]}', run: {gate.run}, reason: ...}}"
    )
    gate.alerts.append(Alert(kind, title, "\n".join(lines), [key for _, key, _ in lost], gate.run))


def acknowledged(rules: Rules, run: str, name: str, series_id: str) -> bool:
    """Say whether somebody acknowledged that a series, or a rule, is off since a run no later than this one."""
    return any(
        each.holds(name, series_id, day_of(run)) and each.run <= run for each in rules.accepted
    )


def worst(alerts: Sequence[Alert]) -> list[Alert]:
    """Return the alerts, those that fail the gate first."""
    return sorted(alerts, key=lambda each: (not each.gates, each.kind))


def data(gate: Gate) -> dict[str, Any]:
    """Return the gate as plain data."""
    return {
        "run_id": gate.run,
        "suite": gate.suite,
        "passed": not gate.failed,
        "runs": gate.runs,
        "report": gate.report,
        "cases": [asdict(each) for each in gate.cases],
        "alerts": [asdict(each) for each in gate.alerts],
        "changes": [asdict(each) for each in gate.findings],
        "confirm": [asdict(each) for each in gate.confirm],
        "confirmed": gate.confirmed,
        "damaged": gate.damaged,
    }
