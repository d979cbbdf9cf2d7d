"""The alerts of a gate and who hears of them: a text, Markdown, JUnit XML, and a webhook.

Beside them stand the records of what was told of each run.
"""

import http.client
import itertools
import math
import os
import re
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote

import orjson

from perfdag.analysis.gate_result import Alert, CheckResult, GateResult, Kind, State
from perfdag.analysis.history import Series, Step
from perfdag.analysis.verdict import NOT_JUDGED, RANK, percent
from perfdag.identity import grouped
from perfdag.redaction import logger
from perfdag.results.labels import shorten
from perfdag.results.run_store import day_of, report_key
from perfdag.store.base import Store
from perfdag.units import NEVER_ALERTS, plural, short, spark


@dataclass
class AlertRecord:
    """The alerts of one run, as stored under alerts/. `failed`: its gate failed.

    `store` is the address that the store had for the check, as the messages name it.
    """

    run: str
    store: str
    alerts: list[Alert]
    failed: bool


def mark_known(alerts: Sequence[Alert], records: Sequence[AlertRecord]) -> None:
    """Mark the alerts that the run before, or an earlier check of this run, had already."""
    earlier = list(itertools.chain.from_iterable(record.alerts for record in records))
    for alert in alerts:
        alike = [alert_before for alert_before in earlier if alert_before.kind == alert.kind]
        reported = set[str]().union(*(alert_before.keys for alert_before in alike))
        sent = set[str]().union(*(alert_before.keys for alert_before in alike if alert_before.sent))
        # One more series of a cause makes a known alert fresh.
        alert.fresh = not set(alert.keys) <= reported
        alert.sent = set(alert.keys) <= sent


def read_records(store: Store, suite: str) -> dict[str, AlertRecord]:
    """Return the newest records by run id, oldest first. Raises StoreError.

    At most 120. A damaged record counts as none.
    """
    keys = [key for key in store.list(f"alerts/{suite}") if key.endswith(".json")][-120:]
    records = {}
    for _, data in store.get_many(keys):
        try:
            raw = orjson.loads(data)
            alerts = [Alert(**alert) for alert in raw["alerts"]]
            records[raw["run"]] = AlertRecord(raw["run"], raw["store"], alerts, raw["failed"])
        except (ValueError, KeyError, TypeError):
            continue
    return records


POINTS = "points"
"""The second part of the cause of points without a value."""


_KINDS: dict[str, Kind] = {
    "present": "absent",
    "verdict": "verdict",
    "threshold": "threshold",
    "slow": "slow",
}


def case_alerts(gate: GateResult) -> list[Alert]:
    """Return an alert for each cause of cases that fail. It names the first six."""
    causes = grouped(gate.broken, lambda case: (case.group, *(case.cause or ("", ""))))
    alerts = []
    for (group, entry, detail), cases in causes.items():
        kind = _KINDS[group]
        count = len(cases)
        about = f"{entry}: {count} series"
        if detail == POINTS:
            about = f"{entry}: {plural(count, 'point')} without a value"
        elif kind == "verdict":
            about = f"{entry}: {count} of its own verdicts failed"
        elif kind in ("threshold", "slow") and count == 1:
            about = cases[0].title
        elif kind == "slow":
            about = f"{cases[0].title} and {count - 1} more"
        lines = [f"{kind.upper()} {gate.suite}/{about}"]
        lines += [f"what    {case.title}: {case.text}"[:308] for case in cases[:6]]
        lines += [f"what    and {count - 6} more"] if count > 6 else []
        lines += [f"rule    {detail}"] if kind in ("threshold", "slow") else []
        lines += [f"do      {gate.report}", gate.accept(cases[0].label, gate.run)]
        keys = [case.key for case in cases]
        alerts.append(Alert(kind, lines[0], "\n".join(lines), keys, gate.run))
    return alerts


