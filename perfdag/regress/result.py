"""The result of a gate: what was checked, the alerts, and the rules it was checked against."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from perfdag.regress.alert_records import REPORT, Alert, Kind, acknowledgement, message
from perfdag.regress.history import Acknowledgement, Series, headlines
from perfdag.regress.verdict import counts, worst_word
from perfdag.results.runs import day_of
from perfdag.stats.levels import Word
from perfdag.suite.model import Check


@dataclass(frozen=True)
class CheckResult:
    """The result of one check, as a JUnit test case.

    `state` is ok, failed (fails the gate), absent (no data), unsure (too little history,
    or an inconclusive verdict) or skipped (its samples were skipped).
    """

    group: str
    name: str
    state: Literal["ok", "failed", "absent", "unsure", "skipped"]
    text: str


@dataclass
class GateResult:
    """The result of checking a run. `store` is the address of the store.

    `report` and `acks_file` are the addresses that its messages name. `series` are those that the
    run measured, with their answers. `suspects` has one of each point worth measuring again,
    `rechecks` are the runs that did so.
    """

    run: str
    suite: str
    report: str
    cases: list[CheckResult] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)
    suspects: list[Series] = field(default_factory=list)
    rechecks: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    runs: int = 0
    store: str = ""
    acks_file: str = "acks.yaml"

    @property
    def failed(self) -> bool:
        """Whether the gate fails: a regression, a broken threshold or absent data."""
        return any(alert.gates for alert in self.alerts) or any(
            result.state in ("failed", "absent") for result in self.cases
        )

    @property
    def word(self) -> Word | None:
        """The answer about the run: the word that matters most of its headline series."""
        return worst_word([line.answer for line in self.headlines])

    @property
    def headlines(self) -> Sequence[Series]:
        """The headline series, or all where the run has none."""
        return headlines(self.series)

    @property
    def counted(self) -> str:
        """The headline series by word, such as `1 worse, 20 same`."""
        return counts([line.answer.word for line in self.headlines])

    def message(self, alert: Alert) -> str:
        """Return the message of an alert."""
        return message(alert, self.report, self.store, self.acks_file)


@dataclass(frozen=True)
class Rules:
    """What a run is checked against: the checks and acknowledgements of its suite.

    `acks_wrong` is the error in a file of acknowledgements that is ignored.
    """

    checks: Sequence[Check] = ()
    accepted: Sequence[Acknowledgement] = ()
    acks_file: str = "acks.yaml"
    acks_wrong: str = ""


LostSeries = tuple[str, str, str]
"""A series of an alert about several: name, key, and what is wrong."""


def add_alert(
    gate: GateResult,
    kind: Kind,
    title: str,
    lost: Sequence[LostSeries],
    do: str = REPORT,
    rule: str = "",
) -> None:
    """Add one alert about several series, which names the first six."""
    series = [f"{name}: {why}"[:300] for name, _, why in lost[:6]] + (
        [f"and {len(lost) - 6} more"] if len(lost) > 6 else []
    )
    lines = [
        title,
        *(f"what    {line}" for line in series),
        *([f"rule    {rule}"] if rule else []),
    ]
    keys, accept = [key for _, key, _ in lost], acknowledgement(lost[0][0], gate.run)
    gate.alerts.append(Alert(kind, title, "\n".join(lines), keys, gate.run, do, accept))


def acknowledged(rules: Rules, run: str, name: str, series_id: str) -> bool:
    """Return whether a series or rule is acknowledged from a run no later than this one."""
    return any(
        accepted.holds(name, series_id, day_of(run)) and accepted.run <= run
        for accepted in rules.accepted
    )


def worst(alerts: Sequence[Alert]) -> list[Alert]:
    """Return the alerts, those that fail the gate first."""
    return sorted(alerts, key=lambda alert: (not alert.gates, alert.kind))


_ALERT = ("kind", "title", "keys", "run", "gates", "fresh", "sent")


def gate_as_dict(gate: GateResult) -> dict[str, Any]:
    """Return the gate as plain data."""
    return {
        "run_id": gate.run,
        "suite": gate.suite,
        "passed": not gate.failed,
        "runs": gate.runs,
        "report": gate.report,
        "cases": [asdict(item) for item in gate.cases],
        "alerts": [
            {name: getattr(alert, name) for name in _ALERT} | {"text": gate.message(alert)}
            for alert in gate.alerts
        ],
        "word": gate.word,
        "series": [
            {"series": line.info.series_id, "name": line.name, **asdict(line.answer)}
            for line in gate.series
        ],
        "suspects": [line.name for line in gate.suspects],
        "rechecks": gate.rechecks,
        "damaged": gate.damaged,
    }
