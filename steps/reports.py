"""What parsers of several benchmarks share: a JSON report between text, and durations in bins."""

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from perfdag.outcome import Failed, Measurement

_START = re.compile(r"(?:\A\ufeff?\s*|^)([{\[])", re.M)
_END = re.compile(r"[^\S\n]*$", re.M)


def read_report(tool: str, text: str) -> Any:
    """Return the JSON object, or the list, that has whole lines of `text` for itself.

    A line such as `[WARN] ...` is text. Raises Failed where no report is whole, and where there are
    several.
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
    raise Failed(f"{tool} printed no JSON ({problem}): {text[-200:].strip() or 'nothing at all'}")


def bins(metric: str, coordinate: str, durations: Sequence[float], limit: int) -> list[Measurement]:
    """Return the mean of `durations` (s) in at most `limit` bins, in their order.

    They show drift and outliers that a total hides. The coordinate is the number of the last value
    of a bin, from 1.
    """
    count = min(limit, len(durations))
    bounds = [len(durations) * number // count for number in range(count + 1)] if count else []
    return [
        Measurement(metric, sum(durations[a:b]) / (b - a), "mean", {coordinate: b}, n=b - a)
        for a, b in pairwise(bounds)
    ]