def worse_alerts(gate: GateResult, series: Iterable[Series]) -> list[Alert]:
    """Return an alert for each benchmark and step of which `series` are worse."""
    worse = [
        (line, line.worsening) for line in series if line.verdict.kind == "worse" and line.worsening
    ]
    groups = grouped(worse, lambda pair: (pair[0].info.benchmark, pair[1].decided))
    return [_worse(gate, group) for group in groups.values()]


def _worse(gate: GateResult, group: Sequence[tuple[Series, Step]]) -> Alert:
    """Return the alert of series that one run showed to be worse, each with the step of it."""
    worst, step = max(group, key=lambda pair: abs(pair[0].verdict.effect or 0))
    info = worst.info
    verdict = worst.verdict
    title = f"WORSE {gate.suite}/{worst.label} {verdict.text.removeprefix('worse ')}"
    wish = f" ({info.better} is better)" if info.better in ("higher", "lower") else ""
    noise = percent(verdict.noise, verdict.unit, sign=False)
    before, value = (short(v, info.display_unit) for v in (verdict.before, verdict.value))
    lines = [
        title,
        f"level   {before} -> {value}{wish}, noise of a run {noise}",
        f"since   {step.since}",
        f"{worst.newest_text.replace('newest ', 'newest  ')} against the good level",
        f"changed {step.changed}",
        *gate.slower_machine,
    ]
    if step.changes.bisect:
        lines.append(f"bisect  {step.changes.bisect}")
    also = "; ".join(f"{line.label} {line.verdict.size}" for line, _ in group if line is not worst)
    if also:
        lines.append(f"also    {shorten(also)}")
    compare = gate.compare(step.run_before)
    lines += [f"do      {gate.report}   {compare}", gate.accept(worst.name, step.run)]
    keys = [line.info.series_id for line, _ in group]
    return Alert("worse", title, "\n".join(lines), keys, step.run)


def recovered_alerts(
    gate: GateResult, series: Iterable[Series], previous: AlertRecord | None
) -> list[Alert]:
    """Return an alert for each benchmark whose series the run before reported and that are good."""
    earlier = previous.alerts if previous else []
    reported = {key for alert in earlier if alert.kind == "worse" for key in alert.keys}
    recovered = [
        line
        for line in series
        if line.info.series_id in reported and line.verdict.kind in ("same", "better")
    ]
    alerts = []
    for group in grouped(recovered, lambda line: line.info.benchmark).values():
        run = group[0].steps[-1].run if group[0].steps else ""
        title = f"RECOVERED {gate.suite}/{group[0].label}: {group[0].verdict.text}"
        names = shorten("; ".join(line.label for line in group))
        text = f"{title}\nwhere   {names}\nsince   {day_of(run)}\ndo      {gate.report}"
        alerts.append(
            Alert(
                "recovered",
                title,
                text,
                keys=[line.info.series_id for line in group],
                run=run,
                gates=False,
            )
        )
    return alerts


WEBHOOK_TIMEOUT = 10.0  # seconds
_TAGS: dict[State, str] = {
    "failed": "failure",
    "absent": "error",
    "unsure": "skipped",
    "skipped": "skipped",
}
"""The elements of JUnit XML for the states of checks, but for those that pass."""


def junit(gate: GateResult) -> bytes:
    """Return the gate as JUnit XML, with one case per check.

    A failed check is a failure, absent data an error. A skipped entry is skipped, and so is a
    series of which nothing can be said, unless that fails the gate. A failure has its alert.
    """
    cases = gate.cases
    if gate.unclear_fails:
        cases = [replace(case, state="failed") if case in gate.unclear else case for case in cases]
    about = {
        "run": gate.run,
        "revision": gate.revision,
        "report": gate.report,
        "headlines": gate.counted,
    }
    texts = {key: alert.text for alert in gate.alerts for key in alert.keys}
    return junit_document(gate.suite, about, cases, texts)


