"""What a gate found, and who hears of it: alerts, JUnit XML, Markdown and a webhook."""

import http.client
import logging
import os
import re
import shlex
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import orjson

from perfdag.analysis.history import Acknowledgement, Series, headlines, shorten
from perfdag.analysis.verdict import RANK, counts, percent, worst_word
from perfdag.results.runs import day_of
from perfdag.stats.levels import Word
from perfdag.store.base import Store
from perfdag.suite.model import Check
from perfdag.units import plural, short

logger = logging.getLogger(__name__)

Kind = Literal["worse", "recovered", "threshold", "verdict", "absent", "stale", "acks"]


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


@dataclass
class Record:
    """The alerts of one run, as stored under alerts/. `failed`: its gate failed.

    `store` is the address that the store had for the check, as the messages name it.
    """

    run: str
    store: str
    alerts: list[Alert]
    failed: bool


def mark_known(alerts: Sequence[Alert], previous: Record | None, own: Record | None) -> None:
    """Mark the alerts that the run before, or an earlier check of this run, had already."""
    for alert in alerts:
        records = [record for record in (previous, own) if record]
        old = [each for record in records for each in record.alerts if each.kind == alert.kind]
        # One more series of a cause makes a known alert fresh.
        alert.fresh = not set(alert.keys) <= {key for each in old for key in each.keys}
        alert.sent = set(alert.keys) <= {key for each in old if each.sent for key in each.keys}


def read_records(store: Store, suite: str) -> dict[str, Record]:
    """Return the newest records by run id, oldest first. Raises StoreError.

    At most 120. A damaged record counts as none.
    """
    keys = [key for key in store.list(f"alerts/{suite}") if key.endswith(".json")][-120:]
    records = {}
    for _, data in store.get_many(keys):
        try:
            raw = orjson.loads(data)
            alerts = [Alert(**alert) for alert in raw["alerts"]]
            records[raw["run"]] = Record(raw["run"], raw["store"], alerts, raw["failed"])
        except (ValueError, KeyError, TypeError):
            continue
    return records


def store_record(store: Store, gate: "GateResult") -> None:
    """Store the alerts of a run, so that none is sent twice. Raises StoreError."""
    record = Record(gate.run, gate.store, gate.alerts, gate.failed)
    text = orjson.dumps(record, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
    store.put(f"alerts/{gate.suite}/{gate.run}.json", text)


State = Literal["ok", "failed", "absent", "unsure", "skipped"]


@dataclass(frozen=True)
class CheckResult:
    """The result of one check, as a JUnit test case.

    `state` is ok, failed (fails the gate), absent (no data), unsure (too little history,
    or an inconclusive verdict) or skipped (its samples were skipped). One that fails is in an
    alert with the others of its `cause` (entry, and rule or what is missing), where it is named
    `label`; `key` identifies it across runs.
    """

    group: str
    name: str
    state: State
    text: str
    key: str = ""
    label: str = ""
    cause: tuple[str, str] | None = None


@dataclass
class GateResult:
    """The result of checking a run. `store` is the address of the store.

    `report` and `acks_file` are the addresses that its messages name. `series` are those that the
    run measured, with their answers, and `canaries` those of its canary. `suspects` has one of each
    point worth measuring again, `rechecks` are the runs that did so. `changed` names the parameters
    that differ from those of the run before.
    """

    run: str
    suite: str
    report: str
    cases: list[CheckResult] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)
    canaries: list[Series] = field(default_factory=list)
    suspects: list[Series] = field(default_factory=list)
    rechecks: list[str] = field(default_factory=list)
    changed: str = ""
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
    def slower_machine(self) -> list[str]:
        """The line that says which canaries became worse, and with them the machine; or none."""
        moved = [
            f"{line.info.metric} {line.answer.text}"
            for line in self.canaries
            if line.answer.word == "worse" and line.info.metric != "steal"
        ]
        return [f"canary  {', '.join(moved)}: the machine itself became slower"] if moved else []

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

    def accept(self, name: str, run: str) -> str:
        """Return the line with an acknowledgement as acks.yaml has it, for a person to complete."""
        return f"accept  in {self.acks_file}: {{series: '{name}', run: {run}, reason: ...}}"


