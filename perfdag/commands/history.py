"""`perfdag history`: series over runs, with their change points."""

import argparse
import logging
from collections.abc import Container, Sequence
from dataclasses import asdict
from datetime import date
from fnmatch import fnmatchcase
from math import isnan
from typing import Any

from perfdag.analysis.gate import read_acks, read_checks
from perfdag.analysis.history import (
    Failure,
    NodeOutlier,
    Noise,
    Series,
    Step,
    failures,
    node_outliers,
    nodes_of,
    noise_report,
    object_failures,
    planned_points,
    recent_rows,
    series_of,
)
from perfdag.analysis.medians import RunMedians, read_run_medians
from perfdag.analysis.selection import select
from perfdag.analysis.verdict import RANK, Tuning, percent
from perfdag.commands.options import (
    ACKS,
    EXIT_OK,
    JSON,
    STORE,
    CommandError,
    Verbs,
    add_verb,
    option,
    print_json,
)
from perfdag.commands.terminal import HIGHLIGHTS, fitted, text_table
from perfdag.results.runs import RunStore, day_of
from perfdag.results.schema import explain_unreadable
from perfdag.stats.nodes import FEWEST_NODES
from perfdag.store.base import Store
from perfdag.store.open import open_store
from perfdag.units import plural, readable, short

logger = logging.getLogger(__name__)


EPILOG = """examples:
  perfdag history net
  perfdag history net --since 2026-10-01
  perfdag history net --only 'iperf streams=8*' --all
  perfdag history net --noise
  perfdag history net --failures 'no route'
  perfdag history net --json

Three measurements in a row beyond a level begin the next. docs/statistics.md has the rules.
"""


def add_history(sub: Verbs) -> None:
    """Register the verb."""
    add_verb(
        sub,
        "history",
        run,
        "Show the history of a suite: the level of each series; its changes, with "
        "size, date and what changed in the environment; slow nodes, noise and failures.",
        EPILOG,
        option("suite", metavar="SUITE", help="name of a suite that has results"),
        STORE,
        option("--since", metavar="DAY", help="use only runs from this day on"),
        option(
            "--cluster",
            metavar="NAME",
            help="use only runs of this cluster (default: the cluster of the newest run)",
        ),
        option(
            "--only",
            metavar="GLOB",
            action="append",
            default=[],
            help="show only series whose name matches GLOB; repeat the option to add more",
        ),
        option("--all", action="store_true", help="show every series, not only headline series"),
        option(
            "--noise",
            action="store_true",
            help="show the noise within runs and between runs",
        ),
        option(
            "--failures",
            metavar="TEXT",
            nargs="?",
            const="",
            help="show samples that failed or are invalid, and whose reason contains TEXT",
        ),
        ACKS,
        JSON,
    )


def run(args: argparse.Namespace) -> int:
    """Print the history of a suite, its noise, or its failures."""
    store = open_store(args.store)
    medians = read_runs(store, args)
    if args.failures is not None:
        text = args.failures
        found = [*failures(medians, text), *object_failures(store, medians, text)]
        print_json(found) if args.json else print(failures_text(found))
        return EXIT_OK
    acks, _ = read_acks(args.acks, store)
    newest = medians.runs[-1]
    tuning = Tuning(read_checks(store, newest.run_id), newest.cluster)
    globs = [readable(glob) for glob in args.only or "*"]
    every = series_of(medians, tuning, acks)
    series = [line for line in every if any(fnmatchcase(line.name, glob) for glob in globs)]
    if not series:
        raise CommandError(f"--only {', '.join(args.only)}: no series has such a name")
    nodes, noise = list[NodeOutlier](), list[Noise]()
    if args.noise:
        noise = noise_report(series, recent_rows(store, medians, series))
    if len(nodes_of(medians)) >= FEWEST_NODES:
        paging = [line for line in every if tuning.pages(line.info)]
        nodes = node_outliers(paging, recent_rows(store, medians, paging), tuning)
    if args.json:
        print_json(as_data(medians, series, nodes, noise))
    else:
        lines = noise_lines(noise) if args.noise else history_lines(medians, series, args.all)
        print("\n".join([*lines, *map(fitted, map(_node_line, nodes))]))
    return EXIT_OK


