"""Compare two runs or selections, as text, Markdown or plain data."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from perfdag.analysis.alerts import markdown_table
from perfdag.analysis.compare import Comparison, Row, compare_selections, count
from perfdag.analysis.gate import read_checks
from perfdag.analysis.selection import select
from perfdag.analysis.verdict import Tuning, percent
from perfdag.app.errors import CommandError
from perfdag.app.runs import explain_last
from perfdag.app.terminal.text_table import HIGHLIGHTS, highlighted, text_table
from perfdag.store.open import open_store
from perfdag.suite.model import Check
from perfdag.units import with_spread

MAX_ROWS = 60
"""Rows of the table without --all."""
HEADINGS = [
    "series",
    "A median (spread)",
    "B median (spread)",
    "B against A",
    "noise",
    "answer",
]
LEGEND = """\
spread: range of fewer than 6 values, else the 95 % interval of the median
B against A: of the levels where the runs lie in two levels, else of the medians
noise: of one run of the series"""


def compare_runs(
    a: str,
    b: str,
    *,
    root: str | None,
    root_b: str | None,
    suite: str | None,
    min_effect: str | None,
    chart: Path | None,
    sizes_chart: Path | None,
    report: Callable[[str], None],
) -> Comparison:
    """Compare the runs that `a` and `b` select, and draw the charts that have a path.

    Raises CommandError, SelectionError, StoreError.
    """
    try:
        checks = [Check(metric="*", min_effect=min_effect)] if min_effect else []
    except ValueError as error:
        reason = str(error).splitlines()[-2].strip()
        raise CommandError(f"--min-effect {min_effect}: {reason}") from None
    store = open_store(root)
    store_b = open_store(root_b) if root_b else store
    side_a = select(store, a, suite)
    side_b = select(store_b, b, suite or (None if root_b else side_a.suite))
    for selector, where, side in ((a, store, side_a), (b, store_b, side_b)):
        explain_last(where, selector, side.runs[-1], report)
    tuning = Tuning([*read_checks(store_b, side_b.runs[-1]), *checks])
    comparison = compare_selections((store, side_a), (store_b, side_b), tuning)
    if chart or sizes_chart:
        from perfdag.app.comparison_charts import write_charts

        write_charts(comparison, chart, sizes_chart)
    return comparison


def is_worse(comparison: Comparison) -> bool:
    """Return whether a headline series of B is worse."""
    return any(row.info.headline and row.answer.word == "worse" for row in comparison.rows)


def _cells(row: Row) -> list[str]:
    """Return the cells of a row, as HEADINGS names them."""
    answer, unit = row.answer, row.info.unit
    sides = [
        with_spread(middle, band.low, band.high, unit)
        for middle, band in ((row.a, row.spread_a), (row.b, row.spread_b))
    ]
    return [
        row.full_name,
        *sides,
        answer.size,
        percent(answer.noise, answer.absolute, sign=False),
        f"{answer.text} ({row.note})" if row.note else answer.text,
    ]


def _table_rows(comparison: Comparison, everything: bool) -> list[Row]:
    """Return the headline series and those that changed, or all series."""
    if everything:
        return comparison.rows
    rows = [
        row
        for row in comparison.rows
        if row.info.headline or row.answer.word in ("better", "worse")
    ]
    return (rows or comparison.rows)[:MAX_ROWS]


def _notes(comparison: Comparison) -> Iterator[str]:
    """Yield the counts, and what was not compared and why."""
    yield count(comparison.rows)
    if comparison.simulated:
        sides = " and ".join(comparison.simulated)
        yield f"simulated nodes in {sides}: figures of the control plane alone"
    for title, lines in (
        ("only in A (missing in B)", comparison.only_a),
        ("only in B (new)", comparison.only_b),
        ("failed", comparison.failed),
        ("refused", comparison.refused),
        ("damaged, left out", comparison.damaged),
    ):
        if lines:
            more = f", and {len(lines) - 20} more (--json lists them)" if len(lines) > 20 else ""
            yield f"{title}: {'; '.join(lines[:20])}{more}"


def _differences(comparison: Comparison) -> Iterator[str]:
    """Yield each parameter and fact of the environment that differs."""
    for key, (before, after) in [*comparison.parameters.items(), *comparison.environment.items()]:
        yield f"{key}: {before} -> {after}"


def text(comparison: Comparison, everything: bool) -> str:
    """Return the comparison as text with a table."""
    lines = []
    for letter, side in (("A", comparison.a), ("B", comparison.b)):
        newest = f"{len(side.runs)} runs, {side.runs[0]} to {side.runs[-1]}"
        lines.append(f"{letter}  {side.suite}  {side.runs[0] if len(side.runs) == 1 else newest}")
    lines += [f"differs  {difference}" for difference in _differences(comparison)]
    if not comparison.environment:
        lines.append("environment and tools are the same")
    rows = _table_rows(comparison, everything)
    styles = [HIGHLIGHTS.get(row.answer.word, "") for row in rows]
    lines.append(text_table(HEADINGS, map(_cells, rows), right=range(1, 5), styles=styles))
    if len(rows) < len(comparison.rows):
        left = len(comparison.rows) - len(rows)
        lines.append(f"{left} more series that did not change (--all shows them)")
    below = highlighted([*_notes(comparison), *LEGEND.splitlines()])
    return "\n".join([*lines, below])


def markdown(comparison: Comparison, everything: bool) -> str:
    """Return the comparison as Markdown."""
    a, b = comparison.a, comparison.b
    lines = [f"### {b.words} against {a.words} (suite {b.suite})", ""]
    lines += [f"- {difference}" for difference in _differences(comparison)]
    if not comparison.environment:
        lines.append("- environment and tools are the same")
    rows = []
    for row in _table_rows(comparison, everything):
        *cells, answer = _cells(row)
        bold = row.answer.word in ("worse", "better")
        rows.append([*cells, f"**{answer}**" if bold else answer])
    lines += ["", *markdown_table(HEADINGS, rows), ""]
    return "\n".join([*lines, *(f"- {note}" for note in _notes(comparison))])


def as_data(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as plain data.

    Effects are relative (0.1 is +10 %), or in the unit of the series if `absolute` is true.
    """
    series = []
    for row in comparison.rows:
        data = asdict(row)
        info, answer = data.pop("info"), data.pop("answer")
        series.append({**info, "name": row.full_name, **data, **answer})
    fields = ("only_a", "only_b", "failed", "refused", "damaged", "simulated")
    return {
        "a": asdict(comparison.a),
        "b": asdict(comparison.b),
        "parameters": comparison.parameters,
        "environment": comparison.environment,
        "series": series,
        **{name: getattr(comparison, name) for name in fields},
    }
