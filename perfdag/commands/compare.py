"""`perfdag compare`: compare two runs or selections; `baseline`: name runs to compare with."""

import argparse
from collections.abc import Iterator
from dataclasses import asdict

from perfdag.analysis.compare import Comparison, Row, compare
from perfdag.analysis.environment import Changes
from perfdag.analysis.history import shorten
from perfdag.analysis.verdict import counts, percent
from perfdag.commands.options import (
    EXIT_GATE,
    EXIT_OK,
    JSON,
    STORE,
    SUITE,
    CommandError,
    option,
    print_json,
    run_work,
    verb,
)
from perfdag.results.run_store import RunStore
from perfdag.results.selections import baselines, put_baseline, select
from perfdag.store.base import store_option
from perfdag.store.s3 import open_store
from perfdag.terminal import styled, text_table
from perfdag.units import plural, short, with_spread


@verb(
    "compare",
    "Compare two runs or selections: first environment and parameters, then each "
    "series with its medians and spreads, the effect, the noise of a run, and the verdict. Runs "
    "of one history are answered by its levels.",
    """
    examples:
      perfdag compare
      perfdag compare last~1 last
      perfdag compare 20261120T020000Z-1a2b3c4d 20261121T020000Z-5e6f7a8b
      perfdag compare 'suite=net month=2026-10' 'suite=net month=2026-11'
      perfdag compare baseline:v1.0 last
      perfdag compare baseline:acceptance last \\
          --store s3://bench/blue --store-b s3://bench/green

    A run is its id, the beginning of its id, the name of its Workflow, `last`, `last~N` (N runs
    before) or `baseline:NAME`.
    A selection is a list of conditions: suite=, month=, since= and until= (days), run= (glob),
    newest= (number of runs). The verdicts are worse, better, same and unclear. If exactly one
    parameter of an entry was changed, its points are compared with one another, and the change is
    printed first.
    """,
    option(
        "a",
        nargs="?",
        default="last~1",
        metavar="A",
        help="run or selection to compare against (default: last~1)",
    ),
    option(
        "b",
        nargs="?",
        default="last",
        metavar="B",
        help="run or selection in question (default: last)",
    ),
    STORE,
    SUITE,
    option("--store-b", metavar="ROOT", help="store of B, if it differs (two clusters)"),
    option(
        "--all",
        action="store_true",
        help="show every series, not only headline series and those with a verdict",
    ),
    option("--gate", action="store_true", help="exit with 3 if a headline series is worse"),
    JSON,
)
def run_compare(args: argparse.Namespace) -> int:
    """Print the comparison. Return 3 with --gate if a headline series is worse."""
    comparison = compare(args.a, args.b, args.store, store_b=args.store_b, suite=args.suite)
    if args.json:
        print_json(asdict(comparison))
    else:
        print(comparison_text(comparison, everything=args.all))
    worse = any(row.info.headline and row.verdict.word == "worse" for row in comparison.series)
    return EXIT_GATE if args.gate and worse else EXIT_OK


MAX_ROWS = 60
"""Rows of the table without --all."""
HEADINGS = [
    "series",
    "A median (spread)",
    "B median (spread)",
    "B against A",
    "noise",
    "verdict",
]
LEGEND = """\
spread: range of fewer than 6 values, else the 95 % interval of the median
level: of all runs around it, where the levels decide
noise: of one run of the series"""


def _cells(row: Row) -> list[str]:
    """Return the cells of a row, as HEADINGS names them."""
    verdict = row.verdict
    unit = row.info.display_unit
    sides = [
        with_spread(band.middle, band.low, band.high, unit)
        if value == band.middle
        else f"{short(value, unit)} (level)"
        for value, band in ((verdict.before, row.a), (verdict.value, row.b))
    ]
    return [
        row.label,
        *sides,
        verdict.size,
        percent(verdict.noise, verdict.unit, sign=False),
        f"{verdict.text} ({row.note})" if row.note else verdict.text,
    ]


def _notes(comparison: Comparison) -> Iterator[str]:
    """Yield the counts, and what was not compared and why."""
    rows = [row for row in comparison.series if row.info.headline] or comparison.series
    yield counts([row.verdict.word for row in rows]) or "no series in common"
    if comparison.simulated:
        sides = " and ".join(comparison.simulated)
        yield f"simulated nodes in {sides}: figures of the control plane alone"
    titles = {
        "only_a": "only in A (missing in B)",
        "only_b": "only in B (new)",
        "damaged": "damaged, left out",
    }
    for reason, lines in comparison.left_out.items():
        if lines:
            title = titles.get(reason, reason)
            more = f", and {len(lines) - 20} more (--json lists them)" if len(lines) > 20 else ""
            yield f"{title}: {'; '.join(lines[:20])}{more}"