def junit_document(
    name: str,
    about: Mapping[str, str],
    cases: Sequence[CheckResult],
    texts: Mapping[str, str] | None = None,
) -> bytes:
    """Return cases as JUnit XML, with properties. `texts` has longer texts by the keys of cases.

    Format: https://github.com/testmoapp/junitxml, which CI systems read.
    """
    counts = Counter(_TAGS.get(case.state) for case in cases)
    root = ElementTree.Element("testsuites", name="perfdag")
    suite = ElementTree.SubElement(
        root,
        "testsuite",
        name=f"perfdag.{name}",
        tests=str(len(cases)),
        failures=str(counts["failure"]),
        errors=str(counts["error"]),
        skipped=str(counts["skipped"]),
    )
    properties = ElementTree.SubElement(suite, "properties")
    for key, value in about.items():
        ElementTree.SubElement(properties, "property", name=key, value=_xml_text(value))
    for case in cases:
        test = ElementTree.SubElement(
            suite, "testcase", classname=f"{name}.{case.group}", name=_xml_text(case.heading)
        )
        tag = _TAGS.get(case.state)
        result = ElementTree.SubElement(test, tag or "system-out")
        if tag:
            result.set("message", _xml_text(case.text))
        result.text = _xml_text((texts or {}).get(case.key, case.text))
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


MOST_NAMES = 5
"""Series without a direction, or worse already, that a gate names in a line."""
MOST_LINES = 10
"""Series that a gate names; the report has all of them."""


def gate_lines(gate: GateResult) -> list[str]:
    """Return a gate as text: alerts, checks that fail, verdicts, counts."""
    lines = []
    for alert in gate.alerts:
        lines += [alert.text, *([] if alert.fresh else ["        (reported before)"]), ""]
    lines += [
        f"{result.state:8}{result.group}: {result.heading}: {result.text}"
        for result in gate.cases
        if result.state in ("failed", "absent") and result.group not in ("change", "slow")
    ]
    lines += [f"slow    {case.title}: {case.text}" for case in gate.slow]
    lines += _series_lines(gate)
    # The verdicts on series are counted above.
    states = Counter(case.state for case in gate.cases if case.group != "change")
    count = ", ".join(f"{states[state]} {text}" for state, text in STATES.items() if states[state])
    lines.append(f"checks  {count or 'none: the suite has no threshold, and no point is absent'}")
    revision = f"  revision {gate.revision}" if gate.revision else ""
    blind = sum(line.verdict.kind == "unclear" for line in gate.headlines)
    if blind and gate.runs > 1:
        of = plural(len(gate.headlines), "headline")
        revision += f"  ({blind} of {of} {NOT_JUDGED})"
    lines.append(f"gate {gate.decision}  {gate.suite}  {gate.run}{revision}")
    return lines


def _series_lines(gate: GateResult) -> Iterator[str]:
    """Yield what is said of the series of a run: verdicts, what the base had, and what none has."""
    if gate.runs == 1:
        yield "verdict first run: there is none before it to compare with"
    elif gate.series:
        history = plural(gate.runs, "run")
        verdict = f"{gate.verdict}: " if "," in gate.counted else ""  # one count says it itself
        yield f"verdict {verdict}{gate.counted} ({history} of history)"
    if gate.runs > 1:
        yield from verdict_lines(gate, {key for alert in gate.alerts for key in alert.keys})
    if gate.of_base:
        yield f"base    worse already, which fails nothing here: {_first_names(gate.of_base)}"
    for key in gate.damaged:
        yield f"damaged, left out: {key}"
    aimless = [line.label for line in gate.headlines if line.info.better not in ("higher", "lower")]
    if aimless:
        yield f"note    {_first_names(aimless)}: {NEVER_ALERTS}"


def _first_names(names: Sequence[str]) -> str:
    """Return the first names of many, and how many more there are."""
    text = "; ".join(names[:MOST_NAMES])
    return f"{text} and {len(names) - MOST_NAMES} more" if names[MOST_NAMES:] else text


