"""Who hears of a gate: its text, Markdown, JUnit XML, and the messages of a webhook."""

import http.client
import logging
import os
import re
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Container, Iterable, Sequence

import orjson

from perfdag.analysis.alerts import store_record
from perfdag.analysis.gate_result import Alert, GateResult, State
from perfdag.analysis.verdict import NOT_JUDGED, RANK
from perfdag.store.base import Store
from perfdag.units import NEVER_ALERTS, plural

logger = logging.getLogger(__name__)


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
    series of which nothing can be said, unless that fails the gate.
    Format: https://github.com/testmoapp/junitxml, which CI systems read.
    """
    tags = [_TAGS.get(case.state, "") for case in gate.cases]
    if gate.unclear_fails:
        tags = [
            "failure" if case in gate.unclear else tag
            for case, tag in zip(gate.cases, tags, strict=True)
        ]
    counts = Counter(tags)
    root = ElementTree.Element("testsuites", name="perfdag")
    suite = ElementTree.SubElement(
        root,
        "testsuite",
        name=f"perfdag.{gate.suite}",
        tests=str(len(gate.cases)),
        failures=str(counts["failure"]),
        errors=str(counts["error"]),
        skipped=str(counts["skipped"]),
    )
    properties = ElementTree.SubElement(suite, "properties")
    about = {
        "run": gate.run,
        "revision": gate.revision,
        "report": gate.report,
        "headlines": gate.counted,
    }
    for name, value in about.items():
        ElementTree.SubElement(properties, "property", name=name, value=value)
    for result, tag in zip(gate.cases, tags, strict=True):
        case = ElementTree.SubElement(
            suite, "testcase", classname=f"{gate.suite}.{result.group}", name=_xml_text(result.name)
        )
        if tag:
            ElementTree.SubElement(case, tag, message=_xml_text(result.text))
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


MOST_NAMES = 5
"""Series without a direction, or worse already, that a gate names in a line."""
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
        if result.state in ("failed", "absent") and result.group not in ("change", "slow")
    ]
    slow = [case for case in gate.cases if case.group == "slow" and case.state == "unsure"]
    lines += [f"slow    {case.name}: {case.text}" for case in slow]
    if gate.runs == 1:
        lines.append("answer  first run: there is none before it to compare with")
    elif gate.series:
        history = plural(gate.runs, "run")
        word = f"{gate.word}: " if "," in gate.counted else ""  # one count says the word itself
        lines.append(f"answer  {word}{gate.counted} ({history} of history)")
    if gate.runs > 1:
        lines += answer_lines(gate, alerted={key for alert in gate.alerts for key in alert.keys})
    if gate.of_base:
        more = f" and {len(gate.of_base) - MOST_NAMES} more" if gate.of_base[MOST_NAMES:] else ""
        named = "; ".join(gate.of_base[:MOST_NAMES])
        lines.append(f"base    worse already, which fails nothing here: {named}{more}")
    lines += [f"damaged, left out: {key}" for key in gate.damaged]
    aimless = [line.name for line in gate.headlines if line.info.better not in ("higher", "lower")]
    if aimless:
        more = f" and {len(aimless) - MOST_NAMES} more" if len(aimless) > MOST_NAMES else ""
        lines.append(f"note    {'; '.join(aimless[:MOST_NAMES])}{more}: {NEVER_ALERTS}")
    # The answers about series are counted above.
    states = Counter(case.state for case in gate.cases if case.group != "change")
    count = ", ".join(f"{states[state]} {text}" for state, text in STATES.items() if states[state])
    lines.append(f"checks  {count or 'none: the suite has no threshold, and no point is absent'}")
    revision = f"  revision {gate.revision}" if gate.revision else ""
    blind = sum(line.answer.word == "unclear" for line in gate.headlines)
    if blind and gate.runs > 1:
        of = plural(len(gate.headlines), "headline")
        revision += f"  ({blind} of {of} {NOT_JUDGED})"
    lines.append(f"gate {gate.verdict}  {gate.suite}  {gate.run}{revision}")
    return lines


def answer_lines(gate: GateResult, alerted: Container[str] = ()) -> list[str]:
    """Return a line for each headline series of a run with history that is not as before.

    Series whose ids are in `alerted` are left out.
    """
    lines = [
        f"  {line.name}: {line.text}"
        for line in sorted(gate.headlines, key=lambda line: RANK.index(line.answer.word))
        if line.answer.word != "same" and line.info.series_id not in alerted
    ][:MOST_LINES]
    if gate.rechecks:
        lines.append(f"measured again right after it: {', '.join(gate.rechecks)}")
    return lines


def markdown(gate: GateResult) -> str:
    """Return the gate as Markdown: its result, a link to the report, and its text."""
    head = f"## {gate.suite}: gate {gate.verdict}"
    return "\n".join([head, "", f"[report]({gate.report})", "", "```", *gate_lines(gate), "```"])


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown."""

    def line(cells: Sequence[str]) -> str:
        texts = (cell.replace("|", "\\|").replace("\n", " ") for cell in cells)
        return f"| {' | '.join(texts)} |"

    return [line(headings), "|" + "---|" * len(headings), *map(line, rows)]


def publish(store: Store, gate: GateResult) -> bool:
    """Send the alerts of a gate and record which were sent. Return whether the webhook took them.

    Raises StoreError.
    """
    reached = send(gate)
    store_record(store, gate)
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
