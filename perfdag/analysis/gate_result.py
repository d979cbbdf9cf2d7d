"""What the gate of a run found: its checks, its alerts, and the verdicts on its series.

A first run has no past, so what compares with it is imported where it is used.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal

from perfdag.store.base import store_option
from perfdag.suite.document import quoted
from perfdag.suite.model import Check

if TYPE_CHECKING:
    from perfdag.analysis.history import Acknowledgement, Series
    from perfdag.analysis.verdict import JudgedSeries
    from perfdag.stats.scale import Word

Kind = Literal["worse", "recovered", "threshold", "slow", "verdict", "absent", "stale", "acks"]


@dataclass
class Alert:
    """One cause: `keys` are its series, `run` is its start.

    `text` is its message of at most 12 lines: what was seen, what to do, and what accepts it.
    `gates`: it fails the gate. `fresh`: the run before did not have it. `sent`: the webhook
    accepted it.
    """

    kind: Kind
    title: str
    text: str
    keys: list[str]
    run: str
    gates: bool = True
    fresh: bool = True
    sent: bool = False


State = Literal["ok", "failed", "absent", "unsure", "skipped"]


@dataclass(frozen=True)
class CheckResult:
    """The result of one check, as a JUnit test case.

    `state` is ok, failed (fails the gate), absent (no data), unsure (too little history,
    or an inconclusive verdict) or skipped (its samples were skipped). One that fails is in an
    alert with the others of its `cause` (entry, and rule or what is missing). Acknowledgements call
    it `label`, and people `title`; `key` identifies it across runs.
    """

    group: str
    name: str
    title: str
    state: State
    text: str
    key: str = ""
    label: str = ""
    cause: tuple[str, str] | None = None

    @property
    def heading(self) -> str:
        """The title, with the rule of a threshold."""
        rule = self.cause[1] if self.cause and self.group == "threshold" else ""
        return self.title if rule in ("", self.title) else f"{self.title}: {rule}"


@dataclass
class GateResult:
    """The result of checking a run. `store` is its store, and `history` that of earlier runs.

    `report` and `acks_file` are the addresses that its messages name. `series` are those that the
    run measured, with their verdicts, and `canaries` those of its canary. `suspects` has one of
    each point worth measuring again, `rechecks` are the runs that did so. `changed` names the
    parameters that differ from those of the run before. `revision` is that of what the run
    measured.
    `of_base` has what is worse already in a history that is only read, and fails nothing.
    `unclear_fails`: it does not pass where nothing can be said of a series that alerts.
    """

    run: str
    suite: str
    report: str
    cases: list[CheckResult] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)
    series: list["Series"] = field(default_factory=list)
    canaries: list["Series"] = field(default_factory=list)
    suspects: list["Series"] = field(default_factory=list)
    rechecks: list[str] = field(default_factory=list)
    changed: str = ""
    revision: str = ""
    of_base: list[str] = field(default_factory=list)
    unclear_fails: bool = False
    damaged: list[str] = field(default_factory=list)
    runs: int = 0
    store: str = ""
    history: str = ""
    acks_file: str = "acks.yaml"

    @property
    def broken(self) -> list[CheckResult]:
        """The checks that fail the gate, but for those of series that became worse."""
        return [case for case in self.cases if case.cause and case.state in ("failed", "absent")]

    @property
    def failed(self) -> bool:
        """Whether the gate fails.

        It does by a regression, a slow node, a verdict of a benchmark, a broken threshold or absent
        data.
        """
        return any(alert.gates for alert in self.alerts) or any(
            result.state in ("failed", "absent") for result in self.cases
        )

    @property
    def unclear(self) -> list[CheckResult]:
        """The series that alert and of which nothing can be said."""
        return [case for case in self.cases if case.group == "change" and case.state == "unsure"]

    @property
    def verdict(self) -> str:
        """Whether it `passed`, `FAILED`, or is `UNCLEAR` where that matters."""
        if self.failed:
            return "FAILED"
        return "UNCLEAR" if self.unclear_fails and self.unclear else "passed"

    @property
    def slower_machine(self) -> list[str]:
        """The line that says which canaries became worse, and with them the machine; or none."""
        moved = [
            f"{line.info.metric} {line.verdict.text}"
            for line in self.canaries
            if line.verdict.word == "worse" and line.info.metric != "steal"
        ]
        return [f"canary  {', '.join(moved)}: the machine itself became slower"] if moved else []

    @property
    def word(self) -> "Word | None":
        """The verdict on the run: the word that matters most of its headline series."""
        from perfdag.analysis.verdict import worst_word

        return worst_word([line.verdict for line in self.headlines])

    @property
    def headlines(self) -> Sequence["Series"]:
        """The headline series, or all where the run has none."""
        from perfdag.analysis.history import headlines

        return headlines(self.series)

    @property
    def counted(self) -> str:
        """The headline series by word, such as `1 worse, 20 same`."""
        from perfdag.analysis.verdict import counts

        return counts([line.verdict.word for line in self.headlines])

    def data(self) -> dict[str, Any]:
        """Return the gate as data for JSON."""
        from perfdag.analysis.verdict import JudgedSeries

        series = [
            JudgedSeries(line.info, line.name, line.label, line.verdict, line.verdict.text)
            for line in self.series
        ]
        data = GateData(
            run_id=self.run,
            suite=self.suite,
            passed=not self.failed,
            verdict=self.word,
            runs=self.runs,
            report=self.report,
            revision=self.revision,
            cases=self.cases,
            alerts=self.alerts,
            series=series,
            suspects=[line.name for line in self.suspects],
            rechecks=self.rechecks,
            damaged=self.damaged,
        )
        return asdict(data)

    def compare(self, before: str) -> str:
        """Return the command that compares this run with one of its history."""
        command = f"perfdag compare {before} {self.run} {store_option(self.history)}"
        return command if self.store == self.history else f"{command} --store-b {quote(self.store)}"

    def accept(self, name: str, run: str) -> str:
        """Return the line with an acknowledgement as acks.yaml has it, for a person to complete."""
        series = quoted(name)
        return f"accept  in {self.acks_file}: {{series: {series}, run: {run}, reason: ...}}"


@dataclass(frozen=True)
class Rules:
    """What a run is checked against: the checks and acknowledgements of its suite.

    `acks_wrong` is the error in a file of acknowledgements that is ignored.
    """

    checks: Sequence[Check] = ()
    accepted: Sequence["Acknowledgement"] = ()
    acks_file: str = "acks.yaml"
    acks_wrong: str = ""


@dataclass(frozen=True)
class GateData:
    """A gate as `check` prints it with --json."""

    run_id: str
    suite: str
    passed: bool
    verdict: "Word | None"
    runs: int
    report: str
    revision: str
    cases: Sequence[CheckResult]
    alerts: Sequence[Alert]
    series: Sequence["JudgedSeries"]
    suspects: Sequence[str]
    rechecks: Sequence[str]
    damaged: Sequence[str]