@dataclass(frozen=True)
class Rules:
    """What a run is checked against: the checks and acknowledgements of its suite.

    `acks_wrong` is the error in a file of acknowledgements that is ignored.
    """

    checks: Sequence[Check] = ()
    accepted: Sequence[Acknowledgement] = ()
    acks_file: str = "acks.yaml"
    acks_wrong: str = ""


POINTS = "points"
"""The second part of the cause of points without a value."""
_KINDS: dict[str, Kind] = {"present": "absent", "verdict": "verdict", "threshold": "threshold"}


def case_alerts(gate: GateResult) -> list[Alert]:
    """Return an alert for each cause of cases that fail. It names the first six."""
    causes: dict[tuple[str, str, str], list[CheckResult]] = {}
    for case in gate.cases:
        if case.cause and case.state in ("failed", "absent"):
            causes.setdefault((case.group, *case.cause), []).append(case)
    alerts = []
    for (group, entry, detail), cases in causes.items():
        kind, count = _KINDS[group], len(cases)
        about = f"{entry}: {count} series"
        if detail == POINTS:
            about = f"{entry}: {plural(count, 'point')} without a value"
        elif kind == "verdict":
            about = f"{entry}: {count} of its own verdicts failed"
        elif kind == "threshold" and count == 1:
            about = cases[0].label
        lines = [f"{kind.upper()} {gate.suite}/{about}"]
        lines += [f"what    {case.label}: {case.text}"[:308] for case in cases[:6]]
        lines += [f"what    and {count - 6} more"] if count > 6 else []
        lines += [f"rule    {detail}"] if kind == "threshold" else []
        lines += [f"do      {gate.report}", gate.accept(cases[0].label, gate.run)]
        keys = [case.key for case in cases]
        alerts.append(Alert(kind, lines[0], "\n".join(lines), keys, gate.run))
    return alerts


def gate_as_dict(gate: GateResult) -> dict[str, Any]:
    """Return the gate as plain data."""
    return {
        "run_id": gate.run,
        "suite": gate.suite,
        "passed": not gate.failed,
        "runs": gate.runs,
        "report": gate.report,
        "cases": [
            {"group": case.group, "name": case.name, "state": case.state, "text": case.text}
            for case in gate.cases
        ],
        "alerts": [asdict(alert) for alert in gate.alerts],
        "word": gate.word,
        "series": [
            {"series": line.info.series_id, "name": line.name, **asdict(line.answer)}
            for line in gate.series
        ],
        "suspects": [line.name for line in gate.suspects],
        "rechecks": gate.rechecks,
        "damaged": gate.damaged,
    }


def worse_alerts(gate: GateResult, series: Iterable[Series]) -> list[Alert]:
    """Return an alert for each benchmark and step of which `series` are worse."""
    groups: dict[tuple[str, str], list[Series]] = {}
    for line in series:
        if line.answer.word == "worse" and line.left:
            groups.setdefault((line.info.benchmark, line.left.decided), []).append(line)
    return [_worse(gate, group) for group in groups.values()]


def _worse(gate: GateResult, group: Sequence[Series]) -> Alert:
    worst = max(group, key=lambda line: abs(line.answer.effect or 0))
    info, answer, left = worst.info, worst.answer, worst.left
    assert left is not None  # worse_alerts looks at it
    title = f"WORSE {gate.suite}/{worst.name} {answer.text.removeprefix('worse ')}"
    wish = f" ({info.better} is better)" if info.better in ("higher", "lower") else ""
    noise = percent(answer.noise, answer.absolute, sign=False)
    before, value = (short(v, info.unit, info.metric) for v in (answer.before, answer.value))
    lines = [
        title,
        f"level   {before} -> {value}{wish}, noise of a run {noise}",
        f"since   run {left.run}, decided by run {left.decided}",
        f"changed {left.changed}",
        *gate.slower_machine,
    ]
    if others := [line for line in group if line is not worst]:
        also = "; ".join(f"{line.name} {line.answer.size}" for line in others)
        lines.append(f"also    {shorten(also)}")
    compare = f"perfdag compare {left.run_before} {gate.run} --store {shlex.quote(gate.store)}"
    lines += [f"do      {gate.report}   {compare}", gate.accept(worst.name, left.run)]
    keys = [line.info.series_id for line in group]
    return Alert("worse", title, "\n".join(lines), keys, left.run)