def read_runs(store: Store, args: argparse.Namespace) -> RunMedians:
    """Return the runs of a suite that the options select.

    Raises CommandError, SelectionError, StoreError.
    """
    suite, since = args.suite, args.since or ""
    try:
        date.fromisoformat(since or "2026-10-31")
    except ValueError:
        raise CommandError(f"--since {since}: write a day as 2026-10-31") from None
    medians = read_run_medians(store, suite)
    runs = medians.runs
    if not runs:
        if not medians.damaged:
            select(RunStore(store), "last", suite)  # it says why there is none
        reason = explain_unreadable(store, medians.damaged[0])
        raise CommandError(f"suite {suite} has no readable run; {reason}")
    for key in medians.damaged:
        logger.info(explain_unreadable(store, key))
    cluster = runs[-1].cluster if args.cluster is None else args.cluster
    own = [run.run_id for run in runs if run.cluster == cluster and day_of(run.run_id) >= since]
    if not own:
        clusters = ", ".join(sorted({run.cluster for run in runs}))
        raise CommandError(
            f"no run matches of {plural(len(runs), 'run')} on cluster {clusters}; "
            f"the newest is {runs[-1].run_id}"
        )
    return medians.select(lambda run: run.run_id in set(own))


def as_data(
    medians: RunMedians,
    lines: Sequence[Series],
    nodes: Sequence[NodeOutlier],
    noise: Sequence[Noise],
) -> dict[str, Any]:
    """Return a history as plain data."""
    runs = [run.run_id for run in medians.runs]
    return {
        "suite": medians.suite,
        "runs": runs,
        "series": [
            {
                **asdict(series.info),
                "name": series.name,
                "answer": {**asdict(series.answer), "text": series.answer.text},
                "values": series.value.tolist(),
                "low": series.low.tolist(),
                "high": series.high.tolist(),
                "levels": [
                    {
                        "start": runs[level.start],
                        "value": level.reference,
                        "noise": level.noise,
                    }
                    for level in series.levels.levels
                ],
                "steps": [_step_data(step) for step in series.steps],
            }
            for series in lines
        ],
        "nodes": [
            {"series": own.series, "word": own.word, "differs": own.differs} | asdict(own.outlier)
            for own in nodes
        ],
        "noise": [asdict(one) for one in noise],
    }


def _step_data(step: Step) -> dict[str, Any]:
    return {
        "run": step.run,
        "decided": step.decided,
        "word": step.word,
        "effect": step.effect,
        "before": step.before.reference,
        "after": step.after.reference,
        "environment": step.environment,
    }


MAX_ROWS = 60
"""Rows of the table without --all."""
HEADINGS = ("series", "runs", "level", "noise", "newest", "answer")
NOISE_HEADINGS = ("series", "runs", "within runs", "between runs", "repetitions worth")
NOISE_LEGEND = """\
within: median CV of the repetitions of a run; between: noise of a run, as `history` has it
repetitions worth: more repetitions in a run do not help, only more runs (known from 20 runs on)"""


def history_lines(medians: RunMedians, series: Sequence[Series], everything: bool) -> list[str]:
    """Return the levels and changes as text. `everything` includes all series."""
    days = f"{day_of(medians.runs[0].run_id)} to {day_of(medians.runs[-1].run_id)}"
    count = len(series)
    lines = [f"{medians.suite}: {plural(len(medians.runs), 'run')} from {days}, {count} series"]
    rows = [line for line in series if line.info.headline or line.steps] or series
    rows = series if everything else rows[:MAX_ROWS]
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
    steps = [(step.run, line, step) for line in rows for step in line.steps]
    for _, line, step in sorted(steps, key=lambda item: item[0]):
        lines += map(fitted, _step_lines(line, step))
    return lines


def _cells(series: Series, planned: Container[str]) -> tuple[str, ...]:
    """Return the cells of a series, as HEADINGS names them. `planned` has the newest run's points.

    A series of another point was left out of that run: with `--only`, or of the suite.
    """
    level, info = series.levels.levels[-1], series.info
    answer, newest = series.answer, series.newest
    absent = "absent" if series.info.point in planned else "left out"
    return (
        series.name,
        str(series.levels.measured),
        short(level.reference, info.unit, info.metric),
        percent(answer.noise, answer.absolute, sign=False),
        short(newest, info.unit, info.metric) if not isnan(newest) else absent,
        answer.text,
    )


def _step_lines(series: Series, step: Step) -> list[str]:
    facts = [f"{key} {before} -> {after}" for key, (before, after) in step.environment.items()]
    differs = "; ".join(facts) or "nothing recorded of the environment"
    sizes = step.values(series.info)
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


def noise_lines(noise: Sequence[Noise]) -> list[str]:
    """Return the noise of each series as text."""
    rows = [
        (
            one.series,
            str(one.runs),
            percent(one.within, sign=False),
            percent(one.between, one.absolute, sign=False),
            str(one.repetitions or "-"),
        )
        for one in noise
    ]
    table = text_table(NOISE_HEADINGS, rows, right=range(1, len(NOISE_HEADINGS)))
    return [table, *map(fitted, NOISE_LEGEND.splitlines())]


def failures_text(rows: list[Failure]) -> str:
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
