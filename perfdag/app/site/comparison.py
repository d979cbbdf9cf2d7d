"""The verdicts of one run against another, as a file of the site."""

from typing import Any

from perfdag.regress.acks import read_checks
from perfdag.regress.comparison import Comparison, Row, compare_selections, count
from perfdag.regress.selection import Selection
from perfdag.regress.tuning import Tuning
from perfdag.regress.verdict import percent
from perfdag.store.base import Store


def path(before: str, after: str) -> str:
    """Return the path of the file below the folder of a suite."""
    return f"compare/{after}/{before}.js"


def verdicts(store: Store, suite: str, before: str, after: str) -> dict[str, Any]:
    """Return the verdict of each headline series, and each that shows something, by series id.

    `same` has the ids of the other series that were compared. Raises SelectionError, StoreError.
    """
    sides = [(store, Selection(run, suite, (run,))) for run in (before, after)]
    comparison = compare_selections(sides[0], sides[1], Tuning(read_checks(store, after)))
    return {
        "count": count(comparison.rows),
        "missing": _missing(comparison),
        "series": {row.info.series_id: _row(row) for row in comparison.rows if _shown(row)},
        "same": [row.info.series_id for row in comparison.rows if not _shown(row)],
    }


def _missing(comparison: Comparison) -> list[str]:
    """Return what was not compared, each with its reason."""
    kinds = {
        "only in A": comparison.only_a,
        "only in B": comparison.only_b,
        "failed": comparison.failed,
        "refused": comparison.refused,
    }
    return [f"{kind}: {line}" for kind, lines in kinds.items() for line in lines[:20]]


def _shown(row: Row) -> bool:
    return row.info.headline or row.answer.word != "same"


def _row(row: Row) -> list[str]:
    """Return word, text, effect and noise of an answer."""
    answer = row.answer
    noise = percent(answer.noise, answer.absolute, sign=False)
    return [answer.word, answer.text, answer.size, noise]
