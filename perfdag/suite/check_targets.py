"""Checks that no metric of a suite can match."""

import fnmatch
from collections.abc import Iterator, Mapping, Sequence

from perfdag.benchmark.contract import Metric
from perfdag.suite.checks import Check
from perfdag.suite.yaml_document import nearest


def misaimed(
    checks: Sequence[Check], entries: Mapping[str, Sequence[Metric]]
) -> Iterator[tuple[int, str, str]]:
    """Yield (index, field, error) for each check that no metric can match.

    `entries` maps the name of an entry to its metrics.
    """
    for index, check in enumerate(checks):
        named = [entry for entry in entries if fnmatch.fnmatchcase(entry, check.entry or "*")]
        if not named:
            yield (
                index,
                "entry",
                f"no entry matches {check.entry!r}; "
                f"there are {', '.join(entries)}{nearest(check.entry, entries)}",
            )
            continue
        known = {metric.name: None for entry in named for metric in entries[entry]}
        targets = [
            (entry, metric)
            for entry in named
            for metric in entries[entry]
            if fnmatch.fnmatchcase(metric.name, check.metric)
        ]
        if not targets:
            of = f"entry {check.entry}" if check.entry else "the entries"
            yield (
                index,
                "metric",
                f"no metric of {of} matches {check.metric!r}; "
                f"there are {', '.join(known)}{nearest(check.metric, known)}",
            )
        unit = check.value.unit if check.value is not None else ""
        other = next(
            ((entry, metric) for entry, metric in targets if unit and metric.unit != unit), None
        )
        if other is not None:
            entry, metric = other
            yield (
                index,
                "value",
                f"is in {unit}, and {metric.name} of {entry} is in {metric.unit}; "
                f"write it in {metric.unit} or as a bare number",
            )