def comparison_text(comparison: Comparison, *, everything: bool) -> str:
    """Return the comparison as text with a table."""
    rows, lines = comparison.series, list[str]()
    if not everything:
        changed = ("better", "worse")
        headline = [row for row in rows if row.info.headline or row.verdict.word in changed]
        rows = (headline or rows)[:MAX_ROWS]
    for letter, side in (("A", comparison.a), ("B", comparison.b)):
        newest = f"{len(side.runs)} runs, {side.runs[0]} to {side.runs[-1]}"
        lines.append(f"{letter}  {side.suite}  {side.runs[0] if len(side.runs) == 1 else newest}")
    differs = {
        key: f"{before} -> {after}" for key, (before, after) in comparison.parameters.items()
    }
    differs |= dict(comparison.changes.lines())
    lines += [f"differs  {key}: {change}" for key, change in differs.items()]
    lines += _about_environment(comparison.changes)
    styles = [row.verdict.word for row in rows]
    lines.append(text_table(HEADINGS, map(_cells, rows), right=range(1, 5), styles=styles))
    if left := len(comparison.series) - len(rows):
        lines.append(f"{left} more that are no headlines (--all shows them)")
    below = styled([*_notes(comparison), *LEGEND.splitlines()])
    return "\n".join([*lines, below])


def _about_environment(changes: Changes) -> Iterator[str]:
    """Yield that nothing is recorded to differ, what could not be read, and what to do next."""
    if not changes.values:
        yield changes.nothing
    if changes.unknown and changes.recorded:
        yield f"not known here: {shorten(', '.join(changes.unknown))}"
    if changes.bisect:
        yield f"bisect   {changes.bisect}"


verb(
    "baseline",
    "Give runs a name to compare with, or show the names. "
    "They are stored in baselines.json of the store.",
    """
    examples:
      perfdag baseline set v1.0 last --note 'release 1.0'
      perfdag baseline set acceptance 'suite=net month=2026-10' \\
          --store s3://bench/blue
      perfdag baseline show --json

    `perfdag compare baseline:v1.0 last` compares a run with a baseline. The `checks` of a suite can
    hold each run against one.
    """,
)(run_work)


@verb(
    "baseline set",
    "Name a run or a selection.",
    "",
    option("name", metavar="NAME"),
    option(
        "runs",
        nargs="?",
        default="last",
        metavar="RUN",
        help="run or selection, as `perfdag compare` takes it",
    ),
    option("--note", default="", help="what the baseline is for"),
    STORE,
    SUITE,
)
def set_baseline(args: argparse.Namespace) -> int:
    """Give the selected runs a name. Raises CommandError, SelectionError, StoreError."""
    if not args.name.strip():
        raise CommandError("the name is empty; write `perfdag baseline set v1.0 RUN`")
    store = open_store(args.store)
    runs = select(RunStore(store), args.runs, args.suite)
    put_baseline(store, args.name, runs, args.note)
    print(f"baseline {args.name}: {plural(len(runs.runs), 'run')} of {runs.suite}")
    return EXIT_OK


@verb("baseline show", "Show all names.", "", JSON, STORE)
def show_baselines(args: argparse.Namespace) -> int:
    """Print the names with their runs. Raises SelectionError, StoreError."""
    store = open_store(args.store)
    names = baselines(store)
    if args.json:
        print_json(
            {
                name: {each: of.model_dump() for each, of in suites.items()}
                for name, suites in names.items()
            }
        )
        return EXIT_OK
    rows = [
        (
            name,
            suite,
            plural(len(own.runs), "run"),
            " to ".join(sorted({*own.runs[:1], *own.runs[-1:]})),
            own.note,
        )
        for name, suites in sorted(names.items())
        for suite, own in sorted(suites.items())
    ]
    table = text_table(("name", "suite", "runs", "first to last", "note"), rows)
    command = f"perfdag baseline set NAME RUN {store_option(store.root)}"
    print(table if rows else f"no baselines; `{command}` adds one")
    return EXIT_OK
