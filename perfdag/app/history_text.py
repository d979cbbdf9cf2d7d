"""The history of a suite as text for a terminal."""

from collections.abc import Container
from math import isnan

from perfdag.analysis.history import Failure, Series, Step, planned_points
from perfdag.analysis.nodes import NodeOutlier
from perfdag.analysis.verdict import RANK, percent
from perfdag.app.history import History
from perfdag.app.terminal.text_table import HIGHLIGHTS, fitted, text_table
from perfdag.results.samples import day_of
from perfdag.units import plural, short

MAX_ROWS = 60
"""Rows of the table without --all."""
HEADINGS = ("series", "runs", "level", "noise", "newest", "answer")
NOISE_HEADINGS = (
    "series",
    "runs",
    "within runs",
    "between runs",
    "between nodes",
    "repetitions worth",
)
NOISE_LEGEND = """\
within: median CV of the repetitions of a run; between: 1.4826 MAD of the run medians
repetitions worth: more repetitions in a run do not help, only more runs (known from 20 runs on)"""


def text(history: History, everything: bool) -> str:
    """Return the levels, changes and slow nodes as text. `everything` includes all series."""
    medians = history.medians
    days = f"{day_of(medians.runs[0].run_id)} to {day_of(medians.runs[-1].run_id)}"
    count = len(history.series)
    lines = [f"{medians.suite}: {plural(len(medians.runs), 'run')} from {days}, {count} series"]
    rows = history.series
    if not everything:
        rows = [s for s in rows if s.info.headline or s.steps] or rows
        rows = rows[:MAX_ROWS]
    planned = planned_points(medians)
    rows = sorted(rows, key=lambda row: RANK.index(row.answer.word))
    lines.append(
        text_table(
            HEADINGS,
            [_cells(row, planned) for row in rows],
            right=range(1, 5),
            styles=[HIGHLIGHTS.get(row.answer.word, "") for row in rows],
        )
    )
    if len(rows) < count:
        lines.append(f"{count - len(rows)} more series (--all shows them)")
    steps = [(step.run, series, step) for series in rows for step in series.steps]
    for _, line, step in sorted(steps, key=lambda item: item[0]):
        lines += map(fitted, _step_lines(line, step))
    return "\n".join([*lines, *map(fitted, map(_node_line, history.nodes))])


def _cells(series: Series, planned: Container[str]) -> tuple[str, ...]:
    """Return the cells of a series, as HEADINGS names them. `planned` has the newest run's points.

    A series of another point was left out of that run: with `--only`, or of the suite.
    """
    level, unit = series.levels.levels[-1], series.info.unit
    answer, newest = series.answer, series.newest
    absent = "absent" if series.info.point in planned else "left out"
    return (
        series.name,
        str(series.levels.measured),
        short(level.reference, unit),
        percent(answer.noise, answer.absolute, sign=False),
        short(newest, unit) if not isnan(newest) else absent,
        answer.text,
    )


def _step_lines(series: Series, step: Step) -> list[str]:
    facts = [f"{key} {before} -> {after}" for key, (before, after) in step.environment.items()]
    differs = "; ".join(facts) or "nothing recorded of the environment"
    sizes = step.values(series.info.unit)
    return [
        f"{day_of(step.run)}  {step.size:>8} {step.word:7} {series.name}  {sizes}",
        f"            first run {step.run}; changed: {differs[:300]}",
    ]


def _node_line(node: NodeOutlier) -> str:
    outlier = node.outlier
    effect = f"{percent(outlier.effect)} against the other nodes ({node.word})"
    evidence = f"{plural(outlier.n, 'run')}, {min(outlier.sigmas, 99):.0f} sigma"
    differs = f"\n            differs: {node.differs}" if node.differs else ""
    return f"node {outlier.node}: {effect} in {node.series}, {evidence}{differs}"


def noise(history: History) -> str:
    """Return the noise of each series, and the slow nodes, as text."""
    rows = [
        (
            name,
            str(value.runs),
            *(percent(share, sign=False) for share in (value.within, value.between, value.nodes)),
            str(value.repetitions or "-"),
        )
        for name, value in history.noise
    ]
    table = text_table(NOISE_HEADINGS, rows, right=range(1, len(NOISE_HEADINGS)))
    below = [*NOISE_LEGEND.splitlines(), *map(_node_line, history.nodes)]
    return "\n".join([table, *map(fitted, below)])


def failures(rows: list[Failure]) -> str:
    """Return a line for each failure, and their number."""
    lines = []
    for row in rows:
        count = (
            f"{plural(row.bad, 'object')}"
            if row.total is None
            else f"{row.bad} of {plural(row.total, 'sample')}"
        )
        lines.append(f"{row.run}  {row.entry}  {row.point}  {count}  {row.reason}")
    points = sum(row.total is not None for row in rows)
    lines.append(
        f"{plural(points, 'point')} with samples that were not ok, "
        f"{plural(len(rows) - points, 'message')} of objects"
    )
    return "\n".join(lines)