def recovered_alerts(
    gate: GateResult, series: Iterable[Series], previous: Record | None
) -> list[Alert]:
    """Return an alert for each benchmark whose series the run before reported and that are good."""
    reported = {
        key
        for alert in (previous.alerts if previous else [])
        if alert.kind == "worse"
        for key in alert.keys
    }
    groups: dict[str, list[Series]] = {}
    for line in series:
        if line.info.series_id in reported and line.answer.word in ("same", "better"):
            groups.setdefault(line.info.benchmark, []).append(line)
    alerts = []
    for group in groups.values():
        run = group[0].steps[-1].run if group[0].steps else ""
        title = f"RECOVERED {gate.suite}/{group[0].name}: {group[0].answer.text}"
        names = shorten("; ".join(line.name for line in group))
        text = f"{title}\nwhere   {names}\nsince   {day_of(run)}\ndo      {gate.report}"
        keys = [line.info.series_id for line in group]
        alerts.append(Alert("recovered", title, text, keys, run, gates=False))
    return alerts


WEBHOOK_TIMEOUT = 10.0  # seconds


def junit(gate: GateResult) -> bytes:
    """Return the gate as JUnit XML, with one case per check.

    A failed check is a failure, absent data an error. An unclear answer and a skipped entry are
    skipped.
    Format: https://github.com/testmoapp/junitxml, which CI systems read.
    """
    counts = Counter(case.state for case in gate.cases)
    root = ElementTree.Element("testsuites", name="perfdag")
    suite = ElementTree.SubElement(
        root,
        "testsuite",
        name=f"perfdag.{gate.suite}",
        tests=str(len(gate.cases)),
        failures=str(counts["failed"]),
        errors=str(counts["absent"]),
        skipped=str(counts["unsure"] + counts["skipped"]),
    )
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in (("run", gate.run), ("report", gate.report)):
        ElementTree.SubElement(properties, "property", name=name, value=value)
    tags = {"failed": "failure", "absent": "error", "unsure": "skipped", "skipped": "skipped"}
    for result in gate.cases:
        case = ElementTree.SubElement(
            suite, "testcase", classname=f"{gate.suite}.{result.group}", name=_xml_text(result.name)
        )
        if result.state in tags:
            ElementTree.SubElement(case, tags[result.state], message=_xml_text(result.text))
        else:
            ElementTree.SubElement(case, "system-out").text = _xml_text(result.text)
    ElementTree.indent(root)
    document: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return document