def verdict_lines(gate: GateResult, alerted: Container[str] = ()) -> list[str]:
    """Return a line for each headline series of a run with history that is not as before.

    Series whose ids are in `alerted` are left out.
    """
    lines = [
        f"  {line.label}: {line.text}"
        for line in sorted(gate.headlines, key=lambda line: RANK.index(line.verdict.kind))
        if line.verdict.kind != "same" and line.info.series_id not in alerted
    ][:MOST_LINES]
    if gate.rechecks:
        lines.append(f"measured again right after it: {', '.join(gate.rechecks)}")
    return lines


def markdown(gate: GateResult) -> str:
    """Return the gate as Markdown for a pull request.

    Its heading names the first check that fails, or a slow node. Below it stand the values of the
    headlines and what else fails. The whole text is folded.
    """
    counts = gate.counted if gate.runs > 1 else "first run"
    claims = [f"{case.title}: {case.text}" for case in (*gate.broken, *gate.slow)]
    remark = f"{claims[0]} ({counts})" if claims else counts
    head = f"### {gate.suite}: gate {gate.decision}: {remark}"
    if gate.report.startswith("http"):
        site = gate.report.removesuffix(report_key(gate.run))
        history = f"{site}site/history.html?suite={quote(gate.suite)}"
        head += f" · [report]({gate.report}) · [history]({history})"
    broken = {case.label for case in gate.broken}
    series = sorted(
        gate.headlines, key=lambda line: (line.name not in broken, RANK.index(line.verdict.kind))
    )
    lines = [
        head,
        "",
        *markdown_table(
            MARKDOWN,
            (_markdown_cells(line, line.name in broken) for line in series[:MOST_ROWS]),
        ),
        "",
    ]
    lines += [f"- {claim}" for claim in claims[1:MOST_LINES]]
    if more := len(claims[MOST_LINES:]):
        lines.append(f"- and {more} more checks")
    lines += [f"- {alert.title}" for alert in gate.alerts if not alert.gates]
    causes = [line.worsening.changed for line in series if line.worsening]
    lines += [f"- Changed with it: {cause}" for cause in causes[:1]]
    lines += ["", "<details><summary>What to do, and how to accept it</summary>", ""]
    return "\n".join([*lines, "```", *gate_lines(gate), "```", "</details>"])


MARKDOWN = ("", "series", "change", "before", "now", "sees from", "last 15")
MARKS = {"failed": "❌", "worse": "🔴", "better": "🟢", "unclear": "⚪", "same": "✅"}
MOST_ROWS = 30
"""Series of a pull request; the report has all of them."""


def _markdown_cells(line: Series, broken: bool) -> list[str]:
    """Return the cells of a series, as MARKDOWN names them. It may be `broken` by a check."""
    verdict = line.verdict
    unit = line.info.display_unit
    seen = percent(abs(verdict.seen), verdict.unit, sign=False)
    return [
        MARKS["failed" if broken else verdict.kind],
        line.label,
        percent(verdict.moved, verdict.unit),
        short(verdict.before, unit) if verdict.moved is not None else "-",  # of a first run
        f"**{short(verdict.newest, unit)}**" if math.isfinite(verdict.newest) else "-",
        f"{seen} (too noisy)" if verdict.noisy else seen,
        spark(line.value.tolist(), 15),
    ]


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown."""

    def line(cells: Sequence[str]) -> str:
        texts = (cell.replace("|", "\\|").replace("\n", " ") for cell in cells)
        return f"| {' | '.join(texts)} |"

    return [line(headings), "|" + "---|" * len(headings), *map(line, rows)]


def publish(store: Store, gate: GateResult) -> bool:
    """Send the alerts of a gate and record which were sent. Return whether the webhook took them.

    The record lets none be sent twice. Raises StoreError.
    """
    reached = send(gate)
    record = AlertRecord(gate.run, gate.store, gate.alerts, gate.failed)
    text = orjson.dumps(record, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
    store.put(f"alerts/{gate.suite}/{gate.run}.json", text)
    return reached


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
