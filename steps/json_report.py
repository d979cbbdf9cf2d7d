"""The JSON report of a tool, behind the lines of text that may precede it."""

import json
import re
from collections.abc import Mapping
from typing import Any

from perfdag.outcome import Failed


def read_report(tool: str, text: str, texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON object that begins a line of `text`. Raises Failed, with `texts`."""
    start = re.search(r"^\{", text, re.M)
    try:
        report: dict[str, Any]
        report, _ = json.JSONDecoder().raw_decode(text, start.start() if start else len(text))
    except ValueError as error:
        raise Failed(
            f"{tool} printed no JSON ({error}): {text[-200:].strip() or 'nothing at all'}", texts
        ) from error
    return report
