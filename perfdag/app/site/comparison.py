"""The verdicts of one run against another, as a file of the site."""

from typing import Any

from perfdag.analysis.compare import Comparison, Row, compare_selections, count
from perfdag.analysis.gate import read_checks
from perfdag.analysis.selection import Selection
from perfdag.analysis.verdict import Tuning, percent
from perfdag.store.base import Store


def path(before: str, after: str) -> str:
    """Return the path of the file below the folder of a suite."""
    return f"compare/{after}/{before}.js"


def verdicts(store: Store, suite: str, before: str, after: str) -> dict[str, Any]:
    """Return the verdict of each headline series, and each that shows something, by series id.

    `same` has the ids of the other series that were compared, `paired` the ids in A of those that
    have another id in B, and `missing` the number and first names of those not compared.
    Raises SelectionError, StoreError.
    """
    sides = [(store, Selection(run, suite, (run,))) for run in (before, after)]
    comparison = compare_selections(sides[0], sides[1], Tuning(read_checks(store, after)))
    return {
        "count": count(comparison.rows),
        "parameters": comparison.parameters,
        "missing": _missing(comparison),
        "series": {row.info.series_id: _row(row) for row in comparison.rows if _shown(row)},
        "paired": {
            row.info.series_id: row.series_a
            for row in comparison.rows
            if row.series_a != row.info.series_id
        },
        "same": [row.info.series_id for row in comparison.rows if not _shown(row)],
    }


def _missing(comparison: Comparison) -> dict[str, tuple[int, list[str]]]:
    """Return what was not compared by reason: its number and first names."""
    kinds = {
        "only in A": comparison.only_a,
        "only in B": comparison.only_b,
        "failed": comparison.failed,
        "refused": comparison.refused,
    }
    return {kind: (len(lines), lines[:20]) for kind, lines in kinds.items() if lines}


def _shown(row: Row) -> bool:
    return row.info.headline or row.answer.word != "same"


def _row(row: Row) -> list[str]:
    """Return word, text, effect and noise of an answer."""
    answer = row.answer
    noise = percent(answer.noise, answer.absolute, sign=False)
    return [answer.word, answer.text, answer.size, noise]