def _xml_text(text: str) -> str:
    """Replace characters that XML 1.0 forbids, such as terminal codes in the error of a tool."""
    return re.sub("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)


STATES: dict[State, str] = {
    "ok": "ok",
    "failed": "failed",
    "absent": "without data",
    "unsure": "unclear",
    "skipped": "skipped",
}
"""The states of checks, as a gate counts them."""
MOST_LINES = 10
"""Series that a gate names; the report has all of them."""


def gate_lines(gate: GateResult) -> list[str]:
    """Return a gate as text: alerts, checks that fail, answers, counts."""
    lines = []
    for alert in gate.alerts:
        lines += [alert.text, *([] if alert.fresh else ["        (reported before)"]), ""]
    lines += [
        f"{result.state:8}{result.group}: {result.name}: {result.text}"
        for result in gate.cases
        if result.state in ("failed", "absent") and result.group != "change"
    ]
    if gate.runs == 1:
        lines.append("answer  first run: there is none before it to compare with")
    elif gate.series:
        history = plural(gate.runs, "run")
        lines.append(f"answer  {gate.word}: {gate.counted} ({history} of history)")
    if gate.runs > 1:
        lines += answer_lines(gate, alerted={key for alert in gate.alerts for key in alert.keys})
    lines += [f"damaged, left out: {key}" for key in gate.damaged]
    # The answers about series are counted above.
    states = Counter(case.state for case in gate.cases if case.group != "change")
    count = ", ".join(f"{states[state]} {text}" for state, text in STATES.items() if states[state])
    lines.append(f"checks  {count or 'none: the suite has no threshold, and no point is absent'}")
    lines.append(f"gate {'FAILED' if gate.failed else 'passed'}  {gate.suite}  {gate.run}")
    return lines


def answer_lines(gate: GateResult, alerted: Container[str] = ()) -> list[str]:
    """Return a line for each headline series of a run with history that is not as before.

    Series whose ids are in `alerted` are left out.
    """
    lines = [
        f"  {line.name}: {line.answer.text}"
        for line in sorted(gate.headlines, key=lambda line: RANK.index(line.answer.word))
        if line.answer.word != "same" and line.info.series_id not in alerted
    ][:MOST_LINES]
    if gate.rechecks:
        lines.append(f"measured again right after it: {', '.join(gate.rechecks)}")
    return lines


def markdown(gate: GateResult) -> str:
    """Return the gate as Markdown: its result, a link to the report, and its text."""
    head = f"## {gate.suite}: gate {'FAILED' if gate.failed else 'passed'}"
    return "\n".join([head, "", f"[report]({gate.report})", "", "```", *gate_lines(gate), "```"])


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown."""

    def line(cells: Sequence[str]) -> str:
        texts = (cell.replace("|", "\\|").replace("\n", " ") for cell in cells)
        return f"| {' | '.join(texts)} |"

    return [line(headings), "|" + "---|" * len(headings), *map(line, rows)]


def send(gate: GateResult) -> bool:
    """Post the alerts of a gate that were not sent yet. Return whether the webhook took them.

    The URL of the webhook is in the variable PERFDAG_WEBHOOK; without it nothing is sent.
    Each cause is one message, and chat systems show its `text`. Its `page` is false where the alert
    does not fail the gate, so that a receiver can route it elsewhere. The reason of a failure is
    logged without the path of the address, which is often a secret.
    """
    if not (url := os.environ.get("PERFDAG_WEBHOOK", "").strip()):
        return True
    reason = ": an http:// or https:// address is needed"
    try:
        if url.startswith(("http://", "https://")):
            for alert in gate.alerts:
                if not alert.sent:
                    _post(url, gate, alert)
                    alert.sent = True
            return True
    except http.client.InvalidURL:  # its text quotes the address
        reason = f" {_host(url)}: the address is invalid"
    except (http.client.HTTPException, OSError, ValueError) as error:  # URLError is an OSError
        reason = f" {_host(url)}: {getattr(error, 'reason', error)}; the next check sends it again"
    logger.warning(f"perfdag check: webhook{reason}")
    return False


def _post(url: str, gate: GateResult, alert: Alert) -> None:
    message = {
        "text": f"```\n{alert.text}\n```",
        "title": alert.title,
        "kind": alert.kind,
        "page": alert.gates,
        "suite": gate.suite,
        "run_id": gate.run,
        "since": alert.run,
        "keys": alert.keys,
    }
    kind = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, orjson.dumps(message), kind, method="POST")
    with urllib.request.urlopen(request, timeout=WEBHOOK_TIMEOUT):
        pass


def _host(url: str) -> str:
    """Return scheme and host of a webhook. The rest is often a secret and must not reach logs."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{re.split('[/?#]', rest, maxsplit=1)[0].rpartition('@')[2]}"
