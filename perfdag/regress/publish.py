"""A gate for other programs: JUnit XML for CI, Markdown for pull requests, JSON for a webhook."""

import http.client
import re
import urllib.error
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from perfdag.regress.alert_records import Alert
from perfdag.regress.result import GateResult, worst

WEBHOOK_TIMEOUT = 10.0  # seconds


class WebhookError(Exception):
    """The webhook did not accept a message. The text is the reason."""


def junit(gate: GateResult) -> bytes:
    """Return the gate as JUnit XML, with one case per check.

    A failed check is a failure, absent data an error. An unclear answer and a skipped entry are
    skipped.
    Format: https://github.com/testmoapp/junitxml, which CI systems read.
    """
    counts = {
        state: sum(result.state == state for result in gate.cases)
        for state in ("ok", "failed", "absent", "unsure", "skipped")
    }
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
    return "".join(
        c
        if c in "\t\n\r" or " " <= c <= "\ud7ff" or "\ue000" <= c <= "\ufffd" or c > "\uffff"
        else "?"
        for c in text
    )


def markdown(gate: GateResult) -> str:
    """Return the gate as Markdown: alerts, then failed checks, then counts."""
    head = "FAILED" if gate.failed else "passed"
    lines = [
        f"## {gate.suite}: gate {head}",
        "",
        f"run `{gate.run}`, runs of history: {gate.runs}, [report]({gate.report})",
        "",
    ]
    for alert in worst(gate.alerts):
        known = "" if alert.fresh else " (reported before)"
        lines += [f"**{alert.title}**{known}", "", "```", gate.message(alert), "```", ""]
    bad = [result for result in gate.cases if result.state in ("failed", "absent")]
    if bad:
        rows = [(case.group, case.name, f"{case.state}: {case.text}") for case in bad]
        lines += [*markdown_table(("check", "series", "state"), rows), ""]
    lines.append(counts(gate))
    if gate.suspects:
        names = ", ".join(line.name for line in gate.suspects)
        lines.append(f"not decided, worth measuring again: {names}")
    if gate.rechecks:
        lines.append(f"measured again right after it: {', '.join(gate.rechecks)}")
    if gate.damaged:
        lines.append(f"damaged, left out: {', '.join(gate.damaged)}")
    return "\n".join(lines)


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown."""

    def line(cells: Sequence[str]) -> str:
        texts = (cell.replace("|", "\\|").replace("\n", " ") for cell in cells)
        return f"| {' | '.join(texts)} |"

    return [line(headings), "|" + "---|" * len(headings), *map(line, rows)]


def counts(gate: GateResult) -> str:
    """Return the number of checks by state, such as `41 ok, 1 failed, 3 skipped`."""
    labels = {
        "ok": "ok",
        "failed": "failed",
        "absent": "without data",
        "unsure": "undecided",
        "skipped": "skipped",
    }
    parts = [
        f"{n} {text}"
        for state, text in labels.items()
        if (n := sum(result.state == state for result in gate.cases))
    ]
    return ", ".join(parts) or "nothing to check"


def send(url: str, gate: GateResult, alerts: Sequence[Alert]) -> None:
    """Post the alerts that were not sent yet and mark them sent. Raises WebhookError.

    Each cause is one message. Its `page` is false where the alert does not fail the gate, so that a
    receiver can route it elsewhere.
    """
    if not url.startswith(("http://", "https://")):
        raise WebhookError("webhook: an http:// or https:// address is needed")
    for alert in alerts:
        if alert.sent:
            continue
        request = urllib.request.Request(
            url,
            data=orjson.dumps(_body(gate, alert)),
            headers={"Content-Type": "application/json"},
            method="POST",
        )
        try:
            with urllib.request.urlopen(request, timeout=WEBHOOK_TIMEOUT):
                alert.sent = True
        except http.client.InvalidURL:  # its text quotes the address
            raise WebhookError(f"webhook {_host(url)}: the address is invalid") from None
        except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise WebhookError(
                f"webhook {_host(url)}: {reason}; the next check sends it again"
            ) from None


def _body(gate: GateResult, alert: Alert) -> dict[str, Any]:
    """Return an alert for a webhook. Chat systems show its `text`."""
    return {
        "text": f"```\n{gate.message(alert)}\n```",
        "title": alert.title,
        "kind": alert.kind,
        "page": alert.gates,
        "suite": gate.suite,
        "run_id": gate.run,
        "since": alert.run,
        "keys": alert.keys,
    }


def _host(url: str) -> str:
    """Return scheme and host of a webhook. The rest is often a secret and must not reach logs."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{re.split('[/?#]', rest, maxsplit=1)[0].rpartition('@')[2]}"
