"""Checks that no metric of a suite can match."""

import fnmatch
from collections.abc import Mapping, Sequence

from perfdag.benchmark.contract import Metric
from perfdag.suite.checks import Check
from perfdag.suite.yaml_document import choices


def unmatched_check(
    check: Check, entries: Mapping[str, Sequence[Metric]]
) -> tuple[str, str] | None:
    """Return (field, error) of a check that no metric can match, or None.

    `entries` maps the name of an entry to its metrics.
    """
    named = [entry for entry in entries if fnmatch.fnmatchcase(entry, check.entry or "*")]
    if not named:
        names = choices(check.entry, entries, "there are")
        return "entry", f"no entry matches {check.entry!r}{names}"
    targets = [
        (entry, metric)
        for entry in named
        for metric in entries[entry]
        if fnmatch.fnmatchcase(metric.name, check.metric)
    ]
    if not targets:
        of = f"entry {check.entry}" if check.entry else "the entries"
        known = list(dict.fromkeys(metric.name for entry in named for metric in entries[entry]))
        names = choices(check.metric, known, "there are")
        return "metric", f"no metric of {of} matches {check.metric!r}{names}"
    unit = check.value.unit if check.value is not None else ""
    for entry, metric in targets:
        if unit and metric.unit != unit:
            return "value", (
                f"is in {unit}, and {metric.name} of {entry} is in {metric.unit}; "
                f"write it in {metric.unit} or as a bare number"
            )
    return None
