"""The JSON report of a tool, between the lines of text that it may print around it."""

import json
import re
from collections.abc import Mapping
from typing import Any

from perfdag.outcome import Failed

_START = re.compile(r"(?:\A\ufeff?\s*|^)([{\[])", re.M)
_END = re.compile(r"[^\S\n]*$", re.M)


def read_report(tool: str, text: str, texts: Mapping[str, str]) -> Any:
    """Return the JSON object, or the list, that has whole lines of `text` for itself.

    A line such as `[WARN] ...` is text. Raises Failed, with `texts`, where no report is whole, and
    where there are several.
    """
    reports, problem, at = [], "no { or [ begins a line", 0
    while start := _START.search(text, at):
        at = start.end()
        try:
            report, end = json.JSONDecoder().raw_decode(text, start.start(1))
            whole = _END.match(text, end)
            problem = "text follows it on its line"
        except (ValueError, RecursionError) as error:
            whole, problem = None, str(error)
        if whole:
            reports.append(report)
            at = end
        elif start[1] == "{":  # what is behind its cut or garbled part may look like a report
            break
    else:
        if len(reports) == 1:
            return reports[0]
        problem = f"{len(reports)} reports, and not one" if reports else problem
    raise Failed(
        f"{tool} printed no JSON ({problem}): {text[-200:].strip() or 'nothing at all'}", texts
    )
